"""The text of a repro script: the part of the call, and the common part (_body.py) below it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error
from .._torch.backends import is_simulated
from .._torch.saved_graphs import SavedGraph
from ._expected import Expected
from ._literals import INLINE, comment, elements_to_write, expression, flat_tensor
from ._saved import Saved, View

_MARK = "# --- From here on: pasted.\n"
_STUB = """\
# The simulated device waits to be asked, and torch wants a module of its name.
ctypes.CDLL({path!r}, ctypes.RTLD_GLOBAL).op_tools_load_device()
stub = types.ModuleType("torch.sim")
stub._is_in_bad_fork, stub.is_initialized, stub._initialized = lambda: False, lambda: True, True
torch._register_device_module("sim", stub)
atexit.register(time.sleep, 0.05)  # autograd's threads release the last graph shortly after backward
"""
_NO_LEAF = """\
class NoLeaf(torch.autograd.Function):
    \"\"\"Makes an input that an operator may change in place, as it was in the program.\"\"\"

    @staticmethod
    def forward(ctx, anchor, tensor):
        return tensor.detach()

    @staticmethod
    def backward(ctx, gradient):
        return None, None


"""


@dataclass(frozen=True)
class Plan:
    """How a script is written."""

    device: str
    imports: tuple[str, ...] = ()
    """Modules that the script imports."""
    libraries: tuple[str, ...] = ()
    """Shared libraries that it loads."""
    calls: int = 1
    """Runs on the device; a failure may be in the second run only."""
    holds: bool = False
    """The next call, with other inputs, must not change the results of a call of a graph."""
    expected: tuple[Expected, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    """Results that are not compared, and why."""
    raises: bool = False
    """The call has to raise an error."""
    backward: bool = True
    differentiable: frozenset[str] = frozenset()
    """Results of a compiled graph that have to have a gradient function."""


@dataclass(frozen=True)
class Script:
    """A script and its files."""

    text: str
    plan: Plan
    elements: int
    """Numbers that stand in it."""
    side_file: dict[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that it loads from the file beside it."""


def is_inline(saved: Saved, plan: Plan) -> bool:
    """All numbers may stand in the script."""
    tensors = [*saved.memories, *(one for of in plan.expected for one in of.tensors)]
    return sum(elements_to_write(one.reshape(-1)) for one in tensors) <= INLINE


def _contiguous(view: View) -> bool:
    expected = 1
    for size, step in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


class Writer:
    """Writes the parts of a script."""

    def __init__(self, saved: Saved, plan: Plan, side_name: str) -> None:
        self.saved, self.plan, self.side_name = saved, plan, side_name
        self.side: dict[str, torch.Tensor] = {}
        self.elements = 0
        self.changes_inputs = _changes_inputs(saved)
        self.inline = is_inline(saved, plan)

    def memory(self, number: int) -> str:
        return self.numbers(f"memory {number}", self.saved.memories[number])

    def numbers(self, name: str, flat: torch.Tensor) -> str:
        """An expression for a tensor of one dimension."""
        count = elements_to_write(flat)
        if self.inline or count <= INLINE // 8:
            try:
                text = flat_tensor(flat)
            except ValueError:
                pass  # of a dtype that has no numbers
            else:
                self.elements += count
                return text
        self.side[name] = flat
        return f"saved[{name!r}]"

    def shaped(self, name: str, tensor: torch.Tensor) -> str:
        text = self.numbers(name, tensor.reshape(-1))
        return text if tensor.dim() == 1 else f"{text}.view({list(tensor.shape)})"

    def expected(self) -> str:
        """The judge's expectations of each result."""
        lines = (
            ["# Each element has to be as near to that of any of `values` as `limit` says."]
            if self.plan.expected
            else []
        )
        lines.append("EXPECTED = {")
        for expected in self.plan.expected:
            lines.append(f"    {expected.name!r}: {{")
            lines += [f"        {key!r}: {text}," for key, text in self._fields(expected)]
            lines.append("    },")
        return "\n".join([*lines, "}"]) + "\n"

    def _fields(self, expected: Expected) -> Iterator[tuple[str, str]]:
        if expected.limit is None:
            return
        values = [self.shaped(f"{expected.name}: value {i}", value) for i, value in enumerate(expected.values)]
        yield "values", f"[{', '.join(values)}]"
        yield (
            "limit",
            repr(expected.limit.item())
            if expected.limit.dim() == 0
            else self.shaped(f"{expected.name}: limit", expected.limit),
        )
        yield "rmse", repr(expected.rmse)
        yield "shape", f"[{expected.shape}]"
        if expected.dtype:
            yield "dtype", f"[{expected.dtype}]"
        if expected.strides:
            yield "strides", f"{[list(strides) for strides in expected.strides]}"
        if expected.aliases is not None:
            yield "aliases", f"[{list(expected.aliases)}]"
        if expected.only_sizes:
            yield "only_sizes", "True"
        if expected.name in self.plan.differentiable:
            yield "gradient function", "[True]"

    def view(self, view: View) -> str:
        flat, count = f"m{view.memory}", len(self.saved.memories[view.memory])
        shape, strides = list(view.shape), list(view.strides)
        numel = 1
        for size in shape:
            numel *= size
        whole = view.offset == 0 and numel == count and _contiguous(view)
        if view.spread:
            text = (
                f"{flat}.new_empty_strided({shape}, {list(view.spread)}).copy_({flat}.as_strided({shape}, {strides}))"
            )
        elif whole:
            text = flat if len(shape) == 1 else f"{flat}.view({shape})"
        else:
            text = f"{flat}.as_strided({shape}, {strides}, {view.offset})"
        text = f"{text}.conj()" if view.conj else text
        return f"torch._neg_view({text})" if view.neg else text

    def inputs(self) -> str:
        users: dict[int, list[View]] = {}
        for view in [*self.saved.inputs, *filter(None, self.saved.gradients if self.plan.backward else [])]:
            users.setdefault(view.memory, []).append(view)
        lines = []
        for number, views in sorted(users.items()):
            place = ', "cpu"' if any(view.on_cpu for view in views) else ""
            lines.append(f"m{number} = put({self.memory(number)}{place})")
        names = []
        needs_graph = any(view.requires_grad for view in self.saved.inputs)
        for number, view in enumerate(self.saved.inputs):
            text = self.view(view)
            if view.requires_grad:
                text = f"NoLeaf.apply(anchor, {text})" if self.changes_inputs else f"{text}.detach().requires_grad_()"
            lines.append(f"x{number} = {text}")
            names.append(f"x{number}")
        gradients = self.saved.gradients if self.plan.backward else []
        arriving = ["None" if view is None else self.view(view) for view in gradients]
        head = 'def inputs(put):\n    """The tensors of the call, and the gradients that arrive at its results."""\n'
        if any("generator=random" in line for line in lines):
            lines.insert(0, "random = torch.Generator().manual_seed(0)")
        if needs_graph and self.changes_inputs:
            lines.insert(0, "anchor = torch.ones(1, requires_grad=True)")
        lines.append(f"return [{', '.join(names)}], [{', '.join(arriving)}]")
        return head + "".join(f"    {line}\n" for line in lines)

    def call(
        self, function: str = "call", doc: str = "The operator.", named: tuple[torch.Tensor, str] | None = None
    ) -> str:
        """A function of the script. `named`: the text for an argument that is none of the call's tensors."""
        saved = self.saved

        def name(tensor: torch.Tensor) -> str:
            if named and tensor is named[0]:
                return named[1]
            if id(tensor) in saved.index:
                return f"x[{saved.index[id(tensor)]}]"
            if tensor.dim() > 0:
                raise Error(f"{saved.path}: an argument is a tensor that the call does not have")
            return expression(tensor.item(), name)  # a number that an operator takes as a tensor

        def argument(value: Any) -> str:
            is_device = isinstance(value, str) and value.partition(":")[0] in saved.device_types
            return "device" if is_device else expression(value, name)

        items = [argument(value) for value in saved.args]
        for key, value in saved.kwargs.items():
            if not isinstance(key, str) or not key.isidentifier():
                raise Error(f"{saved.path}: {key!r} is no name of an argument")
            items.append(f"{key}={argument(value)}")
        lines = list(self.state_lines())
        text = f"return {saved.function}({', '.join(items)})"
        doc = "The graph, compiled." if saved.graph else doc
        head = f'def {function}(x, device):\n    """{doc}"""\n'
        indent = "    "
        for line in lines:
            head += f"{indent}{line}\n"
            indent += "    " if line.endswith(":") else ""
        return head + f"{indent}{text}\n"

    def state_lines(self) -> list[str]:
        state, lines = self.saved.state, []
        if self.saved.call.meta.get("rng_consumed"):
            lines.append("torch.manual_seed(0)")
            if self.saved.random_state is not None:
                self.side["random state of the CPU"] = self.saved.random_state
                lines.append('torch.set_rng_state(saved["random state of the CPU"])')
        if self.saved.call.meta.get("level", "torch") != "torch":
            return lines
        dtype = autocast_dtype(self.saved, self.plan.device)
        if dtype:
            lines.append('kind = device.partition(":")[0]')
            lines.append(f"torch.set_autocast_dtype(kind, {dtype})")
            lines.append(_AUTOCAST_ON)
        if state.get("inference_mode"):
            lines.append("with torch.inference_mode():")
        elif not state.get("grad_enabled", True):
            lines.append("with torch.no_grad():")
        return lines


_AUTOCAST_ON = "with autocast(kind):"
_AUTOCAST = """\
@contextlib.contextmanager
def autocast(kind):
    torch.set_autocast_enabled(kind, True)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled(kind, False)


"""


def _dtype(name: Any) -> str:
    """torch.bfloat16 of a file's text; "" where it is none."""
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    return str(dtype) if isinstance(dtype, torch.dtype) else ""


def autocast_dtype(saved: Saved, device: str) -> torch.dtype | None:
    """That of the call where autocast was on for its device."""
    autocast = saved.state.get("autocast") or {}
    if saved.call.meta.get("level", "torch") != "torch":
        return None
    name = autocast.get(device.partition(":")[0]) or autocast.get(saved.device.partition(":")[0])
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _changes_inputs(saved: Saved) -> bool:
    if saved.graph:
        return True  # it may
    base = saved.call.name.partition("::")[2].partition(".")[0] or saved.call.name.rpartition(".")[2]
    in_place = (base.endswith("_") and not base.endswith("__")) or base in (
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
    )
    kwargs = saved.call.kwargs
    by_keyword = kwargs.get("out") is not None or kwargs.get("inplace") is True
    return in_place or by_keyword or any(one is True for one in saved.call.args)  # F.relu(x, True)


def _flags(saved: Saved) -> str:
    state, lines = saved.state, []
    if state.get("deterministic") is True:
        lines.append("torch.use_deterministic_algorithms(True)")
    if state.get("float32_matmul_precision") in ("high", "medium"):
        lines.append(f"torch.set_float32_matmul_precision({state['float32_matmul_precision']!r})")
    default = _dtype(state.get("default_dtype"))
    if default not in ("", "torch.float32"):
        lines.append(f"torch.set_default_dtype({default})")
    return "".join(line + "\n" for line in lines)


def _loads(plan: Plan) -> tuple[list[str], str]:
    """Modules to import, and the lines that load libraries."""
    modules, lines = [], ""
    for module in plan.imports:
        if not all(part.isidentifier() for part in module.split(".")):
            raise Error(f"--import {module!r}: that is no name of a module")
        modules.append(module)
    for path in plan.libraries:
        if is_simulated(plan.device):
            modules += ["atexit", "ctypes", "time", "types"]
            lines += _STUB.format(path=path)
        else:
            lines += f"torch.ops.load_library({path!r})\n"
    return modules, lines


def _first_call(graph: SavedGraph, args: Sequence[Any]) -> str:
    """A call with the sizes that the program compiled the graph for, where they are not those of `args`; "" otherwise, and where autocast
    was on, without which it would be compiled again."""
    if not graph.is_for_other_sizes(args) or graph.state.get("autocast"):
        return ""
    values = []
    for example in graph.examples:
        if "dtype" not in example:
            values.append(repr(example.get("number")))
            continue
        size, dtype = tuple(example["shape"]), example["dtype"]
        is_float = dtype.startswith(("torch.float", "torch.bfloat"))
        values.append(
            f"torch.{'ones' if is_float else 'zeros'}({size}, dtype={dtype}, device=DEVICE"
            f"{', requires_grad=True' if example.get('requires_grad') and is_float else ''})"
        )
    lines = ["# The first call, with other sizes: it is compiled for these.", "compiled("]
    return "\n".join([*lines, *(f"    {value}," for value in values), ")"]) + "\n"


def _compiled(graph: SavedGraph, args: Sequence[Any]) -> str:
    """The graph, and the line that compiles it."""
    options = "".join(f", {key}={value!r}" for key, value in graph.options.items() if key.isidentifier())
    line = f"compiled = torch.compile(graph, backend={graph.backend!r}, dynamic={graph.dynamic}{options})"
    return f"{graph.source('graph')}\n\n{line}\n{_first_call(graph, args)}\n\n"


def _pasted(*files: str) -> str:
    """The pasted parts."""
    texts = [Path(__file__).with_name(file).read_text().split(_MARK)[1].strip("\n") for file in files]
    return "\n\n\n".join(texts)


def write(saved: Saved, plan: Plan, side_name: str, head: str) -> Script:
    """The script for a call.

    Args:
        saved: the call.
        plan: how it is written.
        side_name: the name of the file beside it.
        head: its docstring.
    """
    writer = Writer(saved, plan, side_name)
    compiled = _compiled(saved.graph, saved.args) if saved.graph else ""
    parts = [writer.inputs(), compiled + writer.call(), writer.expected()]
    options = [
        f"calls={plan.calls}" if plan.calls != 1 else "",
        "raises=True" if plan.raises else "",
        "overwritten=overwritten" if plan.holds else "",
    ]
    arguments = ["inputs", "call", "DEVICE", "EXPECTED", *filter(None, options)]
    modules = [module for module in ("math", "operator") if f"{module}." in compiled]
    pasted = ("_run_body.py", "_body.py", *(["_held_body.py"] if plan.holds else []))
    return script_of(writer, head, parts, pasted, arguments, modules)


def script_of(
    writer: Writer,
    head: str,
    parts: Sequence[str],
    pasted: Sequence[str],
    arguments: Sequence[str],
    modules: Sequence[str] = (),
) -> Script:
    """The script of these parts.

    Args:
        writer: has written the parts.
        head: the docstring.
        parts: texts of functions and constants, the first makes the inputs.
        pasted: files of this folder, whose parts behind the mark follow.
        arguments: of the function `main` in them.
        modules: of the standard library, that the parts use.
    """
    saved, plan = writer.saved, writer.plan
    text_of_parts = "".join(f"{part}\n\n" for part in parts)
    imported, loads = _loads(plan)
    uses_autocast = _AUTOCAST_ON in text_of_parts
    imported += [*modules, *(["contextlib"] if uses_autocast else []), *(["pathlib"] if writer.side else [])]
    standard = sorted({*imported, "platform", "sys"} - set(plan.imports))
    text = '"""' + "\n".join(comment(line) for line in head.splitlines()).strip() + '\n"""\n\n'
    text += "".join(f"import {module}\n" for module in standard) + "\nimport torch\n"
    text += "".join(f"import {module}\n" for module in plan.imports) + "\n"
    text += "from math import inf, nan\n" if re.search(r"\b(inf|nan)\b", text_of_parts) else ""
    text += loads + _flags(saved) + f"DEVICE = sys.argv[1] if len(sys.argv) > 1 else {plan.device!r}\n"
    if writer.side:
        text += f"saved = torch.load(pathlib.Path(__file__).with_name({writer.side_name!r}), weights_only=True)\n"
    text += "\n\n" + (_NO_LEAF if "NoLeaf" in parts[0] else "") + (_AUTOCAST if uses_autocast else "")
    text += f"{text_of_parts}{_pasted(*pasted)}\n\n\n"
    text += f'if __name__ == "__main__":\n    sys.exit(main({", ".join(arguments)}))\n'
    return Script(text, plan, writer.elements, writer.side)


__all__ = ["Plan", "Script", "Writer", "is_inline", "script_of", "write"]
