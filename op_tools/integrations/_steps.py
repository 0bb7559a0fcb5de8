"""What the callbacks have in common: tools that are on in chosen training steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import _C
from .._tools import Tool


class ToolsInSteps:
    """Switches tools on and off as training steps begin and end.

    A step is what one optimizer step needs: several batches where gradients are accumulated. Each tool's own steps (its
    ``steps=``, the step in what it records) are these.

    Args:
        tools: which; their result() is there after training.
        steps: the training steps in which they are on, counted from 0 as the framework counts. None: in all.

    Raises:
        op_tools.Error: when there is no tool, or a step is negative.
    """

    def __init__(self, tools: Sequence[Tool], steps: Iterable[int] | None = None) -> None:
        self.tools = list(tools)
        self.steps = None if steps is None else frozenset(steps)
        if not self.tools or not all(isinstance(tool, Tool) for tool in self.tools):
            raise _C.Error("OpToolsCallback: give at least one tool, as [op_tools.OpTimeMeasure()]")
        if self.steps is not None and any(step < 0 for step in self.steps):
            raise _C.Error(f"OpToolsCallback: steps are counted from 0, not {min(self.steps)}")
        self._on = False

    def step_begins(self, number: int) -> None:
        """Step `number` begins, or goes on with another batch."""
        wanted = self.steps is None or number in self.steps
        if wanted and not self._on:
            for tool in self.tools:
                tool.start()
            self._on = True
        elif not wanted:
            self.training_ends()

    def step_ends(self, number: int) -> None:
        """The optimizer has made its step; tools that are not wanted in the next one go off."""
        if not self._on:
            return
        for tool in self.tools:
            tool.step()
        if self.steps is not None and number + 1 not in self.steps:
            self.training_ends()

    def training_ends(self) -> None:
        """All tools off, whether or not training came to its end."""
        if self._on:
            self._on = False
            for tool in reversed(self.tools):
                tool.stop()
