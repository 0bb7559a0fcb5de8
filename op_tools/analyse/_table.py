"""A support table: the operators that a device runs, made on the machine that has it and read anywhere. Imports nothing of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.data_file import read_json

FORMAT = 1
_KEYS = {
    "format": int,
    "torch": str,
    "device": str,
    "backend": str,
    "operators": dict,
    "functions": dict,
    "names": dict,
}

# Python's operators on tensors, and the functions that they call.
OPERATOR_METHODS = {
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__matmul__": "matmul",
    "__truediv__": "true_divide",
    "__floordiv__": "floor_divide",
    "__mod__": "remainder",
    "__pow__": "pow",
    "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "__xor__": "bitwise_xor",
    "__invert__": "bitwise_not",
    "__neg__": "neg",
    "__abs__": "abs",
    "__eq__": "eq",
    "__ne__": "ne",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
    "__getitem__": "__getitem__",
    "__setitem__": "index_put_",
}


@dataclass(frozen=True)
class Support:
    """The entry of a name in a table."""

    status: str
    """supported, fallback (runs on the CPU), partial (some sample calls do not run), unsupported, python (calls no operator
    of its own), unknown."""
    evidence: str
    warning: str = ""
    """The failures in a conformance result; "" none, or there is no result."""


_REFUSED, _WRONG = "unsupported because", "wrong because"  # keys of a conformance result about a dtype
_MOST_REASONS = 3
_PYTHON = Support("python", "Python code of torch")


def last_part(name: str) -> str:
    """The common name of a function, its method and its form in place: "add" of "torch.Tensor.add_"."""
    own = name.rsplit(".", 1)[-1]
    return own if own.endswith("__") else own.rstrip("_")


class SupportTable:
    """A support table. Answers are made from the operators' rows: a table in which an operator is changed by hand, or a
    conformance result is entered, answers accordingly."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self._answers: dict[str, Support] = {}

    @property
    def torch(self) -> str:
        """The version of torch that the table was made with."""
        return str(self.content["torch"])

    @property
    def device(self) -> str:
        """The type of the device: "sim"."""
        return str(self.content["device"])

    @cached_property
    def _modules(self) -> dict[str, frozenset[str]]:
        return {module: frozenset(names) for module, names in self.content["names"].items()}

    @cached_property
    def _overloads(self) -> dict[str, list[str]]:
        overloads: dict[str, list[str]] = {}
        for name in self.content["operators"]:
            overloads.setdefault(name.split(".")[0], []).append(name)
        return overloads

    def write(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def counts(self) -> dict[str, int]:
        """How many functions have each status."""
        counts: dict[str, int] = {}
        for name in self.content["functions"]:
            status = self.support(name).status
            counts[status] = counts.get(status, 0) + 1
        return dict(sorted(counts.items()))

    def runs(self, operators: list[str]) -> Support:
        """Of a call that makes these operators."""
        worst = "supported"
        told = []
        for name in operators:
            row = self.content["operators"].get(
                name, {"status": "missing", "evidence": "the dispatcher has no such operator"}
            )
            if row["status"] == "missing":
                return Support("unsupported", f"{name}: {row['evidence']}")
            if row["status"] == "fallback":
                worst = "fallback"
                told.append(f"{name}: {row['evidence']}")
        return Support(worst, "; ".join(told) or ", ".join(operators))

    def support(self, name: str) -> Support:
        """Of a function, method, class or operator, by its public name: "torch.Tensor.add_", "torch.ops.aten.mm"."""
        if name not in self._answers:
            self._answers[name] = self._answer(name)
        return self._answers[name]

    def _answer(self, name: str) -> Support:
        row = self.content["functions"].get(name)
        if row is not None:
            return self._as_judged(row, self._of_row(row))
        if name.startswith("torch.ops."):
            return self._of_operator(name)
        if self.knows(name):
            return _PYTHON
        return Support("unknown", f"torch {self.torch} has no {name}")

    def knows(self, name: str) -> bool:
        """Whether torch has this public name, or a class or value in which it is an attribute."""
        if name in self._modules:
            return True
        place, _, own = name.rpartition(".")
        while place:
            names = self._modules.get(place)
            if names is not None:
                return own in names or own.startswith("_")
            place, _, own = place.rpartition(".")
        return False

    def _of_row(self, row: dict[str, Any]) -> Support:
        calls = row["operators"]
        if not calls:
            if row["samples"] and row["errors"] == row["samples"]:
                return Support("unknown", "no sample call of torch could be made on this device")
            return Support("unknown", "no sample call of torch") if not row["samples"] else _PYTHON
        answers = [self.runs(one) for one in calls]
        bad = [one for one in answers if one.status == "unsupported"]
        if bad:
            status = "unsupported" if len(bad) == len(answers) else "partial"
            return Support(status, bad[0].evidence)
        backward = self.runs(row["backward"])
        if backward.status == "unsupported":
            return Support("partial", f"backward: {backward.evidence}")
        return next((one for one in answers if one.status == "fallback"), answers[0])

    def _as_judged(self, row: dict[str, Any], support: Support) -> Support:
        """With the conformance results of the function, or of the operators that it calls."""
        judged = row.get("judged", {})
        refused = [f"{dtype}: {one[_REFUSED]}" for dtype, one in judged.items() if _REFUSED in one]
        if refused and support.status != "unsupported":
            ran = any(one["right"] or one["wrong"] for one in judged.values()) or support.status != "unknown"
            support = Support("partial" if ran else "unsupported", refused[0])
        elif support.status == "unknown" and any(one["right"] or one["wrong"] for one in judged.values()):
            support = Support("supported", "cases of op-tools conformance run")
        called = sorted({*row["backward"], *(one for call in row["operators"] for one in call)})
        rows = [("", row), *((f"{one}: ", self.content["operators"].get(one, {})) for one in called)]
        wrong = [
            f"{prefix}{dtype}: {judgement['wrong']} of {judgement['wrong'] + judgement['right']} cases: {judgement[_WRONG]}"
            for prefix, place in rows
            for dtype, judgement in place.get("judged", {}).items()
            if _WRONG in judgement
        ]
        return replace(support, warning="; ".join(wrong[:_MOST_REASONS]))

    def _of_operator(self, name: str) -> Support:
        parts = name.split(".")[2:]
        if len(parts) < 2:
            return _PYTHON
        full = f"{parts[0]}::{parts[1]}"
        if len(parts) > 2 and parts[2] != "default":
            full += f".{parts[2]}"
        base = full.split(".")[0]
        if full not in self.content["operators"] and base in self._overloads and full != base:
            return _PYTHON  # an attribute of the operator
        overloads = [full] if full in self.content["operators"] else self._overloads.get(full, [])
        if not overloads:
            return Support("unknown", f"torch {self.torch} has no operator {full}")
        answers = [self.runs([one]) for one in overloads]
        best = next((one for one in answers if one.status != "unsupported"), answers[0])
        return self._as_judged({"operators": [overloads], "backward": []}, best)


def read_table(path: str | Path) -> SupportTable:
    """Reads a support table.

    Args:
        path: a file of `op-tools support -o`.

    Returns:
        the table.

    Raises:
        op_tools.Error: the file is missing, or is no such table.
    """
    content = read_json(path, "op-tools support makes a support table")
    if not isinstance(content, dict) or any(not isinstance(content.get(key), kind) for key, kind in _KEYS.items()):
        raise Error(f"{path}: not a support table: make it with op-tools support --device D -o {path}")
    if content["format"] != FORMAT:
        raise Error(
            f"{path}: a support table of format {content['format']}, this op_tools reads {FORMAT}: make it again"
        )
    return SupportTable(content)
