"""Seeds of torch's generators of random numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def seed_generators(seed: int, kinds: Iterable[str]) -> None:
    """Those of the CPU and of these kinds of devices ("cuda", "npu"). torch.manual_seed() seeds those of all kinds: for a kind that is
    not in use it keeps the seed, and the stack as text, each time, which takes 1.6 ms."""
    torch.default_generator.manual_seed(seed)
    for kind in {*kinds} - {"cpu"}:
        getattr(getattr(torch, kind, None), "manual_seed_all", torch.manual_seed)(seed)


def accelerator() -> str:
    """The kind of device that is torch's accelerator in this process; "cpu" without any."""
    return torch._C._get_accelerator().type
