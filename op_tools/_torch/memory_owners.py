"""Who keeps memory alive: names of the program that lead to a tensor, or to an autograd graph that saved it."""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

UNKNOWN = "C++ owner, unknown"
_OURS = str(Path(__file__).parents[1])
_MOST_NODES = 20_000  # of a graph
_MOST_ROOTS = 50  # tensors whose graphs are walked
_DEEPEST = 8  # objects between a tensor and a name
_MOST_HOLDERS = 4  # tensors in the same memory that are asked for a name
_MOST_ASKED = 24  # objects of which it is asked who refers to them: each question looks at all objects of the process


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except Exception:  # a wrapper without memory of its own, or a class of the program that fails
        return 0


def _all_tensors() -> list[torch.Tensor]:
    # By type(): isinstance() asks proxies for their __class__, which may be code of the program.
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


def _saved_tensors(node: Any) -> Iterator[torch.Tensor]:
    for name in dir(node):
        if not name.startswith("_saved_"):
            continue
        try:
            value = getattr(node, name)
        except Exception:  # freed already, or unpacked by a hook of the program that fails
            value = None
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, torch.Tensor):
                yield item


def _graph(root: torch.Tensor) -> dict[int, str]:
    """Addresses that the graph of a tensor holds, with the node that saved each."""
    holders: dict[int, str] = {}
    waiting, seen = [root.grad_fn], {root.grad_fn}
    while waiting and len(seen) < _MOST_NODES:
        node: Any = waiting.pop()
        for tensor in _saved_tensors(node):
            holders.setdefault(_address(tensor), node.name())
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return holders


def _locals_of(frame: types.FrameType) -> dict[str, Any]:
    """A copy: a function's f_locals would hold the values of the names until the function returns."""
    names = frame.f_locals
    copied = dict(names)
    if type(names) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        names.clear()
    return copied


def _running_frames() -> Iterator[types.FrameType]:
    for frame in sys._current_frames().values():
        at: types.FrameType | None = frame
        while at is not None:
            yield at
            at = at.f_back


def _names_in_functions() -> dict[int, str]:
    """Names of the functions that run now, by the id of their values; Python's collector does not know them."""
    names: dict[int, str] = {}
    for frame in _running_frames():
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED and not code.co_filename.startswith(_OURS):
            for name, value in _locals_of(frame).items():
                names.setdefault(id(value), f"{name} in {code.co_name}()")
    return names


def _module_of_names(names: dict[str, Any]) -> str | None:
    for name, module in list(sys.modules.items()):
        if getattr(module, "__dict__", None) is names:
            return name
    return None


def _key_of(names: dict[Any, Any], value: object) -> str:
    return next((str(key) for key, one in list(names.items()) if one is value), "?")


def _named_by(owner: Any, value: object) -> str | None:
    """The end of a path: a name in a function or a module, or a function that has it."""
    if type(owner) is types.FunctionType:
        return f"function {owner.__qualname__} in {owner.__module__}"
    if type(owner) is dict and (module := _module_of_names(owner)) is not None:
        return f"{_key_of(owner, value)} in {module}"
    return None


def _is_running(frame: types.FrameType) -> bool:
    return any(frame is one for one in _running_frames())


def _owner_text(owner: Any) -> str:
    """A word for an object on the path: "list of 12", "frame of fit()" of a function that a traceback keeps."""
    kind = type(owner)
    if kind is types.FrameType:
        return f"frame of {owner.f_code.co_name}()"
    return f"{kind.__name__} of {len(owner)}" if kind in (list, dict, set, tuple) else kind.__name__


def _name(target: object, ours: set[int], in_functions: dict[int, str]) -> str:
    """A path of names to an object: "list of 12, history in __main__"."""
    waiting: list[tuple[object, str]] = [(target, "")]
    seen = {id(target), id(waiting)} | ours
    last, asked = "", 0
    for _depth in range(_DEEPEST):
        following: list[tuple[object, str]] = []
        seen |= {id(following), *map(id, waiting)}
        for value, path in waiting:
            if name := in_functions.get(id(value)):
                return f"{path}{name}"
            asked += 1
            if asked > _MOST_ASKED:
                return last
            referrers = gc.get_referrers(value)
            seen.add(id(referrers))
            for owner in referrers:
                kind = type(owner)  # isinstance() would ask a proxy for its __class__
                if id(owner) in seen or (kind is types.FrameType and _is_running(owner)):
                    continue
                seen.add(id(owner))
                if name := _named_by(owner, value):
                    return f"{path}{name}"
                if issubclass(kind, types.ModuleType):
                    continue
                last = last or f"a {_owner_text(owner)}"
                following.append((owner, f"{path}{_owner_text(owner)}, "))
        waiting = following
    return last


class Owners:
    """Looks once at the tensors of the program; then answers for addresses."""

    def __init__(self, addresses: Iterable[int]) -> None:
        self._in_functions = _names_in_functions()
        self._holders: dict[int, list[torch.Tensor]] = {address: [] for address in addresses}
        self._names: dict[int, str] = {}  # to find a name takes a look at all objects of the process
        # A tensor class of the program may have code for its attributes, which must not run.
        with torch._C.DisableTorchFunctionSubclass():
            self._look(_all_tensors())
        self._ours = {id(self.__dict__), id(self._holders), id(self._graphs)}
        self._ours |= {*map(id, self._holders.values()), *map(id, self._graphs)}

    def _look(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if (holders := self._holders.get(_address(tensor))) is not None:
                holders.append(tensor)
        roots = [tensor for tensor in tensors if tensor.grad_fn is not None]
        self._graphs = [(root, _graph(root)) for root in roots[-_MOST_ROOTS:]]
        self._graphs.sort(key=lambda one: -len(self._holders.keys() & one[1].keys()))

    def of(self, address: int) -> tuple[str, int]:
        """Who holds it, and the address of the tensor whose graph does (0: it is held directly)."""
        for root, held in self._graphs:
            if address in held:
                return f"autograd graph of {self._name(root)} (saved by {held[address]})", _address(root)
        # C++ may own some of them: their Python objects live on without a name. No list or generator of ours may hold
        # them meanwhile: it would be found.
        for holder in islice(self._holders.get(address, ()), _MOST_HOLDERS):
            if (name := self._name(holder)) != UNKNOWN:
                return name, 0
        return UNKNOWN, 0

    def _name(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self._names:
            self._names[id(tensor)] = _name(tensor, self._ours, self._in_functions) or UNKNOWN
        return self._names[id(tensor)]
