"""Reading captured calls in Python."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _C


def load(path: str | Path) -> Any:
    """Reads a captured .pth file with the values that torch.load cannot give: slices, Ellipsis, memory formats and
    generators come back as what they were.

    Args:
        path: the file.

    Returns:
        what the file holds; tensors are on the CPU.

    Raises:
        op_tools.Error: when the file is missing, damaged, or no .pth file; nothing in it is ever run.
    """
    return _C.read_pth(str(path))


@dataclass(frozen=True)
class CapturedCall:
    """One captured call as Python values; gradients are None when backward did not run."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    grad_inputs: tuple[Any, ...] | None = None
    grad_outputs: tuple[Any, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)


def load_call(folder: str | Path) -> CapturedCall:
    """Reads one captured call.

    Args:
        folder: ``op_capture_result/<rank>/<time>/<op>/<id>``, or ``.../calls.zip!<op>/<id>`` in a container. Bytes that
            the call shares with others (``dedupe=True``) are read from where they are.

    Raises:
        op_tools.Error: when input.pth is missing or a file is damaged.
    """
    call = _C.read_call(str(folder))
    return CapturedCall(**{**call, "meta": json.loads(call["meta"]) if call["meta"] is not None else {}})
