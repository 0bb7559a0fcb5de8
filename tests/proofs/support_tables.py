"""Support tables against really running torch's sample calls: the CPU, and the simulated device with operators removed.

    ./dev prove support_tables [--rounds N] [--removed N] [--samples N] [--seed N]

In each round some operators, drawn at random, are removed from the device (fault `missing`). Two predictions are made for
every function that has samples: "measured" by the table that op-tools support makes on that device, and "derived" by the table of the whole device in which the operators are marked as missing, as another machine would
know it. Then the samples of every function are run on the device, forward and backward, without any tool. A prediction agrees
when it is the same word: supported, partial, unsupported. Less than 99 % is a failure. Takes about five minutes.
"""

import collections
import copy
import itertools
import random
import sys
import warnings

import torch
from _op_database import operators, seed
from _program import parser, quiet

import op_tools.sim_device as sim
from op_tools._torch.operator_support import on, refused
from op_tools.analyse._support import make_table
from op_tools.analyse._table import SupportTable

LEAST = 99.0
# Nothing can be made, copied or viewed without them: a device without these is no device.
NEEDED = {
    "aten::_copy_from",
    "aten::_local_scalar_dense",
    "aten::as_strided",
    "aten::empty.memory_format",
    "aten::empty_strided",
}


def samples_of(info, count):
    dtypes = info.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str, default=None)
    if dtype is None:
        return
    gradients = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    seed()
    try:
        yield from itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=gradients), count)
    except Exception as error:
        print(f"{info.name}: {error}")


def outcome(info, sample, device):
    """ "ran", "refused" or "backward refused"; None where it ends with another error."""
    seed(1)
    try:
        inputs, args, kwargs = on(device, (sample.input, sample.args, sample.kwargs))
        if "device" in kwargs:
            kwargs["device"] = device
        result = info.op(inputs, *args, **kwargs)
        if info.supports_autograd and sample.output_process_fn_grad:
            result = sample.output_process_fn_grad(result)
    except Exception as error:
        return "refused" if refused(error) else None
    leaves = [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    targets = [one for one in leaves if one.grad_fn is not None]
    if targets:
        try:
            torch.autograd.backward(targets, [torch.ones_like(one) for one in targets])
        except Exception as error:
            return "backward refused" if refused(error) else "ran"
    return "ran"


def observed(infos, device, count):
    """As the table words it. None if no sample says anything."""
    outcomes = [outcome(info, sample, device) for info in infos for sample in samples_of(info, count)]
    if device != "cpu":
        torch.sim.synchronize()
    outcomes = [one for one in outcomes if one]
    if not outcomes:
        return None
    if "refused" in outcomes:
        return "unsupported" if set(outcomes) == {"refused"} else "partial"
    return "partial" if "backward refused" in outcomes else "supported"


def removed_from(table, names):
    content = copy.deepcopy(table.content)
    for name in names:
        content["operators"][name] = {"status": "missing", "evidence": "removed"}
    return SupportTable(content)


def candidates_of(table):
    """Operators that sample calls make, and that the device has kernels for. Composite operators do not reach the device:
    without a kernel they are as they are with it."""
    rows = table.content["operators"]
    used = {one for row in table.content["functions"].values() for call in row["operators"] for one in call}
    return sorted(one for one in used - NEEDED if one in rows and rows[one]["evidence"].startswith("kernel for"))


def expressions_of(names):
    """For the fault: these operators, and no others."""
    return [f"^{name.replace('.', '[.]')}$" for name in names]


def word(table, name):
    status = table.support(name).status
    return "supported" if status in ("fallback", "python") else status


def compare(tables, device, functions, counts, samples):
    for name, infos in functions.items():
        status = observed(infos, device, samples)
        if status is None:
            continue
        for kind, table in tables.items():
            predicted = word(table, name)
            if predicted == "unknown":
                counts[kind, "unknown"] += 1
                continue
            counts[kind, "all"] += 1
            counts[kind, "agree"] += predicted == status
            counts[kind, f"really {status}"] += 1
            if predicted != status:
                print(f"  {kind}: {name}: predicted {predicted}, is {status}: {table.support(name).evidence[:120]}")


def main():
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3, metavar="N")
    options.add_argument("--removed", type=int, default=40, metavar="N", help="operators per round")
    options.add_argument("--samples", type=int, default=30, metavar="N", help="of each function at most")
    options.add_argument("--seed", type=int, default=2026, metavar="N")
    options = options.parse_args()
    quiet()
    warnings.simplefilter("ignore")
    sim.set_asynchronous(False)
    functions = collections.defaultdict(list)
    for info in operators().values():
        functions[f"torch.{info.name}".replace("torch.torch.", "torch.")].append(info)
    counts = collections.Counter()
    print("CPU")
    cpu = make_table("cpu", options.samples)
    compare(
        {"cpu": cpu},
        "cpu",
        {name: infos for name, infos in functions.items() if name in cpu.content["functions"]},
        counts,
        options.samples,
    )
    whole = make_table("sim", options.samples)
    known = {name: infos for name, infos in functions.items() if name in whole.content["functions"]}
    candidates = candidates_of(whole)
    chooser = random.Random(options.seed)
    for number in range(options.rounds):
        names = sorted(chooser.sample(candidates, options.removed))
        print(f"round {number + 1}: without {', '.join(names)}")
        with sim.fault("missing", ops=expressions_of(names)):
            tables = {"measured": make_table("sim", options.samples), "derived": removed_from(whole, names)}
            compare(tables, "sim", known, counts, options.samples)
    failed = False
    for kind in ("cpu", "measured", "derived"):
        share = 100 * counts[kind, "agree"] / max(1, counts[kind, "all"])
        failed |= share < LEAST or not counts[kind, "all"]
        really = ", ".join(f"{counts[kind, f'really {one}']} {one}" for one in ("supported", "partial", "unsupported"))
        print(
            f"{kind}: {share:.2f} % of {counts[kind, 'all']} agree; really {really}; {counts[kind, 'unknown']} unknown"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
