"""The judge's expectations of a call's results: values and limits, which scripts and C++ programs carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Expected:
    """A result as it has to be; the core's Expectation."""

    name: str
    """In scripts: `output`, `output 1`, `input 0 after the call`, `gradient of input 0`."""
    part: str
    values: tuple[torch.Tensor, ...]
    """Each element has to be near that of any of them. Empty: the call must not change the input."""
    limit: torch.Tensor | None
    """How far an element may be off: a number for all, or a number for each."""
    rmse: float
    dtype: torch.dtype | None
    only_sizes: bool
    """Values and limits are of the result's absolute value."""
    strides: tuple[tuple[int, ...], ...]
    """Those that it may have, without dimensions of a single element; empty: any."""
    aliases: tuple[int, ...] | None
    """The inputs whose memory it shows; None: any."""

    @property
    def shape(self) -> list[int]:
        return list(self.values[0].shape)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All numbers."""
        return self.values if self.limit is None else (*self.values, self.limit)


def name_of(part: str, index: int | None) -> str:
    """The names of results in scripts."""
    if part == "input":
        return f"input {index} after the call"
    if part == "gradient":
        return f"gradient of input {index}"
    return "output" if index is None else f"output {index}"


def read_expected(checks: list[dict[str, Any]]) -> tuple[list[Expected], dict[str, str]]:
    """The results that can be compared; and why the others cannot, by name.

    Args:
        checks: of a call, from the file that run_op_from_data --expected wrote.
    """
    known: dict[str, Expected] = {}
    left_out: dict[str, str] = {}
    for check in checks:
        if check["part"] == "call":
            continue
        name = name_of(check["part"], check["index"])
        wanted = check["expected"]
        if name in known or name in left_out:
            continue  # of a further backward pass
        if wanted is None:
            left_out[name] = check["reason"] or "its limits are no limits of elements"
            continue
        values = tuple(wanted["values"])
        kept = [size > 1 for size in values[0].shape] if values and values[0].numel() else []
        known[name] = Expected(
            name,
            check["part"],
            values,
            wanted.get("limit"),
            wanted["rmse"],
            wanted.get("dtype"),
            wanted["only_sizes"],
            tuple(
                tuple(step for step, keeps in zip(strides, kept, strict=True) if keeps)
                for strides in wanted["strides"]
                if len(strides) == len(kept)
            ),
            None if wanted.get("aliases") is None else tuple(wanted["aliases"]),
        )
    return list(known.values()), left_out
