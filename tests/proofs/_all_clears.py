"""Trials of no_false_all_clear: a random program, a change of it or of the device, and a command's verdict on the result.

The truth is found without op_tools: the program in float64 on the CPU against the numbers of the changed run.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _planted_faults
import torch
from _random_programs import MATTERS, Edit, Outcome, Program, draw_edit, program, rounding, train

import op_tools
from op_tools._base.verdict import Verdict, verdict_of
from op_tools._runs.compare_many import compare_many
from op_tools._runs.judged_captures import calls_below, replayed
from op_tools._runs.one_iter import OneIteration, compare_iterations

BAND = 0.011  # bisect takes numbers as right that are within a hundredth of those that it is given
SPOILED_PART = 0.5  # of the trials of two runs: a spoiled result in the place of an edit
BFLOAT16_PART = 0.25  # of the trials of a single run
ALL_CALLS_PART = 0.3  # of the spoils: in every call of the operator
READ_PART = 0.3  # of the spoils of programs in parts: of a number that the program reads
BEYOND_ROUNDING = 10  # times the error of the same run without the change
UNREAD = "mutate_input behind the last reader"
# Calls that compute nothing, or that a fault does not spoil; and numbers that the program hands to the device.
NEVER_SPOILED = re.compile("aten::(empty|_to_copy|copy_|detach|zero|fill|ones|zeros)")
_PLAIN_SPOILS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("scale", {"scale": 0.5}),
    ("scale", {"scale": 1.01}),
    ("scale", {"scale": 1.1}),
    ("scale", {"scale": -1.0}),
    ("element", {"scale": 2.0}),
    ("nan", {}),
    ("inf", {}),
    ("swap_rows", {}),
    ("low_precision", {}),
    ("above_size", {"scale": 2.0}),
)
# Faults that do not show in the result of a call, or not in each of its calls.
_QUIET_SPOILS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("late_write", {}),
    ("lost_write", {}),
    ("mutate_input", {}),
    ("noncontiguous", {"scale": 1.5}),
    ("nondeterministic", {"scale": 1.5}),
)
# Faults of programs in parts: a write behind a part, a wrong number of `item()`.
BESIDE, READ = "out_of_bounds", "aten::_local_scalar_dense"
_NUMBERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("scale", {"scale": 1.1}),
    ("scale", {"scale": -1.0}),
    ("late_write", {}),
)
_NOT_FINITE: tuple[tuple[str, dict[str, Any]], ...] = (("nan", {}), ("inf", {}))
ARITHMETIC_SPOILS = tuple(one for one in _PLAIN_SPOILS if one[0] != "above_size") + _QUIET_SPOILS[1:4]


@dataclass(frozen=True)
class Spoil:
    """A fault of the device."""

    kind: str
    op: str
    arguments: dict[str, Any]
    call: int | None

    def plant(self, device: str) -> AbstractContextManager[_planted_faults.Fault]:
        return _planted_faults.plant(device, self.kind, self.op, call=self.call, **self.arguments)

    def __str__(self) -> str:
        where = "every call" if self.call is None else f"call {self.call}"
        values = ", ".join(f"{name} {value}" for name, value in self.arguments.items())
        return f"{self.kind} {values} in {where} of {self.op}"


@dataclass(frozen=True)
class Change:
    """Of a trial: an edit of the source, or a fault of the device. Neither: a clean trial."""

    edit: Edit | None = None
    spoil: Spoil | None = None

    @property
    def kind(self) -> str:
        return self.spoil.kind if self.spoil else f"edit {self.edit.kind}" if self.edit else ""

    def __str__(self) -> str:
        return str(self.spoil or self.edit or "no change")


@dataclass
class Said:
    """A command's verdict on a run."""

    verdict: Verdict
    text: str = ""  # the first that it named
    ids: set[int] = field(default_factory=set)  # of the calls that it named
    ops: set[str] | None = None  # operators that it named, where it names no calls; None: it does name calls


@dataclass
class Trial:
    """The change, and a command's verdict."""

    text: str  # the program and the change
    kind: str  # of the change; "": clean
    matters: bool
    off: float
    verdict: Verdict
    named: bool  # the spoiled call
    said: str


class _Hits(op_tools.Hook):
    """The calls that the fault hit."""

    gradients = True

    def __init__(self) -> None:
        self.fault: _planted_faults.Fault | None = None
        self.ids: set[int] = set()
        self._last = 0

    def before(self, call: op_tools.Call) -> int:
        return self.fault.hits if self.fault else 0

    def after(self, call: op_tools.Call, state: int) -> None:
        hits = self.fault.hits if self.fault else 0
        # A backward pass of the torch level is told after the engine has run it.
        if hits > (self._last if call.phase == "backward" else state):
            self.ids.add(call.id)
        self._last = hits


class _Operators(op_tools.Hook):
    """The operators with floating results on the device, and the sizes of these, in the order of the calls."""

    def __init__(self, device: str) -> None:
        self.calls: list[tuple[str, int]] = []
        self.writes: list[str] = []  # the operators that write in place
        self.reads = 0  # numbers that were given to the program
        self._device = device

    def after(self, call: op_tools.Call, state: object) -> None:
        result = call.result[0] if isinstance(call.result, (list, tuple)) and call.result else call.result
        if call.name == READ:
            self.reads += 1
        writes = call.name.partition(".")[0].endswith("_") and not NEVER_SPOILED.match(call.name)
        if writes and _planted_faults.has_kernel(self._device, call.name):
            self.writes.append(call.name)
        is_made = isinstance(result, torch.Tensor) and result.is_floating_point() and result.device.type == self._device
        if is_made and not NEVER_SPOILED.match(call.name) and _planted_faults.has_kernel(self._device, call.name):
            self.calls.append((call.name, result.numel()))


def _draw_spoil(drawn: Program, draw: random.Random, command: Command, device: str) -> Spoil:
    operators = _Operators(device)
    with rounding(device):
        train(drawn, device, tool=op_tools.HookScope(operators, level="aten"))
    if drawn.in_parts:
        return _draw_spoil_of_parts(operators, draw, command)
    number = draw.randrange(len(operators.calls))
    operator, numel = operators.calls[number]
    before = sum(name == operator for name, _ in operators.calls[:number])
    in_all = command.in_every_call or draw.random() < ALL_CALLS_PART
    chosen = command.spoils or (ARITHMETIC_SPOILS if in_all else _PLAIN_SPOILS + _QUIET_SPOILS)
    kind, arguments = draw.choice([one for one in chosen if one[0] in _planted_faults.kinds(device)])
    if kind == "above_size":  # the tail of a vector loop
        arguments = {**arguments, "size": max(0, numel - draw.choice((1, 2, 3, 7)))}
    return Spoil(kind, operator, arguments, None if in_all else before)


def _draw_spoil_of_parts(operators: _Operators, draw: random.Random, command: Command) -> Spoil:
    reads = command.spoils is _NOT_FINITE or not command.sees_beside
    if reads or draw.random() < READ_PART:
        kind, arguments = draw.choice(list(command.spoils or _NUMBERS))
        return Spoil(kind, READ, arguments, draw.randrange(operators.reads))
    number = draw.randrange(len(operators.writes) // 2)  # of the first step: the second reads all that it left
    operator = operators.writes[number]
    call = operators.writes[:number].count(operator)
    return Spoil(BESIDE, operator, {}, None if draw.random() < ALL_CALLS_PART else call)


class _Both:
    """Two tools that are entered together, the first outermost."""

    def __init__(self, *tools: AbstractContextManager[Any]) -> None:
        self._tools, self._stack = tools, contextlib.ExitStack()

    def __enter__(self) -> None:
        for tool in self._tools:
            self._stack.enter_context(tool)

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@dataclass
class Run:
    """The run of a trial: a program on the device, with the change."""

    program: Program
    change: Change
    level: str
    folder: Path
    dtype: torch.dtype = torch.float32
    device: str = "sim"
    hits: _Hits = field(default_factory=_Hits)

    def train(self, tool: AbstractContextManager[Any] | None = None, **options: Any) -> Outcome:
        """On the changed device, with a tool."""
        tool = tool or contextlib.nullcontext()
        with contextlib.ExitStack() as stack:
            stack.enter_context(rounding(self.device))
            if self.change.spoil:
                self.hits.fault = stack.enter_context(self.change.spoil.plant(self.device))
                tool = _Both(op_tools.HookScope(self.hits, level=self.level), tool)
            return train(self.program, self.device, self.change.edit, tool=tool, dtype=self.dtype, **options)

    def right(self, tool: AbstractContextManager[Any] | None = None, **options: Any) -> Outcome:
        """Without the change, on the CPU."""
        return train(self.program, "cpu", tool=tool, dtype=self.dtype, **options)

    def tool_options(self, name: str = "b") -> dict[str, Any]:
        return {"level": self.level, "output_dir": self.folder / name}


# --- Verdicts of the commands ---------------------------------------------------------------------------------------------


def _of_status(status: int) -> Verdict:
    return {0: Verdict.AGREES, 1: Verdict.DIFFERS}.get(status, Verdict.NOT_JUDGED)


def _recorded(run: Run, name: str, *, on_cpu: bool) -> tuple[Outcome, op_tools.Recording]:
    tool = op_tools.OpRecord(**run.tool_options(name))
    outcome = (run.right if on_cpu else run.train)(tool, step_done=lambda _: tool.step())
    return outcome, op_tools.read_recording(tool.result().path)


def _row_text(row: op_tools.RunRow | None) -> str:
    if row is None:
        return ""
    text = f"{row.op or row.op_b} {row.phase} step {row.step}: {row.finding}"
    return f"{text} {row.input_difference:.2g} -> {row.output_difference:.2g}, limit {row.limit:.2g}"


def compare(run: Run) -> tuple[Outcome, Said]:
    _, a = _recorded(run, "a", on_cpu=True)
    outcome, b = _recorded(run, "b", on_cpu=False)
    comparison = op_tools.compare_runs(a, b)
    first = comparison.ranks[0].first
    ids = {first.id_b} if first and first.id_b is not None else set()
    return outcome, Said(_of_status(comparison.exit_status), _row_text(first), ids)


def against(run: Run) -> tuple[Outcome, Said]:
    _, a = _recorded(run, "a", on_cpu=True)
    tool = op_tools.OpAgainst(a, **run.tool_options())
    outcome = run.train(tool, step_done=lambda _: tool.step())
    comparison = tool.result()
    ids = {comparison.first.id_b} if comparison.first and comparison.first.id_b is not None else set()
    return outcome, Said(comparison.verdict, _row_text(comparison.first) or "; ".join(comparison.unseen), ids)


def one_iter(run: Run) -> tuple[Outcome, Said]:
    paths = {}
    for name, trains in (("a", run.right), ("b", run.train)):
        tool = OneIteration(run.folder / name, iterations=2)

        def step(tool: OneIteration = tool) -> None:
            with contextlib.suppress(SystemExit):  # the program would end here
                tool.step()

        outcome = trains(tool, step_done=lambda _, step=step: step())
        paths[name] = tool.path
    comparison = compare_iterations(op_tools.compare_runs(paths["a"], paths["b"]), accelerator=run.device)
    first = comparison.first
    text = (
        f"{first.module} {first.op} {first.kind}: {first.finding or first.origin} {first.difference:.2g}"
        if first
        else ""
    )
    return outcome, Said(_of_status(comparison.exit_status), text, ops=set())


def ranks(run: Run) -> tuple[Outcome, Said]:
    """Replicas: two of the three ranks do the same."""
    others = [_recorded(replace(run, change=Change(), hits=_Hits()), f"rank{i}", on_cpu=False)[1] for i in range(2)]
    outcome, b = _recorded(run, "b", on_cpu=False)
    runs = compare_many([*others, b])
    text = "; ".join(f"{row.op} {row.phase}: {row.finding}" for row in runs.rows)
    return outcome, Said(_of_status(runs.exit_status), text, {row.id for row in runs.rows if row.run == b.path})


def autocompare(run: Run) -> tuple[Outcome, Said]:
    tool = op_tools.OpAutoCompare(**run.tool_options(), max_saved=0)
    outcome = run.train(tool, step_done=lambda _: tool.step())
    result = tool.result()
    wrong = result.failures
    text = f"{wrong[0].op} {wrong[0].what} step {wrong[0].step}: {wrong[0].kind} {wrong[0].reason}" if wrong else ""
    if wrong:
        text += f" {wrong[0].deciding} {wrong[0].number:.3g} over {wrong[0].limit:.3g}"
    return outcome, Said(result.verdict, text or "; ".join(result.coverage.reasons()), {row.id for row in wrong})


def overflow(run: Run) -> tuple[Outcome, Said]:
    tool = op_tools.OpOverflowCheck(**run.tool_options(), max_saved=0)
    outcome = run.train(tool, step_done=lambda _: tool.step())
    result = tool.result()
    producers = [row for row in result.rows if row.kind == "producer"]
    text = ", ".join(f"{row.op} {row.phase}" for row in producers[:3])
    return outcome, Said(result.verdict, text, {row.id for row in producers})


def replay(run: Run) -> tuple[Outcome, Said]:
    """`run_op_from_data --acc_check` of all that OpCapture saved."""
    tool = op_tools.OpCapture(**run.tool_options(), dedupe=False)
    outcome = run.train(tool, step_done=lambda _: tool.step())
    root = tool.result().root
    calls = {one.path: one for one in calls_below(root)[0]} if root else {}
    reports = replayed(list(calls))
    wrong = [path for path, report in reports.items() if report["status"] == "differs"]
    unjudged = [path for path in calls if reports.get(path, {}).get("status") not in ("agrees", "differs")]
    text = f"{calls[wrong[0]].name}" if wrong else f"{len(unjudged)} of {len(calls)} not judged"
    verdict = verdict_of(wrong=bool(wrong), unseen=len(unjudged) * 2 > len(calls) or not calls)
    return outcome, Said(verdict, text, {calls[path].id for path in wrong})


def bisect(run: Run) -> tuple[Outcome, Said]:
    exact = train(run.program, "cpu", dtype=torch.float64, steps=3).losses
    bisected = op_tools.bisect(lambda _: run.train(steps=3).losses, exact, suspects="none")
    verdict = Verdict.DIFFERS if bisected.verdict == "found" else Verdict.AGREES
    if bisected.verdict == "inconsistent" and "nothing to find" not in bisected.explanation:
        verdict = Verdict.NOT_JUDGED
    ops = {str(culprit["op"]) for culprit in bisected.culprits}
    return run.train(steps=3), Said(verdict, f"{bisected.verdict}: {bisected.explanation} {ops or ''}", ops=ops)


@dataclass(frozen=True)
class Command:
    """How a command is tried."""

    run: Callable[[Run], tuple[Outcome, Said]]
    of_two_runs: bool = True  # edits of the source are changes, too
    spoils: tuple[tuple[str, dict[str, Any]], ...] | None = None  # None: all
    in_every_call: bool = False
    losses_alone: bool = False  # it is told nothing else
    sees_beside: bool = True  # writes behind a part; a saved call has memory of its own
    steps: int = 2
    levels: tuple[str, ...] = ("torch", "aten")


COMMANDS = {
    "compare": Command(compare),
    "against": Command(against),
    "one-iter": Command(one_iter, levels=("torch",)),
    "ranks": Command(ranks),
    "autocompare": Command(autocompare, of_two_runs=False),
    "overflow": Command(overflow, of_two_runs=False, spoils=_NOT_FINITE),
    "replay": Command(replay, of_two_runs=False, levels=("aten",), sees_beside=False),
    "bisect": Command(
        bisect,
        of_two_runs=False,
        spoils=ARITHMETIC_SPOILS,
        in_every_call=True,
        losses_alone=True,
        steps=3,
        levels=("aten",),
    ),
}


# --- The truth ------------------------------------------------------------------------------------------------------------


def _off(command: Command, outcome: Outcome, exact: Outcome) -> float:
    """How far a run is from the program in float64."""
    if command.losses_alone:
        return Outcome(outcome.losses).difference(Outcome(exact.losses))
    return outcome.difference(exact)


def _is_finite(outcome: Outcome) -> bool:
    tensors = [*outcome.gradients.values(), *outcome.parameters.values()]
    return all(map(math.isfinite, outcome.losses)) and all(bool(tensor.isfinite().all()) for tensor in tensors)


def _matters(command: Command, run: Run, outcome: Outcome) -> tuple[bool, float]:
    """Does the change matter, and how far is the run off?"""
    exact = train(run.program, "cpu", dtype=torch.float64, steps=command.steps)
    off = _off(command, outcome, exact)
    if command.spoils is _NOT_FINITE:
        return _is_finite(exact) and not _is_finite(outcome), off
    if off <= (BAND if command.losses_alone else MATTERS):
        return False, off
    clean = replace(run, change=Change(), hits=_Hits()).train(steps=command.steps)
    return off > BEYOND_ROUNDING * _off(command, clean, exact), off


def _kind(command: Command, change: Change, outcome: Outcome, program: Program) -> str:
    """Of a change that matters. An input that is changed behind its last reader has a kind of its own: no call shows it."""
    if change.kind != "mutate_input":
        return change.kind
    exact = train(program, "cpu", dtype=torch.float64, steps=command.steps)
    read = Outcome(outcome.losses, {}, outcome.parameters).difference(Outcome(exact.losses, {}, exact.parameters))
    return change.kind if read > MATTERS else UNREAD


def trial(name: str, seed: int, level: str, *, clean: bool, device: str = "sim", in_parts: bool = False) -> Trial:
    """A trial: the change follows from the seed."""
    command, drawn = COMMANDS[name], program(seed, in_parts=in_parts)
    draw = random.Random(f"all clear {name} {seed}")
    is_spoiled = not command.of_two_runs or draw.random() < SPOILED_PART
    dtype = torch.bfloat16 if name == "autocompare" and draw.random() < BFLOAT16_PART else torch.float32
    if clean:
        change = Change()
    elif is_spoiled:
        change = Change(spoil=_draw_spoil(drawn, draw, command, device))
    else:
        change = Change(edit=draw_edit(drawn, seed))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(drawn, change, level, Path(folder), dtype, device)
        outcome, said = command.run(run)
        matters, off = _matters(command, run, outcome) if not clean else (False, 0.0)
    hit = run.hits.ids if said.ops is None else {change.spoil.op} if change.spoil else set()
    named = bool(hit & (said.ids if said.ops is None else said.ops))
    dtype_text = "" if dtype == torch.float32 else f" in {dtype}"
    text = f"{seed} {level} {drawn.text}{dtype_text}: {change}"
    kind = _kind(command, change, outcome, drawn) if matters else change.kind
    return Trial(text, kind, matters, off, said.verdict, named, said.text)
