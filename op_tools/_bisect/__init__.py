"""Which operators have to run elsewhere so that a program's result is right: the smallest such set, found by trials.

search: the order of trials, without knowing the kind of trial. judge: is the outcome of a trial right. session: from the
opening to the report. processes, program: a trial is a process, or a function of the program.
"""

from typing import Literal

Remedy = Literal["fallback", "float32", "placebo"]
REMEDIES: tuple[Remedy, ...] = ("fallback", "float32", "placebo")
JOB_VARIABLE = "OP_TOOLS_BISECT_JOB"
"""The number of a run among those at the same time."""
