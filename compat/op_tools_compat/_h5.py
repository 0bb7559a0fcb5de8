"""Reads and writes the .h5 files of PyTorch 1.5's dumper: /<ir_name>/<seqid>/input|output/<arg>, a list as <arg>/<arg>_<i>.

ir_name is an operator (add_Tensor) or the class of an autograd node (AddmmBackward); seqid counts all calls from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy
import torch

from op_tools import Error
from op_tools._base.core import describe
from op_tools.formats import Dump, ForeignCall, ForeignTensor, Missing
from op_tools.formats._files import tensor_of
from op_tools.formats._model import tensors_in
from op_tools.formats._names import aten_name

# The attribute DataType, and the form in the file: float16 as float32, bytes and booleans as int8.
_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_STORED = {torch.float16: torch.float32, torch.uint8: torch.int8, torch.bool: torch.int8}
# The attribute Type.
TENSOR, TENSORS, INTS, INT, BOOL, DOUBLE, DTYPE = 0, 1, 2, 3, 4, 5, 14
_NUMBERS = {3: int, 4: bool, 5: float, 6: float, 7: float, 9: int, 10: float}
_INTEGERS = (2, 13, 16)
_FORMAT_ND = 2  # of ACL: no layout of a device
# Names of parameters that are others on devices.
_SAME = {"self": "input", "eps": "epsilon", "input": "self", "epsilon": "eps"}
NODE = "an autograd node, which is no operator"


def h5_files(path: Path) -> list[Path]:
    """The files by which the format is known: a file .h5, or those in a folder."""
    if path.is_file():
        return [path] if path.suffix in (".h5", ".hdf5") else []
    return sorted(one for one in path.glob("*") if one.suffix in (".h5", ".hdf5") and one.is_file())


@contextmanager
def opened(path: Path | str, mode: str = "r") -> Iterator[Any]:
    """An .h5 file; failures of h5py are Errors that name it."""
    try:
        with h5py.File(path, mode) as file:
            yield file
    except Error:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise Error(f"{path}: no .h5 file that can be read or written: {error}") from None


def _child(group: Any, name: str, where: str) -> Any:
    """A member of a group; links, which may lead to other files, are refused."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise Error(f"{where}/{name}: is a link, perhaps to another file; it is not read")
    return group[name]


def members(group: Any, where: str) -> list[tuple[str, Any]]:
    return [(name, _child(group, name, where)) for name in sorted(group, key=_natural)]


def _natural(name: str) -> list[tuple[int, str]]:
    """seqids and list items sort as numbers, not as HDF5 has them (1, 10, 2)."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name) if part]


def read(path: Path) -> Dump:
    """Reads a file, or the files of a folder as steps.

    Raises:
        op_tools.Error: it is damaged.
    """
    calls: list[ForeignCall] = []
    problems: list[str] = []
    for step, file in enumerate(h5_files(path)):
        for entry in entries(file, problems):
            calls.append(_call_of_entry(entry, len(calls), step))
    return Dump(path, "h5", tuple(calls), tuple(problems), {})


@dataclass(frozen=True)
class Entry:
    """/<ir_name>/<seqid> of a file: inputs and outputs by name, each a value, a ForeignTensor or a list."""

    ir_name: str
    seqid: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]


def entries(file: Path, problems: list[str] | None = None) -> list[Entry]:
    """The entries of a file by their seqids. Values of tensors are not read.

    Args:
        file: the file.
        problems: gets items that are no entries.

    Raises:
        op_tools.Error: it is damaged.
    """
    entries: list[Entry] = []
    with opened(file) as root:
        for ir_name, calls in members(root, f"{file}!"):
            where = f"{file}!/{ir_name}"
            for seqid, call in members(calls, where) if hasattr(calls, "keys") else []:
                if not seqid.isdecimal() or not hasattr(call, "keys"):
                    if problems is not None:
                        problems.append(f"{where}/{seqid}: the name is no number of a call")
                    continue
                sides = {
                    side: _side(call, side, "output" if side == "output" else "input", f"{where}/{seqid}")
                    for side in ("input", "output")
                }
                entries.append(Entry(ir_name, int(seqid), sides["input"], sides["output"]))
    return sorted(entries, key=lambda entry: entry.seqid)


def _side(call: Any, side: str, role: str, where: str) -> dict[str, Any]:
    if side not in call:
        return {}
    group = _child(call, side, where)
    if not hasattr(group, "keys"):
        raise Error(f"{where}/{side}: is no group of arguments")
    arguments = {}
    for name, item in members(group, f"{where}/{side}"):
        at = f"{where}/{side}/{name}"
        if hasattr(item, "keys"):
            arguments[name] = [
                _value_of_dataset(element, role, f"{name}.{i}", f"{at}/{key}")
                for i, (key, element) in enumerate(members(item, at))
            ]
        else:
            arguments[name] = _value_of_dataset(item, role, name, at)
    return arguments


def _value_of_dataset(data: Any, role: str, place: str, where: str) -> Any:
    if not hasattr(data, "shape"):
        raise Error(f"{where}: is no dataset")
    if data.is_virtual or data.external:
        raise Error(f"{where}: its values are in another file, which is not read")
    kind = _attribute(data, "Type", TENSOR)
    if kind in (TENSOR, TENSORS):
        dtype = _DTYPES.get(_attribute(data, "DataType", -1))
        return ForeignTensor(
            role, place, str(dtype or ""), tuple(int(size) for size in data.shape), values=where, load=load_place
        )
    if (kind not in _NUMBERS and kind not in (*_INTEGERS, DTYPE)) or data.size > 64:
        return Missing(f"a value of Type {kind}")
    numbers = [one.item() for one in data[()].reshape(-1)]
    if kind in _INTEGERS:
        return [int(one) for one in numbers]
    if len(numbers) != 1:
        raise Error(f"{where}: {len(numbers)} values, expected one")
    if kind == DTYPE:
        return _DTYPES.get(int(numbers[0]))
    whole = kind in (7, 10) and float(numbers[0]).is_integer() and data.dtype.kind in "iu"
    return int(numbers[0]) if whole else _NUMBERS[kind](numbers[0])


def _attribute(data: Any, name: str, default: int) -> int:
    value = data.attrs.get(name, default)
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


def load_dataset(file: str, key: str) -> torch.Tensor:
    """A dataset as a tensor of the dtype that its attribute names.

    Args:
        file: the .h5 file.
        key: the dataset's path in it.

    Raises:
        op_tools.Error: there is no such dataset, or it is damaged.
    """
    with opened(file) as root:
        data = root.get(key)
        if data is None or not hasattr(data, "shape") or data.is_virtual or data.external:
            raise Error(f"{file}!{key}: there is no such dataset")
        value = tensor_of(data[()], f"{file}!{key}") if data.shape else tensor_of(data[...], f"{file}!{key}")
        dtype = _DTYPES.get(_attribute(data, "DataType", -1))
    return value if dtype is None else value.to(dtype)


def load_place(place: str) -> torch.Tensor:
    """The values of a ForeignTensor of this format: "FILE.h5!/op/1/input/self"."""
    file, _, key = place.partition("!")
    return load_dataset(file, key)


FORMAT = (h5_files, read)  # as in _FORMATS of op_tools/formats


# --- Calls ---


def _call_of_entry(entry: Entry, count: int, step: int) -> ForeignCall:
    is_node = re.fullmatch(r"\w+Backward\d*", entry.ir_name) is not None
    name, args, kwargs, why = ("", None, None, NODE) if is_node else _arguments(entry)
    inputs = tuple(entry.inputs.values()) if is_node else args
    values = list(entry.outputs.values())
    result: Any = tuple(values) if len(values) > 1 else values[0] if values else None
    return ForeignCall(
        name=name,
        foreign_name=f"{entry.ir_name}/{entry.seqid}",
        number=count,
        phase="backward" if is_node else "forward",
        step=step,
        level="aten",
        args=inputs,
        kwargs=kwargs,
        result=result,
        tensors=tensors_in(inputs if args is not None or is_node else list(entry.inputs.values()), kwargs, result),
        why_not=why,
    )


def _schemas(ir_name: str) -> Iterator[tuple[str, Any]]:
    """Operators that an ir_name may be: add_Tensor is aten::add.Tensor; add_ and add__Tensor are in place."""
    cuts = [(ir_name, "")] + [(ir_name[:i], ir_name[i + 1 :]) for i, one in enumerate(ir_name) if one == "_" and i]
    for base, overload in cuts:
        if name := aten_name(f"{base}.{overload}" if overload else base):
            yield name, getattr(getattr(torch.ops.aten, base), overload or "default")._schema


def _arguments(entry: Entry) -> tuple[str, Any, Any, str]:
    """(our name, args, kwargs, "") of an operator's entry, or why there are none."""
    why = f"torch has no operator {entry.ir_name}"
    for name, schema in _schemas(entry.ir_name):
        inputs = dict(entry.inputs)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        lacking = []
        for argument in schema.arguments:
            key = argument.name if argument.name in inputs else _SAME.get(argument.name, argument.name)
            if key in inputs:
                value = inputs.pop(key)
            elif argument.has_default_value():
                value = argument.default_value
            elif isinstance(argument.type, torch.OptionalType):
                value = None
            else:
                lacking.append(argument.name)
                continue
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        if not lacking and not inputs:
            return name, tuple(args), kwargs, ""
        missing = f"has no argument {', '.join(lacking)}" if lacking else f"has {', '.join(inputs)} besides"
        why = f"{name} is not the operator of the file: the entry {missing}"
    return "", None, None, why


# --- Writing ---


class H5Writer:
    """Writes entries to a new file; they are readable after each entry.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._count = 0
        with opened(self.path, "w"):
            pass

    def add(self, ir_name: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> list[str]:
        """Writes a call under the next seqid.

        Args:
            ir_name: the operator, or the class of an autograd node.
            inputs: arguments by name: tensors, numbers, lists of them; None is left out.
            outputs: results by name.

        Returns:
            values without a form in the file.

        Raises:
            op_tools.Error: the file cannot be written.
        """
        self._count += 1
        lost: list[str] = []
        with opened(self.path, "a") as file:
            call = file.create_group(f"/{ir_name}/{self._count}")
            for side, values in (("input", inputs), ("output", outputs)):
                group = call.create_group(side)
                for name, value in values.items():
                    if value is not None and not _write_value(group, name, value):
                        lost.append(f"{ir_name}/{self._count}/{side}/{name}: {describe(value)[:80]}")
        return lost


def _write_value(group: Any, name: str, value: Any) -> bool:
    """Whether the value has a form in the file."""
    if isinstance(value, torch.Tensor):
        return write_tensor(group, name, value, TENSOR)
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, torch.Tensor) for one in value):
        below = group.create_group(name)
        written = [write_tensor(below, f"{name}_{i}", one, TENSORS) for i, one in enumerate(value)]
        return all(written)
    if isinstance(value, (list, tuple)) and all(type(one) is int for one in value):
        group.create_dataset(name, data=list(value), dtype="int64").attrs["Type"] = INTS
        return True
    kinds = {bool: (BOOL, "int8"), int: (INT, "int64"), float: (DOUBLE, "float64")}
    if type(value) not in kinds and not isinstance(value, torch.dtype):
        return False
    if isinstance(value, torch.dtype):
        if value not in _CODES:
            return False
        code, stored, plain = DTYPE, "int64", _CODES[value]
    else:
        (code, stored), plain = kinds[type(value)], value
    if isinstance(plain, int) and not -(2**63) <= plain < 2**63:
        return False
    group.create_dataset(name, data=[plain], dtype=stored).attrs["Type"] = code
    return True


def write_tensor(group: Any, name: str, tensor: torch.Tensor, kind: int) -> bool:
    if tensor.dtype not in _CODES or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    plain = tensor.detach().cpu().contiguous()
    stored = plain.to(_STORED.get(plain.dtype, plain.dtype))
    data = group.create_dataset(name, data=stored.resolve_conj().resolve_neg().numpy())
    device = {"cpu": 0, "cuda": 1}.get(tensor.device.type, 20)
    data.attrs["DeviceType"] = numpy.int32(device)
    data.attrs["DataType"] = numpy.int32(_CODES[tensor.dtype])
    data.attrs["FormatType"] = numpy.int32(_FORMAT_ND)
    data.attrs["Type"] = numpy.int32(kind)
    data.attrs["Stride"] = numpy.array(plain.stride(), dtype="int64")
    return True


def ir_name_of(name: str) -> str:
    """The ir_name of an operator of ours: add_Tensor of "aten::add.Tensor"."""
    return name.removeprefix("aten::").replace(".", "_")
