"""op-tools compare on runs of which is known where they part, and on runs that do not.

    ./dev prove compare_runs --trials 100

A trial records a training step of a small model on the device `sim` twice: as it is, and with a fault in a single call of an
operator and a random edit of the program (a call inserted, deleted, moved, replaced, fused, or a layer added), all drawn
by the trial's seed. Counted are pairs of calls that belong together, and trials in which the call with the fault is
named as the first in which a difference was born: from the recordings alone, and with captures beside them. A clean
pair differs in the number of threads, in the form of the optimizer, in the attention kernel or in oneDNN only: nothing
may be named.
"""

# ruff: noqa: E402  (the paths come before the imports)
from __future__ import annotations

import collections
import contextlib
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT / "tests" / "python"), str(ROOT / "benchmarks"), str(ROOT)]

import _program
import fault_trials
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import op_tools
import op_tools.sim_device as sim
from op_tools._base.core import has_trait

# `strides` changes no number. `mutate_input` changes a tensor behind torch's back: a recording reads a tensor again only
# where torch says that it was written, so it sees that fault late or never; it has a row of its own.
KINDS = [kind for kind in fault_trials.KINDS if kind not in (*fault_trials.HARMLESS, "strides")]
UNSEEN = "mutate_input"
MODELS = [*fault_trials.OF_DIGITS, *fault_trials._zoo.ZOO]
MARK = "edited_"  # begins the names of the functions below: lines of the recording show which calls they made


def edited_clone(out: Tensor) -> Tensor:
    return out.clone()


def edited_zero(out: Tensor) -> Tensor:
    return out + 0.0


def edited_one(out: Tensor) -> Tensor:
    return out * 1.0


def edited_parts(out: Tensor) -> Tensor:
    return (out * 1.0) + out * 0.0


def edited_fused(out: Tensor) -> Tensor:
    return torch.add(out, out, alpha=0)


def edited_sum_first(out: Tensor) -> Tensor:
    out.detach().sum(), out.detach().amax()
    return out


def edited_sum_last(out: Tensor) -> Tensor:
    out.detach().amax(), out.detach().sum()
    return out


def edited_layer(out: Tensor) -> Tensor:
    return nn.Hardtanh(-1e30, 1e30)(out)


def unchanged(out: Tensor) -> Tensor:
    return out


Edit = Callable[[Tensor], Tensor]
EDITS: dict[str, tuple[Edit, Edit]] = {
    "none": (unchanged, unchanged),
    "insert": (unchanged, edited_clone),
    "delete": (edited_clone, unchanged),
    "move": (edited_sum_first, edited_sum_last),
    "replace": (edited_zero, edited_one),
    "fuse": (edited_parts, edited_fused),
    "layer": (unchanged, edited_layer),
}


@contextlib.contextmanager
def edited(edit: Edit, place: int) -> Iterator[None]:
    """The output of the place-th call of a module without parts, in the program, goes through `edit`."""
    calls = 0

    def hook(module: nn.Module, _: object, out: object) -> object:
        nonlocal calls
        if any(True for _ in module.children()) or not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        calls += 1
        return edit(out) if calls == place + 1 else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def recorded(
    work: Callable[[], None], level: str, folder: Path, *, capture: bool = False, hook: op_tools.Hook | None = None
) -> op_tools.Recording:
    """The recording of a step; a fault may end it. `hook`: sees the calls alone, not the statistics of the recording."""
    record = op_tools.OpRecord(level=level, output_dir=folder / "record")
    with contextlib.ExitStack() as tools:
        if capture:
            tools.enter_context(op_tools.OpCapture(level=level, output_dir=folder / "capture", format="container"))
        tools.enter_context(record)
        if hook:
            tools.enter_context(op_tools.HookScope(hook, level=level))
        with contextlib.suppress(Exception):
            work()
    return op_tools.read_recording(record.result().path)


def optimizer_of(model: str) -> str:
    return list(fault_trials.OPTIMIZERS)[MODELS.index(model) % len(fault_trials.OPTIMIZERS)]


class Marks:
    """Which calls of a recording an edit made: by their line, or the line of their forward call. Copies to another place are left out:
    they compute nothing, and are in no pair."""

    def __init__(self, recording: op_tools.Recording) -> None:
        calls = list(recording.calls)
        ids = {call.id for call in calls if MARK in call.line or "hardtanh" in call.op}
        self.left = [
            number
            for number, call in enumerate(calls)
            if call.id not in ids and call.forward_id not in ids and not has_trait(call.op, "moves")
        ]
        self.ops = [(calls[number].op, calls[number].phase) for number in self.left]


def right_pairs(a: op_tools.Recording, b: op_tools.Recording, pairs: list[int]) -> tuple[int, int]:
    """(right, all) of the calls that both programs make."""
    of_a, of_b = Marks(a), Marks(b)
    if of_a.ops != of_b.ops[: len(of_a.ops)]:  # the fault ended B, or the engine took another order
        shared = min(len(of_a.ops), len(of_b.ops))
        same = next((i for i in range(shared) if of_a.ops[i] != of_b.ops[i]), shared)
        of_a.left, of_b.left = of_a.left[:same], of_b.left[:same]
    right = sum(pairs[one] == other for one, other in zip(of_a.left, of_b.left, strict=False))
    return right, min(len(of_a.left), len(of_b.left))


class Score:
    def __init__(self) -> None:
        self.trials = self.named = self.by_values = self.pairs = self.right_pairs = 0


def trial(
    seed: int, level: str, places: list[tuple[str, str, str, int]], values: bool
) -> tuple[str, str, Score, str] | None:
    """A trial; None when the fault hit nothing."""
    draw = random.Random(f"compare {level} {seed}")
    kind, edit = draw.choice(KINDS), draw.choice(list(EDITS))
    model, _, operator, calls = draw.choice(places)
    before, after = EDITS[edit]
    place = draw.randrange(4)
    more = {"size": draw.choice([4, 64])} if kind == "above_size" else {}
    fault = sim.fault(kind, ops=operator, call=draw.randrange(calls), seed=seed, **more)
    culprit = fault_trials.Culprit(fault)
    culprit.gradients = True  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step = lambda: fault_trials.step(model, optimizer_of(model))  # noqa: E731
        with edited(before, place):
            a = recorded(step, level, folder / "a", capture=values)
        with edited(after, place), fault:
            b = recorded(step, level, folder / "b", capture=values, hook=culprit)
        sim.faults_clear()
        if fault.hits == 0 or not culprit.ids:
            return None
        compared = op_tools.compare_runs(a, b)
        score = Score()
        score.trials = 1
        right, of_all = right_pairs(a, b, compared.ranks[0]._found.pairs)
        score.right_pairs, score.pairs = right, of_all
        first = compared.ranks[0].first
        score.named = int(first is not None and first.id_b in culprit.ids)
        if values:
            judged = op_tools.compare_runs(a, b, captures=(folder / "a" / "capture", folder / "b" / "capture"))
            proven = judged.ranks[0].first
            score.by_values = int(proven is not None and proven.id_b in culprit.ids)
        seen = f"{first.op} {first.phase} ({first.finding})" if first else "nothing"
        text = f"seed {seed}: {kind} in {operator} of {model}, edit {edit}: named {seen}; {right} of {of_all} pairs"
        return kind, edit, score, text


# --- Clean pairs -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def other_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@contextlib.contextmanager
def other_foreach() -> Iterator[None]:
    """Optimizers that would take lists of tensors take single tensors, and the other way round."""
    kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    usual = [kind.__init__ for kind in kinds]
    for kind in kinds:

        def init(self, *args, _usual=kind.__init__, **options):  # type: ignore[no-untyped-def]
            options["foreach"] = options.get("foreach") is False
            _usual(self, *args, **options)

        kind.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, init in zip(kinds, usual, strict=True):
            kind.__init__ = init  # type: ignore[method-assign]


VARIANTS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "threads": other_threads,
    "foreach": other_foreach,
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),
    "again": contextlib.nullcontext,
}


def train(model: str, steps: int) -> None:
    if model in fault_trials._zoo.ZOO:
        fault_trials._zoo.train(model, "cpu", "float32", steps)
        return
    torch.manual_seed(7)
    images, labels = fault_trials.digits()
    network = fault_trials.OF_DIGITS[model]()
    method = fault_trials.OPTIMIZERS[optimizer_of(model)](network.parameters())
    for step in range(steps):
        method.zero_grad()
        rows = slice(16 * step, 16 * step + 16)
        nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
        method.step()


def clean_pairs(level: str, steps: int) -> tuple[int, list[str]]:
    """How many pairs, and the calls that were named in them."""
    pairs, named = 0, []
    for model in MODELS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            a = recorded(lambda: train(model, steps), level, folder / "a")  # noqa: B023
            for variant, changed in VARIANTS.items():
                with changed():
                    b = recorded(lambda: train(model, steps), level, folder / variant)  # noqa: B023
                pairs += 1
                first = op_tools.compare_runs(a, b).ranks[0].first
                if first is not None:
                    named.append(
                        f"{model}, {variant}, {level}: {first.op} {first.phase} ({first.finding}): "
                        f"{first.input_difference:.2g} -> {first.output_difference:.2g}, limit {first.limit:.2g}"
                    )
    return pairs, named


def share(part: int, of_all: int) -> str:
    return f"{part} of {of_all} ({100 * part / of_all:.1f} %)" if of_all else "0"


def table(title: str, scores: dict[str, Score], values: bool) -> str:
    lines = [f"| {title} | trials | named by statistics |" + (" with tensors |" if values else "") + " right pairs |"]
    lines.append("|---|---|---|---|" + ("---|" if values else ""))
    for name, score in scores.items():
        by_values = f" {share(score.by_values, score.trials)} |" if values else ""
        lines.append(
            f"| {name} | {score.trials} | {share(score.named, score.trials)} |{by_values} "
            f"{share(score.right_pairs, score.pairs)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="for each level (100)")
    parser.add_argument("--level", nargs="+", default=["aten", "torch"], choices=["torch", "aten"])
    parser.add_argument("--seed", type=int, default=0, help="the first trial's (0)")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="these trials alone")
    parser.add_argument("--no-values", action="store_true", help="no captures beside the recordings")
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 2], help="training steps of the clean pairs (1 2)")
    options = parser.parse_args()
    _program.quiet()
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    status = 0
    for level in options.level:
        pairs = [clean_pairs(level, steps) for steps in options.steps]
        named = [one for _, names in pairs for one in names]
        print(f"{level}: {sum(count for count, _ in pairs)} clean pairs, named in {len(named)}", flush=True)
        print("".join(f"    {one}\n" for one in named), end="", flush=True)
        status |= bool(named)
    values = not options.no_values
    skipped = (*fault_trials.PASSED_OVER, "aten::new_empty")
    places = sorted(one for one in fault_trials.operators(MODELS) if not one[2].startswith(skipped))
    for level in options.level:
        by: dict[str, dict[str, Score]] = {
            "fault": collections.defaultdict(Score),
            "edit": collections.defaultdict(Score),
        }
        seen = 0
        for seed in options.only or itertools.count(options.seed + 1):
            if seen >= options.trials:
                break
            result = trial(seed, level, places, values)
            if result is None:
                continue
            kind, edit, score, text = result
            seen += kind != UNSEEN
            if not score.named or (values and not score.by_values) or score.right_pairs < score.pairs:
                print(f"    {text}" + ("" if score.by_values or not values else ", missed by values"), flush=True)
            for which, name in (("fault", kind), ("edit", edit), ("fault", "all but " + UNSEEN)):
                if name == "all but " + UNSEEN and kind == UNSEEN:
                    continue
                total = by[which][name]
                for part in ("trials", "named", "by_values", "pairs", "right_pairs"):
                    setattr(total, part, getattr(total, part) + getattr(score, part))
        for which, scores in by.items():
            print(f"\nlevel {level}\n{table(which, dict(sorted(scores.items())), values)}", flush=True)
        total = by["fault"]["all but " + UNSEEN]
        status |= total.named < 0.9 * total.trials or total.right_pairs < 0.995 * total.pairs
        status |= values and total.by_values < 0.98 * total.trials
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
