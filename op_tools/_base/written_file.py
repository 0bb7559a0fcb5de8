"""Files that are written as a whole: results, pages, answers of a command."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from .core import Error


def no_link(path: str, flags: int) -> int:
    """An opener that follows no symbolic link: folders of results may be somebody else's."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def whole_file(file: Path, *, errors: str) -> Iterator[TextIO]:
    """Writes a text, in place of a file of this name; nobody sees half of it. A device, a pipe, and an open file of this process
    (/dev/stdout) are written to: a file in their place would be there for every program of the machine.

    Args:
        errors: as open() has it.

    Raises:
        op_tools.Error: it cannot be written.
    """
    unfinished: Path | None = None
    try:
        if (number := _own_descriptor(file)) is not None:
            sys.stdout.flush()  # text that was written before comes before
            text = os.fdopen(os.dup(number), "w", encoding="utf-8", errors=errors)
        elif _is_special(file):
            text = open(file, "w", encoding="utf-8", errors=errors, opener=no_link)  # noqa: SIM115
        else:
            unfinished = file.with_name(f"{file.name}.part")
            text = open(unfinished, "w", encoding="utf-8", errors=errors, opener=no_link)  # noqa: SIM115
        with text:
            yield text
        if unfinished is not None:
            unfinished.replace(file)
    except OSError as error:
        if unfinished is not None:
            with contextlib.suppress(OSError):  # of a folder that is a file
                unfinished.unlink(missing_ok=True)
        raise cannot_be_written(file, error) from None


def write_text(path: str | Path, text: str) -> None:
    """Writes the answer of a command to the file that it names, which may be a link, a device or a pipe.

    Raises:
        op_tools.Error: it cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_be_written(path, error) from None


def folder_of(path: str) -> Path:
    """Where the answer of a command is written; the working folder for a device and a pipe, whose folder takes no files, and for ""."""
    file = Path(path).resolve()  # /dev/stdout may be a file elsewhere
    return file.parent if path and not _is_special(file) else Path.cwd()


def cannot_be_written(path: str | Path, error: OSError) -> Error:
    """With the name that the user gave: the error of a full disk has none."""
    return Error(f"{path}: cannot be written: {error.strerror or error}")


def _is_special(file: Path) -> bool:
    try:
        return not stat.S_ISREG(mode := file.lstat().st_mode) and not stat.S_ISLNK(mode)
    except OSError:  # it is not there yet
        return False


def _own_descriptor(file: Path) -> int | None:
    """Of /dev/stdout, /dev/fd/1, /proc/self/fd/1. Opened by its name, a file would be written from its beginning again."""
    names = [file, file.readlink()] if file.is_symlink() else [file]
    for name in names:
        if name.name.isdigit() and name.parent.resolve() == Path(f"/proc/{os.getpid()}/fd"):
            return int(name.name)
    return None
