"""Makes our captures of a dump's calls."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error, write_call
from .._torch.python_functions import find
from ._left_out import may_lack_arguments
from ._model import Dump, ForeignCall, ForeignTensor, Missing, leaves, map_leaves
from ._names import is_in_place
from ._values import load_values


@dataclass(frozen=True)
class Imported:
    """The result of an import of a dump."""

    calls: int
    """How many calls are captures now."""
    by_reason: dict[str, tuple[str, ...]]
    """Calls that could not be imported or read, by the reason."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Calls that could not be imported, and why; and files that could not be read."""
        return tuple(problem for problems in self.by_reason.values() for problem in problems)


def import_dump(dump: Dump, target: str | os.PathLike[str]) -> Imported:
    """Writes the calls of a dump as captures, for run_op_from_data, load_call and op-tools show.

    Args:
        dump: a result of :func:`read_dump`.
        target: the folder to write to; made where it is missing, and refused if anything is in it.

    Returns:
        how many calls were written, and which could not be.

    Raises:
        op_tools.Error: the target is not empty, or cannot be written.
    """
    root = Path(target)
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        raise Error(f"{root}: is not empty; name a new folder")
    problems: dict[str, list[str]] = {problem: [problem] for problem in dump.problems}

    def left(call: ForeignCall, reason: str) -> None:
        where = f"{call.foreign_name} (rank {call.rank}, step {call.step})"
        problems.setdefault(reason, []).append(f"{where}: not imported: {reason}")

    backward: dict[tuple[int, int, str], list[ForeignCall]] = {}
    for call in dump.calls:
        if call.phase == "backward":  # of a module, gradients of parameters may come before the call's own
            backward.setdefault((call.rank, call.step, call.foreign_name), []).append(call)
    written = 0
    for call in dump.calls:
        if call.phase != "forward":
            continue
        key = (call.rank, call.step, call.foreign_name)
        calls = backward.pop(key, [])
        passes = [one for one in calls if isinstance(one.args, tuple)]
        if rest := [one for one in calls if one not in passes]:
            backward[key] = rest
        try:
            _write_call(call, passes[0] if passes else None, root / str(call.rank) / dump.format)
            written += 1
        except Error as error:
            left(call, str(error))
    for calls in backward.values():
        for call in calls:
            left(call, call.why_not or _ALONE)
    return Imported(written, {reason: tuple(lines) for reason, lines in problems.items()})


_ALONE = "a backward call whose forward call is not in the dump, or is not named by it"


def summary(done: Imported) -> list[str]:
    """The problems for people: those of equal reasons in a single line, with the first call and their number."""
    return [
        lines[0] + (f" (and {len(lines) - 1} more calls for this reason)" if len(lines) > 1 else "")
        for lines in done.by_reason.values()
    ]


def _write_call(call: ForeignCall, backward: ForeignCall | None, root: Path) -> None:
    if call.why_not:
        raise Error(call.why_not)
    if call.args is None:
        raise Error("its arguments are not in the dump")
    for leaf in leaves([call.args, call.kwargs, call.result]):
        if isinstance(leaf, Missing):
            raise Error(f"an argument is {leaf.why}")
    if not call.certain:
        _try(call)
    if not call.tensors:
        raise Error("the dump has no tensor of it")
    if any(not one.values for one in call.tensors):
        raise Error("the dump has no values of it, only statistics")
    args, kwargs, result = (map_leaves(tree, _loaded) for tree in (call.args, call.kwargs or {}, call.result))
    tensor = result[0] if isinstance(result, tuple) and result else result
    in_place = is_in_place(call.name) and isinstance(tensor, torch.Tensor)
    grad_outputs, grad_inputs = _gradients(backward, args)
    lacks = call.lacks
    if not call.certain and may_lack_arguments(call.name, len(args)):
        lacks = ("arguments", *lacks)
    fields = {
        "args": args,
        "kwargs": kwargs,
        "result": result,
        "mutated": {0: tensor} if in_place else {},
        "node_gradients": bool(backward and backward.by_node),
        "lacks": lacks,
        "grad_outputs": grad_outputs,
        "grad_inputs": grad_inputs,
    }
    meta = {
        "name": call.name,
        "level": call.level,
        "id": call.number,
        "step": call.step,
        "rank": call.rank,
        "stack": list(call.stack),
        # Which class the whole model has no dump says.
        **({"module": call.module, "model": ""} if call.module else {}),
    }
    write_call(os.fsencode(root), fields, json.dumps(meta))


def _loaded(leaf: Any) -> Any:
    if not isinstance(leaf, ForeignTensor):
        return leaf
    value = load_values(leaf)
    can_require = value.is_floating_point() or value.is_complex()
    return value.requires_grad_(bool(leaf.requires_grad) and can_require)


def _gradients(backward: ForeignCall | None, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Gradients of outputs and inputs, where the dump has both."""
    if backward is None or not backward.args or not backward.result:
        return None, None
    if any(not one.values for one in backward.tensors):
        return None, None
    grad_inputs = map_leaves(tuple(leaves(backward.result)), _loaded)
    if not backward.by_node:  # a gradient for each tensor argument: of a module, its parameters are behind its inputs
        count = sum(isinstance(one, torch.Tensor) for one in leaves(args))
        grad_inputs = (*grad_inputs, *[None] * (count - len(grad_inputs)))
    return map_leaves(tuple(backward.args), _loaded), grad_inputs


def _try(call: ForeignCall) -> None:
    """Runs a call on meta tensors, which tells whether the dump has arguments enough.

    Raises:
        op_tools.Error: it has not.
    """
    function = find(call.name)
    if function is None:
        raise Error(f"torch has no function {call.name}")

    def meta(leaf: Any) -> Any:
        if not isinstance(leaf, ForeignTensor):
            return leaf
        dtype = getattr(torch, leaf.dtype.removeprefix("torch."), torch.float32)
        return torch.empty(leaf.shape or (), dtype=dtype, device="meta")

    try:
        # Functions that make tensors of sizes only (arange) make them on the meta device, too.
        with torch.device("meta"), torch.no_grad():
            result = function(*map_leaves(call.args, meta), **map_leaves(call.kwargs or {}, meta))
    except NotImplementedError:  # not on meta tensors
        return
    except Exception as error:  # whatever a function raises that lacks arguments
        text = str(error).partition("\n")[0]
        raise Error(f"the dump leaves out arguments that are no tensors of floats, and without them: {text}") from None
    known = [tuple(one.shape) for one in leaves(result) if isinstance(one, torch.Tensor)]
    saved = [one.shape for one in leaves(call.result) if isinstance(one, ForeignTensor)]
    if saved and known != saved:
        raise Error(
            f"with the arguments in the dump its result has the shapes {known}, in the dump {saved}: "
            "the dump leaves out arguments that are no tensors of floats"
        )
