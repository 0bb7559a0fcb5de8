"""The names of the operators that tools can see."""

from __future__ import annotations

import difflib
import functools
import re

import torch

from .._base.core import add_other_names, admitted, function_name, known_ops

# Where users take functions from. Several of them are known to torch by another name: torch.unique is
# torch.functional.unique, torch.sparse.mm is torch._C._sparse._sparse_mm.
_PUBLIC = ("", "nn.functional.", "functional.", "linalg.", "fft.", "special.", "sparse.", "nn.init.")


def torch_names() -> list[str]:
    """Level torch: all functions that torch hands to a torch-function mode, as users write them; sorted."""
    functions = torch.overrides.get_overridable_functions()
    names = {function_name(function) for group in functions.values() for function in group}
    names.update(f"torch.{name}" for name in dir(torch._C._VariableFunctions) if not name.startswith("_"))
    return sorted(names)


def aten_names(*, composite: bool) -> list[str]:
    """Level aten: all operators that the dispatcher knows now.

    Args:
        composite: also composite operators, which tools see only when a filter names them.

    Raises:
        op_tools.Error: when the aten level cannot be used in this process.
    """
    return [name for name, is_composite in known_ops() if composite or not is_composite]


def other_names() -> list[tuple[str, str]]:
    """Level torch: (name as tools see it, name as users may write it) of each public function that has two."""
    pairs = []
    for prefix in _PUBLIC:
        place = functools.reduce(getattr, prefix.split(".")[:-1], torch)
        # The module's own dict: getattr would import the modules that torch imports on demand.
        for own, function in list(vars(place).items()):
            if own.startswith("_") or not callable(function) or isinstance(function, type):
                continue
            name = function_name(function)
            if name != f"torch.{prefix}{own}":
                pairs.append((name, f"torch.{prefix}{own}"))
    return pairs


@functools.cache
def tell_core() -> None:
    """Gives the core these names; once, before the first filter."""
    add_other_names(other_names())


def near_names(item: str, names: list[str], count: int = 3) -> list[str]:
    """The names that the item of a filter may mean, the nearest first; those whose last part is the item's own before
    others."""
    last = re.split(r"[.:]", item.removesuffix(".*"))[-1]
    same = [name for name in names if last and last in re.split(r"[.:]", name)]
    return [
        *dict.fromkeys(
            [*difflib.get_close_matches(item, same, count, 0), *difflib.get_close_matches(item, names, count)]
        )
    ][:count]


def advice(item: str, level: str) -> str:
    """The hint behind "ops=: 'torch.Tensor.srot' matched no operator that was called" of a tool of that level."""
    known = {"torch": torch_names() + [other for _, other in other_names()], "aten": aten_names(composite=True)}
    matched = {one: len(admitted(names, item, "")) for one, names in known.items()}
    if matched[level]:
        return "; there are such operators, but the program called none"
    other = "aten" if level == "torch" else "torch"
    if matched[other]:
        return f"; {matched[other]} of level {other} would be (level='{other}')"
    near = near_names(item, known[level]) or near_names(item, known[other])
    return f"; did you mean {' or '.join(near)}?" if near else "; op-tools ops lists the names"
