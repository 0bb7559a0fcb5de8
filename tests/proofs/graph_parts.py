"""The smallest part of a wrong graph names the fault: op-tools repro --shrink over faults of the compiler sim_graph.

    ./dev prove graph_parts [--trials 51] [--seed 1] [--fault NAME]

A trial compiles the network of a random program, with a layer that the fault is about, by sim_graph with a planted fault, and
trains it for a step under OpAutoCompare, for two with other sizes where the fault is about sizes. Of each graph that is found wrong the smallest part that fails is looked for, and a script is written
of it, which runs in three fresh processes. Named: an operator of the part is of those to which the fault belongs. A fault counts where it
changes a result, a gradient, a form or the program's memory. Clean: the same programs without a fault.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from _layers_of_faults import Model, data_of
from _random_programs import N
from torch import Tensor

import op_tools
import op_tools.sim_graph as sim_graph
from op_tools._base.core import Error
from op_tools._reduce import ReducedGraph, reduce_graph
from op_tools.repro import Plan, make

MODULE = "op_tools.sim_graph"


@dataclass
class Trial:
    """The outcome of a trial."""

    matters: bool = False
    is_found: bool = False
    named: bool = False
    nodes: int = 0
    reproduces: bool = False
    text: str = ""
    seconds: float = 0.0


def run_program(seed: int, fault: str, *, planted: bool, tool: Any = None) -> list[Any]:
    """A training step; results, their forms, gradients and buffers."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    rule = sim_graph.FAULTS[fault]
    model = Model(seed, fault)
    dtype = torch.float64 if fault == "float64 narrowed" else torch.float32
    model = model.to(dtype)
    draw = torch.Generator().manual_seed(seed)
    is_dynamic = rule.only == "dynamic"
    plant = sim_graph.plant(fault) if planted else contextlib.nullcontext()
    with plant, tool or contextlib.nullcontext():
        step = torch.compile(model, backend="sim_graph", dynamic=is_dynamic)
        try:
            for rows in (N, N + 1) if is_dynamic else (N,):
                results = step(data_of(seed, draw, rows).to(dtype))
                sum(y.square().mean() for y in results if y.requires_grad).backward()
        except (RuntimeError, ValueError, AttributeError) as error:
            return [type(error)]
    seen: list[Any] = []
    for y in results:
        seen += [y.dtype, tuple(y.shape), y.stride(), y.requires_grad, y._is_view(), y.detach().clone()]
    seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return seen + [buffer.clone() for buffer in model.buffers()]


def same(run: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        return type(a) is type(b) and bool(a == b)

    return len(run) == len(other) and all(map(equal, run, other))


def names_fault(reduced: ReducedGraph, fault: str) -> bool:
    """Is an operator of the part of those to which the fault belongs?"""
    bases = {node.target.rpartition(".")[2] for node in reduced.part.nodes}
    operators = sim_graph.FAULTS[fault].operators
    return not operators or not bases.isdisjoint(operators | {f"{name}_" for name in operators})


def trial(seed: int, fault: str, *, runs: int) -> Trial:
    """A planted fault.

    Args:
        seed: of the program.
        fault: its name.
        runs: fresh processes for the script.
    """
    began = time.monotonic()
    outcome = Trial()
    right = run_program(seed, fault, planted=False)
    outcome.matters = not same(right, run_program(seed, fault, planted=True))
    with tempfile.TemporaryDirectory() as folder:
        tool = op_tools.OpAutoCompare(output_dir=folder, max_saved=1)
        run_program(seed, fault, planted=True, tool=tool)
        result = tool.result()
        outcome.is_found = result.verdict.value == "differs"
        graphs = sorted(Path(folder).glob("**/torch.compile.*/graph.json"))
        wrong = {row.op for row in result.failures}
        graph = next((path.parent for path in graphs if path.parent.name in wrong), None)
        if outcome.matters and graph is not None:
            with sim_graph.plant(fault):
                _reduce(outcome, str(graph), folder, fault, runs)
    outcome.seconds = time.monotonic() - began
    return outcome


def _reduce(outcome: Trial, graph: str, folder: str, fault: str, runs: int) -> None:
    into = Path(folder) / "parts"
    into.mkdir()
    try:
        reduced = reduce_graph(graph, str(into), imports=[MODULE], timeout=120)
        outcome.named = names_fault(reduced, fault)
        outcome.nodes = len([node for node in reduced.part.nodes if not node.sets_state])
        outcome.text = ", ".join(node.target for node in reduced.part.nodes)
        path = Path(folder) / "repro.py"
        _, _, script = make(reduced.folder, path, Plan("cpu", (MODULE,)), 300, lambda _: None, runs=runs)
        outcome.reproduces = script.reproduces
        if not script.reproduces:
            outcome.text += "; the script: " + " | ".join(script.output.splitlines()[-2:])
    except Error as error:
        outcome.text = str(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=51)
    parser.add_argument("--clean", type=int, default=17)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fault", choices=sim_graph.FAULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # The process of a crash under dynamic sizes is the program's own: tests/python/test_graph_parts.py has it.
    kinds = [options.fault] if options.fault else [name for name in sim_graph.FAULTS if name != "crash"]
    counts: Counter[str] = Counter()
    nodes: list[int] = []
    for number in range(options.trials):
        seed = options.seed + number
        fault = kinds[seed % len(kinds)]
        outcome = trial(seed, fault, runs=options.runs)
        if not outcome.matters:
            counts["changes nothing"] += 1
            counts["changes nothing, named"] += outcome.is_found
            print(f"seed {seed}: {fault}: changes nothing", flush=True)
            continue
        counts["matters"] += 1
        for name, holds in {
            "found": outcome.is_found,
            "named": outcome.named,
            "reproduces": outcome.reproduces,
        }.items():
            counts[name] += holds
        nodes += [outcome.nodes] if outcome.nodes else []
        print(
            f"seed {seed}: {fault}: found {outcome.is_found}, named {outcome.named}, reproduces {outcome.reproduces}, "
            f"{outcome.nodes} nodes ({outcome.text}), {outcome.seconds:.0f} s",
            flush=True,
        )
    for number in range(options.clean):
        seed, fault = options.seed + options.trials + number, kinds[number % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            tool = op_tools.OpAutoCompare(output_dir=folder, max_saved=0)
            run_program(seed, fault, planted=False, tool=tool)
            verdict = tool.result().verdict.value
        counts[f"clean {verdict}"] += 1
        if verdict != "agrees":
            print(f"seed {seed}: clean, {fault}: {verdict}: {tool.result().failures[:1]}", flush=True)
    print(
        f"faults that matter: {counts['matters']}, found {counts['found']}, operator named {counts['named']}, script reproduces "
        f"{counts['reproduces']}, nodes: median {statistics.median(nodes or [0]):g}, most {max(nodes, default=0)}"
    )
    print(
        f"clean: {options.clean}, agrees {counts['clean agrees']}, named {counts['clean differs']}, not judged "
        f"{counts['clean not judged']}; faults that change nothing: {counts['changes nothing']}, named {counts['changes nothing, named']}"
    )
    missed = counts["matters"] - min(counts["found"], counts["named"], counts["reproduces"])
    return 1 if missed > counts["matters"] // 20 or counts["clean differs"] or counts["changes nothing, named"] else 0


if __name__ == "__main__":
    sys.exit(main())
