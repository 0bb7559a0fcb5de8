"""Is the outcome of a trial right: how far its curve of numbers is from that of a right run, and how the run ended."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .._base.checks import checked_pattern
from .._base.core import Error
from .search import Answer

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
LOSS = rf"\bloss\b[\"']?\s*[:=]?\s*({NUMBER})"
"""Finds `loss 0.5`, `loss: 0.5`, `loss=nan` and `"loss": 0.5`."""
OWN_LINE = re.compile(r"\W*op[-_]tools\b")  # lines of the tools are no output of the program
SKIPPED = 125  # the exit status of a trial that says nothing, as with git bisect run
REFERENCE_BAND = 0.01
LEAST_BAND = 1e-3  # two right ways to compute differ by less after some steps in float32
ROUNDING = 1e-5  # the least band: devices that are right round otherwise, and steps let that grow

Ended = Literal["done", "failed", "crashed", "hung", "left the band", "skipped"]


@dataclass
class Outcome:
    """The outcome of a trial."""

    curve: list[float] = field(default_factory=list)
    """A number for each step, the loss mostly."""
    ended: Ended = "done"
    note: str = ""
    """How it ended, where that is not well: an exit status, a signal, the last line of an error."""
    seconds: float = 0.0
    tail: str = ""
    """The last lines that the program printed, where no number was found in them."""


class Metric:
    """Reads numbers from lines of output.

    Args:
        pattern: a regular expression; its first group (else all of it) is a number.

    Raises:
        op_tools.Error: the expression is wrong.
    """

    def __init__(self, pattern: str = LOSS) -> None:
        self._pattern = checked_pattern("--metric", pattern, re.IGNORECASE)

    def numbers(self, line: str) -> list[float]:
        """The numbers in a line; none where the expression matches no number, and in lines of the tools.

        By itself, without an expression, a line that is a list in JSON is found, too, or has a list under "loss".
        """
        if OWN_LINE.match(line):
            return []
        if self._pattern.pattern == LOSS and (listed := _json_numbers(line)):
            return listed
        numbers = []
        for match in self._pattern.finditer(line):
            text: str | None = match.group(1 if self._pattern.groups else 0)
            with contextlib.suppress(ValueError):
                numbers.append(float(text or ""))
        return numbers


def _json_numbers(text: str) -> list[float]:
    """Those of a list in JSON, or of the list under "loss" in an object; none where the text is something else."""
    try:
        content: Any = json.loads(text) if text.lstrip()[:1] in ("[", "{") else None
        content = content.get("loss") if isinstance(content, dict) else content
        return [float(one) for one in content] if isinstance(content, list) else []
    except (ValueError, TypeError):
        return []


def read_reference(path: str, metric: Metric) -> list[float]:
    """The numbers of a right run: a list in JSON, the list under "loss" in an object, or lines as the program prints them.

    Raises:
        op_tools.Error: the file cannot be read, or holds no finite numbers.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Error(f"--reference {path}: {error.strerror}") from None
    try:
        content: Any = json.loads(text)
        content = content.get("loss") if isinstance(content, dict) else content
        numbers = [float(one) for one in (content if isinstance(content, list) else [content])]
    except (ValueError, TypeError):
        numbers = [number for line in text.splitlines() for number in metric.numbers(line)]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise Error(f"--reference {path}: give a JSON list of finite numbers, or lines such as 'loss 0.5'")
    return numbers


def curve_distance(curve: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative distance at the steps that both have; infinite for NaN. 0 for curves without numbers."""
    scale = max((abs(one) for one in reference), default=0.0) * 1e-3 or 1.0
    far = 0.0
    for number, right in zip(curve, reference, strict=False):
        if not math.isfinite(number):
            return math.inf
        far = max(far, abs(number - right) / max(abs(right), scale))
    return far


class BisectJudge:
    """Judges outcomes. Without a reference, the run in which everything was moved is taken for right.

    Args:
        reference: the numbers of a right run.
        band: how far a right run may be from them, relatively; None: measured, REFERENCE_BAND at most with a reference.

    Raises:
        op_tools.Error: the band is no positive number.
    """

    def __init__(self, reference: Sequence[float] | None = None, band: float | None = None) -> None:
        if band is not None and not (math.isfinite(band) and band > 0):
            raise Error(f"band={band} is not allowed; give a number above 0, such as 0.01")
        self.reference = list(reference) if reference is not None else None
        self.band = band
        self._given = band is not None
        self._most = math.inf if reference is None else REFERENCE_BAND
        self.reads_numbers = reference is None or bool(reference)
        """False: how a run ends says all."""

    def far(self, outcome: Outcome) -> float:
        """The distance of an `outcome`; infinite where the run did not come to its end."""
        if outcome.ended != "done" or (self.reference and len(outcome.curve) < len(self.reference)):
            return math.inf
        return curve_distance(outcome.curve, self.reference or [])

    def left_band(self, curve: Sequence[float]) -> bool:
        """The `curve` of a run that goes on is outside already: the run need not go on."""
        if self.reference is None or self.band is None:
            return False
        return curve_distance(curve, self.reference) > self.band

    def answer(self, outcome: Outcome) -> Answer:
        """The answer of an `outcome`: good, bad, or skip."""
        if outcome.ended == "skipped":
            return "skip"
        band = ROUNDING if self.band is None else self.band
        return "good" if self.far(outcome) <= band else "bad"

    def settle(self, nothing: Sequence[Outcome], everything: Sequence[Outcome]) -> bool:
        """Chooses reference and band from the opening runs with `nothing` and with `everything` moved. True: the two sides touch."""
        if self.reference is None:
            ended = [one for one in everything if one.ended == "done"]
            self.reference = ended[0].curve if ended else []
        right = [self.far(one) for one in everything]
        wrong = [self.far(one) for one in nothing]
        if not self._given:
            noise = max((one for one in right if math.isfinite(one)), default=0.0)
            middle = math.sqrt(max(noise, ROUNDING) * min([*wrong, 1.0]))
            measured = max(min(max(LEAST_BAND, 10 * noise), middle), ROUNDING)
            self.band = min(measured, self._most) if noise <= self._most else self._most
        assert self.band is not None
        return sum(one <= self.band for one in wrong) not in (0, len(wrong)) or sum(
            difference <= self.band for difference in right
        ) not in (0, len(right))
