"""Graphs that ran while a tool was on, whose operators it does not see: torch.compile's, and AOTInductor's models.

Also those that were compiled or loaded before. What torch has for this is private: where it is otherwise, only the graphs
count that are compiled while the tool is on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_OF_GRAPHS = "do not trace Dynamo-compiled graph"  # why torch's own compiler is to leave a function alone
_on: list[GraphRuns] = []


class GraphRuns:
    """Counts from when it is made to its end."""

    def __init__(self) -> None:
        _watch()
        self._ran: set[int] = set()  # the addresses of their functions
        self._made_before, self._made = _made(), -1  # -1: it counts
        _on.append(self)

    def end(self) -> None:
        """What was counted stays."""
        if self in _on:
            _on.remove(self)
            self._made = _made()

    @property
    def count(self) -> int:
        """Each graph once, however often it ran."""
        made = (_made() if self._made < 0 else self._made) - self._made_before
        return max(made, len(self._ran))  # those that were made ran, too

    def note(self, function: object) -> None:
        """The graph of this function runs."""
        self._ran.add(id(function))


def _made() -> int:
    """Graphs that torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _note(function: object) -> None:
    for one in _on:
        one.note(function)


def _watch() -> None:
    """Compiled functions ask for the stance when they begin; whose turn it is stands in the frame that asks."""
    _watch_models()
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    before = getattr(frames, "_callback_from_stance", None)
    if before is None or hasattr(before, "watches_graphs"):
        return

    def callback_from_stance(callback: Any) -> Any:
        if callback is None and _on:
            _look_at(sys._getframe(1))
        return before(callback)

    callback_from_stance.watches_graphs = True  # type: ignore[attr-defined]
    frames._callback_from_stance = callback_from_stance


def _look_at(frame: FrameType) -> None:
    if frame.f_code.co_name == "_fn":
        names = frame.f_locals
        if getattr(names.get("self"), "msg", None) == _OF_GRAPHS:
            _note(names.get("fn"))


@functools.cache
def _watch_models() -> None:
    for kind in vars(getattr(torch._C, "_aoti", object())).values():
        for name in ("run", "boxed_run"):
            if isinstance(kind, type) and name in vars(kind):
                setattr(kind, name, _noting(getattr(kind, name)))


def _noting(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def noting(model: object, *args: Any, **kwargs: Any) -> Any:
        _note(model)
        return run(model, *args, **kwargs)

    return noting
