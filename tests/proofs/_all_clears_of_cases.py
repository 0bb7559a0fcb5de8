"""Trials of no_false_all_clear for op-tools conformance: a case of its list, a fault of the device."""

from __future__ import annotations

import collections
import functools
import random
from typing import Any

import torch
from _all_clears import ARITHMETIC_SPOILS, BEYOND_ROUNDING, Trial
from _random_programs import MATTERS, rounding
from torch.utils._pytree import tree_map

import op_tools.sim_device as sim
from op_tools import _C
from op_tools._base.verdict import Verdict
from op_tools._conformance.case import Case, leaves_of, make_call
from op_tools._conformance.lists import load_cases
from op_tools._conformance.rows import AGREES, NOT_JUDGED
from op_tools._conformance.verdict import Judge

_FLOATS = ("float32", "float16", "bfloat16")
_BY_CHANCE = {name for trait, _, names in _C.op_families() if trait == "draws_random_numbers" for name in names.split()}
# Copies to and from the device, memory without values: a fault there hits all cases, or nothing.
# A wrong `any` lets torch read behind the end of an empty list of errors (linalg.inv): the process ends.
_LEFT_OUT = (
    "_copy_from",
    "_local_scalar_dense",
    "empty",
    "as_strided",
    "resize_",
    "set_",
    "_reshape_alias",
    "view",
    "any",
)


@functools.cache
def _cases() -> list[list[Case]]:
    """Of floats, by function."""
    groups = collections.defaultdict(list)
    for case in load_cases(sources=("op_db",)):
        if case.variant != "error" and case.dtype in _FLOATS and _C.base_name(case.op) not in _BY_CHANCE:
            groups[case.op].append(case)
    return [groups[name] for name in sorted(groups)]


def _results(case: Case, device: str, *, in_float64: bool = False) -> list[torch.Tensor]:
    """The results of the call, on the CPU in float64."""
    call = make_call(case, torch.device(device))
    if in_float64:

        def wide(value: Any) -> Any:
            is_wide = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.detach().double().requires_grad_(value.requires_grad) if is_wide else value

        call.args, call.kwargs = tree_map(wide, (call.args, call.kwargs))
    return [one.detach().cpu().double() for one in leaves_of(call.run()) if one.is_floating_point()]


def _off(results: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest difference of a result, as a share of its norm."""
    if [one.shape for one in results] != [one.shape for one in exact]:
        return float("nan")
    worst = 0.0
    for result, other in zip(results, exact, strict=True):
        same = torch.where((result == other) | (result.isnan() & other.isnan()), 0.0, result - other)
        size = float(other.nan_to_num(0, 0, 0).norm())
        share = float(same.norm()) / max(size, 1e-12)
        worst = max(worst, share if share == share else float("inf"))
    return worst


def trial(seed: int, *, clean: bool) -> Trial | None:
    """A trial, which follows from the seed; None: the call has no float64 that its own dtype comes near to."""
    draw = random.Random(f"all clear conformance {seed}")
    case, judge = draw.choice(draw.choice(_cases())), Judge(torch.device("sim:0"))
    with rounding("sim"):
        if clean:
            rows = judge.rows(case)
            wrong = [row for row in rows if row.status not in (AGREES, NOT_JUDGED)]
            said = "; ".join(f"{row.status} {row.phase}: {row.reason}" for row in wrong)
            verdict = Verdict.DIFFERS if wrong else Verdict.AGREES
            return Trial(f"{seed} {case.id}", "", False, 0.0, verdict, False, said)
        try:
            exact = _results(case, "cpu", in_float64=True)
            with sim.fault("latency", microseconds=0) as seen:
                rounded = _off(_results(case, "sim"), exact)
        except Exception:  # whatever float64 does not have
            return None
        ops = sorted({op for op, _ in seen.log if not op.removeprefix("aten::").startswith(_LEFT_OUT)})
        if not ops or not rounded <= MATTERS * BEYOND_ROUNDING:
            return None
        op, (kind, arguments) = draw.choice(ops), draw.choice(ARITHMETIC_SPOILS)
        text = f"{seed} {case.id} {case.dtype}: {kind} {arguments or ''} in every call of {op}"
        with sim.fault(kind, ops=op, **arguments):
            try:
                off = _off(_results(case, "sim"), exact)
            except (RuntimeError, IndexError):
                # An operator refuses the result of the wrong operator: the program ends, nothing is wrong in silence.
                return None
        with sim.fault(kind, ops=op, **arguments):
            rows = judge.rows(case)
    wrong = [row for row in rows if row.status not in (AGREES, NOT_JUDGED)]
    judged = any(row.status == AGREES for row in rows if row.phase != "backward")  # `off` is of the forward's results
    verdict = Verdict.DIFFERS if wrong else Verdict.AGREES if judged else Verdict.NOT_JUDGED
    named = any(_C.base_name(op) == _C.base_name(row.blamed) for row in wrong)
    matters = off > max(MATTERS, BEYOND_ROUNDING * rounded)
    said = "; ".join(f"{row.status} {row.phase}: {row.reason} {row.error} of {row.limit}" for row in wrong or rows)
    return Trial(text, kind, matters, off, verdict, named, said)
