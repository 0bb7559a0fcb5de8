"""From a saved call to a file that shows its failure without op_tools: op-tools repro.

_saved.py reads the call, _literals.py writes its values, _script.py the program around them, _trial.py runs it in fresh
processes, _make.py decides which data it needs and whether it reproduces;
_relation.py writes that of a finding of OpInvariance;
_shrink.py looks for a smaller call first, _cpp.py writes the same in C++,
_issue.py the bug report.
"""

from __future__ import annotations

from ._cpp import MadeCpp, write_cpp
from ._issue import write_issue
from ._make import Made, make
from ._saved import device_of, is_variation
from ._script import Plan
from ._shrink import ShrunkCall, shrink

__all__ = [
    "Made",
    "MadeCpp",
    "Plan",
    "ShrunkCall",
    "device_of",
    "is_variation",
    "make",
    "shrink",
    "write_cpp",
    "write_issue",
]
