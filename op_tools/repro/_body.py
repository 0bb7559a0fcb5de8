"""The part that all repro scripts have in common: how a call is run, compared and reported.

The text below the mark is pasted into each script, so it uses torch and the standard library alone, and has no types. _script.py
writes the part that differs: the tensors, the call, and the expectations of its results. There are no rules here: how far a
result may be from which values the judge said when the script was written.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import platform

import torch

# --- From here on: pasted.


def run(inputs, call, device):
    """Results of the call by name."""
    tensors, gradients = inputs(lambda memory, here=device: memory.to(here, copy=True))
    try:
        edges = [torch.autograd.graph.get_gradient_edge(one) if one.requires_grad else None for one in tensors]
        result = call(tensors, device)
        arrived = backward(result, edges, gradients) if gradients else []
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}".splitlines()[0]}
    leaves = flat(result)
    results = {f"output {i}" if len(leaves) > 1 else "output": one for i, one in enumerate(leaves)}
    results |= {f"input {i} after the call": one for i, one in enumerate(tensors)}
    results |= {f"gradient of input {i}": one for i, one in enumerate(arrived)}
    memory = [one.untyped_storage().data_ptr() if one.layout is torch.strided else None for one in tensors]
    for name, value in results.items():
        if isinstance(value, torch.Tensor):
            value = value if value.layout is torch.strided else value.to_dense()
            own = value.untyped_storage().data_ptr() if value.numel() else None
            results[name] = value.detach().cpu()
            results[name].form = {
                "shape": list(value.shape),
                "dtype": value.dtype,
                "strides": [step for size, step in zip(value.shape, value.stride(), strict=True) if size > 1],
                "gradient function": value.requires_grad,
                "aliases": [i for i, of in enumerate(memory) if own is not None and own == of],
            }
    return results


def backward(result, edges, gradients):
    """Gradients of the inputs from those of the results; None where there is none."""
    outputs = [one for one in flat(result) if isinstance(one, torch.Tensor)]
    pairs = [
        (output, g.to(output.dtype))
        for output, g in zip(outputs, gradients, strict=False)
        if g is not None and output.requires_grad
    ]
    if not pairs:
        return []
    wanted = [edge for edge in edges if edge is not None]
    gradients_of_edges = iter(
        torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    )
    return [None if edge is None else next(gradients_of_edges) for edge in edges]


def flat(value):
    """Tensors and numbers of a result, in order; numbers as tensors."""
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [leaf for item in items for leaf in flat(item)]
    if isinstance(value, float):
        return [torch.tensor(value, dtype=torch.float32)]
    return [torch.tensor(value) if isinstance(value, bool | int | complex) else value]


def same_bits(tensor, other):
    rows = [t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for t in (tensor, other)]
    return torch.equal(*rows)


def distance(got, value):
    """Of each element: 0 for the same infinity and for NaN twice, infinite where only one of them is finite or NaN."""
    if not (value.is_floating_point() or value.is_complex()):
        return (got != value).double()
    got = got.to(value.dtype)
    if not value.is_complex():
        same = (got == value) | (got.isnan() & value.isnan())
        return (got - value).abs().masked_fill(same, 0).nan_to_num(torch.inf, torch.inf)
    parts = distance(torch.view_as_real(got), torch.view_as_real(value))
    return torch.linalg.vector_norm(parts, dim=-1).masked_fill(got.isnan() & value.isnan(), 0)


def finding(got, wanted, before):
    """The fault of a result; "" when there is none."""
    if "values" not in wanted:
        return "" if same_bits(got, before) else "the call changed it, though it must not"
    values = wanted["values"]
    if got is None:
        return "there is none" if values[0].any() else ""
    if not isinstance(got, torch.Tensor):
        return f"{got!r} instead of a tensor"
    for form, actual in got.form.items():
        if form in wanted and actual not in wanted[form]:
            return f"{form} {actual} instead of {wanted[form][0]}"
    if not got.numel():
        return ""
    got = got.resolve_conj().resolve_neg()
    got = got.abs() if "only_sizes" in wanted else got
    error, nearest = torch.stack([distance(got, value) for value in values]).min(0)
    limit = torch.as_tensor(wanted["limit"], dtype=torch.float64).expand(error.shape)
    limited = error.masked_fill(limit == torch.finfo(torch.float64).max, 0)
    largest = limited.max().item()
    rmse = largest * (limited / largest).square().mean().sqrt().item() if 0 < largest < torch.inf else largest
    wrong = int((error > limit).sum())
    if not wrong and rmse <= wanted["rmse"]:
        return ""
    worst = int((error / limit).nan_to_num(0, torch.inf).argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(worst), error.shape)]
    expected = values[nearest.reshape(-1)[worst]].reshape(-1)[worst].item()
    return (
        f"at {where}: {got.reshape(-1)[worst].item()!r} instead of {expected!r}\n"
        f"    its error {error.reshape(-1)[worst]:.4g}, limit {limit.reshape(-1)[worst]:.4g}; {wrong} of {error.numel()} elements "
        f"are over their limits; root mean square error {rmse:.4g}, limit {wanted['rmse']:.4g}"
    )


def main(inputs, call, device, expected, calls=1, raises=False):
    """Prints the faults. Returns 1 if there are any, 2 if nothing could be compared, else 0."""
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}, device {device}")
    before, _ = inputs(lambda memory, here="cpu": memory.clone())
    wrong, judged = 0, 0
    for number in range(calls):
        got = run(inputs, call, device)
        if raises or "raised" in got:
            judged += 1
            texts = (
                {}
                if raises and "raised" in got
                else {"the call": got.get("raised", "returned") + ", unlike on the CPU"}
            )
        else:
            texts = {name: "there is none" for name in expected if name not in got}
            for name in expected.keys() & got.keys():
                old = before[int(name.split()[1])] if "values" not in expected[name] else None
                texts[name] = finding(got[name], expected[name], old)
            judged += len(expected)
        for name, text in sorted(texts.items()):
            wrong |= bool(text)
            if text:
                print(f"WRONG: {name}{f' of call {number + 1}' if calls > 1 else ''}: {text}")
    if not wrong and not judged:
        print("NOT JUDGED: no result could be compared")
        return 2
    print("WRONG" if wrong else "right")
    return int(wrong)
