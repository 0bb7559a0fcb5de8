"""Wrong compilers are found, right ones are not: OpAutoCompare over random models that torch.compile compiled.

    ./dev prove graph_faults [--trials 200] [--clean 100] [--seed 1]

A trial compiles the network of a random program by a compiler with one planted fault, at Dynamo's boundary or below AOT
autograd, and trains it for two steps. Clean: inductor and aot_eager, in float32, bfloat16, autocast, and with sizes that
change. A fault counts where it changes a result, a gradient or the program's memory; a program that it leaves as it is counts
as clean. The program under the tool must compute what it computes without, bit for bit.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from _random_programs import CLASSES, C, Edit, H, N, Network, T, program
from torch import Tensor, fx

import op_tools

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
_SHAPES = {"rows": (C,), "tokens": (T, C), "images": (C, H, H)}


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


def _results(change: Callable[[Tensor, random.Random], Tensor]) -> Callable[[random.Random], Backend]:
    def of(draw: random.Random) -> Backend:
        seed = draw.random()

        def backend(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                again = random.Random(seed)
                results = list(graph(*args))
                floats = [i for i, y in enumerate(results) if isinstance(y, Tensor) and y.is_floating_point()]
                at = again.choice(floats)
                right = results[at]
                results[at] = change(right, again)
                _OTHER_STRIDES[0] += results[at].stride() != right.stride()
                return tuple(results)

            return run

        return backend

    return of


def _element(y: Tensor, draw: random.Random) -> Tensor:
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


def _in_graphs(change: Callable[[fx.Graph, random.Random], None]) -> Callable[[random.Random], Backend]:
    def of(draw: random.Random) -> Backend:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        seed, backward = draw.random(), draw.random() < 0.4

        def spoil(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            change(graph.graph, random.Random(seed))
            graph.recompile()
            return make_boxed_func(graph.forward)

        def keep(graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
            return make_boxed_func(graph.forward)

        spoiled: Backend = aot_autograd(
            fw_compiler=keep if backward else spoil, bw_compiler=spoil if backward else keep
        )
        return spoiled

    return of


FAULTS: dict[str, Callable[[random.Random], Backend]] = {
    "scaled result": _results(lambda y, draw: y * draw.choice([1.001, 0.97])),
    "wrong element": _results(_element),
    "no gradient function": _results(lambda y, draw: y.detach()),
    "scaled gradient": _results(lambda y, draw: Scaled.apply(y, draw.choice([0.5, 1.01, -1.0]))),
    "other dtype": _results(lambda y, draw: y.double()),
    "other strides": _results(lambda y, draw: y.transpose(0, -1).contiguous().transpose(0, -1)),
    "16-bit result": _results(lambda y, draw: y.to(torch.bfloat16).to(y.dtype)),
    "wrong operator": _in_graphs(_wrong_operator),
    "wrong constant": _in_graphs(_wrong_constant),
    "16-bit intermediate": _in_graphs(_low_precision),
    "overwritten rows": _in_graphs(_zeroed_row),
}


def _train(seed: int, backend: Any, precision: str, *, dynamic: bool, tool: Any = None) -> list[Any]:
    """Two steps; results, gradients and their forms."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    network = Network(program(seed), Edit()).to(dtype)
    step = torch.compile(network, backend=backend, dynamic=True if dynamic else None)
    draw = torch.Generator().manual_seed(seed)
    seen: list[Any] = []
    with tool or contextlib.nullcontext():
        for number in range(2):
            rows = N + (number if dynamic else 0)
            x = torch.randn((rows, *_SHAPES[program(seed).data]), generator=draw).to(dtype)
            labels = torch.randint(CLASSES, (rows,), generator=draw)
            try:
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                    logits = step(x)
                seen += [logits.dtype, logits.stride(), logits.detach().clone()]
                if logits.requires_grad:
                    torch.nn.functional.cross_entropy(logits.float(), labels).backward()
            except (RuntimeError, ValueError) as error:  # a later operator does not take a wrong result
                return [*seen, type(error)]
            seen += [None if p.grad is None else p.grad.clone() for p in network.parameters()]
            seen += [buffer.clone() for buffer in network.buffers()]
    return seen


def _same(run: list[Any], other: list[Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        return type(a) is type(b) and bool(a == b)

    return len(run) == len(other) and all(map(equal, run, other))


def _run(
    seed: int, backend: Any, precision: str = "float32", *, dynamic: bool = False
) -> tuple[list[Any], Any, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        tool = op_tools.OpAutoCompare(output_dir=folder, max_saved=0)
        seen = _train(seed, backend, precision, dynamic=dynamic, tool=tool)
        result = tool.result()
    wrong = sorted({row.op for row in result.rows if row.verdict == "differs"})
    return seen, result, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    by_fault: dict[str, Counter[str]] = {name: Counter() for name in FAULTS}
    for number in range(options.trials):
        seed = options.seed + number
        name = list(FAULTS)[number % len(FAULTS)]
        backend = FAULTS[name](random.Random(f"fault {seed}"))
        right = _train(seed, "aot_eager", "float32", dynamic=False)
        _OTHER_STRIDES[0] = 0
        spoiled = _train(seed, backend, "float32", dynamic=False)
        matters = not _same(right, spoiled) or _OTHER_STRIDES[0] > 0
        seen, result, wrong = _run(seed, backend)
        kind = "matters" if matters else "changes nothing"
        counts[kind] += 1
        by_fault[name][kind] += 1
        counts["changed by the tool"] += not _same(spoiled, seen)
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
    ways = [("aot_eager", "float32", False), ("inductor", "float32", False), ("inductor", "bfloat16", False)]
    ways += [("inductor", "autocast", False), ("inductor", "float32", True)]
    for number in range(options.clean):
        seed = options.seed + options.trials + number
        backend, precision, dynamic = ways[number % len(ways)]
        alone = _train(seed, backend, precision, dynamic=dynamic)
        seen, result, wrong = _run(seed, backend, precision, dynamic=dynamic)
        counts["changed by the tool"] += not _same(alone, seen)
        clean[result.verdict.value] += 1
        if result.verdict.value != "agrees":
            text = "; ".join([*wrong, *result.coverage.reasons()])
            print(
                f"seed {seed}: clean, {backend} {precision}: {result.verdict.value}: {text}: {program(seed).text}",
                flush=True,
            )
    for name, row in by_fault.items():
        print(
            f"{name:22} matters {row['matters']:3}  found {row['differs']:3}  not judged {row['not judged']:3}  agrees {row['agrees']:3}"
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
