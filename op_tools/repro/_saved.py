"""A saved call as the scripts want it: memories that tensors share, and tensors as views of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from .._base.captured_calls import CapturedCall, load, load_call, tensors_of
from .._base.core import GRAPH_CALLS, Error, leaves_device_open, operator_of_call
from .._torch.python_functions import find
from .._torch.saved_graphs import SavedGraph, graph_folder, read_graph
from ._literals import dotted


@dataclass
class View:
    """A tensor: which memory it shows, and how."""

    memory: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool = False
    is_leaf: bool = True
    on_cpu: bool = False
    conj: bool = False
    neg: bool = False
    spread: tuple[int, ...] | None = None
    """Strides that it had in the program, where the file has it without its gaps."""


@dataclass
class Saved:
    """A saved call."""

    call: CapturedCall
    path: str
    memories: list[torch.Tensor] = field(default_factory=list)
    inputs: list[View] = field(default_factory=list)
    """By tensor index of the arguments."""
    gradients: list[View | None] = field(default_factory=list)
    """Of the results, of a backward pass; empty: forward alone."""
    index: dict[int, int] = field(default_factory=dict)
    """id() of an argument tensor -> its number among `inputs`."""
    function: str = ""
    """The name of the function in a text."""
    random_state: torch.Tensor | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    """The arguments of `function`."""
    aten: tuple[Any, ...] | None = None
    """The only aten call behind a torch call: (name, arguments)."""
    notes: list[str] = field(default_factory=list)
    graph: SavedGraph | None = None
    """The compiled graph of which it is a call."""
    variation: dict[str, Any] | None = None
    """Of a finding of OpInvariance: the relation, and how the other run was made."""

    @property
    def device(self) -> str:
        """Type of the device on which it was called."""
        return _device(self.call)

    @property
    def device_types(self) -> set[str]:
        """Types of the devices other than the host on which its tensors are, as its arguments may name them."""
        tensors = [*self.call.meta.get("inputs", []), *self.call.meta.get("outputs", [])]
        return {str(one["device"]).partition(":")[0] for one in tensors if "device" in one} - {"cpu", "meta"}

    @property
    def state(self) -> dict[str, Any]:
        state = self.call.meta.get("state", {})
        return state if isinstance(state, dict) else {}


def _device(call: CapturedCall) -> str:
    tensors = call.meta.get("inputs") or call.meta.get("outputs", [])  # a factory has results alone
    devices = [str(one["device"]) for one in tensors]
    device = next((one for one in devices if one.partition(":")[0] not in ("cpu", "meta")), "cpu")
    return device.removesuffix(":0")


def _default_device(call: CapturedCall, keeps_cpu: bool) -> torch.device | None:
    """For a factory whose call names no device: that of the script, as torch.set_default_device has it. None: the call stays as it is."""
    results = [str(one["device"]) for one in call.meta.get("outputs", [])[:1]]
    if results == ["meta"]:
        return torch.device("meta")
    return None if keeps_cpu and results == ["cpu"] else torch.device("cpu")  # written as the script's


def device_of(folder: str) -> str:
    """The device on which a saved call ran."""
    return _device(load_call(folder))


def is_variation(folder: str) -> bool:
    """It was saved by OpInvariance: results have other bits, whether or not they are right."""
    file = Path(folder) / "input.pth"
    return file.is_file() and "variation" in load(file)


def function_of(name: str) -> str:
    """The text that calls an operator, by its name in files. Names that stand for nothing that may be called raise."""
    text = name
    if "::" in text:
        space, _, rest = text.partition("::")
        parts = ["torch", "ops", space, *rest.split(".")]
        if len(parts) == 4:
            parts.append("default")
    else:
        parts = text.split(".")
        if parts[0] != "torch":
            parts = ["torch", "ops", *parts]
    known = find(".".join(parts)) if parts[:2] != ["torch", "ops"] or parts[2] == "aten" else None
    try:
        written = dotted(parts)
        function: Any = torch
        for part in parts[1:]:
            function = getattr(function, part)
    except (AttributeError, ValueError, RuntimeError):
        raise Error(f"{name!r} is no function of this torch, or of a module imported with --import or --load") from None
    if parts[:2] == ["torch", "ops"] and not isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        raise Error(f"{name!r} is no operator")
    if not (parts[:2] == ["torch", "ops"] and parts[2] != "aten") and known is None:
        raise Error(f"{name!r} is none of the operator functions that files may name")
    return written


def graph_of(folder: str, name: str) -> SavedGraph | None:
    """The graph of a saved call; None: it is a call of an operator.

    Raises:
        op_tools.Error: its file is missing, or has no form in a script.
    """
    if not name.startswith(GRAPH_CALLS):
        return None
    place = graph_folder(Path(folder))
    if place is None:
        raise Error(f"{folder}: the graph of {name} was not saved")
    graph = read_graph(place)
    if graph.attributes:
        raise Error(
            f"{folder}: {name} holds tensors of its own, which have no form in a script; --shrink makes them inputs"
        )
    return graph


class _Memories:
    """Flat copies of the storages of tensors."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.by_storage: dict[tuple[int, torch.dtype], tuple[int, int]] = {}
        self.dtypes: dict[int, set[torch.dtype]] = {}

    def add(self, tensors: list[torch.Tensor]) -> None:
        extents: dict[tuple[int, torch.dtype], list[int]] = {}
        for tensor in tensors:
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise Error(
                    f"{self.saved.path}: {tensor.layout} tensors have no form in a script; run_op_from_data runs them"
                )
            low = int(tensor.storage_offset())
            high = (
                low + sum((size - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            )
            if tensor.numel() == 0:
                high = low
            extent = extents.setdefault(self._key(tensor), [low, high])
            extent[:] = min(extent[0], low), max(extent[1], high)
        for (address, dtype), (low, high) in extents.items():
            tensor = next(member for member in tensors if self._key(member) == (address, dtype))
            flat = torch.empty(0, dtype=dtype).set_(tensor.detach().untyped_storage(), low, (high - low,), (1,))
            self.by_storage[address, dtype] = len(self.saved.memories), low
            self.saved.memories.append(flat.clone())
            dtypes = self.dtypes.setdefault(address, set())
            dtypes.add(dtype)
            if len(dtypes) == 2:
                self.saved.notes.append("inputs that share memory in several dtypes have memory of their own here")

    def view(self, tensor: torch.Tensor) -> View:
        memory, low = self.by_storage[self._key(tensor)]
        offset = int(tensor.storage_offset()) - low if tensor.numel() else 0
        view = View(
            memory, tuple(tensor.shape), tuple(tensor.stride()), offset, conj=tensor.is_conj(), neg=tensor.is_neg()
        )
        view.requires_grad, view.is_leaf = tensor.requires_grad, True
        return view

    @staticmethod
    def _key(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
        return tensor.untyped_storage()._cdata, tensor.dtype


def _number(name: str) -> int:
    match = re.match(r"\d+", name)
    return int(match[0]) if match else 0


def read_saved(folder: str, gradients: bool = True) -> Saved:
    """Reads a call. Raises op_tools.Error for values that no script can hold."""
    call = load_call(folder)
    if call.meta.get("unsupported"):
        first = call.meta["unsupported"][0]
        if str(first.get("where", "")).startswith(("args", "kwargs")):
            raise Error(f"{folder}: an input could not be saved when the call was captured: {first.get('type')}")
    saved = Saved(call, folder)
    raw = load(Path(folder) / "input.pth") if (Path(folder) / "input.pth").is_file() else {}
    if raw:  # the recorded aten call has these tensors
        saved.call = call = replace(call, args=tuple(raw["args"]), kwargs=dict(raw["kwargs"]))
        saved.aten = raw.get("aten")
        saved.variation = raw.get("variation")
    metas = call.meta.get("inputs", [])
    keeps_cpu = any(str(one.get("device", "cpu")).partition(":")[0] not in ("cpu", "meta") for one in metas)
    if saved.aten is None and leaves_device_open(call.name, call.args, call.kwargs):
        default = _default_device(call, keeps_cpu)
        saved.call = call = replace(call, kwargs=call.kwargs | ({"device": default} if default else {}))
    saved.args, saved.kwargs = call.args, call.kwargs
    saved.graph = graph_of(folder, call.name)
    try:
        saved.function = "compiled" if saved.graph else function_of(call.name)
    except Error:
        # A function that files may not name, and an operator that they may.
        target, arguments = operator_of_call(call.name, call.args, call.kwargs, saved.aten)
        saved.function, saved.args, saved.kwargs = function_of(target), tuple(arguments), {}
    states = raw.get("rng") or {}
    saved.random_state = states.get("cpu") if isinstance(states, dict) else None
    tensors = [*tensors_of(call.args), *tensors_of(call.kwargs)]
    arriving = list(call.grad_outputs or ()) if gradients else []
    memories = _Memories(saved)
    memories.add(tensors + [one for one in arriving if one is not None])
    wants_grad = call.meta.get("level", "torch") == "torch" and saved.state.get("grad_enabled", True)
    for number, tensor in enumerate(tensors):
        view = memories.view(tensor)
        if number < len(metas):
            view.on_cpu = keeps_cpu and str(metas[number].get("device", "")) == "cpu"
            view.requires_grad = bool(metas[number].get("requires_grad", False))
            view.is_leaf = bool(metas[number].get("is_leaf", True))
        view.requires_grad = view.requires_grad and wants_grad and (tensor.is_floating_point() or tensor.is_complex())
        strides = (raw.get("restrided") or {}).get(number)
        view.spread = tuple(strides) if strides else None
        saved.index.setdefault(id(tensor), number)
        saved.inputs.append(view)
    saved.gradients = [None if one is None else memories.view(one) for one in arriving]
    return saved
