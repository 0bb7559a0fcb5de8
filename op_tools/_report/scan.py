"""Finds the folders of results below folders, and reads each into a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .._base.core import Error
from .._base.data_file import read_json
from .._base.error_text import one_line
from .._base.verdict import Verdict
from .._tools.record import RECORDING
from . import (
    autocompare,
    bisection,
    black_box,
    captures,
    comparisons,
    conformance,
    invariance,
    judged_rows,
    memory,
    observe,
    overflow,
    recordings,
    replay,
    timing,
)
from .missing_ranks import note_missing_ranks
from .part import FEWEST_ROWS, MOST_ROWS, Origin, Part, Reader, origin_of, share_rows
from .row_files import is_own_file, rows_of
from .time_by_rank import with_ranks_in_time

_BLACK_BOX = ".blackbox"
_CALL = "input.pth"
_HEAD = 4096  # bytes of a file of JSON, by which those of other programs are known
_HEADS = ((b'"calls"', b'"checks"', b'"status"'), (b'"verdict"', b'"explanation"', b'"remedy"'))  # replay, bisection


@dataclass(frozen=True)
class _Reader:
    """Of the folders that a tool of the core writes."""

    folder: str
    """The name of the folder above those of its ranks."""
    file: str
    """The rows without which it says nothing."""
    part_of_folder: Callable[[Path, Origin], Part]


def _with_rows(file: str, part_of_rows: Reader) -> Callable[[Path, Origin], Part]:
    return lambda folder, origin: part_of_rows(rows_of(folder / file, origin), origin)


def _of_times(folder: Path, origin: Origin) -> Part:
    file = folder / timing.CALLS_FILE
    calls = rows_of(file, origin, is_needed=False) if file.exists() or origin.rows.get(file.name) else None
    return timing.part_of_rows(rows_of(folder / timing.FILE, origin), origin, calls)


def _of_memory(folder: Path, origin: Origin) -> Part:
    further = (rows_of(folder / name, origin, is_needed=False) for name in (memory.LEAKS_FILE, memory.OVERWRITES_FILE))
    return memory.part_of_rows(rows_of(folder / memory.FILE, origin), origin, *further)


_READERS = {
    "OpAutoCompare": _Reader(
        "op_autocompare_result", autocompare.FILE, _with_rows(autocompare.FILE, autocompare.part_of_rows)
    ),
    "OpObserve": _Reader("op_observe_result", observe.FILE, _with_rows(observe.FILE, observe.part_of_rows)),
    "OpInvariance": _Reader(
        "op_invariance_result", invariance.FILE, _with_rows(invariance.FILE, invariance.part_of_rows)
    ),
    "OpOverflowCheck": _Reader("op_overflow_check_result", overflow.FILE, overflow.part_of_folder),
    "OpTimeMeasure": _Reader("op_time_measure_result", timing.FILE, _of_times),
    "OpMemoryCheck": _Reader("op_memory_check_result", memory.FILE, _of_memory),
}
_RECORDINGS, _BLACK_BOXES, _CAPTURES = "OpRecord", "OpBlackBox", captures.TOOL


def part_of_run(folder: Path, origin: Origin | None = None) -> Part | None:
    """The part of a folder that a tool wrote; None where it is of none whose files hold rows.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    for reader in _READERS.values():
        if is_own_file(folder / reader.file):
            return reader.part_of_folder(folder, origin or origin_of(folder))
    if (part := judged_rows.part_of_folder(folder, origin)) is not None:
        return part
    if conformance.is_result(folder):
        return conformance.part_of_folder(folder, origin or Origin(str(folder)))
    if origin is None and (lost := _reader_of_lost_rows(folder)) is not None:
        return lost.part_of_folder(folder, origin_of(folder))
    return None


def _reader_of_lost_rows(folder: Path) -> _Reader | None:
    """Of a folder of a run whose file of rows is gone: the rows are not known."""
    if not folder.parent.name.isdecimal():
        return None
    return next((reader for reader in _READERS.values() if folder.parents[1].name == reader.folder), None)


@dataclass
class _Unread(Part):
    """A part that cannot be read."""

    why: str = ""


def _part_or_reason(tool: str, place: Path, reader: Callable[[], Part | None]) -> Part | None:
    """A part, or why it cannot be read: a damaged file hides no other result."""
    try:
        return reader()
    except (Error, OSError) as error:
        origin = Origin(str(place), gaps=[f"cannot be read: {one_line(error)}"])
        return _Unread(tool, origin, Verdict.NOT_JUDGED, why=str(error))


def _place_of_calls(folder: Path) -> Path | None:
    """Of a run of OpCapture: its folder, <op>/<id>/input.pth, or its container; None where it is none."""
    if any(folder.glob(f"*/*/{_CALL}")):
        return folder
    container = folder / captures.CONTAINER
    return container if is_own_file(container) else None


def parts_below(place: Path) -> list[Part]:
    """The parts of all results below a folder; none where there are none.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    parts: list[Part] = []
    for part in _parts_below(place):
        parts.append(part)
        share_rows(parts)  # meanwhile, too: the rows of many ranks have no room
    if parts and len(unread := [part.why for part in parts if isinstance(part, _Unread)]) == len(parts):
        raise Error("\n".join(unread))  # there is nothing else to show
    note_missing_ranks(parts, place)
    return parts


def holds_more_than_recordings(place: Path) -> bool:
    """There are results of other tools below a folder."""
    return any(True for _ in _parts_below(place, without_recordings=True))


def _parts_below(place: Path, *, without_recordings: bool = False) -> Iterator[Part]:
    return (part for part in _read_below(place, without_recordings) if part is not None)


def _read_below(place: Path, without_recordings: bool) -> Iterator[Part | None]:
    for path, folders, files in os.walk(place):
        folders.sort()
        folder = Path(path)
        if (part := _part_or_reason(_tool_of(folder), folder, partial(part_of_run, folder))) is not None:
            folders.clear()  # calls that it saved are in its findings
            yield part
            continue
        files = [name for name in files if is_own_file(folder / name)]
        many = sum(name.endswith(RECORDING) for name in files)
        for name in sorted(files):
            file = folder / name
            if name.endswith(RECORDING):
                if not without_recordings:
                    yield _part_or_reason(_RECORDINGS, file, partial(_part_of_recording, file, many))
            elif name.endswith((".json", ".jsonl")):
                yield _part_or_reason(name, file, partial(_part_of_json, file))
        if any(name.endswith(_BLACK_BOX) for name in files):
            yield _part_or_reason(_BLACK_BOXES, folder, partial(black_box.part_of_folder, folder, Origin(str(folder))))
        elif (place_of_calls := _place_of_calls(folder)) is not None:
            folders[:] = [name for name in folders if not any((folder / name).glob(f"*/{_CALL}"))]
            yield _part_or_reason(
                _CAPTURES, folder, partial(captures.part_of_folder, place_of_calls, origin_of(folder))
            )


def _tool_of(folder: Path) -> str:
    """Of a folder of rows that cannot be read."""
    return next(
        (tool for tool, reader in _READERS.items() if is_own_file(folder / reader.file)), "op-tools conformance"
    )


def _part_of_recording(file: Path, count: int) -> Part:
    """Of a recording beside others, with which it shares the rows of a report."""
    return recordings.part_of_file(file, Origin(str(file.parent)), max(FEWEST_ROWS, MOST_ROWS // count))


def _part_of_json(file: Path) -> Part | None:
    """Of a comparison, a replay or a bisection; None where it is another program's file.

    Raises:
        op_tools.Error: it is damaged, and begins as ours do.
    """
    if (part := comparisons.part_of_file(file, Origin(str(file)))) is not None:
        return part
    with file.open("rb") as content:
        head = content.read(_HEAD)
    if not any(name in head for name in (b'"calls"', b'"verdict"')):
        return None
    try:
        content = read_json(file)
    except Error:
        if any(all(name in head for name in names) for names in _HEADS):
            raise
        return None
    for is_of, reader in (
        (bisection.is_bisection, bisection.part_of_content),
        (replay.is_replay, replay.part_of_content),
    ):
        if is_of(content):
            return reader(content, Origin(str(file)))
    return None


def _part_of_file(file: Path) -> Part:
    if file.suffix == RECORDING:
        return recordings.part_of_file(file, Origin(str(file)))
    if file.suffix == _BLACK_BOX:
        return black_box.part_of_folder(file, Origin(str(file)))
    if (part := _part_of_json(file)) is not None:
        return part
    raise Error(f"{file}: is no file of which a report is made; give the folder that a tool wrote")


def read_parts(places: Sequence[str | os.PathLike[str]]) -> list[Part]:
    """The parts of all results below folders, and of files.

    Raises:
        op_tools.Error: there is no such folder, nothing in one of them, or a file cannot be read.
    """
    parts: list[Part] = []
    for named in map(Path, places):
        place = named.resolve() if named.is_symlink() else named  # the user's own link; no others are followed
        if place.is_file():
            parts.append(_part_of_file(place))
            continue
        if not place.is_dir():
            raise Error(f"{place}: there is no such folder")
        below = parts_below(place)
        if not below:
            raise Error(
                f"{place}: no tool of op_tools wrote anything here; op-tools doctor says why a result may be empty. "
                "A captured call: op-tools show FOLDER"
            )
        parts += below
        share_rows(parts)
    return with_ranks_in_time(parts)
