"""Wrong compilers are found, right ones are not: OpAutoCompare over random models that torch.compile compiled.

    ./dev prove graph_faults [--trials 200] [--clean 100] [--seed 1] [--fault NAME]

A trial compiles the network of a random program by a compiler with one planted fault, and trains it for three steps. Faults: at Dynamo's
boundary, also such as show in a later call, in some calls, or with other sizes only; below AOT autograd, forward or backward; those of
the compiler sim_graph, with a layer that the fault is about. Clean: inductor, sim_graph and aot_eager, in float32, bfloat16, autocast,
and with sizes that change. A fault counts where it changes a result, a gradient or the program's memory; a program that it leaves as it
is counts as clean. The program under the tool must compute what it computes without, bit for bit.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from _layers_of_faults import Model, data_of
from _random_programs import Edit, N, Network, program
from torch import Tensor, fx

import op_tools
import op_tools.sim_graph as sim_graph

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]


# --- Faults at Dynamo's boundary: the graph's results -------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """Right forward, a gradient that is off by a share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


_OTHER_STRIDES = [0]
"""Results of graphs whose strides a fault changed: they matter where no value differs, too."""


@dataclass
class Calls:
    """What a compiled graph knows of its calls."""

    number: int = -1
    """Of this call, from 0."""
    rows: int = 0
    """The first size of the first tensor in the first call, and in this."""
    rows_now: int = 0
    results: Tensor | None = None
    """Of an earlier call."""


Change = Callable[[Tensor, random.Random, Calls], Tensor]


def _results(change: Change, *, on_inputs: bool = False) -> Callable[[random.Random], Backend]:
    """A result is changed.

    Args:
        change: gives another result; draws the same in each call.
        on_inputs: an input is changed instead, in place.
    """

    def of(draw: random.Random) -> Backend:
        seed = draw.random()

        def backend(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            calls = Calls()

            def run(*args: Any) -> Any:
                again = random.Random(seed)
                results = list(graph(*args))
                _note_call(calls, args)
                values = args if on_inputs else results
                floats = [i for i, y in enumerate(values) if isinstance(y, Tensor) and y.is_floating_point()]
                at = again.choice(floats)
                right = values[at]
                changed = change(right, again, calls)
                if not on_inputs:
                    results[at] = changed
                    _OTHER_STRIDES[0] += changed.stride() != right.stride()
                return tuple(results)

            return run

        return backend

    return of


def _note_call(calls: Calls, args: tuple[Any, ...]) -> None:
    calls.number += 1
    sizes = [arg for arg in args if isinstance(arg, int)]  # of dynamic shapes, which only then are inputs
    calls.rows_now = sizes[0] if sizes else N
    calls.rows = calls.rows or calls.rows_now


def _later(y: Tensor, _: random.Random, calls: Calls) -> Tensor:
    return y * 1.02 if calls.number else y


def _earlier_result(y: Tensor, _: random.Random, calls: Calls) -> Tensor:
    """That of the first call, from a cache."""
    if calls.results is None:
        calls.results = y.detach().clone()
    return y * 0 + calls.results if calls.results.shape == y.shape else y


def _now_and_then(y: Tensor, draw: random.Random, calls: Calls) -> Tensor:
    chance = random.Random(f"{draw.random()} {calls.number}").random()
    return y * 0.98 if chance < 0.5 else y


def _later_gradient(y: Tensor, _: random.Random, calls: Calls) -> Tensor:
    scaled: Tensor = Scaled.apply(y, 1.05)
    return scaled if calls.number else y


def _stale_size(y: Tensor, _: random.Random, calls: Calls) -> Tensor:
    return y * (calls.rows / calls.rows_now)


def _changed_input(x: Tensor, draw: random.Random, _: Calls) -> Tensor:
    x.data.view(-1)[draw.randrange(x.numel())] += 0.5
    return x


def _element(y: Tensor, draw: random.Random, _: Calls) -> Tensor:
    flat = torch.zeros(y.numel(), dtype=y.dtype)
    flat[draw.randrange(y.numel())] = float(y.detach().float().abs().mean()) * draw.choice([0.05, 0.5])
    return y + flat.view(y.shape)


# --- Faults in the aten graphs, below AOT autograd -------------------------------------------------------------------------

_NEAR = {
    torch.ops.aten.relu.default: torch.ops.aten.relu6.default,
    torch.ops.aten.sigmoid.default: torch.ops.aten.hardsigmoid.default,
    torch.ops.aten.gelu.default: torch.ops.aten.silu.default,
    torch.ops.aten.silu.default: torch.ops.aten.gelu.default,
    torch.ops.aten.tanh.default: torch.ops.aten.erf.default,
    torch.ops.aten.exp.default: torch.ops.aten.expm1.default,
    torch.ops.aten.add.Tensor: torch.ops.aten.sub.Tensor,
    torch.ops.aten.mul.Tensor: torch.ops.aten.add.Tensor,
    torch.ops.aten.rsqrt.default: torch.ops.aten.reciprocal.default,
}


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _gives_floats(node: fx.Node) -> bool:
    """Also a node with several results, as a norm is."""
    values = node.meta.get("val")
    return any(
        isinstance(y, Tensor) and y.is_floating_point() for y in (values if isinstance(values, tuple) else [values])
    )


def _wrong_operator(graph: fx.Graph, draw: random.Random) -> None:
    near = [node for node in graph.nodes if node.target in _NEAR and _is_float(node)]
    if near:
        node = draw.choice(near)
        node.target = _NEAR[node.target]


def _wrong_constant(graph: fx.Graph, draw: random.Random) -> None:
    places = [
        (node, i)
        for node in graph.nodes
        if node.op == "call_function" and _gives_floats(node)
        for i, argument in enumerate(node.args)
        if isinstance(argument, float)
    ]
    if places:
        node, at = draw.choice(places)
        args = list(node.args)
        args[at] = args[at] * 1.1 + 0.01
        node.args = tuple(args)


def _behind(graph: fx.Graph, draw: random.Random, operator: Any, *args: Any, **keywords: Any) -> None:
    """Puts an operator behind a node with a float result."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and _is_float(node)]
    if not nodes:
        return
    node = draw.choice(nodes)
    with graph.inserting_after(node):
        new = graph.call_function(operator, (node, *args), keywords)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def _low_precision(graph: fx.Graph, draw: random.Random) -> None:
    _behind(graph, draw, lambda x: x.to(torch.bfloat16).to(x.dtype))


def _zeroed_row(graph: fx.Graph, draw: random.Random) -> None:
    """A buffer that is used again too early: a part of a result is another's."""
    _behind(graph, draw, lambda x: x.index_fill(0, torch.tensor([0]), 0.0) if x.dim() else x * 0)


def _in_graphs(
    change: Callable[[fx.Graph, random.Random], None], *, backward: bool | None = None
) -> Callable[[random.Random], Backend]:
    """A graph below AOT autograd is changed: forward or backward, drawn where it is not said."""

    def of(draw: random.Random) -> Backend:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        seed, in_backward = draw.random(), draw.random() < 0.4 if backward is None else backward

        def spoil(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            change(graph.graph, random.Random(seed))
            graph.recompile()
            return make_boxed_func(graph.forward)

        def keep(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            return make_boxed_func(graph.forward)

        spoiled: Backend = aot_autograd(
            fw_compiler=keep if in_backward else spoil, bw_compiler=spoil if in_backward else keep
        )
        return spoiled

    return of


_AT_DYNAMO: dict[str, Callable[[random.Random], Backend]] = {
    "scaled result": _results(lambda y, draw, _: y * draw.choice([1.001, 0.97])),
    "wrong element": _results(_element),
    "no gradient function": _results(lambda y, *_: y.detach()),
    "scaled gradient": _results(lambda y, draw, _: Scaled.apply(y, draw.choice([0.5, 1.01, -1.0]))),
    "other dtype": _results(lambda y, *_: y.double()),
    "other strides": _results(lambda y, *_: y.transpose(0, -1).contiguous().transpose(0, -1)),
    "16-bit result": _results(lambda y, *_: y.to(torch.bfloat16).to(y.dtype)),
    "later call": _results(_later),
    "earlier result": _results(_earlier_result),
    "some calls": _results(_now_and_then),
    "later gradient": _results(_later_gradient),
    "stale size": _results(_stale_size),
    "changed input": _results(_changed_input, on_inputs=True),
}
_BELOW_AOT: dict[str, Callable[[random.Random], Backend]] = {
    "wrong operator": _in_graphs(_wrong_operator),
    "wrong constant": _in_graphs(_wrong_constant),
    "16-bit intermediate": _in_graphs(_low_precision),
    "overwritten rows": _in_graphs(_zeroed_row),
    "wrong operator in backward": _in_graphs(_wrong_operator, backward=True),
    "16-bit backward": _in_graphs(_low_precision, backward=True),
}
_BY_SIM_GRAPH = [name for name in sim_graph.FAULTS if name != "crash"]  # a crash ends the process
FAULTS = [*_AT_DYNAMO, *_BELOW_AOT, *(f"sim_graph: {name}" for name in _BY_SIM_GRAPH)]


@dataclass(frozen=True)
class Way:
    """How a program is compiled and trained."""

    backend: Any
    precision: str = "float32"
    dynamic: bool = False
    fault: str = ""
    """Of sim_graph."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.precision == "autocast" else getattr(torch, self.precision)


def way_of(name: str, seed: int) -> Way:
    """The compiler with a fault."""
    draw = random.Random(f"fault {seed}")
    of = (_AT_DYNAMO | _BELOW_AOT).get(name)
    if of is not None:
        return Way(of(draw), dynamic=name == "stale size")
    fault = name.removeprefix("sim_graph: ")
    return Way(
        "sim_graph",
        "float64" if fault == "float64 narrowed" else "float32",
        sim_graph.FAULTS[fault].only == "dynamic",
        fault,
    )


def _train(seed: int, way: Way, *, tool: Any = None) -> list[Any]:
    """Three steps; results, their forms, gradients and the program's memory."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    network = Model(seed, way.fault) if way.fault else Network(program(seed), Edit())
    network = network.to(way.dtype)
    step = torch.compile(network, backend=way.backend, dynamic=True if way.dynamic else None)
    draw = torch.Generator().manual_seed(seed)
    seen: list[Any] = []
    with tool or contextlib.nullcontext():
        for number in range(3):
            x = data_of(seed, draw, N + (number if way.dynamic else 0)).to(way.dtype)
            try:
                with torch.autocast("cpu", torch.bfloat16, enabled=way.precision == "autocast"):
                    results = step(x)
                results = results if isinstance(results, tuple) else (results,)
                for y in results:
                    seen += [y.dtype, tuple(y.shape), y.stride(), y.requires_grad, y._is_view(), y.detach().clone()]
                if any(y.requires_grad for y in results):
                    sum(y.float().square().mean() for y in results if y.requires_grad).backward()
            except (RuntimeError, ValueError, AttributeError) as error:  # a later operator does not take a wrong result
                return [*seen, type(error)]
            seen += [x.clone(), *(p.detach().clone() for p in network.parameters())]
            seen += [None if p.grad is None else p.grad.clone() for p in network.parameters()]
            seen += [buffer.clone() for buffer in network.buffers()]
    return seen


def _same(run: list[Any], other: list[Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        return type(a) is type(b) and bool(a == b)

    return len(run) == len(other) and all(map(equal, run, other))


def _run(seed: int, way: Way) -> tuple[list[Any], Any, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        tool = op_tools.OpAutoCompare(output_dir=folder, max_saved=0)
        seen = _train(seed, way, tool=tool)
        result = tool.result()
    wrong = sorted({row.op for row in result.rows if row.verdict == "differs"})
    return seen, result, wrong


_CLEAN = [
    Way("aot_eager"),
    Way("inductor"),
    Way("inductor", "bfloat16"),
    Way("inductor", "autocast"),
    Way("inductor", dynamic=True),
    Way("sim_graph"),
    Way("sim_graph", "bfloat16"),
    Way("sim_graph", "autocast"),
    Way("sim_graph", dynamic=True),
    Way("sim_graph", fault="layers"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    kinds = [options.fault] if options.fault else FAULTS
    by_fault: dict[str, Counter[str]] = {name: Counter() for name in kinds}
    for number in range(options.trials):
        seed = options.seed + number
        name = kinds[seed % len(kinds)]
        way = way_of(name, seed)
        right = _train(seed, replace(way, backend="sim_graph" if way.fault else "aot_eager"))
        _OTHER_STRIDES[0] = 0
        with sim_graph.plant(way.fault) if way.fault else contextlib.nullcontext():
            spoiled = _train(seed, way)
            matters = not _same(right, spoiled) or _OTHER_STRIDES[0] > 0
            seen, result, wrong = _run(seed, way)
            same = _same(spoiled, seen) or not _same(spoiled, _train(seed, way))  # a fault that reads memory as it is
        kind = "matters" if matters else "changes nothing"
        counts[kind] += 1
        by_fault[name][kind] += 1
        if not same:
            counts["changed by the tool"] += 1
            print(f"seed {seed}: {name}: the tool changed the program: {program(seed).text}", flush=True)
        verdict = result.verdict.value
        if matters:
            by_fault[name][verdict] += 1
            counts[verdict] += 1
            counts["elsewhere"] += any(not op.startswith("torch.compile.") for op in wrong)
            if verdict != "differs":
                print(f"seed {seed}: {name}: {verdict}: {program(seed).text}", flush=True)
        elif verdict == "differs":
            counts["clean, named"] += 1
            print(f"seed {seed}: {name} changes nothing, and is named: {wrong}", flush=True)
    clean: Counter[str] = Counter()
    for number in range(options.clean):
        seed = options.seed + options.trials + number
        way = _CLEAN[seed % len(_CLEAN)]
        if way.fault:
            way = replace(way, fault=_BY_SIM_GRAPH[seed // len(_CLEAN) % len(_BY_SIM_GRAPH)])
        alone = _train(seed, way)
        seen, result, wrong = _run(seed, way)
        counts["changed by the tool"] += not _same(alone, seen)
        clean[result.verdict.value] += 1
        if result.verdict.value != "agrees" or not _same(alone, seen):
            text = "; ".join([*wrong, *result.coverage.reasons()])
            print(
                f"seed {seed}: clean, {way}: {result.verdict.value}: {text}: {program(seed).text}",
                flush=True,
            )
    for name, row in by_fault.items():
        print(
            f"{name:28} matters {row['matters']:3}  found {row['differs']:3}  not judged {row['not judged']:3}  agrees {row['agrees']:3}"
        )
    print(
        f"faults that matter: {counts['matters']}, found {counts['differs']}, named elsewhere {counts['elsewhere']}, "
        f"not judged {counts['not judged']}, said to be right {counts['agrees']}"
    )
    print(
        f"clean: {options.clean}, agrees {clean['agrees']}, named {clean['differs']}, not judged {clean['not judged']}; "
        f"faults that change nothing: {counts['changes nothing']}, named {counts['clean, named']}"
    )
    print(f"programs that the tool changed: {counts['changed by the tool']}")
    return 1 if counts["agrees"] or clean["differs"] or counts["changed by the tool"] or counts["clean, named"] else 0


if __name__ == "__main__":
    sys.exit(main())
