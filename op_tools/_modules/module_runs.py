"""A run of a model with the inputs and outputs of each of its modules, forward and backward: for compare_modules."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map, tree_unflatten

from .._base.core import Error
from .._torch.generators import seed_generators
from .._torch.module_names import without_wrapper

Tensors = dict[str, torch.Tensor]  # on the CPU, by their place: "[0]", "['mask']", "" where it is the only tensor


@dataclass
class ModuleCall:
    """A call of a module."""

    path: str  # as in named_modules(); "" the model
    kind: str  # class
    number: int  # which call of this module, from 0
    inside: ModuleCall | None  # the call of the module that contains it
    inputs: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)
    grad_outputs: Tensors = field(default_factory=dict)
    grad_inputs: Tensors = field(default_factory=dict)


@dataclass
class ModuleRun:
    """The observed tensors of a model."""

    calls: list[ModuleCall] = field(default_factory=list)  # in the order in which they began
    parameter_grads: dict[str, torch.Tensor] = field(default_factory=dict)
    drew_numbers: bool = False  # from the CPU's random generator
    no_gradients: str = ""  # why there are none, where they were asked for


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _places(tree: Any) -> Tensors:
    leaves, _ = tree_flatten_with_path(tree)
    return {keystr(path): leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


class _Recorder:
    """Hooks on the modules of a model while it runs once."""

    def __init__(self, model: torch.nn.Module, wanted: Callable[[str], bool]) -> None:
        self.calls: list[ModuleCall] = []
        self._inside: list[tuple[ModuleCall, torch.nn.Module]] = []
        self._times: dict[str, int] = {}
        # Of a module that torch.compile wraps, the module itself.
        named = (
            (without_wrapper(path), module)
            for path, module in model.named_modules()
            if "_orig_mod" not in module._modules
        )
        self._paths = {module: path for path, module in named if wanted(path)}
        self._handles = [module.register_forward_pre_hook(self._begin, with_kwargs=True) for module in self._paths]
        self._handles += [module.register_forward_hook(self._end, with_kwargs=True) for module in self._paths]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() >= 0:  # a checkpoint runs it again in backward
            return None
        path = self._paths[module]
        number = self._times[path] = self._times.get(path, -1) + 1
        inside = self._inside[-1][0] if self._inside else None
        call = ModuleCall(path, type(module).__name__, number, inside)
        self.calls.append(call)
        self._inside.append((call, module))
        call.inputs = {place: _kept(tensor) for place, tensor in _places((args, kwargs)).items()}
        if not torch.is_grad_enabled():
            return None
        # The gradient of an input is this module's contribution: other users of the tensor come past an alias.
        leaves, form = tree_flatten((args, kwargs))
        aliases: dict[int, torch.Tensor] = {}
        for place, leaf in zip(_leaf_places((args, kwargs)), leaves, strict=True):
            plain = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout == torch.strided
            if plain and leaf.requires_grad and id(leaf) not in aliases:
                aliases[id(leaf)] = alias = leaf.view_as(leaf)
                alias.register_hook(_keeps(call.grad_inputs, place))
        return tree_unflatten([aliases.get(id(leaf), leaf) for leaf in leaves], form)

    def _end(self, module: torch.nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        if torch._C._current_graph_task_id() >= 0:
            return
        while self._inside:  # those above it raised, and the program went on
            call, ended = self._inside.pop()
            if ended is module:
                break
        for place, tensor in _places(output).items():
            call.outputs[place] = _kept(tensor)
            if tensor.requires_grad:
                tensor.register_hook(_keeps(call.grad_outputs, place))  # type: ignore[no-untyped-call]


def _leaf_places(tree: Any) -> list[str]:
    return [keystr(path) for path, _ in tree_flatten_with_path(tree)[0]]


def _keeps(to: Tensors, place: str) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        to[place] = _kept(gradient)

    return keep


class CpuNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random numbers come from the CPU's generator on every device, so that both sides drop the same elements."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Attention draws inside; on the CPU it would not be the device's that is looked at.
        draws = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func.name()
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        named = kwargs.get("device")
        device = tensors[0].device if tensors else None if named is None else torch.device(named)
        is_moved = draws and device is not None and device.type != "cpu" and kwargs.get("generator") is None
        if not is_moved or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"):
            return func(*args, **kwargs)  # cuDNN's recurrent networks are operators that the CPU does not have

        def moved(leaf: Any) -> Any:
            return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

        on_cpu, there_kwargs = tree_map(
            lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
        if named is not None:
            there_kwargs["device"] = torch.device("cpu")
        result = func(*on_cpu, **there_kwargs)
        for argument, ours, theirs in zip(func._schema.arguments, args, on_cpu, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                ours.copy_(theirs)
                return ours  # an in-place operator returns it
        return tree_map(moved, result)


@contextlib.contextmanager
def _as_before(model: torch.nn.Module, devices: set[torch.device], seed: int) -> Iterator[None]:
    """The model's buffers, and random numbers, are the same afterwards."""
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    owners = [(module, dict(module._buffers)) for module in model.modules()]
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    with contextlib.ExitStack() as stack:
        for kind in {device.type for device in devices}:
            count = range(torch.get_device_module(kind).device_count()) if kind != "cpu" else []
            stack.enter_context(torch.random.fork_rng(list(count), device_type="cuda" if kind == "cpu" else kind))
        try:
            seed_generators(seed, {device.type for device in devices})
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed % 2**32)
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
            with torch.no_grad():
                for module, named in owners:
                    module._buffers.update(named)
                for buffer, before in buffers.values():
                    if not buffer.is_inference():
                        buffer.copy_(before)


def model_device(model: torch.nn.Module) -> torch.device:
    """Of its first parameter or buffer."""
    for tensor in [*model.parameters(), *model.buffers()]:
        return tensor.device
    return torch.device("cpu")


def float_dtype_of(model: torch.nn.Module) -> torch.dtype | None:
    """Of its first parameter or buffer that has a floating dtype."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            return tensor.dtype
    return None


def copied(model: torch.nn.Module, device: Any, dtype: torch.dtype | None) -> torch.nn.Module:
    """A copy elsewhere.

    Raises:
        op_tools.Error: when the model cannot be copied.
    """
    try:
        return copy.deepcopy(model).to(device=device, dtype=dtype)
    except Exception as error:
        raise Error(
            f"compare_modules: the model cannot be copied ({type(error).__name__}: {error}); make the copy yourself "
            "and give it as model_b"
        ) from error


def inputs_for(inputs: Any, device: torch.device, cast: Callable[[torch.dtype], torch.dtype]) -> Any:
    """Copies of the inputs' tensors for a side; leaves that require grad where the originals do."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(device, cast(leaf.dtype), copy=True).requires_grad_(leaf.requires_grad)

    return tree_map(place, inputs)


def _cotangents(outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Gradients of the outputs: fixed random numbers, the same on every device and in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    cotangents = []
    for output in outputs:
        numbers = torch.randn(output.shape, dtype=torch.float64, generator=generator)
        cotangents.append((numbers if not output.is_complex() else numbers + 0j).to(output.device, output.dtype))
    return cotangents


def run_model(
    model: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    wanted: Callable[[str], bool],
    gradients: bool,
    loss: Callable[[Any], torch.Tensor] | None,
    seed: int,
    cpu_numbers: bool,
) -> ModuleRun:
    """Runs the model once; parameters, gradients, buffers, hooks and random state are the same afterwards.

    Args:
        model: in whatever mode it is.
        inputs: args and kwargs, already where the model is.
        wanted: which modules to look at, by path.
        gradients: go backward too.
        loss: makes a number of the model's result; None: all outputs, times fixed random numbers.
        seed: of all random numbers.
        cpu_numbers: draw random numbers on the CPU.
    """
    run = ModuleRun()
    devices = {model_device(model)} | {
        leaf.device for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)
    }
    with _as_before(model, devices, seed), torch.set_grad_enabled(gradients), contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # compiled code has no modules
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if cpu_numbers:
            stack.enter_context(CpuNumbers())  # type: ignore[no-untyped-call]
        before = torch.get_rng_state()
        recorder = _Recorder(model, wanted)
        try:
            output = model(*inputs[0], **inputs[1])
            run.calls = recorder.calls
            if gradients:
                run.no_gradients = _go_backward(model, inputs, output, loss, seed, run)
        finally:
            recorder.remove()
        run.drew_numbers = not torch.equal(before, torch.get_rng_state())
    return run


def _go_backward(model: torch.nn.Module, inputs: Any, output: Any, loss: Any, seed: int, run: ModuleRun) -> str:
    results = [output if loss is None else loss(output)]
    ends = [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    leaves = [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    wanted = [parameter for _, parameter in named] + leaves
    if not ends or not wanted:
        return "nothing requires a gradient"
    starts = _cotangents(ends, seed) if loss is None else None
    try:
        # Not backward(): the parameters' own gradients, and hooks on them, stay out of it.
        gradients = torch.autograd.grad(ends, wanted, starts, allow_unused=True)
    except RuntimeError as error:
        if "heckpoint" not in str(error):
            raise
        return str(error)
    run.parameter_grads = {
        without_wrapper(name): _kept(grad)
        for (name, _), grad in zip(named, gradients, strict=False)
        if grad is not None
    }
    return ""
