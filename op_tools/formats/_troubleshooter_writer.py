"""Writes the files of troubleshooter's api_dump, in their newest form: for exports, and for op_tools_compat.troubleshooter."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error
from ._files import extra
from ._statistics import array_of, md5, tensor_statistics

STATISTICS = ("max", "min", "avg", "md5", "l2norm")
_CODE = {"Tensor": "torch.Tensor.", "Torch": "torch.", "NN": "torch.nn.", "Functional": "torch.nn.functional."}


class ApiDumpWriter:
    """A rank's files. Rows may come from several threads.

    Args:
        folder: the rank's folder; earlier files of a dump in it are replaced.
        values: whether to write .npy files.
        wanted: the statistics to compute, of STATISTICS; empty: none.
        filter_data: leave out scalars, and tensors that are empty, without dimensions, or not of floats.
    """

    def __init__(self, folder: Path, *, values: bool, wanted: Collection[str], filter_data: bool) -> None:
        self._numpy = extra("numpy", "api_dump")
        self.configure(values=values, wanted=wanted, filter_data=filter_data)
        self._lock = threading.Lock()
        self._stacks: dict[str, list[str]] = {}
        self._arrays = folder / "torch_api_dump"
        self._info = folder / "torch_api_dump_info.csv"
        self._stack = folder / "torch_api_dump_stack.json"
        try:
            self._arrays.mkdir(parents=True, exist_ok=True)
            for old in (*self._arrays.glob("*.npy"), self._info, self._stack):
                old.unlink(missing_ok=True)
            self._file = self._info.open("w")
        except OSError as error:
            raise Error(f"{error.filename}: {error.strerror}") from None
        self.rows = 0

    def configure(self, *, values: bool, wanted: Collection[str], filter_data: bool) -> None:
        """Changes the attributes of the next rows; the arguments are those of the class."""
        self._values, self._wanted, self._filter = values, frozenset(wanted), filter_data

    def close(self) -> None:
        """Flushes open files to the disk; rows of gradients may still follow."""
        with self._lock:
            self._file.flush()
            self._stack.write_text(json.dumps(self._stacks, indent=4))

    def end(self) -> None:
        """Closes the files."""
        self.close()
        self._file.close()

    def layer(self, path: str, lines: Sequence[str]) -> None:
        """The row that marks a call of a module, and its stack.

        Args:
            path: the module's path: "layer1.0".
            lines: as of stack().
        """
        flat = path.replace(".", "_")
        name = f"LAYER_{flat}_forward_input"
        with self._lock:
            self._stacks[f"LAYER: {flat} forward"] = list(lines)
        if not (self._values and (self._arrays / f"{name}.npy").exists()):  # once, as the tool
            self.value(name, torch.zeros(1))

    def value(self, name: str, value: Any) -> list[torch.Tensor]:
        """The rows of an argument or a result; lists have a row for each item.

        Args:
            name: the row's: "Functional_relu_0_forward_input.0".
            value: anything; values that are no tensors or scalars are left out.

        Returns:
            the tensors that have a row.
        """
        if isinstance(value, (tuple, list)):
            return [one for i, item in enumerate(value) for one in self.value(f"{name}.{i}", item)]
        if isinstance(value, torch.Tensor):
            return [value] if self._tensor(name, value) else []
        if not self._filter and type(value) in (bool, int, float):
            self._write(name, str(type(value)), [], value, [value] * 3)
        return []

    def _tensor(self, name: str, tensor: torch.Tensor) -> bool:
        is_plain = tensor.numel() > 0 and tensor.dim() > 0 and tensor.is_floating_point()
        if self._filter and not is_plain:
            return False
        measured = tensor_statistics(tensor) if self._wanted & {"max", "min", "avg", "l2norm"} else {}
        shown = [measured.get(key, math.nan) if which in self._wanted else math.nan for which, key in _KEYS]
        self._write(name, str(tensor.dtype), list(tensor.shape), tensor, shown, measured.get("norm"))
        return True

    def _write(
        self, name: str, dtype: str, shape: list[int], value: Any, shown: list[Any], norm: float | None = None
    ) -> None:
        needs_array = self._values or "md5" in self._wanted
        is_tensor = isinstance(value, torch.Tensor)
        array = array_of(value) if is_tensor and needs_array else self._numpy.asarray(value) if needs_array else None
        digest: Any = []
        if "md5" in self._wanted:
            digest = md5(array) if is_tensor else md5(self._numpy.frombuffer(str(value).encode(), "uint8"))
        if not is_tensor:
            norm = abs(float(value))
            shown = shown if self._wanted else [math.nan] * 3
        line = json.dumps([name, 1, [], dtype, shape, shown, digest, norm if "l2norm" in self._wanted else []])
        with self._lock:
            if self._values:
                path = self._arrays / f"{name}.npy"
                path.unlink(missing_ok=True)
                self._numpy.save(path, array)
                path.chmod(0o400)  # as the tool does
            self._file.write(line + "\n")
            self.rows += 1

    def stack(self, kind: str, function: str, number: int, lines: Sequence[str]) -> None:
        """The stack of a call.

        Args:
            kind: "Functional".
            function: "relu".
            number: counts the calls of the function.
            lines: File a.py, line 3, in f, and the line's code.
        """
        with self._lock:
            self._stacks[f"{_CODE.get(kind, '')}{function}({number}) forward"] = list(lines)


_KEYS = (("max", "max"), ("min", "min"), ("avg", "mean"))
