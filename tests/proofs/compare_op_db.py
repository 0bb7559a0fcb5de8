"""OpAutoCompare reports nothing where nothing is wrong: the samples of PyTorch's own operator tests (OpInfo's op_db).

    ./dev prove compare_op_db [--samples N] [--only REGEX] [--device cpu sim decomposed] [--level torch aten]

Each sample runs forward and backward under OpAutoCompare, in five dtypes, on the CPU, on the simulated device, and on
that device with torch's decompositions as its kernels, an implementation that rounds in other places. Errors of torch itself
are known by name, and so is a false alarm; any other report ends it with status 1. Takes five minutes.
"""

import argparse
import itertools
import os
import re
import sys
import tempfile
import warnings
from collections import Counter

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from _decomposed_kernels import OTHER_RESULTS, SIM, register
from _op_database import operators, samples_of
from sim_op_db import REASONS, run

import op_tools
import op_tools.sim_device

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64)
DECOMPOSED = "decomposed"
# Reported, and rightly so: errors of torch's CPU kernel.
WRONG_IN_TORCH = {
    "matrix_exp": "NaN in the half types, for matrices whose exponential they can hold",
    "linalg.matrix_exp": "NaN in the half types, for matrices whose exponential they can hold",
    "nn.functional.soft_margin_loss": "an exponential overflows float16 where its logarithm does not",
    "logcumsumexp": "its gradient goes through logarithms whose size (10,000 in a sample) leaves it few digits",
    "nn.functional.grid_sample": "coordinates in 16 bits fall into another pixel, where the gradient jumps",
    "grid_sampler_2d": "coordinates in 16 bits fall into another pixel, where the gradient jumps",
}
_NOTHING_BUT_ROUNDING = (
    "the gradient of a sum of normalized numbers is zero, and each implementation's own rounding beside it"
)
# Reported, and not rightly.
KNOWN_ALARMS = {
    "masked.softmin": "the gradient of five numbers of which one takes nearly all: the cancelling terms were rounded before",
}
ALARMS_OF_DECOMPOSED = dict.fromkeys(
    (
        "softmax.with_dtype",
        "nn.functional.softmin.with_dtype",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
    ),
    _NOTHING_BUT_ROUNDING,
)


def samples(op, dtype, count):
    backward = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    try:
        return samples_of(op, dtype, count, backward, number=7)
    except Exception:
        return []


def failures(op, sample, device, level):
    """The rows that OpAutoCompare calls failures, for a call and its backward."""
    with (
        tempfile.TemporaryDirectory() as folder,
        op_tools.OpAutoCompare(output_dir=folder, level=level, max_saved=0) as tool,
    ):
        try:
            run(op, sample, device)
        except Exception:  # a sample that cannot run there: gaps of the device are sim_op_db's matter
            return [row for row in tool.result().failures if row["kind"] != "raised"]
    return tool.result().failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3, help="of each operator and dtype")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--device", nargs="+", default=["cpu", "sim", DECOMPOSED], choices=["cpu", "sim", DECOMPOSED])
    parser.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = {name: op for name, op in operators().items() if re.search(options.only, name)}
    calls, known, alarms = 0, Counter(), 0
    for device in sorted(options.device, key=DECOMPOSED.__eq__):  # the kernels stay until the end
        library, kernels = register() if device == DECOMPOSED else (None, {})
        for place, (name, op) in enumerate(chosen.items()):
            if sys.stderr.isatty():
                print(f"\r{device} {place}/{len(chosen)} {name:60.60}", end="", file=sys.stderr)
            rightly = WRONG_IN_TORCH | (OTHER_RESULTS if library else {})
            alarms_known = KNOWN_ALARMS | (ALARMS_OF_DECOMPOSED if library else {})
            for dtype in DTYPES:
                if not op.supports_dtype(dtype, "cpu") or (device != "cpu" and name in REASONS):
                    continue
                for sample, level in itertools.product(samples(op, dtype, options.samples), options.level):
                    calls += 1
                    for row in failures(op, sample, SIM if library else device, level):
                        if name in rightly or name in alarms_known:
                            known[name] += 1
                            continue
                        alarms += 1
                        what = f"{row['phase']} {row['what']} {row['kind']} {row['reason']}"
                        print(f"{name} {dtype} {device} {level}: {row['op']} {what}: {row['number']} > {row['limit']}")
        if library:
            print(f"{len(kernels)} decompositions were called {sum(kernels.values())} times")
    for name, count in known.items():
        why = {**WRONG_IN_TORCH, **OTHER_RESULTS}.get(name)
        print(
            f"{name}: {count} reports, "
            + (f"rightly: {why}" if why else f"a known alarm: {(KNOWN_ALARMS | ALARMS_OF_DECOMPOSED)[name]}")
        )
    print(f"{len(chosen)} operators, {calls} calls with their backward: {alarms} false alarms that were not known")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
