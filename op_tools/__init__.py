"""op_tools: look at every operator that a PyTorch program runs, capture it, and replay it elsewhere."""

import atexit

import torch  # noqa: F401  (first: it loads the libraries that the extension needs)

from ._base.torch_version import check_torch

check_torch()

from ._base.captured_calls import load, load_call  # noqa: E402
from ._base.declared import (  # noqa: E402
    BlackBoxRow,
    BlockRow,
    CaptureRow,
    ComparedOp,
    DeviceMemoryRow,
    MemoryRow,
    ObserveRow,
    OverflowRow,
    OverwriteRow,
    RecordRow,
    RedirectRow,
    RunRow,
    TimeRow,
)
from ._bisect.outcome import BisectJudge  # noqa: E402
from ._bisect.program import Checkpoint, bisect  # noqa: E402
from ._bisect.result import BisectResult  # noqa: E402
from ._C import Call, Error, __version__  # noqa: E402
from ._modules.compare_modules import ModuleComparison, ModuleRow, compare_modules  # noqa: E402
from ._runs.against import LiveResult, OpAgainst  # noqa: E402
from ._runs.compare_many import ManyRuns, OddRow, compare_many  # noqa: E402
from ._runs.compare_ranks import RanksComparison, SpreadRow, compare_ranks  # noqa: E402
from ._runs.compare_runs import RankComparison, RunsComparison, compare_runs  # noqa: E402
from ._runs.shadow import OpShadow, ShadowResult  # noqa: E402
from ._tools.autocompare import CompareResult, CompareRow, OpAutoCompare  # noqa: E402
from ._tools.blackbox import BlackBox, OpBlackBox, read_black_box  # noqa: E402
from ._tools.fallback import OpDtypeCast, OpFallback, RedirectResult  # noqa: E402
from ._tools.features import CallInfo, Feature, TensorInfo, apply_feature  # noqa: E402
from ._tools.memory_check import MemoryLeak, MemoryResult, OpMemoryCheck  # noqa: E402
from ._tools.observe import DynamicDim, ObserveResult, OpObserve, TensorShape  # noqa: E402
from ._tools.overflow import OpOverflowCheck, OverflowResult  # noqa: E402
from ._tools.record import OpRecord, RecordedCall, RecordedTensor, Recording, RecordResult, read_recording  # noqa: E402
from ._tools.time_measure import OpTimeMeasure, TimeResult  # noqa: E402
from ._tools.tool import CaptureResult, Hook, HookScope, OpCapture, Tool, ToolResult, load_tools, stop_all  # noqa: E402

atexit.register(stop_all)

__all__ = [
    "BisectJudge",
    "BisectResult",
    "BlackBox",
    "BlackBoxRow",
    "BlockRow",
    "Call",
    "CallInfo",
    "CaptureResult",
    "CaptureRow",
    "Checkpoint",
    "CompareResult",
    "CompareRow",
    "ComparedOp",
    "DeviceMemoryRow",
    "DynamicDim",
    "Error",
    "Feature",
    "Hook",
    "HookScope",
    "LiveResult",
    "ManyRuns",
    "MemoryLeak",
    "MemoryResult",
    "MemoryRow",
    "ModuleComparison",
    "ModuleRow",
    "ObserveResult",
    "ObserveRow",
    "OddRow",
    "OpAgainst",
    "OpAutoCompare",
    "OpBlackBox",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpMemoryCheck",
    "OpObserve",
    "OpOverflowCheck",
    "OpRecord",
    "OpShadow",
    "OpTimeMeasure",
    "OverflowResult",
    "OverflowRow",
    "OverwriteRow",
    "RankComparison",
    "RanksComparison",
    "RecordResult",
    "RecordRow",
    "RecordedCall",
    "RecordedTensor",
    "Recording",
    "RedirectResult",
    "RedirectRow",
    "RunRow",
    "RunsComparison",
    "ShadowResult",
    "SpreadRow",
    "TensorInfo",
    "TensorShape",
    "TimeResult",
    "TimeRow",
    "Tool",
    "ToolResult",
    "__version__",
    "apply_feature",
    "bisect",
    "compare_many",
    "compare_modules",
    "compare_ranks",
    "compare_runs",
    "load",
    "load_call",
    "load_tools",
    "read_black_box",
    "read_recording",
]
