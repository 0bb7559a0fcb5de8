"""A failure that OpAutoCompare saved and run_op_from_data judges again has the same verdict, limits and numbers.

    ./dev prove saved_failures [--samples N] [--only REGEX] [--level torch aten] [--jobs N]

Samples of PyTorch's own operator tests (OpInfo's op_db) run forward and backward on the simulated device, with a fault in
some of their operators: of another kind for each sample. Each failure is replayed on the CPU, and every row of the live
report is looked for in the report of the replay. Ends with status 1 when a row differs for a reason that is not listed.
Takes ten minutes or so.
"""

import argparse
import collections
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from _op_database import operators
from compare_op_db import samples as samples_of
from sim_op_db import REASONS, run

import op_tools
import op_tools.sim_device as sim
from op_tools._conformance.workers import work_through
from op_tools.run_op_from_data import main as replay

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool)
FAULTS = (
    "scale",
    "element",
    "low_precision",
    "nan",
    "swap_rows",
    "mutate_input",
    "noncontiguous",
    "lost_write",
    "strides",
    "inf",
    "exception",
)
# Copies between devices and the CPU belong to no call.
FAULTY_OPS = "aten::(?!_copy_from|_local_scalar_dense|_to_copy|copy_|as_strided|empty).*"
COMPARED = (
    "verdict",
    "kind",
    "method",
    "thresholds",
    "deciding",
    "number",
    "limit",
    "max_abs",
    "error_rmse",
    "error_max",
)
# Differences by facts that the saved files cannot hold. By a part of the live row's operator or of the difference.
UNEQUAL_REASONS = {}


@dataclass
class Count:
    """The outcome of the saved failures of an operator."""

    saved: int = 0
    equal: int = 0
    rows: int = 0
    unequal: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)  # for each sample: why nothing was saved


def same(value, other):
    if isinstance(value, float) and isinstance(other, float):
        return value == other or (math.isnan(value) and math.isnan(other))
    return value == other


def number(value):
    """JSON has no NaN and no infinity: the report writes them as strings."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def replayed(folder, report, *options, against="saved"):
    """The rows of a replay (on the CPU, if options do not say otherwise), and why there are none."""
    status = replay([f"{folder}/device", "--acc_check", "--quiet", "--no_summary", "--json", str(report), *options])
    (call,) = json.loads(Path(report).read_text())["calls"]
    rows = {check["what"]: check for check in call.get("checks", []) if check["against"] == against}
    return rows, call.get("reason", f"status {status}")


def difference(live, rows, reason):
    """How the replay's row differs from the live one; empty when it does not."""
    again = rows.get(live["what"])
    if again is None:
        return f"no row {live['what']!r} ({reason})"
    changed = [key for key in COMPARED if not same(number(live.get(key)), number(again.get(key)))]
    return "; ".join(f"{key} {live.get(key)!r}, replayed {again.get(key)!r}" for key in changed)


def replay_all(result, count, label):
    """Replays the failures of an OpAutoCompare result and compares row by row."""
    by_call = collections.defaultdict(list)
    for row in result.rows:
        by_call[row["op"], row["id"], row["phase"]].append(row)
    folders = collections.defaultdict(list)
    for rows in by_call.values():
        for folder in {row["saved"] for row in rows if row.get("saved")}:
            folders[folder] += rows
    for folder, rows in folders.items():
        count.saved += 1
        again, reason = replayed(folder, Path(folder) / "replayed.json")
        count.rows += len(rows)
        wrong = [(row, text) for row in rows if (text := difference(row, again, reason))]
        count.equal += not wrong
        for row, text in wrong:
            count.unequal.append(f"{label} {row['op']} {row['phase']} {row['what']} {row['kind']}: {text}")


def check_sample(op, sample, level, kind, count, label, seed):
    folder = tempfile.mkdtemp()
    try:
        with op_tools.OpAutoCompare(output_dir=folder, level=level, max_saved=1) as tool:
            fault = sim.fault(kind, ops=FAULTY_OPS, probability=0.5, seed=seed)
            fault.start()
            ended = "ran"
            try:
                run(op, sample, "sim")
            except Exception as error:  # the planted error, or an operator that the sample needs and the device lacks
                ended = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            fault.stop()
        result, saved = tool.result(), count.saved
        replay_all(result, count, label)
        failed = len(result.failures)
        account = "; ".join(result.coverage.reasons())
        count.tried.append(
            f"{label}: {ended}, {fault.hits} hits, {failed} failures, {count.saved - saved} saved {account}".rstrip()
        )
    finally:
        shutil.rmtree(folder)


def check_operator(name, samples, levels):
    op, count = operators()[name], Count()
    kinds = itertools.cycle(FAULTS)
    for _ in range(hash_of(name) % len(FAULTS)):
        next(kinds)
    for dtype in DTYPES:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        drawn = samples_of(op, dtype, samples)
        if not drawn:
            count.tried.append(f"{name} {dtype}: torch's own tests give no sample")
        for seed, sample in enumerate(drawn):
            for level in levels:
                kind = next(kinds)
                check_sample(op, sample, level, kind, count, f"{name} {dtype} {level} {kind}", seed)
    return count


def hash_of(name):
    """The same in each process, other than hash()."""
    return sum(map(ord, name))


def start():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def work(item):
    return check_operator(*item)


def reason_of(text):
    return next((why for part, why in UNEQUAL_REASONS.items() if re.search(part, text)), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1, help="of each operator and dtype")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    names = [name for name in operators() if re.search(options.only, name) and name not in REASONS]
    items = [(name, options.samples, options.level) for name in names]
    total, known, unknown = Count(), collections.Counter(), []
    for item, count, trouble in work_through(items, start, work, jobs=options.jobs, seconds=300):
        if trouble:
            unknown.append(f"{item[0]}: {trouble}")
            continue
        total.saved += count.saved
        total.equal += count.equal
        total.rows += count.rows
        for text in count.unequal:
            if why := reason_of(text):
                known[why] += 1
            else:
                unknown.append(text)
    print(
        f"{len(names)} operators: {total.saved} saved failures with {total.rows} rows, {total.equal} equal in every row"
    )
    for why, rows in known.items():
        print(f"{rows} rows unequal: {why}")
    for text in unknown:
        print(f"UNEQUAL {text}")
    return 1 if unknown or not total.saved else 0


if __name__ == "__main__":
    sys.exit(main())
