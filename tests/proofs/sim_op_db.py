"""Runs the samples of PyTorch's own operator tests (OpInfo's op_db) on the CPU and on sim, forward and backward.

    ./dev prove sim_op_db [--samples N] [--only NAME] [--write]

A sample that runs on the CPU counts. It passes when the device gives equal results and gradients, in the first call (which
teaches the device the shapes) and in the second (which runs later). At least 98 % have to; failures are listed with their
reason. --write puts the table into docs/sim_device.md. Takes two or three minutes.
"""

import argparse
import collections
import itertools
import sys
import warnings
from pathlib import Path

import torch
from _op_database import UNINITIALISED, operators
from torch.utils._pytree import tree_leaves, tree_map

import op_tools.sim_device as sim

sim.set_rounding(False)  # its kernels are to be the CPU's

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sim_device.md"
BEGIN, END = "<!-- op_db: written by ./dev prove sim_op_db --write -->", "<!-- op_db: end -->"
LEAST = 98.0
# Reasons of failures that the program itself cannot know.
REASONS = {
    "as_strided.partial_views": "the sample looks at memory beside its tensor, which a copy to a device leaves behind",
    "nn.functional.scaled_dot_product_attention": "a device without a fused kernel computes it in parts: rounding, up to "
    "5e-5 where 1e-5 is allowed",
    "sparse.mm.reduce": "sparse tensors are not supported",
    "sparse.sampled_addmm": "sparse tensors are not supported",
    "to_sparse": "sparse tensors are not supported",
    "tensor_split": "takes its indices from the CPU on every device",
}


def on(device, value):
    """The value with its tensors (copies that require grad where they did) and devices on `device`."""

    def move(leaf):
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, value)


def run(op, sample, device):
    """The operator's results, and the gradients of its inputs."""
    inputs, args, kwargs = on(device, (sample.input, sample.args, sample.kwargs))
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(0)
    result = op.op(inputs, *args, **kwargs)
    if op.supports_autograd and sample.output_process_fn_grad:
        result = sample.output_process_fn_grad(result)
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    sources = [leaf for leaf in tree_leaves((inputs, args, kwargs)) if isinstance(leaf, torch.Tensor)]
    sources = [leaf for leaf in sources if leaf.requires_grad]
    targets = [t for t in tensors if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    gradients = ()
    if sources and targets:
        total = sum((t.abs() if t.is_complex() else t).sum() for t in targets)
        gradients = torch.autograd.grad(total, sources, allow_unused=True)
    return tensors, gradients


def difference(right, result, compare_values):
    """None when equal; else the difference."""
    for kind, tensors, other in zip(("result", "gradient"), right, result, strict=True):
        if len(tensors) != len(other):
            return f"{len(other)} {kind}s for {len(tensors)}"
        for a, b in zip(tensors, other, strict=True):
            if a is None or b is None:
                if a is not b:
                    return f"{kind}: one is None"
                continue
            if not compare_values:
                if a.shape != b.shape or a.dtype != b.dtype:
                    return f"{kind}: {b.dtype} {tuple(b.shape)} for {a.dtype} {tuple(a.shape)}"
                continue
            try:
                torch.testing.assert_close(b.detach().cpu(), a.detach(), equal_nan=True)
            except AssertionError as error:
                return f"{kind}: {' '.join(str(error).split())[:160]}"
    return None


def same_bits(right, result):
    def content(tensor):
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return plain.reshape(-1).view(torch.uint8)

    pairs = [(a, b) for one, other in zip(right, result, strict=True) for a, b in zip(one, other, strict=True)]
    return all(a is None or torch.equal(content(a), content(b)) for a, b in pairs)


def check(op, sample):
    """None when the CPU cannot run it; else ("equal" | "close", "") or (the failure's kind, why)."""
    try:
        right = run(op, sample, "cpu")
    except Exception:
        return None
    worst = "equal"
    for _ in range(2):
        try:
            result = run(op, sample, "sim")
            torch.sim.synchronize()
        except Exception as error:
            return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        different = difference(right, result, op.name not in UNINITIALISED)
        if different:
            return "different", different
        if op.name not in UNINITIALISED and not same_bits(right, result):
            worst = "close"
    return worst, ""


def samples_of(op, count):
    dtypes = op.supported_dtypes("cpu")
    if not dtypes:
        return []
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    try:
        return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), count))
    except Exception as error:
        print(f"{op.name}: no samples: {error}")
        return []


def table(counts, failures, ops):
    total = sum(counts.values())
    lines = [
        f"torch {torch.__version__.split('+')[0]}, {ops} operators, {total} samples that run on the CPU:",
        "",
        "| | samples | share |",
        "|---|---:|---:|",
    ]
    names = {
        "equal": "the same bits, forward and backward",
        "close": "equal within `torch.testing.assert_close`",
        "different": "other results",
        "failed": "do not run",
    }
    lines += [f"| {text} | {counts[key]} | {100 * counts[key] / total:.2f} % |" for key, text in names.items()]
    lines += ["", "| operator | samples | why not |", "|---|---:|---|"]
    for (name, reason), count in sorted(failures.items()):
        lines.append(f"| `{name}` | {count} | {reason.replace('|', '/')} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000, help="of each operator at most (1000)")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the table into docs/sim_device.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, failures, ops = collections.Counter(equal=0, close=0, different=0, failed=0), collections.Counter(), 0
    for name, op in operators().items():
        if options.only not in name:
            continue
        outcomes = [outcome for sample in samples_of(op, options.samples) if (outcome := check(op, sample))]
        ops += bool(outcomes)
        for kind, reason in outcomes:
            counts[kind] += 1
            if reason:
                print(f"{name}: {reason}")
                failures[name, REASONS.get(name, reason)] += 1
    text = table(counts, failures, ops)
    print(text)
    share = 100 * (counts["equal"] + counts["close"]) / max(1, sum(counts.values()))
    print(f"\n{share:.2f} % pass; {sim.statistics()['asynchronous']} calls ran in the worker threads")
    if options.write:
        page = PAGE.read_text()
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{before}\n{text}\n{after}")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
