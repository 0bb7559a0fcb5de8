"""op_tools: look at every operator that a PyTorch program runs, capture it, and replay it elsewhere."""

import atexit

import torch  # noqa: F401  (first: it loads the libraries that the extension needs)

from ._version import check_torch

check_torch()

from ._autocompare import CompareResult, CompareRow, OpAutoCompare  # noqa: E402
from ._blackbox import BlackBox, OpBlackBox, read_black_box  # noqa: E402
from ._C import Call, Error, __version__  # noqa: E402
from ._compare_modules import ModuleComparison, ModuleRow, compare_modules  # noqa: E402
from ._declared import (  # noqa: E402
    BlackBoxRow,
    BlockRow,
    CaptureRow,
    ComparedOp,
    DeviceMemoryRow,
    MemoryRow,
    ObserveRow,
    OverflowRow,
    OverwriteRow,
    RedirectRow,
    TimeRow,
)
from ._fallback import OpDtypeCast, OpFallback, RedirectResult  # noqa: E402
from ._features import CallInfo, Feature, TensorInfo, apply_feature  # noqa: E402
from ._files import load, load_call  # noqa: E402
from ._memory_check import MemoryLeak, MemoryResult, OpMemoryCheck  # noqa: E402
from ._observe import DynamicDim, ObserveResult, OpObserve, TensorShape  # noqa: E402
from ._overflow import OpOverflowCheck, OverflowResult  # noqa: E402
from ._time_measure import OpTimeMeasure, TimeResult  # noqa: E402
from ._tools import CaptureResult, Hook, HookScope, OpCapture, Tool, ToolResult, load_tools, stop_all  # noqa: E402

atexit.register(stop_all)

__all__ = [
    "BlackBox",
    "BlackBoxRow",
    "BlockRow",
    "Call",
    "CallInfo",
    "CaptureResult",
    "CaptureRow",
    "CompareResult",
    "CompareRow",
    "ComparedOp",
    "DeviceMemoryRow",
    "DynamicDim",
    "Error",
    "Feature",
    "Hook",
    "HookScope",
    "MemoryLeak",
    "MemoryResult",
    "MemoryRow",
    "ModuleComparison",
    "ModuleRow",
    "ObserveResult",
    "ObserveRow",
    "OpAutoCompare",
    "OpBlackBox",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpMemoryCheck",
    "OpObserve",
    "OpOverflowCheck",
    "OpTimeMeasure",
    "OverflowResult",
    "OverwriteRow",
    "OverflowRow",
    "RedirectResult",
    "RedirectRow",
    "TensorInfo",
    "TensorShape",
    "TimeResult",
    "TimeRow",
    "Tool",
    "ToolResult",
    "__version__",
    "apply_feature",
    "compare_modules",
    "load",
    "load_call",
    "load_tools",
    "read_black_box",
]
