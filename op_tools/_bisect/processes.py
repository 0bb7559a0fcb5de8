"""A bisection of a program from outside: a trial is a process, which may crash, hang, or start others."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from .._base.account import ACCOUNT, unseen_in
from .._base.checks import Kinds, checked_object
from .._base.core import Error
from .._base.state_file import append_state, read_state
from .._tools.launch import ACCOUNT_VARIABLE, environment
from .._tools.tool import Tool
from . import JOB_VARIABLE
from .bisection import Stop
from .items import Call, read_calls
from .outcome import SKIPPED, Ended, Metric, Outcome
from .trial_tools import Trial, capture_of, comparison, saved_call_folders, tool_of, unused

COMPARISON = "suspects"  # the run with OpAutoCompare, in the state
TAIL_BYTES, TAIL_LINES = 2000, 10  # of the output, for an error
KILL_AFTER = 5.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Plan:
    """How trials are run."""

    command: tuple[str, ...]
    folder: Path
    """For all files: the state, lists of calls, the output of each run."""
    metric: Metric
    timeout: float | None = None
    check: str = ""
    """A shell command; its exit status judges. The output of the trial is its standard input."""
    jobs: int = 1


def command_line(words: Sequence[str]) -> tuple[str, ...]:
    """A Python script is run by this Python."""
    return (sys.executable, *words) if words[0].endswith(".py") else tuple(words)


class State:
    """The record of earlier runs, in a file that a kill at any moment leaves readable: a line before and a line after each run.

    Raises:
        op_tools.Error: there is a state of another command, or a state without `resume`; or it cannot be written.
    """

    def __init__(self, path: Path, facts: dict[str, Any], *, resume: bool) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, list[Outcome]] = {}
        if path.exists() and not resume:
            raise Error(
                f"{path}: there is a state of an earlier run; go on with it by --resume, or give another --output"
            )
        if resume:
            self._read(path, facts)
        self._path = path
        if not resume:
            self._write({"facts": facts})

    def _read(self, path: Path, facts: dict[str, Any]) -> None:
        lines, damaged = read_state(path)
        if not lines or lines[0].get("facts") != facts:
            raise Error(f"--resume: {path} is of another command or of other options")
        open_runs: dict[int, dict[str, Any]] = {}
        for line in lines:
            if _has_types(line, _BEGUN):
                open_runs[line["begin"]] = line
            elif _has_types(line, _ENDED):
                begun, outcome = open_runs.pop(line["end"], None), _outcome_of(line["outcome"])
                if begun is None or outcome is None:
                    damaged += 1
                else:
                    self._known.setdefault(begun["key"], []).append(outcome)
            elif "facts" not in line:
                damaged += 1
        for begun in open_runs.values():
            if begun["boot"] == _boot():
                _end_group(begun["pid"], begun["started"])
            elif not damaged:  # the machine went down with it, if no line of its end is lost
                self._known.setdefault(begun["key"], []).append(Outcome(ended="crashed", note="the machine"))

    def known(self, key: str) -> Outcome | None:
        """The outcome of such a run, each once."""
        with self._lock:
            outcomes = self._known.get(key)
            return outcomes.pop(0) if outcomes else None

    def begin(self, number: int, key: str, pid: int) -> None:
        """A run has begun."""
        self._write({"begin": number, "key": key, "pid": pid, "started": _started(pid), "boot": _boot()})

    def end(self, number: int, outcome: Outcome) -> None:
        """A run has ended."""
        self._write({"end": number, "outcome": asdict(outcome)})

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            append_state(self._path, line)


_BEGUN = {"begin": int, "key": str, "pid": int, "started": str, "boot": str}
_ENDED = {"end": int, "outcome": dict}
_OUTCOME: Kinds = {"curve": list, "ended": str, "note": str, "seconds": (int, float), "tail": str}


def _has_types(line: dict[str, Any], kinds: Mapping[str, type]) -> bool:
    return line.keys() == kinds.keys() and all(isinstance(line[name], kind) for name, kind in kinds.items())


def _outcome_of(content: dict[str, Any]) -> Outcome | None:
    """None: it is damaged."""
    try:
        outcome = Outcome(**checked_object("an outcome", content, _OUTCOME))
    except Error:
        return None
    is_whole = outcome.ended in get_args(Ended) and all(isinstance(number, (int, float)) for number in outcome.curve)
    return outcome if is_whole else None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> str:
    """When a process was started, so that another process of the same number is not taken for it; "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _end_group(pid: int, started: str) -> None:
    """Kills a run that a killed driver left."""
    if started and _started(pid) == started:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


class Processes:
    """Runs trials as processes, `jobs` at a time. The process of job N has N in OP_TOOLS_BISECT_JOB."""

    def __init__(self, plan: Plan, state: State) -> None:
        self._plan, self._state = plan, state
        self._count = 0
        self._lock = threading.Lock()
        self._free: queue.Queue[int] = queue.Queue()
        for job in range(plan.jobs):
            self._free.put(job)

    def run(self, trials: Sequence[Trial], stop: Stop) -> list[Outcome]:
        with ThreadPoolExecutor(self._plan.jobs) as pool:
            return list(pool.map(lambda trial: self._trial(trial, stop), trials))

    def calls(self) -> list[Call]:
        return read_calls(sorted(self._plan.folder.glob("*/list.*"), key=os.path.getmtime))

    def has_torch(self) -> bool:
        return bool(self._accounts())

    def unseen(self) -> list[str]:
        return unseen_in(self._accounts())

    def _accounts(self) -> list[Path]:
        return sorted(self._plan.folder.glob(f"*/{ACCOUNT}.*"))

    def compare(self, seconds: float) -> Path:
        folder = self._plan.folder / "suspects"
        if not self._state.known(COMPARISON):
            limit = min(seconds, self._plan.timeout or seconds)
            self._process([comparison(folder)], folder, lambda _: False, COMPARISON, limit)
        return folder

    def capture(self, calls: Sequence[Call], moved: Trial) -> list[str]:
        into = unused(self._plan.folder)
        tools = [capture_of(calls, into), tool_of(moved, into / "moved")]
        self._process(tools, into, lambda _: False, None, self._plan.timeout)
        return saved_call_folders(into)

    def _trial(self, trial: Trial, stop: Stop) -> Outcome:
        key = trial.key()
        if outcome := self._state.known(key):
            return outcome
        with self._lock:
            self._count += 1
            folder = self._plan.folder / f"run{os.getpid()}_{self._count}"
        folder.mkdir()
        return self._process([tool_of(trial, folder)], folder, stop, key, self._plan.timeout)

    def _process(
        self, tools: Sequence[Tool], folder: Path, stop: Stop, key: str | None, timeout: float | None
    ) -> Outcome:
        job = self._free.get()
        try:
            return self._on_job(tools, folder, stop, key, timeout, job)
        finally:
            self._free.put(job)

    def _on_job(
        self, tools: Sequence[Tool], folder: Path, stop: Stop, key: str | None, timeout: float | None, job: int
    ) -> Outcome:
        folder.mkdir(exist_ok=True)
        log = folder / "output.txt"
        began = time.monotonic()
        variables = {**os.environ, **environment(tools), JOB_VARIABLE: str(job), "PYTHONUNBUFFERED": "1"}
        variables[ACCOUNT_VARIABLE] = str(folder / ACCOUNT)
        try:
            process = subprocess.Popen(
                self._plan.command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Error(f"{self._plan.command[0]}: {error.strerror}") from None
        number = process.pid
        if key:
            self._state.begin(number, key, process.pid)
        try:
            outcome = Watch(process, replace(self._plan, timeout=timeout), stop, log).outcome()
        finally:
            _kill(process)
        outcome.seconds = time.monotonic() - began
        if not outcome.curve:
            outcome.tail = _tail(log)
        if self._plan.check and outcome.ended in ("done", "failed"):
            self._check(outcome, log, variables)
        if key:
            self._state.end(number, outcome)
        return outcome

    def _check(self, outcome: Outcome, log: Path, variables: dict[str, str]) -> None:
        with log.open("rb") as output:
            status = subprocess.run(  # noqa: S602  (the user's own command)
                self._plan.check,
                shell=True,
                stdin=output,
                stdout=subprocess.DEVNULL,
                env=_without_tools(variables),
                check=False,
            ).returncode
        outcome.curve = []
        outcome.ended = "done" if status == 0 else "skipped" if status == SKIPPED else "failed"
        outcome.note = "" if status == 0 else f"--check: exit status {status}"


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-TAIL_LINES:])


def _without_tools(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in ("OP_TOOLS", ACCOUNT_VARIABLE)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER)
            if number == signal.SIGKILL or not _group_lives(process.pid):
                return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


class Watch:
    """Reads the output of a process until it ends, takes too long, or has printed a number that settles it."""

    def __init__(self, process: subprocess.Popen[bytes], plan: Plan, stop: Stop, log: Path) -> None:
        self._process, self._plan, self._stop, self._log = process, plan, stop, log
        self._end = time.monotonic() + plan.timeout if plan.timeout else None

    def outcome(self) -> Outcome:
        """How it went."""
        outcome = Outcome()
        assert self._process.stdout is not None
        with self._log.open("wb") as log, selectors.DefaultSelector() as ready, self._process.stdout as pipe:
            ready.register(pipe, selectors.EVENT_READ)
            rest = b""
            while True:
                if self._end and time.monotonic() > self._end:
                    outcome.ended, outcome.note = "hung", f"after {self._plan.timeout:g} s"
                    return outcome
                if not ready.select(0.1):
                    if self._process.poll() is not None:
                        break  # something that it started holds the pipe
                    continue
                piece = os.read(pipe.fileno(), 1 << 16)
                if not piece:
                    break
                log.write(piece)
                *lines, rest = (rest + piece).split(b"\n")
                if self._settled(lines, outcome):
                    return outcome
            self._settled([rest], outcome)
        return self._ended(outcome)

    def _settled(self, lines: list[bytes], outcome: Outcome) -> bool:
        for line in lines:
            outcome.curve += self._plan.metric.numbers(line.decode(errors="replace"))
        if self._plan.check or not outcome.curve or not self._stop(outcome.curve):
            return False
        outcome.ended = "left the band"
        return True

    def _ended(self, outcome: Outcome) -> Outcome:
        try:
            left = None if self._end is None else max(0.0, self._end - time.monotonic())
            status = self._process.wait(left)
        except subprocess.TimeoutExpired:
            outcome.ended, outcome.note = "hung", f"after {self._plan.timeout:g} s"
            return outcome
        if status < 0 or status > 128:
            outcome.ended = "crashed"
            outcome.note = _signal_name(-status if status < 0 else status - 128)
        elif status:
            outcome.ended = "skipped" if status == SKIPPED else "failed"
            outcome.note = f"exit status {status}"
        return outcome


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit status {number + 128}"
