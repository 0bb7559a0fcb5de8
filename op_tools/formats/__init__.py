"""Dumps of other tools: read in a common form, made into our captures, and our captures written for other tools.

Formats: ``troubleshooter`` (api_dump) and ``msprobe``; with the package op_tools_compat ``h5`` (the dumper of PyTorch 1.5).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .._base.checks import checked_choice
from .._base.core import Error
from .._base.optional_parts import Group, installed_parts, load_part, missing_parts, part_names
from . import _msprobe, _troubleshooter
from ._export import Exported, export_captures, written_formats
from ._import import Imported, import_dump
from ._model import Dump, ForeignCall, ForeignTensor, Missing
from ._values import load_values

# By which files a format is known, and its reader; in the order in which they are tried.
_Format = tuple[Callable[[Path], list[Path]], Callable[[Path], Dump]]
_FORMATS: dict[str, _Format] = {
    "troubleshooter": (_troubleshooter.info_files, _troubleshooter.read),
    "msprobe": (_msprobe.dump_files, _msprobe.read),
}


def read_formats() -> tuple[str, ...]:
    """The names of the formats that are read, those of op_tools_compat among them, installed or not."""
    return (*_FORMATS, *part_names(Group.READERS))


def _format_named(name: str) -> _Format:
    files_and_reader: _Format = _FORMATS[name] if name in _FORMATS else load_part(Group.READERS, name)
    return files_and_reader


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of the dump at a path, known by its files.

    Args:
        path: a folder or a file.

    Raises:
        op_tools.Error: there is nothing, or no dump of a format that is read.
    """
    place = Path(path)
    if not place.exists():
        raise Error(f"{place}: there is no such file or folder")
    for name in (*_FORMATS, *installed_parts(Group.READERS)):
        if _format_named(name)[0](place):
            return name
    raise Error(
        f"{place}: no dump of a known format: *_api_dump_info.csv (troubleshooter), dump.json (msprobe), or *.h5 "
        f"(PyTorch 1.5); look in the folder above or below{missing_parts(Group.READERS, '; ')}"
    )


def read_dump(path: str | os.PathLike[str], format: str | None = None) -> Dump:
    """Reads a dump of another tool. Values are not read: :func:`load_values` reads those of a tensor.

    Args:
        path: the folder, or the file of .h5.
        format: "troubleshooter", "msprobe" or "h5"; None: known by the files.

    Returns:
        its calls, forward and backward, and the files that could not be read.

    Raises:
        op_tools.Error: there is no such dump, or a file of it is damaged; with file and line.
    """
    if format is not None:
        checked_choice("format=", format, read_formats())
    name = format or format_of(path)
    files, read = _format_named(name)
    if not files(Path(path)):
        raise Error(f"{os.fspath(path)}: holds no dump of the format {name}")
    try:
        return read(Path(path))
    except OSError as error:
        raise Error(f"{error.filename or path}: {error.strerror}") from None


__all__ = [
    "Dump",
    "Exported",
    "ForeignCall",
    "ForeignTensor",
    "Imported",
    "Missing",
    "export_captures",
    "format_of",
    "import_dump",
    "load_values",
    "read_dump",
    "read_formats",
    "written_formats",
]
