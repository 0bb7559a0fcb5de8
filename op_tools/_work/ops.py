"""op-tools ops: the operators that a filter matches."""

from __future__ import annotations

import argparse
import sys

from .._base import core
from .._torch.operator_names import aten_names, near_names, tell_core, torch_names


def run_command(options: argparse.Namespace) -> int:
    tell_core()
    # Composite operators are seen only when a filter names them; their parts are always seen.
    composite = options.excluded or options.ops is not None
    names = torch_names() if options.level == "torch" else aten_names(composite=composite)
    if options.excluded:
        names = [name for name in names if core.is_metadata_op(name)]
        options.ops = options.ops or ".*"
    admitted = core.admitted(names, options.ops or "", options.skip or "")
    for name in admitted:
        sys.stdout.write(name + "\n")
    if admitted:
        return 0
    other = "aten" if options.level == "torch" else "torch"
    names_there = aten_names(composite=True) if other == "aten" else torch_names()
    matched = len(core.admitted(names_there, options.ops or "", options.skip or ""))
    near = near_names(options.ops or "", names)
    sys.stderr.write(
        f"op-tools: no operator of level {options.level} is matched"
        + (f"; of level {other} {matched} (--level {other})" if matched else "")
        + (f"; did you mean {' or '.join(near)}?" if near else "")
        + "\n"
    )
    return 1
