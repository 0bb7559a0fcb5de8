"""Slow kinds of programs give the same with the tools on: inductor, and two processes with DDP and distributed tensors.

programs.py
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _program import parser, quiet
from torch import nn

import op_tools

TOOLS = ["none", "torch", "aten", "both"]


def tools(which: str, folder: str) -> contextlib.ExitStack:
    """OpCapture and a hook at the level, or at both."""
    stack = contextlib.ExitStack()
    for level in ("torch", "aten"):
        if which in (level, "both"):
            stack.enter_context(op_tools.OpCapture(level=level, format="container", output_dir=folder))
            stack.enter_context(op_tools.HookScope(op_tools.Hook(), level=level))
    return stack


def equal(tensors: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(tensors) == len(other) and all(
        torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(tensors, other)
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def inductor(which: str, folder: str, compiled_too: bool = True) -> list[torch.Tensor]:
    """Three steps of training, compiled inside the scope."""
    torch._dynamo.reset()
    model = network()
    compiled = torch.compile(model) if compiled_too else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tools(which, folder):
        for step in range(3):
            optimizer.zero_grad()
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            compiled(inputs).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def distributed(rank: int, port: int, which: str, folder: str) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    os.environ.update(OP_TOOLS_LOG_LEVEL="error", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(network())
    with tools(which, folder):
        for step in range(2):
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * rank + step))
            model(inputs).square().mean().backward()
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.randn(6, 16, generator=torch.Generator().manual_seed(5))
        split = distribute_tensor(whole, mesh, [Shard(0)]).requires_grad_()
        weight = distribute_tensor(torch.ones(3, 16), mesh, [Replicate()])
        product = F.linear(split, weight).relu()
        product.sum().backward()
        results = [parameter.grad for parameter in model.parameters()]
        results += [product.full_tensor().detach(), split.grad.full_tensor()]
    torch.save(results, Path(folder) / f"results-{rank}.pt")
    dist.destroy_process_group()


def two_processes(which: str, folder: str) -> list[torch.Tensor]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(distributed, (port, which, folder), nprocs=2)
    if which != "none":
        ranks = sorted(path.name for path in Path(folder).glob("op_capture_result/*"))
        assert ranks == ["0", "1"], f"captures of both ranks, found {ranks}"
    return [tensor for rank in range(2) for tensor in torch.load(Path(folder) / f"results-{rank}.pt")]


def main() -> int:
    parser(__doc__).parse_args()
    quiet()
    failed = 0
    programs: list[Any] = [two_processes, inductor]
    for program in programs:
        expected: list[torch.Tensor] = []
        for which in TOOLS:
            folder = tempfile.mkdtemp(prefix="programs-")
            try:
                result = program(which, folder)
            finally:
                shutil.rmtree(folder)
            expected = expected or result
            eager = program is inductor and which in ("torch", "both")
            same = equal(result, inductor("none", folder, compiled_too=False) if eager else expected)
            failed += not same
            print(
                f"{program.__name__:<14} tools: {which:<6} {len(result)} tensors {'equal' if same else 'DIFFER'}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
