"""The cases that torch's sample database (op_db) makes.

Each sample runs on the CPU; the torch function that it calls, with its arguments, is a case, and the case is run: a case that the CPU
refuses is left out. So a list of cases needs nothing of torch.testing.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .._base.core import Error
from .._torch.op_samples import clone_first, operators, out_target, result_kinds, samples_of, seed
from . import values
from .case import Case, leaves_of, make_call
from .mutations import MUTATIONS, mutated
from .recorded import case_of, without_gradient

# How many samples of an operator become cases, by dtype; evenly spread over all of its samples.
SAMPLES = {
    torch.float32: 14,
    torch.bfloat16: 4,
    torch.float16: 4,
    torch.float64: 4,
    torch.complex64: 3,
    torch.complex128: 1,
    torch.int64: 4,
    torch.int32: 2,
    torch.uint8: 1,
    torch.int8: 1,
    torch.int16: 1,
    torch.bool: 2,
    torch.float8_e4m3fn: 2,
    torch.float8_e5m2: 2,
}
_MUTATED = {torch.float32: 3, torch.bfloat16: 1, torch.int64: 1}
_VARIED = {torch.float32: 3}
"""Samples as methods, in place and with out=; a sample of the other dtypes."""
_MOST = 200
"""Of an operator and dtype, that are looked at."""
_LONGEST = 4000
"""Characters of a case: the list is part of the package."""
_INDICES = re.compile(
    "index|scatter|gather|take|put|embedding|select|unpool|search|bucket|one_hot|repeat|loss|split|unravel"
)
"""Functions whose integers mean places, or which write to a place twice where they are drawn at random."""

_NO_KERNEL = "not implemented for"  # of torch's message: an operator has no kernel for a dtype


class _Outermost(TorchFunctionMode):
    """Notes the torch functions that are called, not those that they call: with recipes, and with the values that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Case, Case]] = []
        self.refused: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            self.calls.append(both_forms(func, args, kwargs or {}))
        except RuntimeError as error:  # ours, and torch's of tensors of unusual kinds
            self.refused.append(str(error).partition("\n")[0])
        return func(*args, **(kwargs or {}))


def both_forms(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Case, Case]:
    """A call with recipes for its values, and with its own values.

    Raises:
        op_tools.Error: it can be no case.
    """
    whole = case_of("op_db", function, args, kwargs, values.packed)
    mixed = len({one.torch_dtype.is_floating_point or one.torch_dtype.is_complex for one in whole.tensors}) > 1
    exact = mixed or _INDICES.search(whole.op) is not None
    drawn = case_of("op_db", function, args, kwargs, functools.partial(recipe_of, exact))
    short = [case for case in (drawn, whole) if len(case.to_json()) <= _LONGEST]
    if not short:
        raise Error("values that would take too much room")
    return short[0], short[-1]


def recipe_of(exact: bool, tensor: torch.Tensor) -> str | tuple[Any, ...]:
    """Uniform numbers in the range of a tensor; its own values where they may have a meaning.

    Args:
        exact: integers keep their values: they may be indices or a mask.
        tensor: of a sample.
    """
    detached = tensor.detach()
    whole = not (detached.is_floating_point() or detached.is_complex())
    if detached.numel() <= 4 or (whole and exact):
        return values.packed(detached)
    if whole:
        return f"integers {int(detached.min())} {int(detached.max())}"
    wide = detached.to(torch.complex128 if detached.is_complex() else torch.float64)
    parts = torch.view_as_real(wide) if wide.is_complex() else wide
    if not parts.isfinite().all() or _has_a_form(wide):
        return values.packed(detached)
    low, high = parts.min().item(), parts.max().item()
    inner = _inwards(low, 1), _inwards(high, -1)
    return f"uniform {low!r} {high!r}" if inner[0] > inner[1] else f"uniform {inner[0]!r} {inner[1]!r}"


def _inwards(number: float, direction: int) -> float:
    """Of three digits, and not beyond the number."""
    short = float(f"{number:.2e}")
    if (short - number) * direction < 0:
        short = float(f"{number + direction * 10 ** (math.floor(math.log10(abs(number))) - 2):.2e}")
    return short


def _has_a_form(tensor: torch.Tensor) -> bool:
    """Whether it is sorted, symmetric, triangular, of integers, or of probabilities: random values would not be."""
    real = tensor.real
    if bool((real == real.round()).all()):
        return True
    if tensor.dim() == 0:
        return False
    steps = real.diff(dim=-1)
    if tensor.shape[-1] > 3 and (bool((steps >= 0).all()) or bool((steps <= 0).all())):
        return True
    sums = real.sum(-1)
    if tensor.shape[-1] > 1 and torch.allclose(sums, torch.ones_like(sums), atol=1e-2):
        return True
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    triangular = torch.equal(tensor.tril(), tensor) or torch.equal(tensor.triu(), tensor)
    return triangular or torch.allclose(tensor.mH, tensor, atol=1e-2)


@dataclass(frozen=True)
class Trial:
    """The outcome of a case on the CPU."""

    overload: str
    """Of the dispatcher's operator that has the name of the function; "" where none was called."""
    finite: bool
    differentiable: bool


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that the dispatcher calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overloads: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.setdefault(func._schema.name.partition("::")[2], func._schema.overload_name)
        return func(*args, **(kwargs or {}))


def try_case(case: Case) -> Trial | None:
    """Runs a case on the CPU, backward too where it has a gradient; None where the CPU refuses it."""
    operators = _Operators()
    try:
        prepared = make_call(case, torch.device("cpu"))
        with operators:
            outputs = prepared.run()
        gradients = prepared.backward(outputs) if case.gradient else []
    except Exception:  # of any kind: it is no case
        return None
    floats = [one for one in leaves_of(outputs) if one.is_floating_point() or one.is_complex()]
    finite = all(_has_finite_values(one.detach()) for one in floats if one.layout is torch.strided)
    name = re.split(r"[.:]+", case.op)[-1]
    return Trial(operators.overloads.get(name, ""), finite, any(one is not None for one in gradients))


def _has_finite_values(tensor: torch.Tensor) -> bool:
    """Of the 8-bit types, too, for which torch has no function."""
    return bool((tensor.float() if tensor.dtype.itemsize == 1 else tensor).isfinite().all())


def first_that_runs(*forms: Case) -> Case | None:
    """The first form of a case that the CPU runs, with its gradient if it can. All but the last form may make no NaN and no
    infinity."""
    for form in forms:
        for case in (form, without_gradient(form)):
            trial = try_case(case)
            if trial is None or (case.gradient and not trial.differentiable):
                continue
            if not trial.finite and form is not forms[-1]:
                break
            return case.with_changes(overload=trial.overload)
    return None


class Collector:
    """The cases of op_db, and the samples that could not be cases."""

    def __init__(self, *, changed: bool = True) -> None:
        self.left_out: Counter[str] = Counter()
        self.changed = changed
        """Whether samples are changed, too: other layouts, sizes, aliases, adversarial values."""

    def cases(self, only: str = "") -> Iterator[Case]:
        """All cases of the entries whose name matches; each once."""
        seen: set[str] = set()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, op in operators().items():
                if not re.search(only, name):
                    continue
                for case in self._of_operator(op):
                    if case.id not in seen:
                        seen.add(case.id)
                        yield case

    def _of_operator(self, op: Any) -> Iterator[Case]:
        supported = op.supported_dtypes("cpu")
        for dtype, count in SAMPLES.items():
            if dtype in supported:
                yield from self._of_dtype(op, dtype, count)
        yield from self._errors(op)

    def _of_dtype(self, op: Any, dtype: torch.dtype, count: int) -> Iterator[Case]:
        gradients = bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))
        samples = self._samples(op, dtype, count, gradients)
        mutate, vary = _MUTATED.get(dtype, 0), _VARIED.get(dtype, 1)
        for place, sample in enumerate(samples):
            inputs = (sample.input, *sample.args)
            for case in self._calls(op.op, inputs, sample.kwargs, "function"):
                yield case
                if place < mutate and self.changed:
                    yield from self._mutations(case, place == 0)
            if place >= vary:
                continue
            if op.method_variant is not None:
                yield from self._calls(op.method_variant, inputs, sample.kwargs, "method")
            if op.inplace_variant is not None:
                yield from self._calls(clone_first(op.inplace_variant), inputs, sample.kwargs, "inplace")
        if op.supports_out:
            for place, sample in enumerate(self._samples(op, dtype, vary, False)):
                yield from self._out(op, sample, ("out", "strided_out", "empty_out")[: 3 if place == 0 else 1])

    def _samples(self, op: Any, dtype: torch.dtype, count: int, gradients: bool) -> list[Any]:
        try:
            samples = samples_of(op, dtype, _MOST, gradients)
        except Exception:  # of any kind: it needs a GPU, or a package
            self.left_out["samples that cannot be made on the CPU"] += 1
            return []
        step = max(1, len(samples) // count)
        return samples[::step][:count]

    def _calls(self, function: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any], variant: str) -> list[Case]:
        """The torch calls that a sample makes, as cases that the CPU runs."""
        mode = _Outermost()
        seed(1)
        try:
            with mode:
                function(*inputs, **kwargs)
        except Exception:  # of any kind
            self.left_out["samples that the CPU refuses"] += 1
            return []
        self.left_out.update(mode.refused)
        cases = []
        for forms in mode.calls:
            if variant in ("inplace", "out") and forms[0].variant != variant:
                continue  # the copy in front of it
            case = first_that_runs(*dict.fromkeys(forms))
            if case is None:
                self.left_out["calls that the CPU refuses as a case"] += 1
            else:
                cases.append(case)
        return cases

    def _mutations(self, case: Case, first: bool) -> Iterator[Case]:
        """`first`: with adversarial values, too."""
        for name in MUTATIONS:
            adversarial = name in values.ADVERSARIAL
            changed = mutated(case, name) if first or not adversarial else None
            if changed is None:
                continue
            if name in ("denormal", "nan", "inf", "boundary"):
                changed = without_gradient(changed)
            runnable = first_that_runs(changed)
            if runnable is not None:
                yield runnable

    def _out(self, op: Any, sample: Any, variants: tuple[str, ...]) -> Iterator[Case]:
        seed(1)
        try:
            kinds = result_kinds(op.op(sample.input, *sample.args, **sample.kwargs))
        except Exception:  # of any kind: the sample is counted where it is a case of its own
            return
        if kinds is None:
            return
        single, parts = kinds
        for variant in variants:
            targets = [out_target(variant, *part) for part in parts]
            kwargs = {**sample.kwargs, "out": targets[0] if single else tuple(targets)}
            yield from self._calls(op.op, (sample.input, *sample.args), kwargs, "out")

    def _errors(self, op: Any) -> Iterator[Case]:
        """Calls that have to raise."""
        if op.error_inputs_func is None:
            return
        seed()
        try:
            samples = [error.sample_input for error in op.error_inputs("cpu")]
        except Exception:  # of any kind
            self.left_out["error inputs that cannot be made on the CPU"] += 1
            return
        for sample in samples:
            case = self._raising(op, (sample.input, *sample.args), sample.kwargs)
            if case is not None:
                yield case

    def _raising(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case | None:
        try:
            # The function itself: the parser of its arguments raises before a mode sees the call.
            case = without_gradient(case_of("op_db", op.op, args, kwargs, values.packed)).with_changes(variant="error")
        except RuntimeError as error:  # ours, and torch's of tensors of unusual kinds
            self.left_out[str(error).partition("\n")[0]] += 1
            return None
        try:
            make_call(case, torch.device("cpu")).run()
        except NotImplementedError:
            return None
        except Exception as error:
            # Another device may have a kernel that the CPU lacks.
            return None if _NO_KERNEL in str(error) else case
        self.left_out["error inputs that raise nothing as a case"] += 1
        return None
