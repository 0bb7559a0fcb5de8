"""OpBlackBox: which call a process was in when it died, or hangs in."""

from __future__ import annotations

import multiprocessing.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Unpack

from .._base.core import Error
from .._base.declared_options import OpBlackBoxOptions
from .black_box_file import BlackBox, read_black_box
from .tool import Tool


class OpBlackBox(Tool):
    """Says which call killed a process, or hangs: the last calls of each thread stay in a file, whatever ends the process.

    A call's place in ``op_blackbox_result/<rank>/<time>/<process>.blackbox`` is written before the operator runs, and again
    after it, into memory that the system has mapped to the file: SIGKILL, the OOM killer, a segmentation fault in a kernel
    and ``os._exit`` leave it readable. ``op-tools blackbox FILE`` shows it, while the program runs, too. The level is
    ``aten`` unless you say otherwise, and all threads are watched: a backward pass of the torch level is a call that is
    known when it has ended.
    """

    _kind = "OpBlackBox"
    _defaults: ClassVar[dict[str, Any]] = {"level": "aten"}

    _in_children = True

    def __init__(self, **options: Unpack[OpBlackBoxOptions]) -> None:
        super().__init__(**options)
        # multiprocessing ends a child without Python's own exit: nothing else would tell that all went well.
        multiprocessing.util.register_after_fork(self, OpBlackBox._end_with_child)

    def _end_with_child(self) -> None:
        """A worker that ends as it should leaves no file: there may be a file per worker and epoch."""

        def end() -> None:
            error = sys.exc_info()[1]  # that the child's own code raised
            failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
            if self._is_running and self.path and not failed:
                Path(self.path).unlink(missing_ok=True)

        if self._is_running:
            multiprocessing.util.Finalize(None, end, exitpriority=-1000)

    @property
    def path(self) -> str:
        """The file of this process; "" before start()."""
        return str(self._report().get("path", ""))

    def result(self) -> BlackBox:
        """The content of the file now.

        Raises:
            op_tools.Error: the tool was not started, or could not make its file.
        """
        if not self.path:
            raise Error("OpBlackBox has no file: it was not started, or could not make its file")
        return replace(read_black_box(self.path), coverage=self.coverage())
