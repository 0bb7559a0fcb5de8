"""OpRecord: the whole course of a run in a small file, and such files for Python."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from typing_extensions import Unpack

from .._base import core
from .._base.core import find_recordings
from .._base.declared_options import OpRecordOptions
from .._base.declared_rows import RecordRow
from .._base.rank_text import lines_of_ranks
from .._base.results import DEFAULT_ROWS, Result, Shown, SortableResult, counted, sorted_rows, text_table, worded
from .._base.verdict import Coverage
from .tool import Tool

RECORDING = ".oprec"
"""How the name of a recording's file ends."""
_MOST_SHOWN = 4  # recordings whose calls are shown


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor's values. A tensor that is not written has a single version, however many calls see it."""

    number: int
    """Of this value in its recording."""
    origin: str
    """`call`, `parameter`, `buffer`, `gradient`, `input` (of the outermost module) or `unknown`."""
    name: str
    """Of a parameter, buffer, gradient or input: "Net.fc.weight", "grad:Net.fc.weight", "Net.input[0]"; else ""."""
    producer: int | None
    """The place in `calls` of the call that made or wrote it."""
    output: int
    """Which of the producer's outputs it is."""
    dtype: str
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    known: bool
    """There are statistics; else the fields that follow mean nothing."""
    hash: int
    """Of the elements' bytes, in the order of their indices: the same on every device and for all strides."""
    nan: int
    inf: int
    zero: int
    min: float
    max: float
    mean: float
    norm: float
    projections: tuple[float, ...]
    """Sums of the elements with signs by their index."""
    in_doubt: bool
    """Its device was found to compute statistics wrong, and had computed these: they are left out."""

    def __str__(self) -> str:
        return f"{self.dtype.removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class RecordedCall:
    """A call of an operator."""

    id: int
    """As in OpCapture's folders."""
    op: str
    level: str
    phase: str
    step: int
    module: str
    module_call: int
    """How often the module had been called before, in this step."""
    line: str
    error: str
    scalars: str
    """The arguments that are no tensors, as JSON: {"args[1]": 2}; "" where there is none."""
    random: str
    """The generator that it drew from; "" for none."""
    thread: int
    backward_pass: int
    """Which backward pass over the call, from 0."""
    forward_id: int
    """Backward: the id of the forward call; 0: not known."""
    grad_enabled: bool
    inputs: list[tuple[str, RecordedTensor]] = field(repr=False)
    """Places ("args[0]") and their tensors."""
    outputs: list[tuple[str, RecordedTensor]] = field(repr=False)
    """The returned tensors ("result"), then the written ones ("written args[0]")."""


class RecordedCalls(Sequence[RecordedCall]):
    """The calls of a recording in the order of their ends. Each is read from it when it is asked for."""

    def __init__(self, of_core: core.Recording) -> None:
        self._core = of_core

    def __len__(self) -> int:
        return self._core.calls

    def counted_by_place(self) -> list[tuple[str, str, int]]:
        """How many calls each module made in each line: (module, line, calls), in the order of the first calls."""
        return self._core.calls_by_place

    def failed(self) -> list[int]:
        """The numbers of the calls that raised."""
        return self._core.failed_calls

    def _value(self, number: int) -> RecordedTensor:
        return RecordedTensor(number, *self._core.value(number))

    def _call(self, index: int) -> RecordedCall:
        *facts, inputs, outputs = self._core.call(index)
        tensors = [[(place, self._value(number)) for place, number in uses] for uses in (inputs, outputs)]
        return RecordedCall(*facts, *tensors)

    @overload
    def __getitem__(self, index: int) -> RecordedCall: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordedCall]: ...
    def __getitem__(self, index: int | slice) -> RecordedCall | list[RecordedCall]:
        if isinstance(index, slice):
            return [self._call(one) for one in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"call {index} of {len(self)}")
        return self._call(index % len(self))

    def __iter__(self) -> Iterator[RecordedCall]:
        return (self._call(index) for index in range(len(self)))


def _joined(tensors: list[tuple[str, RecordedTensor]]) -> str:
    return " ".join(str(tensor) for _, tensor in tensors)


@dataclass(frozen=True, repr=False)
class Recording(Result):
    """The recording of a process."""

    path: str
    header: dict[str, Any]
    """Versions, devices, flags, seeds, environment, git commit, command line, rank and world size."""
    complete: bool
    """False: it ends before its program did, or its program runs, or it is damaged: `ended_early` in the header."""
    damage: str
    """From which byte on it is damaged, and how; else ""."""
    calls: RecordedCalls

    @property
    def rows(self) -> RecordedCalls:
        """The calls."""
        return self.calls

    def table(self, row_limit: int = DEFAULT_ROWS) -> str:
        """The first calls as a text table.

        Args:
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: the limit is below -1.
        """
        shown = self.calls[:] if row_limit < 0 else self.calls[:row_limit]
        columns: list[Shown[RecordedCall]] = [
            Shown("step", lambda call: str(call.step), is_number=True),
            worded("phase", "phase"),
            worded("op", "op"),
            worded("module", "module"),
            Shown("inputs", lambda call: _joined(call.inputs)),
            Shown("outputs", lambda call: _joined(call.outputs)),
            Shown("norm", lambda call: f"{call.outputs[0][1].norm:.6g}" if call.outputs else "", is_number=True),
            worded("error", "error"),
        ]
        text = text_table(columns, shown, max(row_limit, -1))
        left = len(self.calls) - len(shown)
        return text + (f"\n... and {left} more calls" if left else "")

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row per tensor of a call.

        Raises:
            op_tools.Error: pandas is not installed.
        """
        return _Uses([use for index, call in enumerate(self.calls) for use in _uses(index, call)]).to_pandas()


@dataclass(frozen=True)
class _Use:
    """A tensor of a call, flat."""

    call: int
    id: int
    op: str
    phase: str
    step: int
    module: str
    line: str
    place: str
    value: int
    origin: str
    name: str
    producer: int | None
    dtype: str
    shape: tuple[int, ...]
    hash: int
    nan: int
    inf: int
    min: float
    max: float
    mean: float
    norm: float


def _uses(index: int, call: RecordedCall) -> Iterator[_Use]:
    for place, tensor in (*call.inputs, *call.outputs):
        numbers = (tensor.hash, tensor.nan, tensor.inf, tensor.min, tensor.max, tensor.mean, tensor.norm)
        of_call = (index, call.id, call.op, call.phase, call.step, call.module, call.line, place)
        yield _Use(
            *of_call, tensor.number, tensor.origin, tensor.name, tensor.producer, tensor.dtype, tensor.shape, *numbers
        )


@dataclass(frozen=True)
class _Uses(Result):
    rows: list[_Use]


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a recording, also while its program runs.

    Args:
        path: a file `*.oprec`.

    Returns:
        the recording; its calls are made into objects when they are asked for. A recording that was cut off or damaged has the calls that
        comes before, see `complete` and `damage`.

    Raises:
        op_tools.Error: the file cannot be read, or is no recording.
    """
    of_core = core.read_recording(os.fspath(path))
    return Recording(of_core.path, of_core.header, of_core.complete, of_core.damage, RecordedCalls(of_core))


def losses_of(recording: core.Recording) -> dict[int, float]:
    """Step -> its last loss: the number from which a backward pass begins, whose gradient is the first backward call after forward calls."""
    losses: dict[int, float] = {}
    numbers: dict[int, float] = {}  # of forward calls by id
    was_forward = False
    for call in RecordedCalls(recording):
        if call.phase == "forward":
            tensors = [tensor for _, tensor in call.outputs if tensor.known and math.prod(tensor.shape) == 1]
            if tensors and tensors[0].dtype.startswith(("torch.float", "torch.bfloat", "float", "bfloat")):
                numbers[call.id] = tensors[0].mean
        elif was_forward and call.forward_id in numbers:
            losses[call.step] = numbers[call.forward_id]
        was_forward = call.phase == "forward"
    return losses


@dataclass(frozen=True, repr=False)
class RecordResult(SortableResult):
    """The recording of a run of OpRecord. Its table has the operators with most calls first."""

    rows: list[RecordRow] = field(default_factory=list)
    """A row per operator."""
    path: str = ""
    """The file; "" if nothing was recorded."""
    failure: str = ""
    """Why recording stopped before its end (a full disk), or ""."""
    ended_early: str = ""
    """The same in a word: `disk_full` or `failure`; "" where it did not stop."""
    calls: int = 0
    values: int = 0
    """Different values of tensors."""
    bytes: int = 0
    """Size of the file."""
    read_backs: int = 0
    """Transfers of statistics from a device."""
    statistics_on_host: list[str] = field(default_factory=list)
    """Devices that were found to compute statistics wrong: the CPU has computed them from then on."""
    statistics_in_doubt: int = 0
    """Values whose statistics such a device had computed before: they are left out when the file is read."""
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were recorded, and which were not."""

    def _in_order(self) -> Sequence[RecordRow]:
        return sorted_rows(self.rows, "calls")

    def _columns(self) -> list[Shown[Any]]:
        return [
            worded("op", "op"),
            counted("calls", "calls"),
            counted("backward", "backward"),
            counted("failed", "failed"),
        ]


class OpRecord(Tool):
    """Records a run: a row per operator call with statistics of its tensors and the calls that made them, in a small file.

    The file is ``<output_dir>/rank<R>-<pid>.oprec``. It grows while the program runs, survives its death, and can be read
    at any time with :func:`read_recording`. Two recordings can be compared: `op-tools compare A B`.
    """

    _kind = "OpRecord"

    def __init__(self, **options: Unpack[OpRecordOptions]) -> None:
        super().__init__(**options)

    @property
    def path(self) -> str:
        """The file; "" before the first call."""
        return str(self._report().get("path", ""))

    def result(self) -> RecordResult:
        """The recording of the last run so far. Call flush() first to have it in the file."""
        report = self._report_and_coverage()
        return RecordResult(**{**report, "rows": [RecordRow(**row) for row in report["rows"]]})


def _facts_of_run(header: Mapping[str, Any]) -> str:
    """A sentence of those facts that tell recordings apart; read_recording() has all."""
    texts = {name: str(value) for name, value in header.items() if isinstance(value, (str, int))}
    named = [
        f"{name} {texts[name]}"
        for name in ("rank", "world_size", "pid", "level", "torch", "op_tools", "git")
        if texts.get(name)
    ]
    devices = header.get("devices")
    named += [f"on {device}" for device in devices] if isinstance(devices, list) else []
    return textwrap.fill(", ".join(named), 80)


def holds_recordings(path: Path) -> bool:
    """A recording, or a folder with recordings in it."""
    return path.suffix == RECORDING or (path.is_dir() and any(path.glob(f"*{RECORDING}")))


def show_recordings(path: str | os.PathLike[str], row_limit: int = DEFAULT_ROWS) -> str:
    """The output of `op-tools show` for recordings: the header and the first calls of each; of many the header and calls of the first, and
    a line for those with equal states.

    Raises:
        op_tools.Error: there is none, or it cannot be read.
    """
    files = find_recordings(os.fspath(path))
    parts = []
    others: list[tuple[int, str]] = []
    for number, file in enumerate(files):
        recording = read_recording(file)
        state = "complete" if recording.complete else f"not complete ({recording.header['ended_early']})"
        if recording.damage:
            state = f"damaged, {recording.damage}"
        if number >= _MOST_SHOWN and len(files) > _MOST_SHOWN + 1:
            rank = recording.header.get("rank", 0)
            others.append((rank if isinstance(rank, int) else 0, f"{len(recording.calls)} calls, {state}"))
            continue
        lines = [recording.path, " ".join(map(str, recording.header.get("argv", []))), _facts_of_run(recording.header)]
        lines += [f"{len(recording.calls)} calls, {state}", "", recording.table(row_limit)]
        parts.append("\n".join(lines))
    if others:
        parts.append("\n".join(lines_of_ranks(others, fewest_first=True)))
    return "\n\n".join(parts)
