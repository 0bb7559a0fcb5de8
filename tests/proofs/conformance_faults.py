"""op-tools conformance finds what is wrong with a device, and blames nothing else.

    ./dev prove conformance_faults [--operators N] [--cases N] [--seed N] [--list FILE]

For each of 300 functions one fault of a random kind is planted on the simulated device, in an operator that the function's
cases run: for all calls, or only while cases of one dtype or one layout run. Its cases are then judged. A trial counts where
the fault changed something. Then kernels that crash and that hang, through the command. Takes about five minutes.
"""

import argparse
import collections
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import torch
from _workers import Progress

import op_tools.sim_device as sim
from op_tools._conformance.lists import load_cases
from op_tools._conformance.rows import NOT_JUDGED, PASSED, read_rows
from op_tools._conformance.verdict import Judge

KINDS = (
    *("scale", "element", "low_precision", "swap_rows", "nan", "inf", "mutate_input", "noncontiguous", "above_size"),
    *("lost_write", "late_write", "missing", "strides", "leak", "exception", "nondeterministic", "wrong_generator"),
)
ARGUMENTS = {"above_size": {"size": 3}, "nondeterministic": {"scale": 1.5}, "scale": {"scale": 1.5}}
# Copies to and from the device, and memory without values: a fault there hits all cases, or nothing.
LEFT_OUT = ("_copy_from", "_local_scalar_dense", "empty", "as_strided", "resize_", "set_", "_reshape_alias", "view")


def op_name(name):
    return name.removeprefix("aten::").split(".")[0]


def operators_of(case, judge):
    """The operators that reach the device in a case; None where the case is not right without a fault."""
    with sim.fault("latency", microseconds=0) as seen:
        rows = judge.rows(case)
    statuses = {row.status for row in rows}
    if PASSED not in statuses or not statuses <= {PASSED, NOT_JUDGED}:
        return None
    return {op for op, _ in seen.log if not op_name(op).startswith(LEFT_OUT)}


def trial(cases, kind, op, where, judge):
    """(cases that it hit, those of them that are wrong, what is wrong of other cases)."""
    hit, found, others = 0, 0, []
    fault = sim.fault(kind, ops=op, **ARGUMENTS.get(kind, {}))
    for case in cases:
        before, called = fault.hits, fault.matched
        with fault if where(case) else contextlib.nullcontext():
            rows = judge.rows(case)
        wrong = [row for row in rows if row.status not in (PASSED, NOT_JUDGED)]
        if fault.hits > before:
            hit += 1
            found += bool(wrong)
        # A fault that fails itself (it writes to an expanded input) counts as a call, and not as a hit.
        others += [(case.id, row.blamed, row.reason) for row in wrong if fault.matched == called]
    sim.faults_clear()
    return hit, found, others


def conditions(cases, draw):
    """All calls, those of one dtype, or those of one layout."""
    dtype, layout = draw.choice(cases).dtype, draw.choice(cases).layout
    return draw.choice(
        [
            ("all calls", lambda case: True),
            (f"only {dtype}", lambda case: case.dtype == dtype),
            (f"only {layout}", lambda case: case.layout == layout),
        ]
    )


def chosen_cases(options, draw):
    """By function: some cases of different dtypes and layouts."""
    groups = collections.defaultdict(list)
    for case in load_cases(options.list, sources=("op_db",)):
        if case.variant != "error":
            groups[case.op].append(case)
    names = sorted(groups)
    draw.shuffle(names)
    for name in names:
        group = groups[name]
        draw.shuffle(group)
        first = {(case.dtype, case.layout, case.variant): case for case in reversed(group)}
        yield name, list(first.values())[: options.cases]


def faults_in(name, cases, draw, judge):
    """One trial of a function that says something; None where no fault has an effect on its cases."""
    reached = {case: ops for case in cases if (ops := operators_of(case, judge))}
    if not reached:
        return None
    for kind in draw.sample(KINDS, len(KINDS)):
        op = draw.choice(sorted(set().union(*reached.values())))
        text, where = conditions(list(reached), draw)
        hit, found, others = trial(list(reached), kind, op, where, judge)
        if hit:
            return kind, f"{name}: {kind} of {op}, {text}", found > 0, others
    return None


def killed(kind, judge, cases, folder):
    """A kernel that crashes or hangs: its cases are named, and the others are right."""
    listed = folder / "cases.jsonl"
    listed.write_text("".join(case.to_json() + "\n" for case in cases))
    result = folder / kind
    arguments = ["--device", "sim", "--import", "op_tools.sim_device", "--list", str(listed), "--timeout", "3"]
    status = subprocess.run(
        [sys.executable, "-m", "op_tools", "conformance", "run", *arguments, "-o", str(result)],
        env={**os.environ, "OP_TOOLS_SIM_FAULTS": f"{kind}:ops=tanh,mul.*,mul_.*"},
        check=False,
    ).returncode
    rows = [row for of_case in read_rows(result / "rows.jsonl").values() for row in of_case]
    due = {
        case.id
        for case in cases
        if any(op_name(op) in ("tanh", "mul", "mul_") for op in operators_of(case, judge) or ())
    }
    ended = {row.case for row in rows if row.status == {"crash": "crashed", "hang": "hung"}[kind]}
    right = all(row.status in (PASSED, NOT_JUDGED) for row in rows if row.case not in due)
    print(
        f"{kind}: {len(ended)} of {len(due)} cases named, the other {len(cases) - len(due)} right: {right}; status {status}"
    )
    return ended == due and right and status == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=300)
    parser.add_argument("--cases", type=int, default=5, help="of each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", default="", help="a list of cases (that of the package)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draw, judge = random.Random(options.seed), Judge(torch.device("sim:0"))
    trials, found, blamed, progress = (
        collections.Counter(),
        collections.Counter(),
        0,
        Progress(options.operators, "trials"),
    )
    few = []
    for name, cases in chosen_cases(options, draw):
        if name in ("torch.tanh", "torch.mul", "torch.add", "torch.relu", "torch.cos"):
            few += [case for case in cases if case.variant == "function"][:2]
        if sum(trials.values()) >= options.operators:
            continue
        outcome = faults_in(name, cases, draw, judge)
        if outcome is None:
            continue
        kind, text, is_found, others = outcome
        trials[kind] += 1
        found[kind] += is_found
        blamed += bool(others)
        if not is_found:
            print(f"not found: {text}", flush=True)
        for one in others[:3]:
            print(f"blamed beside: {text}: {one}", flush=True)
        progress.step(text)
    print("| fault | functions | found |\n|---|---|---|")
    for kind in KINDS:
        print(f"| `{kind}` | {trials[kind]} | {found[kind]} |")
    share = sum(found.values()) / max(1, sum(trials.values()))
    print(f"{sum(trials.values())} functions, {100 * share:.1f} % found, {blamed} trials with something else blamed")
    with tempfile.TemporaryDirectory() as folder:
        named = [killed(kind, judge, few, Path(folder)) for kind in ("crash", "hang")]
    return 0 if share >= 0.98 and not blamed and all(named) and sum(trials.values()) >= options.operators else 1


if __name__ == "__main__":
    sys.exit(main())
