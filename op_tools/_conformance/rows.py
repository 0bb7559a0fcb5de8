"""The results of a case: rows, as lines of JSON while a run goes on, and as cases.csv at its end."""

from __future__ import annotations

import csv
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

from .._base.core import Error
from .case import Case

ROWS_FILE = "rows.jsonl"

AGREES, DIFFERS, UNSUPPORTED, NOT_JUDGED = "agrees", "differs", "unsupported", "not judged"
CRASHED, HUNG, ERROR = "crashed", "hung", "error"
EXPECTED, UNEXPECTED_AGREEMENT = "expected", "unexpected agreement"
STATUSES = {
    AGREES: "right",
    DIFFERS: "wrong",
    CRASHED: "the process of the case died",
    HUNG: "the case did not end in its time",
    UNSUPPORTED: "the device has no such operator, or not for these dtypes",
    EXPECTED: "not right, as the device's list of exceptions says",
    UNEXPECTED_AGREEMENT: "right, though the list of exceptions says that it is not",
    NOT_JUDGED: "the right result is not known: uninitialized memory, other random numbers, a call that the CPU cannot run",
    ERROR: "could not be tried: a damaged file",
}
WRONG = (DIFFERS, CRASHED, HUNG)
RIGHT = (AGREES, UNEXPECTED_AGREEMENT)
WORST_FIRST = (CRASHED, HUNG, DIFFERS, ERROR, UNSUPPORTED, EXPECTED, UNEXPECTED_AGREEMENT, AGREES, NOT_JUDGED)


@dataclass
class Row:
    """A phase of a case. The fields up to `worker` are the columns of cases.csv."""

    case: str
    source: str
    op: str
    overload: str
    dtype: str
    layout: str
    phase: str
    """"forward", "backward", "inplace" or "out"."""
    status: str = AGREES
    """Of STATUSES."""
    method: str = ""
    """How it was judged: a method of OpAutoCompare, "distribution", "error", "bits"."""
    error: float | None = None
    """The measure that decided, and its limit."""
    limit: float | None = None
    reference: str = ""
    """Its reference: "cpu, float64", "float64", "cpu", or the device of the golden data."""
    index: str = ""
    """Of the worst element, and both its values."""
    got: str = ""
    expected: str = ""
    reason: str = ""
    seconds: float = 0.0
    worker: str = ""
    blamed: str = ""
    """The operator that is wrong: an operator that the case's function calls, where it is not the function itself."""
    median: float | None = None
    """With --time: median of the call's seconds."""
    ran: str = ""
    """Who ran a compiled case: a name of graph_judge.Ran; and what graph_judge.Counts has."""
    breaks: int = 0
    recompiles: int = 0
    fallbacks: int = 0
    bytes: int = 0
    models: dict[str, int] = field(default_factory=dict)
    """Name of a model -> how often a step of it makes this call."""


_FIELDS = {one.name for one in fields(Row)}
COLUMNS = tuple(one.name for one in fields(Row))[:18]
assert COLUMNS[-1] == "worker"
COLUMNS_OF_COMPILED = ("ran", "breaks", "recompiles", "fallbacks")
"""Behind the others, where cases were compiled."""

_KINDS: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, NoneType),
    "dict[str, int]": (dict,),
}
_KIND_OF_FIELD = {one.name: _KINDS[one.type] for one in fields(Row)}

_PHASES = {"inplace": "inplace", "out": "out"}


def row_of(case: Case, phase: str = "", **fields: Any) -> Row:
    """A row of a case. `phase`: "" is that of the call itself."""
    return Row(
        case=case.id,
        source=case.source,
        op=case.op,
        overload=case.overload,
        dtype=case.dtype,
        layout=case.layout,
        phase=phase or _PHASES.get(case.variant, "forward"),
        bytes=case.bytes,
        models=case.models,
        **fields,
    )


def shard_text(place: str, number: int, count: int) -> str:
    """The name of a file of a shard."""
    return place if count == 1 else f"{Path(place).stem}.{number}-of-{count}{Path(place).suffix}"


def status_of_case(rows: Iterable[Row]) -> str:
    """Of a case: that of its worst row."""
    return min((row.status for row in rows), key=WORST_FIRST.index)


class FoundRows(dict[str, list[Row]]):
    """Rows of files, by case."""

    damaged = 0
    """Lines that are no rows, of cases that were not run again: whose they were is not known."""


def add_case(by_case: dict[str, list[Row]], rows: list[Row]) -> None:
    """Adds the rows of a case. Of a case that is there already, in files that were put together, the worse rows stay."""
    known = by_case.get(rows[0].case)
    by_case[rows[0].case] = (
        rows if known is None else min(known, rows, key=lambda of: WORST_FIRST.index(status_of_case(of)))
    )


class RowWriter:
    """Appends rows: a line for each case, so that a kill at any moment leaves whole cases and perhaps a torn line.

    Raises:
        op_tools.Error: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # ends the torn line
        except OSError as error:
            raise Error(f"{path}: {error.strerror}") from None

    def write(self, rows: Sequence[Row]) -> None:
        """All rows of a case."""
        line = json.dumps([asdict(row) for row in rows], separators=(",", ":"), allow_nan=True)
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        """No more rows."""
        os.close(self._file)


def read_rows(path: Path) -> FoundRows:
    """The rows by case. A torn line is left out, and counted unless its case was run again.

    Raises:
        op_tools.Error: the file cannot be read, or holds something else.
    """
    by_case = FoundRows()
    torn: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            rows = _rows_of_line(line)
        except (ValueError, RecursionError):
            torn += [line] if line.strip() else []
            continue
        if rows is None:
            raise Error(f"{path}:{number}: is no row of op-tools conformance")
        start = line[: line.find(json.dumps(rows[0].case)) + len(json.dumps(rows[0].case))]
        torn = [one for one in torn if not (one.startswith(start) or start.startswith(one))]
        add_case(by_case, rows)
    by_case.damaged = len(torn)
    return by_case


def _rows_of_line(line: str) -> list[Row] | None:
    """The rows of a case; None where the line holds something else."""
    content = json.loads(line)
    if not isinstance(content, list) or not content:
        return None
    try:
        rows = [Row(**fields) for fields in content]
    except TypeError:  # no object, or other names
        return None
    return rows if all(map(_is_whole, rows)) and len({row.case for row in rows}) == 1 else None


def _is_whole(row: Row) -> bool:
    """Each field is of its type: whoever reads the row adds its numbers and compares its texts."""
    is_typed = all(isinstance(getattr(row, name), kind) for name, kind in _KIND_OF_FIELD.items())
    return is_typed and row.status in STATUSES and all(type(calls) is int for calls in row.models.values())


def rows_below(folder: Path) -> FoundRows:
    """The rows of all shards of a result, sorted by case.

    Raises:
        op_tools.Error: there are none, or a file holds something else.
    """
    stem = Path(ROWS_FILE).stem
    paths = sorted(folder.glob(f"{stem}*.jsonl"))
    if not paths:
        raise Error(f"{folder}: no result of op-tools conformance run is here (no {ROWS_FILE})")
    by_case: dict[str, list[Row]] = {}
    damaged = 0
    for path in paths:
        of_file = read_rows(path)
        damaged += of_file.damaged
        for rows in of_file.values():
            add_case(by_case, rows)
    of_all = FoundRows(sorted(by_case.items()))
    of_all.damaged = damaged
    return of_all


def packed(rows: Mapping[str, Sequence[Row]]) -> bytes:
    """Rows by case, to be sent to another rank."""
    return zlib.compress(json.dumps([[asdict(row) for row in found] for found in rows.values()]).encode(), 1)


def unpacked(content: bytes) -> dict[str, list[Row]]:
    """The rows that packed() was given."""
    lists = [[Row(**row) for row in rows] for rows in json.loads(zlib.decompress(content))]
    return {rows[0].case: rows for rows in lists}


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """cases.csv."""
    every = list(rows)
    columns = COLUMNS + COLUMNS_OF_COMPILED if any(row.ran for row in every) else COLUMNS
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in every:
            writer.writerow("" if (value := getattr(row, name)) is None else value for name in columns)
