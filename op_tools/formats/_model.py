"""The content of a dump of another tool, in a common form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

Lack = Literal["arguments", "inputs before", "inputs after"]
"""Facts of a call that a file does not tell: whether there were other arguments, whether the inputs are those of before the call,
their values after it. Captures have the same words (kLacks in src/calls/saved_call.cpp)."""


@dataclass(frozen=True)
class ForeignTensor:
    """A tensor of a dump: its facts in the dump, and the place of its values."""

    role: str
    """"input", "output", "grad_output", "grad_input", "parameter" or "parameter_grad"."""
    place: str
    """Where in the arguments or the result: "0", "1.0" (the first of a list), "weight"."""
    dtype: str = ""
    """"torch.float32"; "" if the dump does not say."""
    shape: tuple[int, ...] | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    norm: float | None = None
    hash: str = ""
    """As the tool wrote it: md5 or crc32 of the bytes; "" without."""
    requires_grad: bool | None = None
    label: str = ""
    """The tool's own name of the tensor, if it has any: "Functional_pad_0_forward_input.0"."""
    values: str = ""
    """The file with the values, or "FILE!KEY" for a value in a file of many; "" if the dump has statistics only."""
    load: Callable[[str], torch.Tensor] | None = field(default=None, repr=False)
    """Reads the values from that place, where the format's files are no .npy and no .pth."""


@dataclass(frozen=True)
class Missing:
    """An argument that the call had and the dump does not hold."""

    why: str


@dataclass(frozen=True)
class ForeignCall:
    """A forward or backward call of a dump."""

    name: str
    """Our name, as "torch.nn.functional.linear" or "aten::add.Tensor"; "" if there is none."""
    foreign_name: str
    """The tool's name with its number, without phase: "Functional_linear_0", "Tensor.add.3"."""
    number: int
    """The position in the dump of its rank, over all steps; forward and backward calls are counted together."""
    phase: str
    """"forward" or "backward"."""
    step: int = 0
    rank: int = 0
    level: str = "torch"
    """"torch", "aten", or "module" for a call of a whole module."""
    module: str = ""
    """The path of the module that made the call: "layer1.0.conv"; "" if not known."""
    stack: tuple[str, ...] = ()
    """"file:line function", the innermost line first."""
    args: Any = None
    """A tuple of arguments with a ForeignTensor for each tensor and Missing for arguments that the dump lacks; None if the dump does
    not hold the arguments. Of a backward call: the gradients of the outputs."""
    kwargs: Any = None
    """A dict, as args."""
    result: Any = None
    """The call's result. Of a backward call: the gradients that it gave; None where there was none."""
    tensors: tuple[ForeignTensor, ...] = ()
    """All of them, inputs before outputs."""
    why_not: str = ""
    """Why the call cannot be one of our captures; "" if nothing in the dump is against it."""
    by_node: bool = False
    """Of a backward call: the gradients that it gave are those of the result's last autograd node, in that node's order; else
    a gradient for each tensor argument."""
    certain: bool = True
    """Whether the arguments are known to be complete; else an import tries them on meta tensors."""
    lacks: tuple[Lack, ...] = ("inputs after",)
    """Facts of it that the format does not tell."""

    @property
    def has_values(self) -> bool:
        """Whether the dump has the values of all of its tensors."""
        return bool(self.tensors) and all(one.values for one in self.tensors)


@dataclass(frozen=True)
class Dump:
    """A dump as it was read."""

    path: Path
    format: str
    """"troubleshooter", "msprobe" or "h5"."""
    calls: tuple[ForeignCall, ...]
    """By rank, then in the order of the dump."""
    problems: tuple[str, ...] = ()
    """Unreadable parts: "FILE:LINE: reason"."""
    header: dict[str, str] = field(default_factory=dict)
    """The dump's own facts: task, level, framework."""


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with each leaf changed; lists, tuples and dicts stay lists, tuples and dicts."""
    if isinstance(tree, dict):
        return {key: map_leaves(value, change) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map_leaves(value, change) for value in tree)
    return change(tree)


def leaves(tree: Any) -> list[Any]:
    """The leaves in reading order."""
    leaves: list[Any] = []
    map_leaves(tree, leaves.append)
    return leaves


def tensors_in(*trees: Any) -> tuple[ForeignTensor, ...]:
    """The tensors of the trees in reading order."""
    return tuple(leaf for tree in trees for leaf in leaves(tree) if isinstance(leaf, ForeignTensor))
