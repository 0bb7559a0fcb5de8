"""Calls of modules, of the loss and of optimizers, handed to the tools that see these in place of operators."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as _optimizers
from torch.utils.hooks import RemovableHandle

from .._base.core import call_module, copy_before_step, move_along_gradient, running_tools
from .run_facts import parameter_names

_call_impl: Callable[..., Any] = torch.nn.Module._call_impl
_backward: Callable[..., Any] = torch.autograd.backward
_inside = threading.local()
_handles: list[RemovableHandle] = []  # there are some while such a tool is on
# Of optimizers that are in their step: copies of the parameters from before it.
_before: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[str, torch.Tensor]] = weakref.WeakKeyDictionary()


def _own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = {**module._parameters, **module._buffers}
    return {name: one for name, one in named.items() if one is not None and not is_lazy(one)}


def _call_of_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling() or torch._C._get_tracing_state():
        return _call_impl(self, *args, **kwargs)
    name = f"module:{type(self).__name__}"
    return call_module(name, functools.partial(_call_impl, self), args, kwargs, _own_tensors(self))


@functools.wraps(_backward)
def _backward_of_loss(*args: Any, **kwargs: Any) -> Any:
    # A checkpoint that runs again; or torch calls the function once more for the modes that are on.
    is_nested = torch._C._current_graph_task_id() >= 0 or getattr(_inside, "backward", False)
    if is_nested or torch.compiler.is_compiling():
        return _backward(*args, **kwargs)
    loss = args[0] if args else kwargs.get("tensors")
    call_module("loss:backward", lambda one: one, (loss,), {}, {})
    _inside.backward = True
    try:
        return _backward(*args, **kwargs)
    finally:
        _inside.backward = False


def _weights_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    names = parameter_names()
    return {
        names.get(parameter, f"groups[{number}][{place}]"): parameter
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor the part on this rank."""
    return getattr(tensor, "_local_tensor", tensor)


def _is_recorded() -> bool:
    return any(tool._hook is not None and tool._hook.sees_modules for tool in running_tools())


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not _is_recorded():
        return
    _before.pop(optimizer, None)
    copies = {name: copy_before_step(_local(one)) for name, one in _weights_of(optimizer).items()}
    _before[optimizer] = {name: copy for name, copy in copies.items() if copy is not None}


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """The gradients that it read, which it leaves, the parameters that it wrote, and by how much it moved them."""
    weights = _weights_of(optimizer)
    gradients = {name: one.grad for name, one in weights.items() if one.grad is not None}
    before = _before.pop(optimizer, {})
    moves = {
        name: move_along_gradient(copy, _local(weights[name]), _local(gradients[name]))
        for name, copy in before.items()
        if name in weights and name in gradients
    }
    moves = {name: move for name, move in moves.items() if move is not None}
    results = {**weights, "before": {name: before[name] for name in moves}, "moved": moves} if moves else weights
    call_module(f"optimizer:{type(optimizer).__name__}", lambda **_: results, (), {"grad": gradients}, {})


def watch_modules() -> None:
    """Hands calls over while a tool that is on sees them, and leaves torch as it was afterwards."""
    wanted = _is_recorded()
    if wanted and not _handles:
        _handles.append(_optimizers.register_optimizer_step_pre_hook(_before_step))
        _handles.append(_optimizers.register_optimizer_step_post_hook(_after_step))
        # Before the hook that ends the training step.
        _optimizers._global_optimizer_post_hooks.move_to_end(_handles[-1].id, last=False)  # type: ignore[attr-defined]
        torch.nn.Module._call_impl = _call_of_module  # type: ignore[method-assign]
        torch.autograd.backward = _backward_of_loss
    elif not wanted and _handles:
        torch.nn.Module._call_impl = _call_impl  # type: ignore[method-assign]
        torch.autograd.backward = _backward
        while _handles:
            _handles.pop().remove()
        _before.clear()
