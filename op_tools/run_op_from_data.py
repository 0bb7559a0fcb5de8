"""python -m op_tools.run_op_from_data DIR... : replays captured calls, those too that exist in Python only.

The same engine, flags, report and exit status as the stand-alone program run_op_from_data. Under torchrun the ranks share the
calls: torchrun --nproc-per-node 8 -m op_tools.run_op_from_data DIR --acc_check

Also python op_tools/run_op_from_data.py DIR..., as ditorch's op_tools has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by its path: Python put this folder where the package's own should be.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = "op_tools"

from ._tools.replay import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
