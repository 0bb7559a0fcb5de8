"""From a saved call to a file that shows its failure without op_tools: op-tools repro.

_saved.py reads the call, _literals.py writes its values, _script.py the program around them, _trial.py runs it in fresh
processes, _make.py decides which data it needs and whether it reproduces.
"""

from __future__ import annotations

from ._make import Made, make
from ._script import Plan

__all__ = ["Made", "Plan", "make"]
