"""The options of each tool, and the rows of its result. Made by tools/generate_declared.py from the declarations in
C++: do not edit."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from typing_extensions import TypedDict


class ToolOptions(TypedDict, total=False):
    """Options that all tools share."""

    ops: str | Iterable[str] | None
    """Only these operators: regular expressions. None: OP_<TOOL>_LIST, else all."""
    skip: str | Iterable[str] | None
    """All but these operators; taken off `ops`. None: OP_<TOOL>_DISABLE_LIST, else none."""
    level: Literal["aten", "torch"] | None
    """`torch` (the functions that Python calls) or `aten` (what torch dispatches, from any caller). None: OP_<TOOL>_LEVEL, else torch; in C++ aten."""
    output_dir: str | os.PathLike[str] | None
    """The folder in which the result folder is made. None: OP_TOOLS_OUTPUT_DIR, else the working directory."""
    modules: str | Iterable[str] | None
    """Only calls made in these modules of the model, or inside them. None: OP_<TOOL>_MODULES, else all."""
    steps: Iterable[int] | None
    """Record only in these steps, counted from 0 by `step()`. None: OP_<TOOL>_STEPS, else all."""
    only_calls: str | os.PathLike[str] | None
    """Only the calls that this file lists, as `list_calls=` and op-tools bisect name them. None: OP_<TOOL>_ONLY_CALLS, else all."""
    skip_cpu: bool | None
    """Pass over calls whose tensors are all on the CPU. None: OP_TOOLS_SKIP_CPU, else off."""
    all_threads: bool | None
    """Level aten: also operators of threads that start no tool themselves: of those that Python starts from then on all, of others not the first few. None: OP_<TOOL>_ALL_THREADS, else off."""


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
    EXTRA_CALL = "a call that only one run makes"
    END_RESULT = "another loss, gradient or parameter"


class OpCaptureOptions(ToolOptions, total=False):
    """Options of OpCapture."""

    format: Literal["folders", "container"] | None
    """`folders`: a folder for each call; `container`: an append-only zip for many small calls. None: OP_CAPTURE_FORMAT, else folders."""
    dedupe: bool | None
    """Store a tensor's bytes once, by their content; calls refer to them. None: OP_CAPTURE_DEDUPE, else off."""
    max_calls: int | None
    """Record at most N calls. None: OP_CAPTURE_MAX_CALLS, else no limit."""
    max_per_signature: int | None
    """Record the first N calls per operator, shapes and dtypes. None: OP_CAPTURE_MAX_PER_SIGNATURE, else no limit."""
    max_gb: float | None
    """Write at most X GB, then stop capturing. None: OP_CAPTURE_MAX_GB, else no limit."""
    min_free_gb: float | None
    """Stop capturing when fewer GB than this are free on the disk; 0: never. None: OP_CAPTURE_MIN_FREE_GB, else a tenth of the disk, 5 at most."""
    max_pending_mb: int | None
    """MB of memory that may wait to be written; when it is full the program waits. None: OP_TOOLS_MAX_PENDING_MB, else 1024."""


class OpAutoCompareOptions(ToolOptions, total=False):
    """Options of OpAutoCompare."""

    method: Literal["relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute"] | None
    """How a result is judged. None: OP_AUTOCOMPARE_METHOD, else relative."""
    golden: bool | None
    """Run in float64 too, where that decides. None: OP_AUTOCOMPARE_GOLDEN, else on."""
    nan_equal: bool | None
    """NaN agrees with NaN. None: OP_AUTOCOMPARE_NAN_EQUAL, else on."""
    strides: bool | None
    """Other strides than the CPU's are a failure. None: OP_AUTOCOMPARE_STRIDES, else on."""
    gradients: bool | None
    """Level torch: judge input gradients. None: OP_AUTOCOMPARE_GRADIENTS, else on."""
    first_n_per_signature: int | None
    """Judge only the first N calls per operator, shapes and dtypes. None: OP_AUTOCOMPARE_FIRST_N_PER_SIGNATURE, else no limit."""
    every_nth: int | None
    """Of those judge only every Nth, beginning with the first. None: OP_AUTOCOMPARE_EVERY_NTH, else 1."""
    async_: bool | None
    """Judge on other threads while the device goes on. None: OP_AUTOCOMPARE_ASYNC, else off."""
    workers: int | None
    """Threads of `async_`. None: OP_AUTOCOMPARE_WORKERS, else 2."""
    max_pending_mb: int | None
    """MB of memory that may wait to be judged; when it is full the program judges itself. None: OP_TOOLS_MAX_PENDING_MB, else 1024."""
    raise_on_failure: bool | None
    """Raise at the first failure: a RuntimeError that names the user's line. None: OP_AUTOCOMPARE_RAISE_ON_FAILURE, else off."""
    max_saved: int | None
    """Failed calls saved per operator, shapes and dtypes. None: OP_AUTOCOMPARE_MAX_SAVED, else 2."""
    max_saved_mb: int | None
    """MB of all saved calls together. None: OP_AUTOCOMPARE_MAX_SAVED_MB, else 4096."""


class OpOverflowCheckOptions(ToolOptions, total=False):
    """Options of OpOverflowCheck."""

    inf: bool | None
    """Infinities count as well as NaN. None: OP_OVERFLOW_CHECK_INF, else on."""
    every: int | None
    """On a device: calls that are judged together; on the CPU each is judged at once. None: OP_OVERFLOW_CHECK_EVERY, else 64."""
    allow: str | Iterable[str] | None
    """Operators whose -inf is intended though the call is not given it, as a filter list. None: OP_OVERFLOW_CHECK_ALLOW, else the logarithms inside `ctc_loss`."""
    allow_in_backward_with_scaler: bool | None
    """Values that backward makes are expected: a loss scaler looks for them and skips the step. None: OP_OVERFLOW_CHECK_ALLOW_IN_BACKWARD_WITH_SCALER, else off."""
    max_saved: int | None
    """Producers saved for run_op_from_data, of each operator, forward and backward each. None: OP_OVERFLOW_CHECK_MAX_SAVED, else 2."""
    max_saved_mb: int | None
    """MB of all saved calls together. None: OP_OVERFLOW_CHECK_MAX_SAVED_MB, else 1024."""
    immediate: bool | None
    """Raise in the program at the first producer, with its line. None: OP_OVERFLOW_CHECK_IMMEDIATE, else off."""


class OpObserveOptions(ToolOptions, total=False):
    """Options of OpObserve."""

    detail: int | None
    """0: the table only; 1: also a row per call with its name; 2: with arguments and results; 3: with statistics of their values. None: DIPU_DUMP_OP_ARGS, else 3."""
    lines: bool | None
    """Rows are log lines, too. None: OP_OBSERVE_LINES, else on when DIPU_DUMP_OP_ARGS is set, else off."""
    with_stack: bool | None
    """Note the program's line of each call; dynamic shapes are found by line. None: OP_OBSERVE_WITH_STACK, else on."""
    max_calls: int | None
    """Write at most N rows; the table goes on counting. None: OP_OBSERVE_MAX_CALLS, else no limit."""


class OpTimeMeasureOptions(ToolOptions, total=False):
    """Options of OpTimeMeasure."""

    mode: Literal["sync", "event", "host"] | None
    """`sync`: wait for the call's device before and after; `event`: events of the device, read later, without a stall; `host`: the time that issuing takes. None: OP_TIME_MEASURE_MODE, else sync."""
    max_calls: int | None
    """Single calls held in memory, for the trace; later ones are counted and go to calls.csv. None: OP_TIME_MEASURE_MAX_CALLS, else 200000."""
    with_stack: bool | None
    """Note the source line of each call (some microseconds per call). None: OP_TIME_MEASURE_WITH_STACK, else off."""
    with_modules: bool | None
    """Note the module path of each call, as in `LeNet.conv1`. None: OP_TIME_MEASURE_WITH_MODULES, else off."""
    memory: bool | None
    """Note the memory that calls allocate, and the part still in use at the end. None: OP_TIME_MEASURE_MEMORY, else off."""
    mark_ranges: bool | None
    """Make each call a range in a running torch.profiler. None: OP_TIME_MEASURE_MARK_RANGES, else off."""
    lines: bool | None
    """Print a line for each call, at level info. None: OP_TIME_MEASURE_LINES, else on."""
    files: bool | None
    """Write calls.csv, summary.csv and trace.json. None: OP_TIME_MEASURE_FILES, else on."""
    first_step: int | None
    """The number of the first step. None: OP_TIME_MEASURE_FIRST_STEP, else 0."""


class OpDtypeCastOptions(ToolOptions, total=False):
    """Options of OpDtypeCast."""

    list_calls: str | os.PathLike[str] | None
    """Write the calls that could run elsewhere into this file, with the rank at the end of its name, and run none elsewhere but those of only_calls. None: OP_DTYPE_CAST_LIST_CALLS, else nothing."""
    cast: str | Mapping[torch.dtype, torch.dtype] | None
    """Dtypes to compute in instead of others. None: OP_DTYPE_CAST_DICT, else float16 and bfloat16 to float32."""


class OpFallbackOptions(ToolOptions, total=False):
    """Options of OpFallback."""

    list_calls: str | os.PathLike[str] | None
    """Write the calls that could run elsewhere into this file, with the rank at the end of its name, and run none elsewhere but those of only_calls. None: OP_FALLBACK_LIST_CALLS, else nothing."""
    target: Literal["cpu", "same"] | None
    """`cpu`, or `same`: the tensors' own device, on copies of them, waiting for it before and after. None: OP_FALLBACK_TARGET, else cpu."""
    on_missing: bool | None
    """Run on the device first, and on the CPU only operators that the device does not implement (NotImplementedError). None: OP_FALLBACK_ON_MISSING, else off."""
    cast: str | Mapping[torch.dtype, torch.dtype] | None
    """Dtypes to compute in instead of others; results come back in the dtypes that they would have had. None: OP_DTYPE_CAST_DICT, else none."""


class OpBlackBoxOptions(ToolOptions, total=False):
    """Options of OpBlackBox."""

    calls: int | None
    """The last N calls of each thread are in the file. None: OP_BLACKBOX_CALLS, else 4096."""
    with_stack: bool | None
    """Note the program's line of each call. None: OP_BLACKBOX_WITH_STACK, else on."""
    with_modules: bool | None
    """Note the module of each call. None: OP_BLACKBOX_WITH_MODULES, else on."""
    stall: float | None
    """Write the stacks of all threads when no call has begun or ended for N seconds; 0: never. None: OP_BLACKBOX_STALL, else 0."""
    inputs: int | None
    """Keep the inputs of the last N calls in the file, so that they can be run again; 0: of none. None: OP_BLACKBOX_INPUTS, else 0."""
    inputs_ops: str | Iterable[str] | None
    """Keep inputs of these operators only: regular expressions. None: OP_BLACKBOX_INPUTS_OPS, else all."""
    inputs_mb: int | None
    """A call whose inputs are more than N MB is described only. None: OP_BLACKBOX_INPUTS_MB, else 1."""
    marks: int | None
    """On a device: look after each N calls of a stream how far it has come; 0: never. None: OP_BLACKBOX_MARKS, else 16."""


class OpRecordOptions(ToolOptions, total=False):
    """Options of OpRecord."""

    statistics: bool | None
    """Note statistics and a hash of each tensor; off: shapes and links only. None: OP_RECORD_STATISTICS, else on."""
    format: Literal["oprec", "jsonl"] | None
    """`oprec`: a compact file; `jsonl`: at the end of the recording lines of JSON beside it, too. None: OP_RECORD_FORMAT, else oprec."""
    with_stack: bool | None
    """Note the program's line of each call. None: OP_RECORD_WITH_STACK, else on."""
    with_modules: bool | None
    """Note the module of each call. None: OP_RECORD_WITH_MODULES, else on."""
    modules_only: bool | None
    """A row for each call of a module, forward and backward, in place of each operator; and for the loss and each step of an optimizer (torch level). None: OP_RECORD_MODULES_ONLY, else off."""
    jitter: int | None
    """Change each element of the first floating-point tensor that a module is given by one unit in the last place, up or down as this seed says: a recording of the program's own noise; 0: do not. None: OP_RECORD_JITTER, else 0."""


class OpMemoryCheckOptions(ToolOptions, total=False):
    """Options of OpMemoryCheck."""

    cpu: bool | None
    """Report memory of the CPU, too. None: OP_MEMORY_CHECK_CPU, else on where the program uses no other device, else off."""
    with_stack: bool | None
    """Note the program's line of each allocation. None: OP_MEMORY_CHECK_WITH_STACK, else on."""
    with_modules: bool | None
    """Note the module of each allocation. None: OP_MEMORY_CHECK_WITH_MODULES, else on."""
    backtrace: bool | None
    """Note the Python and the C++ stack of each allocation (slow). None: DIPU_MEM_CHECK_ENABLE_BACKTRACE, else off."""
    guard: bool | None
    """Put a known pattern before and behind each allocation of the CPU and the simulated device, and look at it after each operator. None: OP_MEMORY_CHECK_GUARD, else off."""
    files: bool | None
    """Write memory.csv, memory.jsonl and snapshot.pickle. None: OP_MEMORY_CHECK_FILES, else on."""


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
    """Of several: the one that took most, "+ 3" behind it."""
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
    side: str
    """`behind` or `before` the block."""
    bytes: int
    """How many bytes differ."""
    offset: int
    """Of the first one, from the beginning of the block."""
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
class RunRow:
    """A pair of calls of two runs, a pair of groups of calls, or a call that only one run made."""

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
    """That output in A: place, shape, dtype and statistics."""
    tensor_b: dict[str, Any] | None
    """That output in B."""
    source: int | None
    """The row in which the difference was born."""
    via: int | None
    """The row that handed it on to this row."""
