"""Runs under torchrun: the ranks share the cases, rank 0 has the rows of all."""

from __future__ import annotations

import datetime
import json
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from .._shards import is_shared
from .rows import Row

# Ranks may be hours apart. torchrun ends all of them when one dies, so none waits for a dead one.
_PATIENCE = datetime.timedelta(days=30)


class Ranks:
    """This process among the ranks; alone where torchrun did not start it."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number, self.count = number, count

    def gathered(self, rows: dict[str, list[Row]], trouble: str) -> list[tuple[dict[str, list[Row]], str]]:
        """On rank 0: the rows of each rank, and what is wrong with its self-test; elsewhere nothing."""
        if self.count == 1:
            return [(rows, trouble)]
        mine = zlib.compress(json.dumps([[asdict(row) for row in found] for found in rows.values()]).encode(), 1)
        parts: list[Any] | None = [None] * self.count if self.number == 0 else None
        dist.gather_object((mine, trouble), parts)
        return [(_rows_in(content), said) for content, said in parts or []]

    def agreed(self, status: int) -> int:
        """The status of rank 0, on all ranks."""
        told = [status]
        if self.count > 1:
            dist.broadcast_object_list(told)
        return told[0]


def _rows_in(content: bytes) -> dict[str, list[Row]]:
    found = [[Row(**row) for row in rows] for rows in json.loads(zlib.decompress(content))]
    return {rows[0].case: rows for rows in found}


@contextmanager
def ranks() -> Iterator[Ranks]:
    """The ranks of torchrun, with a process group of their own while it is entered."""
    if not is_shared(()):
        yield Ranks()
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        time.sleep(1)  # gloo aborts a rank whose partner has gone
        dist.destroy_process_group()
