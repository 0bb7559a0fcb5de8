"""Arguments as JSON: trees with a TensorSpec for each tensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from .._base.core import Error

Leaf = TypeVar("Leaf")
_NAMED: dict[str, type] = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}


@dataclass(frozen=True)
class TensorSpec:
    """The facts of a tensor, and how its values are made."""

    shape: tuple[int, ...]
    dtype: str
    """"float32"."""
    stride: tuple[int, ...] | None = None
    """None: contiguous."""
    offset: int = 0
    """In elements, into its memory."""
    values: str | tuple[Any, ...] = "normal"
    """A recipe, or the elements themselves, in the order of their indices (op_tools/_conformance/values.py)."""
    requires_grad: bool = False
    alias: int | None = None
    """Tensors with the same number share their memory; the first tensor's values fill it."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Raises op_tools.Error where this torch has none of that name."""
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise Error(f"this torch has no dtype {self.dtype!r}")
        return dtype

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.torch_dtype.itemsize

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        return contiguous_strides(self.shape) if self.stride is None else self.stride

    @functools.cached_property
    def storage_size(self) -> int:
        """Elements of its memory, from the begin of the storage to its last element."""
        if self.numel == 0:
            return self.offset
        return self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))

    @property
    def layout(self) -> str:
        """ "contiguous", "nhwc", "expanded", "strided", or "offset" (contiguous behind the begin of its memory)."""
        sizes = [(size, step) for size, step in zip(self.shape, self.strides, strict=True) if size > 1]
        if not self.numel or [step for _, step in sizes] == list(contiguous_strides(tuple(size for size, _ in sizes))):
            return "offset" if self.offset else "contiguous"
        if any(step == 0 for _, step in sizes):
            return "expanded"
        return "nhwc" if len(self.shape) in (4, 5) and self.strides == channels_last(self.shape) else "strided"


_SPEC_FIELDS = tuple(one.name for one in fields(TensorSpec))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a channels-last tensor of four or five dimensions."""
    order = [0, *range(2, len(shape)), 1]
    steps = dict(zip(order, contiguous_strides(tuple(shape[dim] for dim in order)), strict=True))
    return tuple(steps[dim] for dim in range(len(shape)))


def encode(tree: Any) -> Any:
    """A tree as JSON.

    Raises:
        op_tools.Error: a leaf has no form in JSON.
    """
    if tree is None or type(tree) in (bool, int, str):
        return tree
    if isinstance(tree, float):
        return float(tree) if math.isfinite(tree) else {"float": str(tree)}
    if isinstance(tree, complex):
        return {"complex": [str(tree.real), str(tree.imag)]}
    if isinstance(tree, TensorSpec):
        return {"tensor": _encode_spec(tree)}
    if isinstance(tree, torch.device):
        return {"device": True}
    for name, kind in _NAMED.items():
        if isinstance(tree, kind):
            return {name: str(tree).removeprefix("torch.")}
    if isinstance(tree, slice):
        return {"slice": [encode(one) for one in (tree.start, tree.stop, tree.step)]}
    if tree is Ellipsis:
        return {"ellipsis": True}
    if isinstance(tree, torch.Size):
        return {"size": list(tree)}
    if isinstance(tree, dict):
        return {"dict": [[encode(key), encode(value)] for key, value in tree.items()]}
    if type(tree) in (list, tuple):
        items = [encode(one) for one in tree]
        return items if type(tree) is list else {"tuple": items}
    raise Error(f"a {type(tree).__qualname__} has no form in a case")


def _encode_spec(spec: TensorSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {"shape": list(spec.shape), "dtype": spec.dtype}
    if spec.stride is not None:
        fields["stride"] = list(spec.stride)
    if spec.values != "normal":
        fields["values"] = spec.values if isinstance(spec.values, str) else list(spec.values)
    for name in ("offset", "requires_grad"):
        if value := getattr(spec, name):
            fields[name] = value
    if spec.alias is not None:
        fields["alias"] = spec.alias
    return fields


def decode(tree: Any) -> Any:
    """The tree of a JSON form of encode().

    Raises:
        op_tools.Error: it is none of its forms.
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, list):
        return [decode(one) for one in tree]
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, value),) = tree.items()
        try:
            return _DECODERS[kind](value)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    raise Error(
        f"a case: {str(tree)[:80]} is no argument; an object has a single key ({', '.join(_DECODERS)}), as in "
        '{"tensor": {"shape": [2, 3], "dtype": "float32"}}'
    )


def _named(kind: str) -> Callable[[Any], Any]:
    def find(name: Any) -> Any:
        value = getattr(torch, name)
        if not isinstance(value, _NAMED[kind]):
            raise ValueError
        return value

    return find


def _flag(value: Any, result: Any) -> Any:
    if value is not True:
        raise ValueError
    return result


DEVICE = torch.device("meta")  # stands for the device of the run

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda value: _decode_spec(value),
    "tuple": lambda value: tuple(decode(list(value))),
    "dict": lambda value: {decode(key): decode(one) for key, one in value},
    "size": lambda value: torch.Size(value),
    "slice": lambda value: slice(*(decode(one) for one in value)),
    "ellipsis": lambda value: _flag(value, ...),
    "float": lambda value: float(value),
    "complex": lambda value: complex(float(value[0]), float(value[1])),
    "device": lambda value: _flag(value, DEVICE),
    **{kind: _named(kind) for kind in _NAMED},
}


def _sizes(value: Any, name: str, smallest: int = 0) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(one) is not int or not smallest <= one < 2**62 for one in value):
        raise Error(f"a case: {name} {str(value)[:80]} has to be a list of numbers from {smallest}")
    return tuple(value)


def _decode_spec(fields: Any) -> TensorSpec:
    if not isinstance(fields, dict) or not {"shape", "dtype"} <= set(fields) <= set(_SPEC_FIELDS):
        raise Error(f'a case: a tensor has "shape", "dtype" and may have {", ".join(_SPEC_FIELDS[2:])}')
    shape = _sizes(fields["shape"], "shape")
    stride = None if fields.get("stride") is None else _sizes(fields["stride"], "stride")
    if stride is not None and len(stride) != len(shape):
        raise Error(f"a case: stride {list(stride)} does not fit shape {list(shape)}")
    (offset,) = _sizes([fields.get("offset", 0)], "offset")
    alias, values = fields.get("alias"), fields.get("values", "normal")
    if (alias is not None and type(alias) is not int) or not isinstance(values, str | list):
        raise Error('a case: "alias" is a number, "values" a text or a list')
    values = values if isinstance(values, str) else tuple(values)
    return TensorSpec(shape, str(fields["dtype"]), stride, offset, values, fields.get("requires_grad") is True, alias)


def map_tree(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree of dicts, slices, lists and tuples with each leaf changed, in reading order."""
    if isinstance(tree, dict):
        return {key: map_tree(value, change) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_tree(one, change) for one in (tree.start, tree.stop, tree.step)))
    if type(tree) in (list, tuple):
        return type(tree)(map_tree(one, change) for one in tree)
    return change(tree)


def leaves_in(tree: Any, kind: type[Leaf]) -> list[Leaf]:
    """The leaves of a kind in reading order."""
    leaves: list[Leaf] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, kind):
            leaves.append(leaf)

    map_tree(tree, look)
    return leaves


def map_specs(tree: Any, change: Callable[[TensorSpec], Any], device: torch.device | None = None) -> Any:
    """The tree with each tensor changed, in reading order; with `device`, its devices are that device."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, TensorSpec):
            return change(leaf)
        return device if device is not None and isinstance(leaf, torch.device) else leaf

    return map_tree(tree, changed)
