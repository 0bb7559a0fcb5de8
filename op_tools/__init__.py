"""op_tools: look at every operator that a PyTorch program runs, capture it, and replay it elsewhere.

`import op_tools` loads the modules that OpCapture needs; everything else is loaded at its first use.
"""

import atexit
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (first: it loads the libraries that the extension needs)

from ._base.torch_version import check_torch

check_torch()

from ._base.core import Call, Error, __version__  # noqa: E402
from ._tools.tool import CaptureResult, Hook, HookScope, OpCapture, Tool, ToolResult, stop_all  # noqa: E402
from ._torch.host import take_places  # noqa: E402

if TYPE_CHECKING:
    from ._base.captured_calls import load as load
    from ._base.captured_calls import load_call as load_call
    from ._base.declared import BlackBoxRow as BlackBoxRow
    from ._base.declared import BlockRow as BlockRow
    from ._base.declared import CaptureRow as CaptureRow
    from ._base.declared import ComparedOp as ComparedOp
    from ._base.declared import DeviceMemoryRow as DeviceMemoryRow
    from ._base.declared import MemoryRow as MemoryRow
    from ._base.declared import ObserveRow as ObserveRow
    from ._base.declared import OverflowRow as OverflowRow
    from ._base.declared import OverwriteRow as OverwriteRow
    from ._base.declared import RecordRow as RecordRow
    from ._base.declared import RedirectRow as RedirectRow
    from ._base.declared import RunRow as RunRow
    from ._base.declared import TimeRow as TimeRow
    from ._bisect.outcome import BisectJudge as BisectJudge
    from ._bisect.program import Checkpoint as Checkpoint
    from ._bisect.program import bisect as bisect
    from ._bisect.result import BisectResult as BisectResult
    from ._modules.compare_modules import ModuleComparison as ModuleComparison
    from ._modules.compare_modules import ModuleRow as ModuleRow
    from ._modules.compare_modules import compare_modules as compare_modules
    from ._runs.against import LiveResult as LiveResult
    from ._runs.against import OpAgainst as OpAgainst
    from ._runs.compare_many import ManyRuns as ManyRuns
    from ._runs.compare_many import OddRow as OddRow
    from ._runs.compare_many import compare_many as compare_many
    from ._runs.compare_ranks import RanksComparison as RanksComparison
    from ._runs.compare_ranks import SpreadRow as SpreadRow
    from ._runs.compare_ranks import compare_ranks as compare_ranks
    from ._runs.compare_runs import compare_runs as compare_runs
    from ._runs.comparison import RankComparison as RankComparison
    from ._runs.comparison import RunsComparison as RunsComparison
    from ._runs.shadow import OpShadow as OpShadow
    from ._runs.shadow import ShadowResult as ShadowResult
    from ._tools.autocompare import CompareResult as CompareResult
    from ._tools.autocompare import CompareRow as CompareRow
    from ._tools.autocompare import OpAutoCompare as OpAutoCompare
    from ._tools.black_box_file import BlackBox as BlackBox
    from ._tools.black_box_file import read_black_box as read_black_box
    from ._tools.blackbox import OpBlackBox as OpBlackBox
    from ._tools.fallback import OpDtypeCast as OpDtypeCast
    from ._tools.fallback import OpFallback as OpFallback
    from ._tools.fallback import RedirectResult as RedirectResult
    from ._tools.features import CallInfo as CallInfo
    from ._tools.features import Feature as Feature
    from ._tools.features import TensorInfo as TensorInfo
    from ._tools.features import apply_feature as apply_feature
    from ._tools.memory_check import MemoryLeak as MemoryLeak
    from ._tools.memory_check import MemoryResult as MemoryResult
    from ._tools.memory_check import OpMemoryCheck as OpMemoryCheck
    from ._tools.observe import DynamicDim as DynamicDim
    from ._tools.observe import ObserveResult as ObserveResult
    from ._tools.observe import OpObserve as OpObserve
    from ._tools.observe import TensorShape as TensorShape
    from ._tools.overflow import OpOverflowCheck as OpOverflowCheck
    from ._tools.overflow import OverflowResult as OverflowResult
    from ._tools.record import OpRecord as OpRecord
    from ._tools.record import RecordedCall as RecordedCall
    from ._tools.record import RecordedTensor as RecordedTensor
    from ._tools.record import Recording as Recording
    from ._tools.record import RecordResult as RecordResult
    from ._tools.record import read_recording as read_recording
    from ._tools.time_measure import OpTimeMeasure as OpTimeMeasure
    from ._tools.time_measure import TimeResult as TimeResult
    from ._tools.tool_classes import load_tools as load_tools

take_places()
atexit.register(stop_all)

# Module -> the public names that are loaded from it at their first use.
_LATER = {
    "_base.captured_calls": "load load_call",
    "_base.declared": "BlackBoxRow BlockRow CaptureRow ComparedOp DeviceMemoryRow MemoryRow ObserveRow OverflowRow OverwriteRow RecordRow RedirectRow RunRow TimeRow",
    "_bisect.outcome": "BisectJudge",
    "_bisect.program": "Checkpoint bisect",
    "_bisect.result": "BisectResult",
    "_modules.compare_modules": "ModuleComparison ModuleRow compare_modules",
    "_runs.against": "LiveResult OpAgainst",
    "_runs.compare_many": "ManyRuns OddRow compare_many",
    "_runs.compare_ranks": "RanksComparison SpreadRow compare_ranks",
    "_runs.compare_runs": "compare_runs",
    "_runs.comparison": "RankComparison RunsComparison",
    "_runs.shadow": "OpShadow ShadowResult",
    "_tools.autocompare": "CompareResult CompareRow OpAutoCompare",
    "_tools.black_box_file": "BlackBox read_black_box",
    "_tools.blackbox": "OpBlackBox",
    "_tools.fallback": "OpDtypeCast OpFallback RedirectResult",
    "_tools.features": "CallInfo Feature TensorInfo apply_feature",
    "_tools.memory_check": "MemoryLeak MemoryResult OpMemoryCheck",
    "_tools.observe": "DynamicDim ObserveResult OpObserve TensorShape",
    "_tools.overflow": "OpOverflowCheck OverflowResult",
    "_tools.record": "OpRecord RecordResult RecordedCall RecordedTensor Recording read_recording",
    "_tools.time_measure": "OpTimeMeasure TimeResult",
    "_tools.tool_classes": "load_tools",
}
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
