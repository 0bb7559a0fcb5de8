"""The options of each tool, for type checkers. Made by tools/generate_declared.py from the declarations in C++: do not edit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from typing_extensions import TypedDict


class ToolOptions(TypedDict, total=False):
    """Options that all tools share."""

    ops: str | Iterable[str] | None
    """Only these operators: regular expressions. None: OP_<TOOL>_LIST, else all."""
    skip: str | Iterable[str] | None
    """All but these operators; taken off `ops`. None: OP_<TOOL>_DISABLE_LIST, else none."""
    level: Literal["aten", "torch"] | None
    """`torch` (the functions that Python calls) or `aten` (the operators that torch dispatches, from any caller). None: OP_<TOOL>_LEVEL, else torch; in C++ aten."""
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
    compiled: Literal["as-is", "check", "nodes", "eager"] | None
    """Graphs of torch.compile: `check` (level torch: each is a call, run again as its operators), `nodes` (run operator by operator), `eager` (functions run as without torch.compile), `as-is` (not looked into). None: OP_TOOLS_COMPILED, else check."""


class OpCaptureOptions(ToolOptions, total=False):
    """Options of OpCapture."""

    format: Literal["folders", "container"] | None
    """`folders`: a folder for each call; `container`: an append-only zip for many small calls. None: OP_CAPTURE_FORMAT, else folders; container in a launch of 16 ranks and more."""
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
    write_timeout: float | None
    """Seconds in which the disk must take a call; then capturing stops, and the program goes on. None: OP_TOOLS_WRITE_TIMEOUT, else 300."""


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
    row_hashes: bool | None
    """Fingerprints of the rows of each tensor of a forward call, too: of its batch and sequence dimensions, for `op-tools compare --as-sequence`. None: OP_RECORD_ROW_HASHES, else off."""
    write_timeout: float | None
    """Seconds in which the disk must take rows; then recording stops, and the program goes on. None: OP_TOOLS_WRITE_TIMEOUT, else 300."""
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


class OpInvarianceOptions(ToolOptions, total=False):
    """Options of OpInvariance."""

    first_n_per_signature: int | None
    """Run again only the first N calls per operator, shapes and dtypes. None: OP_INVARIANCE_FIRST_N_PER_SIGNATURE, else 3."""
    every_nth: int | None
    """Of those only every Nth, beginning with the first. None: OP_INVARIANCE_EVERY_NTH, else 1."""
    most_share: float | None
    """The share of the program's time that runs again may take, as 0.02; calls wait for their turn; 0: any. None: OP_INVARIANCE_MOST_SHARE, else 0."""
    repeats: int | None
    """Runs of a call on the same inputs. None: OP_INVARIANCE_REPEATS, else 2."""
    alignment: bool | None
    """Run it from inputs at another alignment in memory. None: OP_INVARIANCE_ALIGNMENT, else on."""
    stream: bool | None
    """On a device: run it on another stream. None: OP_INVARIANCE_STREAM, else on."""
    threads: bool | None
    """On the CPU: run it with another number of threads, which is the whole process's meanwhile. None: OP_INVARIANCE_THREADS, else off."""
    batch: bool | None
    """Run it with other rows or other values in the batch, and with its rows at other positions. None: OP_INVARIANCE_BATCH, else on."""
    strides: bool | None
    """Run it with a gap behind each row of the batch in memory. None: OP_INVARIANCE_STRIDES, else on."""
    sequence: bool | None
    """Run it with the second dimension in pieces, in a row and at other places, attention with more keys that its mask leaves out, with other tokens in front, with its queries in pieces and its sequences behind each other. None: OP_INVARIANCE_SEQUENCE, else on."""
    gradients: bool | None
    """Level torch: run the backward again, too. None: OP_INVARIANCE_GRADIENTS, else on."""
    max_saved: int | None
    """Calls saved per operator, phase, module and relation, for op-tools repro. None: OP_INVARIANCE_MAX_SAVED, else 1."""
    max_saved_mb: int | None
    """MB of all saved calls together. None: OP_INVARIANCE_MAX_SAVED_MB, else 1024."""
