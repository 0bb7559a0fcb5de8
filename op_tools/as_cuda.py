"""Runs a program that names CUDA on another accelerator, unchanged.

    import op_tools.as_cuda          # first of all: from here on "cuda" is the accelerator of this process

    model = torch.nn.Linear(8, 8).cuda()

Importing this module starts it; OP_TOOLS_AS_CUDA names the accelerator ("sim": the simulated device), DITORCH_DISABLE_MOCK=1
keeps it from starting. stop() gives everything back. docs/as_cuda.md describes each name of torch.cuda.
"""

from __future__ import annotations

from ._as_cuda.cuda_module import Rule
from ._as_cuda.switch import is_on, rename_from_environment, rules, start, stop
from ._base.config_file import switched

__all__ = ["Rule", "is_on", "rules", "start", "stop"]

if not switched("DITORCH_DISABLE_MOCK"):
    rename_from_environment()
