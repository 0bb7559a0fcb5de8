"""The work of a rank and its times, as they are compared with those of other ranks."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

TRACE_FILE = "trace.json"
"""Its head says how a run measured."""
FEWEST_CALLS = 4
"""Of an operator, whose time then says something: the first call of a process is long."""
MOST_MS = 1e12
"""A time beyond comes from a damaged file."""
SEPARATOR = "\0"
"""Between the parts of a key."""


class Mode(str, enum.Enum):
    """The meaning of a rank's times."""

    MEASURED = "measured"
    """The device's work, or the host's where it does the work itself."""
    ISSUED = "issued"
    """The time to issue work to a device: mode host."""
    UNKNOWN = "unknown"
    """On a device, and no file says how."""


class Measure(enum.IntEnum):
    """Two sums of a rank's times."""

    EACH = 0
    """As if each call took as long as the shortest of its operator: what else runs on a machine makes some calls longer, and not all."""
    SOME = 1
    """All calls but the longest of each operator: a rank that is slow in some of them."""


@dataclass
class Work:
    """The operators of a rank, by operator, phase, shapes, dtypes and kind of device."""

    mode: Mode = Mode.MEASURED
    kind: bytes = b""
    """Of all of its operators and their calls: ranks with the same work have the same."""
    keys: list[str] = field(default_factory=list)
    """Operator, phase, shapes, dtypes and kind of device, with SEPARATOR. Sorted; a text of many ranks is a single object."""
    calls: array[int] = field(default_factory=lambda: array("q"))
    times: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    """By Measure: self time in milliseconds; 0 of few calls."""
    self_ms: float = 0.0
    """Of all operators but collectives."""
    waits_ms: float = 0.0
    """Of collectives."""

    def rows(self) -> Iterator[tuple[str, int, float, float]]:
        """Key, calls, and the times by Measure."""
        return zip(self.keys, self.calls, *self.times, strict=True)
