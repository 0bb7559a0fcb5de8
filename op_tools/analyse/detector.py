"""What the copies of `op-tools analyse -m dynamic_shape --detector` import."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from .. import _C
from .._observe import OpObserve
from ._dynamic import dynamic_rows
from ._reports import Report

Item = TypeVar("Item")


class Detector:
    """Observes the shapes of all operators from the first loop that goes through it to the end of the program.

    Args:
        folder: where ``msft_dynamic_shape_analysis_report.csv`` is written when the program ends.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._tool: OpObserve | None = None

    def start(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; each is a step of the training."""
        if self._tool is None:
            self._tool = OpObserve(detail=2, output_dir=self._folder / "op_observe_result")
            self._tool.start()
            atexit.register(self._finish, self._tool)
        for item in items:
            yield item
            self._tool.step()

    def _finish(self, tool: OpObserve) -> None:
        tool.stop()
        report = Report("dynamic_shape")
        try:
            dynamic_rows(Path(tool.result().root), report)
            report.write(self._folder)
        except (OSError, _C.Error) as error:
            _C.log_warn(f"Detector: the report cannot be written: {error}")
