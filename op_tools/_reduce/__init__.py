"""Where is a compiled graph wrong: the smallest part of a saved graph that still fails when it is compiled alone. op-tools repro --shrink
asks for it.

values.py runs the graph once without the compiler, which gives the inputs of each part; trial.py compiles a part in a process of its own, under
OpAutoCompare; reduction.py searches.
"""

from __future__ import annotations

from .reduction import ReducedGraph, reduce_graph

__all__ = ["ReducedGraph", "reduce_graph"]
