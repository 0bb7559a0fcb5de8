"""Golden data: results of cases on another device, or in float64, saved in a folder. `gen` writes it, `run --golden` judges by it.

A folder has golden.json, which names its maker, and a file for each case that torch.load opens. They are read without
running code that is in them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .._base.captured_calls import load
from .._base.core import Error, has_trait, judge_tensors
from .._base.data_file import read_json
from .._base.error_text import with_type
from .._base.verdict import Verdict
from .._torch.operator_support import refused
from .case import Case, PreparedCall, make_call
from .repeat import Generators, Outputs, digest_of, find_differences
from .rows import AGREES, DIFFERS, ERROR, NOT_JUDGED, ROWS_FILE, UNSUPPORTED, Row, row_of, rows_below
from .verdict import CPU, Judge, run_call

FORMAT = 1
FACTS_FILE = "golden.json"
KINDS = ("values", "digests", "float64")


def _file_of(folder: Path, case_id: str) -> Path:
    name = hashlib.blake2b(case_id.encode(), digest_size=16).hexdigest()
    return folder / "data" / name[:2] / f"{name}.pth"


def in_float64(call: PreparedCall, change: Callable[[torch.Tensor], torch.Tensor] = lambda one: one) -> PreparedCall:
    """The call with its floating-point tensors and dtypes in float64.

    Args:
        call: on the CPU.
        change: a further change of such a tensor.
    """
    wide: dict[int, torch.Tensor] = {}

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            if id(leaf) not in wide:
                changed = change(leaf.detach().to(_wide(leaf.dtype)))
                wide[id(leaf)] = changed.requires_grad_(leaf.requires_grad)
            return wide[id(leaf)]
        return _wide(leaf) if isinstance(leaf, torch.dtype) else leaf

    args, kwargs = tree_map(widened, (call.args, call.kwargs))
    inputs = [widened(one) for one in call.inputs]
    return _WideCall(call.case, call.function, args, kwargs, inputs, call.seed, call.device)


class _WideCall(PreparedCall):
    """Its backward pass begins with the gradients of the case's own dtype: float64 ones have other values."""

    def _cotangent(self, output: torch.Tensor, place: int) -> torch.Tensor:
        dtype = getattr(torch, self.case.dtype)
        if dtype.is_complex != output.is_complex():
            dtype = dtype.to_complex() if output.is_complex() else dtype.to_real()
        return super()._cotangent(torch.empty_like(output, dtype=dtype), place).to(output.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


@dataclass(frozen=True)
class GoldenWriter:
    """Runs cases on a device and keeps their results."""

    device: torch.device
    folder: Path
    kind: str
    """Of KINDS."""

    def rows(self, case: Case) -> list[Row]:
        """A row: "agrees" where the case is saved."""
        row = row_of(case, method=self.kind, reference=str(self.device))
        try:
            self._keep(case, row)
        except Error as error:
            row.status, row.reason = ERROR, str(error)
        return [row]

    def _keep(self, case: Case, row: Row) -> None:
        if case.variant == "error":
            row.status, row.reason = NOT_JUDGED, "has to raise: nothing to keep"
            return

        def make() -> PreparedCall:
            call = make_call(case, self.device)
            return in_float64(call) if self.kind == "float64" else call

        call = make()
        call.seed_generators()
        generators = Generators(self.device)
        attempt = run_call(call, self.device)
        if attempt.error is not None:
            row.status = UNSUPPORTED if refused(attempt.error) else NOT_JUDGED
            row.reason = f"raised: {with_type(attempt.error)}"
            return
        if any(generators.moved()):
            row.status, row.reason = NOT_JUDGED, "random"
            return
        outputs = attempt.outputs()
        again = run_call(make(), self.device)
        undefined = has_trait(case.op, "uninitialized_result")
        if undefined or again.error or find_differences(outputs, again.outputs()):
            row.status, row.reason = NOT_JUDGED, "another run gives other bits"
            return
        self._write(case, outputs)

    def _write(self, case: Case, outputs: Outputs) -> None:
        results, gradients = _for_files(outputs.results), _for_files(outputs.gradients)
        content: dict[str, Any] = {"case": case.id, "results": results, "gradients": gradients}
        if self.kind == "digests":
            content["results"] = [digest_of(one) for one in outputs.results]
            content["gradients"] = ["" if one is None else digest_of(one) for one in outputs.gradients]
        path = _file_of(self.folder, case.id)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, path)
        except (OSError, RuntimeError) as error:
            raise Error(f"{path}: cannot be written: {error}") from None


def _for_files(tensors: Any) -> list[Any]:
    """A tensor for a file: without lazy conjugates and parts of larger memory."""
    return [None if one is None else one.resolve_conj().resolve_neg().clone() for one in tensors]


def write_facts(folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Writes the maker of golden data."""
    content = {"format": FORMAT, "kind": kind, **facts}
    (folder / FACTS_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class Golden:
    """Golden data to judge by.

    Raises:
        op_tools.Error: the folder has none, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / FACTS_FILE
        facts = read_json(path, "op-tools conformance gen makes golden data")
        if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("kind") not in KINDS:
            raise Error(f"{path}: is not of golden data that this version reads")
        self.kind: str = facts["kind"]
        self.device = str(facts.get("device", "?"))

    @functools.cached_property
    def _saved(self) -> set[str]:
        """The cases that gen says it saved; none where its rows are not in the folder."""
        if not any(self.folder.glob(f"{Path(ROWS_FILE).stem}*.jsonl")):
            return set()
        return {case for case, rows in rows_below(self.folder).items() if any(row.status == AGREES for row in rows)}

    def of(self, case: Case) -> tuple[list[Any], list[Any]] | None:
        """(results, gradients): tensors on the CPU, or digests; None: this case was not saved.

        Raises:
            op_tools.Error: its file is damaged, or was saved and is gone.
        """
        path = _file_of(self.folder, case.id)
        if not path.is_file():
            if case.id in self._saved:
                raise Error(f"{path}: is gone, and gen saved it")
            return None
        content = load(path)
        if not isinstance(content, dict) or content.get("case") != case.id:
            raise Error(f"{path}: is no golden data of the case {case.id}")
        kind = str if self.kind == "digests" else (torch.Tensor, type(None))
        parts: list[Any] = [content.get("results"), content.get("gradients")]
        if any(not isinstance(part, list) or not all(isinstance(one, kind) for one in part) for part in parts):
            raise Error(f"{path}: is no file of golden data")
        return parts[0], parts[1]


@dataclass(frozen=True)
class GoldenJudge(Judge):
    """Judges by golden data, and the cases of which there is none as Judge does."""

    golden: Golden | None = None

    def judge(self, case: Case, call: PreparedCall) -> list[Row]:
        assert self.golden is not None
        saved = self.golden.of(case)
        if saved is None:
            return super().judge(case, call)
        attempt = run_call(call, self.device)
        if attempt.error is not None:
            status = UNSUPPORTED if refused(attempt.error) else DIFFERS
            phase = "backward" if attempt.in_backward else ""
            return [row_of(case, phase, status=status, reason=with_type(attempt.error), blamed=case.op)]
        outputs = attempt.outputs()
        if self.golden.kind == "digests":
            return self._by_digests(case, saved, outputs)
        return self._by_values(case, saved, outputs)

    def _by_digests(self, case: Case, saved: tuple[list[Any], list[Any]], outputs: Outputs) -> list[Row]:
        ours = (
            [digest_of(one) for one in outputs.results],
            ["" if one is None else digest_of(one) for one in outputs.gradients],
        )
        if ours != saved:
            return super().judge(case, make_call(case, self.device))
        phases = ["", "backward"] if case.gradient else [""]
        assert self.golden is not None
        return [row_of(case, phase, method="bits", reference=self.golden.device) for phase in phases]

    def _by_values(self, case: Case, saved: tuple[list[Any], list[Any]], outputs: Outputs) -> list[Row]:
        assert self.golden is not None
        saved_is_float64 = self.golden.kind == "float64"
        reference = f"cpu, {self.golden.device} in float64" if saved_is_float64 else f"{self.golden.device}, float64"
        rows = {phase: row_of(case, phase, reference=reference) for phase in ("", "backward")[: 1 + case.gradient]}
        sides = _Sides(case, self.golden.kind, Outputs(*saved), self.method or "relative")
        for place, (phase, name, tensor) in enumerate(outputs.named()):
            _note(rows[phase], name, sides.judged(place, tensor))
        if (len(outputs.results), len(outputs.gradients)) != (len(saved[0]), len(saved[1])):
            rows[""].status, rows[""].reason = DIFFERS, f"{len(outputs.results)} results instead of {len(saved[0])}"
        return list(rows.values())


def _note(row: Row, name: str, verdict: dict[str, Any]) -> None:
    """Takes a verdict about a tensor into the row: the first failure, else the result nearest to its limit."""
    if row.status == DIFFERS:
        return
    share = verdict.get("number", 0.0) / verdict["limit"] if verdict.get("limit") else 0.0
    failed = verdict["verdict"] == Verdict.DIFFERS
    if not failed and row.limit and share <= (row.error or 0) / row.limit:
        return
    row.method = verdict.get("method", "")
    if verdict.get("limit"):
        row.error, row.limit = verdict["number"], verdict["limit"]
    if verdict.get("worst_index") is not None:
        row.index = str(verdict["worst_index"])
        row.got, row.expected = verdict.get("worst_result", ""), verdict.get("worst_reference", "")
    if failed:
        row.status, row.blamed = DIFFERS, row.op
        row.reason = f"{verdict.get('kind', '')} of {name}. {verdict.get('explained', '')}".rstrip(". ")


class _Sides:
    """The references of results, made where they are asked for."""

    def __init__(self, case: Case, kind: str, saved: Outputs, method: str) -> None:
        self._case, self._kind, self._method = case, kind, method
        self._kept = [one for _, _, one in saved.named()]
        self._made: dict[str, list[torch.Tensor | None]] = {}
        self._largest = max((size for spec in case.tensors for size in spec.shape), default=1)

    def _run(self, key: str, change: Callable[[PreparedCall], PreparedCall]) -> list[torch.Tensor | None]:
        """The results of the case on the CPU."""
        if key not in self._made:
            attempt = run_call(change(make_call(self._case, CPU)), CPU)
            self._made[key] = [] if attempt.error else [one for _, _, one in attempt.outputs().named()]
        return self._made[key]

    def _changed(self, sample: int) -> list[torch.Tensor | None]:
        """In float64, from inputs changed by less than their rounding."""
        generator = torch.Generator().manual_seed(1000 + sample)

        def change(call: PreparedCall) -> PreparedCall:
            eps = min([torch.finfo(one.dtype).eps for one in call.inputs if one.is_floating_point()], default=0.0)
            return in_float64(
                call, lambda one: one * (1 + eps / 4 * (2 * torch.rand(one.shape, generator=generator) - 1))
            )

        return self._run(f"changed {sample}", change)

    def judged(self, place: int, result: torch.Tensor | None) -> dict[str, Any]:
        """The verdict about a tensor."""
        saved = _at(self._kept, place)
        if result is None or saved is None:
            if (result is None) == (saved is None):
                return {"verdict": Verdict.AGREES}
            return {"verdict": Verdict.DIFFERS, "kind": "presence", "explained": "only one side has it"}
        if digest_of(result) and digest_of(result) == digest_of(saved):
            return {"verdict": Verdict.AGREES, "method": "bits"}
        reference: torch.Tensor | None = saved
        golden: torch.Tensor | None = saved
        if self._kind == "float64":
            reference = _at(self._run("plain", lambda call: call), place)
        else:
            golden = _at(self._run("float64", in_float64), place)
        verdict = self._asked(result, reference, golden, [])
        if verdict["verdict"] == Verdict.DIFFERS:
            # Not in a callback: the judge computes without autograd.
            verdict = self._asked(result, reference, golden, [_at(self._changed(sample), place) for sample in range(3)])
        return verdict

    def _asked(
        self,
        result: torch.Tensor,
        reference: torch.Tensor | None,
        golden: torch.Tensor | None,
        changed: list[torch.Tensor | None],
    ) -> dict[str, Any]:
        return judge_tensors(
            result,
            reference,
            golden=lambda: golden,
            perturbed=(lambda sample, _: _at(changed, sample)) if changed else None,
            method=self._method,
            nan_equal=True,
            reduced=max(self._largest, 1),
        )


def _at(tensors: list[torch.Tensor | None], place: int) -> torch.Tensor | None:
    return tensors[place] if place < len(tensors) else None
