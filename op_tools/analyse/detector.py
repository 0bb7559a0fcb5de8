"""The module that copies of `op-tools analyse -m dynamic_shape --detector` import."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from .._base.core import Error, log_warn
from .._tools.observe import OpObserve
from ._dynamic import dynamic_rows
from ._reports import Report

Item = TypeVar("Item")


class Detector:
    """Observes the shapes of all operators from the first loop that goes through it to the end of the program. The detectors with
    the same folder, in several files of a program, are the same.

    Args:
        folder: where ``msft_dynamic_shape_analysis_report.csv`` is written when the program ends; in ``rank_1`` and so on in
            it for the other ranks than 0.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def start(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; each is a step of the training."""
        tool = _observing(self._folder)
        for item in items:
            yield item
            tool.step()


@functools.cache
def _observing(folder: Path) -> OpObserve:
    tool = OpObserve(detail=2, output_dir=folder).start()
    atexit.register(_finish_run, tool, folder)
    return tool


def _finish_run(tool: OpObserve, folder: Path) -> None:
    tool.stop()
    report = Report("dynamic_shape")
    try:
        if root := tool.result().root:  # .../op_observe_result/<rank>/<time>; "" where nothing was called
            dynamic_rows(Path(root), report)
        rank = Path(root).parent.name or "0"
        target = folder if rank == "0" else folder / f"rank_{rank}"
        target.mkdir(exist_ok=True)
        report.write(target)
    except (OSError, Error) as error:
        log_warn(f"Detector: the report cannot be written: {error}")
