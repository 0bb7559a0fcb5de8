"""Several tools that are on together for a common purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType

from typing_extensions import Self

from .tool import Tool


class Together:
    """A context manager over tools; those that do the work are made when it starts."""

    def __init__(self) -> None:
        self._marks_steps = False  # optimizers end its steps
        self._tools: Sequence[Tool] = ()
        self._scopes = contextlib.ExitStack()

    def _make(self) -> Sequence[Tool]:
        """The tools of a new run, the outermost first."""
        raise NotImplementedError

    def _ended(self) -> None:
        """All tools are off, and their files are on disk."""

    @property
    def was_started(self) -> bool:
        """There is a result."""
        return bool(self._tools)

    def start(self) -> Self:
        """Starts the tools on this thread.

        Raises:
            op_tools.Error: an option is wrong, or a file cannot be read.
        """
        tools = self._make()
        with contextlib.ExitStack() as scopes:
            for tool in tools:
                tool._goes_to_children = False  # it selects calls of this process
                scopes.callback(tool.start().stop)
            self._scopes = scopes.pop_all()
        self._tools = tools
        return self

    def stop(self) -> None:
        """Stops them."""
        self._scopes.close()
        self._ended()

    def step(self) -> None:
        """Ends a training step. Steps count from 0."""
        for tool in self._tools:
            tool.step()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
