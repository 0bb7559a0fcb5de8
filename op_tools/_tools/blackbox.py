"""OpBlackBox: which call a process was in when it died, or hangs in."""

from __future__ import annotations

import enum
import json
import mmap
import multiprocessing.util
import re
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from typing_extensions import Unpack

from .. import _C
from .._base.declared import BlackBoxRow, OpBlackBoxOptions
from .._base.results import DEFAULT_ROWS, Result, Shown, sorted_rows, text_table, worded
from .._base.verdict import Coverage, Verdict, verdict_of
from .tool import Tool

_SUFFIX = ".blackbox"
_WIDTH = 100  # of the table
# As src/blackbox/blackbox_file.h lays them out.
_HEADER = struct.Struct("<8s II Ii IIII QQQQQ qq II Q II Q QQ II QQ q")
_STREAM = struct.Struct("<q I4x q Q")
_REGION = struct.Struct("<QQQ40x")
_CALL = struct.Struct("<qqQq IIII BBBB II4x")
_KEPT = struct.Struct("<QQ")
_MOST_STREAMS = 64
_UNIT = 8  # of places in the ring of descriptions
_KEPT_TEXTS = ("", "copying", "inputs", "too large", "failed", "no room")
# The files of a saved call that are stored; other names are not written anywhere.
_KEPT_FILES = ("input.pth", "meta.json")


class _Header(NamedTuple):
    magic: bytes
    header_bytes: int
    call_bytes: int
    pid: int
    rank: int
    threads: int
    nested: int
    calls: int
    parent: int
    region_bytes: int
    strings_at: int
    string_bytes: int
    inputs_at: int
    input_bytes: int
    clock_to_unix: int
    started: int
    host: int
    program: int
    strings_used: int
    regions_used: int
    closed: int
    left_out: int
    kept_at: int
    kept_bytes: int
    kept_places: int
    streams_used: int
    inputs_used: int
    names_lost: int
    copied: int


class Lack(enum.Enum):
    """Why a file does not say where its process is, or ended."""

    NO_CALL = "no call was seen"
    CALLS = "calls had no place in the file"
    NAMES = "names of operators had no place in the file"


@dataclass(frozen=True, repr=False)
class BlackBox(Result):
    """What the file of one process says."""

    path: str
    pid: int
    rank: int
    host: str
    program: str
    """Its command line."""
    started: float
    """When the tool was started, in seconds since 1970."""
    closed: bool
    """The tool was stopped: what the process did after that is not in the file."""
    alive: bool
    """The process lives, on this machine."""
    parent: int = 0
    """The process that this one was forked from, a worker of a DataLoader for example; 0: its file is the first."""
    rows: list[BlackBoxRow] = field(default_factory=list)
    """The last calls of each thread, in the order in which they began."""
    left_out: int = 0
    """Calls that had no place in the file: of more than 256 threads at once, or nested more than 31 deep."""
    names_lost: int = 0
    """Names of operators, modules and lines that had no place in the file: their table, or the disk, was full."""
    copied: float | None = None
    """When this copy of the file was made, in seconds since 1970; None: it is the file itself."""
    coverage: Coverage | None = None
    """Of the tool's own result(): what was looked at, and what was not. The file alone does not have it."""

    @property
    def lacks(self) -> list[Lack]:
        """Why `verdict` may not be all of the truth; empty where it is."""
        found = {
            Lack.NO_CALL: not self.rows,
            Lack.CALLS: bool(self.left_out) and not self.closed,
            Lack.NAMES: any(not row.op for row in self.open or self.rows[-1:]),
        }
        return [lack for lack, holds in found.items() if holds]

    @property
    def open(self) -> list[BlackBoxRow]:
        """The calls that had begun and not ended: the process died in one of them, or hangs there."""
        return [row for row in self.rows if row.state == "open"]

    @property
    def suspects(self) -> list[BlackBoxRow]:
        """The calls that have returned, but no event has shown that their device did them; the first of each stream is
        the one that the device was in, or comes after it by at most ``marks`` calls."""
        return sorted(
            (row for row in self.rows if row.state == "ended" and row.stream and not row.done), key=lambda row: row.id
        )

    @property
    def verdict(self) -> str:
        """In one sentence: where the process is, or where it ended."""
        who = f"rank {self.rank}, process {self.pid}"
        if self.parent:
            who += f" (forked from {self.parent})"
        inside = [_described(row) for row in self.open]
        if self.copied is not None:
            state = f"was in {' and in '.join(inside)}" if inside else "was in no operator"
            if self.left_out:
                state = f"{state if inside else 'may have been'}{', or' if inside else ''} in one of {self._lost}"
            return f"{who} {state} when its file was copied"
        if inside:
            since = f", since {time.time() - self.open[-1].begun:.1f} s" if self.alive else ""
            lost = f", or in one of {self._lost}" if self.left_out else ""
            return f"{who} {'is' if self.alive else 'ended'} in {' and in '.join(inside)}{since}{lost}"
        last = self.rows[-1] if self.rows else None
        if self.left_out and not self.closed:
            known = f"; the last call that has one was {_described(last)}" if last else ""
            return f"{who} {'may be' if self.alive else 'may have ended'} in one of {self._lost}{known}"
        raised = last is not None and last.state == "failed"
        if self.closed:
            last_raised = f"; the last call raised: {_described(last)}" if last and raised else ""
            return f"{who} stopped the tool; no call was open{last_raised}"
        if last is None:
            return f"{who} {'has made' if self.alive else 'ended before'} {'no' if self.alive else 'its first'} call"
        where = "is in no operator" if self.alive else "ended outside of any operator"
        waits = " (it may wait for the other ranks)" if self.alive and last.number else ""
        return f"{who} {where}; the last was {_described(last)}{', which raised' if raised else ''}{waits}"

    @property
    def _lost(self) -> str:
        return f"the calls that have no place in the file (of more than 256 threads, or nested more than 31 deep: {self.left_out})"

    @property
    def device_verdict(self) -> str:
        """What is known of devices, a line per stream, and how to find the guilty call; "" where all is done."""
        suspects = self.suspects
        if self.closed or not suspects:
            return ""
        lines = []
        for stream in dict.fromkeys(row.stream for row in suspects):
            of_stream = [row for row in suspects if row.stream == stream]
            done = [row for row in self.rows if row.stream == stream and row.done]
            last = (
                f"the last call known to be done is {_described(done[-1])}" if done else "no call is known to be done"
            )
            lines.append(f"{stream}: {last}; launched since: {len(of_stream)}, the first {_described(of_stream[0])}")
        names = ",".join(sorted({row.op for row in [*suspects, *self.open]}))
        lines.append(
            "to name the guilty one: op-tools run --blackbox --time --time-mode sync --time-level aten "
            f"--time-ops '{names}' PROGRAM"
        )
        return "\n".join(lines)

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
            return text_table(self._columns(self.rows), self.rows, row_limit)  # says what is allowed
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


def _inputs(row: BlackBoxRow) -> str:
    return "tensors whose shapes are no longer in the file" if row.inputs == "?" else row.inputs or "no tensors"


def _described(row: BlackBoxRow) -> str:
    text = f"{row.op or 'an operator whose name had no place in the file'} ({row.phase}, step {row.step}) on {_inputs(row)}"
    if row.module:
        text += f", module {row.module}"
    if row.number:
        text += f", number {row.number} of process group {row.group or '?'}"
    if row.stored == "copying":
        text += ", before it began: its inputs were being copied"
    return text + (f", line {row.line}" if row.line else "")


class _Reader:
    """One file. Nothing in it is trusted: it may be of another program, cut off, or be written right now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise _C.Error(f"{path}: cannot be read as a file of OpBlackBox: {error}") from None
        self.header = _Header(*self.unpack(_HEADER, 0))
        known = (b"OPTBLBX3", 4096, _CALL.size)
        if self.header[:3] != known:
            raise _C.Error(f"{path}: is no file of OpBlackBox, or of another version of it")
        header = self.header
        strings, inputs = header.strings_at + header.string_bytes, header.inputs_at + header.input_bytes
        need = max(strings, inputs, header.kept_at + header.kept_places * header.kept_bytes)
        if need > len(self.data) or self.header.strings_used > self.header.string_bytes:
            raise _C.Error(f"{path}: is cut off: it has {len(self.data)} bytes of {need}")

    def unpack(self, form: struct.Struct, at: int) -> tuple[Any, ...]:
        if at < 0 or at + form.size > len(self.data):
            raise _C.Error(f"{self.path}: is cut off or damaged: nothing at byte {at}")
        return form.unpack_from(self.data, at)

    def string(self, place: int) -> str:
        if not 0 <= place <= self.header.strings_used - 4:
            return "?" if place else ""
        start = self.header.strings_at + place
        (size,) = struct.unpack_from("<I", self.data, start)
        return self.data[start + 4 : start + 4 + min(size, 1 << 16)].decode(errors="replace")

    def description(self, place: int) -> str:
        """Of inputs; "?" where others have been written to its place since."""
        header = self.header
        units = header.input_bytes // _UNIT
        if not place or not units:
            return ""
        if (header.inputs_used - place) % (1 << 32) > units:
            return "?"
        start = header.inputs_at + place % units * _UNIT
        (size,) = struct.unpack_from("<I", self.data, start)
        end = min(start + 4 + min(size, 1 << 16), header.inputs_at + header.input_bytes)
        return self.data[start + 4 : end].decode(errors="replace")

    def row(self, at: int, thread: int, *, is_open: bool) -> BlackBoxRow:
        found = self.unpack(_CALL, at)
        begin, end, call_id, step, op, module, line, inputs, phase, failed, stream, kept, number, group = found
        name, done_until = self.stream(stream)
        return BlackBoxRow(
            state="open" if is_open else "failed" if failed else "ended",
            op=self.string(op),
            phase="backward" if phase else "forward",
            module=self.string(module),
            line=self.string(line),
            inputs=self.description(inputs),
            step=step,
            id=call_id,
            thread=thread,
            begun=(begin + self.header.clock_to_unix) / 1e9,
            ms=None if is_open else (end - begin) / 1e6,
            stored=_KEPT_TEXTS[kept] if kept < len(_KEPT_TEXTS) else "?",
            stream=name,
            done=not is_open and (not name or end <= done_until),
            group=self.string(group),
            number=number,
        )

    def stream(self, place: int) -> tuple[str, int]:
        """What a person calls it, and until when it is known to have done what was launched."""
        if not 1 <= place <= min(self.header.streams_used, _MOST_STREAMS):
            return "", 0
        number, device, done_until, _ = self.unpack(_STREAM, _HEADER.size + (place - 1) * _STREAM.size)
        return f"{self.string(device)}, stream {number}", done_until

    def kept(self) -> dict[int, dict[str, bytes]]:
        """By the number of the call: the files of its inputs."""
        calls: dict[int, dict[str, bytes]] = {}
        header = self.header
        for index in range(header.kept_places):
            place = header.kept_at + index * header.kept_bytes
            call, size = self.unpack(_KEPT, place)
            if not call or size > header.kept_bytes - _KEPT.size:
                continue
            at, end = place + _KEPT.size, place + _KEPT.size + size
            files = calls.setdefault(call, {})
            while at + _KEPT.size <= end:
                name_size, file_size = self.unpack(_KEPT, at)
                at += _KEPT.size
                if name_size + file_size > end - at:
                    break
                name = self.data[at : at + name_size].decode(errors="replace")
                if name in _KEPT_FILES:
                    files[name] = self.data[at + name_size : at + name_size + file_size]
                at += name_size + file_size
        return calls

    def rows(self) -> Iterator[BlackBoxRow]:
        header = self.header
        for index in range(min(header.regions_used, header.threads)):
            region = header.header_bytes + index * header.region_bytes
            thread, depth, ended = self.unpack(_REGION, region)
            opened = region + _REGION.size
            ring = opened + header.nested * _CALL.size
            for number in range(max(0, ended - header.calls), ended):
                yield self.row(ring + number % header.calls * _CALL.size, thread, is_open=False)
            for number in range(min(depth, header.nested)):
                yield self.row(opened + number * _CALL.size, thread, is_open=True)

    def is_mapped(self) -> bool:
        """Its process has it mapped: it lives, and is no other of that number."""
        try:
            maps = Path(f"/proc/{self.header.pid}/maps").read_text(errors="replace")
        except OSError:
            return False
        return str(self.path.resolve()) in maps


def read_black_box(path: str | Path) -> BlackBox:
    """Reads the file that OpBlackBox left, or writes right now.

    Args:
        path: ``op_blackbox_result/<rank>/<time>/<process>.blackbox``.

    Raises:
        op_tools.Error: it is no such file, or is cut off.
    """
    reader = _Reader(Path(path))
    header = reader.header
    if header.calls < 1:
        raise _C.Error(f"{path}: is damaged: it has room for {header.calls} calls")
    return BlackBox(
        path=str(path),
        pid=header.pid,
        rank=header.rank,
        parent=header.parent,
        host=reader.string(header.host),
        program=reader.string(header.program),
        started=(header.started + header.clock_to_unix) / 1e9,
        closed=bool(header.closed),
        alive=reader.is_mapped(),
        rows=sorted(reader.rows(), key=lambda row: row.begun),
        left_out=header.left_out,
        names_lost=header.names_lost,
        copied=header.copied / 1e9 if header.copied else None,
    )


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
    kept = _Reader(Path(path)).kept()
    rows = [
        row
        for row in read_black_box(path).rows
        if row.stored == "inputs" and set(kept.get(row.id, ())) >= set(_KEPT_FILES)
    ]
    if not rows:
        raise _C.Error(f"{path}: has no inputs of calls; OpBlackBox keeps them with inputs=N")
    written = []
    for row in sorted(rows, key=lambda row: (row.state == "open", row.begun)):
        name = row.op.replace("::", ".")
        if not re.fullmatch(r"\w[\w.]*", name):
            raise _C.Error(f"{path}: is damaged: {row.op!r} is no operator")
        place = Path(folder) / name / str(row.id)
        try:
            place.mkdir(parents=True, exist_ok=True)
            for file in _KEPT_FILES:
                (place / file).write_bytes(kept[row.id][file])
        except OSError as error:
            raise _C.Error(f"{place}: cannot be written: {error}") from None
        written.append(place)
    return written


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
        raise _C.Error(f"{path}: its process does not live on this machine")
    before = stacks.stat().st_size if stacks.exists() else 0
    request.touch()
    ends = time.monotonic() + seconds
    while request.exists() or not stacks.exists() or stacks.stat().st_size == before:
        if time.monotonic() > ends:
            raise _C.Error(f"{path}: its process has not answered within {seconds:g} s")
        time.sleep(0.02)
    written = stacks.read_bytes()[before:].decode(errors="replace")
    # Reports of a hang may have been written since, before the answer and behind it.
    reports = re.split(r"^(?=OpBlackBox: )", written, flags=re.MULTILINE)
    return next((one for one in reports if one.partition("\n")[0].endswith(".ask was there")), written)


# Operators whose inputs differ between ranks as they are meant to: one rank gives or gets more than the others.
_UNEQUAL = frozenset(
    f"c10d::{name}" for name in ("gather_", "scatter_", "alltoall_", "alltoall_base_", "reduce_scatter_", "allgather_")
)


def compare_ranks(boxes: list[BlackBox]) -> list[str]:
    """How far the ranks are in the collectives of each process group, and where they disagree: a line for each finding.

    Of several runs of a rank the last counts; its workers, which have its rank, do not.
    """
    newest: dict[int, BlackBox] = {}
    for box in sorted(boxes, key=lambda box: box.started):
        known = newest.get(box.rank)
        runs_it_again = known is not None and not box.parent and box.program == known.program
        if known is None or runs_it_again or any(row.number for row in box.rows):
            newest[box.rank] = box
    groups: dict[str, dict[int, dict[int, BlackBoxRow]]] = {}
    for rank, box in sorted(newest.items()):
        for row in box.rows:
            if row.number:
                groups.setdefault(row.group, {}).setdefault(rank, {})[row.number] = row
    return [line for group, ranks in groups.items() if len(ranks) > 1 for line in _compare_group(group, ranks)]


def _compare_group(group: str, ranks: dict[int, dict[int, BlackBoxRow]]) -> list[str]:
    last = {rank: max(rows) for rank, rows in ranks.items()}
    reached, furthest = min(last.values()), max(last.values())
    name = f"process group {group or '?'}"
    lines = []
    for number in sorted({number for rows in ranks.values() for number in rows}):
        calls = {rank: rows[number] for rank, rows in ranks.items() if number in rows}
        shown = {rank: (row.op, "" if row.op in _UNEQUAL else row.inputs) for rank, row in calls.items()}
        if len(set(shown.values())) > 1:
            what = "; ".join(
                f"rank {rank}: {row.op} on {row.inputs or 'no tensors'}, line {row.line}" for rank, row in calls.items()
            )
            lines.append(f"{name}: the ranks disagree in collective {number}: {what}")
            break
    common = next(rows[reached] for rows in ranks.values() if reached in rows)
    lines.append(
        f"{name}: the last collective that all ranks have begun is number {reached}, {common.op} on {common.inputs}"
    )
    behind = [str(rank) for rank, number in last.items() if number < furthest]
    if behind:
        ahead = next(rows[furthest] for rank, rows in ranks.items() if last[rank] == furthest)
        lines.append(
            f"{name}: behind {'is rank' if len(behind) == 1 else 'are ranks'} {', '.join(behind)}: "
            f"others have begun number {furthest}, {ahead.op} on {ahead.inputs}"
        )
    return lines


def find_black_boxes(path: str | Path) -> list[Path]:
    """The files of OpBlackBox in a folder, by name; a file itself.

    Raises:
        op_tools.Error: there is none.
    """
    place = Path(path)
    found = sorted(place.rglob(f"*{_SUFFIX}")) if place.is_dir() else [place]
    if not found:
        raise _C.Error(f"{path}: no file of OpBlackBox (*{_SUFFIX}) is in this folder")
    return found


def read_black_boxes(path: str | Path) -> tuple[list[BlackBox], list[str]]:
    """The files of OpBlackBox in a folder that can be read, and what is wrong with the others.

    Raises:
        op_tools.Error: there is none, or `path` is the file that cannot be read.
    """
    boxes, problems = [], []
    found = find_black_boxes(path)
    for one in found:
        try:
            boxes.append(read_black_box(one))
        except _C.Error as error:
            if len(found) == 1:
                raise
            problems.append(str(error))
    return boxes, problems


def verdict_of_boxes(boxes: Sequence[BlackBox], problems: Sequence[str]) -> Verdict:
    """`agrees`: it is known where each process is, or ended. A process without calls may stand beside others."""
    lacks = {lack for box in boxes for lack in box.lacks if lack is not Lack.NO_CALL}
    return verdict_of(wrong=False, unseen=bool(problems or lacks) or not any(box.rows for box in boxes))


def show_black_boxes(found: Sequence[BlackBox], last: int = 10) -> str:
    """What `op-tools blackbox` prints: a sentence per process, those that ended in a call first, and the last calls of each
    that did not stop the tool itself."""
    boxes = sorted(
        found, key=lambda box: (not (box.open and not box.alive), not box.open, box.closed, box.rank, box.pid)
    )
    any_call = any(box.rows for box in boxes)
    parts = []
    if len(boxes) > 1:
        parts.append("\n".join([*(box.verdict for box in boxes), *compare_ranks(boxes)]))
    for box in boxes:
        if box.closed and not all(one.closed for one in boxes):
            continue  # its line is above; others are looked for
        lacks = [f"NOT JUDGED: {lack.value}" for lack in box.lacks if lack is not Lack.NO_CALL or not any_call]
        title = "\n".join(text for text in (box.verdict, *lacks, box.device_verdict, box.program, box.path) if text)
        if box.left_out:
            title += f"\n{box.left_out} calls had no place in the file"
        parts.append(f"{title}\n\n{box.table(row_limit=last or -1)}" if box.rows else title)
    return "\n\n".join(parts)


class OpBlackBox(Tool):
    """Says which call killed a process, or hangs: the last calls of each thread stay in a file, whatever ends the process.

    A call's place in ``op_blackbox_result/<rank>/<time>/<process>.blackbox`` is written before the operator runs, and again
    after it, into memory that the system has mapped to the file: SIGKILL, the OOM killer, a segmentation fault in a kernel
    and ``os._exit`` leave it readable. ``op-tools blackbox FILE`` shows it, while the program runs, too. The level is
    ``aten`` unless you say otherwise, and all threads are watched: a backward pass of the torch level is one call that is
    known when it has ended.
    """

    _kind = "OpBlackBox"
    _defaults: ClassVar[dict[str, Any]] = {"level": "aten"}

    _in_children = True

    def __init__(self, **options: Unpack[OpBlackBoxOptions]) -> None:
        super().__init__(**options)
        # multiprocessing ends a child without Python's own exit: nothing else would tell that all went well.
        multiprocessing.util.register_after_fork(self, OpBlackBox._end_with_child)

    def _end_with_child(self) -> None:
        """A worker that ends as it should leaves no file: there may be one per worker and epoch."""

        def end() -> None:
            error = sys.exc_info()[1]  # that the child's own code raised
            failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
            if self._is_running and self.path and not failed:
                Path(self.path).unlink(missing_ok=True)

        if self._is_running:
            multiprocessing.util.Finalize(None, end, exitpriority=-1000)

    @property
    def path(self) -> str:
        """The file of this process; "" before start()."""
        return str(self._report().get("path", ""))

    def result(self) -> BlackBox:
        """What the file says now.

        Raises:
            op_tools.Error: the tool was not started, or could not make its file.
        """
        if not self.path:
            raise _C.Error("OpBlackBox has no file: it was not started, or could not make one")
        return replace(read_black_box(self.path), coverage=self.coverage())
