"""The costs of as_cuda for a program: each operator, each function that takes a device, the start.

./dev bench as_cuda
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from _measure import PROMISE, Report, Spent, Turns, arguments, spend, verdict

import op_tools.sim_device  # noqa: F401  (the device)
from op_tools._as_cuda import switch

CALLS = 20_000


def loop(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def renamed(work: Callable[[], object]) -> Callable[[], Spent]:
    def measure() -> Spent:
        switch.start("sim")
        try:
            return spend(work).per(CALLS)
        finally:
            switch.stop()

    return measure


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    rounds = 5 if options.quick else 21
    report = Report("as_cuda")
    table = report.table("Programs for CUDA on another device", *PROMISE)
    x = torch.ones(4)
    calls: dict[str, tuple[Callable[[], object], float | None]] = {
        "torch.add": (lambda: torch.add(x, x), 20e-9),
        "Tensor.add": (lambda: x + x, 20e-9),
        "torch.empty(4)": (lambda: torch.empty(4), None),
        'torch.empty(4, device="cpu")': (lambda: torch.empty(4, device="cpu"), None),
        "Tensor.to(torch.float64)": (lambda: x.to(torch.float64), None),
    }
    for name, (call, most) in calls.items():
        work = loop(call)
        turns = Turns({"plain": lambda work=work: spend(work).per(CALLS), "as_cuda": renamed(work)}, rounds)
        more = turns.more("as_cuda", "plain")
        table.row(
            name,
            "without as_cuda",
            "nothing (<= +20 ns)" if most else "",
            f"{more * 1e9:+.0f} ns",
            verdict(more, most=most) if most else "",
            f"{turns.median('plain') * 1e9:.0f} ns",
        )
    began = time.perf_counter()
    switch.start("sim")
    table.row("start()", "", "", f"{(time.perf_counter() - began) * 1e3:.1f} ms", "", "")
    switch.stop()
    report.write()


if __name__ == "__main__":
    main()
