"""No false all-clear: random programs with an edit, or a spoiled result, and a command's verdict on them.

    ./dev prove no_false_all_clear --command compare --trials 400 --seed 1

A trial draws a small training program (_random_programs.py), and a change: an edit of its source, or a fault of the
simulated device beyond rounding: a factor, an element, NaN, the tail of a vector, another precision, rows exchanged, a late
or a lost write, a changed input, wrong with strided inputs alone, in a single call or in each call of the operator. The device
rounds otherwise than the CPU. With `--device cuda`, wrong kernels of Python stand before the device's own (a factor, an element, NaN,
rows exchanged, another precision). A change matters where a loss, gradient or parameter is off by more than a thousandth of
the results of float64 on the CPU, and by more than ten times the error of the same run without the change (overflow: where one of
them is not finite; bisect: where a loss is off by more than a hundredth). Then the command must not say that all is right.
An input that is changed behind its last reader (a gradient, by the step of its optimizer) is a kind of its own: no call shows it.
Of clean trials nothing may be named.

The commands run in this process: compare, against, one-iter and ranks (three replicas) get two runs; autocompare, overflow,
replay (run_op_from_data --acc_check) and bisect a single run of the device. conformance: a case of its
list of functions each, against the function in float64 (conformance_faults has more).
"""

# ruff: noqa: E402  (the paths come before the imports)
from __future__ import annotations

import collections
import os
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import _all_clears
import _planted_faults
import _program
import torch

from op_tools._base.verdict import Verdict

CONFORMANCE = "conformance"
LEVELS = {**{name: command.levels for name, command in _all_clears.COMMANDS.items()}, CONFORMANCE: ("aten",)}


def trial(command: str, seed: int, level: str, device: str, *, clean: bool, in_parts: bool) -> _all_clears.Trial | None:
    """None: the right result is not known."""
    if command == CONFORMANCE:
        import _all_clears_of_cases  # loads the simulated device

        return _all_clears_of_cases.trial(seed, clean=clean)
    return _all_clears.trial(command, seed, level, clean=clean, device=device, in_parts=in_parts)


def rate(command: str, level: str, device: str, first: int, trials: int, clean: int, *, in_parts: bool) -> bool:
    """Prints a line for the table, and the failures above it. True: there are failures."""
    spoils = {*_planted_faults.kinds(device), _all_clears.UNREAD}
    matter, said_right, named, unjudged = (collections.Counter[str]() for _ in range(4))
    for seed in range(first, first + trials):
        done = trial(command, seed, level, device, clean=False, in_parts=in_parts)
        if done is None or not done.matters:
            continue
        matter[done.kind] += 1
        named[done.kind] += done.named
        unjudged[done.kind] += done.verdict is Verdict.NOT_JUDGED
        if done.verdict is Verdict.DIFFERS and not done.named and done.kind in spoils:
            print(f"    named another: {done.text}: off by {done.off:.2g}, said: {done.said}", flush=True)
        if done.verdict is Verdict.AGREES:
            said_right[done.kind] += 1
            print(f"    {done.text}: off by {done.off:.2g}, said: {done.said or 'all right'}", flush=True)
    alarms = 0
    for seed in range(first, first + clean):
        done = trial(command, seed, level, device, clean=True, in_parts=in_parts)
        if done and done.verdict is Verdict.DIFFERS:
            alarms += 1
            print(f"    {done.text}: {done.said}", flush=True)
    print("by change, said to be right of those that matter: ", end="")
    print(", ".join(f"{kind} {said_right[kind]}/{matter[kind]}" for kind in sorted(matter)))
    print("| command | level | trials | matter | said to be right | spoiled call named | not judged | clean named |")
    spoiled = sum(count for kind, count in matter.items() if kind in spoils)
    print(
        f"| {command} | {level} | {trials} | {matter.total()} | {said_right.total()} | {named.total()} of {spoiled} "
        f"| {unjudged.total()} | {alarms} of {clean} |",
        flush=True,
    )
    return bool(said_right) or bool(alarms)


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--command", choices=list(LEVELS), default="compare")
    parser.add_argument("--trials", type=int, default=400, metavar="N", help="for each level (400)")
    parser.add_argument("--seed", type=int, default=1, help="the first trial's (1)")
    parser.add_argument("--clean", type=int, default=200, metavar="N", help="clean runs for each level (200)")
    parser.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    parser.add_argument(
        "--device", default="sim", help="that trains: sim (the default), cuda; a conformance trial has sim"
    )
    parser.add_argument(
        "--in-parts",
        action="store_true",
        help="programs whose parameters and statistics are parts of larger memories, and that read numbers; "
        "the device writes behind a part, or gives a wrong number",
    )
    options = parser.parse_args()
    if options.device == "sim" or options.command == CONFORMANCE:
        import op_tools.sim_device  # noqa: F401  (loads it)
    _program.quiet("off")
    warnings.filterwarnings("ignore", "reduction: 'mean'")  # of kl_div, by torch
    torch.ones(1, device=options.device, requires_grad=True).sum().backward()
    known = LEVELS[options.command]
    levels = [level for level in options.level if level in known] or list(known)
    wrong = [
        rate(
            options.command,
            level,
            options.device,
            options.seed,
            options.trials,
            options.clean,
            in_parts=options.in_parts,
        )
        for level in levels
    ]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
