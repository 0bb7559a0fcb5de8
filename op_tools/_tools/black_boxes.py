"""The black boxes of all ranks of a run: found below a folder, compared, shown."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from .._base.core import Error
from .._base.declared_rows import BlackBoxRow
from .._base.own_command import op_tools_line
from .._base.rank_text import absent_ranks, lines_of_ranks, ranks_text
from .._base.verdict import Verdict, verdict_of
from .black_box_file import _SUFFIX, BlackBox, Lack, read_black_box, shapes_of_inputs

# Operators whose inputs differ between ranks as they are meant to: a rank gives or gets more than the others.
_UNEQUAL = frozenset(
    f"c10d::{name}" for name in ("gather_", "scatter_", "alltoall_", "alltoall_base_", "reduce_scatter_", "allgather_")
)


_SIZE = re.compile(r", (\d+) ranks$")  # of a process group, behind its name


def _boxes_by_run(boxes: Sequence[BlackBox]) -> list[list[BlackBox]]:
    """The files of each run, the last run at the end. A rank that has two files has run twice, workers and helpers left aside: a run
    begins behind the longest pause between their starts, as the ranks of a run start together."""
    boxes = sorted(boxes, key=lambda box: box.started)
    with_collectives = {id(box) for box in boxes if any(row.number for row in box.rows)}
    programs = {(box.rank, box.program) for box in boxes if id(box) in with_collectives}
    cuts: set[int] = set()
    last_of: dict[int, int] = {}
    for place, box in enumerate(boxes):
        # A forked worker and a process of another program take part in no collective, and are none of a rank's runs.
        if id(box) not in with_collectives and (box.parent or (box.rank, box.program) not in programs):
            continue
        if (before := last_of.get(box.rank)) is not None:
            pauses = {
                number: boxes[number].started - boxes[number - 1].started for number in range(before + 1, place + 1)
            }
            cuts.add(max(pauses, key=pauses.__getitem__))
        last_of[box.rank] = place
    return [boxes[first:end] for first, end in pairwise([0, *sorted(cuts), len(boxes)])]


def _size_of(group: str) -> int:
    """How many ranks a process group has; 0: its name does not say."""
    size = _SIZE.search(group)
    return int(size[1]) if size else 0


def launched_ranks(boxes: Sequence[BlackBox]) -> int:
    """How many ranks a run had, at the least: by its process groups, and by the highest rank."""
    groups = {row.group for box in boxes for row in box.rows if row.number}
    return max([0, *map(_size_of, groups), *(box.rank + 1 for box in boxes)])


def collective_progress(boxes: list[BlackBox]) -> list[str]:
    """How far the ranks are in the collectives of each process group, and where they disagree: a line for each finding.

    Of several runs in a folder the last counts; a rank's workers, which have its rank, do not.
    """
    last_run = _boxes_by_run(boxes)[-1]
    newest: dict[int, BlackBox] = {}
    for box in last_run:
        known = newest.get(box.rank)
        runs_it_again = known is not None and not box.parent and box.program == known.program
        if known is None or runs_it_again or any(row.number for row in box.rows):
            newest[box.rank] = box
    groups: dict[str, dict[int, dict[int, BlackBoxRow]]] = {}
    for rank, box in sorted(newest.items()):
        for row in box.rows:
            if row.number:
                groups.setdefault(row.group, {}).setdefault(rank, {})[row.number] = row
    launched = launched_ranks(last_run)
    return [
        line
        for group, ranks in groups.items()
        if max(len(ranks), _size_of(group)) > 1
        for line in _compare_group(group, ranks, newest.keys() if _size_of(group) == launched else ())
    ]


def _compare_group(group: str, ranks: dict[int, dict[int, BlackBoxRow]], members: Collection[int]) -> list[str]:
    """
    Args:
        ranks: the group's collectives, by rank and number.
        members: ranks that have a file and are in the group, as far as it is known.
    """
    last = {rank: max(rows) for rank, rows in ranks.items()}
    reached, furthest = min(last.values()), max(last.values())
    name = f"process group {group or '?'}"
    lines = []
    for number in sorted({number for rows in ranks.values() for number in rows}):
        calls = {rank: rows[number] for rank, rows in ranks.items() if number in rows}
        shown = {rank: (row.op, row.reduction, "" if row.op in _UNEQUAL else row.inputs) for rank, row in calls.items()}
        if len(set(shown.values())) > 1:
            texts = [
                (
                    rank,
                    f"{row.op}{f' ({row.reduction})' if row.reduction else ''} on {shapes_of_inputs(row)}, line {row.line}",
                )
                for rank, row in calls.items()
            ]
            calls_text = "; ".join(lines_of_ranks(texts, fewest_first=True))
            lines.append(f"{name}: the ranks disagree in collective {number}: {calls_text}")
            break
    common = next(rows[reached] for rows in ranks.values() if reached in rows)
    begun = f"number {reached}, {common.op} on {shapes_of_inputs(common)}"
    if (size := _size_of(group)) > len(ranks):
        without = ranks_text(set(members).difference(ranks))
        known = f"; none of its collectives is in the file of {without}" if without else ""
        lines.append(
            f"{name}: files of {len(ranks)} of its {size} ranks have its collectives{known}; "
            f"the last that {ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} begun is {begun}"
        )
    else:
        lines.append(f"{name}: the last collective that all ranks have begun is {begun}")
    behind = [rank for rank, number in last.items() if number < furthest]
    if behind:
        ahead = next(rows[furthest] for rank, rows in ranks.items() if last[rank] == furthest)
        lines.append(
            f"{name}: behind {'is' if len(behind) == 1 else 'are'} {ranks_text(behind)}: "
            f"others have begun number {furthest}, {ahead.op} on {shapes_of_inputs(ahead)}"
        )
    return lines


def find_black_boxes(path: str | Path) -> list[Path]:
    """The files of OpBlackBox in a folder, by name; a file itself.

    Raises:
        op_tools.Error: there is none.
    """
    place = Path(path)
    below = place.rglob(f"*{_SUFFIX}") if place.is_dir() else [place]
    files = sorted(file for file in below if file == place or not file.is_symlink())
    if not files:
        raise Error(f"{path}: no file of OpBlackBox (*{_SUFFIX}) is in this folder")
    return files


def _is_of_all_ranks(place: Path, boxes: Sequence[BlackBox]) -> bool:
    """Whoever names a file, or the folder of a rank, asks for no other rank."""
    if len({box.rank for box in boxes}) > 1:
        return True
    folders = [Path(box.path).parents[1] for box in boxes]  # <run>/<rank>/<time>/<process>.blackbox
    return any(folder.name.isdecimal() and folder.parent.is_relative_to(place) for folder in folders)


def _absent_ranks(place: Path, boxes: Sequence[BlackBox]) -> list[str]:
    """A sentence on ranks of the last run that have no file which can be read; empty where there are none."""
    last_run = _boxes_by_run(boxes)[-1]
    if not _is_of_all_ranks(place, last_run):
        return []
    launched = launched_ranks(last_run)
    absent = ranks_text(absent_ranks({box.rank for box in last_run}, launched))
    return [f"{absent}: no file in {place} that can be read, of {launched} ranks"] if absent else []


def read_black_boxes(path: str | Path) -> tuple[list[BlackBox], list[str]]:
    """The files of OpBlackBox in a folder that can be read; and the faults of the others, and ranks of the last run that have no file.

    Raises:
        op_tools.Error: there is none, or `path` is the file that cannot be read.
    """
    boxes, problems = [], []
    files = find_black_boxes(path)
    for file in files:
        try:
            boxes.append(read_black_box(file))
        except Error as error:
            if len(files) == 1:
                raise
            problems.append(str(error))
    return boxes, problems + (_absent_ranks(Path(path), boxes) if boxes else [])


def verdict_of_boxes(boxes: Sequence[BlackBox], problems: Sequence[str]) -> Verdict:
    """`agrees`: it is known where each process is, or ended. A process without calls may stand beside others.

    Args:
        boxes: the files that could be read.
        problems: as read_black_boxes() gives them.
    """
    lacks = {lack for box in boxes for lack in box.lacks if lack is not Lack.NO_CALL}
    return verdict_of(wrong=False, unseen=bool(problems or lacks) or not any(box.rows for box in boxes))


def _in_the_same_call(read_boxes: Sequence[BlackBox]) -> list[list[BlackBox]]:
    """Processes that are in the same call, or ended there; the fewest first, as all others wait for a sick rank."""
    by_position: dict[tuple[str, str], list[BlackBox]] = {}
    for box in sorted(read_boxes, key=lambda box: (box.rank, box.pid)):
        lacks = ", ".join(lack.value for lack in box.lacks)
        by_position.setdefault((box.position, lacks), []).append(box)

    def urgency(boxes: list[BlackBox]) -> tuple[bool, int, bool, bool]:
        box = boxes[0]
        return box.closed, len(boxes), not (box.open and not box.alive), not box.open

    return sorted(by_position.values(), key=urgency)


def _line_of(boxes: Sequence[BlackBox]) -> str:
    if len(boxes) == 1:
        return boxes[0].verdict
    ranks = {box.rank for box in boxes}
    count = f" ({len(boxes)} processes)" if len(ranks) < len(boxes) else ""
    longest = max(box.waiting for box in boxes)
    since = f", the longest since {longest:.1f} s" if longest else ""
    return f"{ranks_text(ranks)}{count} {boxes[0].position}{since}"


def _ranks_and_start(run: Sequence[BlackBox]) -> str:
    ranks = {box.rank for box in run}
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run[0].started))
    return f"{ranks_text(ranks)} from {start}"


def show_black_boxes(read_boxes: Sequence[BlackBox], last: int = 10) -> str:
    """The output of `op-tools blackbox`: how far the process groups are, a sentence for all processes that are in the same call,
    and the last calls of the first process of each sentence, if it did not stop the tool itself."""
    groups = _in_the_same_call(read_boxes)
    any_call = any(box.rows for box in read_boxes)
    parts = []
    if len(read_boxes) > 1:
        lines = list(map(_line_of, groups))
        if len(runs := _boxes_by_run(read_boxes)) > 1:
            lines.append(
                f"{len(runs)} runs are in these files; of process groups the last counts, {_ranks_and_start(runs[-1])}"
            )
        parts.append("\n".join([*lines, *collective_progress(list(read_boxes))]))
    for boxes in groups:
        box = boxes[0]
        if box.closed and not all(other.closed for other in read_boxes):
            continue  # its line is above; others are looked for
        lacks = [f"NOT JUDGED: {lack.value}" for lack in box.lacks if lack is not Lack.NO_CALL or not any_call]
        title = "\n".join(text for text in (box.verdict, *lacks, box.device_verdict, box.program, box.path) if text)
        if len(boxes) > 1:
            title += f"\n{len(boxes) - 1} more processes in the same call; the last calls of one: {op_tools_line('blackbox', str(boxes[1].path))}"
        if box.left_out:
            title += f"\n{box.left_out} calls had no place in the file"
        parts.append(f"{title}\n\n{box.table(row_limit=last or -1)}" if box.rows else title)
    return "\n\n".join(parts)
