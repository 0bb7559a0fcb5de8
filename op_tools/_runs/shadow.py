"""A run whose operators get the inputs of a captured run: which of them are wrong by themselves?"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Unpack

from .._base.captured_calls import load_call
from .._base.core import Call, Error, log_warn
from .._base.declared_options import ToolOptions
from .._base.own_command import replay_line
from .._base.result_rows import write_rows
from .._base.results import Result, Shown, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.tool import Hook, HookScope, OpCapture, Tool
from .._tools.tool_group import Together
from .comparison import plain_name
from .judged_captures import NOT_JUDGED, WRONG, CapturedId, ConfirmedRow, captured_calls, judged_pairs

_FOLDER = "op_shadow_result"
FILE = "shadow.jsonl"
"""In the folder of its saved calls."""
_SHOWN_NAMES = 3


@dataclass(frozen=True, repr=False)
class ShadowResult(Result):
    """The calls that got captured inputs, each judged by itself."""

    rows: list[ConfirmedRow]
    """A: the captured call; B: the same operator of this program, on A's inputs."""
    left: int
    """Calls of the capture that the program did not make."""
    unfed: int
    """Calls of the program for which the capture has no inputs."""
    problems: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    """Which of the program's calls were seen, and which were not."""
    root: str = ""
    """The folder of its files; "" if nothing was written."""

    @property
    def wrong(self) -> list[ConfirmedRow]:
        """The calls whose operator is wrong by itself."""
        return [row for row in self.rows if row.b == WRONG]

    @property
    def not_judged(self) -> list[ConfirmedRow]:
        """The calls whose results have no verdict: random numbers, operators that the CPU does not have."""
        return [row for row in self.rows if row.b in NOT_JUDGED]

    @property
    def ok(self) -> bool:
        """No operator is wrong, and most calls were judged."""
        return self.verdict is Verdict.AGREES

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all captured calls, and most of the program's, were judged."""
        return verdict_of(wrong=bool(self.wrong), unseen=self.unseen)

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that no operator is wrong; empty where it is."""
        unjudged = len(self.not_judged)
        reasons = {
            "no call had captured inputs": not self.rows,
            f"{self.left} captured calls were not made": self.left > 0,
            f"{self.unfed} calls had no captured inputs": self.unfed > len(self.rows),
            f"{unjudged} of {len(self.rows)} results have no verdict": 2 * unjudged > len(self.rows),
        }
        return [reason for reason, holds in reasons.items() if holds] + self.problems + self.coverage.reasons()

    @property
    def exit_status(self) -> int:
        """0: no operator is wrong; 1: some are; 2: some could not be judged."""
        return status_of(self.verdict)

    def table(self) -> str:
        """For people."""
        columns: list[Shown[ConfirmedRow]] = [
            Shown("step", lambda row: str(row.step), is_number=True),
            worded("op", "op"),
            worded("module", "module"),
            Shown("against A", lambda row: f"{row.outputs:.2g}", is_number=True),
            worded("on CPU", "b"),
        ]
        lines = [f"{len(self.rows)} calls ran on the inputs of the capture, {len(self.wrong)} of them are wrong"]
        if self.wrong:
            lines.append(text_table(columns, self.wrong, -1))
            lines.append(replay_line(self.wrong[0].path_b, "--acc_check"))
        if self.not_judged:
            names = sorted({row.op for row in self.not_judged})
            shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
            lines.append(f"calls without a verdict: {len(self.not_judged)} ({shown})")
        if self.left:
            lines.append(f"{self.left} captured calls were not made")
        if self.unfed:
            lines.append(f"{self.unfed} calls had no captured inputs")
        return "\n".join([*lines, *self.problems])


def _is_like(live: Any, saved: Any) -> bool:
    """Of the same structure: tensors by shape and dtype, numbers by value."""
    if isinstance(saved, torch.Tensor):
        return isinstance(live, torch.Tensor) and live.shape == saved.shape and live.dtype == saved.dtype
    if isinstance(saved, (list, tuple)):
        is_list = isinstance(live, (list, tuple)) and len(live) == len(saved)
        return is_list and all(_is_like(*pair) for pair in zip(live, saved, strict=True))
    if isinstance(saved, dict):
        return isinstance(live, dict) and live.keys() == saved.keys() and all(_is_like(live[k], saved[k]) for k in live)
    if isinstance(saved, (bool, int, float, str)):
        return bool(live == saved)
    return not isinstance(live, torch.Tensor)


def _overwrite(live: Any, saved: Any) -> None:
    if isinstance(saved, torch.Tensor):
        # An expanded tensor is written once.
        once = tuple(
            slice(0, 1) if step == 0 and size > 1 else slice(None)
            for size, step in zip(live.shape, live.stride(), strict=True)
        )
        with torch.no_grad():
            live.data[once].copy_(saved[once])  # .data: autograd saved some of them, and must not see it
    elif isinstance(saved, (list, tuple)):
        for pair in zip(live, saved, strict=True):
            _overwrite(*pair)
    elif isinstance(saved, dict):
        for key, value in saved.items():
            _overwrite(live[key], value)


class _Feeder(Hook):
    """Writes captured inputs over those of the program's calls."""

    def __init__(self, calls: Sequence[CapturedId]) -> None:
        self.waiting: dict[tuple[int, str, str], list[CapturedId]] = defaultdict(list)
        for call in calls:
            self.waiting[(call.step, plain_name(call.name), call.module)].append(call)
        self.fed: dict[int, CapturedId] = {}  # by the number of the program's call
        self.unfed = 0
        self.problems: list[str] = []

    def before(self, call: Call) -> None:
        waiting = self.waiting[(call.step, plain_name(call.name), call.module)]
        for place, candidate in enumerate(waiting):
            try:
                saved = load_call(candidate.path)
                if not _is_like((call.args, call.kwargs), (saved.args, saved.kwargs)):
                    continue
                _overwrite((call.args, call.kwargs), (saved.args, saved.kwargs))
            except (Error, RuntimeError) as error:  # a damaged file, or a tensor that cannot be written
                self.problems.append(f"{candidate.path}: {str(error).partition(chr(10))[0]}")
            else:
                self.fed[call.id] = candidate
            del waiting[place]
            return
        self.unfed += 1


class OpShadow(Together):
    """Gives each operator of this program the inputs that a captured run gave it, and saves its results. A wrong
    operator then has no effect on those after it: a single run names those that are wrong by themselves.

    The inputs are written into the program's own tensors, in place: the program computes the values of the captured run.
    Pairs are calls of an operator in the same module and step, in their order, with the same shapes, dtypes and numbers.

    Args:
        capture: a folder of OpCapture.
        options: those of every tool. The level is the capture's.

    Raises:
        op_tools.Error: there are no captured calls, or on start an option is wrong.
    """

    def __init__(self, capture: str | os.PathLike[str], **options: Unpack[ToolOptions]) -> None:
        super().__init__()
        self._calls, self._options = captured_calls(capture), options
        self._result: ShadowResult | None = None

    def _make(self) -> Sequence[Tool]:
        level = "aten" if "::" in self._calls[0].name else "torch"
        options = ToolOptions(**{"level": level, **self._options})  # type: ignore[typeddict-item]
        options["output_dir"] = Path(options.get("output_dir") or ".") / _FOLDER
        self._feeder, self._capture, self._result = (
            _Feeder(self._calls),
            OpCapture(**options, format="folders", dedupe=False),
            None,
        )
        return [HookScope(self._feeder, **options), self._capture]

    def result(self) -> ShadowResult:
        """The judgement of all calls so far: each is run again on the CPU and in float64, on the same inputs."""
        if self._result is None:
            self._capture.flush()
            feeder, root = self._feeder, self._capture.result().root
            own_calls = {one.id: one for one in captured_calls(root)} if feeder.fed else {}
            pairs = [(a, own_calls[number]) for number, a in feeder.fed.items() if number in own_calls]
            left = sum(map(len, feeder.waiting.values()))
            account = self._tools[0].coverage()
            self._result = ShadowResult(judged_pairs(pairs), left, feeder.unfed, feeder.problems, account, root)
            self._write(self._result)
        return self._result

    @staticmethod
    def _write(result: ShadowResult) -> None:
        """So that op-tools report has it. The account of the calls is there already, the capture's."""
        own_reasons = [reason for reason in result.unseen if reason not in result.coverage.reasons()]
        try:
            if result.root:
                write_rows(Path(result.root) / FILE, result.rows, {"verdict": result.verdict, "unseen": own_reasons})
        except Error as error:
            log_warn(f"OpShadow: {error}")

    def _ended(self) -> None:
        self._result = None
