"""run_op_from_data under torchrun: the ranks share the calls, rank 0 tells what came out."""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from . import _C

Find = Callable[[str], Callable[..., Any] | None]

# Ranks may be hours apart. torchrun ends all of them when one dies, so none waits for a dead one.
_PATIENCE = datetime.timedelta(days=30)


def is_shared(arguments: Sequence[str]) -> bool:
    """Several ranks of torchrun run this, and the arguments say nothing else about parts."""
    others = any(
        argument.partition("=")[0] in ("--shard", "--merge", "--help", "-h", "--version") for argument in arguments
    )
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not others


def _own(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compare")
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
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        rank, count = dist.get_rank(), dist.get_world_size()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "part.json"
            part = ["--shard", f"{rank}/{count}", "--device", device, "--json", str(report), "--no_summary"]
            status = _C.run_op_from_data([*rest, *part], find)
            content = zlib.compress(report.read_bytes(), 1) if report.exists() else None
            parts: list[Any] | None = [None] * count if rank == 0 else None
            dist.gather_object((status, content), parts)
            if parts is not None:
                status = _told(parts, Path(folder), options, find)
        told = [status]
        dist.broadcast_object_list(told)
        return told[0]
    finally:
        dist.destroy_process_group()


def _told(parts: list[Any], folder: Path, options: argparse.Namespace, find: Find) -> int:
    failed: list[int] = [status for status, content in parts if content is None]
    if failed:
        return failed[0]  # wrong usage: each rank has said what
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
    return _C.run_op_from_data(["--merge", *map(str, files), *more], find)
