"""Does the installed torch fit the torch that op_tools was built with?"""

from __future__ import annotations

import torch

from .._build_info import TORCH_VERSION


def check_torch() -> None:
    """Raises ImportError with both versions when op_tools was built against another minor version of torch.

    The extension uses torch's C++ classes, whose layout changes between minor versions: loading it beside another version
    would crash rather than fail.
    """

    def minor(version: str) -> tuple[str, ...]:
        return tuple(version.split("+")[0].split(".")[:2])

    if minor(torch.__version__) != minor(TORCH_VERSION):
        raise ImportError(
            f"op_tools was built with torch {TORCH_VERSION}, but torch {torch.__version__} is installed. "
            f"Install torch {'.'.join(minor(TORCH_VERSION))}.*, or build op_tools again: "
            "pip install --no-build-isolation --force-reinstall op_tools"
        )
