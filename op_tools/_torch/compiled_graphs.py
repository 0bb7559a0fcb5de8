"""Graphs that ran while a tool was on, whose operators it does not see: torch.compile's, and AOTInductor's models.

Also those that were compiled or loaded before, and compiled functions that ran operator by operator because a tool of the
torch level was on: the compiler's code did not run. torch's interface for this is private: where it is otherwise, only the
graphs count that are compiled while the tool is on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .compat import is_graph
from .compiled_mode import TorchFunctionMode

_on: list[GraphRuns] = []


class GraphRuns:
    """Counts from when it is made to its end."""

    def __init__(self) -> None:
        _watch()
        self._ran: set[int] = set()  # the addresses of the graphs' functions
        self._left: set[int] = set()  # the addresses of compiled functions that ran operator by operator
        self._made_before, self._made = _made(), -1  # -1: it counts
        _on.append(self)

    def end(self) -> None:
        """Counts stay."""
        if self in _on:
            _on.remove(self)
            self._made = _made()

    @property
    def count(self) -> int:
        """Each graph once, however often it ran."""
        compiled = (_made() if self._made < 0 else self._made) - self._made_before
        return max(compiled, len(self._ran), len(self._left))  # a graph that was made ran, too; a function has a graph

    def note(self, function: object, *, is_graph: bool) -> None:
        """A graph runs, or a compiled function whose graphs do not."""
        (self._ran if is_graph else self._left).add(id(function))


def _made() -> int:
    """Graphs that torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _note_run(function: object, *, is_graph: bool = True) -> None:
    for runs in _on:
        runs.note(function, is_graph=is_graph)


def _watch() -> None:
    """Compiled functions ask for the stance when they begin; whose turn it is stands in the frame that asks."""
    _watch_models()
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    before = getattr(frames, "_callback_from_stance", None)
    if before is None or hasattr(before, "watches_graphs"):
        return

    def callback_from_stance(callback: Any) -> Any:
        chosen = before(callback)
        if _on:
            _look_at(sys._getframe(1), compiles=chosen not in (None, False))
        return chosen

    callback_from_stance.watches_graphs = True  # type: ignore[attr-defined]
    frames._callback_from_stance = callback_from_stance


def _look_at(frame: FrameType, *, compiles: bool) -> None:
    name = frame.f_code.co_name
    if name == "_fn" and is_graph(frame):
        _note_run(frame.f_locals.get("fn"))
    elif name in ("compile_wrapper", "_fn") and compiles and _breaks_graphs():
        _note_run(frame.f_locals.get("fn"), is_graph=False)


def _breaks_graphs() -> bool:
    """Is a tool of the torch level on, at whose calls torch.compile breaks its graph?"""
    modes = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
    return any(isinstance(mode, TorchFunctionMode) for mode in modes)


@functools.cache
def _watch_models() -> None:
    for kind in vars(getattr(torch._C, "_aoti", object())).values():
        for name in ("run", "boxed_run"):
            if isinstance(kind, type) and name in vars(kind):
                setattr(kind, name, _noting(getattr(kind, name)))


def _noting(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def noting(model: object, *args: Any, **kwargs: Any) -> Any:
        _note_run(model)
        return run(model, *args, **kwargs)

    return noting
