"""The costs of a tool that is on all the time: a call of a small operator, and training steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import torch
from _measure import Report, Spent, Table, Turns, ms, ns, spend, us, verdict
from _models import block, transformer

import op_tools

CALLS = 10000  # enough that the first ones, with cold caches after a scope was entered, do not count
WARM_UP = 20000  # calls, some 20 ms: the clock has learned its rate then
NOTHING, ALL_THREADS = "a hook that does nothing", "a hook that does nothing, `all_threads=True`"
Make = Callable[[], contextlib.AbstractContextManager[object]]


def calls(table: Table, tool: str, variants: Mapping[str, Make], rounds: int, most: float | None = None) -> None:
    """`most`: seconds that the first variant may take above a hook that does nothing, at the aten level."""
    x, y = torch.ones(8), torch.ones(8)
    nothing = op_tools.Hook()

    def work(count: int) -> None:
        for _ in range(count):
            torch.add(x, y)

    def under(make: Make) -> Callable[[], Spent]:
        def run() -> Spent:
            with make():
                work(WARM_UP)
                return spend(lambda: work(CALLS)).per(CALLS)

        return run

    hooks: dict[str, Make] = {
        NOTHING: lambda: op_tools.HookScope(nothing, level="aten"),
        ALL_THREADS: lambda: op_tools.HookScope(nothing, level="aten", all_threads=True),
    }
    turns = Turns({name: under(make) for name, make in {**hooks, **variants}.items()}, rounds)
    torchs = turns.more(ALL_THREADS, NOTHING)
    table.row(f"{ALL_THREADS}, a call", NOTHING, "", ns(torchs), "", "torch's record-function callback")
    for name in variants:
        more = turns.more(name, NOTHING)
        limit = None if name else most
        table.row(
            f"{tool}{name}, a call",
            NOTHING,
            f"<= {limit * 1e9:.0f} ns" if limit else "",
            ns(more),
            verdict(more, most=limit) if limit else "",
            f"{ns(turns.more(name, ALL_THREADS))} above it with `all_threads=True`; "
            f"torch.add of 8 numbers under it: {us(turns.median(NOTHING))}",
        )


def steps_of(
    table: Table,
    tool: str,
    title: str,
    step: Callable[[], torch.Tensor],
    variants: Mapping[str, Make],
    count: int,
    rounds: int,
    most: float | None = None,
) -> None:
    """Steps of a model under each variant, `count` in a measurement. `most`: with the first variant, as a multiple of a step without."""

    def under(make: Make) -> Callable[[], Spent]:
        def run() -> Spent:
            with make() as on:

                def work() -> None:
                    step()
                    if isinstance(on, op_tools.Tool):
                        on.step()

                work()  # its notes of the first call
                return spend(lambda: [work() for _ in range(count)]).per(count)

        return run

    turns = Turns({"plain": under(contextlib.nullcontext), **{n: under(m) for n, m in variants.items()}}, rounds)
    for name in variants:
        ratio = turns.ratio(name, "plain", "wall")
        limit = None if name else most
        table.row(
            f"{tool}{name}, {title}",
            "no tool",
            f"<= {limit}x" if limit else "",
            f"{ratio:.2f}x",
            verdict(ratio, most=limit) if limit else "",
            f"{turns.ratio(name, 'plain'):.2f}x of the thread's time; a step takes {ms(turns.median('plain', 'wall'))}",
        )


def steps(table: Table, tool: str, variants: Mapping[str, Make], most: float, quick: bool) -> None:
    """`most`: a step with the first variant, as a multiple of a step without; of a step of more than small operators."""
    rounds = 5 if quick else 21
    steps_of(table, tool, "transformer, hidden 64", transformer(), variants, 5, rounds)
    wide = transformer(hidden=512, batch=8, length=64)
    steps_of(table, tool, "transformer, hidden 512", wide, variants, 2, rounds // 3 + 2, most)
    steps_of(table, tool, "block, hidden 1024", block(), variants, 2, rounds // 6 + 2, most)


def report_of(name: str) -> Report:
    torch.set_num_threads(1)
    return Report(name)
