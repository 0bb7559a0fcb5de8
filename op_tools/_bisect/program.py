"""A bisection inside a program: a trial is a call of a function, from the same state each time."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .._base.checks import checked_choice
from .._base.core import log_progress
from .._tools.tool import Tool
from .._tools.training_steps import mark_steps
from . import REMEDIES, Remedy
from .bisection import Session, Stop, suspects_of
from .items import Call, read_calls
from .outcome import BisectJudge, Outcome
from .result import BisectResult
from .trial_tools import Trial, capture_of, comparison, saved_call_folders, tool_of, unused


class Checkpoint:
    """The state from which each trial begins, in memory: of models, optimizers and other objects with state_dict(), of gradients,
    and of random number generators (torch's of the CPU and of the accelerator, NumPy's, Python's, and generators given).

    Args:
        objects: with state_dict() and load_state_dict(), or torch.Generators. A DataLoader that shuffles draws its order
            from torch's generator, or from a generator among these objects.
    """

    def __init__(self, *objects: Any) -> None:
        self._objects = objects
        modules = [one for one in objects if isinstance(one, torch.nn.Module)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self._devices = {parameter.device for parameter in parameters}
        _wait_for(self._devices)
        self._states = [
            item.get_state() if isinstance(item, torch.Generator) else copy.deepcopy(item.state_dict())
            for item in objects
        ]
        self._gradients = [
            (parameter, None if parameter.grad is None else parameter.grad.clone()) for parameter in parameters
        ]
        self._random = (torch.get_rng_state(), _device_state(), random.getstate(), _numpy_state())

    def restore(self) -> None:
        """Puts everything back, once the devices are idle: a write that is under way would land in restored tensors."""
        _wait_for(self._devices)
        for item, state in zip(self._objects, self._states, strict=True):
            if isinstance(item, torch.Generator):
                item.set_state(state)
            else:
                item.load_state_dict(copy.deepcopy(state))
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.clone()
        of_cpu, of_device, of_python, of_numpy = self._random
        torch.set_rng_state(of_cpu)
        if of_device is not None:
            torch.get_device_module().set_rng_state(of_device)
        random.setstate(of_python)
        if of_numpy is not None:
            _numpy_random().set_state(of_numpy)


def _wait_for(devices: Iterable[torch.device]) -> None:
    # Failures there belong to the trial that is over.
    for device in devices:
        if device.type not in ("cpu", "meta"):
            with contextlib.suppress(RuntimeError):
                torch.accelerator.synchronize(device)


def _device_state() -> Any:
    module = torch.get_device_module()
    return module.get_rng_state() if torch.accelerator.is_available() and hasattr(module, "get_rng_state") else None


def _numpy_random() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)


def _numpy_state() -> Any:
    return _numpy_random().get_state() if _numpy_random() is not None else None


class _InProgram:
    """Trials in this process."""

    def __init__(self, run: Callable[[Tool], Iterable[float]], checkpoint: Checkpoint | None, folder: Path) -> None:
        self._function, self._checkpoint, self._folder = run, checkpoint, folder
        self._count = 0
        self._unseen: list[str] = []

    def run(self, trials: Sequence[Trial], stop: Stop) -> list[Outcome]:
        return [self._one(tool_of(trial, self._new_folder()), stop) for trial in trials]

    def _new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / f"run{self._count}"
        folder.mkdir()
        return folder

    def _one(self, tool: Tool, stop: Stop) -> Outcome:
        if self._checkpoint:
            self._checkpoint.restore()
        outcome, began = Outcome(), time.monotonic()
        steps = mark_steps([tool])
        try:
            with tool:
                for number in self._function(tool):
                    outcome.curve.append(float(number))
                    if stop(outcome.curve):
                        outcome.ended = "left the band"
                        break
        except Exception as error:  # the program's exception is the outcome
            outcome.ended, outcome.note = "failed", f"{type(error).__name__}: {error}".partition("\n")[0]
        finally:
            steps.remove()
        outcome.seconds = time.monotonic() - began
        account = tool.coverage()
        account.accelerator = ""  # whether calls ran on it, calls() says
        if account.seen:
            self._unseen = list(dict.fromkeys(self._unseen + account.reasons()))
        return outcome

    def calls(self) -> list[Call]:
        return read_calls(sorted(self._folder.glob("*/list.*"), key=os.path.getmtime))

    def has_torch(self) -> bool:
        return True

    def unseen(self) -> list[str]:
        return self._unseen

    def compare(self, seconds: float) -> Path:  # noqa: ARG002  (a call cannot be ended from outside)
        folder = self._folder / "suspects"
        self._one(comparison(folder), lambda _: True)  # the first step is enough
        return folder

    def capture(self, calls: Sequence[Call], moved: Trial) -> list[str]:
        into = unused(Path.cwd() / "op_bisect_result")
        with capture_of(calls, into):
            self._one(tool_of(moved, self._new_folder()), lambda _: True)  # the first step is enough
        return saved_call_folders(into)


def bisect(
    run: Callable[[Tool], Iterable[float]],
    judge: BisectJudge | Sequence[float] | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    remedy: Remedy = "fallback",
    suspects: str = "auto",
    say: Callable[[str], None] | None = None,
) -> BisectResult:
    """Finds the smallest set of operators that have to run elsewhere so that the numbers of a few steps are right.

    Args:
        run: does some steps from the same state and gives a number for each, the loss mostly: a list, or a generator, which is
            ended as soon as its numbers are wrong. Its argument is the tool that is on: call its step() at the end of a step
            where no optimizer's step does that.
        judge: the numbers of a right run, or a :class:`BisectJudge`. None: those with everything moved are right.
        checkpoint: restored before each trial. None: `run` begins from the same state by itself.
        remedy: "fallback": moved to the CPU; "float32": computed in float32; "placebo": on their own device, on copies, waiting.
        suspects: which operators are tried first. "auto": the worst of OpAutoCompare on the first step, where that takes less time than
            it can save; "none"; or a result of OpAutoCompare, a folder or autocompare.csv.
        say: takes lines about the progress.

    Returns:
        the verdict, the culprits, and folders with a captured call of each.

    Raises:
        op_tools.Error: an argument is wrong.
    """
    checked_choice("remedy", remedy, REMEDIES)
    with tempfile.TemporaryDirectory(prefix="op_bisect_") as folder:
        session = Session(
            _InProgram(run, checkpoint, Path(folder)),
            judge if isinstance(judge, BisectJudge) else BisectJudge(judge),
            remedy,
            suspects_of(suspects),
            say=say or (lambda _: None),
            draw=log_progress,
        )
        return session.run()
