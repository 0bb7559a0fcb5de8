"""The rows of the results, and the words in them. Made by tools/generate_declared.py from the declarations in C++: do not edit."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class CallVerdict(str, enum.Enum):
    """The verdicts of RunRow."""

    AGREES = "agrees"
    BORN = "born here"
    CARRIED = "carried"
    HEALED = "healed"
    ONLY_A = "only in A"
    ONLY_B = "only in B"
    CAUSE_NOT_FOUND = "differs, cause not found"
    NOT_COMPARED = "not compared"


class Finding(str, enum.Enum):
    """How the results of a RunRow differ."""

    NONE = ""
    ERROR = "one of them raised an error"
    SHAPE = "other shape"
    NONFINITE = "NaN or infinity"
    NUMBERS = "other numbers"
    RANDOM = "other random numbers"
    FIRST_INPUT = "an input differs from the start"
    OTHER_INPUT = "reads the result of another call"
    CHANGED_INPUT = "an input changed between calls"
    EXTRA_CALL = "a call that only one run makes"
    END_RESULT = "another loss, gradient or parameter"


@dataclass(frozen=True)
class CaptureRow:
    """The captured calls of an operator."""

    op: str
    """The operator."""
    calls: int
    """Forward calls."""
    backward: int
    """Backward passes."""
    bytes: int
    """Of tensors, in memory."""
    unsupported: int
    """Values without a form in a file; meta.json says which."""
    failed: int
    """Calls whose operator raised; their inputs are saved."""


@dataclass(frozen=True)
class ComparedOp:
    """The judged tensors of an operator: outputs, changed inputs, input gradients."""

    op: str
    """The operator."""
    calls: int
    """Forward calls."""
    backward: int
    """Backward passes."""
    passed: int
    """Outputs, changed inputs and input gradients that are right."""
    failed: int
    """That are wrong."""
    not_judged: int
    """Comparisons without a verdict."""
    worst: float
    """The largest share of a limit that was reached; 1 is the limit."""
    reason: str
    """Of the first failure; else why something was not judged."""
    source: str
    """The user's line of the first failure."""


@dataclass(frozen=True)
class OverflowRow:
    """An output with NaN or infinities."""

    kind: str
    """Producer: its inputs were finite; propagator: it was given such values."""
    expected: bool
    """In backward, with allow_in_backward_with_scaler."""
    op: str
    """The operator."""
    id: int
    """Of the call."""
    step: int
    """Of the call."""
    phase: str
    """Forward or backward."""
    output: int
    """Which of the call's output tensors (then: of the inputs that it wrote), or of its input gradients."""
    dtype: str
    """Of the output."""
    shape: list[int]
    """Of the output."""
    nan: int | None
    """Elements; None: the program had overwritten the tensor before it was read."""
    pos_inf: int | None
    """Likewise."""
    neg_inf: int | None
    """Likewise."""
    first: list[int] | None
    """Index of the first such element."""
    module: str | None
    """As in ResNet.layer3.0.conv1."""
    line: str | None
    """Of the program."""
    saved: str | None
    """Folder of the producer's call, for run_op_from_data."""
    not_saved: str | None
    """Why a producer was not."""


@dataclass(frozen=True)
class ObserveRow:
    """Calls of an operator with the same shapes, dtypes and devices."""

    op: str
    """The operator."""
    phase: str
    """Forward or backward."""
    inputs: list[TensorShape]
    """Backward at level torch: the gradients of the outputs."""
    outputs: list[TensorShape]
    """Its tensors."""
    calls: int
    """That were alike."""
    lines: list[str]
    """Of the program, that made them: the first eight."""


@dataclass(frozen=True)
class TensorShape:
    """A tensor of a call."""

    shape: list[int]
    """Its sizes."""
    dtype: str
    """As in torch.float32."""
    device: str
    """As in cuda:0."""


@dataclass(frozen=True)
class DynamicDim:
    """A dimension that had several sizes in calls from the same line of the program: a dynamic shape."""

    op: str
    """The operator."""
    phase: str
    """Forward or backward."""
    line: str | None
    """Of the program."""
    of: str
    """Input or output."""
    tensor: int
    """Which of the inputs, or outputs."""
    dimension: int
    """Of the tensor."""
    sizes: list[int]
    """Rising."""
    calls: int
    """That were put together."""


@dataclass(frozen=True)
class TimeRow:
    """Calls of an operator, or of an operator and shape, source line or module. Times in milliseconds."""

    op: str
    """Of several: the operator that took most, "+ 3" behind it."""
    phase: str
    """Forward or backward."""
    shapes: str
    """Of the input tensors; empty where the row has several."""
    dtypes: str
    """Likewise."""
    device: str
    """Likewise."""
    line: str
    """Of the program, with with_stack."""
    module: str
    """Of the model, with with_modules."""
    calls: int
    """That were measured."""
    failed: int
    """Calls that raised; they count."""
    total_ms: float
    """Of all calls."""
    self_ms: float
    """Without measured calls that ran inside."""
    mean_ms: float
    """Of a call."""
    p50_ms: float
    """Median of the calls; quantiles are off by less than 0.8 %."""
    p99_ms: float
    """99 of 100 calls took less."""
    min_ms: float
    """Of the shortest call."""
    max_ms: float
    """Of the longest call."""
    share: float
    """Of the self time of all rows."""
    bytes_read: int
    """Of the tensors that went in."""
    bytes_written: int
    """Of those that came out."""
    gb_per_s: float
    """Bytes read and written, by the total time."""
    flops: int
    """Floating point operations; 0: torch has no formula."""
    gflop_per_s: float
    """By the total time."""
    allocated_bytes: int
    """With memory."""
    peak_bytes: int
    """The most of a single call, with memory."""


@dataclass(frozen=True)
class RedirectRow:
    """The calls of an operator that were run elsewhere, and those that stayed."""

    op: str
    """The operator, as the filter admitted it."""
    calls: int
    """Operators of the dispatcher that ran elsewhere: a torch function may make several."""
    ran: dict[str, int]
    """Which ones, and how often."""
    bytes: int
    """Moved or cast, both ways."""
    milliseconds: float
    """Moves and operators."""
    stayed: dict[str, int]
    """Calls that ran as without the tool, with the reason, and how often."""


@dataclass(frozen=True)
class BlackBoxRow:
    """A call in the file of OpBlackBox."""

    state: str
    """`open`: it had begun and not ended; `ended`; `failed`: the operator raised."""
    op: str
    """The operator."""
    phase: str
    """`forward` or `backward`."""
    module: str
    """The module that made the call."""
    line: str
    """The program's line."""
    inputs: str
    """Dtypes, shapes and devices of the tensors."""
    step: int
    """The training step."""
    id: int
    """The number of the call."""
    thread: int
    """The thread, as the system numbers it."""
    begun: float
    """Seconds since 1970."""
    ms: float | None
    """How long the program's thread was in it; nothing for an open call."""
    stored: str
    """`inputs`: they are in the file; `too large`, `failed`, `no room`: why not; `copying`: the call had not begun; empty: not asked."""
    stream: str
    """The stream of a device: `sim:0, stream 0`."""
    done: bool
    """An event of its stream showed that the device had done it; on the CPU: it ended."""
    group: str
    """The process group of a collective."""
    number: int
    """The collective's number in its group, from 1."""
    reduction: str
    """How the collective reduces, and its root: `sum, root 0`."""


@dataclass(frozen=True)
class RecordRow:
    """Calls of an operator in a recording."""

    op: str
    """The operator."""
    calls: int
    """Forward calls."""
    backward: int
    """Backward calls."""
    failed: int
    """Calls that raised."""


@dataclass(frozen=True)
class MemoryRow:
    """The allocations of a place of the program on a device."""

    device: str
    """The device."""
    op: str
    """The operator that allocated; in brackets where no operator of the tool's level ran."""
    phase: str
    """`forward`, `backward` or `optimizer`."""
    module: str
    """The module that made the call."""
    line: str
    """The program's line."""
    kind: str
    """`parameter`, `activation`, `gradient`, `optimizer` or `other`."""
    alive: int
    """Blocks that are still allocated."""
    alive_bytes: int
    """Their bytes."""
    peak_bytes: int
    """Bytes that were there when the device had most."""
    allocations: int
    """Blocks allocated in all."""
    allocated_bytes: int
    """Their bytes."""
    leaks: bool
    """It grows with the steps."""
    growth: float
    """Bytes per step, in the second half of the steps."""
    birth_steps: int
    """Steps that allocated the memory that is still allocated, or the memory that it was made of."""
    first_step: int
    """The first step in which it allocated."""
    last_step: int
    """The last step in which it allocated."""
    bytes_at_steps: list[int]
    """Bytes that were allocated when a step had ended: after `step_distance` steps, twice as many, ...."""
    step_distance: int
    """Steps from each of these figures to the next."""
    freed_by: str
    """The operator in which the last block was freed, or between which."""
    stack: str
    """The stack of the first allocation, with backtrace=True."""


@dataclass(frozen=True)
class OverwriteRow:
    """An operator that wrote outside of a block of memory."""

    op: str
    """The operator that ran before it was seen."""
    phase: str
    """`forward`, `backward` or `optimizer`."""
    module: str
    """Its module."""
    line: str
    """The program's line."""
    step: int
    """The training step."""
    operators: int
    """1: it wrote; more: one of so many, of which it is the last; they were not given the block."""
    side: str
    """`behind` or `before` the block."""
    bytes: int
    """How many bytes differ."""
    offset: int
    """Of the first byte, from the beginning of the block."""
    block_bytes: int
    """Size of the block."""
    made_by: str
    """The operator that allocated the block."""
    made_at: str
    """Its line."""


@dataclass(frozen=True)
class BlockRow:
    """A block of memory that is still allocated."""

    place: int
    """Index of its row."""
    address: int
    """Where it is."""
    bytes: int
    """Its size."""
    step: int
    """The step in which it was allocated."""
    device: str
    """The device."""


@dataclass(frozen=True)
class DeviceMemoryRow:
    """The memory of a device, as far as the tool saw it."""

    device: str
    """The device."""
    alive_bytes: int
    """Still allocated."""
    peak_bytes: int
    """Most at once."""
    peak_step: int
    """The step of the peak."""
    peak_op: str
    """The operator that reached it."""
    reports: bool
    """Its allocator reports; False: only tensors that operators were given or returned are known."""
    allocator_bytes: int | None
    """The allocator's last figure of memory that it had given out."""
    allocator_peak_bytes: int | None
    """The most that it said during a call."""
    reserved_bytes: int | None
    """The allocator's last figure of its memory of the device, with the part that it keeps for later."""
    reserved_peak_bytes: int | None
    """The most of it."""
    unused_bytes: int | None
    """The part of the most that no tensor used at that moment: fragmentation, and the rest of a block just got."""


@dataclass(frozen=True)
class InvarianceRow:
    """A result whose bits a relation should have kept."""

    op: str
    """The operator."""
    id: int
    """Of the call."""
    step: int
    """Of the call."""
    level: str
    """Torch or aten."""
    phase: str
    """Forward or backward."""
    relation: str
    """Repeat: the same inputs again; memory: in other memory; threads: with another number of threads; stream: on another stream; neighbour: beside other values in the batch; batch: in a batch of another size; position: at another position of the batch; strides: with other gaps in memory; shift: at another place of its sequence; sequence: in another sequence; padding: with more keys that are left out; pieces: with its queries in pieces; packed: with its sequences behind each other."""
    transient: bool
    """Repeat: a single run of all has other bits; False: several have."""
    runs: int | None
    """Repeat: runs on the same inputs, besides the program's."""
    other_runs: int | None
    """Those of them whose bits are not the program's."""
    output: int
    """Which result (then: which input that the call wrote), or input gradient."""
    elements: int
    """That have other bits."""
    numel: int
    """Of all."""
    rows: int
    """Of the first dimension: with such an element."""
    of_rows: int
    """Of all."""
    max_ulp: float
    """The largest difference, in units of the last place."""
    max_abs: float
    """The largest difference."""
    bits: str
    """Of an element, from the lowest: those that differ in any."""
    places: str | None
    """The first elements that have other bits, by their numbers in the order of elements."""
    page_bytes: str | None
    """Of a single run: where they lie, their addresses modulo 4096."""
    structure: str | None
    """Where shape, dtype or number of tensors is another."""
    batch: int | None
    """Rows of the program's call."""
    run: str | None
    """Neighbour, batch, position, shift, sequence, padding, pieces, packed: the rows of the run with other bits."""
    begins: int | None
    """Batch: the smallest number of rows with other bits than fewer rows have."""
    right: str
    """By float64: both right, program wrong, other wrong, both wrong, unknown."""
    device: str
    """Of the call."""
    module: str | None
    """As in ResNet.layer3.0.conv1."""
    line: str | None
    """Of the program."""
    saved: str | None
    """The call's folder, for op-tools repro."""


@dataclass(frozen=True)
class InvariantOp:
    """The relations of an operator's calls: kept, not kept, not judged."""

    op: str
    """The operator."""
    calls: int
    """Forward calls that were run again."""
    backward: int
    """Backward passes that were run again."""
    kept: int
    """Relations that kept the bits."""
    repeat: int
    """Calls that did not repeat their bits."""
    memory: int
    """That have other bits in other memory."""
    threads: int
    """With another number of threads."""
    stream: int
    """On another stream of the device."""
    neighbour: int
    """Beside other values in the other rows of the batch."""
    batch: int
    """In a batch of another size."""
    position: int
    """At another position of the batch."""
    strides: int
    """With other gaps in memory."""
    shift: int
    """At another place of its sequence."""
    sequence: int
    """In another sequence."""
    padding: int
    """With more keys that are left out."""
    pieces: int
    """With queries in pieces."""
    packed: int
    """With sequences behind each other."""
    keeps: str
    """The relations in which calls kept their bits, separated by blanks."""
    not_judged: int
    """Relations without a verdict."""
    transient: int
    """Findings with a single run of other bits."""
    max_ulp: float
    """The largest difference, in units of the last place."""
    reason: str
    """Of the first relation that was not judged."""
    source: str
    """The user's line of the first finding."""


@dataclass(frozen=True)
class RunRow:
    """A pair of calls of two runs, a pair of groups of calls, or a call of a single run."""

    row: int
    """Its number."""
    rank: int
    """Of the distributed launch."""
    step: int
    """The training step."""
    verdict: str
    """`agrees`; `born here`: its inputs agree, its results do not; `carried`; `healed`; `only in A`; `only in B`; `differs, cause not found`: a loss, gradient or parameter of the call is another one; `not compared`: a result has no statistics in one of the runs."""
    finding: str
    """How the results differ, where a difference was born; else empty."""
    phase: str
    """`forward` or `backward`."""
    level: str
    """`torch` or `aten`."""
    op: str
    """The operator; of a group: each once, joined by ` + `."""
    module: str
    """The module that made the call."""
    line: str
    """The program's line."""
    op_b: str
    """The same of run B; empty: only A has the call."""
    module_b: str
    """The same of run B."""
    line_b: str
    """The same of run B."""
    id_a: int | None
    """The number of the call in A, as in the folders of OpCapture; of a group the last."""
    id_b: int | None
    """That in B."""
    calls_a: int
    """How many calls of A stand here: more than 1 in a group."""
    calls_b: int
    """How many of B."""
    other: list[str]
    """Other differences: `op`, `dtype`, `shape`, `scalars`."""
    input_difference: float
    """The largest difference of an input, as a share of the norm of the tensor."""
    output_difference: float
    """That of the output which is nearest to its limit, or over it."""
    limit: float
    """How large that may be for these inputs, this dtype and this operator."""
    noise: float | None
    """How large it is between A and the noise recording."""
    tensor_a: dict[str, Any] | None
    """That output in A: place, shape, dtype, statistics, and the call that wrote its memory last."""
    tensor_b: dict[str, Any] | None
    """That output in B."""
    source: int | None
    """The row in which the difference was born."""
    via: int | None
    """The row that handed it on to this row."""
