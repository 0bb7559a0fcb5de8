"""OpFallback over the samples of PyTorch's own operator tests (OpInfo's op_db) on sim: its results are the device's.

    ./dev prove fallback_op_db [--samples N] [--only NAME] [--level torch|aten] [--write]

Each sample runs on the device and again under OpFallback of everything: function, in-place form and out= form, in several
dtypes, with gradients. Values, strides, dtypes, devices, requires_grad, aliasing with the inputs (the same object, the same
memory), changed inputs and errors have to be the same. Prints the differences, which operators were refused and why, and
exits 1 when anything differs. --write puts the table into docs/fallback.md.
"""

import argparse
import collections
import itertools
import re
import sys
import warnings
from pathlib import Path

import torch
from _op_database import UNINITIALISED, operators
from sim_op_db import on
from torch.utils._pytree import tree_leaves, tree_map

import op_tools
import op_tools.sim_device

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fallback.md"
BEGIN, END = "<!-- op_db: written by ./dev prove fallback_op_db --write -->", "<!-- op_db: end -->"
DTYPES = {torch.float32: None, torch.bfloat16: 1, torch.complex64: 1, torch.int64: 1, torch.bool: 1}


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def plain(tensor):
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def storage(tensor):
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and tensor.numel() else None


class Seen:
    """A run: its results that a program could see."""

    def __init__(self, function, sample, form, device="sim"):
        inputs, args, kwargs = on(device, (sample.input, sample.args, sample.kwargs))
        if "device" in kwargs:
            kwargs["device"] = device
        wanted = [leaf for leaf in tensors((inputs, args, kwargs)) if leaf.requires_grad]
        if form == "in place":  # not on leaves
            inputs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, inputs)
        sources = tensors((inputs, args, kwargs))
        torch.manual_seed(0)
        self.error = self.backward_error = None
        self.gradients, self.results = [], []
        try:
            if form == "out=":
                with torch.no_grad():
                    like = function(inputs, *args, **kwargs)
                    out = tree_map(lambda t: torch.empty(0, dtype=t.dtype, device=t.device), like)
                    if isinstance(out, (tuple, list)):
                        out = tuple(out)
                    torch.manual_seed(0)
                    result = function(inputs, *args, **kwargs, out=out)
                sources += tensors(out)
            else:
                result = function(inputs, *args, **kwargs)
        except Exception as error:
            self.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return
        self.results = tensors(result)
        self.others = [leaf for leaf in tree_leaves(result) if not isinstance(leaf, torch.Tensor)]
        torch.sim.synchronize()  # to("cpu", non_blocking=True) is a promise
        self.structure = type(result).__name__
        self.same_object = [[r is s for s in sources] for r in self.results]
        self.same_memory = [
            [storage(r) is not None and storage(r) == storage(s) for s in sources] for r in self.results
        ]
        targets = [r for r in self.results if r.requires_grad and (r.is_floating_point() or r.is_complex())]
        if targets and wanted:
            try:
                total = sum((t.abs() if t.is_complex() else t).float().sum() for t in targets)
                self.gradients = list(torch.autograd.grad(total, wanted, allow_unused=True))
            except Exception as error:
                self.backward_error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        self.inputs = sources


def values_differ(a, b):
    a, b = plain(a), plain(b)
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.dtype is torch.complex32:  # the CPU compares none
        a, b = a.to(torch.complex64), b.to(torch.complex64)
    if torch.equal(a, b):
        return None
    try:
        torch.testing.assert_close(b, a, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:120]
    return None


def difference(device, fallback, compare_values):
    """None when the two runs are the same; else the difference."""
    if device.error or fallback.error:
        return None if device.error == fallback.error else f"error: {fallback.error} for {device.error}"
    if device.structure != fallback.structure or len(device.results) != len(fallback.results):
        return f"{fallback.structure} of {len(fallback.results)} for {device.structure} of {len(device.results)}"
    if compare_values and not all(a == b or a != a for a, b in zip(device.others, fallback.others, strict=True)):
        return f"{fallback.others} for {device.others}"
    for name in ("same_object", "same_memory"):
        if getattr(device, name) != getattr(fallback, name):
            return f"{name}: {getattr(fallback, name)} for {getattr(device, name)}"
    for a, b in zip(device.results, fallback.results, strict=True):
        for fact in ("dtype", "device", "shape", "layout", "requires_grad", "is_leaf"):
            if getattr(a, fact) != getattr(b, fact):
                return f"{fact}: {getattr(b, fact)} for {getattr(a, fact)}"
        if a.layout is torch.strided and a.stride() != b.stride():
            return f"stride: {b.stride()} for {a.stride()} of {tuple(a.shape)}"
    if not compare_values:
        return None
    kinds = (
        ("result", device.results, fallback.results),
        ("input after the call", device.inputs, fallback.inputs),
        ("gradient", device.gradients, fallback.gradients),
    )
    if device.backward_error != fallback.backward_error:
        return f"backward: {fallback.backward_error} for {device.backward_error}"
    for kind, left, right in kinds:
        for a, b in zip(left, right, strict=True):
            if a is None or b is None:
                if a is not b:
                    return f"{kind}: one is None"
                continue
            if a.dtype != b.dtype or a.device != b.device or a.shape != b.shape:
                return f"{kind}: {b.dtype} {tuple(b.shape)} for {a.dtype} {tuple(a.shape)}"
            different = values_differ(a, b)
            if different:
                return f"{kind}: {different}"
    return None


def forms(op, dtype):
    yield "function", op.op
    if op.inplace_variant is not None:
        yield "in place", op.inplace_variant
    if op.supports_out and dtype is torch.float32 and op.op.__module__ != "torch._refs":
        yield "out=", op.op


def samples_of(op, dtype, count):
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    try:
        return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), count))
    except Exception as error:
        print(f"{op.name} {dtype}: no samples: {str(error)[:100]}")
        return []


class Findings:
    def __init__(self):
        self.same = 0
        self.redirected = collections.Counter()  # operators of the dispatcher
        self.refused = {}  # reason -> operators
        self.different = []
        self.as_the_cpu = collections.Counter()  # the device raises, or takes arguments that the CPU refuses
        self.entries_moved, self.entries = set(), set()

    def add_tool(self, tool, name):
        self.entries.add(name)
        for row in tool.result().rows:
            for op, count in row.ran.items():
                self.redirected[op] += count
                self.entries_moved.add(name)
            for text in row.stayed:
                op, reason = text.split(": ", 1)
                reason = re.sub(r"'[^']*' \([^)]*\)|: .*", "", reason) if "cannot" in reason else reason
                self.refused.setdefault(reason, set()).add(op)

    def table(self, level):
        lines = [
            f"At the {level} level, over {len(self.entries)} entries of op_db: {self.same} runs the same, "
            f"{len(self.different)} different. {len(self.redirected)} operators ran on the CPU, in "
            f"{sum(self.redirected.values())} calls. {sum(self.as_the_cpu.values())} runs are the CPU's where the device "
            f"itself differs from it: it raises where the CPU does not, or the other way round "
            f"({', '.join(sorted(self.as_the_cpu)) or 'none'}).",
            "",
            "| stayed, because | operators |",
            "|---|---|",
        ]
        for reason, ops in sorted(self.refused.items(), key=lambda item: -len(item[1])):
            names = ", ".join(f"`{op}`" for op in sorted(ops)[:6])
            lines.append(f"| {reason} | {len(ops)}: {names}{', ...' if len(ops) > 6 else ''} |")
        if self.different:
            lines += ["", "| different | form | how |", "|---|---|---|"]
            lines += [f"| {name} | {form} | {why} |" for name, form, why in self.different]
        return "\n".join(lines)


def check(name, op, level, count, findings):
    for dtype, most in DTYPES.items():
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples_of(op, dtype, most or count):
            for form, function in forms(op, dtype):
                device = Seen(function, sample, form)
                with op_tools.OpFallback(level=level) as tool:
                    fallback = Seen(function, sample, form)
                findings.add_tool(tool, name)
                different = difference(device, fallback, op.name not in UNINITIALISED)
                if different is None:
                    findings.same += 1
                elif different.startswith("error") and Seen(function, sample, form, "cpu").error == fallback.error:
                    findings.as_the_cpu[name] += 1
                else:
                    findings.different.append((name, f"{form}, {str(dtype)[6:]}", different))


def write(tables):
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:begin]}\n" + "\n\n".join(tables) + f"\n{text[end:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3, help="of each operator in float32; the first of other dtypes")
    parser.add_argument("--only", default="", help="operators whose name has this in it")
    parser.add_argument("--level", choices=("torch", "aten"), help="a single level; both without it")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    tables, failed = [], False
    for level in [arguments.level] if arguments.level else ["torch", "aten"]:
        findings = Findings()
        for name, op in operators().items():
            if arguments.only in name:
                check(name, op, level, arguments.samples, findings)
        tables.append(findings.table(level))
        print(tables[-1], flush=True)
        failed |= bool(findings.different)
    if arguments.write:
        write(tables)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
