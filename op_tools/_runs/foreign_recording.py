"""The dump of another tool as a recording, so that it can be compared like our recordings."""

from __future__ import annotations

import os
from typing import Any

from ..formats import ForeignCall, ForeignTensor, read_dump

_OF_CALL = 1  # Origin::kCall in src/record/recording.h
_UNKNOWN = float("nan")


class _Rows:
    """The rows of a rank."""

    def __init__(self, path: str, header: dict[str, Any]) -> None:
        self.header, self.path = header, path
        self.values: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.producers: dict[
            object, tuple[int, int]
        ] = {}  # by a tensor's values: the call that made it, and which output

    def add_value(self, tensor: ForeignTensor, producer: tuple[int, int] | None) -> int:
        known = tensor.max is not None
        facts = (tensor.min, tensor.max, tensor.mean, tensor.norm)
        content = tensor.hash or (tensor.shape, tensor.dtype, *facts)
        producer = producer or (self.producers.get(content) if known or tensor.hash else None)
        value: dict[str, Any] = {
            "dtype": tensor.dtype if tensor.dtype.startswith("torch.") else "",
            "shape": list(tensor.shape or ()),
            "known": known,
            "hash": tensor.hash[:16] if _is_hexadecimal(tensor.hash) else "",
            "nan": -1,
            "inf": -1,
            "zero": -1,
        }
        for name, number in zip(("min", "max", "mean", "norm"), facts, strict=True):
            value[name] = _UNKNOWN if number is None else float(number)
        if producer is not None:
            value |= {"origin": _OF_CALL, "producer": producer[0], "output": producer[1]}
            self.producers[content] = producer
        self.values.append(value)
        return len(self.values) - 1

    def add_call(self, call: ForeignCall) -> None:
        is_forward = call.phase == "forward"
        result_role = "output" if is_forward else "grad_input"
        read = ("input", "parameter") if is_forward else ("grad_output",)
        inputs = [(one.place, self.add_value(one, None)) for one in call.tensors if one.role in read]
        results = [one for one in call.tensors if one.role == result_role]
        number = len(self.calls)
        outputs = [(one.place, self.add_value(one, (number, index))) for index, one in enumerate(results)]
        self.calls.append(
            {
                "id": call.number + 1,
                "op": call.name or call.foreign_name.rpartition("_")[0] or call.foreign_name,
                "level": "aten" if call.level == "aten" else "torch",
                "phase": call.phase,
                "step": call.step,
                "module": call.module,
                "line": call.stack[0] if call.stack else "",
                "inputs": inputs,
                "outputs": outputs,
            }
        )

    def rows(self) -> dict[str, Any]:
        return {"path": self.path, "header": self.header, "values": self.values, "calls": self.calls}


def _is_hexadecimal(text: str) -> bool:
    return bool(text) and all(one in "0123456789abcdefABCDEF" for one in text)


def rows_of_dump(path: str | os.PathLike[str]) -> dict[int, dict[str, Any]]:
    """The rows of recordings (make_recording) that a dump stands for, by rank. Which call made a tensor is known by
    equal hashes, or equal statistics.

    Raises:
        op_tools.Error: the path holds no dump, or a file of it is damaged.
    """
    dump = read_dump(path)
    ranks: dict[int, _Rows] = {}
    for call in dump.calls:
        header = {**dump.header, "format": dump.format, "rank": call.rank}
        ranks.setdefault(call.rank, _Rows(str(dump.path), header)).add_call(call)
    return {rank: rows.rows() for rank, rows in ranks.items()}
