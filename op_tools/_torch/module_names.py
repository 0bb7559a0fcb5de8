"""Names of modules: where in the user's model a call was made."""

from __future__ import annotations

import itertools
import weakref

import torch

_Names = weakref.WeakKeyDictionary[torch.nn.Module, str]

# Where modules stand in the models that were seen running: a part that runs alone (a checkpoint that runs again, a
# pipeline's stage) still has its place. The model's name and the path in it.
_places: _Names = weakref.WeakKeyDictionary()
_children: weakref.WeakKeyDictionary[torch.nn.Module, _Names] = weakref.WeakKeyDictionary()
# torch.compile wraps a module under this name; it is omitted, so that names are those without torch.compile.
_COMPILED = "_orig_mod"


def without_wrapper(path: str) -> str:
    """The path as it is without torch.compile."""
    return ".".join(part for part in path.split(".") if part != _COMPILED)


def _note_places(model: torch.nn.Module) -> None:
    name = type(model).__name__
    for path, module in model.named_modules():
        path = without_wrapper(path)
        _places[module] = f"{name}.{path}" if path else name


def _child_name(parent: torch.nn.Module, child: torch.nn.Module) -> str:
    names = _children.setdefault(parent, weakref.WeakKeyDictionary())
    if child not in names:
        paths = (path for path, module in parent.named_modules() if module is child and path)
        names[child] = without_wrapper(next(paths, type(child).__name__))
    return names[child]


def without_compiled(module: torch.nn.Module) -> torch.nn.Module:
    # Not get(): TorchScript's modules have their parts in an object that does not know it.
    inner = module._modules[_COMPILED] if _COMPILED in module._modules else None  # noqa: SIM401
    return module if inner is None else inner


def path_of(modules: tuple[torch.nn.Module, ...]) -> str:
    """The path of the innermost of some modules that run inside each other, as in "ResNet.layer3.0.conv1".

    Args:
        modules: the outermost first.
    """
    inside = [without_compiled(module) for module in modules]
    if inside[0] not in _places:
        _note_places(inside[0])
    path = _places[inside[0]]
    for parent, child in itertools.pairwise(inside):
        if parent is not child:  # code that calls super().__call__
            path += f".{_child_name(parent, child)}"
    return path
