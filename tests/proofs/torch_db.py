"""Transparency over the other databases of torch: modules, optimizers, autograd functions, custom and higher-order operators.

Modules run forward, backward and backward again, with hooks, copied, pickled, saved and loaded, with strided inputs, under
functorch, converted and swapped, checkpointed under autocast, and in inference mode, in float32 and bfloat16, training
and evaluating; optimizers in every configuration (loops over lists, fused, differentiable, sparse, complex), saved and
loaded, scheduled, scaled, and in hooks of backward. Operators are called as op_db.py calls them.

Outputs, gradients, parameters, buffers, states, aliasing, versions, errors and the random state must be the same under
every tool (see op_db.py), no tool may go off; files of OpCapture are replayed, and no call may disagree; OpAutoCompare
may report nothing.

    torch_db.py [--tool NAME ...] [--level torch aten] [--samples 2] [--ops REGEX] [--jobs 2] [--resume]

--ops chooses among names like "module nn.Linear", "optimizer Adam", "function NumpySortAutogradFunction", "custom ...",
"higher cond.simple". Exit status 1 when something was found.
"""

from __future__ import annotations

import sys
from typing import Any

from _torch_database import database, of
from library_models import replayed
from op_db import arguments, check, prove
from op_db import start as start_op_db


def look(tool: Any, folder: str) -> str:
    """The tool's reports on a program in which nothing is wrong."""
    kind = type(tool).__name__
    if kind == "OpAutoCompare":
        alarms = {(one["op"], one["what"], one["reason"]) for one in tool.result().failures}
        return "; ".join(f"OpAutoCompare reports {' '.join(map(str, alarm))}" for alarm in sorted(alarms))
    if kind == "OpCapture":
        _, wrong = replayed(folder)
        return "; ".join(wrong[:3])
    return ""


def work(item: tuple[str, list[tuple[str, str]], int]) -> list[dict[str, Any]]:
    name, tools, samples = item
    return check(of(name, samples), tools, look)


def start() -> None:
    start_op_db()
    database()


def main() -> int:
    return prove("torch_db", list(database()), arguments(__doc__), work, start)


if __name__ == "__main__":
    sys.exit(main())
