"""The part that all repro scripts have in common: how a call is run, judged and reported.

What follows the mark is pasted into each script, so it uses torch and the standard library alone, and has no types. _script.py
writes the part that differs: the tensors, the call, and what is known of it.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import math
import platform

import torch

# --- From here on: pasted.


def run(inputs, call, device, wide=False, sample=0):
    """Results of the call by name. wide: in float64. sample: from inputs changed by their rounding (negative: in float32)."""
    random = torch.Generator().manual_seed(abs(sample))

    def put(memory, here=device):
        dtype = memory.dtype
        if dtype.is_complex or dtype.is_floating_point:
            full = torch.complex128 if dtype.is_complex else torch.float64
            if sample:
                unit = torch.finfo(dtype).eps if sample > 0 else min(2.0**-23, torch.finfo(dtype).eps)
                share = torch.rand(memory.shape, generator=random, dtype=torch.float64) * 2 - 1
                memory = memory.to(full) * (1 + (unit / 2 if wide else unit) * share)
            memory = memory.to(full if wide else dtype)
        return memory.to(here, copy=True)

    tensors, gradients = inputs(put)
    try:
        edges = [torch.autograd.graph.get_gradient_edge(one) if one.requires_grad else None for one in tensors]
        result = call(tensors, device, wide)
        arrived = backward(result, edges, gradients) if gradients else []
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}".splitlines()[0]}
    leaves = flat(result)
    found = {f"output {i}" if len(leaves) > 1 else "output": one for i, one in enumerate(leaves)}
    found |= {f"input {i} after the call": one for i, one in enumerate(tensors)}
    found |= {f"gradient of input {i}": one for i, one in enumerate(arrived)}
    memory = {one.untyped_storage().data_ptr(): i for i, one in reversed(list(enumerate(tensors))) if one.numel()}
    for name, one in found.items():
        if isinstance(one, torch.Tensor):
            one = one if one.layout is torch.strided else one.to_dense()
            found[name] = one.detach().cpu()
            strides = [step for size, step in zip(one.shape, one.stride(), strict=True) if size > 1]
            found[name].form = {
                "shape": list(one.shape),
                "dtype": None if wide else one.dtype,
                "strides": strides,
                "alias": memory.get(one.untyped_storage().data_ptr()) if name.startswith("output") else None,
            }
    return found


def backward(result, edges, gradients):
    """Gradients of the inputs from those of the results; None where there is none."""
    outputs = [one for one in flat(result) if isinstance(one, torch.Tensor)]
    pairs = [
        (one, g.to(one.dtype))
        for one, g in zip(outputs, gradients, strict=False)
        if g is not None and one.requires_grad
    ]
    if not pairs:
        return []
    wanted = [edge for edge in edges if edge is not None]
    found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
    return [None if edge is None else next(found) for edge in edges]


def flat(value):
    """Tensors and numbers of a result, in order; numbers as tensors."""
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [leaf for item in items for leaf in flat(item)]
    if isinstance(value, float):
        return [torch.tensor(value, dtype=torch.float32)]
    return [torch.tensor(value) if isinstance(value, bool | int | complex) else value]


def same_bits(one, other):
    rows = [t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*rows)


def parts(tensor):
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor).double() if tensor.is_complex() else tensor.double()


def errors(result, exact, eps):
    """Of the finite elements: root mean square, largest, and largest in units of the last place (ULP)."""
    error, size = (result - exact).abs(), exact.abs()
    finite = torch.isfinite(error)
    if not finite.any():
        return [0.0, 0.0, 0.0]
    error, size = error[finite], size[finite].clamp(min=2.0**-14 if eps == 2.0**-10 else 2.0**-103)
    place = torch.exp2(torch.floor(torch.log2(size))) * eps
    return [error.square().mean().sqrt().item(), error.max().item(), (error / place).max().item()]


MEASURES = ("root mean square error", "largest error", "largest error in ULP")


def limits(exact, of_cpu, eps, terms, alone):
    """A multiple of the CPU's own error, and some units of the dtype: what another order of rounding may do."""
    size = exact[torch.isfinite(exact)]
    rms, most = (size.square().mean().sqrt().item(), size.abs().max().item()) if len(size) else (0.0, 0.0)
    ratio, floor = ((2, 4, 4), (0.25, 1, 2)) if eps > 2.0**-23 else ((2, 10, 4), (4, 6, 32))
    few, times = 1.5 if exact.numel() < 1000 else 1, 4 if alone else 1
    grown = max(min(eps, 2.0**-23), eps / 8 if alone else 0) * math.sqrt(terms)
    by_ulp = of_cpu[2] <= 4 and not alone
    return [
        ratio[0] * few * of_cpu[0] + times * ((floor[0] + exact.numel() ** -0.5) * eps + grown) * rms,
        ratio[1] * few * of_cpu[1] + times * (floor[1] * eps + grown) * most,
        ratio[2] * of_cpu[2] + floor[2] + 4 * grown / eps if by_ulp else math.inf,
    ]


def value_finding(name, got, cpu, again, coarse, alone):
    """How got exceeds its limit; "" where it does not. again(wide, sample): further runs on the CPU."""
    exact = again(True, 0)
    wanted = cpu if exact is None else exact
    if wanted is None or wanted.shape != got.shape:
        return ""
    eps = max(torch.finfo(got.dtype).eps, coarse)
    exact = parts(wanted)
    rounded = parts(wanted.to(got.dtype))
    exact = torch.where(torch.isfinite(rounded), exact, rounded)
    device, host = parts(got), rounded if alone else parts(cpu)
    strange = [~((device == one) | (torch.isfinite(device) & torch.isfinite(one))) for one in (exact, host)]
    strange = [
        one & ~(torch.isnan(device) & torch.isnan(other)) for one, other in zip(strange, (exact, host), strict=True)
    ]
    if (strange[0] & strange[1]).any():
        where = (strange[0] & strange[1]).nonzero()[0].tolist()
        return (
            at(where, device, host, exact, alone) + "\n    a NaN or infinity where neither the CPU nor float64 has one"
        )
    of_device = errors(device, exact, eps)
    of_cpu = [0.0] * 3 if alone or wanted is cpu else errors(host, exact, eps)
    numbers = [one.numel() for one in again.floats] or [1]
    largest, second = sorted([*numbers, 1])[-1:-3:-1]
    terms = min(largest, max(1.0, largest / max(1, got.numel()), math.sqrt(largest * second / max(1, got.numel()))))
    limit = limits(exact, of_cpu, eps, terms, alone)
    if wanted is cpu:
        limit = [(8 if eps > 2.0**-23 else 16) / (4 if eps > 2.0**-23 else 6) * one for one in limit]
    sure = not alone and of_cpu[2] <= 0.5 and got.numel() >= 16
    noise, own_noise = [0.0] * 3, [0.0] * 3
    for sample in (1, 2, 3) if not sure and any(map(float.__gt__, of_device, limit)) and wanted is not cpu else ():
        moved = again(True, sample if alone or got.numel() < 16 else -sample)
        if moved is not None and moved.shape == got.shape:
            noise[:] = map(max, noise, errors(parts(moved), exact, eps))
        own = again(False, sample) if eps <= 2.0**-23 else None
        if own is not None and own.shape == got.shape:
            own_noise[:] = map(max, own_noise, errors(parts(own), host, eps))
    limit = [
        most + a * b + c * d for most, a, b, c, d in zip(limit, (6, 8, 8), noise, (3, 4, 4), own_noise, strict=True)
    ]
    over = [i for i in range(3) if of_device[i] > limit[i]]
    if not over:
        return ""
    worst = max(over, key=lambda i: of_device[i] / limit[i] if limit[i] else math.inf)
    where = torch.nan_to_num((device - exact).abs(), 0, 0, 0)
    where = (where / exact.abs().clamp(min=2.0**-103) if worst == 2 else where).argmax()
    where = [int(i) for i in torch.unravel_index(where, exact.shape)]
    times = f": {of_device[worst] / of_cpu[worst]:,.0f} times" if of_cpu[worst] else ""
    return (
        f"{at(where, device, host, exact, alone)}\n    {MEASURES[worst]} against float64: {of_device[worst]:.4g}; "
        f"of the CPU: {of_cpu[worst]:.4g}{times}; limit: {limit[worst]:.4g}"
    )


def at(where, device, host, exact, alone):
    values = [f"device {device[tuple(where)].item()!r}"]
    values += [] if alone else [f"CPU {host[tuple(where)].item()!r}"]
    return f"at {where}: {', '.join(values)}, float64 {exact[tuple(where)].item()!r}"


def finding(name, got, cpu, before, compared, again, coarse, alone):
    """What is wrong with one result; "" when nothing is."""
    if got is None or cpu is None:
        there = cpu if got is None else got
        return (
            ""
            if there is None or not there.any()
            else f"{'no gradient' if got is None else 'a gradient'}, unlike on the CPU"
        )
    if not isinstance(got, torch.Tensor):
        return "" if repr(got) == repr(cpu) or isinstance(got, torch.device) else f"{got!r} instead of {cpu!r}"
    for form in () if alone else compared:
        if got.form[form] != cpu.form[form]:
            return f"{form} {got.form[form]} instead of {cpu.form[form]}"
    if not got.numel():
        return ""
    unchanged = before is not None and same_bits(cpu, before)
    if same_bits(got, cpu) and (unchanged or not alone):
        return ""
    if not unchanged and (got.dtype.is_floating_point or got.dtype.is_complex):
        return value_finding(name, got, cpu, again, coarse, alone)
    where = ((got != cpu) & ~((got != got) & (cpu != cpu))).nonzero()  # NaN is unlike itself
    if not len(where):
        return "NaN of other bits" if unchanged else ""
    first = where[0].tolist()
    text = "the call changed it, though it must not: " if unchanged else ""
    return f"{text}{len(where)} elements differ; at {first}: {got[tuple(first)].item()!r} instead of {cpu[tuple(first)].item()!r}"


def main(inputs, call, device, calls=1, left_out=(), compared=("shape", "dtype"), coarse=0.0, alone=False):
    """Prints what is wrong. Returns 1 if something is, 2 if nothing could be compared, else 0."""
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}, device {device}")
    before, _ = inputs(lambda memory, here="cpu": memory.clone())
    cpu, runs, wrong, judged = run(inputs, call, "cpu"), {}, 0, 0

    def again_of(name):
        def again(wide, sample):
            if (wide, sample) not in runs:
                runs[wide, sample] = run(inputs, call, "cpu", wide, sample)
            return runs[wide, sample].get(name)

        again.floats = [one for one in before if one.is_floating_point() or one.is_complex()]
        return again

    for number in range(calls):
        got = run(inputs, call, device)
        names = got if "raised" not in cpu else ()
        if "raised" in cpu and "raised" not in got:
            print(f"cannot tell: the CPU raised {cpu['raised']}")
        judged += "raised" in cpu and "raised" in got
        if "raised" not in cpu and "raised" not in got and set(cpu) != set(got):
            print(f"WRONG: {len(got)} results instead of {len(cpu)}")
            wrong, names = 1, ()
        for name in names:
            old = before[int(name.split()[1])] if name.endswith("after the call") else None
            judged += name not in left_out
            if name == "raised":
                text = f"{got[name]}; the CPU returns"
            else:
                text = (
                    ""
                    if name in left_out
                    else finding(name, got[name], cpu[name], old, compared, again_of(name), coarse, alone)
                )
            wrong |= bool(text)
            if text:
                print(f"WRONG: {name}{f' of call {number + 1}' if calls > 1 else ''}: {text}")
    if not wrong and not judged:
        print("NOT JUDGED: no result could be compared")
        return 2
    print("WRONG" if wrong else "right")
    return int(wrong)
