"""The search for the smallest part of a graph that fails as the whole does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._base.captured_calls import load_call
from .._base.core import Error
from .._bisect.search import Answer, search
from .._conformance.workers import Worker
from .._torch.hypotheses import Hypothesis, explaining_call
from .._torch.saved_graphs import SavedGraph, cut, graph_folder, read_graph
from .trial import Trial, TrialResult, run_trial, start_trials
from .values import GraphValues, Value, made_inputs, values_of


@dataclass(frozen=True)
class ReducedGraph:
    """The smallest part that fails."""

    part: SavedGraph
    folder: str
    """A saved call of it, for op-tools repro."""
    result: TrialResult
    before: int
    """Nodes of the whole graph."""
    attempts: int
    hypotheses: tuple[Hypothesis, ...] = ()
    """Ways to compute it that explain its wrong results."""

    @property
    def notes(self) -> list[str]:
        """For the head of a script."""
        nodes = [node for node in self.part.nodes if not node.sets_state]
        lines = [f"{self.before} nodes before, {len(nodes)} now, {self.attempts} attempts"]
        lines += [f"as if computed {hypothesis.value}" for hypothesis in self.hypotheses]
        return lines + [
            f"{node.target.removeprefix('.')}: {' '.join(filter(None, [node.module, node.line])) or 'no line'}"
            for node in nodes
        ]


class _NoAttemptsError(Exception):
    """No attempts are left."""


class _Search:
    def __init__(
        self,
        graph: SavedGraph,
        values: GraphValues,
        into: Path,
        imports: Sequence[str],
        worker: Worker,
        attempts: int,
        first: GraphValues | None,
    ) -> None:
        self.first = first
        self.holds = False
        self.graph, self.values, self.into, self.imports = graph, values, into, tuple(imports)
        self.worker, self.most, self.attempts = worker, attempts, 0
        self.kinds: frozenset[str] = frozenset()
        self.smallest: frozenset[str] = frozenset()

    def try_part(self, part: SavedGraph, purpose: str) -> TrialResult:
        self.attempts += 1
        values = tuple(self.values.inputs_of(self.graph, part))
        folder = self.into / f"{self.attempts}_{purpose}"
        first = tuple(self.first.inputs_of(self.graph, part)) if self.first else ()
        trial = Trial(part, values, self.values.are_written(part), str(folder), self.imports, first, self.holds)
        result, failure = self.worker.work(trial)
        return TrialResult.of_failure(failure) if failure else result

    def answers(self, sets: Sequence[frozenset[str]], say: Callable[[str], None]) -> list[Answer]:
        return [self.answer(names, say) for names in sets]

    def answer(self, names: frozenset[str], say: Callable[[str], None]) -> Answer:
        if self.attempts >= self.most:
            raise _NoAttemptsError
        result = self.try_part(cut(self.graph, sorted(names)), "part")
        fails = bool(result.kinds & self.kinds)
        outcome = ", ".join(sorted(result.kinds)) if fails else "right"
        say(f"shrink {self.attempts}: {len(names)} of {len(self.graph.nodes)} nodes: {outcome}")
        if fails and (not self.smallest or len(names) < len(self.smallest)):
            self.smallest = names
        return "good" if fails else "bad"


def reduce_graph(
    folder: str,
    into: str,
    *,
    backend: str = "",
    imports: Sequence[str] = (),
    attempts: int = 200,
    timeout: float = 60,
    say: Callable[[str], None] = lambda _: None,
) -> ReducedGraph:
    """Looks for the smallest part of a saved graph that fails when it is compiled alone.

    Args:
        folder: of the graph, or of a failed call of it.
        into: a folder that is there, for files.
        backend: the compiler; "": that of the program.
        imports: modules that bring it, or its device.
        attempts: at most.
        timeout: seconds for each of them, after which the compiler is taken to hang.
        say: gets a line for each attempt.

    Raises:
        op_tools.Error: there is no graph, its operators raise without the compiler, or it does not fail.
    """
    place = graph_folder(Path(folder))
    if place is None:
        raise Error(f"{folder}: no graph of torch.compile was saved there")
    graph = read_graph(place)
    graph = _compiled_by(graph, backend)
    inputs = _inputs_of(Path(folder), place, graph)
    values = values_of(graph, inputs)
    # A compiler may have the sizes of the first call in its code.
    first = values_of(graph, made_inputs(graph)) if graph.is_for_other_sizes(inputs) else None
    with Worker(start_trials, run_trial, seconds=timeout) as worker:
        state = _Search(graph, values, Path(into), imports, worker, attempts, first)
        names = [node.name for node in graph.nodes if not node.sets_state]
        whole = state.try_part(cut(graph, names), "whole")
        if not whole.kinds:  # unless a call writes the memory of earlier results
            state.holds = True
            whole = state.try_part(cut(graph, names), "held")
        if not whole.kinds:
            raise Error(f"{folder}: the graph does not fail when it is compiled by {graph.backend} again")
        state.kinds, state.smallest = whole.kinds, frozenset(names)
        say(f"shrink 1: all {len(graph.nodes)} nodes: {', '.join(sorted(whole.kinds))}: {whole.note}")
        try:
            outcome = search(names, lambda sets: state.answers(sets, say), good=names)
        except _NoAttemptsError:
            say(f"shrink: {attempts} attempts are done")
        else:
            state.smallest = frozenset(outcome.items) or state.smallest
        return _finished(state)


def _finished(state: _Search) -> ReducedGraph:
    """The smallest part, run once more for its files; without the nodes that switch autocast and gradients where it fails so."""
    for kept_state in (False, True):
        part = cut(state.graph, sorted(state.smallest), kept_state)
        result = state.try_part(part, "smallest")
        if result.kinds & state.kinds:
            break
    saved = f"{result.saved}/device" if result.saved else _written_call(state, part)
    explanations = tuple(explaining_call(saved)) if "values" in result.kinds else ()
    return ReducedGraph(part, saved, result, len(state.graph.nodes), state.attempts, explanations)


def _compiled_by(graph: SavedGraph, backend: str) -> SavedGraph:
    """The graph with another compiler, whose options are its own."""
    return replace(graph, backend=backend, options={}) if backend and backend != graph.backend else graph


def _inputs_of(folder: Path, place: Path, graph: SavedGraph) -> list[Any]:
    """Those of a saved call of the graph, or made."""
    calls = [folder, *sorted(place.glob("*/device"))]
    call = next((each for each in calls if (each / "input.pth").is_file()), None)
    if call is None:
        return made_inputs(graph)
    saved = load_call(call)
    metas = iter(saved.meta.get("inputs", []))
    inputs = list(saved.args)
    for arg in inputs:
        if isinstance(arg, torch.Tensor):
            meta: dict[str, Any] = next(metas, {})
            arg.requires_grad_(bool(meta.get("requires_grad")))
    return inputs


def _written_call(state: _Search, part: SavedGraph) -> str:
    """A saved call of a part whose process gave none, because it died or hung."""
    values = state.values.inputs_of(state.graph, part)
    place = state.into / part.name
    folder = place / "0"
    replace(part, examples=tuple(map(_form_of_value, values))).write(place)
    folder.mkdir()
    args = tuple(value.content for value in values)
    torch.save({"name": part.name, "args": args, "kwargs": {}, "id": 0}, folder / "input.pth")
    inputs = [example for example in map(_form_of_value, values) if "dtype" in example]
    meta = {"format": 1, "name": part.name, "level": "torch", "id": 0, "step": 0, "inputs": inputs, "state": part.state}
    (folder / "meta.json").write_text(json.dumps(meta))
    return str(folder)


def _form_of_value(value: Value) -> dict[str, Any]:
    if not isinstance(value.content, torch.Tensor):
        return {"number": value.content, "constant": True}
    tensor = value.content
    return {
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype),
        "device": str(tensor.device),
        "layout": str(tensor.layout),
        "requires_grad": value.wants_gradient,
        "is_leaf": True,
        "storage": 0,
        "offset": 0,
    }
