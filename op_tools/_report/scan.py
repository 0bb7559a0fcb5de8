"""Finds the folders of results below folders, and reads each into a part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._base.core import Error
from .._base.data_file import read_json
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
from .part import FEWEST_ROWS, MOST_ROWS, Origin, Part, origin_of, share_rows
from .row_files import csv_rows, is_own_file, json_rows
from .time_by_rank import with_ranks_in_time

_BLACK_BOX = ".blackbox"
_CALL = "input.pth"
_HEAD = 4096  # bytes of a file of JSON, by which those of other programs are known
_ROW_FILES = {
    autocompare.FILE: autocompare.part_of_rows,
    observe.FILE: observe.part_of_rows,
    invariance.FILE: invariance.part_of_rows,
}


def part_of_run(folder: Path, origin: Origin | None = None) -> Part | None:
    """The part of a folder that a tool wrote; None where it is of none whose files hold rows.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    for name, part_of_rows in _ROW_FILES.items():
        if is_own_file(folder / name):
            origin = origin or origin_of(folder)
            return part_of_rows(json_rows(folder / name, origin), origin)
    if (part := judged_rows.part_of_folder(folder, origin)) is not None:
        return part
    if is_own_file(folder / overflow.FILE):
        return overflow.part_of_folder(folder, origin or origin_of(folder))
    if is_own_file(folder / timing.FILE):
        origin = origin or origin_of(folder)
        calls = csv_rows(file, origin) if is_own_file(file := folder / timing.CALLS_FILE) else None
        return timing.part_of_rows(csv_rows(folder / timing.FILE, origin), origin, calls)
    if is_own_file(folder / memory.FILE):
        origin = origin or origin_of(folder)
        leaks, overwrites = (
            json_rows(file, origin) if is_own_file(file := folder / name) else ()
            for name in (memory.LEAKS_FILE, memory.OVERWRITES_FILE)
        )
        return memory.part_of_rows(json_rows(folder / memory.FILE, origin), origin, leaks, overwrites)
    if conformance.is_result(folder):
        return conformance.part_of_folder(folder, origin or Origin(str(folder)))
    return None


def _holds_calls(folder: Path) -> bool:
    """It is the folder of a run of OpCapture: <op>/<id>/input.pth, or a container."""
    if is_own_file(folder / captures.CONTAINER):
        return True
    return any(folder.glob(f"*/*/{_CALL}"))


def parts_below(place: Path) -> list[Part]:
    """The parts of all results below a folder; none where there are none.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    parts: list[Part] = []
    for part in _parts_below(place):
        parts.append(part)
        share_rows(parts)  # meanwhile, too: the rows of many ranks have no room
    return parts


def _parts_below(place: Path) -> Iterator[Part]:
    for path, folders, files in os.walk(place):
        folders.sort()
        folder = Path(path)
        if (part := part_of_run(folder)) is not None:
            folders.clear()  # calls that it saved are in its findings
            yield part
            continue
        files = [name for name in files if is_own_file(folder / name)]
        many = sum(name.endswith(RECORDING) for name in files)
        for name in sorted(files):
            if name.endswith(RECORDING):
                most = max(FEWEST_ROWS, MOST_ROWS // many)  # they share the rows of a report
                yield recordings.part_of_file(folder / name, Origin(str(folder)), most)
            elif name.endswith(".jsonl") and comparisons.is_comparison(folder / name):
                yield comparisons.part_of_file(folder / name, Origin(str(folder / name)))
            elif name.endswith(".json") and (part := _part_of_json(folder / name)) is not None:
                yield part
        if any(name.endswith(_BLACK_BOX) for name in files):
            yield black_box.part_of_folder(folder, Origin(str(folder)))
        elif _holds_calls(folder):
            folders.clear()
            yield captures.part_of_folder(folder, origin_of(folder))


def _part_of_json(file: Path) -> Part | None:
    """Of a replay or of a bisection; None where it is another program's file."""
    with file.open("rb") as content:
        head = content.read(_HEAD)
    if not any(name in head for name in (b'"calls"', b'"verdict"')):
        return None
    try:
        content = read_json(file)
    except Error:
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
    if comparisons.is_comparison(file):
        return comparisons.part_of_file(file, Origin(str(file)))
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
