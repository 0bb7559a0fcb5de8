"""Files of OpBlackBox: *.blackbox"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .._base.own_command import op_tools_line
from .._base.verdict import Verdict
from .._tools.black_box_file import BlackBox
from .._tools.black_boxes import launched_ranks, read_black_boxes, show_black_boxes, verdict_of_boxes
from .part import Column, Command, FindingsOf, Mark, Origin, Part, Shares, Table, integer_of, number_of, short, text_of

_COLUMNS = (
    Column("state", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("ms", is_number=True),
    Column("done", is_choice=True),
    Column("stream", is_choice=True),
    Column("rank", is_choice=True),
    Column("process", is_choice=True),
    Column("inputs"),
    Column("line"),
)
_MOST_LINES = 4
_STATES = ("open", "launched", "done")  # of a call on a stream: in it, returned and not known to be done, done


def part_of_folder(folder: Path, origin: Origin) -> Part:
    """The part of all processes below a folder.

    Raises:
        op_tools.Error: there is none that can be read.
    """
    boxes, problems = read_black_boxes(folder)
    ranks = {box.rank for box in boxes}
    if len(ranks) == 1:  # of several, as where the program spawns them, read_black_boxes() knows which are absent
        origin.rank, origin.ranks = str(*ranks), launched_ranks(boxes)
    part = part_of_boxes(boxes, problems, origin)
    part.commands = [Command("the calls of each thread", op_tools_line("blackbox", str(folder)))]
    return part


def part_of_boxes(boxes: Sequence[BlackBox], problems: Sequence[str], origin: Origin) -> Part:
    """The same of files that were read. `differs`: a process ended in a call. It looks at no values, and so is never `agrees`."""
    part = Part("OpBlackBox", origin)
    table = Table("The last calls of each thread", _COLUMNS)
    findings = FindingsOf(part)
    streams: dict[str, Counter[str]] = {}
    for box in boxes:
        for row in map(asdict, box.rows):
            is_open = row["state"] == "open" and not box.closed
            stream = f"rank {box.rank}, process {box.pid}: {text_of(row, 'stream') or 'no stream'}"
            state = "open" if is_open else "done" if row["done"] or row["state"] != "ended" else "launched"
            streams.setdefault(stream, Counter())[state] += 1
            for place in part.place(text_of(row, "module"), text_of(row, "line")):
                place.calls += 1
                place.wrong += is_open
            if is_open:
                state = "is in it" if box.alive else "ended in it"
                findings.add(Mark.WRONG, row, text=f"process {box.pid} of rank {box.rank} {state}", apart=box.pid)
            elif row["state"] == "failed":
                findings.add(Mark.NOTE, row, text="raised", apart="failed")
            table.add(
                (
                    *(text_of(row, name) for name in ("state", "op", "phase", "module")),
                    integer_of(row, "step"),
                    integer_of(row, "id"),
                    short(number_of(row, "ms")),
                    "yes" if row["done"] else "no",
                    text_of(row, "stream"),
                    *(str(box.rank), str(box.pid), text_of(row, "inputs"), text_of(row, "line")),
                ),
                is_wrong=is_open,
            )
    part.tables.append(table)
    if streams:
        least_done = sorted(streams.items(), key=lambda item: (-item[1]["open"], -item[1]["launched"], item[0]))
        part.shares = [Shares("Calls of each stream", "stream", _STATES, tuple(least_done))]
    origin.gaps += problems
    origin.gaps += [lack.value for box in boxes for lack in box.lacks]
    died = any(box.open and not box.alive and not box.closed for box in boxes)
    known = verdict_of_boxes(boxes, problems) is Verdict.AGREES
    part.verdict = Verdict.DIFFERS if died else None if known else Verdict.NOT_JUDGED
    part.text = "\n".join(show_black_boxes(boxes, last=1).splitlines()[:_MOST_LINES])
    part.facts = [("processes", f"{len(boxes):,}"), ("calls", f"{table.total:,}")]
    part.cannot_tell = ["OpBlackBox: whether values are right; it looks at none."]
    return part
