"""A live call as a case, as torch_function modes see it, for the sources that watch programs."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .._base.core import Error, base_name, function_name
from .._torch.python_functions import find
from .case import Case
from .trees import DEVICE, TensorSpec, contiguous_strides, encode, map_specs

Values = Callable[[torch.Tensor], "str | tuple[Any, ...]"]
"""Gives the recipe for a tensor."""
_OWN = re.compile(r"__i\w+__|\w*[^_]_|__setitem__")
"""Last parts of names of functions that change their first argument: __iadd__, add_, __setitem__."""


def case_of(source: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: Values) -> Case:
    """The case of a call that is about to be made.

    Args:
        source: of the case.
        function: the function that a torch_function mode was handed.
        args: of the call.
        kwargs: of the call.
        values: how the elements of each tensor are made.

    Raises:
        op_tools.Error: it can be no case, with the reason.
    """
    name = function_name(function)
    if find(name) is None:
        raise Error("functions that no file may name")
    specs = _Specs(values)
    arguments = specs.with_aliases((specs.of(list(args)), {key: specs.of(value, key) for key, value in kwargs.items()}))
    encode(list(arguments))  # raises for values that JSON does not hold
    gradient = any(one.requires_grad for one in specs.list) and torch.is_grad_enabled()
    variant = variant_of(name, function, args, kwargs)
    case = Case.make(source, name, variant, tuple(arguments[0]), arguments[1], gradient=gradient and variant != "out")
    return case if case.gradient else without_gradient(case)


def without_gradient(case: Case) -> Case:
    """The case without a backward pass."""
    args, kwargs = map_specs((case.args, case.kwargs), lambda spec: replace(spec, requires_grad=False))
    return case.with_changes(args=args, kwargs=kwargs, gradient=False)


def variant_of(name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """ "out", "inplace", "method" or "function"."""
    if kwargs.get("out") is not None:
        return "out"
    if changes_first(name) or _in_place_flag(function, args, kwargs):
        return "inplace"
    return "method" if name.startswith("torch.Tensor.") else "function"


def changes_first(name: str) -> bool:
    """Whether a function, or an operator, has the name of a function that changes its first argument."""
    return _OWN.fullmatch(base_name(name)) is not None


def _in_place_flag(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is called with inplace=True, by name or by position."""
    if kwargs.get("inplace") is True:
        return True
    if True not in [one for one in args if isinstance(one, bool)]:
        return False
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function of C
        return False
    return "inplace" in names and len(args) > names.index("inplace") and args[names.index("inplace")] is True


class _Specs:
    """Tensors of a call as specs: those that share a storage have the same alias."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.list: list[TensorSpec] = []
        self.memories: list[tuple[int, torch.dtype]] = []
        """Of each tensor."""

    def of(self, tree: Any, key: str = "") -> Any:
        if isinstance(tree, torch.Tensor):
            return self._tensor(tree)
        if isinstance(tree, torch.device) or (key == "device" and isinstance(tree, str)) or tree == "cpu":
            return DEVICE
        if isinstance(tree, np.generic):
            return tree.item()
        if isinstance(tree, torch.Size):
            return tree
        if isinstance(tree, dict):
            return {one: self.of(value, str(one)) for one, value in tree.items()}
        if isinstance(tree, slice):
            return slice(*(self.of(one) for one in (tree.start, tree.stop, tree.step)))
        if isinstance(tree, list | tuple):  # a named tuple, too
            items = [self.of(one) for one in tree]
            return items if isinstance(tree, list) else tuple(items)
        return tree

    def _tensor(self, tensor: torch.Tensor) -> TensorSpec:
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
            raise Error("sparse, nested and quantized tensors")
        if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
            raise Error("tensors with a bit for conjugate or negative")
        shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        spec = TensorSpec(
            shape,
            str(tensor.dtype).removeprefix("torch."),
            None if stride == contiguous_strides(shape) or tensor.numel() == 0 else stride,
            int(tensor.storage_offset()) if tensor.numel() else 0,
            self.values(tensor),
            bool(tensor.requires_grad),
        )
        self.list.append(spec)
        self.memories.append((tensor.untyped_storage()._cdata, tensor.dtype))
        return spec

    def with_aliases(self, tree: Any) -> Any:
        """The tree, in which tensors that share a storage have the same alias; others lie near the begin of theirs."""
        count = Counter(self.memories)
        shared = [memory for memory in dict.fromkeys(self.memories) if count[memory] > 1]
        memories = iter(self.memories)

        def change(spec: TensorSpec) -> TensorSpec:
            memory = next(memories)
            if memory in shared:
                return replace(spec, alias=shared.index(memory))
            return replace(spec, offset=spec.offset % 64)

        return map_specs(tree, change)
