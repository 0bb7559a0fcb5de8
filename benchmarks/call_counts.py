"""Instructions, system calls, allocations, locks and waits of a call of each kind, left out by a tool's filter and taken.

    ./dev bench call_counts [--tool NAME ...] [--kind KIND ...] [--level LEVEL] [--taken] [--quick] [--write]

Counts are the same on a busy machine; times are not. The calls are made by _counted_calls.py, whose main thread is traced here
(ptrace): first from system call to system call, then from instruction to instruction. Neither a debugger nor a performance
counter of the processor is needed. Each figure is the part of the tool: the counts of the call under the tool less those of the
same call without a tool. `--write` puts the figures into tests/data/call_counts.json, with which
tests/python/test_call_counts.py compares.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from _counted_calls import CALLS, STEPPED
from _measure import Report, arguments

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("_counted_calls.py")
BASELINE = ROOT / "tests" / "data" / "call_counts.json"
KINDS = (
    "C function",
    "F.layer_norm",
    "F.dropout",
    "F.cross_entropy",
    "method",
    "property",
    "module",
    "backward",
    "optimizer step",
    "collective",
)
HOOK = "Hook"  # that does nothing
TOOLS = (
    HOOK,
    "OpCapture",
    "OpAutoCompare",
    "OpOverflowCheck",
    "OpObserve",
    "OpTimeMeasure",
    "OpDtypeCast",
    "OpFallback",
    "OpBlackBox",
    "OpRecord",
    "OpMemoryCheck",
)
LEVELS = ("torch", "aten")
LEFT_OUT, TAKEN = "left out", "taken"
NOISE = 0.02  # of the instructions of the call without a tool: their number varies so much at the same addresses


@dataclass(frozen=True)
class Row:
    """Calls that are counted. Without a tool the other fields say nothing."""

    kind: str
    tool: str = ""
    level: str = ""
    filtered: str = ""

    def name(self) -> str:
        return ", ".join((self.kind, self.tool, self.level, self.filtered))


# --- ptrace ---------------------------------------------------------------------------------------------------------------

TRACEME, CONT, SINGLESTEP, SYSCALL, SETOPTIONS, GETREGSET = 0, 7, 9, 24, 0x4200, 0x4204
MARK_SYSTEM_CALLS = 1  # PTRACE_O_TRACESYSGOOD: such a stop is no signal
NO_RANDOM_ADDRESSES = 0x0040000  # of personality(2): hashes of addresses, and the order in which they are found, stay
WORDS = {"x86_64": (27, 16, 15), "aarch64": (34, 32, 8)}  # registers, program counter, number of the system call
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Traced:
    """A process of which the main thread is traced."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        words, self._counter, self._call = WORDS[platform.machine()]
        self._registers = (ctypes.c_uint64 * words)()
        self._span = _Span(ctypes.addressof(self._registers), ctypes.sizeof(self._registers))

        def begin() -> None:
            libc.personality(NO_RANDOM_ADDRESSES)
            libc.ptrace(TRACEME, 0, None, None)

        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, preexec_fn=begin)
        assert self._process.stdout is not None
        self.out = self._process.stdout
        self.pid = self._process.pid
        self._wait()
        self._ptrace(SETOPTIONS, data=MARK_SYSTEM_CALLS)

    def _ptrace(self, request: int, address: int = 0, data: int = 0) -> None:
        if libc.ptrace(request, self.pid, address, data) < 0:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSTOPPED(status):
            raise RuntimeError(f"{PROGRAM.name} ended with status {os.waitstatus_to_exitcode(status)}")
        return os.WSTOPSIG(status)

    def registers(self) -> ctypes.Array[ctypes.c_uint64]:
        self._ptrace(GETREGSET, 1, ctypes.addressof(self._span))
        return self._registers

    def run_to_mark(self) -> None:
        passed_on = 0
        while True:
            self._ptrace(CONT, data=passed_on)
            passed_on = self._wait()
            if passed_on == signal.SIGUSR1:
                return

    def system_calls_to_mark(self) -> collections.Counter[int]:
        """By number."""
        calls: collections.Counter[int] = collections.Counter()
        enters = False
        while True:
            self._ptrace(SYSCALL)
            stopped = self._wait()
            if stopped == signal.SIGUSR1:
                return calls
            if stopped == signal.SIGTRAP | 0x80:
                enters = not enters
                if enters:
                    calls[self.registers()[self._call]] += 1

    def steps_to_mark(self, functions: dict[int, str]) -> collections.Counter[str]:
        """Instructions, and calls of these functions, which stand under their addresses."""
        counts: collections.Counter[str] = collections.Counter()
        steps, counter = 0, self._counter
        while True:
            self._ptrace(SINGLESTEP)
            if self._wait() == signal.SIGUSR1:
                counts["instructions"] = steps
                return counts
            steps += 1
            if of := functions.get(self.registers()[counter]):
                counts[of] += 1

    def end(self) -> None:
        """Lets it end."""
        self._ptrace(CONT)
        self.out.close()
        self._process.wait()


# --- Counts ---------------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """Of a call, in its thread."""

    system_calls: float = 0
    instructions: int = 0
    allocations: int = 0
    locks: int = 0
    waits: int = 0

    def less(self, other: Counts) -> Counts:
        return Counts(**{name: round(value - getattr(other, name), 1) for name, value in asdict(self).items()})


def counted(rows: Iterable[Row], instructions: bool, addresses: int = 0) -> Iterator[tuple[Row, Counts]]:
    """Each row by itself. Without `instructions` the system calls alone, which takes a hundredth of the time. Another number of
    `addresses` gives the process another stack and heap."""
    rows = list(rows)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OP_TOOLS_LOG_LEVEL": "error"}
    environment["OP_TOOLS_COUNTS_PADDING"] = addresses * 517 * "x"
    words = [[row.kind, row.tool, row.level, row.filtered] for row in rows]
    traced = Traced([sys.executable, str(PROGRAM), json.dumps(words)], environment)
    traced.run_to_mark()
    told: dict[str, list[int]] = json.loads(traced.out.readline())
    functions = {address: of for of, addresses in told.items() for address in addresses}
    for number, row in enumerate(rows):
        if number:
            traced.run_to_mark()
        system_calls = traced.system_calls_to_mark().total() / CALLS
        calls = []
        for _ in range(STEPPED):
            traced.run_to_mark()
            if instructions:
                calls.append(traced.steps_to_mark(functions))
            else:
                traced.run_to_mark()
        yield row, Counts(system_calls, **min(calls, key=lambda counts: counts["instructions"], default={}))
    traced.end()


@dataclass
class Added:
    """The part of a tool in the counts of a call, and the call without the tool."""

    row: Row
    counts: Counts
    plain: Counts


def added(rows: Sequence[Row], instructions: bool = True, addresses: int = 0) -> Iterator[Added]:
    kinds = dict.fromkeys(row.kind for row in rows)
    nothing = Row("nothing")  # the loop, and the signals
    plain: dict[str, Counts] = {}
    for row, counts in counted([nothing, *map(Row, kinds), *rows], instructions, addresses):
        if not row.tool:
            plain[row.kind] = counts
        else:
            of_call = plain[row.kind]
            yield Added(row, counts.less(of_call), of_call.less(plain[nothing.kind]))


def made_with() -> dict[str, str]:
    """Counts of another Python, torch or processor are others."""
    return {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}


def read_baseline() -> tuple[dict[str, str], dict[str, Counts]]:
    """The versions that made it, and the counts by name of the row."""
    read = json.loads(BASELINE.read_text())
    return read["made with"], {name: Counts(**counts) for name, counts in read["counts"].items()}


def grown(now: Iterable[Added], before: dict[str, Counts], most: float = 0.05) -> Iterator[tuple[Row, str]]:
    """A line for each count that grew by more than this share, beyond the noise."""
    for part in now:
        old = before.get(part.row.name())
        if old is None:
            yield part.row, f"{part.row.name()}: not in {BASELINE.name}"
            continue
        for name, value in asdict(part.counts).items():
            past = getattr(old, name)
            varies = NOISE * part.plain.instructions if name == "instructions" else 0.1
            if value > past + most * abs(past) + varies:
                yield part.row, f"{part.row.name()}: {name}: {past:g} -> {value:g}"


def grown_at_all_addresses(now: Iterable[Added], before: dict[str, Counts]) -> list[str]:
    """The lines of `grown` for rows that are counted again, at other addresses: dictionaries of addresses are searched in
    another order there, which is 300 instructions of a call."""
    growth = list(grown(now, before))
    for addresses in range(1, 4):
        if not growth:
            break
        rows = list(dict.fromkeys(row for row, _ in growth))
        growth = list(grown(added(rows, addresses=addresses), before))
    return [line for _, line in growth]


def all_rows(options: argparse.Namespace) -> list[Row]:
    return [
        Row(kind, tool, level, filtered)
        for tool in options.tool or TOOLS
        for level in options.level or LEVELS
        for filtered in ((LEFT_OUT, TAKEN) if options.taken else (LEFT_OUT,))
        for kind in options.kind or KINDS
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="of these tools")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of these kinds of calls")
    parser.add_argument("--level", action="append", choices=LEVELS, help="at this level")
    parser.add_argument(
        "--taken", action="store_true", help="calls that are taken, too; their system calls alone with --quick"
    )
    parser.add_argument("--write", action="store_true", help=f"into {BASELINE.relative_to(ROOT)}")
    options = parser.parse_args()
    report = Report("call_counts")
    table = report.table("Added to a call by a tool", "call", *asdict(Counts()), "instructions without the tool")
    parts = []
    for part in added(all_rows(options), instructions=not options.quick):
        parts.append(part)
        table.row(part.row.name(), *(f"{value:g}" for value in asdict(part.counts).values()), part.plain.instructions)
    report.write()
    if options.write:
        counts = {part.row.name(): asdict(part.counts) for part in parts}
        if BASELINE.exists() and read_baseline()[0] == made_with():
            counts = json.loads(BASELINE.read_text())["counts"] | counts
        BASELINE.write_text(json.dumps({"made with": made_with(), "counts": counts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
