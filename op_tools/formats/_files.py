"""Reads the files of dumps. They come from outside: every failure is an op_tools.Error with the path and the place."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._base.core import Error

if TYPE_CHECKING:
    import types


def extra(name: str, purpose: str) -> types.ModuleType:
    """An optional package.

    Raises:
        op_tools.Error: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Error(f"{purpose} needs {name}: pip install {name}") from None


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        op_tools.Error: it cannot be read, or is no UTF-8.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise Error(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        kind = "a pickle, which is never unpickled" if data[:1] == b"\x80" else "no text"
        raise Error(f"{path}: offset {error.start}: byte 0x{data[error.start]:02x}: this is {kind}") from None


def parse_json(text: str, where: str, line: int = 0) -> Any:
    """The value of a JSON text; NaN and Infinity are numbers.

    Args:
        text: the text.
        where: the file, for messages.
        line: the text's line in the file, from 1; 0: the text is the whole file.

    Raises:
        op_tools.Error: it is no JSON; with line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line or error.lineno}, column {error.colno}"
        raise Error(f"{where}: {at}: no JSON: {error.msg}; is the file cut off?") from None
    except (ValueError, RecursionError) as error:
        raise Error(f"{where}: line {line or 1}: no JSON that can be read: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        op_tools.Error: it cannot be read, or holds no object.
    """
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise Error(f"{path}: line 1: holds a {type(value).__name__}, expected an object")
    return value


def inside(folder: Path, name: str, where: str) -> Path:
    """The file of that name in a folder.

    Raises:
        op_tools.Error: the name leads out of the folder.
    """
    is_plain = name not in ("", ".", "..") and "/" not in name and "\\" not in name and "\0" not in name
    path = folder / name if is_plain else folder
    if not is_plain or not path.resolve().is_relative_to(folder.resolve()):
        raise Error(f"{where}: the file name {name!r} leads out of {folder}; it is not read")
    return path


def tensor_of(array: Any, where: str) -> torch.Tensor:
    """A numpy array as a tensor of its own memory.

    Raises:
        op_tools.Error: torch has no such dtype.
    """
    try:
        native = array.astype(array.dtype.newbyteorder("="), copy=True, order="C")
        return torch.from_numpy(native)
    except (TypeError, ValueError) as error:
        raise Error(f"{where}: no tensor: {error}") from None


def load_npy(path: Path) -> torch.Tensor:
    """The array of a .npy file; objects in it are refused.

    Raises:
        op_tools.Error: it is missing, damaged, or no array of numbers.
    """
    numpy = extra("numpy", "reading .npy files")
    try:
        # Mapped: a header that promises more than the file holds is refused before memory is taken.
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, numpy.ndarray):
            raise ValueError("several arrays in one file (.npz)")
    except Exception as error:  # numpy raises whatever its parser raises
        size = path.stat().st_size if path.is_file() else 0
        raise Error(f"{path}: no .npy file that can be read ({size} bytes): {error}") from None
    return tensor_of(array, str(path))


def dtype_named(name: str) -> torch.dtype | None:
    """The dtype of that name ("torch.float32"); None if there is none."""
    dtype = getattr(torch, name.removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else None
