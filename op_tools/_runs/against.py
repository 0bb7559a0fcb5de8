"""A run that is compared with the recording of another run while it goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Unpack

from .._base.account import ACCOUNT_FILE
from .._base.core import Error, compare_runs, log_warn, read_recording, recording_before_step
from .._base.data_file import read_json
from .._base.declared_options import ToolOptions
from .._base.declared_rows import RunRow
from .._base.own_command import replay_line
from .._base.results import short_name
from .._base.verdict import Verdict, status_of, verdict_of
from .._base.written_file import whole_file
from .._tools.record import OpRecord
from .._tools.tool import OpCapture, Tool
from .._tools.tool_group import Together
from .compare_runs import Fusions, PathOrRecording, open_run, rank_of
from .judged_captures import calls_below

_FOLDER = "op_against_result"


def _account_without_calls(file: Path) -> None:
    """The calls of steps that agree were deleted: their number in the account would make them missing ones."""
    if not file.is_file():
        return
    try:
        facts = read_json(file)
        with whole_file(file, errors="strict") as text:
            json.dump(facts | {"rows": {}}, text, indent=2)
    except Error as error:
        log_warn(f"against: {error}")


@dataclass(frozen=True)
class LiveResult:
    """The comparison so far."""

    recording: str
    """This run's recording; it goes on after the divergence."""
    first: RunRow | None
    """The first divergence."""
    capture: str
    """The folder of that call, with its inputs and results in full; "" if only the other run makes it."""
    steps: int
    """How many times the runs were compared: after each step with calls, and at the end."""
    unseen: list[str] = field(default_factory=list)
    """Why it is not known whether the runs agree; empty where it is."""

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where the runs were compared."""
        return verdict_of(wrong=self.first is not None, unseen=self.unseen)

    @property
    def ok(self) -> bool:
        """The runs were compared and agree so far."""
        return self.verdict is Verdict.AGREES


class OpAgainst(Together):
    """Compares this program (B) with a recording (A) while it runs: at the end of each step, and at its own end. Of a step
    all calls are captured; they are deleted where the step agrees. At the first divergence that was born in B, a line is
    printed, and its call stays, with all tensors. The verdicts are those of :func:`compare_runs`.

    Args:
        a: the recording: a file, a folder with a file for each rank, or a result of :func:`read_recording`.
        stop: end the program there, by SystemExit with status 1.
        noise: a recording of A's program with its rounding changed, as of compare_runs.
        fusions: as of compare_runs.
        options: those of every tool. The level is A's; operators, modules and steps are to be those that A recorded.

    Raises:
        op_tools.Error: on start, when there is no such recording or an option is wrong.
    """

    def __init__(
        self,
        a: PathOrRecording,
        *,
        stop: bool = False,
        noise: PathOrRecording | None = None,
        fusions: Fusions = (),
        **options: Unpack[ToolOptions],
    ) -> None:
        super().__init__()
        self._of_a, self._of_noise = open_run(a), open_run(noise) if noise is not None else {}
        self._stop, self._options = stop, options
        self._fusions = [(list(one), list(other)) for one, other in fusions]
        self._begin()

    def _begin(self) -> None:
        """Nothing of this run was compared."""
        self._first: RunRow | None = None
        self._path, self._steps, self._calls, self._is_over = "", 0, 0, False
        self._ended_steps, self._left_out_steps = 0, False  # left out: the last comparison was with a part of A
        self._failure = ""  # the error that ended the comparison

    def _make(self) -> Sequence[Tool]:
        header = next(iter(self._of_a.values())).header
        options = ToolOptions(**self._options)
        if isinstance(header, dict) and header.get("level") in ("aten", "torch"):
            options.setdefault("level", header["level"])
        options["output_dir"] = Path(options.get("output_dir") or ".") / _FOLDER
        self._record, self._capture = OpRecord(**options), OpCapture(**options, format="folders", dedupe=False)
        self._begin()
        return [self._capture, self._record]

    def step(self) -> None:
        """Ends a training step, and compares it. Steps count from 0.

        Raises:
            SystemExit: the runs part in it, and stop=True.
        """
        super().step()
        self._ended_steps += 1
        self._compare(until_step=self._ended_steps)
        if self._first is not None and self._stop and not self._is_over:
            self._is_over = True
            raise SystemExit(status_of(Verdict.DIFFERS))

    def _ended(self) -> None:
        self._compare()
        if root := self._capture.result().root:
            _account_without_calls(Path(root) / ACCOUNT_FILE)

    def result(self) -> LiveResult:
        """The comparison so far."""
        reasons = [self._failure] if self._failure else [] if self._steps else ["nothing was compared"]
        if self._steps:
            reasons += self._record.coverage().reasons()
        return LiveResult(self._record.path, self._first, self._path, self._steps, reasons)

    def _compare(self, until_step: int | None = None) -> None:
        """Compares all that was recorded so far. A failure in here is no failure of the program.

        Args:
            until_step: the steps of A from this one on are not in B yet. None: B is over.
        """
        if self._first is not None or self._is_over:
            return
        try:
            self._record.flush()
            self._capture.flush()
            calls = self._record.result().calls
            if calls > self._calls or (calls and until_step is None and self._left_out_steps):
                self._calls = calls
                self._look(until_step)
        except Exception as error:
            self._is_over, self._failure = True, str(error)
            log_warn(f"against: the program is no longer compared: {error}")

    def _look(self, until_step: int | None) -> None:
        b = read_recording(self._record.path)
        rank = rank_of(b.header)
        if rank not in self._of_a:
            raise Error(f"A has no rank {rank}")
        all_of_a = self._of_a[rank]
        a = all_of_a if until_step is None else recording_before_step(all_of_a, until_step)
        self._left_out_steps = a.calls < all_of_a.calls
        compared = compare_runs(a, b, noise=self._of_noise.get(rank), fusions=self._fusions)
        self._steps += 1
        root = (
            self._capture.result().root
        )  # of a backward pass alone, or of calls that are never captured, there is none
        calls = {one.id: one.path for one in calls_below(root)[0]} if root else {}
        if compared.first is not None:
            first = RunRow(**compared.row(compared.first))
            self._path = calls.pop(first.id_b, "") if first.id_b is not None else ""
            self._first = first
            self._say(first)
        for path in calls.values():
            shutil.rmtree(path)
        if self._first is not None:
            self._capture.stop()

    def _say(self, first: RunRow) -> None:
        where = ", ".join(filter(None, [first.module, first.line_b or first.line, f"step {first.step}"]))
        saved = f"; saved: {replay_line(str(self._path), '--acc_check')}" if self._path else ""
        log_warn(
            f"against: {short_name(first.op_b or first.op)} ({first.phase}, {where}): {first.verdict}: "
            f"{first.finding}{saved}"
        )
