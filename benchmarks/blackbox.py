"""The costs of OpBlackBox: a call of a small operator, and training steps with it on against off.

    ./dev bench blackbox [--quick]

One thread. Steps in the middle of a run, with step() after each.
"""

from __future__ import annotations

import tempfile
from functools import partial

from _costs import calls, report_of, steps
from _measure import PROMISE, arguments, scratch

import op_tools


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = report_of("blackbox")
    table = report.table("OpBlackBox", *PROMISE)
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        box = partial(op_tools.OpBlackBox, output_dir=folder)
        variants = {
            "": box,
            ", without lines and modules": partial(box, with_stack=False, with_modules=False),
            ", `all_threads=False`": partial(box, all_threads=False),
        }
        calls(table, "OpBlackBox", variants, most=100e-9, rounds=9 if options.quick else 51)
        steps(table, "OpBlackBox", variants, most=1.05, quick=options.quick)
    report.write()


if __name__ == "__main__":
    main()
