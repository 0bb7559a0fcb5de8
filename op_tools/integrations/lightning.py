"""Tools in Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl  # its older name

from .._tools.tool import Tool
from ._steps import ToolsInSteps


class OpToolsCallback(pl.Callback):
    """Tools on in chosen steps of a Trainer, on each of its processes.

    Trainer(..., callbacks=[OpToolsCallback([op_tools.OpTimeMeasure()], steps=range(10, 12))])

    Args:
        tools: the tools; their result() is complete after training.
        steps: optimizer steps in which they are on, as counted by trainer.global_step from 0. None: all.

    Raises:
        op_tools.Error: there is no tool, or a step is negative.
    """

    def __init__(self, tools: Sequence[Tool], steps: Iterable[int] | None = None) -> None:
        self._steps = ToolsInSteps(tools, steps)
        self._before = 0  # optimizer steps before the batch

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._before = trainer.global_step
        self._steps.step_begins(self._before)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        for step in range(self._before, trainer.global_step):  # none while gradients are accumulated
            self._steps.step_ends(step)

    def on_train_end(self, *_: Any) -> None:
        self._steps.training_ends()

    def on_exception(self, *_: Any) -> None:
        self._steps.training_ends()
