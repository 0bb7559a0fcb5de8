"""Compiled graphs that run while tools are on: torch.compile's, those that Inductor alone compiled, and AOTInductor's models.

A graph that is compiled while a tool is on runs as the tools' option `compiled` says. torch compiles anew for a program with
tools on, so that graphs which were compiled before do not run then. Where torch's private interface is another than the one
used here, graphs are counted only.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from .._base.after_import import AfterImport
from .._base.core import GRAPH_CALLS, graph_choices, log_warn, run_graph, unobserved
from .._base.error_text import one_line
from .._base.verdict import Coverage
from .compat import is_graph
from .compiled_mode import TorchFunctionMode
from .graph_operators import GraphOperators

_LEVELS = ("torch", "aten")
_numbers = itertools.count()
_on: list[GraphRuns] = []
_threads_in_graphs: list[int] = []  # each runs a CompiledGraph, which notes its runs itself


class GraphRuns:
    """The graphs that run from when it is made to its end."""

    def __init__(self) -> None:
        _watch()
        self._ran: set[str | int] = set()  # keys, as below
        # By level: the backend and the number of operators, by the graph's name, or the address of code that is not known.
        self._unseen: dict[str, dict[str | int, tuple[str, int]]] = {level: {} for level in _LEVELS}
        self._eager: set[int] = set()  # addresses of functions
        self.folder_of_graphs: Callable[[], str] | None = None
        """Makes the folder in which graphs are saved before they are compiled."""
        self._compiled_before, self._compiled = _count_compiled(), -1  # -1: it counts
        _on.append(self)

    def end(self) -> None:
        """Counts stay."""
        if self in _on:
            _on.remove(self)
            self._compiled = _count_compiled()

    def note(self, graph: object, seen_at: tuple[str, ...], *, by_torch_compile: bool) -> None:
        """A graph runs; tools of these levels see its operators."""
        key: str | int = id(graph)
        facts = ("", 0)
        if isinstance(graph, CompiledGraph):
            key, facts = graph.name, (graph.backend, graph.operators.count)
        if by_torch_compile:
            self._ran.add(key)
        for level in _LEVELS:
            if level not in seen_at:
                self._unseen[level][key] = facts

    def note_eager(self, function: object) -> None:
        """A compiled function runs as without torch.compile."""
        self._eager.add(id(function))

    def add_to(self, coverage: Coverage, level: str) -> None:
        """Adds the graphs of which a tool of this level saw nothing; each once, however often it ran."""
        unseen = self._unseen[level].values()
        compiled = (_count_compiled() if self._compiled < 0 else self._compiled) - self._compiled_before
        unknown = max(0, compiled - len(self._ran))  # a graph that was compiled ran, too
        coverage.compiled += max(0, len(unseen) + unknown - coverage.graphs)
        coverage.eager += len(self._eager)
        if coverage.compiled and not coverage.graphs:  # else it is not known here which of them the tool looked into
            coverage.compiled_nodes = sum(count for _, count in unseen)
            coverage.backends = dict(Counter(backend for backend, _ in unseen if backend))


class CompiledGraph:
    """A graph that torch.compile handed to its backend while a tool was on.

    Args:
        name: in the rows of tools.
        compiled: the backend's code for it.
        operators: the graph itself.
        backend: the backend's name.
        seen_at: the levels at which tools see its operators, because the backend runs them by torch's own kernels.
    """

    def __init__(
        self, name: str, compiled: Callable[..., Any], operators: GraphOperators, backend: str, seen_at: tuple[str, ...]
    ) -> None:
        self.name = name
        self.operators, self.backend = operators, backend
        self._compiled, self._seen_at = compiled, seen_at
        self._results: list[_Result | None] = []  # of the latest call

    def run(self, *args: Any) -> Any:
        """The graph's results, as the tools of this thread want it to run."""
        wanted = graph_choices()
        if wanted == (None, None):
            return self._compiled(*args)
        if "nodes" in wanted and self.operators.runs_by_nodes:
            _note_graph(self, _LEVELS)
            return self.operators.run_nodes(*args)
        if "torch" in self._seen_at:
            _note_graph(self, self._seen_at)
            return self._compiled(*args)
        return self.run_compiled(*args)

    def run_compiled(self, *args: Any) -> Any:
        """The graph's results by the compiled code, whatever the tools of this thread want: a call for those that take graphs."""
        _note_graph(self, self._seen_at)
        held = [result.if_held() if result else None for result in self._results]
        _threads_in_graphs.append(threading.get_ident())
        try:
            results = run_graph(self.name, self._compiled, self.operators, args, held)
        finally:
            _threads_in_graphs.remove(threading.get_ident())
        del held  # its references do not count
        self._results = _noted(results)
        return results


@dataclass(frozen=True)
class _Result:
    """A result of a graph's call."""

    reference: weakref.ref[torch.Tensor]
    references: int
    """To the tensor, with that of the list in which the graph returned it."""

    def if_held(self) -> torch.Tensor | None:
        """The tensor, if the program holds it: a backend may hold it, too, and return the same object in each call."""
        result = self.reference()
        return result if result is not None and sys.getrefcount(result) >= self.references else None


def _noted(results: Any) -> list[_Result | None]:
    """None in the place of other values than tensors."""
    if not isinstance(results, tuple | list):
        return []
    return [
        _Result(weakref.ref(result), sys.getrefcount(result)) if isinstance(result, torch.Tensor) else None
        for result in results
    ]


def _count_compiled() -> int:
    """Graphs that torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _note_graph(graph: object, seen_at: tuple[str, ...] = (), *, by_torch_compile: bool = True) -> None:
    for runs in _on:
        runs.note(graph, seen_at, by_torch_compile=by_torch_compile)


@functools.cache
def _watch() -> None:
    """For the rest of the process."""
    _watch_models()
    for name, watch in (
        ("torch._dynamo.eval_frame", _watch_functions),
        ("torch._dynamo.output_graph", _watch_compiler),
        ("torch._dynamo.variables.torch_function", _hide_mode),
        ("torch._inductor.output_code", _watch_inductor),
    ):
        if name in sys.modules:
            watch(sys.modules[name])
        else:
            AfterImport(name, watch)
    # Its modules call operators while they are imported, by the first step of an optimizer: none of the program's calls.
    if "torch._dynamo" not in sys.modules:
        AfterImport("torch._dynamo", lambda _: None, unobserved)


def _watch_functions(eval_frame: ModuleType) -> None:
    """Compiled functions ask for the stance when they begin; whose turn it is stands in the frame that asks."""
    before: Any = getattr(eval_frame, "_callback_from_stance", None)
    if before is None:
        return

    def callback_from_stance(callback: Any) -> Any:
        chosen = before(callback)
        return _answer(sys._getframe(1), chosen) if _on else chosen

    eval_frame._callback_from_stance = callback_from_stance  # type: ignore[attr-defined]


def _answer(frame: FrameType, chosen: Any) -> Any:
    """The answer to a compiled function that begins; None: it is to run as without torch.compile."""
    name, function = frame.f_code.co_name, frame.f_locals.get("fn")
    if name == "_fn" and is_graph(frame):
        if not _is_known(function):
            _note_graph(function)
    elif name in ("compile_wrapper", "_fn") and chosen not in (None, False) and _runs_eagerly(function):
        for runs in _on:
            runs.note_eager(function)
        return None
    return chosen


def _runs_eagerly(function: Any) -> bool:
    """A tool wants it so. torch's own functions (torch.cond, scan) can do nothing but compile."""
    return "eager" in graph_choices() and not str(getattr(function, "__module__", "")).startswith("torch._")


def _is_known(function: Any) -> bool:
    """A CompiledGraph's, which notes its runs itself; also where torch has put a function of its own around it."""
    try:
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    except ValueError:  # an empty cell
        cells = []
    return any(isinstance(getattr(inner, "__self__", None), CompiledGraph) for inner in (function, *cells))


def _hide_mode(torch_function: ModuleType) -> None:
    """From torch.compile, which traces other calls under a mode than without: torch's functions in Python as the mode gets them,
    and some of these (Tensor.unflatten) it cannot trace then. Its guards still know that the mode is on."""
    kind: Any = getattr(torch_function, "SymbolicTorchFunctionState", None)
    before: Any = getattr(kind, "__init__", None)
    if before is None:
        return

    @functools.wraps(before)
    def init(self: Any, py_stack: Any, *rest: Any, **keywords: Any) -> None:
        modes = list(py_stack)
        before(self, modes, *rest, **keywords)
        for place in reversed([at for at, mode in enumerate(modes) if isinstance(mode, TorchFunctionMode)]):
            del self.mode_stack[place]

    kind.__init__ = init


def _watch_compiler(output_graph: ModuleType) -> None:
    """Graphs on their way to the backend."""
    kind: Any = getattr(output_graph, "OutputGraph", None)
    before: Any = getattr(kind, "call_user_compiler", None)
    if before is None:
        return

    @functools.wraps(before)
    def call_user_compiler(self: Any, graph: Any, *rest: Any, **keywords: Any) -> Any:
        # A package keeps the backend's own object.
        if not _on or self.export or getattr(self, "package", None) is not None:
            return before(self, graph, *rest, **keywords)
        operators = _operators_of(graph)
        name, backend = f"{GRAPH_CALLS}graph_{next(_numbers)}", _name_of(self.compiler_fn)
        if operators is not None and graph_choices()[0] == "check":
            _save_graph(graph, name, backend, _options_of(self.compiler_fn))  # before: a compiler may end the process
        # Constants that a compiler computes, and its trials, are none of the program's calls.
        compiled = unobserved(before, self, graph, *rest, **keywords)
        if operators is None:
            return compiled
        seen_at = _seen_at(_innermost(self.compiler_fn))
        return CompiledGraph(name, _recompiled(compiled), operators, backend, seen_at).run

    kind.call_user_compiler = call_user_compiler


def _operators_of(graph: Any) -> GraphOperators | None:
    """None: the graph cannot be copied; it is not looked into."""
    try:
        return GraphOperators(graph)
    except Exception as error:
        log_warn(f"a graph of torch.compile is not looked into: it cannot be copied: {error}")
        return None


def _save_graph(graph: Any, name: str, backend: str, options: dict[str, Any]) -> None:
    """Writes the graph into the folders of the tools that judge it, for op-tools repro."""
    from .saved_graphs import saved_form

    folders = [runs.folder_of_graphs() for runs in _on if runs.folder_of_graphs is not None]
    try:
        saved = saved_form(graph, name, backend, options) if any(folders) else None
        for folder in filter(None, folders):
            saved.write(Path(folder) / name)  # type: ignore[union-attr]
    except Exception as error:
        log_warn(f"{name} is not saved, and op-tools repro cannot make it smaller: {one_line(error)}")


def _options_of(backend: Any) -> dict[str, Any]:
    """Further arguments of torch.compile."""
    backend = getattr(backend, "_torchdynamo_orig_backend", backend)
    of_inductor = getattr(backend, "config", None)
    options = getattr(backend, "kwargs", None) or ({"options": of_inductor} if of_inductor else {})
    return dict(options) if isinstance(options, dict) else {}


def _recompiled(compiled: Any) -> Any:
    """As torch does with a module whose code is made at its first call: not as a module, which has a name on the stack."""
    owner = getattr(compiled, "__self__", compiled)
    if not isinstance(owner, _LazyGraphModule):
        return compiled
    _LazyGraphModule.force_recompile(owner)
    return owner.forward


def _innermost(backend: Any) -> Any:
    while True:
        inner = getattr(backend, "_torchdynamo_orig_backend", None) or getattr(backend, "compiler_fn", None)
        if inner is None:
            return backend
        backend = inner


def _seen_at(backend: object) -> tuple[str, ...]:
    """The levels at which a graph's operators come to the tools, because the backend is torch's own that runs them one by one."""
    of_torch: Any = sys.modules.get("torch._dynamo.backends.debugging")  # imported where one of them is the backend
    if backend is getattr(of_torch, "eager", None):
        return _LEVELS
    return ("aten",) if backend is getattr(of_torch, "aot_eager", None) else ()


def _name_of(backend: Any) -> str:
    backend = getattr(backend, "_torchdynamo_orig_backend", backend)
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", None)
    return str(name or type(backend).__name__)


def package_graph(name: str, compiled: Callable[..., Any], graph: torch.fx.GraphModule) -> CompiledGraph:
    """A package that a compiler made of a graph ahead of time, as a graph that torch.compile compiled.

    Args:
        name: of the compiler.
        compiled: takes the graph's arguments, and gives the graph's results.
        graph: in the form of torch.compile's.
    """

    return CompiledGraph(f"{GRAPH_CALLS}package_{next(_numbers)}", compiled, GraphOperators(graph), name, ())


def _watch_models() -> None:
    for kind in vars(getattr(torch._C, "_aoti", object())).values():
        for name in ("run", "boxed_run"):
            if isinstance(kind, type) and name in vars(kind):
                setattr(kind, name, _noting(getattr(kind, name)))


def _watch_inductor(output_code: ModuleType) -> None:
    """Inductor's code for a graph, which a program may ask for without torch.compile."""
    kind: Any = getattr(output_code, "CompiledFxGraph", None)
    if kind is None:
        return
    before = kind.__call__

    @functools.wraps(before)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _on and _is_asked_directly():
            _note_graph(self, by_torch_compile=False)
        return before(self, *args, **kwargs)

    kind.__call__ = call


def _is_asked_directly() -> bool:
    """The program runs a compiler's code, and no graph of torch.compile that is noted, nor its backward pass."""
    if threading.get_ident() in _threads_in_graphs or graph_choices() == (None, None):
        return False
    if torch._C._current_graph_task_id() != -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_graph(frame):
        frame = frame.f_back
    return frame is None


def _noting(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def noting(model: object, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() not in _threads_in_graphs:
            _note_graph(model, by_torch_compile=False)
        return run(model, *args, **kwargs)

    return noting
