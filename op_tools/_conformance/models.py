"""Cases of models: the torch functions that a training step calls, with real shapes, and how often.

A call is recorded as the program writes it (torch.nn.functional.conv2d), and runs forward and backward when it is a case:
each device takes its own kernels for it, which aten overloads recorded on a device would fix. Shapes, dtypes, strides and
other arguments are recorded, no values, so a model may live on the meta device, at its real size.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from .._base.core import Error, function_name, has_trait, is_metadata_op, place_of_trait
from .case import Case, leaves_of
from .recorded import case_of, without_gradient
from .trees import TensorSpec, map_specs


class StepRecorder(TorchFunctionMode):
    """Counts the calls of a program, by case. Calls inside other torch functions are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.cases: dict[str, Case] = {}
        self.left_out: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        case = self._case(func, args, kwargs or {})  # before the call, which may change shapes
        result = func(*args, **(kwargs or {}))
        if case is not None and (tensors := leaves_of(result)) and case.tensors:
            if case.gradient and not any(one.requires_grad for one in tensors):
                case = without_gradient(case)
            self.counts[case.id] += 1
            self.cases.setdefault(case.id, case)
        return result

    def _case(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case | None:
        name = getattr(function, "__name__", "")
        full = function_name(function)
        if name in ("__get__", "__set__") or is_metadata_op(full) or has_trait(full, "keeps_numbers"):
            return None
        try:
            return with_plausible_values(case_of("models", function, args, kwargs, _recipe))
        except (Error, RuntimeError, NotImplementedError) as error:  # tensors of torch.func have no memory
            self.left_out[f"{name}: {error}".partition("\n")[0][:100]] += 1
            return None

    def restart(self) -> None:
        """Forgets the counts: another step begins."""
        self.counts.clear()

    def take(self, model: str) -> list[Case]:
        """The cases that were counted, in the order in which they were first called."""
        return [
            replace(case, models={model: self.counts[case.id]}) for case in self.cases.values() if self.counts[case.id]
        ]


def _recipe(tensor: torch.Tensor) -> str:
    return "normal" if tensor.is_floating_point() or tensor.is_complex() else "integers 0 1"


def with_plausible_values(case: Case) -> Case:
    """The case with values that its operator can take: indices within their tensor, positive numbers under a root."""
    last = case.op.rpartition(".")[2].rstrip("_") if not case.op.endswith("__") else case.op.rpartition(".")[2]
    args, kwargs = list(case.args), dict(case.kwargs)
    first = args[0] if args else kwargs.get("input")
    if last == "embedding":
        weight = _get(args, kwargs, 1, "weight")
        _set(args, kwargs, 0, "input", _below(weight.shape[0] if isinstance(weight, TensorSpec) else 1))
    elif last in ("cross_entropy", "nll_loss") and isinstance(first, TensorSpec):
        _set(args, kwargs, 1, "target", _below(first.shape[1] if len(first.shape) > 1 else first.shape[0]))
    elif last == "one_hot":
        _set(args, kwargs, 0, "input", _below(max(1, _get(args, kwargs, 1, "num_classes") or 1)))
    elif last in ("batch_norm", "instance_norm"):
        _set(args, kwargs, 2, "running_var", "uniform 0.5 2")
    elif has_trait(last, "takes_positive_numbers"):
        _set(args, kwargs, 0, "input", "uniform 0.25 4")
    elif (place := place_of_trait(last, "takes_a_divisor")) >= 0:
        _set(args, kwargs, place, "other", "uniform 0.5 2")
    elif (place := place_of_trait(last, "takes_indices")) >= 0:
        dim = _get(args, kwargs, 3 - place, "dim")  # index and dim are the second and the third argument
        if isinstance(first, TensorSpec) and type(dim) is int and first.shape:
            _set(args, kwargs, place, "index", _below(first.shape[dim]))
    elif last in ("__getitem__", "__setitem__") and isinstance(first, TensorSpec):
        args[1] = _indices(args[1], first.shape)
    return case.with_changes(args=tuple(args), kwargs=kwargs)


def _below(size: int) -> str:
    return f"integers 0 {max(0, size - 1)}"


def _get(args: list[Any], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _set(args: list[Any], kwargs: dict[str, Any], place: int, name: str, recipe: str) -> None:
    """Gives a tensor argument another recipe, if it is a tensor of the kind that the recipe is for."""
    spec = _get(args, kwargs, place, name)
    if not isinstance(spec, TensorSpec):
        return
    whole = not (spec.torch_dtype.is_floating_point or spec.torch_dtype.is_complex)
    if whole and recipe.startswith("uniform"):
        recipe = "integers 1 4"
    elif not whole and recipe.startswith("integers"):
        return  # probabilities for classes
    if len(args) > place:
        args[place] = replace(spec, values=recipe)
    else:
        kwargs[name] = replace(spec, values=recipe)


def _indices(index: Any, shape: tuple[int, ...]) -> Any:
    """An index whose tensors of integers lie within the dimensions that they stand for."""
    dims = iter(shape)

    def within(item: Any) -> Any:
        if isinstance(item, TensorSpec) and item.dtype != "bool":
            return replace(item, values=_below(next(dims, 1)))
        for _ in range(
            len(item.shape) if isinstance(item, TensorSpec) else 0 if item is None or item is Ellipsis else 1
        ):
            next(dims, 1)
        return item

    if isinstance(index, tuple):
        if any(item is Ellipsis for item in index):
            return map_specs(
                index, lambda spec: spec if spec.dtype == "bool" else replace(spec, values=_below(min(shape)))
            )
        return tuple(within(item) for item in index)
    return within(index)


def merged(cases: Sequence[Case]) -> list[Case]:
    """Cases of several models: each once, with the calls of all."""
    merged: dict[str, Case] = {}
    for case in cases:
        known = merged.get(case.id)
        merged[case.id] = case if known is None else replace(known, models={**known.models, **case.models})
    return list(merged.values())


def record_program(arguments: Sequence[str], model: str) -> tuple[list[Case], str]:
    """Runs a program and records a training step.

    Args:
        arguments: the script and its arguments.
        model: the name that the cases get.

    Returns:
        the cases, and which step they are of.

    Raises:
        op_tools.Error: there is no such script, or it called no operator with tensors.
    """
    script = Path(arguments[0])
    if not script.is_file():
        raise Error(f"{script}: there is no such file")
    recorder, before = StepRecorder(), (sys.argv, sys.path)
    steps: list[Counter[str]] = []

    def after_step(*_: Any) -> None:
        steps.append(Counter(recorder.counts))
        recorder.restart()

    handle = register_optimizer_step_post_hook(after_step)
    try:
        sys.argv, sys.path = list(arguments), [str(script.resolve().parent), *sys.path[1:]]
        with recorder:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise Error(f"{script}: ended with the status {end.code}") from None
    finally:
        handle.remove()
        sys.argv, sys.path = before
    # The first step has calls that are made once: the making of weights, of data, of the optimizer's state.
    which = "the second training step" if len(steps) > 1 else "the whole program up to its first training step"
    if not steps:
        which = "the whole program, which has no step of an optimizer"
    recorder.counts = steps[1] if len(steps) > 1 else steps[0] if steps else recorder.counts
    cases = recorder.take(model)
    if not cases:
        raise Error(f"{script}: called no torch function with tensors")
    return cases, which
