"""Is a case right on a device? OpAutoCompare judges its calls; questions that a single call cannot answer are asked here: does it repeat,
draw from the device's generator, free its memory, and raise where it has to?"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .._base.core import Error, base_name, judge_tensors
from .._base.error_text import with_type
from .._base.verdict import Verdict
from .._tools.autocompare import CompareRow, OpAutoCompare
from .._torch.operator_support import refused
from .case import Case, PreparedCall, leaves_of, make_call
from .repeat import (
    Generators,
    Outputs,
    deterministic,
    find_differences,
    first_and_leak,
    outputs_of,
    wait_for,
)
from .rows import AGREES, DIFFERS, ERROR, NOT_JUDGED, UNSUPPORTED, Row, row_of

CPU = torch.device("cpu")
# Functions around the operator of a case: they say nothing of it where it has no verdict itself.
_AROUND = ("clone", "detach", "ones_like", "add_")
_MEMORY = "/dev/shm"  # noqa: S108 (the folders in it have random names)
_TIMED_RUNS, _TIMED_SECONDS = 20, 0.2

Method = Literal["relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute"]


@dataclass
class Attempt:
    """A case that was run."""

    results: Any = None
    gradients: Sequence[torch.Tensor | None] = ()
    error: Exception | None = None
    in_backward: bool = False
    """The error is of the backward pass."""
    rows: tuple[CompareRow, ...] = ()
    """Of OpAutoCompare: the dispatcher's operators, then the functions."""

    def outputs(self) -> Outputs:
        return outputs_of(leaves_of(self.results), self.gradients)


@dataclass(frozen=True)
class _Again:
    """A second call."""

    moved: tuple[bool, bool]
    """Of the random generators: the CPU's; the device's."""
    outputs: Outputs
    error: Exception | None


def run_call(
    call: PreparedCall, device: torch.device, between: Callable[[], None] = lambda: None, *, wait: bool = True
) -> Attempt:
    """Runs a call, and its backward pass where it has one; its exception is in the result.

    Args:
        call: made for the device.
        device: is waited for.
        between: is called before the backward pass.
        wait: False: leaves waiting to the caller, who reads the results as programs do.
    """
    attempt = Attempt()
    try:
        attempt.results = call.run()
        between()
        if call.case.gradient:
            attempt.in_backward = True
            attempt.gradients = call.backward(attempt.results)
        if wait:
            wait_for(device)
    except Exception as error:  # whatever a kernel raises
        attempt.error = error
    return attempt


@functools.cache
def _scratch_folder() -> str | None:
    """For the files of OpAutoCompare, which are not read. In memory, if there is such a place: on a disk that is busy with other
    files each case waits for some milliseconds."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def _compared(call: PreparedCall, device: torch.device, method: Method | None) -> Attempt:
    """Runs it under OpAutoCompare at both levels: the device's kernels one by one; the function as a whole, with its
    gradients."""
    levels: tuple[Literal["torch", "aten"], ...] = ("torch", "aten")
    with tempfile.TemporaryDirectory(prefix="op_conformance_", dir=_scratch_folder()) as folder:
        tools = [OpAutoCompare(output_dir=folder, level=level, max_saved=0, method=method) for level in levels]

        def end_forward() -> None:
            for tool in tools:
                tool.step()

        with tools[0], tools[1]:
            attempt = run_call(call, device, end_forward)
        attempt.rows = tuple(row for tool in reversed(tools) for row in tool.result().rows)
    return attempt


def _is_extreme(case: Case) -> bool:
    """Are there values next to the largest that a dtype holds?"""
    return any(one.values == "adversarial:boundary" for one in case.tensors)


def _is_overflow(row: CompareRow) -> bool:
    return row.deciding == "nonfinite"


@dataclass(frozen=True)
class Judge:
    """Judges cases on a device."""

    device: torch.device
    method: Method | None = None
    """None: OpAutoCompare's own."""
    timed: bool = False
    phase: str = ""
    """Rows of this phase only; "": of all."""

    def rows(self, case: Case) -> list[Row]:
        """A row for each phase of a case."""
        began = time.perf_counter()
        try:
            call = self._prepared(case)
            rows = [call] if isinstance(call, Row) else self.judge(case, call)
        except Error as error:
            rows = [row_of(case, status=ERROR, reason=str(error))]
        except Exception as error:  # of the suite itself: a case less, and the worker goes on
            rows = [row_of(case, status=ERROR, reason=f"could not be judged: {with_type(error)}")]
        wanted = [row for row in rows if self.phase in ("", row.phase)] or rows[:1]
        if self.timed and rows[0].status == AGREES and case.variant != "error":
            rows[0].median = self.median_seconds(case)
        wanted[0].seconds = time.perf_counter() - began
        return wanted

    def _prepared(self, case: Case) -> PreparedCall | Row:
        """The call on the device; a row where only the device cannot have its inputs."""
        try:
            return make_call(case, self.device)
        except Exception as error:
            make_call(case, CPU)  # raises where it is not the device's matter
            status = UNSUPPORTED if refused(error) else DIFFERS
            return row_of(case, status=status, reason=f"its inputs cannot be made on the device: {with_type(error)}")

    def judge(self, case: Case, call: PreparedCall) -> list[Row]:
        """The rows of a call that is prepared."""
        if case.variant == "error":
            return [self._has_to_raise(case, call)]
        attempt = _compared(call, self.device, self.method)
        rows = self._phases(case, attempt)
        undefined = any(row.not_judged == "uninitialized" for row in attempt.rows)
        wrong = attempt.error is not None or any(row.status == DIFFERS for row in rows)
        if rows[0].status == AGREES and not wrong and not undefined:
            self._again(case, attempt.outputs(), rows)
        return rows

    def _has_to_raise(self, case: Case, call: PreparedCall) -> Row:
        on_cpu = self._on_cpu(case)
        row = row_of(case, method="error", reference="cpu")
        if on_cpu.error is None:
            row.status, row.reason = NOT_JUDGED, "the CPU raises no error"
            return row
        row.expected = with_type(on_cpu.error)
        error = run_call(call, self.device).error
        row.got = "no error" if error is None else with_type(error)
        if error is None:
            row.status, row.reason = DIFFERS, "no error, where the CPU raises an error"
        elif refused(error) and not refused(on_cpu.error):
            row.status, row.reason = UNSUPPORTED, with_type(error)
        return row

    def _phases(self, case: Case, attempt: Attempt) -> list[Row]:
        """A row for the call itself, and a row for its backward pass where it came so far."""
        forward = [row for row in attempt.rows if row.step == 0 and row.phase != "backward"]
        backward = [row for row in attempt.rows if row.step != 0 or row.phase == "backward"]
        raised_first = attempt.error if not attempt.in_backward else None
        rows = [self._phase(case, "", forward, raised_first)]
        if case.gradient and attempt.in_backward:
            rows.append(self._phase(case, "backward", backward, attempt.error))
            if rows[0].status == DIFFERS and rows[1].status == DIFFERS and not _kernels(backward):
                rows[1].blamed = rows[0].blamed
                rows[1].reason = f"after the wrong result of the call: {rows[1].reason}"
        return rows

    def _phase(self, case: Case, phase: str, compared: list[CompareRow], error: Exception | None) -> Row:
        row = row_of(case, phase)
        row.reference = "float64" if self.device.type == "cpu" else "cpu, float64"
        failed = [one for one in compared if one.verdict == Verdict.DIFFERS]
        if error is not None:
            raised = [one for one in failed if one.kind == "raised"]
            on_cpu = None if raised else self._on_cpu(case).error
            row.status = NOT_JUDGED if on_cpu else UNSUPPORTED if refused(error) else DIFFERS
            row.reason = f"the CPU raises as well: {with_type(on_cpu)}" if on_cpu else with_type(error)
            row.blamed = raised[0].op if raised else case.op
            return row
        telling = [one for one in compared if base_name(one.op) not in _AROUND] or compared
        passed = [one for one in telling if one.verdict == Verdict.AGREES]
        if failed and self.device.type == "cpu" and _is_extreme(case) and all(map(_is_overflow, failed)):
            row.status = NOT_JUDGED
            row.reason = (
                f"{failed[0].op} overflows in its dtype, where float64 does not; the CPU alone cannot say if it may"
            )
        elif failed:
            _describe(row, failed[0])
            row.status, row.blamed = DIFFERS, failed[0].op
            row.reason = f"{failed[0].op}: {failed[0].kind} of {failed[0].what}. {failed[0].reason}".rstrip(". ")
        elif (undetermined := _undetermined(telling)) is not None:
            row.status, row.reason = NOT_JUDGED, undetermined.reason
        elif any(one.wide_limit for one in passed):
            row.status = NOT_JUDGED
            row.reason = "a limit is wider than the values: zeros would have agreed, too"
        elif passed:
            _describe(row, max(passed, key=_share))
        else:
            row.status = NOT_JUDGED
            row.reason = next((one.reason for one in telling if one.reason), "nothing was compared")
        return row

    def _on_cpu(self, case: Case) -> Attempt:
        return run_call(make_call(case, CPU), CPU)

    def _again(self, case: Case, first: Outputs, rows: list[Row]) -> None:
        """Runs it again as a program would, unwatched, and changes its rows by the result."""
        again, leaked = first_and_leak(lambda: self._unwatched(case), self.device)
        if again.error is not None:
            _fail(rows[0], f"raised in the second call: {with_type(again.error)}")
        elif different := find_differences(first, again.outputs):
            phase, name = different[0]
            row = rows[-1] if phase else rows[0]
            if _is_rounding(first, again.outputs) and self._is_documented(case):
                row.reason = f"not deterministic, as torch documents it: {name}"
            else:
                _fail(row, f"not deterministic: {name} has other bits in the second call")
        elif self.device.type != "cpu" and again.moved == (True, False):
            _fail(rows[0], "draws from the CPU's random generator, and not from the device's")
        elif leaked:
            _fail(rows[0], f"each call leaves {leaked} bytes of device memory behind")

    def _unwatched(self, case: Case) -> _Again:
        call = make_call(case, self.device)
        call.seed_generators()
        generators = Generators(self.device)
        attempt = run_call(call, self.device, wait=False)
        return _Again(generators.moved(), attempt.outputs(), attempt.error)

    def _is_documented(self, case: Case) -> bool:
        """torch has deterministic algorithms for it that do repeat, or says that there are none."""
        with deterministic():
            first, other = (run_call(make_call(case, self.device), self.device) for _ in range(2))
        if first.error is not None:
            return "deterministic" in str(first.error)
        return other.error is None and not find_differences(first.outputs(), other.outputs())

    def median_seconds(self, case: Case) -> float:
        """Of the call alone, without its backward pass."""
        times: list[float] = []
        while len(times) < _TIMED_RUNS and (len(times) < 3 or sum(times) < _TIMED_SECONDS):
            call = make_call(case, self.device)
            wait_for(self.device)
            began = time.perf_counter()
            call.run()
            wait_for(self.device)
            times.append(time.perf_counter() - began)
        return statistics.median(times)


def _is_rounding(outputs: Outputs, other: Outputs) -> bool:
    """Two results differ as those of another order of summation do."""
    pairs = [(a, b) for (_, _, a), (_, _, b) in zip(outputs.named(), other.named(), strict=False)]
    if any(a is None or b is None for a, b in pairs):
        return False
    judge = functools.partial(
        judge_tensors, golden=None, perturbed=None, method="relative", nan_equal=True, reduced=1000
    )
    return all(judge(a, b)["verdict"] != Verdict.DIFFERS for a, b in pairs if a is not None)


def _fail(row: Row, reason: str) -> None:
    row.status, row.method, row.reason = DIFFERS, "bits", reason
    row.error = row.limit = None
    row.blamed = row.op


def _kernels(rows: Sequence[CompareRow]) -> list[CompareRow]:
    return [row for row in rows if row.level == "aten" and row.verdict == Verdict.DIFFERS]


def _undetermined(rows: Sequence[CompareRow]) -> CompareRow | None:
    """A result of the outermost call that the operator leaves open, where none of its elements was judged: what calls
    inside it give, or empty tensors beside it, says nothing of it."""
    outermost = min((row.id for row in rows), default=0)
    own = [row for row in rows if row.id == outermost]
    if any(row.verdict == Verdict.AGREES and row.numel for row in own):
        return None
    return next((row for row in own if row.not_judged == "undetermined"), None)


def _share(row: CompareRow) -> float:
    return row.number / row.limit if row.limit else 0.0


def _describe(row: Row, compared: CompareRow) -> None:
    """Takes over how a comparison was decided."""
    row.method = compared.method
    if compared.method == "relative_to_cpu":
        row.reference = "cpu"
    elif compared.method == "statistical":
        row.reference = "distribution"
    row.error, row.limit = (compared.number, compared.limit) if compared.limit or compared.number else (None, None)
    if compared.worst_index is not None:
        row.index = str(compared.worst_index)
        row.got, row.expected = compared.worst_result or "", compared.worst_reference or ""
    if compared.verdict == Verdict.AGREES and compared.reason:
        row.reason = compared.reason
