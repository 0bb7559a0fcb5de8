"""The part that all scripts of wrong results have in common: how results are compared and reported.

The text below the mark is pasted into each script, behind that of _run_body.py, so it uses torch and the standard library alone,
and has no types. _script.py writes the part that differs: the tensors, the call, and the expectations of its results. There are no
rules here: how far a result may be from which values the judge said when the script was written.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import platform

import torch

from ._run_body import run

# --- From here on: pasted.


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


def main(inputs, call, device, expected, calls=1, raises=False, overwritten=None):
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
    for number in overwritten(inputs, call, device) if overwritten else ():
        wrong = 1
        print(f"WRONG: output {number}: the next call, with other inputs, writes its memory while the program holds it")
    if not wrong and not judged:
        print("NOT JUDGED: no result could be compared")
        return 2
    print("WRONG" if wrong else "right")
    return int(wrong)
