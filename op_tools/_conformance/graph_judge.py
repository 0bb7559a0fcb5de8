"""Is a graph compiler right? The cases of conformance, compiled: each operator between two others, because compilers hand a graph of a single
operator to torch, and patterns.py's functions as they are. Each is called twice, with dynamic sizes the second time with others, because
caches and sizes that were compiled in show then. OpAutoCompare judges the graphs."""

from __future__ import annotations

import enum
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .._base.core import GRAPH_CALLS, Error, base_name
from .._base.error_text import with_type
from .._tools.autocompare import OpAutoCompare
from .._tools.time_measure import OpTimeMeasure
from .._torch.hypotheses import explaining
from .case import Case, PreparedCall, make_call, make_tensors
from .patterns import PATTERNS, SOURCE
from .rows import AGREES, DIFFERS, NOT_JUDGED, UNSUPPORTED, Row, row_of
from .trees import TensorSpec, map_specs
from .verdict import CPU, Attempt, Judge, run_call


class Ran(enum.Enum):
    """Who ran a compiled case."""

    COMPILER = "the compiler's own code"
    MIXED = "the compiler's own code and torch's kernels"
    TORCH = "torch's kernels, one by one"
    INDUCTOR = "inductor, in the compiler's place"
    UNCOMPILED = "torch.compile gave up"


@dataclass(frozen=True)
class GraphPlan:
    """How cases are compiled. Can be pickled."""

    backend: str
    dynamic: tuple[bool, ...] = (False,)
    """Each is a run of the case."""
    training: bool = False


@dataclass(frozen=True)
class GraphJudge(Judge):
    """Judges a compiler by cases."""

    plan: GraphPlan = GraphPlan("inductor")

    def judge(self, case: Case, call: PreparedCall) -> list[Row]:  # noqa: ARG002  (each run makes its own)
        """The rows of a call: static, dynamic, or both."""
        rows = []
        for dynamic in self.plan.dynamic:
            of_run = self._compiled(case, dynamic=dynamic)
            suffix = " dynamic" if dynamic else ""
            rows += [replace(row, phase=row.phase + suffix) for row in of_run]
        return rows

    def _prepared(self, case: Case) -> PreparedCall | Row:
        if case.variant not in ("function", "method") or case.mutation:
            return row_of(case, status=NOT_JUDGED, reason="only plain calls are compiled")
        return prepared(case, self.device, training=self.plan.training)

    def _on_cpu(self, case: Case) -> Attempt:
        """Without the compiler."""
        return run_call(prepared(case, CPU, training=self.plan.training), CPU)

    def _compiled(self, case: Case, *, dynamic: bool) -> list[Row]:
        from torch._dynamo.utils import counters
        from torch._inductor import metrics

        torch._dynamo.reset()
        counters.clear()
        kernels = metrics.generated_kernel_count
        call = prepared(case, self.device, training=self.plan.training)
        eager = self._on_cpu(case)
        if eager.error is not None:
            return [row_of(case, status=NOT_JUDGED, reason=f"the CPU raises as well: {with_type(eager.error)}")]
        compiled = torch.compile(call.function, backend=self.plan.backend, dynamic=dynamic)
        second = self._second_case(case) if dynamic else case
        with tempfile.TemporaryDirectory(prefix="op_graph_test_") as folder:
            tool = OpAutoCompare(output_dir=folder, level="torch", compiled="check", max_saved=0)
            with tool:
                attempt = run_call(replace(call, function=compiled), self.device, tool.step)
                counts = Counts(sum(counters["graph_break"].values()))
                graphs = counters["stats"]["unique_graphs"]
                again = None
                if attempt.error is None:
                    tool.step()
                    call_again = prepared(second, self.device, training=self.plan.training)
                    again = run_call(replace(call_again, function=compiled), self.device, tool.step)
                    counts.recompiles = counters["stats"]["unique_graphs"] - graphs
        graph_rows = [row for row in tool.result().rows if row.op.startswith(GRAPH_CALLS)]
        attempt.rows = tuple(row for row in graph_rows if row.step < _SECOND)
        breaks = [str(reason).partition("\n")[0] for reason in counters["graph_break"]]
        has_other_kernels = metrics.generated_kernel_count > kernels and self.plan.backend != "inductor"
        case_of_run = replace(case, gradient=call.case.gradient)
        rows = self._phases(case_of_run, attempt)
        if again is not None:
            again.rows = tuple(replace(row, step=row.step - _SECOND) for row in graph_rows if row.step >= _SECOND)
            which = "second call" if second is case else "second call, with other sizes"
            _add_second(rows, self._phases(case_of_run, again), which)
        ran = Ran.UNCOMPILED
        if counters["stats"]["unique_graphs"]:
            counts.fallbacks = 0 if has_other_kernels else self._fallbacks(case, compiled)
            ran = Ran.INDUCTOR if has_other_kernels else _who(counts.fallbacks)
        for row in rows:
            row.ran = ran.name.lower()
            row.breaks, row.recompiles, row.fallbacks = counts.breaks, counts.recompiles, counts.fallbacks
            row.blamed = case.op if row.blamed else ""
            row.reason = re.sub(rf"{re.escape(GRAPH_CALLS)}graph_\d+: ", "", row.reason)
            if ran is Ran.UNCOMPILED and attempt.error is None:
                row.status, row.reason = NOT_JUDGED, f"torch.compile made no graph: {next(iter(breaks), 'no reason')}"
            if attempt.error is not None and not attempt.rows:
                row.status, row.reason = UNSUPPORTED, f"does not compile: {with_type(attempt.error)}"
        if rows[0].status == DIFFERS and attempt.error is None:
            without = prepared(case, self.device, training=False)
            observed = [leaf for leaf in tree_leaves(attempt.results) if isinstance(leaf, torch.Tensor)]
            likely = explaining(lambda *args: without.function(*args, **without.kwargs), without.args, observed)
            rows[0].reason += "".join(f"; as if computed {hypothesis.value}" for hypothesis in likely[:1])
        return rows

    def _second_case(self, case: Case) -> Case:
        """The case with twice the sizes, or as it is where its function does not take them."""
        if any(not _can_grow(spec) for spec in case.tensors):
            return case
        args, kwargs = map_specs((case.args, case.kwargs), _grown)
        grown = case.with_changes(args=args, kwargs=kwargs)
        if grown.bytes > _MOST_BYTES:
            return case
        try:
            return case if self._on_cpu(grown).error is not None else grown
        except Error:  # values that do not fit
            return case

    def _fallbacks(self, case: Case, compiled: Callable[..., Any]) -> int:
        """The operators that come to torch's kernels in a call that compiles nothing."""
        counted = []
        with (
            tempfile.TemporaryDirectory(prefix="op_graph_test_") as folder,
            OpTimeMeasure(level="aten", compiled="as-is", output_dir=folder) as count,
        ):
            for _ in range(2):  # the first compiles again: a tool has begun
                call = prepared(case, self.device, training=False)
                before = torch_calls(count)
                run_call(replace(call, function=compiled), self.device)
                counted.append(torch_calls(count) - before)
        return counted[-1]


@dataclass
class Counts:
    """Of a compiled run."""

    breaks: int
    """Places at which torch.compile ended a graph."""
    recompiles: int = 0
    """Graphs that the second call compiled."""
    fallbacks: int = 0
    """Operators that torch's kernels ran, in a call."""


_SECOND = 2  # the step of the second call: the first is in step 0, and its backward pass in step 1
_MOST_BYTES = 1 << 24


def _can_grow(spec: TensorSpec) -> bool:
    is_plain = spec.stride is None and spec.offset == 0 and spec.alias is None
    return is_plain and isinstance(spec.values, str)


def _grown(spec: TensorSpec) -> TensorSpec:
    """Twice the sizes, but for those of 1, which broadcast."""
    return replace(spec, shape=tuple(2 * size if size > 1 else size for size in spec.shape))


def _add_second(rows: list[Row], later: list[Row], which: str) -> None:
    """Rows that agree become those of the second call, where these do not."""
    for place, (row, second) in enumerate(zip(rows, later, strict=False)):
        if row.status == AGREES and second.status in (DIFFERS, UNSUPPORTED):
            rows[place] = replace(second, case=row.case, status=DIFFERS, reason=f"{which}: {second.reason}")


def _who(fallbacks: int) -> Ran:
    return Ran.COMPILER if not fallbacks else Ran.TORCH if fallbacks >= _AROUND else Ran.MIXED


_AROUND = 3  # operators of a case between its neighbours


_COMPUTES_NOTHING = ("detach", "lift_fresh", "alias", "view", "empty", "empty_strided", "as_strided")


def torch_calls(count: OpTimeMeasure) -> int:
    """The operators that torch's kernels have run so far, without those that compute nothing."""
    return sum(row.calls for row in count.result().rows if base_name(row.op) not in _COMPUTES_NOTHING)


def prepared(case: Case, device: torch.device, *, training: bool) -> PreparedCall:
    """A case as a function to compile, on a device.

    Raises:
        op_tools.Error: torch has no such operator, or values do not fit.
    """
    case_of_run = replace(case, gradient=case.gradient and training)
    if case.source == SOURCE:
        inputs = make_tensors(case.id, list(case.tensors), device)
        left = iter(inputs)
        args, kwargs = map_specs((case.args, case.kwargs), lambda _: next(left), device)
        return PreparedCall(case_of_run, PATTERNS[case.op].function, args, kwargs, inputs, 0, device)
    call = make_call(case_of_run, device)
    factor = torch.ones((), device=device)
    return replace(call, function=between(call.function), args=(factor, *call.args))


def between(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose tensors are multiplied by a factor of 1, which no compiler knows, before and after it."""

    def with_neighbours(factor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        scaled_args = [_scaled(arg, factor) for arg in args]
        scaled = {name: _scaled(arg, factor) for name, arg in kwargs.items()}
        return _scaled(function(*scaled_args, **scaled), factor)

    return with_neighbours


def _scaled(value: Any, factor: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.dtype == torch.bool else value * factor.to(value.dtype)
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    return tuple(_scaled(item, factor) for item in value) if type(value) is tuple else value
