"""The values of a captured call, for the case that was made of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._base.captured_calls import CapturedCall, load_call
from .._base.core import Error
from .trees import TensorSpec, leaves_in


def on_accelerator(call: CapturedCall, parts: tuple[str, ...] = ("inputs", "outputs")) -> list[bool]:
    """Of each tensor, in reading order."""
    metas = [one for part in parts for one in call.meta.get(part, []) if isinstance(one, dict)]
    return [str(one.get("device", "cpu")) != "cpu" for one in metas]


def saved_tensors(path: str, specs: Sequence[TensorSpec], device: torch.device) -> list[torch.Tensor]:
    """The tensors of a captured call, on a device; those that shared memory share it again.

    Args:
        path: of the call.
        specs: its tensors, as the case describes them that was made of it.
        device: where the tensors are made.

    Raises:
        op_tools.Error: the capture is gone or damaged, or was made anew after the case.
    """
    call = load_call(path)
    tensors = leaves_in((call.args, call.kwargs), torch.Tensor)
    if [tuple(one.shape) for one in tensors] != [spec.shape for spec in specs]:
        raise Error(f"{path}: is another call than when the case was made of it")
    # An index or a length that the program had on the CPU beside tensors of an accelerator belongs there.
    places = on_accelerator(call, ("inputs",))
    if not any(places) or len(places) != len(tensors):
        places = [True] * len(tensors)
    storages: dict[int, torch.Tensor] = {}
    copies = []
    for tensor, spec, goes_there in zip(tensors, specs, places, strict=True):
        memory = tensor.untyped_storage()._cdata
        if memory not in storages:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            storages[memory] = whole.clone().to(device if goes_there else "cpu")
        row = storages[memory]
        if row.dtype != tensor.dtype:
            row = row.view(tensor.dtype)
        copy = row.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copies.append(copy.requires_grad_(True) if spec.requires_grad else copy)
    return copies
