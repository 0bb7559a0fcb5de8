"""OpMemoryCheck: who holds the memory, which memory grows, and who writes outside of it."""

from __future__ import annotations

import gc
import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self, Unpack

from .._base.checks import checked_choice
from .._base.core import is_memory_judged_after, log_warn, set_in_optimizer
from .._base.declared_options import OpMemoryCheckOptions
from .._base.declared_rows import BlockRow, DeviceMemoryRow, MemoryRow, OverwriteRow
from .._base.results import DEFAULT_ROWS, Result, Shown, counted, megabytes, sorted_rows, text_table, worded
from .._base.verdict import Coverage, Verdict, verdict_of
from .._torch.memory_owners import UNKNOWN, Owners
from .tool import Tool

_ASKED_PER_PLACE = 8  # blocks of a leak whose owners are looked for
_ASKED_MEANWHILE = 2  # the same while the program runs
_TOLD = 5  # leaks in the log

_Place = tuple[str, str, str]  # operator, module, line


@dataclass(frozen=True)
class MemoryLeak:
    """A place whose memory grows with the steps."""

    op: str
    """The operator that allocates."""
    module: str
    """Its module."""
    line: str
    """The program's line that allocates."""
    growth: float
    """Bytes per step."""
    alive: int
    """Blocks still allocated; 0 if the program freed them after its last step."""
    alive_bytes: int
    """Their bytes."""
    held_by: str
    """Names that lead to the memory, the autograd graph that saved it, or "C++ owner, unknown". If nothing holds it any more,
    its holder while the program ran."""
    held_at: str
    """The line that made the tensor whose graph holds the memory; "" if no graph does."""


@dataclass(frozen=True, repr=False)
class MemoryResult(Result):
    """The results of a run of OpMemoryCheck."""

    rows: list[MemoryRow] = field(default_factory=list)
    """A row per place: operator, module, line, phase and device. Most bytes alive first."""
    leaks: list[MemoryLeak] = field(default_factory=list)
    """Places that grow with the steps."""
    overwrites: list[OverwriteRow] = field(default_factory=list)
    """Operators that wrote outside of a block, with guard=True."""
    devices: list[DeviceMemoryRow] = field(default_factory=list)
    """A row per device."""
    blocks: list[BlockRow] = field(default_factory=list)
    """Blocks that are still allocated, at most 20,000."""
    steps: int = 0
    """Training steps that ended."""
    root: str = ""
    """Folder of the run; "" if nothing was written."""

    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were checked, and which were not."""

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all calls were checked."""
        return verdict_of(
            wrong=bool(self.leaks or self.overwrites or self.coverage.children_wrong), unseen=self.coverage.reasons()
        )

    @property
    def ok(self) -> bool:
        """True if the verdict is `agrees`: nothing leaks or was written outside of a block, and most was looked at."""
        return self.verdict is Verdict.AGREES

    def peak_by(self, field: str = "kind") -> dict[str, int]:
        """The allocations when the devices had most, in bytes.

        Args:
            field: "kind", "module", "op", "line", "phase" or "device".

        Raises:
            op_tools.Error: the rows have no such field.
        """
        return self._bytes_by(field, "peak_bytes")

    def alive_by(self, field: str = "line") -> dict[str, int]:
        """The present allocations, in bytes.

        Args:
            field: "kind", "module", "op", "line", "phase" or "device".

        Raises:
            op_tools.Error: the rows have no such field.
        """
        return self._bytes_by(field, "alive_bytes")

    def _bytes_by(self, field: str, which: str) -> dict[str, int]:
        checked_choice("field=", field, ("kind", "module", "op", "line", "phase", "device"))
        sums: Counter[str] = Counter()
        for row in self.rows:
            if count := getattr(row, which):
                sums[getattr(row, field)] += count
        return dict(sums.most_common())

    def table(self, sort_by: str = "alive_bytes", row_limit: int = DEFAULT_ROWS) -> str:
        """The places as a text table, and their totals.

        Args:
            sort_by: a field of the rows. Numbers are sorted in descending order, strings in ascending order.
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: the rows have no such field.
        """
        columns: list[Shown[MemoryRow]] = [
            worded("op", "op"),
            *(worded(title, title) for title in ("kind", "module", "device")),
            counted("alive", "alive"),
            megabytes("alive MB", "alive_bytes"),
            megabytes("peak MB", "peak_bytes"),
            counted("allocations", "allocations"),
            Shown("B/step", lambda row: f"{row.growth:.0f}" if row.leaks else "", is_number=True),
            worded("line", "line"),
        ]
        return "\n".join([*self.coverage.lines(), text_table(columns, sorted_rows(self.rows, sort_by), row_limit)])

    def export_snapshot(self, path: str) -> None:
        """Writes the present allocations in the form of torch.cuda.memory._snapshot(), for https://pytorch.org/memory_viz.

        Args:
            path: the file.
        """
        Path(path).write_bytes(pickle.dumps(self.snapshot()))

    def snapshot(self) -> dict[str, Any]:
        """The present allocations in the form of torch.cuda.memory._snapshot()."""
        order = {row.device: number for number, row in enumerate(self.devices)}
        traces: list[list[dict[str, Any]]] = [[] for _ in order]
        segments = []
        for block in sorted(self.blocks, key=lambda one: one.step):
            row = self.rows[block.place]
            frames = _frames(row)
            segments.append(
                {
                    "address": block.address,
                    "total_size": block.bytes,
                    "allocated_size": block.bytes,
                    "active_size": block.bytes,
                    "requested_size": block.bytes,
                    "stream": 0,
                    "device": order[block.device],
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": frames,
                    "blocks": [
                        {
                            "address": block.address,
                            "size": block.bytes,
                            "requested_size": block.bytes,
                            "state": "active_allocated",
                            "frames": frames,
                        }
                    ],
                }
            )
            traces[order[block.device]].append(
                {"action": "alloc", "addr": block.address, "size": block.bytes, "stream": 0, "frames": frames}
            )
        return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def _place(row: MemoryRow | MemoryLeak) -> _Place:
    return row.op, row.module, row.line


def _frames(row: MemoryRow) -> list[dict[str, Any]]:
    """The operator, then the lines, as torch writes frames."""
    frames = [{"name": row.op, "filename": row.module or "??", "line": 0}]
    for line in row.stack.splitlines() or [row.line]:
        place, _, function = line.partition(" ")
        file, _, number = place.rpartition(":")
        if file:
            frames.append({"name": function, "filename": file, "line": int(number) if number.isdecimal() else 0})
    return frames


def _find_leaks(
    report: dict[str, Any], known: Collection[_Place] = (), most: int | None = None, blocks: int = _ASKED_PER_PLACE
) -> list[MemoryLeak]:
    """Leaking places with their owners; looks at the program's objects as they are now.

    Args:
        known: places that are left out.
        most: at most this number of places; None: all.
        blocks: of how many blocks of a place the owners are looked for: each takes up to seconds in a large program.
    """
    rows = [MemoryRow(**row) for row in report["rows"]]
    leaking = [number for number, row in enumerate(rows) if row.leaks and _place(row) not in known][:most]
    if not leaking:
        return []
    line_of = {block["address"]: rows[block["place"]].line for block in report["blocks"]}
    addresses: dict[int, list[int]] = defaultdict(list)
    for block in report["blocks"]:
        if block["place"] in leaking and len(addresses[block["place"]]) < blocks:
            addresses[block["place"]].append(block["address"])
    try:
        owners = Owners(address for some in addresses.values() for address in some)
        held = {number: [owners.of(address) for address in addresses[number]] for number in leaking}
    except Exception as error:  # it looks at objects of any kind; the program goes on
        log_warn(f"OpMemoryCheck: the holder of the memory is not known: {error!r}")
        held = {}
    return [_leak(rows[number], held.get(number, []), line_of) for number in leaking]


def _leak(row: MemoryRow, held: Iterable[tuple[str, int]], line_of: dict[int, str]) -> MemoryLeak:
    holders = Counter(held) or Counter([(UNKNOWN, 0)])
    (held_by, root), _ = holders.most_common(1)[0]
    return MemoryLeak(
        row.op, row.module, row.line, row.growth, row.alive, row.alive_bytes, held_by, line_of.get(root, "")
    )


class OpMemoryCheck(Tool):
    """Finds who holds memory, which memory grows with the training steps, and which operator writes outside of its memory.

    Every allocation of a device is noted with operator, module, line, step and phase; on the CPU where the program uses no
    other device. A *leak* is a place that grows in the second half of the steps and holds memory of many steps, also if
    the program frees it after the last step; step() ends a step. Files: ``op_memory_check_result/<rank>/<time>/`` with
    ``memory.csv``, ``memory.jsonl``, ``leaks.jsonl`` and ``snapshot.pickle`` for https://pytorch.org/memory_viz.
    """

    _kind = "OpMemoryCheck"
    _defaults: ClassVar[dict[str, Any]] = {"level": "aten"}

    def __init__(self, **options: Unpack[OpMemoryCheckOptions]) -> None:
        super().__init__(**options)
        self._leaks: list[MemoryLeak] | None = None  # of a run that ended
        self._held: dict[_Place, MemoryLeak] = {}  # leaks whose holder was found while the program ran
        self._handles: list[RemovableHandle] = []

    def start(self) -> Self:
        if self._depth == 0:
            self._leaks = None
            self._held = {}
        super().start()
        if self._depth == 1:
            self._handles = [
                register_optimizer_step_pre_hook(lambda *_: set_in_optimizer(True)),
                register_optimizer_step_post_hook(lambda *_: set_in_optimizer(False)),
            ]
        return self

    def stop(self) -> None:
        ends = self._depth == 1
        try:
            if ends:
                self._leaks = self._look()
                for handle in self._handles:
                    handle.remove()
                set_in_optimizer(False)
        finally:
            super().stop()
        if ends:
            self._tell()

    end = stop

    def step(self) -> None:
        set_in_optimizer(False)
        looks = self._scope is not None and is_memory_judged_after(self._scope.current_step + 1)
        if looks and self._leaks_any():
            gc.collect()  # before the step is noted: memory that waits for it does not grow
        super().step()
        if looks:
            # When the run ends, the functions have returned whose variables hold it.
            leaks = _find_leaks(self._report(), self._held, _TOLD, _ASKED_MEANWHILE)
            self._held.update({_place(leak): leak for leak in leaks if leak.held_by != UNKNOWN})

    def result(self) -> MemoryResult:
        """The results of the last run so far. While the tool is on, who holds a leak is looked for anew."""
        report = self._report_and_coverage()
        leaks = self._look() if self._leaks is None else self._leaks
        return MemoryResult(
            [MemoryRow(**row) for row in report["rows"]],
            leaks,
            [OverwriteRow(**row) for row in report.get("overwrites", [])],
            [DeviceMemoryRow(**row) for row in report.get("devices", [])],
            [BlockRow(**row) for row in report.get("blocks", [])],
            report.get("steps", 0),
            report.get("root", ""),
            report["coverage"],
        )

    def _look(self) -> list[MemoryLeak]:
        """Leaks and their owners. Memory that only waits for Python's garbage collector is no leak."""
        if not self._leaks_any():
            return []
        gc.collect()
        leaks = _find_leaks(self._report())
        return [self._with_holder(leak) if leak.held_by == UNKNOWN else leak for leak in leaks]

    def _leaks_any(self) -> bool:
        return any(row["leaks"] for row in self._report()["rows"])

    def _with_holder(self, leak: MemoryLeak) -> MemoryLeak:
        held = self._held.get(_place(leak))
        return replace(leak, held_by=held.held_by, held_at=held.held_at) if held else leak

    def _tell(self) -> None:
        """Who holds the leaking memory; and the files that Python writes."""
        result = self.result()
        for leak in result.leaks[:_TOLD]:
            held_at = f", made at {leak.held_at}" if leak.held_at else ""
            held = "is held" if leak.alive else "was held"
            log_warn(f"OpMemoryCheck: memory of {leak.op}, {leak.line}, {held} by {leak.held_by}{held_at}")
        if not result.root:
            return
        root = Path(result.root)
        try:
            if result.leaks:
                lines = [json.dumps(asdict(leak)) + "\n" for leak in result.leaks]
                (root / "leaks.jsonl").write_text("".join(lines), encoding="utf-8")
            result.export_snapshot(str(root / "snapshot.pickle"))
        except OSError as error:
            log_warn(f"OpMemoryCheck: {error}")
