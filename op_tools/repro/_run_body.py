"""The part that the scripts of wrong results and of other bits have in common: how a call is run.

The text below the mark is pasted into each script, so it uses torch and the standard library alone, and has no types.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

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
