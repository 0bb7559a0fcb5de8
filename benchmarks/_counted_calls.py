"""The program whose calls call_counts.py counts: makes the calls of each row of a list between two signals to itself.

python _counted_calls.py ROWS       ROWS: JSON, a list of [kind, tool, level, "left out" or "taken"]
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

import op_tools

WARM_UP = 30  # calls: the first ones make things that later calls find
CALLS = 10  # whose system calls are counted
STEPPED = (
    3  # calls behind them whose instructions are counted: Python looks for a faster way in some calls and not in others
)
FUNCTIONS = {
    "allocations": ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"),
    "locks": ("pthread_mutex_lock", "pthread_mutex_trylock", "pthread_rwlock_rdlock", "pthread_rwlock_wrlock"),
    "waits": ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait", "sem_wait", "sem_timedwait"),
}
"""The C library's, by the count that a call of them belongs to."""


def kinds() -> dict[str, Callable[[], object]]:
    """A call of each kind."""
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    labels = torch.zeros(4, dtype=torch.int64)
    linear, parameter = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.ones(8))
    parameter.grad = torch.ones(8)
    step = torch.optim.SGD([parameter], lr=0.1).step
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())

    libc, mutex, condition, past = ctypes.CDLL(None), *(ctypes.create_string_buffer(64) for _ in range(3))
    libc.pthread_mutex_lock(mutex)

    def backward() -> None:
        parameter.sum().backward()

    return {
        "nothing": lambda: None,
        "a wait": lambda: libc.pthread_cond_timedwait(condition, mutex, past),  # until 1970
        "C function": lambda: torch.add(x, y),
        "F.layer_norm": lambda: F.layer_norm(x, (8,)),
        "F.dropout": lambda: F.dropout(x),
        "F.cross_entropy": lambda: F.cross_entropy(x, labels),
        "method": lambda: x.mul(y),
        "property": lambda: x.mT,
        "module": lambda: linear(x),
        "backward": backward,
        "optimizer step": step,
        "collective": lambda: dist.all_reduce(x),
    }


@contextlib.contextmanager
def scope(tool: str, level: str, ops: str, folder: str) -> Iterator[None]:
    """`ops`: the filter; "" for all."""
    if not tool:
        yield
    elif tool == "Hook":
        with op_tools.HookScope(op_tools.Hook(), level=level, ops=ops):
            yield
    else:
        with getattr(op_tools, tool)(level=level, ops=ops, output_dir=folder):
            yield


def address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def main() -> None:
    torch.set_num_threads(1)
    mark = ctypes.PyDLL(None)["raise"]
    calls = kinds()
    print(json.dumps({of: [address(name) for name in names] for of, names in FUNCTIONS.items()}), flush=True)
    gc.freeze()
    gc.disable()  # it would run in some calls
    for kind, tool, level, filtered in json.loads(sys.argv[1]):
        call = calls[kind]
        ops = "" if filtered == "taken" else "aten::mm" if level == "aten" else "torch.mm"
        with tempfile.TemporaryDirectory() as folder, scope(tool, level, ops, folder):
            for _ in range(WARM_UP):
                call()
            for count in (CALLS, *[1] * STEPPED):
                numbers = range(count)
                mark(signal.SIGUSR1)
                for _ in numbers:
                    call()
                mark(signal.SIGUSR1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
