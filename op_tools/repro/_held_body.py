"""The part of a script that calls a compiled graph twice: results that the program still holds have to keep their bits.

The text below the mark is pasted behind that of _body.py, so it uses torch and the standard library alone, and has no types.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import torch

from ._body import same_bits
from ._run_body import flat

# --- From here on: pasted.


def other_numbers(memory):
    """Numbers of the same kind, so that a compiled call takes them as they are: indices stay indices."""
    return memory.roll(1) * 1.25 if memory.is_floating_point() and memory.itemsize > 1 else memory.roll(1)


def overwritten(inputs, call, device):
    """Which results of a call does the next call change? It has other inputs, and nobody else writes the results."""
    tensors, _ = inputs(lambda memory, here=device: memory.to(here, copy=True))
    held = [leaf for leaf in flat(call(tensors, device)) if isinstance(leaf, torch.Tensor)]
    before = [leaf.detach().clone() for leaf in held]
    tensors, _ = inputs(lambda memory, here=device: other_numbers(memory).to(here, copy=True))
    call(tensors, device)
    return [i for i, (leaf, old) in enumerate(zip(held, before, strict=True)) if not same_bits(leaf.detach(), old)]
