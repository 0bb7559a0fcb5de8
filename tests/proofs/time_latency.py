"""OpTimeMeasure on the simulated device with planted latencies: does it report the planted times?

    ./dev prove time_latency

For latencies from 50 us to 50 ms, in each mode, forward and backward. A planted latency is the least time of an operator
on the queue: its own time can lie in it or come on top. So in sync and event mode the reported time is to
lie between the planted time and that plus its own, within 5 %; in host mode far below it; and in sync mode the sum is to be
the step's wall time. Other programs on the machine only make calls slower, so the fastest call of many is judged, and the
step whose sum and wall time are closest. Exit status 1 when something is off.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["OP_TOOLS_LOG_LEVEL"] = "error"

import torch

import op_tools
import op_tools.sim_device

OPS = "torch.matmul, torch.Tensor.relu"
MATMULS = {"forward": 1, "backward": 2}  # of the matmul call: mm operators that run
TOLERANCE = 0.05


def steps(mode: str, planted_us: float, count: int) -> tuple[op_tools.TimeResult, float, float]:
    """The result, and the sum and the wall time of the step in which both were closest, in milliseconds."""
    x = torch.randn(16, 16, device="sim", requires_grad=True)
    gradient = torch.ones(16, 16, device="sim")
    with op_tools.sim_device.latency({"mm": planted_us}):
        pairs = []
        with op_tools.OpTimeMeasure(mode=mode, ops=OPS, lines=False, files=False) as tool:
            before = 0.0
            for _ in range(count):
                start = time.perf_counter()
                torch.matmul(x, x).relu().backward(gradient)
                torch.accelerator.synchronize()
                wall = 1000 * (time.perf_counter() - start)
                total = sum(row.self_ms for row in tool.result().rows)
                pairs.append((total - before, wall))
                before = total
                tool.step()
    return tool.result(), *min(pairs, key=lambda pair: abs(pair[1] - pair[0]) / pair[1])


def fastest(result: op_tools.TimeResult) -> dict[str, float]:
    return {row.phase: row.min_ms for row in result.rows if row.op == "torch.matmul"}


def main() -> int:
    failures = 0
    x = torch.randn(4, 4, device="sim", requires_grad=True)
    torch.matmul(x, x).relu().sum().backward()
    print(f"{'mode':6} {'planted':>10} {'phase':9} {'at least ms':>12} {'at most ms':>12} {'reported ms':>12}")
    for mode in ("sync", "event", "host"):
        own = fastest(steps(mode, 0, 200)[0])
        for planted_us in (50, 100, 500, 1_000, 5_000, 10_000, 50_000):
            count = 200 if planted_us <= 1_000 else 30 if planted_us <= 10_000 else 6
            result, total, wall = steps(mode, planted_us, count)
            for phase, reported in fastest(result).items():
                planted = MATMULS[phase] * planted_us / 1000
                least, most = (0.0, planted / 2) if mode == "host" else (planted, planted + own[phase])
                wrong = not least * (1 - TOLERANCE) <= reported <= most * (1 + TOLERANCE)
                if mode == "host" and planted_us < 500:
                    wrong = False  # issuing takes that long by itself
                failures += wrong
                print(
                    f"{mode:6} {planted_us:>7} us {phase:9} {least:12.4f} {most:12.4f} {reported:12.4f}"
                    f"{'   WRONG' if wrong else ''}"
                )
            if mode == "sync" and planted_us >= 500:
                wrong = abs(total / wall - 1) > TOLERANCE
                failures += wrong
                print(f"{'':6} {'':10} sum {total:.3f} ms of a step of {wall:.3f} ms{'   WRONG' if wrong else ''}")
    print("all within 5 %" if not failures else f"{failures} off")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
