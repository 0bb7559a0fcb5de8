"""OpOverflowCheck names the operator that made a NaN or an infinity, and no other.

    ./dev prove overflow_trials [--trials 100] [--steps 1000] [--levels aten torch] [--only trials|clean|ranks]

Trials: LeNet, an LSTM and a transformer train for a step on the simulated device, which plants a NaN or an infinity in a
single call of an operator, both drawn by the trial's seed. The call that was hit must be a producer, and no other call may be
one. A trial whose fault changed nothing (a result of whole numbers, or of none) is drawn again; at
level torch also a trial in which all results of the call that was hit, forward and backward, is finite, by torch's own isfinite: inside
of it the value met a sigmoid, or a loss that did not pick it. Their number is said. So is that of sums of gradients which
autograd computes between the calls of the torch level: no call made the value, and the check must say that it came in and is not judged.

Clean steps: the same models train for a thousand steps in all, in float32 and under autocast with a GradScaler whose
first scale is too large, so that it meets real overflow; nothing may be blamed but that.

Ranks: two processes on gloo train with DistributedDataParallel and with fully_shard; in one of them a logarithm of -1 is
added to a layer's result, or to the gradient that reaches it. That rank must have this producer alone, the other rank none;
every third trial is clean, and must have none.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _workers import Progress
from models import MODELS, OPTIMIZERS, digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._pytree import tree_leaves

import op_tools
import op_tools.sim_device as sim
from op_tools._base.verdict import Verdict

METHOD = {"lenet": "sgd", "lstm": "adam", "transformer": "adam"}
# Not looked at, so nothing can be planted there that the check should see: memory as it was found, and copies, by which
# values come to be looked at.
PASSED_OVER = ("aten::_copy_from", "aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense", "aten::empty")


class Training:
    """A model on the device and its steps."""

    def __init__(self, model: str, precision: str = "float32", scale: float = 2.0**16) -> None:
        torch.manual_seed(7)
        self.images, self.labels = (tensor.to("sim") for tensor in digits())
        self.network = MODELS[model]().to("sim")
        self.method = OPTIMIZERS[METHOD[model]](self.network.parameters())
        self.autocast = precision == "autocast"
        self.scaler = torch.amp.GradScaler("sim", init_scale=scale, enabled=self.autocast)
        self.number = 0

    def step(self) -> None:
        """A training step."""
        rows = slice(self.number * 16 % 1600, self.number * 16 % 1600 + 16)
        self.number += 1
        self.method.zero_grad()
        with torch.autocast("sim", torch.float16, enabled=self.autocast):
            loss = F.cross_entropy(self.network(self.images[rows]).float(), self.labels[rows])
        self.scaler.scale(loss).backward()
        self.scaler.step(self.method)
        self.scaler.update()


class Calls(op_tools.Hook):
    """The operators of a step and how often each is called."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()

    def before(self, call: op_tools.Call) -> None:
        self.count[call.name] += 1


class CallsHit(op_tools.Hook):
    """The calls that the fault hit."""

    gradients = True

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.ids: set[int] = set()
        self.visible = False  # something that a call that was hit gave is not finite
        self.last = 0

    def before(self, call: op_tools.Call) -> int:
        return self.fault.hits

    def after(self, call: op_tools.Call, state: int) -> None:
        # Backward of a torch-level call is told after the engine has run it.
        before = self.last if call.phase == "backward" else state
        self.last = self.fault.hits
        if self.fault.hits > before:
            self.ids.add(call.id)
        if call.id in self.ids and not self.visible:
            tensors = [leaf for leaf in tree_leaves((call.result, call.args)) if isinstance(leaf, torch.Tensor)]
            self.visible = any(not torch.isfinite(tensor).all() for tensor in tensors)


def places() -> list[tuple[str, str, int]]:
    """(model, operator, calls in a step) of all that a fault can be planted in."""
    places = []
    for model in MODELS:
        training = Training(model)
        calls = Calls()
        with op_tools.HookScope(calls, level="aten"):
            training.step()
        for name, count in sorted(calls.count.items()):
            if name.startswith(PASSED_OVER):
                continue
            try:
                sim.fault("nan", ops=name)
            except op_tools.Error:
                continue  # it never reaches the device under this name
            places.append((model, name, count))
    return places


def trial(seed: int, level: str, where: list[tuple[str, str, int]]) -> tuple[str, str]:
    """A planted value: (the value and its place, trouble); trouble is "nothing" or "hidden" when it says nothing."""
    draw = random.Random(seed)
    model, operator, count = draw.choice(where)
    kind, call = draw.choice(["nan", "inf"]), draw.randrange(count)
    text = f"{kind} in call {call} of {operator}, {model}, level {level}, seed {seed}"
    training = Training(model)
    fault = sim.fault(kind, ops=operator, call=call, seed=seed)
    hit = CallsHit(fault)
    with tempfile.TemporaryDirectory() as folder, fault:
        check = op_tools.OpOverflowCheck(level=level, output_dir=folder)
        with op_tools.HookScope(hit, level=level), check:
            training.step()
        rows = check.result().rows
        saved = [row for row in rows if row.saved]
        for row in saved:
            op_tools.load_call(row.saved)
    sim.faults_clear()
    if fault.hits == 0:
        return text, "nothing"
    producers = [row for row in rows if row.kind == "producer"]
    if not hit.ids:
        return text, "nothing" if level == "torch" else "a hit outside of all calls"
    told = [row.id for row in producers]
    if level == "torch" and not hit.visible and not producers:
        return text, "hidden"
    if level == "torch" and not producers and check.result().verdict is Verdict.NOT_JUDGED:
        return text, "came in"
    if not hit.ids & set(told):
        return text, f"not named; producers: {[(row.op, row.phase) for row in producers]}"
    if blamed := [f"{row.op} {row.phase}" for row in producers if row.id not in hit.ids]:
        return text, f"also named: {', '.join(blamed)}"
    return text, ""


def clean(model: str, precision: str, level: str, steps: int) -> tuple[int, int, int, list[str]]:
    """(calls, producers, expected producers, failures) of steps without a fault."""
    # The first scales are too large for float16: real overflow, which the scaler sees to.
    training = Training(model, precision, scale=2.0**24)
    scaled = precision == "autocast"
    with tempfile.TemporaryDirectory() as folder:
        check = op_tools.OpOverflowCheck(
            level=level, output_dir=folder, allow_in_backward_with_scaler=scaled, max_saved=0
        )
        skipped_scale = training.scaler.get_scale()
        wrong: list[str] = []
        settled = 0
        with check:
            for _ in range(steps):
                training.step()
                check.step()
                check.flush()
                result = check.result()
                scale = training.scaler.get_scale()
                overflowed, skipped_scale = scale < skipped_scale, scale
                # A step that the scaler skipped has overflow of its own making: its rows are real.
                if result.producers > settled and not overflowed:
                    wrong += [f"{row.op} {row.phase} step {row.step}" for row in result.rows if row.kind == "producer"][
                        -3:
                    ]
                settled = result.producers
        result = check.result()
    return result.calls, result.producers, result.expected, wrong


def on_rank(kind: str, level: str, trials: int) -> int:
    """The work of each of the two processes; prints the failures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, wrong = dist.get_rank(), 0
    mesh = init_device_mesh("cpu", (2,))
    for seed in range(trials):
        draw = random.Random(f"{kind} {seed}")
        layer, sick, forward = draw.randrange(5), draw.randrange(2), draw.random() < 0.5
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 16)]
        network = torch.nn.Sequential(*layers, torch.nn.Linear(16, 4))
        model: torch.nn.Module = network
        if kind == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(network)
        else:
            fully_shard(network[0], mesh=mesh)
            fully_shard(network, mesh=mesh)
        method = torch.optim.AdamW(model.parameters(), lr=0.01)

        def spoil(value: torch.Tensor) -> torch.Tensor:
            return value + torch.log(torch.full((value.shape[-1],), -1.0))

        def spoil_layer(_: object, __: object, output: torch.Tensor, forward: bool = forward) -> torch.Tensor:
            if forward:
                return spoil(output)
            if output.requires_grad:
                output.register_hook(spoil)
            return output

        is_planted = rank == sick and seed % 3 != 2
        with tempfile.TemporaryDirectory() as folder:
            check = op_tools.OpOverflowCheck(level=level, output_dir=folder, max_saved=0)
            with check:
                for step in range(2):
                    planted = network[layer].register_forward_hook(spoil_layer) if is_planted and step == 0 else None
                    loss = F.cross_entropy(model(torch.randn(6, 8)), torch.randint(4, (6,)))
                    loss.backward()
                    method.step()
                    method.zero_grad()
                    if planted is not None:
                        planted.remove()
            told = [row.op for row in check.result().rows if row.kind == "producer"]
        if len(told) != is_planted or not all("log" in op for op in told):
            wrong += 1
            where = f"{'forward' if forward else 'backward'} of layer {layer}" if is_planted else "nothing planted here"
            print(f"    {kind} {level} seed {seed} rank {rank}, {where}: producers {told}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return wrong


def ranks(kind: str, level: str, trials: int) -> int:
    """Status of both processes."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, "--trials", str(trials), "--on-rank", kind, "--levels", level],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write("".join(line + "\n" for line in done.stdout.splitlines() if line.startswith("    ")))
    print(
        f"{kind:<9} {level:<6} {trials} trials on two ranks: {'right' if done.returncode == 0 else 'WRONG'}", flush=True
    )
    return int(done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="for each level (100)")
    parser.add_argument(
        "--steps", type=int, default=1000, help="clean steps of all models together, for each precision"
    )
    parser.add_argument("--levels", nargs="*", default=["aten", "torch"])
    parser.add_argument("--only", choices=["trials", "clean", "ranks"])
    parser.add_argument("--on-rank", choices=["ddp", "fsdp"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_rank:
        return 1 if on_rank(options.on_rank, options.levels[0], options.trials) else 0
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    wrong = 0
    if options.only in (None, "trials"):
        where = places()
        operators = {operator for _, operator, _ in where}
        print(f"{len(operators)} operators in {len(where)} places", flush=True)
        for level in options.levels:
            progress, missed = Progress(options.trials, f"trials {level}"), []
            ended: collections.Counter[str] = collections.Counter()
            for seed in itertools.count():
                text, trouble = trial(seed, level, where)
                ended[trouble] += 1
                if trouble in ("hidden", "nothing"):
                    continue
                if trouble not in ("", "came in"):
                    missed.append(f"    {text}: {trouble}")
                progress.step()
                if progress.done == options.trials:
                    break
            print(
                f"{level:<6} {ended['']} of {options.trials} producers named, {ended['came in']} sums of autograd's said to "
                f"have come in; {ended['hidden']} drawn again as hidden",
                flush=True,
            )
            print("\n".join(missed), end="\n" if missed else "", flush=True)
            wrong += len(missed)
    if options.only in (None, "ranks"):
        wrong += sum(ranks(*one, options.trials) for one in itertools.product(("ddp", "fsdp"), options.levels))
    if options.only in (None, "clean"):
        each = -(-options.steps // len(MODELS))
        for precision, level in itertools.product(("float32", "autocast"), options.levels):
            start, calls, producers, expected, false = time.monotonic(), 0, 0, 0, []
            for model in MODELS:
                counts = clean(model, precision, level, each)
                calls, producers, expected = calls + counts[0], producers + counts[1], expected + counts[2]
                false += [f"    {model}: {text}" for text in counts[3]]
            print(
                f"{precision:<9} {level:<6} {each * len(MODELS)} clean steps, {calls} calls, {len(false)} false producers; "
                f"{producers} in steps that the scaler skipped, {expected} expected, {time.monotonic() - start:.0f} s",
                flush=True,
            )
            print("\n".join(false), end="\n" if false else "", flush=True)
            wrong += len(false)
    print("every producer was named, and nothing else" if not wrong else f"{wrong} WRONG")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
