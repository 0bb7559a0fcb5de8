"""A training iteration, saved on a machine and compared on another, module by module."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._base.checks import Kinds, checked_choice, checked_object, checked_pattern
from .._base.core import Error, admits_module
from .._base.data_file import read_data
from .._base.declared_rows import CallVerdict, Finding, RunRow
from .._base.error_text import printable
from .._base.results import Result, Shown, finite_json, text_table, worded
from .._base.verdict import Verdict, status_of, verdict_of
from .._modules.module_runs import CpuNumbers
from .._tools.record import OpRecord
from .._tools.tool import Tool
from .._tools.tool_group import Together
from . import ITERATION_SEED
from .comparison import RankComparison, RunsComparison

KINDS = ("forward", "backward", "loss", "weights")
_NUMBER = (int, float, str)  # YAML reads 1e-4 as text
_EXEMPTION: Kinds = {"module": str, "kind": str, "limit": _NUMBER, "why": str}
"""The kinds of results; weights: after the optimizer's step."""
_OTHERS = "*"  # in a file of tolerances: models that it does not name
_MOST_ROWS = 20


class OneIteration(Together):
    """Records the modules of a training iteration; at the end of it the program ends, by SystemExit with status 0.

    Args:
        folder: for the recording.
        seed: of all random numbers. Devices draw theirs from the CPU's generator: the runs start and drop alike.
        iterations: how many, in fact.
    """

    def __init__(self, folder: str | os.PathLike[str], *, seed: int = ITERATION_SEED, iterations: int = 1) -> None:
        super().__init__()
        self._folder, self._seed, self._iterations, self._done = Path(folder), seed, iterations, 0
        self._numbers = contextlib.ExitStack()

    def _make(self) -> Sequence[Tool]:
        if any(self._folder.glob("*.oprec")):
            raise Error(f"{self._folder}: has a recording already; give another folder")
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(self._seed % 2**32)
        self._numbers.enter_context(CpuNumbers())  # type: ignore[no-untyped-call]
        self._record = OpRecord(output_dir=self._folder, modules_only=True, steps=range(self._iterations))
        return [self._record]

    def stop(self) -> None:
        self._numbers.close()
        super().stop()

    def step(self) -> None:
        """Ends an iteration.

        Raises:
            SystemExit: it was the last iteration.
        """
        super().step()
        self._done += 1
        if self._done >= self._iterations:
            raise SystemExit(0)

    @property
    def path(self) -> str:
        """The recording; "" where no module was called."""
        return self._record.path


# --- Tolerances ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exemption:
    """Results that may be further apart."""

    module: str
    """Its path, or a regular expression: "Net.fc2", ".*norm.*"; "" any."""
    kind: str
    """Of KINDS; "" any."""
    limit: float
    why: str

    def covers(self, row: OneIterRow) -> bool:
        """Whether the row is among these, and near enough."""
        is_named = not self.module or admits_module(row.module, self.module)
        return is_named and self.kind in ("", row.kind) and row.difference <= self.limit


@dataclass(frozen=True)
class Tolerance:
    """Of a model."""

    limits: dict[str, float]
    """By kind; a missing kind is judged as `op-tools compare` does, by the effect of rounding."""
    exceptions: tuple[Exemption, ...] = ()


def _limit(where: str, value: Any) -> float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise Error(f"{where}: {value!r} is no number from 0 on")
    return float(value)


def _exemption(where: str, content: Any) -> Exemption:
    entry = checked_object(where, content, _EXEMPTION, needed=("why",))
    kind = checked_choice(f"{where}: kind", entry.get("kind", ""), ("", *KINDS))
    module = checked_pattern(f"{where}: module", entry.get("module", "")).pattern
    limit = _limit(f"{where}: limit", entry.get("limit", float("inf")))
    return Exemption(module, kind, limit, entry["why"])


def _tolerance(where: str, content: Any) -> Tolerance:
    if not isinstance(content, dict):
        return Tolerance(dict.fromkeys(KINDS, _limit(where, content)))
    entry = checked_object(where, content, {**dict.fromkeys(KINDS, _NUMBER), "exceptions": list})
    exceptions = tuple(
        _exemption(f"{where}: exceptions[{i}]", listed) for i, listed in enumerate(entry.get("exceptions", []))
    )
    return Tolerance({kind: _limit(f"{where}: {kind}", entry[kind]) for kind in KINDS if kind in entry}, exceptions)


def read_tolerances(path: str | os.PathLike[str]) -> dict[str, Tolerance]:
    """The tolerance of each model, from a file of YAML or JSON: {model: number}, or {model: {kind: number, "exceptions":
    [{"module", "kind", "limit", "why"}]}}. A number is the largest difference as a share of the tensor's norm.

    Raises:
        op_tools.Error: the file cannot be read, or has another form.
    """
    content = read_data(path)
    if not isinstance(content, dict):
        raise Error(f"{os.fspath(path)}: expected models and their tolerances")
    return {str(model): _tolerance(f"{os.fspath(path)}: {model}", given) for model, given in content.items()}


# --- The comparison -----------------------------------------------------------------------------------------------------


class IterVerdict(str, enum.Enum):
    """The verdicts of OneIterRow."""

    AGREES = CallVerdict.AGREES.value
    DIFFERS = "differs"
    EXCUSED = "excused"  # by an exception of the file
    ONLY_A = CallVerdict.ONLY_A.value
    ONLY_B = CallVerdict.ONLY_B.value
    NOT_COMPARED = CallVerdict.NOT_COMPARED.value


_WITHOUT_RESULT = (IterVerdict.ONLY_A, IterVerdict.ONLY_B, IterVerdict.NOT_COMPARED)


@dataclass(frozen=True)
class OneIterRow:
    """A result of a module's call, the loss or an optimizer's step."""

    rank: int
    kind: str
    """Of KINDS."""
    module: str
    op: str
    """ "module:Linear", "loss:backward", "optimizer:SGD"."""
    verdict: str
    """Of IterVerdict."""
    origin: str
    """Of wrong and excused results: `born here`, `carried` or `differs, cause not found`, as of op-tools compare; else ""."""
    difference: float
    """Of the results, as a share of their norm."""
    limit: float
    why: str
    """Of the exception."""
    finding: str


@dataclass(frozen=True, repr=False)
class OneIterComparison(Result):
    """An iteration of two runs."""

    comparison: RunsComparison
    rows: list[OneIterRow] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Why it is not known that nothing is wrong."""

    @property
    def first(self) -> OneIterRow | None:
        """The first that is wrong; a born difference wins over carried ones."""
        wrong = [row for row in self.rows if row.verdict == IterVerdict.DIFFERS]
        return next(iter([row for row in wrong if row.origin != CallVerdict.CARRIED] or wrong), None)

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where both runs have all results, and were recorded whole."""
        lacking = any(row.verdict in _WITHOUT_RESULT for row in self.rows) or self.comparison.unseen or self.unseen
        return verdict_of(wrong=self.first is not None, unseen=bool(lacking))

    @property
    def exit_status(self) -> int:
        """0: nothing is wrong, 1: something is, 2: not judged."""
        return status_of(self.verdict)

    def table(self) -> str:
        """For people."""
        lines: list[str] = []
        for rank in self.comparison.ranks:
            facts = [f"rank {rank.rank}", f"A: {rank.a}", f"B: {rank.b}", *rank.incomplete, *rank.structure.lines, ""]
            lines += map(printable, facts)
        shown = [row for row in self.rows if row.verdict != IterVerdict.AGREES]
        columns: list[Shown[OneIterRow]] = [
            worded("kind", "kind"),
            worded("module", "module"),
            worded("call", "op"),
            worded("verdict", "verdict"),
            worded("origin", "origin"),
            Shown("difference", lambda row: f"{row.difference:.3g}", is_number=True),
            Shown("limit", lambda row: f"{row.limit:.3g}", is_number=True),
            Shown("why", lambda row: row.why or ("" if row.difference > row.limit else row.finding)),
        ]
        if shown:
            lines += [text_table(columns, shown, _MOST_ROWS)]
        counts = Counter(row.verdict for row in self.rows)
        lines += [f"NOT JUDGED: {reason}" for reason in dict.fromkeys([*self.comparison.unseen, *self.unseen])]
        lines.append(f"{len(self.rows)} results: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
        if (first := self.first) is not None:
            lines.append(
                printable(f"First: {first.module or first.op} ({first.kind}): {first.finding or first.origin}")
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """Lines of JSON: {"kind": "result", ...} for each row, and a {"kind": "summary", ...}."""
        records: list[dict[str, Any]] = [
            {**dataclasses.asdict(row), "what": row.kind, "kind": "result"} for row in self.rows
        ]
        counts = dict(Counter(row.verdict for row in self.rows))
        first = None if self.first is None else dataclasses.asdict(self.first)
        verdict = {"exit_status": self.exit_status, "verdict": self.verdict.value}
        unseen = [*self.comparison.unseen, *self.unseen]
        records.append({"kind": "summary", **verdict, "unseen": unseen, "verdicts": counts, "first": first})
        return "".join(json.dumps(finite_json(record)) + "\n" for record in records)


def _kind_of_row(row: RunRow) -> str:
    what = row.op.partition(":")[0]
    return {"loss": "loss", "optimizer": "weights"}.get(what, row.phase)


def _judged(row: RunRow, tolerance: Tolerance) -> OneIterRow:
    kind = _kind_of_row(row)
    limit = tolerance.limits.get(kind)
    lacks_result = row.verdict in _WITHOUT_RESULT
    differs = row.verdict in (CallVerdict.BORN, CallVerdict.CARRIED, CallVerdict.CAUSE_NOT_FOUND)
    is_wrong = differs if limit is None else not row.output_difference <= limit or row.finding == Finding.ERROR
    verdict = row.verdict if lacks_result else (IterVerdict.DIFFERS if is_wrong else IterVerdict.AGREES).value
    origin = row.verdict if is_wrong and differs else ""
    shown = row.limit if limit is None else limit
    judged = OneIterRow(
        row.rank, kind, row.module, row.op, verdict, origin, row.output_difference, shown, "", row.finding
    )
    if is_wrong and not lacks_result:
        for exemption in tolerance.exceptions:
            if exemption.covers(judged):
                return dataclasses.replace(judged, verdict=IterVerdict.EXCUSED.value, why=exemption.why)
    return judged


def _of_rank(rank: RankComparison, tolerances: dict[str, Tolerance]) -> Iterator[OneIterRow]:
    model = ""
    for row in rank.rows:
        model = row.module.partition(".")[0] or model  # the loss and the optimizer are those of the model before
        yield _judged(row, tolerances.get(model) or tolerances.get(_OTHERS) or Tolerance({}))


def _unseen(comparison: RunsComparison, accelerator: str, rows: Sequence[OneIterRow]) -> list[str]:
    """Why it is not known that nothing is wrong."""
    reasons = [] if rows else ["nothing was recorded"]
    if rows and accelerator and not any(accelerator in rank._found.b.devices for rank in comparison.ranks):
        reasons.append(f"no tensor was on {accelerator}")
    return reasons


def compare_iterations(
    comparison: RunsComparison, tolerances: dict[str, Tolerance] | None = None, accelerator: str = ""
) -> OneIterComparison:
    """The results of an iteration in two runs.

    Args:
        comparison: of recordings with modules_only.
        tolerances: by model, as read_tolerances() gives them.
        accelerator: the type of the device that is tested; where B has no tensor on it nothing is judged. "": any.

    Raises:
        op_tools.Error: the recordings are of operators.
    """
    for rank in comparison.ranks:
        if not all(side.header.get("modules_only") for side in (rank._found.a, rank._found.b)):
            raise Error(f"{rank.a}, {rank.b}: not recorded with op-tools one-iter or modules_only=")
    rows = [row for rank in comparison.ranks for row in _of_rank(rank, tolerances or {})]
    return OneIterComparison(comparison, rows, _unseen(comparison, accelerator, rows))
