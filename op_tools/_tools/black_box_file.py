"""The file of OpBlackBox, read: the last calls of a process, and the calls saved in it."""

from __future__ import annotations

import enum
import json
import os
import re
import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .._base import core
from .._base.core import Error
from .._base.declared_rows import BlackBoxRow
from .._base.own_command import op_tools_line
from .._base.results import DEFAULT_ROWS, Result, Shown, sorted_rows, text_table, worded
from .._base.verdict import Coverage

_SUFFIX = ".blackbox"
_WIDTH = 100  # of the table
_TENSORS = 4  # of a call in a line
_BETWEEN_TENSORS = re.compile(r", (?!\d)")  # not the commas of a shape
_MOST_NAMES = 8  # in a command that is printed


class Lack(enum.Enum):
    """Why a file does not say where its process is, or ended."""

    NO_CALL = "no call was seen"
    CALLS = "calls had no place in the file"
    NAMES = "names of operators had no place in the file"
    DAMAGED = "the file is damaged: some of its calls are lost"


@dataclass(frozen=True, repr=False)
class BlackBox(Result):
    """The content of the file of a process."""

    path: str
    pid: int
    rank: int
    host: str
    program: str
    """Its command line."""
    started: float
    """When the tool was started, in seconds since 1970."""
    closed: bool
    """The tool was stopped: later calls of the process are not in the file."""
    alive: bool
    """The process lives, on this machine."""
    parent: int = 0
    """The process that forked it, a worker of a DataLoader for example; 0: its file is the first."""
    rows: list[BlackBoxRow] = field(default_factory=list)
    """The last calls of each thread, in the order in which they began."""
    left_out: int = 0
    """Calls that had no place in the file: of more than 256 threads at once, nested more than 31 deep, or on a full disk."""
    names_lost: int = 0
    """Names of operators, modules and lines that had no place in the file: their table, or the disk, was full."""
    damaged: int = 0
    """Calls, and threads' parts of the file, in whose place zeros or older calls stand, as after a loss of power."""
    copied: float | None = None
    """When this copy of the file was made, in seconds since 1970; None: it is the file itself."""
    coverage: Coverage | None = None
    """Of the tool's own result(): which calls were checked, and which were not. The file alone does not have it."""

    @property
    def lacks(self) -> list[Lack]:
        """Why `verdict` may not be all of the truth; empty where it is."""
        lacks = {
            Lack.NO_CALL: not self.rows,
            Lack.CALLS: bool(self.left_out) and not self.closed,
            Lack.NAMES: any(not row.op for row in self.open or self.rows[-1:]),
            Lack.DAMAGED: self.damaged > 0,
        }
        return [lack for lack, holds in lacks.items() if holds]

    @property
    def open(self) -> list[BlackBoxRow]:
        """The calls that had begun and not ended: the process died in one of them, or hangs there."""
        return [row for row in self.rows if row.state == "open"]

    @property
    def suspects(self) -> list[BlackBoxRow]:
        """The calls that have returned, but no event has shown that their device did them; the first of each stream is
        the call that the device was in, or comes after it by at most ``marks`` calls."""
        return sorted(
            (row for row in self.rows if row.state == "ended" and row.stream and not row.done), key=lambda row: row.id
        )

    @property
    def process(self) -> str:
        """Its rank and number."""
        parent = f" (forked from {self.parent})" if self.parent else ""
        return f"rank {self.rank}, process {self.pid}{parent}"

    @property
    def verdict(self) -> str:
        """In one sentence: where the process is, or where it ended."""
        since = f", since {self.waiting:.1f} s" if self.waiting else ""
        return f"{self.process} {self.position}{since}"

    @property
    def waiting(self) -> float:
        """Seconds since a living process began the call that it is in; 0 where it is in none."""
        return time.time() - self.open[-1].begun if self.alive and self.open and self.copied is None else 0.0

    @property
    def position(self) -> str:
        """Where the process is, or where it ended: the same text for processes that are in the same call."""
        inside = [_described_call(row) for row in self.open]
        if self.copied is not None:
            state = f"was in {' and in '.join(inside)}" if inside else "was in no operator"
            if self.left_out:
                state = f"{state if inside else 'may have been'}{', or' if inside else ''} in one of {self._lost}"
            return f"{state} when its file was copied"
        if inside:
            lost = f", or in one of {self._lost}" if self.left_out else ""
            return f"{'is' if self.alive else 'ended'} in {' and in '.join(inside)}{lost}"
        last = self.rows[-1] if self.rows else None
        if self.left_out and not self.closed:
            known = f"; the last call that has one was {_described_call(last)}" if last else ""
            return f"{'may be' if self.alive else 'may have ended'} in one of {self._lost}{known}"
        raised = last is not None and last.state == "failed"
        if self.closed:
            last_raised = f"; the last call raised: {_described_call(last)}" if last and raised else ""
            return f"stopped the tool; no call was open{last_raised}"
        if last is None:
            return f"{'has made' if self.alive else 'ended before'} {'no' if self.alive else 'its first'} call"
        where = "is in no operator" if self.alive else "ended outside of any operator"
        waits = " (it may wait for the other ranks)" if self.alive and last.number else ""
        return f"{where}; the last was {_described_call(last)}{', which raised' if raised else ''}{waits}"

    @property
    def _lost(self) -> str:
        why = "of more than 256 threads, nested more than 31 deep, or on a full disk"
        return f"the calls that have no place in the file ({why}: {self.left_out})"

    @property
    def device_verdict(self) -> str:
        """The state of devices, a line per stream, and how to find the guilty call; "" where all is done."""
        suspects = self.suspects
        if self.closed or not suspects:
            return ""
        lines = []
        for stream in dict.fromkeys(row.stream for row in suspects):
            of_stream = [row for row in suspects if row.stream == stream]
            done = [row for row in self.rows if row.stream == stream and row.done]
            last = (
                f"the last call known to be done is {_described_call(done[-1])}"
                if done
                else "no call is known to be done"
            )
            lines.append(
                f"{stream}: {last}; launched since: {len(of_stream)}, the first {_described_call(of_stream[0])}"
            )
        options = ["--blackbox", "--time", "--time-mode", "sync", "--time-level", "aten", "--no-time-lines"]
        names = sorted({row.op for row in [*suspects, *self.open] if row.op})
        if len(names) <= _MOST_NAMES:  # of more, each operator is waited for
            options += ["--time-ops", ",".join(names)]
        lines.append(f"to name the guilty one: {self._again(options)}")
        return "\n".join(lines)

    def _again(self, options: list[str]) -> str:
        """The program's command line with other tools. The file has its words joined by spaces."""
        words = self.program.split()
        for number, word in enumerate(words[1:], 1):
            if word == "run" and Path(words[number - 1]).name in ("op-tools", "op_tools", "__main__.py"):
                return shlex.join([*words[: number + 1], *options, *_without_options(words[number + 1 :])])
        setting = op_tools_line("env", *options)
        return f'(eval "$({setting})"; {self.program})'

    def table(self, sort_by: str | None = None, row_limit: int = DEFAULT_ROWS) -> str:
        """The last calls as a text table; those that never ended are marked.

        Args:
            sort_by: a field of the rows. Numbers are sorted in descending order, strings in ascending order. None: in the
                order in which they began.
            row_limit: how many, the last ones where sort_by is None; -1: all. Calls that never ended are among them.

        Raises:
            op_tools.Error: the rows have no such field.
        """
        if sort_by:
            return text_table(self._columns(self.rows), sorted_rows(self.rows, sort_by), row_limit, _WIDTH)
        if row_limit < -1:
            return text_table(self._columns(self.rows), self.rows, row_limit)  # names the allowed values
        rows = self.rows if row_limit < 0 else self.rows[len(self.rows) - min(row_limit, len(self.rows)) :]
        shown = [*(row for row in self.open if row not in rows), *rows]
        return text_table(self._columns(shown), shown, -1, _WIDTH)

    @staticmethod
    def _columns(rows: list[BlackBoxRow]) -> list[Shown[BlackBoxRow]]:
        several = len({row.thread for row in rows}) > 1
        return [
            Shown("", lambda row: {"open": ">", "failed": "!"}.get(row.state, "")),
            Shown("ms", lambda row: "" if row.ms is None else f"{row.ms:.3f}", is_number=True),
            *([Shown[BlackBoxRow]("thread", lambda row: str(row.thread), is_number=True)] if several else []),
            Shown("op", lambda row: row.op.removeprefix("aten::") + (" backward" if row.phase == "backward" else "")),
            worded("inputs", "inputs"),
            worded("module", "module"),
            Shown("line", lambda row: row.line.rpartition("/")[2]),
        ]

    def to_json(self) -> str:
        """All of it as one line of JSON."""
        return json.dumps(
            {
                **asdict(self),
                "coverage": self.coverage and self.coverage.to_dict(),
                "verdict": self.verdict,
                "device_verdict": self.device_verdict,
                "lacks": [lack.name.lower() for lack in self.lacks],
            }
        )


def _without_options(words: list[str]) -> list[str]:
    """The program and its arguments, behind the options of op-tools run; the words themselves where it cannot be told."""
    for number, word in enumerate(words):
        if word == "-m" or (word.endswith(".py") and not words[number - 1].startswith("--")):
            return words[number:]
    return words


def shapes_of_inputs(row: BlackBoxRow) -> str:
    """Of the first tensors that a call was given."""
    if row.inputs == "?":
        return "tensors whose shapes are no longer in the file"
    tensors = _BETWEEN_TENSORS.split(row.inputs)
    left = len(tensors) - _TENSORS
    return ", ".join(tensors[:_TENSORS]) + (f" and {left} more" if left > 0 else "") or "no tensors"


def _described_call(row: BlackBoxRow) -> str:
    text = f"{row.op or 'an operator whose name had no place in the file'} ({row.phase}, step {row.step}) on {shapes_of_inputs(row)}"
    if row.module:
        text += f", module {row.module}"
    if row.number:
        text += f", number {row.number} of process group {row.group or '?'}"
    if row.stored == "copying":
        text += ", before it began: its inputs were being copied"
    return text + (f", line {row.line}" if row.line else "")


def _is_mapped(path: Path, process: int) -> bool:
    """Its process has it mapped: it lives, and is no other of that number."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text(errors="replace")
    except OSError:
        return False
    return str(path.resolve()) in maps


def read_black_box(path: str | Path) -> BlackBox:
    """Reads the file that OpBlackBox left, or writes right now.

    Args:
        path: ``op_blackbox_result/<rank>/<time>/<process>.blackbox``.

    Raises:
        op_tools.Error: it is no such file, or is cut off.
    """
    content = core.read_black_box(os.fsencode(path))
    rows = [BlackBoxRow(**row) for row in content.pop("rows")]
    return BlackBox(path=str(path), alive=_is_mapped(Path(path), content["pid"]), rows=rows, **content)


def save_kept_calls(path: str | Path, folder: str | Path) -> list[Path]:
    """Writes the calls whose inputs a file of OpBlackBox has (``inputs=``) as saved calls, for ``run_op_from_data``.

    Args:
        path: the file.
        folder: where each call gets a folder of its own, ``<operator>/<number>``.

    Returns:
        The calls' folders, in the order in which the calls began; those that never ended last.

    Raises:
        op_tools.Error: it is no such file, it has no inputs, or the folder cannot be written.
    """
    return [Path(place) for place in core.save_kept_calls(os.fsencode(path), os.fsencode(folder))]


def ask_for_stacks(path: str | Path, seconds: float = 10) -> str:
    """Asks a process for a copy of its file and the stacks of its threads; the same as making the file ``<path>.ask``.

    Args:
        path: the file of OpBlackBox of a process that lives.
        seconds: how long to wait for the answer.

    Returns:
        The stacks.

    Raises:
        op_tools.Error: the process does not live, or does not answer.
    """
    stacks, request = Path(f"{path}.stacks"), Path(f"{path}.ask")
    if not read_black_box(path).alive:
        raise Error(f"{path}: its process does not live on this machine")
    before = stacks.stat().st_size if stacks.exists() else 0
    request.touch()
    ends = time.monotonic() + seconds
    while request.exists() or not stacks.exists() or stacks.stat().st_size == before:
        if time.monotonic() > ends:
            raise Error(f"{path}: its process has not answered within {seconds:g} s")
        time.sleep(0.02)
    written = stacks.read_bytes()[before:].decode(errors="replace")
    # Reports of a hang may have been written since, before the answer and behind it.
    reports = re.split(r"^(?=OpBlackBox:)", written, flags=re.MULTILINE)
    return next((one for one in reports if request.name in one.partition("\n")[0]), written)
