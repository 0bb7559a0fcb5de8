"""Dumps of other tools: read in a common form, made into our captures, and our captures written for other tools.

Formats: ``troubleshooter`` (api_dump), ``msprobe`` and ``h5`` (the dumper of PyTorch 1.5).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .._base.checks import checked_choice
from .._base.core import Error
from . import _h5, _msprobe, _troubleshooter
from ._convert import convert
from ._export import EXPORTS, Exported, export_captures
from ._import import Imported, import_dump
from ._model import Dump, ForeignCall, ForeignTensor, Missing
from ._values import load_values

# By which files a format is known, and its reader; in the order in which they are tried.
_FORMATS: dict[str, tuple[Callable[[Path], list[Path]], Callable[[Path], Dump]]] = {
    "troubleshooter": (_troubleshooter.info_files, _troubleshooter.read),
    "msprobe": (_msprobe.dump_files, _msprobe.read),
    "h5": (_h5.h5_files, _h5.read),
}
FORMATS = tuple(_FORMATS)
"""The formats that are read."""


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
    for name, (files, _) in _FORMATS.items():
        if files(place):
            return name
    raise Error(
        f"{place}: no dump of a known format: *_api_dump_info.csv (troubleshooter), dump.json (msprobe), or *.h5 "
        "(PyTorch 1.5); look in the folder above or below"
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
        checked_choice("format=", format, _FORMATS)
    name = format or format_of(path)
    files, read = _FORMATS[name]
    if not files(Path(path)):
        raise Error(f"{os.fspath(path)}: holds no dump of the format {name}")
    try:
        return read(Path(path))
    except OSError as error:
        raise Error(f"{error.filename or path}: {error.strerror}") from None


__all__ = [
    "EXPORTS",
    "FORMATS",
    "Dump",
    "Exported",
    "ForeignCall",
    "ForeignTensor",
    "Imported",
    "Missing",
    "convert",
    "export_captures",
    "format_of",
    "import_dump",
    "load_values",
    "read_dump",
]
