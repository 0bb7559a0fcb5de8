"""The costs of OpMemoryCheck: a call of a small operator, and training steps with it on against off.

    ./dev bench memory_check [--quick]

One thread. Steps in the middle of a run, with step() after each.
"""

from __future__ import annotations

from functools import partial

from _costs import calls, report_of, steps
from _measure import PROMISE, arguments

import op_tools

OFF = partial(op_tools.OpMemoryCheck, files=False)
NAMES_ONLY = {", without lines and modules": partial(OFF, with_stack=False, with_modules=False)}


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = report_of("memory_check")
    table = report.table("OpMemoryCheck", *PROMISE)
    calls(table, "OpMemoryCheck", {"": OFF, **NAMES_ONLY}, rounds=9 if options.quick else 51)
    slow = {", backtrace": partial(OFF, backtrace=True), ", guard": partial(OFF, guard=True)}
    steps(table, "OpMemoryCheck", {"": OFF, **NAMES_ONLY, **slow}, most=1.1, quick=options.quick)
    report.write()


if __name__ == "__main__":
    main()
