"""How far a proof is. Its processes: op_tools/_conformance/workers.py."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line that says how far it is: redrawn on a terminal, now and then elsewhere."""

    def __init__(self, total: int, what: str) -> None:
        self.total, self.what, self.done, self.shown, self.began = total, what, 0, 0.0, time.monotonic()

    def step(self, note: str = "") -> None:
        self.done += 1
        now, tty = time.monotonic(), sys.stderr.isatty()
        if now - self.shown < (0.1 if tty else 30) and self.done < self.total:
            return
        self.shown = now
        filled = 30 * self.done // max(self.total, 1)
        line = f"{self.what} [{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total} {now - self.began:.0f} s {note}"
        sys.stderr.write(f"\r{line[:118]:<118}" if tty else line + "\n")
        if tty and self.done == self.total:
            sys.stderr.write("\n")
        sys.stderr.flush()
