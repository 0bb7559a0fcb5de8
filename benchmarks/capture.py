"""OpCapture against a user's own code: torch.save in a Python function mode, memcpy, write(2).

./dev bench capture [--quick] [--only tiny step large snapshot dedupe]
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch
from _measure import PROMISE, Report, Spent, Table, Turns, arguments, ms, scratch, spend, us, verdict
from _models import lenet, transformer
from torch.overrides import TorchFunctionMode

import op_tools


class SaveMode(TorchFunctionMode):
    """The least that a user would write to have a call's inputs and outputs in files."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.number = folder, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        folder = f"{self.folder}/{self.number}"
        self.number += 1
        Path(folder).mkdir()
        self.save({"args": args, "kwargs": kwargs}, f"{folder}/input.pth")
        result = func(*args, **(kwargs or {}))
        self.save(result, f"{folder}/output.pth")
        return result

    @staticmethod
    def save(value: object, path: str) -> None:
        with contextlib.suppress(RuntimeError):  # torch's own profiler marks pass here, which no file can hold
            torch.save(value, path)


@contextlib.contextmanager
def new_folder(parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def tiny(table: Table, folder: str, rounds: int) -> None:
    x, y = torch.ones(8), torch.ones(8)
    calls = 1000

    def work(count: int = calls) -> None:
        for _ in range(count):
            torch.add(x, y)

    def plain() -> Spent:
        return spend(work).per(calls)

    def save() -> Spent:
        with new_folder(folder) as place, SaveMode(place):
            return spend(lambda: work(calls // 10)).per(calls // 10)

    def capture(**more: object) -> Callable[[], Spent]:
        def run() -> Spent:
            with new_folder(folder) as place, op_tools.OpCapture(output_dir=place, **more):
                work(1)  # opens the file
                return spend(work).per(calls)

        return run

    turns = Turns(
        {
            "plain": plain,
            "save": save,
            "container": capture(format="container"),
            "folders": capture(),
            "aten": capture(format="container", level="aten"),
        },
        rounds,
    )
    lost = turns.more("save", "plain", "wall")
    for name, title in (
        ("container", "tiny tensors, container"),
        ("folders", "the same, folders"),
        ("aten", "the same, container, aten level"),
    ):
        more = turns.more(name, "plain")
        times = lost / more
        table.row(
            f"OpCapture, {title}: time that the program loses per call",
            "torch.save of the same in a Python function mode",
            "<= 10 us; at least 30x less",
            f"{us(more)}; {times:.0f}x",
            verdict(more, most=10e-6) if times >= 30 else verdict(times, least=30),
            f"torch.save: {us(lost)}",
        )


def steps(table: Table, folder: str, rounds: int) -> None:
    for name, step, count in (
        ("LeNet", lenet(8), 4),
        ("transformer", transformer(32, 2, 2, 8), 4),
    ):

        def work(step: Callable[[], object] = step, count: int = count) -> None:
            for _ in range(count):
                step()

        def plain() -> Spent:
            return spend(work).per(count)  # noqa: B023

        def save() -> Spent:
            with new_folder(folder) as place, SaveMode(place):
                return spend(step).per(1)  # noqa: B023

        finish: list[float] = []

        def capture() -> Spent:
            with new_folder(folder) as place:
                tool = op_tools.OpCapture(output_dir=place, format="container").start()
                step()  # noqa: B023
                tool.flush()
                spent = spend(work).per(count)  # noqa: B023
                start = time.perf_counter()
                tool.stop()
                finish.append((time.perf_counter() - start) / count)  # noqa: B023
                return spent

        turns = Turns({"plain": plain, "save": save, "capture": capture}, rounds)
        ratio = turns.ratio("capture", "plain", "wall")
        table.row(
            f"OpCapture, training step of small operators ({name}), container",
            "no tool",
            "<= 2x",
            f"{ratio:.2f}x wall, {turns.ratio('capture', 'plain'):.2f}x of the program's thread",
            verdict(ratio, most=2),
            f"{ms(turns.median('plain', 'wall'))} a step; writing on after it: {ms(sorted(finish)[len(finish) // 2])}; "
            f"torch.save in a mode: {turns.ratio('save', 'plain', 'wall'):.0f}x",
        )


def large(table: Table, folder: str, rounds: int) -> None:
    """More bytes than may wait, so that only the speed of the disk counts.

    The operator only shows its input's memory: the computation of an operator is no part of the writing. Where a system under this
    system takes free memory back, fresh pages cost up to ten times the writing, for every variant: the least of the rounds counts.
    """
    for size_mb, count in ((16, 16), (64, 6)):
        tensors = [torch.randn(size_mb << 18) for _ in range(2)]
        total = count * size_mb / 1e3  # GB

        def through_write() -> Spent:
            def work() -> None:
                for i in range(count):  # noqa: B023
                    with Path(f"{place}/{i}").open("wb", buffering=0) as file:
                        write_all(file, tensors[i % 2])  # noqa: B023

            with new_folder(folder) as place:
                return spend(work)

        def by_hand() -> Spent:
            """A copy, and write(2) of it by another thread: no less can be done if the program is not to wait."""
            copies, filled, free = [tensors[0].clone() for _ in range(2)], SimpleQueue(), SimpleQueue()  # noqa: B023
            for copy in copies:
                free.put(copy)

            def write() -> None:
                for i in range(count):  # noqa: B023
                    copy = filled.get()
                    with Path(f"{place}/{i}").open("wb", buffering=0) as file:
                        write_all(file, copy)
                    free.put(copy)

            def work() -> None:
                writer = Thread(target=write)  # noqa: B023
                writer.start()
                for i in range(count):  # noqa: B023
                    filled.put(free.get().copy_(tensors[i % 2]))  # noqa: B023
                writer.join()

            with new_folder(folder) as place:
                return spend(work)

        def through_save() -> Spent:
            def work() -> None:
                for i in range(count):  # noqa: B023
                    torch.save(tensors[i % 2], f"{place}/{i}")  # noqa: B023

            with new_folder(folder) as place:
                return spend(work)

        def through_capture() -> Spent:
            with new_folder(folder) as place:
                tool = op_tools.OpCapture(output_dir=place, ops="torch.Tensor.narrow", max_pending_mb=2 * size_mb)  # noqa: B023
                tool.start()
                for tensor in tensors:  # noqa: B023  (takes the memory that copies go on using)
                    tensor.narrow(0, 0, 1)
                tool.flush()

                def work() -> None:
                    for i in range(count):  # noqa: B023
                        tensors[i % 2].narrow(0, 0, 1)  # noqa: B023
                    tool.stop()

                return spend(work)

        # Not in the same round as torch.save, which leaves free memory in other pieces: who comes next would pay for that.
        turns = Turns({"write": through_write, "by hand": by_hand, "capture": through_capture}, rounds)
        write, hand, capture = (turns.least(name, "wall") for name in ("write", "by hand", "capture"))
        beside = Turns({"save": through_save, "capture": through_capture}, rounds // 3)
        speed, faster = write / capture, beside.ratio("save", "capture", "wall")
        table.row(
            f"OpCapture, tensors of {size_mb} MB, sustained",
            "plain write(2) of the same bytes to the same disk; torch.save",
            ">= 0.9 of write(2); faster than torch.save",
            f"{speed:.2f} of write(2); {faster:.2f}x as fast as torch.save",
            verdict(speed, least=0.9) if faster >= 1 else verdict(faster, least=1),
            f"write(2): {total / write:.2f} GB/s, capture: {total / capture:.2f} GB/s; a copy and a second thread with "
            f"write(2), and nothing else: {write / hand:.2f}",
        )


def write_all(file: RawIOBase, tensor: torch.Tensor) -> None:
    view = memoryview(tensor.numpy()).cast("B")
    while view:
        view = view[file.write(view) :]


def snapshot(table: Table, folder: str, rounds: int) -> None:
    """The work of the program's thread for a large tensor: the copy, beside a copy into memory that is as new."""
    big = torch.randn(64 << 18)
    count = 4

    def copy() -> Spent:
        kept = []

        def work() -> None:
            for _ in range(count):
                kept.append(big.clone())

        spent = spend(work).per(count)
        kept.clear()
        gc.collect()
        return spent

    def view() -> Spent:
        return spend(lambda: [big[:1].sum(0) for _ in range(count)]).per(count)

    def capture() -> Spent:
        with new_folder(folder) as place:
            tool = op_tools.OpCapture(output_dir=place, ops="torch.Tensor.narrow", format="container").start()
            torch.Tensor.narrow(big[:16], 0, 0, 1)

            def work() -> None:
                for _ in range(count):
                    big.narrow(0, 0, 1)

            spent = spend(work).per(count)
            tool.stop()
            return spent

    turns = Turns({"clone": copy, "capture": capture, "view": view}, rounds)
    ratio = turns.ratio("capture", "clone")
    table.row(
        "OpCapture, snapshot of a CPU tensor of 64 MB",
        "clone(): memcpy of the same bytes into new memory",
        "<= 1.15x",
        f"{ratio:.2f}x of the thread's time, {turns.ratio('capture', 'clone', 'wall'):.2f}x wall",
        verdict(ratio, most=1.15),
        ms(turns.median("clone")),
    )


def dedupe(table: Table, folder: str, _: int) -> None:
    """Bytes on disk of ten training steps. The weights are inputs of every step, and new ones after each."""

    def size(**more: object) -> tuple[int, float]:
        step = transformer(128, 2, 4, 32)
        with new_folder(folder) as place:
            start = time.process_time()
            with op_tools.OpCapture(output_dir=place, format="container", **more) as tool:
                for _ in range(10):
                    step()
                    tool.step()
            seconds = time.process_time() - start
            return sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file()), seconds

    for level in ("aten", "torch"):
        plain, plain_seconds = size(level=level)
        shared, shared_seconds = size(level=level, dedupe=True)
        ratio = plain / shared
        table.row(
            f"OpCapture with dedupe, ten training steps of a transformer, {level} level",
            "without",
            "at least 3x fewer bytes",
            f"{ratio:.1f}x",
            verdict(ratio, least=3),
            f"{plain / 1e6:.0f} MB, {shared / 1e6:.0f} MB with it; {plain_seconds:.1f} s and {shared_seconds:.1f} s of CPU",
        )


PARTS = {"tiny": tiny, "step": steps, "large": large, "snapshot": snapshot, "dedupe": dedupe}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("capture")
    table = report.table("OpCapture", *PROMISE)
    with new_folder(scratch()) as folder:
        for name in options.only:
            PARTS[name](table, folder, {"tiny": 15, "step": 9, "large": 15}.get(name, 5) // (3 if options.quick else 1))
    if set(options.only) == set(PARTS):
        report.write()


if __name__ == "__main__":
    main()
