"""The torch-level tools' mode under torch.compile.

Calls come to the mode in C; torch.compile, which cannot look into that, finds this class's function in its place where
compiled_graphs.py does not hide the mode from it.
"""

from __future__ import annotations

from typing import Any

import torch


class TorchFunctionMode(torch.overrides.TorchFunctionMode):
    """The mode of the torch-level tools; its calls come to the extension."""

    # (self, func, types, args, kwargs); the torch.compile of 2.11 leaves self out.
    def __torch_function__(*call: Any) -> Any:
        """For torch.compile alone."""
        func, _, args, kwargs = call[-4:]
        return func(*args, **(kwargs or {}))
