"""Limits of the tools with older versions of torch: for `op-tools doctor` and docs/torch_versions.md.

Gaps that op_tools closes itself are in compat.py and in src/compat.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._base.torch_version import minor


@dataclass(frozen=True)
class TorchLimit:
    """A limit of all versions of torch before a minor version."""

    since: tuple[int, int]
    """The first minor version without it."""
    of: str
    """The tool, level or device that has it."""
    text: str
    """For people: the missing part, the reason, and the remedy where one exists."""


TORCH_LIMITS = (
    TorchLimit(
        (2, 12),
        "level torch",
        "does not see torch.distributed's functions but all_reduce, all_gather, all_gather_into_tensor, reduce_scatter_tensor and "
        "all_to_all_single: torch does not ask for __torch_function__ in the others; level aten sees them",
    ),
    TorchLimit(
        (2, 12),
        "graph capture",
        "is known of CUDA's streams alone: torch does not ask other devices; on those end a tool's scope before a graph is captured",
    ),
    TorchLimit(
        (2, 9),
        "device sim",
        "is without torch.accelerator's functions of memory, which this torch does not have",
    ),
)


def limits_of(version: str) -> list[TorchLimit]:
    """Those of a version of torch, as in ``torch.__version__`` ("2.7.1.post4+npu")."""
    major, second = map(int, minor(version))
    return [limit for limit in TORCH_LIMITS if (major, second) < limit.since]
