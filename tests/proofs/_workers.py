"""Processes that work through a list: one that crashes or hangs costs its item, not the run."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any


def _serve(pipe: Connection, start: Callable[[], None], work: Callable[[Any], Any]) -> None:
    start()
    while (item := pipe.recv()) is not None:
        pipe.send(work(item))


class _Worker:
    def __init__(self, start: Callable[[], None], work: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, start, work), daemon=True)
        self.process.start()
        theirs.close()
        self.item: Any = None
        self.since = 0.0

    def give(self, item: Any) -> None:
        self.item, self.since = item, time.monotonic()
        with contextlib.suppress(OSError):  # it is dead: work_through() meets the end of its pipe
            self.pipe.send(item)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def work_through(
    items: Iterable[Any],
    start: Callable[[], None],
    work: Callable[[Any], Any],
    *,
    jobs: int,
    seconds: float,
) -> Iterator[tuple[Any, Any, str]]:
    """Runs work(item) for all items in `jobs` processes.

    Yields:
        (item, result, trouble) as they come; trouble is "" or says that the process died or took over `seconds`.
    """
    waiting = list(items)[::-1]
    workers = [_Worker(start, work) for _ in range(min(jobs, len(waiting)))]
    for worker in workers:
        worker.give(waiting.pop())
    while workers:
        ready = set(wait([worker.pipe for worker in workers], timeout=1))
        for worker in list(workers):
            trouble, result = "", None
            if worker.pipe in ready:
                try:
                    result = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    trouble = f"its process ended with status {worker.process.exitcode}"
            elif time.monotonic() - worker.since > seconds:
                trouble = f"not done after {seconds:.0f} s"
            else:
                continue
            yield worker.item, result, trouble
            if trouble:
                workers.remove(worker)
                worker.end()
                if waiting:
                    workers.append(worker := _Worker(start, work))
            if waiting:
                worker.give(waiting.pop())
            elif not trouble:
                workers.remove(worker)
                worker.end()


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
