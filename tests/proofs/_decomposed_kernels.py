"""Other kernels for the simulated device: torch's decompositions of its operators, computed in the operator's own dtypes on the CPU.

Another implementation of several hundred operators, which rounds in other places than the CPU's kernels: a mean that is updated in
float32, a product that is added in two roundings, a formula in another form.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_map

SIM = "sim"
# Those that the kernels themselves are made with.
_MOVES = {
    "_to_copy", "alias", "clone", "copy", "detach", "empty", "empty_like", "empty_strided", "lift", "lift_fresh", "lift_fresh_copy",
    "new_empty", "new_empty_strided", "to", "_reshape_copy", "_unsafe_view",
}  # fmt: skip
# Decompositions that give something else than the operator.
_OTHERS = {
    "native_batch_norm": "writes inputs that its schema does not name: the copies on the CPU",
    "adaptive_max_pool2d": "returns NotImplemented",
    "adaptive_max_pool3d": "returns NotImplemented",
    "constant_pad_nd": "its result is contiguous, whatever its input is",
    "unsafe_split": "returns views",
}
# Decompositions that are rightly reported: by operator of torch's test database.
OTHER_RESULTS = {
    "nn.functional.soft_margin_loss": "the gradient is made of sigmoid(x) - 1, which loses all digits of large x",
    "nn.functional.hardsigmoid": "the gradient's 1/6 is a float32 number in float64",
    "tensordot": "the product of elements has the strides of its first factor",
    "linalg.eigh": "the product of elements has the strides of its first factor",
}


def register() -> tuple[torch.library.Library, dict[str, int]]:
    """The library that holds the kernels (they stay as long as it does), and how often each was called, by operator."""
    library = torch.library.Library("aten", "IMPL")
    calls: dict[str, int] = {}
    for operator, decomposition in decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
            continue
        name = operator.name().removeprefix("aten::")
        if name.partition(".")[0] in _MOVES | _OTHERS.keys() or not _can_be_a_kernel(operator):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overrides the device's own kernel
            library.impl(name, _kernel(name, decomposition, calls), "PrivateUse1")
    return library, calls


def _can_be_a_kernel(operator: torch._ops.OpOverload) -> bool:
    schema = operator._schema
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    return not (schema.is_mutable or any(result.alias_info for result in schema.returns) or draws or is_composite)


def _kernel(name: str, decomposition: Callable[..., Any], calls: dict[str, int]) -> Callable[..., Any]:
    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value.cpu() if isinstance(value, torch.Tensor) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        with torch.no_grad():
            result = decomposition(*tree_map(on_cpu, args), **tree_map(on_cpu, kwargs))
        return tree_map(lambda leaf: leaf.to(SIM) if isinstance(leaf, torch.Tensor) else leaf, result)

    return run
