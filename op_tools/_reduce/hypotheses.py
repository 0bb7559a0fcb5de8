"""How a wrong graph seems to have been computed: each hypothesis is tried by running the graph's operators so.

The answer is often an option of the compiler ("inference precision"), not a fault in a kernel.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._torch.graph_operators import GraphOperators

_NEARER = 0.25  # a hypothesis explains a result whose error against it is at most this share of its error


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
_CASTS = {
    Hypothesis.BFLOAT16: (torch.float32, torch.bfloat16),
    Hypothesis.FLOAT16: (torch.float32, torch.float16),
    Hypothesis.FLOAT32: (torch.float64, torch.float32),
    Hypothesis.INT32: (torch.int64, torch.int32),
    Hypothesis.BFLOAT16_PRODUCTS: (torch.float32, torch.bfloat16),
    Hypothesis.FLOAT16_PRODUCTS: (torch.float32, torch.float16),
}


class _As(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators run as a hypothesis says."""

    def __init__(self, hypothesis: Hypothesis) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hypothesis = hypothesis

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, hypothesis = dict(kwargs or {}), self._hypothesis
        name = func._schema.name.rpartition("::")[2]
        if hypothesis is Hypothesis.NO_CORRECTION:
            if name in _WITH_CORRECTION and "correction" in {argument.name for argument in func._schema.arguments}:
                kwargs["correction"] = 0
            return func(*args, **kwargs)
        if hypothesis is Hypothesis.TANH_GELU:
            return func(*args, **({"approximate": "tanh"} if name == "gelu" else kwargs))
        wide, narrow = _CASTS[hypothesis]

        def rounded(value: Any) -> Any:
            return value.to(narrow).to(wide) if isinstance(value, torch.Tensor) and value.dtype == wide else value

        if hypothesis in (Hypothesis.BFLOAT16_PRODUCTS, Hypothesis.FLOAT16_PRODUCTS):
            return func(*(tree_map(rounded, args) if name in _PRODUCTS else args), **kwargs)
        result = func(*args, **kwargs)
        is_view_or_in_place = any(returned.alias_info is not None for returned in func._schema.returns)
        return result if is_view_or_in_place else tree_map(rounded, result)


def explaining(operators: GraphOperators, args: Sequence[Any], observed: Sequence[torch.Tensor]) -> list[Hypothesis]:
    """The hypotheses under which the wrong results of a graph are right, or nearly so: the nearest first.

    Args:
        operators: the graph.
        args: its inputs, before the call; not changed.
        observed: the tensors that the compiled graph returned.
    """
    right = _results(operators, args, None)
    errors = _distances(observed, right)
    wrong = [number for number, error in enumerate(errors) if error > 0]
    if not wrong:
        return []
    shares: dict[Hypothesis, float] = {}
    for hypothesis in Hypothesis:
        supposed = _results(operators, args, hypothesis)
        if len(supposed) != len(observed) or not any(_distances(supposed, right)):
            continue
        now = _distances(observed, supposed)
        share = max(now[number] / errors[number] for number in wrong)
        if share <= _NEARER:
            shares[hypothesis] = share
    return sorted(shares, key=shares.__getitem__)


def _results(operators: GraphOperators, args: Sequence[Any], hypothesis: Hypothesis | None) -> list[torch.Tensor]:
    copies = [arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    if hypothesis in (Hypothesis.BFLOAT16, Hypothesis.FLOAT16, Hypothesis.FLOAT32, Hypothesis.INT32):
        wide, narrow = _CASTS[hypothesis]
        copies = [
            copy.to(narrow).to(wide) if isinstance(copy, torch.Tensor) and copy.dtype == wide else copy
            for copy in copies
        ]
    run: Callable[..., Any] = operators
    with torch.no_grad():
        if hypothesis is None:
            results = run(*copies)
        else:
            with _As(hypothesis):
                results = run(*copies)
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
