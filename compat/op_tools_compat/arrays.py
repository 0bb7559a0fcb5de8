"""Arrays between .h5, .pth, .npy and .txt: op-tools convert."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy
import torch

from op_tools import Error, load
from op_tools.formats._files import inside, load_npy, read_text, tensor_of
from op_tools.formats._statistics import array_of

from ._h5 import load_dataset, members, opened, write_tensor

_SUFFIXES = (".h5", ".hdf5", ".pth", ".pt", ".npy", ".txt")
_ONE = "data"  # the name of the only array of a file that has no names


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> list[str]:
    """Converts arrays between .h5, .pth, .npy and .txt, by the suffixes of the names.

    Args:
        source: a file, or a folder of .npy or .txt.
        target: a file; where it holds a single array and there are several, a folder of this name. It must not be there.

    Returns:
        the files that were written.

    Raises:
        op_tools.Error: a suffix is not known, the source cannot be read, or the target is there.
    """
    existing, wanted = Path(source), Path(target)
    for path in (existing, wanted):
        if path.suffix not in _SUFFIXES and not path.is_dir():
            raise Error(f"{path}: the suffix is {path.suffix!r}, expected one of {', '.join(_SUFFIXES)}")
    if wanted.suffix not in _SUFFIXES:
        raise Error(f"{wanted}: the suffix selects the form; expected one of {', '.join(_SUFFIXES)}")
    if wanted.exists():
        raise Error(f"{wanted}: is there already")
    arrays = _read_arrays(existing)
    if not arrays:
        raise Error(f"{existing}: holds no arrays")
    try:
        return _write_arrays(arrays, wanted)
    except OSError as error:
        raise Error(f"{error.filename or wanted}: {error.strerror or error}") from None


def _read_arrays(path: Path) -> dict[str, torch.Tensor]:
    """The arrays of a file or folder by their names."""
    if not path.exists():
        raise Error(f"{path}: there is no such file or folder")
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.suffix in (".npy", ".txt") and one.is_file())
        return {str(one.relative_to(path).with_suffix("")): _read_arrays(one)[_ONE] for one in files}
    if path.suffix in (".h5", ".hdf5"):
        with opened(path) as file:
            names = list(_datasets(file, ""))
        return {name.removeprefix("/"): load_dataset(str(path), name) for name in names}
    if path.suffix in (".pth", ".pt"):
        return dict(_named_arrays(load(path), ""))
    return {_ONE: load_npy(path) if path.suffix == ".npy" else _read_txt(path)}


def _datasets(group: Any, name: str) -> list[str]:
    names = []
    for key, item in members(group, name):
        names += _datasets(item, f"{name}/{key}") if hasattr(item, "keys") else [f"{name}/{key}"]
    return names


def _named_arrays(value: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name or _ONE, value.detach())]
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    return [pair for key, one in items for pair in _named_arrays(one, f"{name}/{key}" if name else str(key))]


def _read_txt(path: Path) -> torch.Tensor:
    numbers = []
    for count, line in enumerate(read_text(path).splitlines(), 1):
        try:
            numbers += [float(word) for word in line.replace(",", " ").split()]
        except ValueError as error:
            raise Error(f"{path}: line {count}: {error}") from None
    return tensor_of(numpy.array(numbers, dtype="float64"), str(path))


def _write_arrays(arrays: dict[str, torch.Tensor], path: Path) -> list[str]:
    if path.suffix in (".pth", ".pt"):
        with path.open("wb") as file:  # by itself torch says of a missing folder that the archive cannot be written
            torch.save(arrays[_ONE] if list(arrays) == [_ONE] else arrays, file)
        return [str(path)]
    if path.suffix in (".h5", ".hdf5"):
        with opened(path, "w") as file:
            for name, tensor in arrays.items():
                folder, _, own = name.rpartition("/")
                if not write_tensor(file.require_group(folder or "/"), own, tensor, 0):
                    raise Error(f"{path}: {name}: {tensor.dtype} has no form in .h5")
        return [str(path)]
    if list(arrays) == [_ONE]:
        _write_array(arrays[_ONE], path)
        return [str(path)]
    written = []
    for name, tensor in arrays.items():
        place = path
        for part in name.split("/"):
            place.mkdir(parents=True, exist_ok=True)
            place = inside(place, part, name)
        place = place.with_name(place.name + path.suffix)
        _write_array(tensor, place)
        written.append(str(place))
    return written


def _write_array(tensor: torch.Tensor, path: Path) -> None:
    array = array_of(tensor)
    if path.suffix == ".npy":
        numpy.save(path, array)
    elif array.dtype.kind == "c":
        raise Error(f"{path}: complex numbers have no form in .txt")
    else:
        # A number a line, with the digits that restore it.
        digits = {"float16": 5, "float32": 9}.get(str(array.dtype), 17)
        numpy.savetxt(path, array.reshape(-1), fmt=f"%.{digits}g" if array.dtype.kind == "f" else "%d")


__all__ = ["convert"]
