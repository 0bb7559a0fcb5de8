"""Runs a program that names CUDA on another accelerator, unchanged.

    import op_tools.as_cuda          # first of all: from here on "cuda" is the accelerator of this process

    model = torch.nn.Linear(8, 8).cuda()

Importing this module starts it; OP_TOOLS_AS_CUDA names the accelerator ("sim": the simulated one), DITORCH_DISABLE_MOCK=1
keeps it from starting. stop() gives everything back. docs/as_cuda.md says what each name of torch.cuda does.
"""

from __future__ import annotations

import os

from ._as_cuda._cuda_module import Rule
from ._as_cuda._switch import is_on, rules, start, start_from_environment, stop

__all__ = ["Rule", "is_on", "rules", "start", "stop"]

if os.environ.get("DITORCH_DISABLE_MOCK", "").strip().lower() not in ("1", "true", "on"):
    start_from_environment()
