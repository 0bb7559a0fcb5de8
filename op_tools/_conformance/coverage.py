"""The dispatcher's kernels for a device: a walk over all operators of torch."""

from __future__ import annotations

from collections import Counter

import torch

from .._torch.operator_support import dispatch_key, registration


def coverage_of(device: str) -> dict[str, int]:
    """How many of torch's operators are there on a device: "kernel", "composite", "fallback", "missing"."""
    key = dispatch_key(device)
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return dict(sorted(Counter(registration(name, key)[0] for name in names).items()))
