"""OpAutoCompare and OpFallback against the bare work: recomputing by hand, a pass over the memory, moving by hand.

./dev bench compare [--quick] [--only synchronous step metrics fallback]
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _measure import PROMISE, ROOT, Report, Spent, Table, Turns, arguments, ms, spend, verdict
from _models import lenet, transformer
from torch.overrides import TorchFunctionMode

import op_tools
import op_tools.sim_device


def spend_all(work: Callable[[], object]) -> Spent:
    """As spend(), but the CPU time of all threads: the simulated device computes in threads of its own."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    torch.sim.synchronize()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


class RecomputeMode(TorchFunctionMode):
    """The least that a user would write: each call again on copies, and allclose."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.backward:
            return func(*args, **kwargs)

        def copy(value):
            return value.detach().clone() if isinstance(value, torch.Tensor) else value

        again = torch.utils._pytree.tree_map(copy, (args, kwargs))
        result = func(*args, **kwargs)
        with torch.no_grad():
            other = func(*again[0], **again[1])
            if isinstance(result, torch.Tensor) and isinstance(other, torch.Tensor):
                torch.allclose(result, other, equal_nan=True)
        return result


class BarePasses:
    """A judged call with only those passes over memory that it needs.

    The inputs are copied to the CPU, which calls the operator, too; then the results, and the inputs once more, come from the
    device, piece by piece, and are compared with those on the CPU.
    """

    PIECE = 1 << 19  # bytes, as the tool's

    def __init__(self) -> None:
        self.memcmp = ctypes.CDLL(None).memcmp
        self.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def are_equal(self, on_device: torch.Tensor, here: torch.Tensor) -> bool:
        on_device, here = on_device.reshape(-1), here.reshape(-1)
        buffer, equal = torch.empty(self.PIECE // here.itemsize, dtype=here.dtype), True
        for part, expected in zip(on_device.split(buffer.numel()), here.split(buffer.numel()), strict=True):
            stretch = buffer[: part.numel()].copy_(part)
            equal &= not self.memcmp(stretch.data_ptr(), expected.data_ptr(), stretch.nbytes)
        return equal

    def call(self, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
        known = {id(value): value.cpu() for value in inputs}
        result = function(*inputs)
        expected = function(*(known[id(value)] for value in inputs))
        self.are_equal(result, expected)  # attention is not: the CPU has a kernel of its own for it
        if not all(
            self.are_equal(value, known[id(value)]) for value in {id(value): value for value in inputs}.values()
        ):
            raise SystemExit("an input was changed")


class BareStep(TorchFunctionMode):
    """A judged step with only the work that it needs.

    Each call that computes gets copies of its inputs (on the CPU, or in float64), is run once more on them, forward and
    backward, and its results are read once on both sides. Nothing is reported, changed inputs are not looked for, and the
    program's own gradients are not even read.
    """

    def __init__(self, in_float64: bool) -> None:
        super().__init__()
        self.in_float64 = in_float64
        self.passes = BarePasses()

    def copy(self, value: torch.Tensor) -> torch.Tensor:
        value = value.detach()
        return value.double() if self.in_float64 and value.is_floating_point() else value.cpu()

    def read(self, result: torch.Tensor, expected: torch.Tensor) -> None:
        if result.device == expected.device:
            result.sum(), expected.sum()
        else:
            self.passes.are_equal(result, expected)

    def judge(self, results: object, expected: object, inputs: list[torch.Tensor]) -> None:
        for ours, theirs in zip(tensors_in(results), tensors_in(expected), strict=True):
            self.read(ours.detach(), theirs.detach())
            if not ours.requires_grad or not theirs.requires_grad:
                continue

            def backward(gradient: torch.Tensor, theirs: torch.Tensor = theirs) -> None:
                for gradient_of_input in torch.autograd.grad(theirs, inputs, self.copy(gradient), allow_unused=True):
                    if gradient_of_input is not None:
                        gradient_of_input.sum()

            ours.register_hook(backward)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        values, form = torch.utils._pytree.tree_flatten((args, kwargs or {}))
        inputs = tensors_in(values)
        if not inputs or func is torch.Tensor.backward or func.__name__ == "__get__":
            return func(*args, **(kwargs or {}))
        state = torch.get_rng_state()
        copies = {
            id(value): self.copy(value).requires_grad_(value.requires_grad and torch.is_grad_enabled())
            for value in inputs
        }
        result = func(*args, **(kwargs or {}))
        if not any(one.is_floating_point() for one in tensors_in(result)):
            return result
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        again, named = torch.utils._pytree.tree_unflatten([copies.get(id(value), value) for value in values], form)
        expected = func(*again, **named)
        torch.set_rng_state(after)
        self.judge(result, expected, [copy for copy in copies.values() if copy.requires_grad])
        return result


def tensors_in(values: object) -> list[torch.Tensor]:
    return [value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]


def large_operators(device: str) -> dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    a, wide = draw(1024, 1024), draw(2048, 2048)
    image, kernel = draw(8, 32, 64, 64), draw(32, 32, 3, 3)
    heads = draw(2, 8, 256, 64)
    return {
        "matmul": (torch.matmul, (a, a)),
        "conv2d": (lambda image, kernel: F.conv2d(image, kernel, padding=1), (image, kernel)),
        "scaled_dot_product_attention": (F.scaled_dot_product_attention, (heads, heads, heads)),
        "softmax": (lambda wide: torch.softmax(wide, 1), (wide,)),
        "tanh": (torch.tanh, (wide,)),
        "add": (torch.add, (wide, wide)),
    }


def synchronous(table: Table, folder: str, rounds: int) -> None:
    passes = BarePasses()
    for name, (function, inputs) in large_operators("sim").items():
        on_cpu = large_operators("cpu")[name][1]

        def twice(function=function, inputs=inputs, on_cpu=on_cpu) -> Spent:
            def both() -> None:
                function(*inputs)
                torch.sim.synchronize()
                function(*on_cpu)

            return spend_all(both)

        def judged(function=function, inputs=inputs) -> Spent:
            with op_tools.OpAutoCompare(golden=False, output_dir=folder):
                function(*inputs)  # opens the files, which happens once
                return spend_all(lambda: function(*inputs))

        def bare(function=function, inputs=inputs) -> Spent:
            return spend_all(lambda: passes.call(function, *inputs))

        turns = Turns({"twice": twice, "judged": judged, "bare": bare}, rounds, warm_up=2)
        ratio = turns.ratio("judged", "twice")
        table.row(
            f"OpAutoCompare, synchronous, {name}",
            "the operator on the simulated device, and once more on the CPU",
            "<= 1.25x (no float64)",
            f"{ratio:.2f}x",
            verdict(ratio, most=1.25),
            f"{ms(turns.median('twice'))} for both; the passes over memory alone: {turns.ratio('bare', 'twice'):.2f}x",
        )


def in_float64(make: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def steps(table: Table, folder: str, rounds: int) -> None:
    """On the simulated device the CPU's bits are the device's; on the CPU alone, float64 has the right results."""

    def transformer_on(device: str) -> Callable[[], torch.Tensor]:
        return transformer(128, 2, 8, 64, device=device)

    # The tool's own calls besides the step: the same step on the CPU, or in float64.
    cases = {
        "LeNet, simulated device": (lenet(device="sim"), lenet(), False),
        "transformer, simulated device": (transformer_on("sim"), transformer_on("cpu"), False),
        "LeNet, on the CPU: float64": (lenet(), in_float64(lenet), True),
        "transformer, on the CPU: float64": (transformer_on("cpu"), in_float64(lambda: transformer_on("cpu")), True),
    }
    for name, (step, again, wide) in cases.items():

        def plain(step: Callable[[], object] = step) -> Spent:
            return spend_all(step)

        def both(step: Callable[[], object] = step, again: Callable[[], object] = again) -> Spent:
            return spend_all(lambda: (step(), again()))

        def judged(step: Callable[[], object] = step) -> Spent:
            with op_tools.OpAutoCompare(output_dir=folder):
                step()  # opens the files, which happens once
                return spend_all(step)

        def bare(step: Callable[[], object] = step, wide: bool = wide) -> Spent:
            with BareStep(in_float64=wide):
                return spend_all(step)

        def by_hand(step: Callable[[], object] = step) -> Spent:
            with RecomputeMode():
                return spend_all(step)

        turns = Turns({"plain": plain, "judged": judged, "both": both, "bare": bare, "by hand": by_hand}, rounds)
        ratio = turns.ratio("judged", "plain")
        table.row(
            f"OpAutoCompare, training step ({name})",
            "no tool",
            "<= 3x",
            f"{ratio:.2f}x",
            verdict(ratio, most=3),
            f"{ms(turns.median('plain'))} a step; the step once more {'in float64' if wide else 'on the CPU'}, and nothing "
            f"else: {turns.ratio('both', 'plain'):.2f}x; call by call, with the copies and the reading that it takes: "
            f"{turns.ratio('bare', 'plain'):.2f}x; a Python mode that runs forward calls twice: "
            f"{turns.ratio('by hand', 'plain'):.1f}x",
        )


def metrics(table: Table, _: str, rounds: int) -> None:
    program = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "tests" / "cpp" / "bench_metrics"
    done = subprocess.run([program, "16", str(rounds)], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        dtype, case, ours, bare = line.split(",")
        ratio = float(ours) / float(bare)
        table.row(
            f"OpAutoCompare, values only, {dtype}, {case}",
            "one pass over both tensors, all cores",
            "<= 2x",
            f"{ratio:.2f}x",
            verdict(ratio, most=2),
            f"{ms(float(ours))} for 16 million elements",
        )


def fallback(table: Table, _: str, rounds: int) -> None:
    """On the simulated device, whose memory is the CPU's: moving costs a copy, and the copies are the same on both sides."""
    a = torch.randn(512, 512).to("sim")
    image, kernel = torch.randn(8, 16, 32, 32).to("sim"), torch.randn(16, 16, 3, 3).to("sim")
    wide = torch.randn(1024, 1024).to("sim")
    cases: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], str]] = {
        "matmul": (torch.matmul, (a, a), "torch.matmul"),
        "conv2d": (F.conv2d, (image, kernel), "torch.conv2d,.*conv2d"),
        "gelu": (F.gelu, (wide,), ".*gelu"),
    }
    for name, (function, values, ops) in cases.items():

        def by_hand(function=function, values=values) -> Spent:
            def work() -> None:
                function(*[value.cpu() for value in values]).to("sim")

            return spend(work)

        def tool(function=function, values=values, ops=ops) -> Spent:
            with op_tools.OpFallback(ops=ops):
                function(*values)
                return spend(lambda: function(*values))

        turns = Turns({"by hand": by_hand, "tool": tool}, rounds, warm_up=2)
        ratio = turns.ratio("tool", "by hand")
        table.row(
            f"OpFallback, {name}",
            "a hand-written move, call, move back",
            "<= 1.1x",
            f"{ratio:.2f}x",
            verdict(ratio, most=1.1),
            ms(turns.median("by hand")),
        )


PARTS = {"synchronous": synchronous, "step": steps, "metrics": metrics, "fallback": fallback}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("compare")
    table = report.table("OpAutoCompare and OpFallback", *PROMISE)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            PARTS[name](table, folder, {"fallback": 31, "synchronous": 15}.get(name, 9) // (3 if options.quick else 1))
    if set(options.only) == set(PARTS):
        report.write()


if __name__ == "__main__":
    main()
