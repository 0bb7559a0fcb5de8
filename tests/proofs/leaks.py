"""OpMemoryCheck names the line that leaks, nothing in clean trainings, and the operator that writes out of bounds.

    ./dev prove leaks [--trials 50] [--clean 20] [--writes 100] [--seed 0]

Trials: a model of the zoo trains on the CPU or the simulated device, and leaks in one of seven ways, each at a single line; in half
of the trials the program frees all of it after its last step, as when a function returns. That line must be named, as the line
that allocates or that keeps the graph, and no line that does not leak. How many are told who holds the memory, by
name, is said.

Clean trainings: the zoo's models train for 20 to 40 steps, and keep values that do not grow for ever: a moving average, the last
values, values of an epoch, a graph of longer and longer inputs; nothing may be named. On the simulated device, the
table's peak must add up to the allocator's.

Writes: an operator writes an element behind its result; guard=True must name it, and no other.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import os
import queue
import random
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _program import parser, quiet
from _zoo import ZOO, Model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import op_tools
import op_tools.sim_device as sim

LEAKS = ("fault", "list", "graph", "hook cycle", "loader queue", "joined tensor", "exception")
KEEPS = ("nothing", "average", "last values", "epoch", "longer inputs")
MOST_OF_PEAK = 0.01  # difference of the table's peak from the allocator's
_LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(kind: str) -> int:
    """The line below that is marked as leaking."""
    return next(number for number, line in enumerate(_LINES, 1) if line.endswith(f"# leaks: {kind}"))


@dataclass
class Leaking:
    """Something that a training keeps for ever, a little in each step."""

    kind: str
    model: Model
    size: int
    kept: list[Any] = field(default_factory=list)
    total: Any = 0
    batches: queue.Queue[Tensor] = field(default_factory=queue.Queue)

    def step(self, number: int) -> None:
        x = self.model.draw(number, self.size)
        getattr(self, self.kind.replace(" ", "_"))(x, number)

    def fault(self, x: Tensor, number: int) -> None:
        torch.erfinv(x)  # leaks: fault

    def list(self, x: Tensor, number: int) -> None:
        self.kept.append(x * 2)  # leaks: list

    def graph(self, x: Tensor, number: int) -> None:
        self.total = self.total + self.model.loss(number)  # leaks: graph

    def hook_cycle(self, x: Tensor, number: int) -> None:
        y = x.requires_grad_().sinh()  # leaks: hook cycle
        y.grad_fn.register_hook(lambda *_: y.sum())

    def loader_queue(self, x: Tensor, number: int) -> None:
        """A thread that loads faster than the training takes."""

        def load() -> None:
            for (batch,) in DataLoader(TensorDataset(torch.ones(4, self.size)), batch_size=2):
                self.batches.put(batch.to(x.device) + 1)  # leaks: loader queue

        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        self.batches.get()

    def joined_tensor(self, x: Tensor, number: int) -> None:
        """A single block all the time, and all of it from the last step."""
        self.total = torch.cat([self.total, x]) if number else x  # leaks: joined tensor

    def exception(self, x: Tensor, number: int) -> None:
        """Its traceback keeps the variables of the function."""
        try:
            self.fail(x)
        except ValueError as error:
            self.kept.append(error)

    def fail(self, x: Tensor) -> None:
        y = x * 3  # leaks: exception
        raise ValueError(y.shape)


@dataclass
class Keeping:
    """Something that a training keeps, but not for ever."""

    kind: str
    model: Model
    kept: Any = None

    def step(self, number: int) -> None:
        if self.kind != "nothing":
            getattr(self, self.kind.replace(" ", "_"))(self.model.draw(number, 50), number)

    def average(self, x: Tensor, number: int) -> None:
        self.kept = x if self.kept is None else self.kept * 0.9 + x * 0.1

    def last_values(self, x: Tensor, number: int) -> None:
        self.kept = x if self.kept is None else torch.cat([self.kept, x])[-200:]

    def epoch(self, x: Tensor, number: int) -> None:
        self.kept = x if number % 7 == 0 else torch.cat([self.kept, x])

    def longer_inputs(self, x: Tensor, number: int) -> None:
        inputs = torch.cat([x] * (number + 1))
        self.kept = torch.sin(torch.cat([inputs.requires_grad_(), inputs]))


def train(
    name: str,
    device: str,
    steps: int,
    each: Callable[[Model], Callable[[int], None]],
    after: Callable[[], None] = lambda: None,
    **options: Any,
) -> Any:
    """Trains under OpMemoryCheck; `each` makes the extra work of each step, `after` is done after the last step."""
    torch.manual_seed(7)
    network = ZOO[name]().to(device)
    method = network.optimizer(network.parameters())
    beside = each(network)
    with op_tools.OpMemoryCheck(files=False, **options) as check:
        for step in range(steps):
            method.zero_grad()
            loss = network.loss(step)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            method.step()
            del loss
            beside(step)
            check.step()
        del beside
        after()
    return check.result()


def names_it(leak: op_tools.MemoryLeak, line: int) -> bool:
    """The line of the file that allocates or that keeps the graph."""
    return any(re.search(rf"leaks\.py:{line}\b", text) for text in (leak.line, leak.held_at))


def trial(
    kind: str, device: str, random_: random.Random, frees: bool, models: Sequence[str] = tuple(ZOO)
) -> tuple[bool, bool, str]:
    """Is the line named, and no other; is a holder named; the table, for people. `frees`: after the last step."""
    name = random_.choice(models)
    steps, size = random_.randint(20, 40), random_.choice([3, 100, 5000])
    holder: list[Leaking] = []

    def leaks(model: Model) -> Callable[[int], None]:
        holder.append(Leaking(kind, model, size))
        return holder[0].step

    with sim.fault("leak", ops="erfinv") if kind == "fault" else contextlib.nullcontext():
        result = train(name, device, steps, leaks, holder.clear if frees else lambda: None)
    sim.faults_clear()
    line = line_of(kind)
    # Memory that a graph keeps was allocated at many lines: those of the model. A traceback keeps the function's argument, too.
    others = [
        leak
        for leak in result.leaks
        if not names_it(leak, line) and kind != "graph" and not (kind == "exception" and "traceback" in leak.held_by)
    ]
    named = any(names_it(leak, line) for leak in result.leaks) and not others
    held = any("unknown" not in leak.held_by for leak in result.leaks if names_it(leak, line))
    freed = ", freed at the end" if frees else ""
    text = f"{kind} in {name} on {device}, {steps} steps, {size} elements{freed}: line {line}; {result.leaks}"
    holder.clear()
    gc.collect()
    return named, held, text


def clean(name: str, device: str, random_: random.Random) -> tuple[bool, float, str]:
    """Is nothing named; how far is the peak from the allocator's (0 on the CPU, which says none); the table."""
    steps = random_.randint(20, 40)
    gc.collect()
    before = sim.statistics()["allocated_bytes"]  # of earlier trials, which the tool does not know
    kind = random_.choice(KEEPS)
    result = train(name, device, steps, lambda model: Keeping(kind, model).step)
    (memory,) = result.devices
    assert sum(result.peak_by("module").values()) == memory.peak_bytes
    told = memory.allocator_peak_bytes - before if memory.allocator_peak_bytes else memory.peak_bytes
    return (
        result.ok,
        abs(memory.peak_bytes / told - 1),
        f"{name} on {device}, {steps} steps, keeps {kind}: {result.leaks}",
    )


def operators_of(name: str) -> list[str]:
    """The operators of a training step that return memory of the device."""
    rows = train(name, "sim", 1, lambda _: lambda _: None).rows
    skipped = {"aten::_to_copy", "aten::empty.memory_format", "aten::zeros_like", "aten::ones_like"}
    return sorted({row.op for row in rows if row.op.startswith("aten::") and row.op not in skipped})


class Writers(op_tools.Hook):
    """The operators of the program during which the fault wrote: the planted operator, or an operator whose kernel calls it."""

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.names: set[str] = set()

    def before(self, call: op_tools.Call) -> int:
        return self.fault.hits

    def after(self, call: op_tools.Call, state: int) -> None:
        if self.fault.hits > state:
            self.names.add(call.name)


def out_of_bounds(name: str, operators: list[str], random_: random.Random) -> tuple[bool, str] | None:
    """Is the operator named that wrote, and no other; None where the fault changed nothing."""
    op = random_.choice(operators)
    with sim.fault("out_of_bounds", ops=re.escape(op), call=random_.randint(0, 3)) as fault:
        writers = Writers(fault)
        with op_tools.HookScope(writers, level="aten"):
            result = train(name, "sim", 2, lambda _: lambda _: None, guard=True)
    if fault.hits == 0:
        return None
    named = (
        len(result.overwrites) == 1 and result.overwrites[0].bytes > 0 and {result.overwrites[0].op} == writers.names
    )
    return named, f"{op} in {name}, called by {writers.names}: {result.overwrites}"


def run_trials(count: int, seed: int) -> int:
    """Runs the trials; the number that failed."""
    failed, held = 0, 0
    of_kind: collections.Counter[str] = collections.Counter()
    for number, kind in zip(range(count), itertools.cycle(LEAKS), strict=False):
        random_ = random.Random(seed + number)
        device = "sim" if kind == "fault" else random_.choice(["cpu", "sim"])
        named, has_holder, text = trial(kind, device, random_, frees=number // len(LEAKS) % 2 == 1)
        of_kind[kind] += named
        held += has_holder
        if not named:
            failed += 1
            print(f"NOT NAMED (seed {seed + number}): {text}", flush=True)
    print(f"leaks: {count - failed} of {count} lines named, {dict(of_kind)}; holder named in {held}", flush=True)
    return failed


def run_clean(count: int, seed: int) -> int:
    """Runs the clean trainings; the number in which something was named, or whose peak does not add up."""
    failed, worst = 0, 0.0
    for number, (name, device) in zip(
        range(count), itertools.cycle(itertools.product(ZOO, ["sim", "cpu"])), strict=False
    ):
        nothing, difference, text = clean(name, device, random.Random(seed + number))
        worst = max(worst, difference)
        if not nothing or difference > MOST_OF_PEAK:
            failed += 1
            print(f"WRONG: peak differs by {difference:.2%}; {text}", flush=True)
    print(
        f"clean: nothing named in {count - failed} of {count}; peaks within {worst:.3%} of the allocator's", flush=True
    )
    return failed


def run_writes(count: int, seed: int) -> int:
    """Runs the writes out of bounds; the number that were not named."""
    failed, done, drawn = 0, 0, 0
    operators = {name: operators_of(name) for name in ZOO}
    while done < count:
        random_ = random.Random(seed + drawn)
        drawn += 1
        name = random_.choice([*ZOO])
        outcome = out_of_bounds(name, operators[name], random_)
        if outcome is None:
            continue
        done += 1
        if not outcome[0]:
            failed += 1
            print(f"NOT NAMED (seed {seed + drawn - 1}): {outcome[1]}", flush=True)
    print(f"writes: {done - failed} of {done} named ({drawn - done} draws changed nothing)", flush=True)
    return failed


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--trials", type=int, default=50)
    options.add_argument("--clean", type=int, default=20)
    options.add_argument("--writes", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    parsed = options.parse_args()
    quiet("off")
    failed = run_trials(parsed.trials, parsed.seed)
    failed += run_clean(parsed.clean, parsed.seed)
    failed += run_writes(parsed.writes, parsed.seed)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of loaders may be there
