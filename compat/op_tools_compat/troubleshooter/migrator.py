"""The functions of troubleshooter.migrator that dump the operators of a network, and compare two dumps."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from op_tools import Error
from op_tools._base.checks import checked_choice
from op_tools.formats._troubleshooter_writer import STATISTICS

from ._compare import compare
from ._dump import Dumping, Settings

_MODES = ("all", "list", "range", "api_list")
_TYPES = ("all", "statistics", "stack", "npy")

_dumping: Dumping | None = None


def api_dump_init(
    net: torch.nn.Module,
    output_path: str | os.PathLike[str] = "./ts_api_dump",
    *,
    retain_backward: bool = False,
    compare_statedict: bool = False,
) -> None:
    """Names the network whose operators are dumped, and the folder. Each rank of a parallel run has a folder of its own.

    Args:
        net: the network.
        output_path: the folder; ``rank<R>`` is made in it, and replaces the rank's earlier dump.
        retain_backward: also dump the gradients of the results.
        compare_statedict: also save the network's state_dict, as pt_net.pth.

    Raises:
        op_tools.Error: the network is no module, or the folder cannot be written.
    """
    global _dumping
    if not isinstance(net, torch.nn.Module):
        raise Error(f"api_dump_init: net is a {type(net).__name__}, expected a torch.nn.Module")
    if _dumping is not None:
        _dumping.end()
    _dumping = Dumping(net, Path(output_path), retain_backward=retain_backward)
    if compare_statedict:
        _dumping.save_state()


def api_dump_start(
    mode: str = "all",
    scope: Sequence[str] | None = None,
    dump_type: str = "all",
    filter_data: bool = True,
    filter_stack: bool = True,
    statistic_category: Sequence[str] = ("max", "min", "avg", "l2norm"),
) -> None:
    """Starts to dump on this thread. Nothing is dropped (the p of dropout is 0) until api_dump_stop.

    Args:
        mode: "all"; "list": the calls in scope; "range": from the first to the second call in scope; "api_list": the calls
            whose names contain an item of scope.
        scope: names as "Functional_softmax_1"; of mode "api_list" parts of names, in lower case.
        dump_type: "all", "statistics" (no values), "npy" (no statistics) or "stack" (neither).
        filter_data: leave out scalars, and tensors that are not of floats, empty, or without dimension.
        filter_stack: leave out torch's own lines.
        statistic_category: of "max", "min", "avg", "md5" and "l2norm".

    Raises:
        op_tools.Error: api_dump_init was not called, or an argument is wrong.
    """
    if _dumping is None:
        raise Error("api_dump_start: call api_dump_init first")
    checked_choice("api_dump_start: mode", mode, _MODES)
    checked_choice("api_dump_start: dump_type", dump_type, _TYPES)
    for statistic in statistic_category:
        checked_choice("api_dump_start: statistic_category", statistic, STATISTICS)
    items = list(scope or ())
    numbered = all(isinstance(one, str) and re.search(r"_\d+$", one) for one in items)
    wrong = {
        "all": "has no scope" if items else "",
        "list": "" if items and numbered else "takes a scope of names as Functional_softmax_1",
        "range": "" if len(items) == 2 and numbered else "takes two names as Functional_softmax_1: [start, end]",
        "api_list": "" if items else "takes a scope of parts of names, as relu",
    }[mode]
    if wrong:
        raise Error(f"api_dump_start: mode {mode!r} {wrong}; scope is {scope!r}")
    wanted = statistic_category if dump_type in ("all", "statistics") else ()
    _dumping.start(Settings(mode, tuple(items), dump_type in ("all", "npy"), tuple(wanted), filter_data, filter_stack))


def api_dump_stop() -> None:
    """Stops to dump; api_dump_start goes on with the same numbers. Gradients of dumped tensors are still added.

    Raises:
        op_tools.Error: api_dump_init was not called.
    """
    if _dumping is None:
        raise Error("api_dump_stop: call api_dump_init first")
    _dumping.stop()


def api_dump_compare(
    origin_path: str | os.PathLike[str],
    target_path: str | os.PathLike[str],
    output_path: str | os.PathLike[str] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    ignore_unmatched: bool = False,
) -> None:
    """Compares two dumps, of troubleshooter or ours, step by step; prints a summary.

    Args:
        origin_path: the folder that api_dump_init was given.
        target_path: the other dump.
        output_path: where ts_api_mapping_{step}.csv, ts_api_forward_compare_{step}.csv and ts_api_backward_compare_{step}.csv
            are written, and files without _{step} that hold all steps; those of other ranks than 0 in rank{R}. None: nowhere.
        rtol: relative error, as of numpy.allclose.
        atol: absolute error.
        equal_nan: NaN agrees with NaN.
        ignore_unmatched: leave out the rows of only one dump.

    Raises:
        op_tools.Error: a dump cannot be read, or the folder cannot be written.
    """
    compare(
        Path(origin_path),
        Path(target_path),
        Path(output_path) if output_path is not None else None,
        rtol=rtol,
        atol=atol,
        equal_nan=equal_nan,
        ignore_unmatched=ignore_unmatched,
    )


__all__ = ["api_dump_compare", "api_dump_init", "api_dump_start", "api_dump_stop"]
