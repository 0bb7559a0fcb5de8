"""OpFallback in programs whose backward passes compute again, nest, or run beside each other: the same numbers as without.

Each case is a small program on the simulated device, made by a seed: checkpoints of both kinds, nested in each other,
with dropout; functions whose backward starts a backward pass of its own; hooks and saved-tensor hooks that compute;
second derivatives; parts on side streams; several threads that do it all at once. It runs without a tool and with it, at
both levels, with all operators on the CPU or some of them; output and gradients must be equal. Every failure names its seed.

    fallback_stress.py [--cases 400] [--first 0] [--repeat 3]
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import op_tools.sim_device  # isort: skip  (before the first backward of the process)

import torch
from _program import parser, quiet
from _workers import Progress
from torch.utils.checkpoint import checkpoint

import op_tools

Part = Callable[[torch.Tensor], torch.Tensor]
SIZE = 12
FILTERS = [None, ".*linear|.*addmm|.*mm", ".*dropout.*|.*mul.*", ".*tanh.*|.*add.*", ".*sum.*|.*square|.*pow.*"]


class OwnBackward(torch.autograd.Function):
    """A part whose backward runs the part again and starts a backward pass inside the running pass."""

    @staticmethod
    def forward(ctx: Any, part: Part, x: torch.Tensor) -> torch.Tensor:
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (ctx.part(again) * gradient).sum().backward()
        return None, again.grad


class Noise:
    """Random numbers of its own, the same each time: threads can draw them side by side."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator("sim").manual_seed(self.seed)
        return x * torch.empty_like(x).normal_(generator=generator)


class Case:
    """A program: `part` maps a square matrix to a square matrix."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.threads = 4 if self.chance.random() < 0.25 else 1
        self.second = self.chance.random() < 0.2  # derivatives; checkpoints that are re-entrant know none
        torch.manual_seed(seed)
        self.modules = torch.nn.ModuleList()
        self.part = self.sum_of([self.branch(depth=2) for _ in range(self.chance.randint(2, 3))])
        self.modules.to("sim").requires_grad_(self.threads == 1)  # threads would add up their gradients
        self.x = torch.randn(SIZE, SIZE).to("sim")

    def sum_of(self, parts: list[Part]) -> Part:
        return lambda x: torch.stack([part(x) for part in parts]).sum(0)

    def layer(self) -> Part:
        linear = torch.nn.Linear(SIZE, SIZE)
        # Threads share the device's generator: no two runs would give the same numbers.
        random_part = torch.nn.Dropout(0.4) if self.threads == 1 else Noise(self.chance.randrange(1000))
        if isinstance(random_part, torch.nn.Module):
            self.modules.append(random_part)
        self.modules.append(linear)
        return lambda x: random_part(linear(x)).tanh()

    def branch(self, depth: int) -> Part:
        inner = self.layer() if depth == 0 else self.branch(depth - 1)
        kinds = ["plain", "saved", "stream", "checkpoint", "checkpoint", "chain"]
        # The result of a hook on a gradient is no derivative of anything: the second would mean nothing.
        kinds += [] if self.second else ["re-entrant", "re-entrant", "own backward", "hooks"]
        kind = self.chance.choice(kinds)
        state = self.threads == 1  # the generators of the process are restored by a single thread at a time
        if kind in ("checkpoint", "re-entrant"):
            return lambda x: checkpoint(inner, x, use_reentrant=kind == "re-entrant", preserve_rng_state=state)
        if kind == "own backward":
            steady = self.steady(inner) if state else inner
            return lambda x: OwnBackward.apply(steady, x)
        if kind == "hooks":
            return lambda x: self.hooked(inner(x))
        if kind == "saved":
            return lambda x: self.with_saved(inner, x)
        if kind == "stream":
            return lambda x: self.on_side_stream(inner, x)
        if kind == "chain":
            other = self.layer()
            return lambda x: other(inner(x))
        return inner

    @staticmethod
    def steady(part: Part) -> Part:
        """The same random numbers each time."""

        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.random.fork_rng(devices=[0], device_type="sim"):
                torch.manual_seed(11)
                return part(x)

        return run

    @staticmethod
    def hooked(y: torch.Tensor) -> torch.Tensor:
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2 + torch.ones_like(gradient) * 0.125)
        return y

    @staticmethod
    def with_saved(part: Part, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t + 0):
            return part(x)

    @staticmethod
    def on_side_stream(part: Part, x: torch.Tensor) -> torch.Tensor:
        stream, outer = torch.Stream(device="sim"), torch.accelerator.current_stream()
        stream.wait_stream(outer)
        try:
            with stream:
                return part(x)
        finally:  # a checkpoint that computes again leaves by an exception as soon as it has its tensors
            outer.wait_stream(stream)

    def once(self) -> list[torch.Tensor]:
        x = self.x.clone().requires_grad_()
        weights = [weight for weight in self.modules.parameters() if weight.requires_grad]
        y = self.part(x)
        if self.second:
            (first,) = torch.autograd.grad(y.square().mean(), x, create_graph=True)
            gradients = torch.autograd.grad(first.square().sum(), [x, *weights], allow_unused=True)
        else:
            self.modules.zero_grad(set_to_none=True)
            y.square().mean().backward()
            gradients = (x.grad, *(weight.grad for weight in weights))
        return [y.detach().cpu(), *(gradient.detach().cpu() for gradient in gradients if gradient is not None)]

    def run(self, tool: Callable[[], Any]) -> list[list[torch.Tensor]]:
        """The results of each thread."""
        torch.manual_seed(5)
        results: list[list[torch.Tensor]] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with tool():
                    results.append(self.once())
            except BaseException as error:
                errors.append(error)

        if self.threads == 1:
            work()
        else:
            threads = [threading.Thread(target=work) for _ in range(self.threads)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return results


def differs(tensors: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(tensors) != len(other) or any(
        not torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(tensors, other, strict=True)
    )


def check(seed: int, repeat: int) -> tuple[int, list[str]]:
    """Runs, and their faults."""
    case = Case(seed)
    expected = case.run(contextlib.nullcontext)[0]
    findings = []
    runs = 0
    for level in ("torch", "aten"):
        for ops in {None, case.chance.choice(FILTERS)}:
            for _ in range(repeat):
                runs += 1
                try:
                    got = case.run(lambda level=level, ops=ops: op_tools.OpFallback(ops=ops, level=level))
                except Exception as error:
                    findings.append(f"seed {seed}, {level}, ops={ops}: {type(error).__name__}: {str(error)[:200]}")
                    break
                if any(differs(one, expected) for one in got):
                    findings.append(f"seed {seed}, {level}, ops={ops}: other numbers")
                    break
    return runs, findings


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--cases", type=int, default=400, metavar="N")
    command_line.add_argument("--first", type=int, default=0, metavar="SEED")
    command_line.add_argument("--repeat", type=int, default=3, metavar="N", help="of each run: threads race")
    options = command_line.parse_args()
    quiet()
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # parts on side streams
    runs = 0
    findings: list[str] = []
    progress = Progress(options.cases, "cases")
    for seed in range(options.first, options.first + options.cases):
        count, bad = check(seed, options.repeat)
        runs += count
        findings += bad
        progress.step(f"{len(findings)} findings")
    print(f"{options.cases} programs, {runs} runs with OpFallback: {len(findings)} gave other results than without")
    for line in findings:
        print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
