"""Writes captures as .h5 files of PyTorch 1.5's dumper: op-tools export --format h5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from op_tools import Error, load
from op_tools.formats._export import Captured, Exported

from ._h5 import H5Writer, ir_name_of


def write_captures(calls: list[Captured], root: Path, done: Exported) -> None:
    """Writes a file for each rank and step, and adds the calls that have no form in it to `done`."""
    files: dict[tuple[int, int], H5Writer] = {}
    for captured in calls:
        try:
            name, args, kwargs = _operator_behind(captured)
            schema = _aten_schema(name)
            inputs = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)}
            inputs.update(kwargs)
            results = (
                captured.call.result if isinstance(captured.call.result, (tuple, list)) else (captured.call.result,)
            )
            names = [returned.name for returned in schema.returns]
            plain = ["result"] if len(results) == 1 else [f"result{i}" for i in range(len(results))]
            outputs = dict(zip(names if len(names) == len(results) and all(names) else plain, results, strict=True))
        except Error as error:
            done.problems.append(f"{captured.path}: not exported: {error}")
            continue
        key = (captured.rank, captured.step)
        if key not in files:
            files[key] = H5Writer(root / f"rank{captured.rank}_step{captured.step}.h5")
        done.problems += files[key].add(ir_name_of(name), inputs, outputs)
        if captured.call.grad_outputs is not None:
            node = "".join(part.capitalize() for part in ir_name_of(name).partition("_")[0].split("_")) + "Backward"
            gradients = [gradient for gradient in captured.call.grad_inputs or () if gradient is not None]
            grads = [gradient for gradient in captured.call.grad_outputs if gradient is not None]
            done.problems += files[key].add(node, {"grads": grads}, {"grad_inputs": gradients})
        done.calls += 1


def _operator_behind(captured: Captured) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The aten operator that is the call, or is behind it."""
    if captured.call.name.startswith("aten::"):
        return captured.call.name, captured.call.args, captured.call.kwargs
    behind = load(Path(captured.path) / "input.pth").get("aten")
    if not isinstance(behind, tuple) or len(behind) != 2:
        raise Error(f"no single aten operator is behind {captured.call.name}; capture with level='aten'")
    return str(behind[0]), tuple(behind[1]), {}


def _aten_schema(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    operator = getattr(packet, overload or "default", None)
    if operator is None or not hasattr(operator, "_schema"):
        raise Error(f"torch has no operator {name}")
    return operator._schema
