"""python -m op_tools.run_op_from_data DIR... : replays captured calls, those too that exist in Python only.

The same engine, flags, report and exit status as the stand-alone program run_op_from_data.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import _C
from ._python_calls import find


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the replay.

    Args:
        arguments: command-line arguments without the program's name; None: those of this process.

    Returns:
        0 all ran and agreed, 1 some disagreed, 2 some could not be run or read, 64 wrong usage.
    """
    return _C.run_op_from_data(list(sys.argv[1:] if arguments is None else arguments), find)


if __name__ == "__main__":
    sys.exit(main())
