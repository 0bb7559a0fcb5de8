"""How a wrong graph seems to have been computed: each hypothesis is tried by running the graph's operators so.

The answer is often an option of the compiler ("inference precision"), not a fault in a kernel.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._base.captured_calls import load_call
from .saved_graphs import graph_folder, program_state, read_graph

_NEARER = 0.25  # a hypothesis explains a result whose error against it is at most this share of its error
_ALIKE = 2.0  # and roundings explain an error that is theirs up to this factor
_RIGHT = 0.01  # a result whose relative error is at most this share of the largest is right: compilers round otherwise
_MOST_TRIED = 24  # operators that are tried one by one


class Hypothesis(enum.Enum):
    """A way to compute a graph that is not the graph's own."""

    BFLOAT16 = "in bfloat16"
    FLOAT16 = "in float16"
    BFLOAT16_PRODUCTS = "with the factors of products rounded to bfloat16"
    FLOAT16_PRODUCTS = "with the factors of products rounded to float16"
    FLOAT32 = "with float64 narrowed to float32"
    INT32 = "with int64 narrowed to 32 bits"
    NO_CORRECTION = "with std and var without correction"
    TANH_GELU = "with gelu in its tanh form"


_PRODUCTS = {
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "matmul", "convolution",
    "convolution_overrideable", "_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention",
}  # fmt: skip
_WITH_CORRECTION = {"std", "var", "std_mean", "var_mean"}
_WIDE = (torch.float32, torch.float64)
_CASTS = {
    Hypothesis.BFLOAT16: (_WIDE, torch.bfloat16),
    Hypothesis.FLOAT16: (_WIDE, torch.float16),
    Hypothesis.BFLOAT16_PRODUCTS: (_WIDE, torch.bfloat16),
    Hypothesis.FLOAT16_PRODUCTS: (_WIDE, torch.float16),
    Hypothesis.FLOAT32: ((torch.float64,), torch.float32),
    Hypothesis.INT32: ((torch.int64,), torch.int32),
}
_OF_PRODUCTS = (Hypothesis.BFLOAT16_PRODUCTS, Hypothesis.FLOAT16_PRODUCTS)
_OF_SOME = (Hypothesis.NO_CORRECTION, Hypothesis.TANH_GELU)
"""May hold for some of a graph's operators: a compiler has several kernels for them."""


def _rounded_as(value: Any, hypothesis: Hypothesis) -> Any:
    wide, narrow = _CASTS[hypothesis]
    return value.to(narrow).to(value.dtype) if isinstance(value, torch.Tensor) and value.dtype in wide else value


def _narrowed(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


class _As(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators run as a hypothesis says.

    Args:
        hypothesis: of :data:`_OF_SOME` where `only` is given.
        only: the numbers of the operators that do, in their order; None: all.
    """

    def __init__(self, hypothesis: Hypothesis, only: frozenset[int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hypothesis, self._only = hypothesis, only
        self.concerned = 0
        """Operators that the hypothesis is about."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, hypothesis = dict(kwargs or {}), self._hypothesis
        name = func._schema.name.rpartition("::")[2]
        if hypothesis in _OF_SOME:
            changed = _changed_keyword(func, name, hypothesis)
            self.concerned += bool(changed)
            is_meant = self._only is None or self.concerned - 1 in self._only
            return func(*args, **(kwargs | changed if is_meant else kwargs))
        rounded = functools.partial(_rounded_as, hypothesis=hypothesis)
        if hypothesis in _OF_PRODUCTS:
            return func(*(tree_map(rounded, args) if name in _PRODUCTS else args), **kwargs)
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return func(*args, **kwargs)  # a view, or in place
        if hypothesis is Hypothesis.FLOAT32:  # sums are narrow, too
            return tree_map(_widened, func(*tree_map(_narrowed, args), **kwargs))
        return tree_map(rounded, func(*args, **kwargs))


def _changed_keyword(func: Any, name: str, hypothesis: Hypothesis) -> dict[str, Any]:
    """Of an operator that a hypothesis is about; empty: it is about others."""
    if hypothesis is Hypothesis.TANH_GELU:
        return {"approximate": "tanh"} if name == "gelu" else {}
    takes_it = name in _WITH_CORRECTION and "correction" in {argument.name for argument in func._schema.arguments}
    return {"correction": 0} if takes_it else {}


def explaining(
    operators: Callable[..., Any], args: Sequence[Any], observed: Sequence[torch.Tensor]
) -> list[Hypothesis]:
    """The hypotheses under which the wrong results of a graph are right, or nearly so: the nearest first.

    Args:
        operators: run the graph.
        args: its inputs, before the call; not changed.
        observed: the tensors that the compiled graph returned.
    """
    right = _results(operators, args, None)
    if len(right) != len(observed):
        return []
    errors = _Errors(observed, right)
    if not errors.wrong:
        return []
    fits: dict[Hypothesis, float] = {}
    for hypothesis in Hypothesis:
        supposed = _results_or_none(operators, args, hypothesis)
        theirs = _distances(supposed, right) if supposed is not None else []
        if supposed is None or not any(theirs):
            continue
        nearness = errors.nearness(supposed)
        if nearness > _NEARER and hypothesis in _OF_SOME:
            nearness = errors.nearness(_of_some(operators, args, hypothesis, errors))
        if nearness <= _NEARER:
            fits[hypothesis] = nearness
        elif hypothesis in _CASTS and hypothesis is not Hypothesis.INT32:
            # Two orders of rounding to the same dtype differ from each other as much as from the exact values.
            sizes = [
                abs(math.log(errors.all[number] / theirs[number])) if theirs[number] else math.inf
                for number in errors.wrong
            ]
            if max(sizes) <= math.log(_ALIKE):
                fits[hypothesis] = 1 + max(sizes)
    return sorted(fits, key=fits.__getitem__)


class _Errors:
    """Of the results that a compiled graph returned.

    Args:
        observed: they.
        right: those of the graph's operators.
    """

    def __init__(self, observed: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> None:
        self._observed = observed
        self._sizes = [size or 1.0 for size in _distances(right, [torch.zeros_like(result) for result in right])]
        self.all = _distances(observed, right)
        relative = self._relative(self.all)
        self._largest = max(relative, default=0.0)
        self.wrong = [number for number, error in enumerate(relative) if error > 0 and error >= _RIGHT * self._largest]
        """The numbers of the wrong results."""

    def nearness(self, supposed: Sequence[torch.Tensor]) -> float:
        """The share of their errors that wrong results have against those of a hypothesis; infinite where a right result would be wrong."""
        now = _distances(self._observed, supposed)
        others = [error for number, error in enumerate(self._relative(now)) if number not in self.wrong]
        if any(error > _RIGHT * self._largest for error in others):
            return math.inf
        return max(now[number] / self.all[number] for number in self.wrong)

    def distance(self, supposed: Sequence[torch.Tensor]) -> float:
        """From the results of a hypothesis, all results together."""
        return sum(self._relative(_distances(self._observed, supposed)))

    def _relative(self, distances: Sequence[float]) -> list[float]:
        return [distance / size for distance, size in zip(distances, self._sizes, strict=True)]


def _of_some(
    operators: Callable[..., Any], args: Sequence[Any], hypothesis: Hypothesis, errors: _Errors
) -> list[torch.Tensor]:
    """The results where the hypothesis holds for those operators with which they come nearer to the observed ones, one by one."""
    mode = _As(hypothesis, frozenset())
    nearest = _results(operators, args, hypothesis, mode)
    chosen: frozenset[int] = frozenset()
    for number in range(min(mode.concerned, _MOST_TRIED)):
        supposed = _results(operators, args, hypothesis, _As(hypothesis, chosen | {number}))
        if errors.distance(supposed) < errors.distance(nearest):
            nearest, chosen = supposed, chosen | {number}
    return nearest


def explaining_call(folder: str) -> list[Hypothesis]:
    """The same of a saved call of a graph.

    Args:
        folder: of the call; the graph is there, or above it.

    Returns:
        none where the graph or the call's results were not saved.

    Raises:
        op_tools.Error: a file is damaged.
    """
    call, place = load_call(folder), graph_folder(Path(folder))
    observed = [leaf for leaf in tree_leaves(call.result) if isinstance(leaf, torch.Tensor)]
    if place is None or not observed:
        return []
    graph = read_graph(place)
    with program_state(graph.state):
        return explaining(graph.operators(), call.args, observed)


def _results_or_none(
    operators: Callable[..., Any], args: Sequence[Any], hypothesis: Hypothesis
) -> list[torch.Tensor] | None:
    """None: the graph's operators do not take these dtypes, so that it was not computed in this way."""
    try:
        return _results(operators, args, hypothesis)
    except Exception:
        return None


def _results(
    operators: Callable[..., Any], args: Sequence[Any], hypothesis: Hypothesis | None, mode: _As | None = None
) -> list[torch.Tensor]:
    """`mode`: runs the hypothesis, where it is not for all operators."""
    copies = [arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    if hypothesis in _CASTS and hypothesis not in _OF_PRODUCTS:
        copies = [_rounded_as(copy, hypothesis) for copy in copies]
    with torch.no_grad():
        if hypothesis is None:
            results = operators(*copies)
        else:
            with mode or _As(hypothesis):
                results = operators(*copies)
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _distances(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[float]:
    """Root mean squares of the differences; infinite where the forms differ."""

    def of(a: torch.Tensor, b: torch.Tensor) -> float:
        if a.shape != b.shape or not a.numel():
            return 0.0 if a.shape == b.shape else float("inf")
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        difference = (a.detach().cpu().to(wide) - b.detach().cpu().to(wide)).abs().nan_to_num(float("inf"))
        return float(difference.square().mean().sqrt())

    return [of(a, b) for a, b in zip(some, others, strict=False)]
