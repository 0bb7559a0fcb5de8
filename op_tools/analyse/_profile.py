"""Which operators calls make on a device, as torch's profiler sees them.

Used while a support table is made (`_support.py`), beside `Watch`. A dispatch mode changes the watched program: with a mode on, autograd
adds gradients out of place, and some formulas of backward take another way. The profiler changes nothing.
"""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from .._torch.operator_support import refused, registration

_MARK = "op_tools part "


@dataclass
class Part:
    """The operators of a part of a program."""

    operators: set[str] = field(default_factory=set)
    error: Exception | None = None
    refused: str = ""
    """The operator that the device does not have, which ended the part."""


class Profile:
    """Runs parts of a program in turn; `parts` is there after close()."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.parts: list[Part] = []

    @contextmanager
    def on(self) -> Iterator[None]:
        """While it is entered parts can be run; afterwards each knows its operators."""
        with _quiet():
            config = _ExperimentalConfig(capture_overload_names=True)
            with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
                yield
        self._fill(profiler.profiler.kineto_results.events())

    @contextmanager
    def part(self) -> Iterator[Part]:
        """A part of the program. An exception of it ends it and is noted."""
        part = Part()
        with record_function(f"{_MARK}{len(self.parts)}"):
            self.parts.append(part)
            try:
                yield part
            except Exception as error:
                part.error = error

    def _fill(self, events: list[Any]) -> None:
        """Events of other threads, as those of backward, belong to the part during which they began. torch's own list of
        events (`profile.events()`) leaves out an operator in an operator of the same name, so the raw events are read."""
        threads: dict[int, list[Any]] = {}
        for event in sorted(events, key=lambda one: (one.start_ns(), -one.end_ns())):
            threads.setdefault(event.start_thread_id(), []).append(event)
        marks = sorted(
            (event.start_ns(), event.end_ns(), int(event.name().removeprefix(_MARK)))
            for event in events
            if event.name().startswith(_MARK)
        )
        last: dict[int, tuple[int, str]] = {}
        for of_thread in threads.values():
            for start, name in self._operators(of_thread):
                index = bisect.bisect_right(marks, start, key=lambda one: one[0]) - 1
                if index < 0 or start > marks[index][1]:
                    continue
                number = marks[index][2]
                self.parts[number].operators.add(name)
                last[number] = max(last.get(number, (0, "")), (start, name))
        for number, part in enumerate(self.parts):
            if part.error is not None and refused(part.error):
                part.refused = last.get(number, (0, ""))[1]

    def _operators(self, events: list[Any]) -> Iterator[tuple[int, str]]:
        """When each operator began, and its full name; but for composite operators, taken apart above the device, and for calls
        of a kernel. The events are of a single thread, sorted."""
        around: list[
            tuple[int, bool]
        ] = []  # the end of each event that goes on; whether it is a kernel, or in a kernel
        for event in events:
            while around and around[-1][0] < event.end_ns():
                around.pop()
            name = f"{event.name()}.{event.overload_name()}" if event.overload_name() else event.name()
            inside = bool(around) and around[-1][1]
            kind = _kind(name, self._key) if name in _all_operators() else ""
            if kind and not inside and kind != "CompositeImplicitAutograd":
                yield event.start_ns(), name
            around.append((event.end_ns(), inside or (bool(kind) and not kind.startswith("Composite"))))


@functools.cache
def _all_operators() -> frozenset[str]:
    return frozenset(one for one in torch._C._dispatch_get_all_op_names() if not one.startswith("prim::"))


@functools.cache
def _kind(name: str, key: str) -> str:
    """The kind of a composite operator, else the kind of the device's kernel."""
    kind, evidence = registration(name, key)
    return evidence if kind == "composite" else kind


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's library writes a line when it starts and ends, unless this variable says otherwise at its first use."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
