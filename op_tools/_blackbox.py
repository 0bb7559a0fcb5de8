"""OpBlackBox: which call a process was in when it died, or hangs in."""

from __future__ import annotations

import json
import mmap
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from typing_extensions import Unpack

from . import _C
from ._declared import BlackBoxRow, OpBlackBoxOptions
from ._results import DEFAULT_ROWS, Result, Shown, sorted_rows, text_table, worded
from ._tools import Tool

_SUFFIX = ".blackbox"
_WIDTH = 100  # of the table
# As src/blackbox/blackbox_file.h lays them out.
_HEADER = struct.Struct("<8s II Ii IIII QQQ qq II Q II Q")
_REGION = struct.Struct("<QQQ40x")
_CALL = struct.Struct("<qqQq IIII BB14x")


class _Header(NamedTuple):
    magic: bytes
    header_bytes: int
    call_bytes: int
    pid: int
    rank: int
    threads: int
    nested: int
    calls: int
    reserved: int
    region_bytes: int
    strings_at: int
    string_bytes: int
    clock_to_unix: int
    started: int
    host: int
    program: int
    strings_used: int
    regions_used: int
    closed: int
    left_out: int


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
    rows: list[BlackBoxRow] = field(default_factory=list)
    """The last calls of each thread, in the order in which they began."""
    left_out: int = 0
    """Calls that had no place in the file: of more than 64 threads at once, or nested more than 31 deep."""

    @property
    def open(self) -> list[BlackBoxRow]:
        """The calls that had begun and not ended: the process died in one of them, or hangs there."""
        return [row for row in self.rows if row.state == "open"]

    @property
    def verdict(self) -> str:
        """In one sentence: where the process is, or where it ended."""
        who = f"rank {self.rank}, process {self.pid}"
        inside = [_described(row) for row in self.open]
        if inside:
            since = f", since {time.time() - self.open[-1].begun:.1f} s" if self.alive else ""
            return f"{who} {'is' if self.alive else 'ended'} in {' and in '.join(inside)}{since}"
        if self.closed:
            return f"{who} stopped the tool; no call was open"
        if not self.rows:
            return f"{who} {'has made' if self.alive else 'ended before'} {'no' if self.alive else 'its first'} call"
        where = "is in no operator" if self.alive else "ended outside of any operator"
        return f"{who} {where}; the last was {_described(self.rows[-1])}"

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
        return json.dumps({**asdict(self), "verdict": self.verdict})


def _described(row: BlackBoxRow) -> str:
    text = f"{row.op} ({row.phase}, step {row.step}) on {row.inputs or 'no tensors'}"
    if row.module:
        text += f", module {row.module}"
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
        known = (b"OPTBLBX1", 4096, _CALL.size)
        if self.header[:3] != known:
            raise _C.Error(f"{path}: is no file of OpBlackBox, or of another version of it")
        need = self.header.strings_at + self.header.string_bytes
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

    def row(self, at: int, thread: int, *, is_open: bool) -> BlackBoxRow:
        begin, end, call_id, step, op, module, line, inputs, phase, failed = self.unpack(_CALL, at)
        return BlackBoxRow(
            state="open" if is_open else "failed" if failed else "ended",
            op=self.string(op),
            phase="backward" if phase else "forward",
            module=self.string(module),
            line=self.string(line),
            inputs=self.string(inputs),
            step=step,
            id=call_id,
            thread=thread,
            begun=(begin + self.header.clock_to_unix) / 1e9,
            ms=None if is_open else (end - begin) / 1e6,
        )

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
        host=reader.string(header.host),
        program=reader.string(header.program),
        started=(header.started + header.clock_to_unix) / 1e9,
        closed=bool(header.closed),
        alive=reader.is_mapped(),
        rows=sorted(reader.rows(), key=lambda row: row.begun),
        left_out=header.left_out,
    )


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


def show_black_boxes(path: str | Path, last: int = 10) -> str:
    """What `op-tools blackbox` prints: a sentence per process, those that ended in a call first, and their last calls."""
    boxes = [read_black_box(one) for one in find_black_boxes(path)]
    boxes.sort(key=lambda box: (not (box.open and not box.alive), not box.open, box.rank, box.pid))
    parts = []
    if len(boxes) > 1:
        parts.append("\n".join(box.verdict for box in boxes))
    for box in boxes:
        title = f"{box.verdict}\n{box.program}\n{box.path}"
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

    def __init__(self, **options: Unpack[OpBlackBoxOptions]) -> None:
        super().__init__(**options)

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
        return read_black_box(self.path)
