"""op-tools conformance finds the wrong operators of a device, and reports no others.

    ./dev prove conformance_faults [--operators N] [--cases N] [--seed N] [--list FILE]

For each of 300 functions a fault of a random kind is planted on the simulated device, in an operator that the function's
cases run: for all calls, or only while cases of a dtype, a layout or a size run. Functions that draw random numbers get
a kernel that draws from the CPU's generator. Its cases are then judged. A trial counts where the fault changed something.
Then, for 20 of the functions each, kernels that crash and that hang, in worker processes. Takes about ten minutes.
"""

import argparse
import collections
import contextlib
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import torch
from _workers import Progress

from op_tools import _C
from op_tools._conformance.exceptions import read_exceptions
from op_tools._conformance.lists import load_cases
from op_tools._conformance.rows import AGREES, NOT_JUDGED
from op_tools._conformance.shard_run import Session, WorkerPlan
from op_tools._conformance.verdict import Judge

if __name__ == "__main__":  # a worker process imports this file, too, before it has its faults
    import op_tools.sim_device as sim

KINDS = (
    *("scale", "element", "low_precision", "swap_rows", "nan", "inf", "mutate_input", "noncontiguous", "above_size"),
    *("lost_write", "late_write", "missing", "strides", "leak", "exception", "nondeterministic", "wrong_generator"),
)
ARGUMENTS = {"above_size": {"size": 3}, "nondeterministic": {"scale": 1.5}, "scale": {"scale": 1.5}}
# Copies to and from the device, memory without values, zeros without memory: a fault there hits all cases, or nothing.
LEFT_OUT = (
    "_copy_from",
    "_local_scalar_dense",
    "empty",
    "_efficientzerotensor",
    "as_strided",
    "resize_",
    "set_",
    "_reshape_alias",
    "view",
)


DRAWS = {name for trait, _, names in _C.op_families() if trait == "draws_random_numbers" for name in names.split()} | {
    "native_dropout"
}


def op_name(name):
    return name.removeprefix("aten::").split(".")[0]


def operators_of(case, judge):
    """The operators that reach the device in a case; None where the case is not right without a fault."""
    with sim.fault("latency", microseconds=0) as seen:
        rows = judge.rows(case)
    statuses = {row.status for row in rows}
    if AGREES not in statuses or not statuses <= {AGREES, NOT_JUDGED}:
        return None
    return {op for op, _ in seen.log if not op_name(op).startswith(LEFT_OUT)}


def trial(cases, kind, op, where, judge):
    """(cases that it hit, those of them that are wrong, wrong rows of other cases)."""
    hit, caught, others = 0, 0, []
    fault = sim.fault(kind, ops=op, **ARGUMENTS.get(kind, {}))
    for case in cases:
        before, called = fault.hits, fault.matched
        with fault if where(case) else contextlib.nullcontext():
            rows = judge.rows(case)
        wrong = [row for row in rows if row.status not in (AGREES, NOT_JUDGED)]
        if fault.hits > before:
            hit += 1
            caught += bool(wrong)
        # A fault that fails itself (it writes to an expanded input) counts as a call, and not as a hit.
        others += [(case.id, row.blamed, row.reason) for row in wrong if fault.matched == called]
    sim.faults_clear()
    return hit, caught, others


def conditions(cases, draw):
    """All calls, those of a dtype, of a layout, or of a size."""
    dtype, layout, size = draw.choice(cases).dtype, draw.choice(cases).layout, draw.choice(cases).bytes
    return draw.choice(
        [
            ("all calls", lambda case: True),
            (f"only {dtype}", lambda case: case.dtype == dtype),
            (f"only {layout}", lambda case: case.layout == layout),
            (f"only {size} bytes", lambda case: case.bytes == size),
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
    """A trial of a function that says something; None where no fault has an effect on its cases."""
    reached = {case: ops for case in cases if (ops := operators_of(case, judge))}
    if not reached:
        return None
    ops = sorted(set().union(*reached.values()))
    random_ops = [op for op in ops if op_name(op) in DRAWS]
    for kind in ["wrong_generator"] * bool(random_ops) + draw.sample(KINDS, len(KINDS)):
        op = draw.choice(random_ops if kind == "wrong_generator" and random_ops else ops)
        text, where = conditions(list(reached), draw)
        hit, caught, others = trial(list(reached), kind, op, where, judge)
        if hit:
            return kind, f"{name}: {kind} of {op}, {text}", caught > 0, others
    return None


def killed(kind, cases, op, folder):
    """A kernel that crashes or hangs: whether just its cases are named so, and the others are right."""
    named = op.removeprefix("aten::")
    # A name without an overload means all overloads.
    due = {
        case.id
        for case, ops in cases.items()
        if any(named in (one.removeprefix("aten::"), op_name(one)) for one in ops)
    }
    os.environ["OP_TOOLS_SIM_FAULTS"] = f"{kind}:ops={named}"
    try:
        plan = WorkerPlan("sim", ("op_tools.sim_device",))
        session = Session(list(cases), plan, 1, 3.0, read_exceptions(None), lambda line: None)
        rows_by_case = session.run(folder / f"{kind}-{op_name(op)}.jsonl", resume=False)
    finally:
        del os.environ["OP_TOOLS_SIM_FAULTS"]
    ended = {
        name for name, rows in rows_by_case.items() if rows[0].status == {"crash": "crashed", "hang": "hung"}[kind]
    }
    wrong = {name: rows[0].status for name, rows in rows_by_case.items() if rows[0].status not in (AGREES, NOT_JUDGED)}
    if ended != due or set(wrong) != due:
        print(f"{kind} of {op}: due {sorted(due)}, found {wrong}", flush=True)
    return ended == due and set(wrong) == due


def kernels_that_kill(groups, draw, judge, count):
    """Trials of kernels that crash and hang, and how many of them named just their cases."""
    others = {case: operators_of(case, judge) for case in groups[0][1][:2]}
    for kind in ("crash", "hang"):
        right = tried = 0
        with tempfile.TemporaryDirectory() as folder:
            for _, cases in groups[1 : count + 1]:
                reached = {**others, **{case: ops for case in cases[:3] if (ops := operators_of(case, judge))}}
                ops = sorted(set().union(*(ops for case, ops in reached.items() if case not in others)))
                if ops:
                    tried += 1
                    right += killed(
                        kind, {case: ops or set() for case, ops in reached.items()}, draw.choice(ops), Path(folder)
                    )
        print(f"| `{kind}` | {tried} | {right} |")
        yield tried == right > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=300)
    parser.add_argument("--cases", type=int, default=5, help="of each function")
    parser.add_argument("--killed", type=int, default=20, help="functions whose kernels crash and hang")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", default="", help="a list of cases (that of the package)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draw, judge = random.Random(options.seed), Judge(torch.device("sim:0"))
    trials, caught, blamed, progress = (
        collections.Counter(),
        collections.Counter(),
        0,
        Progress(options.operators, "trials"),
    )
    groups = list(chosen_cases(options, draw))
    for name, cases in groups:
        if sum(trials.values()) >= options.operators:
            break
        outcome = faults_in(name, cases, draw, judge)
        if outcome is None:
            continue
        kind, text, is_found, others = outcome
        trials[kind] += 1
        caught[kind] += is_found
        blamed += bool(others)
        if not is_found:
            print(f"not found: {text}", flush=True)
        for other in others[:3]:
            print(f"blamed beside: {text}: {other}", flush=True)
        progress.step(text)
    print("| fault | functions | found |\n|---|---|---|")
    for kind in KINDS:
        print(f"| `{kind}` | {trials[kind]} | {caught[kind]} |")
    share = sum(caught.values()) / max(1, sum(trials.values()))
    print(f"{sum(trials.values())} functions, {100 * share:.1f} % found, {blamed} trials with something else blamed")
    named = list(kernels_that_kill(groups, draw, judge, options.killed))
    return 0 if share >= 0.98 and not blamed and all(named) and sum(trials.values()) >= options.operators else 1


if __name__ == "__main__":
    sys.exit(main())
