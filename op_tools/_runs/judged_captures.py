"""Captured calls of two runs, each judged by itself: is the operator wrong, or was its input different?"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .._base.captured_calls import CapturedCall, load_call, tensors_of
from .._base.core import Error, find_calls
from .._base.declared_rows import CallVerdict
from .._base.results import Result, Shown, finite_json, text_table, worded
from .._base.verdict import Verdict, status_of, verdict_of
from .._tools.replay import main as replay
from .capture_commands import list_of_calls
from .comparison import RankComparison, plain_name

_Folder = str | os.PathLike[str]
# The verdicts of run_op_from_data on calls that it ran again.
WRONG = "differs"
NOT_JUDGED = frozenset({"not judged", "could not run"})
_MAY_BE_WRONG = (
    CallVerdict.CARRIED,
    CallVerdict.BORN,
    CallVerdict.ONLY_A,
    CallVerdict.ONLY_B,
    CallVerdict.NOT_COMPARED,
)
_LONGEST = 200  # characters of a text about arguments
_AT_ONCE = 32  # calls that are run again before the next are looked at


@dataclass(frozen=True)
class CapturedId:
    """A captured call: its facts without its tensors."""

    path: str
    id: int
    name: str
    module: str
    step: int
    rank: int


def calls_below(folder: _Folder) -> tuple[list[CapturedId], list[str]]:
    """The calls below a folder of OpCapture, in the order in which they were made, and the files that could not be read."""
    calls, problems, _ = find_calls(os.fsencode(folder))
    captured = []
    for path, text, _, _ in calls:
        try:
            meta = json.loads(text) if text is not None else {}
        except ValueError:
            continue  # cut off while it was written
        if isinstance(meta, dict) and isinstance(meta.get("id"), int):
            module = ".".join(filter(None, (meta.get("model"), meta.get("module"))))
            step, rank = int(meta.get("step") or 0), int(meta.get("rank") or 0)
            captured.append(CapturedId(path, meta["id"], str(meta.get("name")), module, step, rank))
    return sorted(captured, key=lambda one: one.id), list(problems)


def captured_calls(folder: _Folder) -> list[CapturedId]:
    """The same, where there must be some.

    Raises:
        op_tools.Error: there is none.
    """
    captured, problems = calls_below(folder)
    if not captured:
        raise Error("\n".join(problems) or f"{folder}: there are no captured calls here")
    return captured


def replayed(paths: Sequence[str], device: str = "cpu") -> dict[str, dict[str, Any]]:
    """Runs captured calls again and judges their saved results: the report of each by its path ("agrees", "differs",
    "not judged", "could not run")."""
    if not paths:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = [*paths, "--acc_check", "--device", device, "--json", str(report), "--quiet"]
        replay([*arguments, "--no_summary"])
        calls = json.loads(report.read_text(encoding="utf-8"))["calls"] if report.exists() else []
    return {str(one["path"]): one for one in calls}


def wrong_by_itself(paths: Sequence[str]) -> set[str]:
    """Of these calls those whose saved results disagree with the same operator on the CPU, on their own inputs."""
    return {path for path, report in replayed(paths).items() if report.get("status") == WRONG}


@dataclass(frozen=True)
class ConfirmedRow:
    """A captured call of A and its partner in B."""

    op: str
    module: str
    step: int
    path_a: str
    path_b: str
    inputs: float
    """The largest difference of an input, as a share of its norm."""
    outputs: float
    a: str
    """A's saved result against the same operator on the CPU: `agrees`, `differs`, `not judged`, `could not run`."""
    b: str
    b_on_inputs_of_a: str
    """B's device runs A's call: its result against A's; empty where this machine has no such device."""
    verdict: str
    random: bool = False
    """The call drew random numbers, in A or in B."""
    tensors: int = 0
    """Tensors among A's arguments."""
    arguments: str = ""
    """Other arguments of the call in A and in B, where they differ."""
    problem: str = ""
    """Why a file of the two calls could not be read: `inputs` and `outputs` are not known then."""


@dataclass(frozen=True, repr=False)
class Confirmation(Result):
    """Two captures, call by call."""

    rows: list[ConfirmedRow]
    problems: list[str]

    @property
    def verdict(self) -> Verdict:
        """`differs`: an operator is wrong; `not judged`: some calls have no partner, or most could not be judged."""
        pairs = [(row.a, row.b) for row in self.rows]
        unjudged = sum(1 for pair in pairs if NOT_JUDGED.intersection(pair))
        unseen = bool(self.problems) or not pairs or 2 * unjudged > len(pairs)
        return verdict_of(wrong=any(WRONG in pair for pair in pairs), unseen=unseen)

    @property
    def exit_status(self) -> int:
        """0: no operator is wrong; 1: an operator is; 2: not judged."""
        return status_of(self.verdict)

    def to_json(self) -> str:
        """Lines of JSON: {"kind": "confirmed", ...} for each row, and a summary with the verdict."""
        records = [{"kind": "confirmed", **asdict(row)} for row in self.rows]
        verdict = {"exit_status": self.exit_status, "verdict": self.verdict.value}
        summary = {"kind": "confirmation", **verdict, "problems": self.problems, "rows": len(self.rows)}
        return "".join(json.dumps(finite_json(record)) + "\n" for record in [*records, summary])

    def table(self) -> str:
        """For people."""
        columns: list[Shown[ConfirmedRow]] = [
            worded("op", "op"),
            Shown("inputs", lambda row: f"{row.inputs:.2g}", is_number=True),
            Shown("outputs", lambda row: f"{row.outputs:.2g}", is_number=True),
            worded("A on CPU", "a"),
            worded("B on CPU", "b"),
            worded("verdict", "verdict"),
        ]
        return "\n".join([text_table(columns, self.rows, -1), *self.problems])


def _difference(values: Any, others: Any) -> float:
    """The largest relative difference of tensors in the same places."""
    worst = 0.0
    for a, b in zip(tensors_of(values), tensors_of(others), strict=False):
        if a.shape != b.shape:
            return float("inf")
        if a.layout != torch.strided or a.is_quantized or not a.numel() or torch.equal(a, b.to(a.dtype)):
            continue
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        left, right = a.to(wide), b.to(wide)
        norm = max(left.norm().item(), right.norm().item())
        worst = max(worst, (left - right).norm().item() / norm if norm else float("inf"))
    return worst


def _other_arguments(a: CapturedCall, b: CapturedCall) -> str:
    """Arguments besides tensors, of both calls, where they differ."""
    texts = [
        [
            f"argument {name} {value!r}"
            for name, value in (*enumerate(call.args), *call.kwargs.items())
            if not any(True for _ in tensors_of(value))
        ]
        for call in (a, b)
    ]
    differing = [f"{left} in A, {right} in B" for left, right in zip(*texts, strict=False) if left != right]
    return "; ".join(differing)[:_LONGEST]


def _verdict(inputs: float, outputs: float, a: str, b: str) -> str:
    if b == WRONG:
        return "B's operator is wrong" + (" (and A's)" if a == WRONG else "")
    if a == WRONG:
        return "A's operator is wrong"
    if NOT_JUDGED.intersection((a, b)):
        return "not known: it could not be run again"
    if math.isnan(outputs):
        return "not known: a file could not be read"
    if inputs == 0 and outputs == 0:
        return "agrees"
    return "the operator is right, its input is different" if inputs else "both are right: rounding"


def judged_pairs(pairs: Sequence[tuple[CapturedId, CapturedId]], *, crossed: bool = False) -> list[ConfirmedRow]:
    """Runs each call of A and its partner in B again, and judges both.

    Args:
        pairs: the calls.
        crossed: also run A's call on the device of B, where B has a device.
    """
    of_a, of_b = replayed([a.path for a, _ in pairs]), replayed([b.path for _, b in pairs])
    rows = []
    for a, b in pairs:
        status_a, status_b = (
            str(all_.get(path, {}).get("status", "could not run")) for all_, path in ((of_a, a.path), (of_b, b.path))
        )
        try:
            of_run_a, of_run_b = load_call(a.path), load_call(b.path)
        except Error as error:
            verdict = _verdict(math.nan, math.nan, status_a, status_b)
            facts = (a.name, a.module, a.step, a.path, b.path, math.nan, math.nan, status_a, status_b, "", verdict)
            rows.append(ConfirmedRow(*facts, problem=str(error)))
            continue
        inputs = _difference((of_run_a.args, of_run_a.kwargs), (of_run_b.args, of_run_b.kwargs))
        outputs = _difference(of_run_a.result, of_run_b.result)
        device = _device_of(of_run_b) if crossed else ""
        of_both = str(replayed([a.path], device).get(a.path, {}).get("status", "")) if device else ""
        verdict = _verdict(inputs, outputs, status_a, status_b)
        rows.append(
            ConfirmedRow(
                a.name,
                a.module,
                a.step,
                a.path,
                b.path,
                inputs,
                outputs,
                status_a,
                status_b,
                of_both,
                verdict,
                random=any(bool(call.meta.get("rng_consumed")) for call in (of_run_a, of_run_b)),
                tensors=sum(1 for _ in tensors_of((of_run_a.args, of_run_a.kwargs))),
                arguments=_other_arguments(of_run_a, of_run_b),
            )
        )
    return rows


def confirm(capture_a: _Folder, capture_b: _Folder) -> Confirmation:
    """Judges each call of two captures: is the operator wrong, or was its input different?

    Args:
        capture_a: a folder of OpCapture, or any folder in it.
        capture_b: that of the other run.

    Returns:
        a row for each pair of calls; pairs are the calls of equal operator, module and step, in their order.

    Raises:
        op_tools.Error: a folder holds no captured calls.
    """
    places: dict[tuple[str, str, int], list[CapturedId]] = {}
    of_a, of_b = captured_calls(capture_a), captured_calls(capture_b)
    for call in of_b:
        places.setdefault((plain_name(call.name), call.module, call.step), []).append(call)
    pairs, problems = [], []
    for folder, of_folder in ((capture_a, of_a), (capture_b, of_b)):
        listed = list_of_calls(Path(folder))
        wanted = len(listed.read_text(encoding="utf-8").split()) if listed.is_file() else 0
        if len(of_folder) < wanted:
            problems.append(f"{folder}: {wanted - len(of_folder)} of the {wanted} calls in {listed} were not captured")
    for call in of_a:
        partners = places.get((plain_name(call.name), call.module, call.step))
        if partners:
            pairs.append((call, partners.pop(0)))
        else:
            problems.append(f"{call.path}: B has no such call")
    problems += [f"{one.path}: A has no such call" for left in places.values() for one in left]
    rows = judged_pairs(pairs, crossed=True)
    return Confirmation(rows, [*problems, *(f"not judged: {row.problem}" for row in rows if row.problem)])


def _device_of(call: CapturedCall) -> str:
    """The accelerator on which a captured call ran, where this process has it; else ""."""
    kinds = {
        str(described.get("device", "cpu")).partition(":")[0]
        for described in call.meta.get("inputs", [])
        if isinstance(described, dict)
    }
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator is not None and accelerator.type in kinds else ""


def judged_by_values(rank: RankComparison, capture_a: _Folder, capture_b: _Folder) -> RankComparison:
    """The comparison with its first divergence found by full tensors: each pair whose results differ is run again, in
    order, and the first call that is wrong by itself is where the difference was born.

    Args:
        rank: made of recordings beside which the calls were captured.
        capture_a: the capture of A.
        capture_b: that of B.
    """
    of_a, of_b = ({one.id: one.path for one in captured_calls(folder)} for folder in (capture_a, capture_b))
    first = _first_wrong(rank, of_a, of_b)
    return rank if first is None else dataclasses.replace(rank, _first=rank.rows[first])


def _first_wrong(rank: RankComparison, of_a: dict[int, str], of_b: dict[int, str]) -> int | None:
    """The first row with a call that is wrong by itself."""
    suspects = [row for row in rank.rows if row.finding or row.output_difference or row.verdict in _MAY_BE_WRONG]
    for begin in range(0, len(suspects), _AT_ONCE):
        part = suspects[begin : begin + _AT_ONCE]
        paths = {
            side.get(number, "") for row in part for side, number in ((of_a, row.id_a), (of_b, row.id_b)) if number
        }
        wrong = wrong_by_itself(sorted(paths - {""}))
        for row in part:
            if of_b.get(row.id_b or -1) in wrong or of_a.get(row.id_a or -1) in wrong:
                return row.row
    return None
