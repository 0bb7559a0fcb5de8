"""The script of a finding of OpInvariance: the call, the other run, and the results that must have the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error
from ._saved import Saved
from ._script import Plan, Script, Writer, script_of

_WAYS = {"threads": "other_threads", "stream": "other_stream"}
_RUNS = 8
_INDENT = "    "


def _numbers(places: Sequence[int]) -> str:
    """A list of numbers, those that follow each other as ranges."""
    parts: list[list[int]] = []
    for place in places:
        if parts and place == parts[-1][-1] + 1:
            parts[-1].append(place)
        else:
            parts.append([place])
    texts = [f"*range({part[0]}, {part[-1] + 1})" if len(part) > 3 else ", ".join(map(str, part)) for part in parts]
    return f"[{', '.join(texts)}]"


def _after_changes(text: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """The expression of a tensor after its changes."""
    of_elements = text
    for step in steps:
        if "places" in step:
            text = f"places({text}, {int(step['dim'])}, {_numbers([int(place) for place in step['places']])})"
        elif "fill" in step:
            number = f'float("{float(step["fill"])}")'
            text = f"filled({text}, {int(step['dim'])}, {int(step['count'])}, {number}, {bool(step['in_front'])})"
        elif "join" in step:
            text = f"in_a_row({text})"
        elif "pack" in step:
            text = f"packed_sequences({text})"
        else:
            return f"{'apart' if 'gaps' in step else 'moved'}({text})"
    return f"dense({text}, {of_elements})"


def _picked(text: str, steps: Sequence[Mapping[str, Any]]) -> str:
    return _after_changes(text, steps) if steps else text


def result_names(saved: Saved, backward: bool) -> dict[int, str]:
    """The names that a script has for the results, by their numbers among the tensors of the result and of the inputs; of a backward
    pass: by those of the inputs."""
    inputs = range(len(saved.inputs))
    if backward:
        return {number: f"gradient of input {number}" for number in inputs}
    leaves = _leaves(saved.call.result)
    tensors = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    names = {place: f"output {number}" if len(leaves) > 1 else "output" for place, number in enumerate(tensors)}
    return names | {len(tensors) + number: f"input {number} after the call" for number in inputs}


def _leaves(value: Any) -> list[Any]:
    """As `flat` of the scripts has them."""
    if isinstance(value, dict | list | tuple):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(item)]
    return [value]


class _Finding:
    def __init__(self, saved: Saved) -> None:
        variation = saved.variation
        if not isinstance(variation, dict) or not isinstance(variation.get("changes"), dict):
            raise Error(f"{saved.path}: its finding of OpInvariance is damaged")
        self.saved, self.changes = saved, variation["changes"]
        self.relation, self.text = str(variation.get("relation")), str(variation.get("text"))
        self.backward = variation.get("phase") == "backward"
        self.names = result_names(saved, self.backward)

    def changed(self) -> str:
        """The function that gives the other run's tensors, of those of the call on the CPU."""
        lines = []
        for name, tensors in (("x", self.changes["inputs"]), ("g", self.changes["gradients"])):
            items = [
                f"{int(number)}: {_after_changes(f'{name}[{int(number)}]', steps)}" for number, steps in tensors.items()
            ]
            lines.append("{" + ", ".join(items) + "}")
        return (
            'def changed(x, g):\n    """The tensors that the other run has in place of these, by number; and the gradients."""\n'
            f"    return (\n        {lines[0]},\n        {lines[1]},\n    )\n"
        )

    def pairs(self) -> str:
        """The function that gives the results that must have the same bits."""
        lines = []
        for number, steps in self.changes["program"].items():
            name = self.names.get(int(number), "")
            if not name:
                raise Error(f"{self.saved.path}: its finding of OpInvariance is damaged: there is no result {number}")
            program, other = (
                _picked(f"program[{name!r}]", steps),
                _picked(f"other[{name!r}]", self.changes["other"][number]),
            )
            lines.append(f"    if program.get({name!r}) is not None:\n        yield {name!r}, {program}, {other}\n")
        return (
            'def pairs(program, other):\n    """What must have the same bits: of the call\'s results, and of the other run\'s."""\n'
            + ("".join(lines) or "    yield from ()\n")
        )

    def masked_call(self, writer: Writer) -> str:
        """The call with a mask of the other run: in place of the causal order, or such that it keeps packed sequences apart."""
        order, packing, saved = self.changes.get("order"), self.changes.get("packing"), self.saved
        parameters = str((order or packing)["parameters"]).split()
        mask_name = str((order or packing)["name"])

        def argument(name: str) -> Any:
            place = parameters.index(name)
            return saved.args[place] if place < len(saved.args) else saved.kwargs.get(name)

        def text_of(name: str) -> str:
            value = argument(name)
            return "None" if value is None else f"x[{saved.index[id(value)]}]"

        query, key = text_of("query"), text_of("key")
        if order:
            text = (
                f"order({query}.shape[-2], {key}.shape[-2], {int(order['first'])}, {int(order['left_out'])}, {query})"
            )
        else:
            own = text_of(mask_name)
            text = f"packing({int(packing['sequences'])}, {query}, {key}, {own}, {bool(packing['is_causal'])})"
        mask, args, kwargs = torch.empty(0), list(saved.args), dict(saved.kwargs)
        for name, value in ((mask_name, mask), ("is_causal", False)):
            place = parameters.index(name)
            if place < len(args):
                args[place] = value
            else:
                kwargs[name] = value
        other = Writer(replace(saved, args=tuple(args), kwargs=kwargs), writer.plan, writer.side_name)
        return other.call("other_call", "The operator with the mask of the other run.", (mask, text))

    def head(self, plan: Plan, name: str, reproduced: int, runs: int) -> str:
        where = (self.saved.call.meta.get("stack") or [""])[0]
        lines = [
            self.text or self.saved.call.name,
            "",
            f"Shows it: {reproduced} of {runs} runs in fresh processes, torch {torch.__version__}, device {plan.device}.",
            f"    python {name} [DEVICE]    exit status 1: other bits, 0: the same bits, 2: nothing compared",
        ]
        if where:
            lines.append(f"The call was made at {where}.")
        lines += self.saved.notes
        what = (
            "The call is run again on the same inputs"
            if self.relation == "repeat"
            else "The call is run twice, the second time as"
        )
        rest = "" if self.relation == "repeat" else f" the relation `{self.relation}` says"
        return "\n".join(
            [*lines, "", f"{what}{rest}: the results must have the same bits, whether or not they are right."]
        )


def write_relation(saved: Saved, plan: Plan, path: Path, reproduced: int, runs: int) -> Script:
    """The script for a finding of OpInvariance. Raises op_tools.Error where its file is damaged."""
    finding = _Finding(saved)
    plan = replace(plan, backward=finding.backward)
    writer = Writer(saved, plan, path.with_suffix(".pth").name)
    parts = [writer.inputs(), writer.call(), finding.pairs()]
    arguments = ["inputs", "call", "DEVICE", "pairs"]
    if finding.relation == "repeat":
        arguments.append(f"runs={_RUNS}")
    elif way := _WAYS.get(finding.relation):
        arguments.append(f"way={way}")
    else:
        parts.append(finding.changed())
        arguments.append("changed=changed")
    if finding.changes.get("order") or finding.changes.get("packing"):
        parts.append(finding.masked_call(writer))
        arguments.append("other_call=other_call")
    if "NoLeaf" in parts[0]:
        arguments.append("no_leaf=NoLeaf")
    if threads := saved.state.get("num_threads"):
        parts.append(f"torch.set_num_threads({int(threads)})\n")
    head = finding.head(plan, path.name, reproduced, runs)
    return script_of(writer, head, parts, ("_run_body.py", "_relation_body.py"), arguments, ("contextlib",))
