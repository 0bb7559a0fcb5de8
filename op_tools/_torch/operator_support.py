"""The dispatcher's kernels for an operator on a device, and the operators that a call makes there.

Used while a support table is made (`_support.py`). A call is made on the device itself. An operator that the device refuses
is computed on the CPU, so that the rest of the call is seen, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .._base.error_text import with_type

_COMPOSITES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_LAYOUTS = ("Sparse", "SparseCsr", "Quantized", "Mkldnn", "NestedTensor")  # keys of a device's other tensors
# Errors of torch and of backends about a missing operator; other errors are about the arguments.
_REFUSALS = re.compile(
    r"not implemented|could not run|not currently implemented|unsupported operator"
    r"|dispatchstub: (missing kernel|unsupported device)"  # the CPU's code, without a kernel of the device behind it
    r"|expected a floating point tensor as input\. got complex"
    r"|does not support (automatic differentiation for outputs with )?complex"
    r"|only supports? [^.]*\b(cpu|cuda)\b[^.]* devices?\b"  # "mode only supports CPU, CUDA and XPU device type, got: npu"
)


def dispatch_key(device: str) -> str:
    """The dispatch key of a device: "cpu" has CPU, a device of another library PrivateUse1."""
    key: str = torch._C._dispatch_key_for_device(torch.device(device).type)
    return key


def registration(name: str, key: str) -> tuple[str, str]:
    """(kind, evidence) of an operator by its full name: kernel, composite, fallback or missing."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, key):
        return "kernel", f"kernel for {key}"
    for composite in _COMPOSITES:
        if has(name, composite):
            return "composite", composite
    for layout in _LAYOUTS:
        if layout + key in torch._C.DispatchKey.__members__ and has(name, layout + key):
            return "kernel", f"kernel for {layout}{key}"
    if torch._C._dispatch_has_backend_fallback(_key(key)):
        return "fallback", f"no kernel for {key}, which has a fallback"
    return "missing", f"no kernel for {key}, not composite, no fallback"


def _key(key: str) -> Any:
    return torch._C._parse_dispatch_key(key)


def refused(error: BaseException) -> bool:
    """Whether an error says that the operator is not there, or not for this dtype."""
    return isinstance(error, NotImplementedError) or _REFUSALS.search(str(error).lower()) is not None


@dataclass
class Tried:
    """The outcome of an operator's calls on the device."""

    ran: int = 0
    refusals: int = 0
    error: str = ""
    dtypes: dict[str, bool] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)

    def refuse(self, error: Exception) -> None:
        """Counts a refusal, and remembers the first error."""
        self.refusals += 1
        self.error = self.error or with_type(error)


def on(device: str, value: Any) -> Any:
    """The value with its tensors and devices on a device: copies that require grad where they did."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, value)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that reach the device, below autograd, in `tried`, and those of the current call in `seen`."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._type = torch.device(device).type
        self._key = dispatch_key(device)
        self._kinds: dict[str, str] = {}
        self.tried: dict[str, Tried] = {}
        self.seen: set[str] = set()
        self.elsewhere: set[str] = set()
        """Operators that were called on tensors of other devices, and that say nothing of this device."""

    def add(self, names: set[str], refusal: str, error: Exception | None) -> None:
        """Adds operators that a call made without the watch, any of which the device may have refused."""
        for name in names:
            tried = self.tried.setdefault(name, Tried())
            if error is not None and name == refusal:
                tried.refuse(error)
            else:
                tried.ran += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Makes the call on the device; on the CPU where the device refuses it."""
        del types
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks for a tensor's device: no kernel
            return func(*args, **kwargs)
        name = func.name()
        tried = self.tried.setdefault(name, Tried())
        dtype = next((str(one.dtype)[6:] for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)), "")
        try:
            result = self._make(func, name, tried, args, kwargs)
        except Exception as error:
            if not refused(error):
                raise
            self.seen.add(name)
            tried.refuse(error)
            tried.dtypes.setdefault(dtype, False)
            return self._on_cpu(func, args, kwargs)
        if not self._concerns((args, kwargs, result)):
            self.elsewhere.add(name)
            return result
        self.seen.add(name)
        tried.ran += 1
        tried.dtypes[dtype] = True
        return result

    def _concerns(self, values: Any) -> bool:
        tensors = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
        return not tensors or any(one.device.type == self._type for one in tensors)

    def _make(self, func: Any, name: str, tried: Tried, args: Any, kwargs: Any) -> Any:
        """A composite that autograd keeps whole is made of its parts, which are noted in their own right."""
        if name not in self._kinds:
            self._kinds[name] = registration(name, self._key)[0]
        dispatch = torch._C.DispatchKey.CompositeExplicitAutograd
        if (
            self._kinds[name] != "composite"
            or func.is_view
            or not torch._C._dispatch_has_kernel_for_dispatch_key(name, dispatch)
        ):
            return func(*args, **kwargs)
        outer, self.seen = self.seen, set()
        try:
            with self:
                return func._op_dk(dispatch, *args, **kwargs)
        finally:
            tried.parts |= self.seen
            self.seen |= outer

    def _on_cpu(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The call on copies of its tensors. Written tensors are copied back."""
        copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def to_cpu(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return copies.setdefault(id(leaf), (leaf, leaf.to("cpu")))[1]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        moved_args, moved_kwargs = tree_map(to_cpu, (args, kwargs))
        result = func(*moved_args, **moved_kwargs)
        if func._schema.is_mutable:
            for original, copy in copies.values():
                original.copy_(copy)
        back = {id(copy): original for original, copy in copies.values()}

        def to_device(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return back[id(leaf)] if id(leaf) in back else leaf.to(self._device)
            return leaf

        return tree_map(to_device, result)

    @contextmanager
    def call(self) -> Iterator[set[str]]:
        """While it is entered, a call of a function is watched; gives the operators that it makes."""
        self.seen = set()
        operators: set[str] = set()
        try:
            with self:
                yield operators
        finally:
            operators |= self.seen
