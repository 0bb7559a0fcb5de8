"""torch's sample database of its operators (op_db): the source of support tables, conformance cases and proofs."""

from __future__ import annotations

import functools
import itertools
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .._base.core import Error
from .generators import accelerator, seed_generators


@functools.cache
def operators() -> dict[str, Any]:
    """The entries of op_db by name, with the variant where there are several.

    Raises:
        op_tools.Error: torch's samples cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # hypothesis is not there: nothing of it is used here
            from torch.testing._internal import common_utils
            from torch.testing._internal.common_methods_invocations import op_db
            from torch.testing._internal.opinfo import core
    except ImportError as error:
        raise Error(f"torch's sample calls need a package that is not installed: {error}") from error
    # Every sample looks through the whole call stack for the test that asked for it: slow where the stack is deep.
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    common_utils.set_rng_seed = lambda number=common_utils.SEED: seed(number)  # before each sample
    return by_name(op_db)


def by_name(database: list[Any]) -> dict[str, Any]:
    """The entries of a database by name, with the variant where there are several."""
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in database}


def seed(number: int = 0) -> None:
    """Sets every generator that samples draw from."""
    seed_generators(number, [accelerator()])
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def samples_of(op: Any, dtype: torch.dtype, count: int, gradients: bool, number: int = 0) -> list[Any]:
    """The first samples of an operator, the same ones each time for a `number`.

    Raises:
        Exception: of any kind; some samples cannot be made without a GPU.
    """
    seed(number)
    return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), count))


def result_kinds(result: Any) -> tuple[bool, list[tuple[tuple[int, ...], torch.dtype]]] | None:
    """Of a result that out= can hold: whether it is one tensor, and shape and dtype of each; else None."""
    whole = isinstance(result, torch.Tensor) or (
        isinstance(result, tuple | list) and all(isinstance(part, torch.Tensor) for part in result)
    )
    parts = ([result] if isinstance(result, torch.Tensor) else list(result)) if whole else []
    if not parts or any(part.layout is not torch.strided or part.is_nested for part in parts):
        return None
    return isinstance(result, torch.Tensor), [(tuple(part.shape), part.dtype) for part in parts]


def out_target(variant: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor for out=: of the right size, with gaps ("strided_out"), or empty ("empty_out")."""
    if variant == "empty_out":
        return torch.zeros(0, dtype=dtype)
    if variant == "strided_out" and shape:
        return torch.zeros(*shape[:-1], shape[-1] * 2, dtype=dtype)[..., ::2]
    return torch.zeros(shape, dtype=dtype)


def clone_first(variant: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place function that changes a copy: a leaf that requires grad may not be changed in place."""

    def in_place(value: Any, *args: Any, **kwargs: Any) -> Any:
        return variant(tree_map_only(torch.Tensor, torch.Tensor.clone, value), *args, **kwargs)

    return in_place
