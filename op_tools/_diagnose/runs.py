"""Runs the commands of a diagnosis, watches the black box of the program meanwhile, and keeps on disk how each ended."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._base.checks import Kinds, checked_object
from .._base.core import Error
from .._base.state_file import append_state, read_state
from .._tools.black_box_file import BlackBox
from .._tools.black_boxes import read_black_boxes
from .program import shown

OUTPUT = "output.txt"
_LOOK_EVERY = 1.0  # seconds between two looks at the black boxes
_BEYOND = 45.0  # seconds after its limit in which a command that is ended by `timeout` has to be gone
_TIMED_OUT = 124  # the exit status of `timeout`
_BUSY = 0.2  # of a core: a process that computes outside of operators


class Ended(str, enum.Enum):
    """How a command ended."""

    DONE = "done"
    FAILED = "failed"
    """With an exit status of its own."""
    CRASHED = "crashed"
    HUNG = "hung"
    ENOUGH = "enough"
    """It was ended after so many training steps."""
    CUT = "cut"
    """It was ended when its time was over."""

    __str__ = str.__str__


@dataclass(frozen=True)
class Run:
    """A command, and how it ended."""

    command: str
    folder: str
    ended: Ended
    status: int
    seconds: float
    steps: int = 0
    """Training steps, as its black boxes say."""

    @property
    def output(self) -> str:
        """Its output, of both streams; "" where it is gone."""
        try:
            return (Path(self.folder) / OUTPUT).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


class RunState:
    """How each command ended, a line of JSON each, in a file that a kill at any moment leaves readable.

    Raises:
        op_tools.Error: there is a state of another diagnosis, or a state without `resume`; or it cannot be written.
    """

    def __init__(self, path: Path, facts: dict[str, Any], *, resume: bool) -> None:
        self._path = path
        self._known: dict[str, Run] = {}
        if path.exists() and not resume:
            raise Error(
                f"{path}: there is a state of an earlier diagnosis; go on with it by --resume, or give another -o"
            )
        if resume:
            lines = read_state(path)[0] if path.exists() else []
            if not lines or lines[0].get("facts") != facts:
                raise Error(f"--resume: {path} is missing, or of another program or other options")
            runs = {str(line.get("key")): _run_of(line.get("run")) for line in lines[1:]}
            self._known = {key: run for key, run in runs.items() if run is not None}
        else:
            append_state(path, {"facts": facts})

    def known(self, key: str) -> Run | None:
        """How a command ended in an earlier run of the diagnosis."""
        return self._known.get(key)

    def end(self, key: str, run: Run) -> None:
        """A command has ended."""
        append_state(self._path, {"key": key, "run": asdict(run)})


_RUN: Kinds = {"command": str, "folder": str, "ended": str, "status": int, "seconds": (int, float), "steps": int}


def _run_of(content: Any) -> Run | None:
    """None: the line is damaged, and the command runs again."""
    try:
        facts = checked_object("a run", content, _RUN)
        return Run(**{**facts, "ended": Ended(facts["ended"])})
    except (Error, KeyError, TypeError, ValueError):
        return None


class Watch:
    """Looks at the black boxes of a program that runs: how far it is, and does it hang?

    Args:
        folder: where its tools write.
        stall: no operator begins or ends for so many seconds: it hangs, if an operator is open or the process does not compute.
    """

    def __init__(self, folder: Path, stall: float) -> None:
        self._folder, self._stall = folder, stall
        self._seen: dict[str, tuple[object, ...]] = {}
        self._moved = time.monotonic()
        self._used = 0.0  # CPU seconds at that time
        self.steps = 0
        self.hung: list[BlackBox] = []

    def look(self) -> None:
        """Once."""
        boxes = boxes_below(self._folder)
        for box in boxes:
            last = box.rows[-1] if box.rows else None
            self.steps = max([self.steps, *(row.step for row in box.rows[-1:])])
            seen = (len(box.rows), last and last.id, last and last.state, box.closed, sum(row.done for row in box.rows))
            if self._seen.get(box.path) != seen:
                self._seen[box.path] = seen
                self._moved, self._used = time.monotonic(), _cpu_seconds(boxes)
        alive = [box for box in boxes if box.alive and not box.closed]
        still = time.monotonic() - self._moved
        if not alive or still < self._stall or not any(box.rows for box in alive):
            return
        computes = _cpu_seconds(alive) - self._used > _BUSY * still
        if any(box.open or box.suspects for box in alive) or not computes:
            self.hung = alive


def _cpu_seconds(boxes: Sequence[BlackBox]) -> float:
    ticks = 0
    for box in boxes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{box.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def boxes_below(folder: Path) -> list[BlackBox]:
    """The files of OpBlackBox below a folder that can be read."""
    try:
        return read_black_boxes(folder)[0]
    except (Error, OSError):  # there is none yet
        return []


def run_step(
    words: Sequence[str], folder: Path, *, seconds: float | None, enough: int | None = None, stall: float = 0
) -> Run:
    """Runs a command to its end.

    Args:
        words: the command.
        folder: for its output; the black boxes of the program are below it.
        seconds: its limit, which `timeout` in front of it holds; None: none.
        enough: it is ended after so many training steps.
        stall: it hangs when no operator begins or ends for so many seconds; 0: its black boxes are not looked at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began, watch = time.monotonic(), Watch(folder, stall) if stall else None
    ended: Ended | None = None
    with (folder / OUTPUT).open("wb") as output:
        try:
            process = subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise Error(f"{words[0]}: {error.strerror}") from None
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_EVERY)
                    break
                if seconds is not None and time.monotonic() - began > seconds + _BEYOND:
                    ended = Ended.CUT
                    _end(process, signal.SIGKILL)
                if watch is None or ended is not None:
                    continue
                watch.look()
                if watch.hung:
                    ended = Ended.HUNG
                    for box in watch.hung:  # no SIGTERM: their files are to show the call that is open
                        with contextlib.suppress(OSError):
                            os.kill(box.pid, signal.SIGKILL)
                    _end(process, signal.SIGKILL)
                elif enough is not None and watch.steps >= enough:
                    ended = Ended.ENOUGH
                    process.terminate()  # `timeout` hands it on
        finally:
            if process.poll() is None:
                _end(process, signal.SIGKILL)
                process.wait()
    if watch is not None:
        watch.look()
    status = process.returncode
    took = time.monotonic() - began
    steps = watch.steps if watch is not None else 0
    return Run(shown(words), str(folder), ended or _how_it_ended(status, seconds, took), status, took, steps)


def _how_it_ended(status: int, seconds: float | None, took: float) -> Ended:
    if status == 0:
        return Ended.DONE
    if seconds is not None and (status == _TIMED_OUT or took >= seconds):
        return Ended.CUT
    # `timeout` ends by the signal that ended its command, a shell with 128 and its number.
    return Ended.CRASHED if status < 0 or status > 128 else Ended.FAILED


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """A signal for the command and all that it started. `timeout` makes a process group of its own, which has its number, too."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)
