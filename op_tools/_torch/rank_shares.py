"""Work that the ranks of torchrun share: rank 0 gathers it, and tells. run_op_from_data under torchrun."""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from .._base.core import run_op_from_data

T = TypeVar("T")
Find = Callable[[str], Callable[..., Any] | None]

# Ranks may be hours apart. torchrun ends all of them when one dies, so none waits for a dead rank.
_PATIENCE = datetime.timedelta(days=30)


def is_shared(arguments: Sequence[str]) -> bool:
    """Several ranks of torchrun run this, and the arguments say nothing else about parts."""
    others = any(
        argument.partition("=")[0] in ("--shard", "--merge", "--help", "-h", "--version") for argument in arguments
    )
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not others


class Ranks:
    """This process among the ranks."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number, self.count = number, count

    def gathered(self, mine: Any) -> list[Any] | None:
        """On rank 0: the values of all ranks; elsewhere None."""
        if self.count == 1:
            return [mine]
        parts: list[Any] | None = [None] * self.count if self.number == 0 else None
        dist.gather_object(mine, parts)
        return parts

    def agreed(self, of_rank: T) -> T:
        """The value of rank 0, on all ranks."""
        told = [of_rank]
        if self.count > 1:
            dist.broadcast_object_list(told)
        return told[0]


@contextmanager
def ranks() -> Iterator[Ranks]:
    """The ranks of torchrun, with a process group of their own while it is entered; one where torchrun did not start it."""
    if not is_shared(()):
        yield Ranks()
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        time.sleep(1)  # gloo aborts a rank whose partner has gone
        dist.destroy_process_group()


def _own(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compare")
    parser.add_argument("--allow-unseen", action="store_true")
    return parser.parse_known_args(list(arguments))


def replay_part(arguments: Sequence[str], find: Find) -> int:
    """Replays this rank's calls; rank 0 prints the summary of all and writes the JSON report of all.

    Args:
        arguments: as on the command line, the same on all ranks.
        find: gives the Python function of a name.

    Returns:
        the exit status of the whole, the same on all ranks.
    """
    options, rest = _own(arguments)
    device = options.device
    if device != "cpu" and ":" not in device:
        device += f":{os.environ.get('LOCAL_RANK', '0')}"
    with ranks() as group, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "part.json"
        shard = f"{group.number}/{group.count}"
        part = ["--shard", shard, "--device", device, "--json", str(report), "--no_summary"]
        status = run_op_from_data([*rest, *part], find)
        content = zlib.compress(report.read_bytes(), 1) if report.exists() else None
        parts = group.gathered((status, content))
        if parts is not None:
            status = _told(parts, Path(folder), options, find)
        return group.agreed(status)


def _told(parts: list[Any], folder: Path, options: argparse.Namespace, find: Find) -> int:
    failed: list[int] = [status for status, content in parts if content is None]
    if failed:
        return failed[0]  # wrong usage: each rank has printed its error
    files = []
    for number, (_, content) in enumerate(parts):
        files.append(folder / f"part-{number}.json")
        files[-1].write_bytes(zlib.decompress(content))
    more = [
        argument
        for name in ("json", "compare")
        for argument in (f"--{name}", getattr(options, name))
        if getattr(options, name)
    ]
    if options.allow_unseen:
        more.append("--allow-unseen")
    return run_op_from_data(["--merge", *map(str, files), *more], find)
