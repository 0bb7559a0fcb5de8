"""No false all-clear: random programs with one edit, or one spoiled result, and what a command says of them.

    ./dev prove no_false_all_clear --command compare --trials 400 --seed 1

A trial draws a small training program (_random_programs.py). Run A is on the CPU; run B on the simulated device, which rounds
otherwise, with one edit of the source or one result spoiled beyond rounding. Where a loss, gradient or parameter of B is
off by more than a thousandth the command must not say that all is right. Clean pairs differ in rounding alone: nothing may
be named.
"""

# ruff: noqa: E402  (the paths come before the imports)
from __future__ import annotations

import collections
import functools
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import _program
import torch
from _random_programs import MATTERS, Edit, Outcome, Program, draw_edit, program, rounding, train

import op_tools
import op_tools.sim_device as sim

SPOILED_PART = 0.3  # of the trials: one spoiled result in the place of an edit
SPOILS = (0.5, 1.01, 1.1, 1.5, 2.0, -1.0)
# What computes nothing, or what a scale does not spoil; and numbers that the program hands to the device.
NEVER_SPOILED = re.compile("aten::(empty|_to_copy|copy_|detach|zero|fill|ones|zeros)")


@dataclass
class Trial:
    program: Program
    edit: Edit
    spoiled: str  # "aten::mm x 1.1 in call 3"; "": nothing
    level: str
    off: float  # the largest difference of a loss, gradient or parameter
    all_clear: bool
    said: str


def record(
    program: Program, device: str, edit: Edit | None, level: str, folder: Path
) -> tuple[Outcome, op_tools.Recording]:
    tool = op_tools.OpRecord(output_dir=folder, level=level)
    with rounding(device):
        outcome = train(program, device, edit, tool=tool, step_done=lambda loss: tool.step())
    return outcome, op_tools.read_recording(tool.result().path)


class Operators(op_tools.Hook):
    """The operators with floating results on the device, once for each of their calls."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def after(self, call: op_tools.Call, state: object) -> None:
        result = call.result[0] if isinstance(call.result, (list, tuple)) and call.result else call.result
        is_made = isinstance(result, torch.Tensor) and result.is_floating_point() and result.device.type == "sim"
        if is_made and not NEVER_SPOILED.match(call.name):
            self.names.append(call.name)


def operators_of(program: Program) -> list[str]:
    """What can be spoiled of a program."""
    operators = Operators()
    with rounding("sim"):
        train(program, "sim", tool=op_tools.HookScope(operators, level="aten"))
    return [name for name in operators.names if can_be_spoiled(name)]


@functools.cache
def can_be_spoiled(operator: str) -> bool:
    try:
        sim.fault("scale", ops=operator)
    except op_tools.Error:
        return False  # it never reaches the device under this name
    return True


def compare(seed: int, level: str, *, clean: bool) -> Trial:
    draw = random.Random(f"trial {seed}")
    made = program(seed)
    edit, spoiled = Edit(), ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcome_a, a = record(made, "cpu", None, level, folder / "a")
        if clean:
            outcome_b, b = record(made, "sim", None, level, folder / "b")
        elif draw.random() < SPOILED_PART:
            calls = operators_of(made)
            number = draw.randrange(len(calls))
            operator, call, scale = calls[number], calls[:number].count(calls[number]), draw.choice(SPOILS)
            with sim.fault("scale", ops=operator, call=call, scale=scale) as fault:
                outcome_b, b = record(made, "sim", None, level, folder / "b")
            spoiled = f"{operator} x {scale} in call {call}" if fault.hits else ""
        else:
            edit = draw_edit(made, seed)
            outcome_b, b = record(made, "sim", edit, level, folder / "b")
        found = op_tools.compare_runs(a, b)
        first = found.ranks[0].first
        said = f"{first.op} {first.phase} step {first.step}: {first.finding}" if first else ""
        if first:
            said += f" {first.input_difference:.2g} -> {first.output_difference:.2g}, limit {first.limit:.2g}"
        return Trial(made, edit, spoiled, level, outcome_a.difference(outcome_b), found.exit_status == 0, said)


# By command: the trial of a seed at a level.
COMMANDS: dict[str, Callable[..., Trial]] = {"compare": compare}


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--command", choices=list(COMMANDS), default="compare")
    parser.add_argument("--trials", type=int, default=400, metavar="N", help="for each level (400)")
    parser.add_argument("--seed", type=int, default=1, help="the first trial's (1)")
    parser.add_argument("--clean", type=int, default=200, metavar="N", help="clean pairs for each level (200)")
    parser.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    options = parser.parse_args()
    _program.quiet("off")
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    status = 0
    for level in options.level:
        trial = COMMANDS[options.command]
        wrong, matter = collections.Counter[str](), collections.Counter[str]()
        for seed in range(options.seed, options.seed + options.trials):
            done = trial(seed, level, clean=False)
            kind = "spoiled" if done.spoiled else done.edit.kind
            if done.off <= MATTERS or kind == "none":
                continue
            matter[kind] += 1
            if done.all_clear:
                wrong[kind] += 1
                print(
                    f"    {seed} {level} {done.program.text}: {done.edit} {done.spoiled}: off by {done.off:.2g}, all clear",
                    flush=True,
                )
        alarms = 0
        for seed in range(options.seed, options.seed + options.clean):
            done = trial(seed, level, clean=True)
            if not done.all_clear:
                alarms += 1
                print(
                    f"    {seed} {level} clean, off by {done.off:.2g}, {done.program.text} foreach={done.program.foreach}: {done.said}",
                    flush=True,
                )
        print(
            f"{options.command}, {level}: {wrong.total()} of {matter.total()} said to agree; {alarms} of {options.clean} clean pairs named"
        )
        print("  by edit: " + ", ".join(f"{kind} {wrong[kind]}/{matter[kind]}" for kind in sorted(matter)), flush=True)
        status |= bool(wrong) or bool(alarms)
    return status


if __name__ == "__main__":
    sys.exit(main())
