"""Training steps, which optimizers end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle


class HasSteps(Protocol):
    """A tool, or several that are on together."""

    _marks_steps: bool
    """Optimizers end its steps."""

    def step(self) -> None:
        """Ends a training step."""


def mark_steps(tools: Sequence[HasSteps]) -> RemovableHandle:
    """Makes each step of an optimizer a training step of the tools, for their `steps`; until the handle is removed."""

    def mark(*_: Any) -> None:
        for tool in tools:
            tool.step()

    for tool in tools:
        tool._marks_steps = True
    return register_optimizer_step_post_hook(mark)
