"""Calls of all operators in torch's own test database (op_db), and the visible results of each.

build() makes the calls of an operator with fresh inputs, the same each time; Call.run() makes the call and its
backward pass and keeps all objects; seen() turns them into plain facts to compare.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from op_tools._torch.op_samples import by_name, clone_first, operators, out_target, result_kinds, samples_of, seed  # noqa: F401  (the proofs take by_name and operators from here)

# The memory of their results has old values.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
DTYPES = {torch.float32: None, torch.bfloat16: 1, torch.complex64: 1, torch.int64: 1, torch.bool: 1}


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


@dataclass
class Call:
    """A call with its inputs, and after run() its outcome."""

    name: str  # "float32 0 forward"
    function: Callable[..., Any]
    inputs: tuple[Any, Any, Any]  # of the sample: input, args, kwargs
    backward: bool = False
    result: Any = None
    error: BaseException | None = None
    backward_error: BaseException | None = None
    before: list[Any] = field(default_factory=list)
    random: list[torch.Tensor] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)

    def run(self) -> None:
        seed(1)
        value, args, kwargs = self.inputs
        self.before = [None if tensor.is_inference() else tensor._version for tensor in tensors(self.inputs)]
        try:
            self.result = self.function(value, *args, **kwargs)
        except Exception as error:
            self.error = error
        self.random.append(torch.get_rng_state())
        if self.error is None and self.backward:
            self.run_backward()
            self.random.append(torch.get_rng_state())

    def run_backward(self) -> None:
        outputs = [out for out in tensors(self.result) if out.requires_grad and out.grad_fn is not None]
        inputs = [tensor for tensor in tensors(self.inputs) if tensor.requires_grad]
        if not outputs or not inputs:
            return
        try:
            weights = [torch.randn_like(out) for out in outputs]
            self.gradients = list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))
        except Exception as error:
            self.backward_error = error


def text_of(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__qualname__}: {re.sub('0x[0-9a-f]+', '0x', str(error))}"


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.is_meta:
        return b""
    if tensor._is_zerotensor():
        return bytes(tensor.numel() * tensor.element_size())
    if tensor.is_nested:
        return b"".join(_bytes(part) for part in tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return _bytes(tensor.crow_indices()) + _bytes(tensor.col_indices()) + _bytes(tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return _bytes(tensor.ccol_indices()) + _bytes(tensor.row_indices()) + _bytes(tensor.values())
    if tensor.is_quantized:
        return _bytes(tensor.int_repr())
    flat = tensor.resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,))  # a dimension of size 1 may have any stride
    return flat.view(torch.uint8).numpy().tobytes()


def digest(tensor: torch.Tensor) -> str:
    """Of its elements."""
    return hashlib.blake2b(_bytes(tensor), digest_size=8).hexdigest()


def facts(tensor: torch.Tensor, bits: bool = True) -> dict[str, Any]:
    """All that a program could see of a tensor, but where it lies."""
    seen = {
        "type": type(tensor).__qualname__,
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "shape": None if tensor.is_nested else tuple(tensor.shape),
        "requires grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "node": type(tensor.grad_fn).__name__,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "zero": tensor._is_zerotensor(),
        "inference": tensor.is_inference(),
        "version": None if tensor.is_inference() else tensor._version,
    }
    if tensor.layout is torch.strided and not tensor.is_nested:
        seen["stride"], seen["offset"] = tensor.stride(), tensor.storage_offset()
        seen["storage size"] = tensor.untyped_storage().nbytes()
        seen["view"] = tensor._is_view()
    if bits:
        seen["bits"] = digest(tensor)
    return seen


def aliases(parts: list[torch.Tensor]) -> list[tuple[int, int]]:
    """By tensor: the first that is the same object, and the first that shares its memory."""
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    groups = []
    for index, tensor in enumerate(parts):
        memory = -1
        if tensor.layout is torch.strided and not tensor.is_nested:
            memory = storages.setdefault(tensor.untyped_storage()._cdata, index)
        groups.append((objects.setdefault(id(tensor), index), memory))
    return groups


def seen(call: Call, bits: bool = True) -> dict[str, Any]:
    """The results of a call that a program could see. Without `bits` the result's memory is left out."""
    seen: dict[str, Any] = {"error": text_of(call.error), "backward error": text_of(call.backward_error)}
    leaves, form = tree_flatten(call.result)
    seen["form"] = str(form)
    inputs = tensors(call.inputs)
    for index, leaf in enumerate(leaves):
        seen[f"result {index}"] = facts(leaf, bits) if isinstance(leaf, torch.Tensor) else (type(leaf), repr(leaf))
    for index, tensor in enumerate(inputs):
        seen[f"input {index}"] = facts(tensor, bits or not call.name.endswith("out"))
        seen[f"input {index} grows older by"] = (
            None if call.before[index] is None else tensor._version - call.before[index]
        )
    seen["aliases"] = aliases(inputs + tensors(call.result))
    for index, gradient in enumerate(call.gradients):
        seen[f"gradient {index}"] = None if gradient is None else facts(gradient)
    for index, state in enumerate(call.random):
        seen[f"random state {index}"] = digest(state)
    return seen


def different(facts: dict[str, Any], other: dict[str, Any]) -> dict[str, str]:
    """The differences, as text."""
    changes = {}
    for key in facts.keys() | other.keys():
        a, b = facts.get(key), other.get(key)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            changes.update(
                {f"{key}: {k}": f"{a.get(k)} / {b.get(k)}" for k in a.keys() | b.keys() if a.get(k) != b.get(k)}
            )
        else:
            changes[key] = f"{a} / {b}"
    return changes


class Builder:
    """Makes the calls of an operator, with the same inputs each time. `op`: of another database than op_db."""

    def __init__(self, name: str, samples: int, op: Any = None) -> None:
        self.name, self.op = name, op or operators()[name]
        self.samples = samples
        self.left_out: dict[str, str] = {}  # samples that could not be made, and why
        self._results: dict[str, Any] = {}  # of the tensors for out=: shape, dtype

    def build(self) -> list[Call]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = []
            for dtype, count in DTYPES.items():
                if dtype in self.op.supported_dtypes("cpu"):
                    calls += self._of_dtype(dtype, count or self.samples)
            return calls + self._errors()

    def seen(self, call: Call) -> dict[str, Any]:
        return seen(call, self.op.name not in UNINITIALISED)

    def _samples(self, dtype: torch.dtype, count: int, gradients: bool) -> list[Any]:
        try:
            return samples_of(self.op, dtype, count, gradients)
        except Exception as error:
            self.left_out[f"{dtype} samples"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return []

    def _of_dtype(self, dtype: torch.dtype, count: int) -> list[Call]:
        op = self.op
        gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        text = str(dtype).removeprefix("torch.")
        calls = []

        def add(variant: str, function: Callable[..., Any] | None, backward: bool = gradients) -> None:
            if function is None:
                return
            for index, sample in enumerate(self._samples(dtype, count, backward)):
                inputs = (sample.input, sample.args, sample.kwargs)
                calls.append(Call(f"{text} {index} {variant}", function, inputs, backward))

        add("forward", op.op)
        add("method", op.method_variant)
        add("inplace", self._in_place())
        if op.supports_out:
            for variant in ("out", "strided_out", "empty_out"):
                for index, sample in enumerate(self._samples(dtype, count, False)):
                    self._add_out(calls, f"{text} {index}", variant, sample)
        return calls

    def _in_place(self) -> Callable[..., Any] | None:
        variant = self.op.inplace_variant
        return None if variant is None else clone_first(variant)

    def _add_out(self, calls: list[Call], name: str, variant: str, sample: Any) -> None:
        if name not in self._results:
            try:
                seed(1)
                result = self.op.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                result = None
            self._results[name] = result_kinds(result)
        if self._results[name] is None:
            return
        single, parts = self._results[name]

        targets = [out_target(variant, *part) for part in parts]
        kwargs = {**sample.kwargs, "out": targets[0] if single else tuple(targets)}
        calls.append(Call(f"{name} {variant}", self.op.op, (sample.input, sample.args, kwargs)))

    def _errors(self) -> list[Call]:
        if self.op.error_inputs_func is None:
            return []
        seed()
        try:
            errors = list(self.op.error_inputs("cpu"))
        except Exception as error:
            self.left_out["error inputs"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return []
        samples = [error.sample_input for error in errors]
        return [
            Call(f"error {index}", self.op.op, (sample.input, sample.args, sample.kwargs))
            for index, sample in enumerate(samples)
        ]
