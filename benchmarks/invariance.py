"""The costs of OpInvariance: training steps with it on against off, runs again bounded to a hundredth of the time (OpInvariance), each
thousandth call run again, and each.

    ./dev bench invariance [--quick]

One thread. Steps in the middle of a run, with step() after each. The same of the steps of a loop that serves: a token for each of eight
requests, by the decoder of examples/decoder.py. The floor: what seeing each call costs, by a hook that does nothing, and by torch's own
modes in Python that pass each call on.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _costs import Make, report_of, steps, steps_of
from _measure import PROMISE, arguments
from _models import transformer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import op_tools

ALL = 1_000_000_000
BOUNDED = partial(op_tools.OpInvariance, first_n_per_signature=ALL, most_share=0.01)
SAMPLED = partial(op_tools.OpInvariance, first_n_per_signature=ALL, every_nth=1000)
EACH = partial(op_tools.OpInvariance, first_n_per_signature=ALL)


REQUESTS, PAST = 8, 40  # of the loop that serves: sequences, tokens in the cache


class PassFunctions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class PassOperators(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


SERVING: dict[str, Make] = {
    "": partial(SAMPLED, level="aten"),
    ", level torch": SAMPLED,
    ", most_share=0.01": partial(BOUNDED, level="aten"),
}
FLOOR: dict[str, Make] = {
    "a hook that does nothing, level aten": lambda: op_tools.HookScope(op_tools.Hook(), level="aten"),
    "a hook that does nothing, level torch": lambda: op_tools.HookScope(op_tools.Hook()),
    "TorchFunctionMode in Python that passes each call on": PassFunctions,
    "TorchDispatchMode in Python that passes each call on": PassOperators,
    "OpInvariance, every_nth=1000, level aten": partial(SAMPLED, level="aten"),
    "OpInvariance, every_nth=1000, level torch": SAMPLED,
}


def decode(hidden: int, grows: bool = False) -> Callable[[], torch.Tensor]:
    """A step of the loop: the next token of each request. `grows`: with a token more in the cache, so that attention has other shapes each
    time."""
    spec = importlib.util.spec_from_file_location(
        "decoder", Path(__file__).resolve().parents[1] / "examples" / "decoder.py"
    )
    assert spec is not None and spec.loader is not None
    decoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(decoder)
    torch.manual_seed(0)
    model = decoder.Decoder(hidden, vocabulary=1000, heads=8, layers=4)
    tokens = torch.randint(1000, (REQUESTS, PAST + 1))
    full: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    with torch.no_grad():
        model(tokens[:, :PAST], full)

    lengths = itertools.cycle(range(1, PAST + 1) if grows else [PAST])

    def step() -> torch.Tensor:
        past = next(lengths)
        with torch.no_grad():
            return model(tokens[:, PAST:], [[part[:, :, :past] for part in cache] for cache in full])

    return step


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = report_of("invariance")
    table = report.table("OpInvariance", *PROMISE)
    variants = {"": BOUNDED, ", every_nth=1000": SAMPLED, ", each call": EACH}
    steps(table, "OpInvariance", variants, most=1.05, quick=options.quick)
    rounds = 7 if options.quick else 21
    serving = report.table("OpInvariance in a loop that serves, every_nth=1000, level aten", *PROMISE)
    for hidden, count in ((64, 40), (512, 10), (1024, 4)):
        most = 1.05 if hidden > 64 else None
        steps_of(serving, "OpInvariance", f"decode, hidden {hidden}", decode(hidden), SERVING, count, rounds, most)
    growing = {"": SERVING[", most_share=0.01"], ", every_nth=1000": SERVING[""]}
    steps_of(serving, "OpInvariance", "decode, hidden 512, the cache grows", decode(512, grows=True), growing, 20, 3)
    floor = report.table("The floor: each call is seen, none is run again", *PROMISE)
    steps_of(floor, "", "transformer, hidden 64", transformer(), FLOOR, 10, rounds)
    steps_of(floor, "", "decode, hidden 64", decode(64), FLOOR, 40, rounds)
    report.write()


if __name__ == "__main__":
    main()
