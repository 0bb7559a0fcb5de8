"""Cases as captured calls: run_op_from_data makes them on a device that has no Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from .._base.core import Error, unobserved
from .._tools.tool import OpCapture
from .case import Case, make_call
from .lists import write_list

LIST = "cases.jsonl"


@dataclass
class Exported:
    """The result of an export."""

    calls: int = 0
    problems: list[str] = field(default_factory=list)
    """Cases that are not in the container, and why."""


def export_cases(
    cases: Iterable[Case], target: Path, format: Literal["container", "folders"] = "container", phase: str = ""
) -> Exported:
    """Runs cases on the CPU and captures them, with inputs, outputs and gradients. Calls that have to raise are left out.

    Args:
        cases: which.
        target: the folder to write to; made where it is missing, and refused if anything is in it.
        format: "container", or "folders" for a folder per call.
        phase: "forward" leaves gradients out.

    Returns:
        how many calls were written, and which could not be.

    Raises:
        op_tools.Error: the target is not empty, or nothing could be written.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise Error(f"{target}: is not empty; name a new folder")
    done, written = Exported(), list[Case]()
    cpu = torch.device("cpu")
    with warnings.catch_warnings(), OpCapture(output_dir=str(target), format=format) as capture:
        warnings.simplefilter("ignore")  # of torch, on arguments that cases have on purpose
        for case in cases:
            if case.variant == "error":
                continue
            try:
                prepared = unobserved(make_call, case, cpu)
                outputs = prepared.run()
                if case.gradient and phase != "forward":
                    prepared.backward(outputs)
            except Exception as error:  # of any kind: a call that this machine's CPU cannot run
                done.problems.append(f"{case.id}: not exported: {str(error).partition(chr(10))[0]}")
                continue
            written.append(case)
    result = capture.result()
    if result.failure or result.limit:
        raise Error(f"{target}: {result.failure or result.limit}")
    done.calls = sum(row.calls for row in result.rows)
    write_list(target / LIST, written)
    return done
