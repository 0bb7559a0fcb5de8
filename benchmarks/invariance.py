"""The costs of OpInvariance: training steps with it on against off, runs again bounded to a hundredth of the time (OpInvariance), each
thousandth call run again, and each.

    ./dev bench invariance [--quick]

One thread. Steps in the middle of a run, with step() after each.
"""

from __future__ import annotations

from functools import partial

from _costs import report_of, steps
from _measure import PROMISE, arguments

import op_tools

ALL = 1_000_000_000
BOUNDED = partial(op_tools.OpInvariance, first_n_per_signature=ALL, most_share=0.01)
SAMPLED = partial(op_tools.OpInvariance, first_n_per_signature=ALL, every_nth=1000)
EACH = partial(op_tools.OpInvariance, first_n_per_signature=ALL)


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = report_of("invariance")
    table = report.table("OpInvariance", *PROMISE)
    variants = {"": BOUNDED, ", every_nth=1000": SAMPLED, ", each call": EACH}
    steps(table, "OpInvariance", variants, most=1.05, quick=options.quick)
    report.write()


if __name__ == "__main__":
    main()
