"""Processes that work through a list: a process that crashes or hangs costs its item, not the run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
from typing_extensions import Self

_START_SECONDS = 600  # for imports, on a machine that is busy


class StartError(RuntimeError):
    """A process could not do `start`: no item can be worked on."""


class Failure(str):
    """The failure of an item without a result, in words. `kind`: its process died, or took too long."""

    kind: Literal["crashed", "hung"]

    def __new__(cls, kind: Literal["crashed", "hung"], text: str) -> Failure:
        failure = super().__new__(cls, text)
        failure.kind = kind
        return failure


def worker_number() -> int:
    """Of this process, from 0. A process that replaces a dead one has its number."""
    name = multiprocessing.current_process().name
    return int(name.rpartition("-")[2]) if name.startswith("worker-") else 0


def usable_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Without these op_tools/startup starts no tool and imports no backend in the process that others are forked from.
_NOT_IN_SERVER = ("OP_TOOLS", "OP_TOOLS_IMPORT", "OP_TOOLS_AS_CUDA", "DIPU_MEM_CHECK")


_starting = threading.Lock()  # functools.cache alone would let two threads start it


def prepare(*, is_new: bool = False) -> None:
    """Starts the process that others are forked from. Need not be called.

    Args:
        is_new: this process has imported torch and op_tools and done nothing with them. Then that process is a fork of it, which saves
            importing them again, a second or two.
    """
    with _starting:
        if is_new and not entry_points(group="torch.backends"):  # no backend came with torch
            with _server_is_a_fork():
                _fork_of_server()
        _fork_of_server()


@contextlib.contextmanager
def _server_is_a_fork() -> Iterator[None]:
    """multiprocessing's server is a fork of this process in place of a new Python. It gets the same program text."""
    multiprocessing.resource_tracker.ensure_running()  # a process that has to be new
    start = multiprocessing.util.spawnv_passfds

    def fork(_: Any, arguments: Sequence[Any], passed: Sequence[int]) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's threads, which wait for work
            if child := os.fork():
                return child
        try:
            # The end of the pipe that says that this process is alive has to be in this process alone.
            for number in {int(one.name) for one in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *passed}:
                with contextlib.suppress(OSError):
                    os.close(number)
            exec(arguments[-1], {})  # noqa: S102
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)

    multiprocessing.util.spawnv_passfds = fork  # type: ignore[assignment]
    try:
        yield
    finally:
        multiprocessing.util.spawnv_passfds = start


@functools.cache
def _fork_of_server() -> Any:
    """Processes are forked from a process that has imported torch and nothing else: they start in no time, after a crash as well.
    Backends are not imported there: a process chooses."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["op_tools._conformance.run"])
    chosen = {name: os.environ.pop(name) for name in (_AUTOLOAD, *_NOT_IN_SERVER) if name in os.environ}
    os.environ[_AUTOLOAD] = "0"
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ[_AUTOLOAD]
        os.environ.update(chosen)
    return context


def _serve(
    pipe: Connection, start: Callable[[], None], work: Callable[[Any], Any], environment: dict[str, str], number: int
) -> None:
    # A worker that hangs must not outlive a run that was killed: then the process that it was forked from ends. It
    # goes on while anyone has the other end of its pipe, which multiprocessing hands on to each process.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    os.close(multiprocessing.forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.current_process().name = f"worker-{number}"
    if tqdm := sys.modules.get(
        "tqdm"
    ):  # torch imports it; its own lock is a semaphore, which a killed worker would leave
        tqdm.tqdm.set_lock(threading.RLock())
    try:
        if environment.get(_AUTOLOAD, "1") == "1":
            torch._import_device_backends()  # type: ignore[no-untyped-call]
        start()
    except BaseException:
        pipe.send(traceback.format_exc())
        raise
    pipe.send("")
    while (item := pipe.recv()) is not None:
        pipe.send(work(item))


class _Process:
    """A process; it has an item while it is busy."""

    def __init__(
        self, start: Callable[[], None], work: Callable[[Any], Any], environment: dict[str, str], number: int
    ) -> None:
        context = _fork_of_server()
        self.number, self.is_ready, self.is_busy = number, False, False
        self.item: Any = None
        self.since = time.monotonic()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, start, work, environment, number), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, item: Any) -> None:
        self.item, self.is_busy, self.since = item, True, time.monotonic()
        with contextlib.suppress(OSError):  # it is dead: the end of its pipe says so
            self.pipe.send(item)

    def receive(self) -> tuple[Any, Failure | None]:
        """A result."""
        try:
            return self.pipe.recv(), None
        except (EOFError, OSError):
            self.process.join()
            return None, Failure("crashed", _ended(self.process.exitcode))

    def has_started(self) -> None:
        """Raises StartError if it has not."""
        trouble, failure = self.receive()
        if failure or trouble:
            raise StartError(failure or str(trouble).strip())
        self.is_ready = True

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}"


def _give_next(worker: _Process, waiting: deque[Any], busy: list[Any], fits: Callable[[Any, list[Any]], bool]) -> None:
    """Gives it the first item that may run beside the busy ones, if there is any."""
    if not busy or fits(waiting[0], busy):
        worker.give(waiting.popleft())
    elif fits(waiting[-1], busy):
        worker.give(waiting.pop())


class Worker:
    """A process that works on items one after the other, begun anew after it has died or hung. A context manager.

    Args:
        start: runs first in the process.
        work: runs there for each item.
        seconds: after which it is taken to hang, and killed.
    """

    def __init__(self, start: Callable[[], None], work: Callable[[Any], Any], *, seconds: float) -> None:
        self._make = functools.partial(_Process, start, work, dict(os.environ), 0)
        self._seconds = seconds
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def work(self, item: Any) -> tuple[Any, Failure | None]:
        """The result of an item; or why there is none.

        Raises:
            StartError: `start` failed.
        """
        if self._process is None:
            self._process = self._make()
            if not self._process.pipe.poll(_START_SECONDS):
                raise StartError(f"a process is not ready after {_START_SECONDS} s")
            self._process.has_started()
        self._process.give(item)
        if self._process.pipe.poll(self._seconds):
            result, failure = self._process.receive()
        else:
            result, failure = None, Failure("hung", f"not done after {self._seconds:g} s")
        if failure:
            self._end()
        return result, failure

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def work_through(
    items: Iterable[Any],
    start: Callable[[], None],
    work: Callable[[Any], Any],
    *,
    jobs: int,
    seconds: float | Callable[[Any], float],
    fits: Callable[[Any, list[Any]], bool] = lambda *_: True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Any, Any, Failure | None]]:
    """Runs work(item) for all items in `jobs` processes.

    Args:
        items: each can be pickled, and is not None.
        start: runs first in each process.
        work: runs there for each item.
        jobs: how many processes.
        seconds: after which an item's process is taken to hang, and killed; a function of the item, or a number.
        fits: whether an item may be worked on beside others; asked of the first and of the last item that is left.
        environment: of the processes; None: that of this process.

    Yields:
        (item, result, failure) as they come; failure is None, or says that the process died or took too long.

    Raises:
        StartError: `start` failed in a process.
    """
    limit = seconds if callable(seconds) else lambda _: seconds
    waiting = deque(items)
    prepare()
    make = functools.partial(_Process, start, work, dict(os.environ if environment is None else environment))
    workers = [make(number) for number in range(min(jobs, len(waiting)))]
    try:
        while workers:
            ready = set(wait([worker.pipe for worker in workers], timeout=0.5))
            done: list[tuple[Any, Any, Failure | None]] = []
            for place, worker in enumerate(workers):
                spent = time.monotonic() - worker.since
                failure, result, item, was_busy = None, None, worker.item, worker.is_busy
                if worker.pipe in ready and worker.is_ready:
                    result, failure = worker.receive()
                elif worker.pipe in ready:
                    worker.has_started()
                elif not worker.is_ready and spent > _START_SECONDS:
                    raise StartError(f"a process is not ready after {_START_SECONDS} s")
                elif worker.is_busy and spent > limit(item):
                    failure = Failure("hung", f"not done after {limit(item):g} s")
                else:
                    continue
                if failure:
                    worker.end()
                    workers[place] = worker = make(worker.number) if waiting else worker
                worker.is_busy = False
                if was_busy:
                    done.append((item, result, failure))
            for worker in [one for one in workers if one.is_ready and not one.is_busy]:
                if waiting:
                    _give_next(worker, waiting, [one.item for one in workers if one.is_busy], fits)
                else:
                    workers.remove(worker)
                    worker.end()
            yield from done
    finally:
        for worker in workers:  # where the caller stopped early
            worker.end()
