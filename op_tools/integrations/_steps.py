"""Base of the callbacks: tools that are on in chosen training steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._base.core import Error
from .._tools.tool import Tool


class ToolsInSteps:
    """Starts and stops tools as training steps begin and end.

    A step is a single optimizer step: several batches if gradients are accumulated. ``steps=`` of the tools, and the steps in
    their records, count the same steps.

    Args:
        tools: the tools; their result() is complete after training.
        steps: the training steps in which they are on, counted from 0 by the framework. None: all.

    Raises:
        op_tools.Error: there is no tool, or a step is negative.
    """

    def __init__(self, tools: Sequence[Tool], steps: Iterable[int] | None = None) -> None:
        self.tools = list(tools)
        self.steps = None if steps is None else frozenset(steps)
        if not self.tools or not all(isinstance(tool, Tool) for tool in self.tools):
            raise Error("OpToolsCallback: give a tool, or several, as [op_tools.OpTimeMeasure()]")
        if self.steps is not None and any(step < 0 for step in self.steps):
            raise Error(f"OpToolsCallback: steps are counted from 0, not {min(self.steps)}")
        self._on = False

    def step_begins(self, number: int) -> None:
        """Step `number` begins, or continues with another batch."""
        wanted = self.steps is None or number in self.steps
        if wanted and not self._on:
            for tool in self.tools:
                tool.start()
            self._on = True
        elif not wanted:
            self.training_ends()

    def step_ends(self, number: int) -> None:
        """The optimizer has made its step; tools that are not on in the next step are stopped."""
        if not self._on:
            return
        for tool in self.tools:
            tool.step()
        if self.steps is not None and number + 1 not in self.steps:
            self.training_ends()

    def training_ends(self) -> None:
        """Stops all tools, also after an exception."""
        if self._on:
            self._on = False
            for tool in reversed(self.tools):
                tool.stop()
