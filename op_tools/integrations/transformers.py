"""Tools in HuggingFace's Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .._tools.tool import Tool
from ._steps import ToolsInSteps


class OpToolsCallback(TrainerCallback):
    """Tools on in chosen steps of a Trainer, on each of its processes.

    Trainer(..., callbacks=[OpToolsCallback([op_tools.OpTimeMeasure()], steps=range(10, 12))])

    Args:
        tools: the tools; their result() is complete after training.
        steps: optimizer steps in which they are on, as counted by state.global_step from 0. None: all.

    Raises:
        op_tools.Error: there is no tool, or a step is negative.
    """

    def __init__(self, tools: Sequence[Tool], steps: Iterable[int] | None = None) -> None:
        self._steps = ToolsInSteps(tools, steps)

    def on_step_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._steps.step_begins(state.global_step)

    def on_step_end(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._steps.step_ends(state.global_step - 1)  # it counts before it tells

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._steps.training_ends()
