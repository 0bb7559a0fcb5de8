"""Writes msprobe's dump.json, stack.json, construct.json and dump_tensor_data of a rank in a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from .._base.core import describe
from ._statistics import tensor_statistics

# The header of a dump.json of ours: msprobe saves gradients in the order of the last autograd node.
GRADIENTS = "gradients"
BY_ARGUMENT = "by argument"


class MsprobeWriter:
    """The files of a rank in a step; written when it ends.

    Args:
        folder: "TO/step0/rank0".
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._values = folder / "dump_tensor_data"
        self._values.mkdir(parents=True, exist_ok=True)
        self._data: dict[str, Any] = {}
        self._stacks: dict[tuple[str, ...], list[str]] = {}
        self.lost: list[str] = []
        """Values without a form in the files."""

    def forward(self, name: str, args: Any, kwargs: dict[str, Any], result: Any, stack: tuple[str, ...]) -> None:
        """A forward call.

        Args:
            name: "Functional.linear.0".
            args: its arguments.
            kwargs: its keyword arguments.
            result: its result.
            stack: lines of its stack.
        """
        full = f"{name}.forward"
        results = result if isinstance(result, (tuple, list)) else [result]
        self._data[full] = {
            "input_args": self._tree(list(args), f"{full}.input"),
            "input_kwargs": self._tree(kwargs, f"{full}.input"),
            "output": self._tree(list(results), f"{full}.output"),
        }
        self._stacks.setdefault(stack, []).append(full)

    def backward(self, name: str, grad_outputs: Any, grad_inputs: Any) -> None:
        """The backward call of a forward call.

        Args:
            name: of the forward call.
            grad_outputs: gradients of its results.
            grad_inputs: those of its tensor arguments.
        """
        full = f"{name}.backward"
        self._data[full] = {
            "input": self._tree(list(grad_outputs), f"{full}.input"),
            "output": self._tree(list(grad_inputs), f"{full}.output"),
        }

    def end(self) -> None:
        """Writes the files of JSON."""
        head = {"task": "tensor", "level": "L1", "framework": "pytorch", GRADIENTS: BY_ARGUMENT}
        dump = {**head, "dump_data_dir": str(self._values), "data": self._data}
        stacks = {str(i): [names, list(lines)] for i, (lines, names) in enumerate(self._stacks.items())}
        for file, content in (("dump.json", dump), ("stack.json", stacks), ("construct.json", {})):
            (self._folder / file).write_text(json.dumps(content, indent=1))

    def _tree(self, value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name)
        if isinstance(value, dict):
            return {str(key): self._tree(one, f"{name}.{key}") for key, one in value.items()}
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return [self._tree(one, f"{name}.{i}") for i, one in enumerate(value)]
        plain = _entry_of(value)
        if plain is None and value is not None:
            self.lost.append(f"{name}: {describe(value)[:80]}")
        return plain

    def _tensor(self, tensor: torch.Tensor, name: str) -> dict[str, Any]:
        measured = tensor_statistics(tensor)
        # As they: without strides, and each tensor with its own storage.
        torch.save(tensor.detach().cpu().clone(memory_format=torch.contiguous_format), self._values / f"{name}.pt")
        return {
            "type": "torch.Tensor",
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "Max": measured["max"],
            "Min": measured["min"],
            "Mean": measured["mean"],
            "Norm": measured["norm"],
            "requires_grad": tensor.requires_grad,
            "data_name": f"{name}.pt",
        }


def _entry_of(value: Any) -> dict[str, Any] | None:
    """A value that is no tensor; None for values that the files cannot hold."""
    if type(value) in (bool, int, float, str):
        return {"type": type(value).__name__, "value": value}
    if value is Ellipsis:
        return {"type": "ellipsis", "value": "..."}
    if isinstance(value, slice):
        parts = [value.start, value.stop, value.step]
        whole = all(one is None or type(one) is int for one in parts)
        return {"type": "slice", "value": parts} if whole else None
    if isinstance(value, torch.Size):
        return {"type": "torch.Size", "value": list(value)}
    if isinstance(value, (torch.dtype, torch.device)):
        return {"type": f"torch.{type(value).__name__}", "value": str(value)}
    if isinstance(value, torch.memory_format):
        return {"type": "torch.memory_format", "format": str(value).removeprefix("torch.")}
    return None
