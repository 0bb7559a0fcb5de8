"""op_tools: look at every operator that a PyTorch program runs, capture it, and replay it elsewhere."""

import atexit

import torch  # noqa: F401  (first: it loads the libraries that the extension needs)

from ._version import check_torch

check_torch()

from ._C import Call, Error, __version__  # noqa: E402
from ._files import load, load_call  # noqa: E402
from ._tools import CaptureResult, CaptureRow, Hook, HookScope, OpCapture, Tool, stop_all  # noqa: E402

atexit.register(stop_all)

__all__ = [
    "Call",
    "CaptureResult",
    "CaptureRow",
    "Error",
    "Hook",
    "HookScope",
    "OpCapture",
    "Tool",
    "__version__",
    "load",
    "load_call",
]
