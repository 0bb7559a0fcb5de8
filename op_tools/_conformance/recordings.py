"""Cases out of recordings (OpRecord). A recording has shapes, dtypes, strides and scalars of each call and no values: those
are made by the generator, integers within the limits that the program's had."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error, log_warn
from .._tools.record import RECORDING, RecordedCall, RecordedTensor, Recording, read_recording
from .case import Case, leaves_of, make_call, resolve
from .models import with_plausible_values
from .recorded import variant_of, without_gradient
from .trees import DEVICE, TensorSpec, contiguous_strides, encode, map_specs

_PLACE = re.compile(r"(args|kwargs)((?:\[\d{1,4}\]|\.[^.\[\]]+)+)")
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[\]]+)")
_RESULT = re.compile(r"result(?:\[(\d+)\])?")
_SLICE = re.compile(r"slice\((None|-?\d+), (None|-?\d+), (None|-?\d+)\)")
_COMPLEX = re.compile(r"complex\((\S+), (\S+)\)")
_INDEXING = ("__getitem__", "__setitem__")
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def recordings_in(root: Path) -> list[Path]:
    """The recordings that a path names: a file, or those in a folder."""
    if root.is_file():
        return [root] if root.suffix in (RECORDING, ".jsonl") else []
    return sorted(root.glob(f"*{RECORDING}"))


def recorded_cases(path: Path) -> Iterator[Case]:
    """The different calls of a recording. Those that no case can hold are named in the log, with their number. Of a program
    that used an accelerator the calls on the CPU are left out.

    Raises:
        op_tools.Error: it is no recording, or none of its calls is a case.
    """
    recording = read_recording(path)
    if recording.damage:
        log_warn(f"{path}: is damaged, {recording.damage}: the calls before that are cases")
    calls, left_out, known, count_of_cases = _calls_of(recording), Counter[str](), set[Any](), 0
    for call, gradients in calls:
        if (facts := _facts(call, gradients)) in known:
            continue
        known.add(facts)
        try:
            case = _case_of(call, gradients)
        except Error as error:
            left_out[f"{call.op}: {error}".partition("\n")[0]] += 1
        else:
            count_of_cases += 1
            yield case
    for reason, count in left_out.items():
        log_warn(f"{path}: {count} different calls are no cases: {reason}")
    if not count_of_cases:
        raise Error(f"{path}: no call of it can be a case")


def _calls_of(recording: Recording) -> list[tuple[RecordedCall, frozenset[int]]]:
    """The calls, each with the places of the inputs that got a gradient among its inputs."""
    calls, gradients = [], dict[int, set[int]]()
    for call in recording.calls:
        if call.phase == "backward" and call.level == "torch":  # at the aten level it is a call of its own
            gradients.setdefault(call.forward_id, set()).update(_result_number(place) for place, _ in call.outputs)
        elif not call.error:
            calls.append(call)
    away = [any(one.device not in ("cpu", "meta") for _, one in (*call.inputs, *call.outputs)) for call in calls]
    if any(away):
        calls = [call for call, is_away in zip(calls, away, strict=True) if is_away]
    return [(call, frozenset(gradients.get(call.id, ()) if call.level == "torch" else ())) for call in calls]


def _result_number(place: str) -> int:
    match = _RESULT.fullmatch(place)
    return int(match[1] or 0) if match else 0


def _facts(call: RecordedCall, gradients: frozenset[int]) -> Any:
    """All that decides the case but the limits of its values: those of the first such call are taken."""
    numbers: dict[int, int] = {}
    inputs = tuple(
        (place, tensor.dtype, tensor.shape, tensor.stride, numbers.setdefault(tensor.number, len(numbers)))
        for place, tensor in call.inputs
    )
    return call.op, call.scalars, inputs, gradients


def _case_of(call: RecordedCall, gradients: frozenset[int]) -> Case:
    function = resolve(call.op)
    shared = Counter(one.number for _, one in call.inputs)
    aliases = [number for number, count in shared.items() if count > 1]
    tree: dict[int | str, Any] = {"args": {}, "kwargs": {}}
    for index, (place, tensor) in enumerate(call.inputs):
        _put(tree, place, _spec(tensor, index in gradients, aliases))
    for place, value in _scalars(call).items():
        _put(tree, place, DEVICE if place == "kwargs.device" else _value_of(value))
    args = tuple(_built(tree["args"])) if tree["args"] else ()
    kwargs = {str(key): _built(value) for key, value in tree["kwargs"].items()}
    encode([list(args), kwargs])  # raises for values that JSON does not hold
    variant = variant_of(call.op, function, args, kwargs)
    problem = ""
    for form in _forms(call.op, args):
        case = Case.make("captures", call.op, variant, form, kwargs, gradient=bool(gradients) and variant != "out")
        case = _with_limits(with_plausible_values(case), [tensor for _, tensor in call.inputs])
        if not (problem := _problem(case, call)):
            return case if case.gradient else without_gradient(case)
    raise Error(problem)


def _scalars(call: RecordedCall) -> dict[str, Any]:
    scalars = json.loads(call.scalars) if call.scalars else {}
    if not isinstance(scalars, dict) or "hash" in scalars:
        raise Error("arguments that are too long for a recording")
    return scalars


def _put(tree: dict[int | str, Any], place: str, value: Any) -> None:
    """Puts a value where "args[1][0]" or "kwargs.dim" says."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise Error(f"an argument at {place}")
    steps: list[int | str] = [match[1]]
    steps += [name or int(number) for number, name in _STEP.findall(match[2])]
    for step in steps[:-1]:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise Error(f"two arguments at {place}")
    tree[steps[-1]] = value


def _built(tree: Any) -> Any:
    """Lists and dicts of the tree of _put(). A recording leaves out None, so that gaps between other values are None."""
    if not isinstance(tree, dict):
        return tree
    if all(isinstance(key, int) for key in tree):
        return [_built(tree.get(place)) for place in range(max(tree) + 1)]
    return {str(key): _built(value) for key, value in tree.items()}


def _value_of(value: Any) -> Any:
    """The value that a text of a recording stands for."""
    if isinstance(value, list):
        return [_value_of(one) for one in value]
    if isinstance(value, dict):
        return {key: _value_of(one) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    if value == "Generator":
        raise Error("a random generator")
    if value.startswith("device(") or value == "cpu":
        return DEVICE
    if value in _FLOATS:
        return _FLOATS[value]
    if value == "...":
        return ...
    if match := _SLICE.fullmatch(value):
        return slice(*(None if one == "None" else int(one) for one in match.groups()))
    if match := _COMPLEX.fullmatch(value):
        return complex(float(match[1]), float(match[2]))
    named = getattr(torch, value.removeprefix("torch."), None) if value.startswith("torch.") else None
    return value if named is None else named


def _spec(tensor: RecordedTensor, requires_grad: bool, aliases: list[int]) -> TensorSpec:
    dtype = tensor.dtype.removeprefix("torch.")
    if len(tensor.stride) != len(tensor.shape) or dtype.startswith(("q", "bits")):
        raise Error("sparse, nested and quantized tensors")
    plain = tensor.stride == contiguous_strides(tensor.shape) or 0 in tensor.shape
    alias = aliases.index(tensor.number) if tensor.number in aliases else None
    spec = TensorSpec(tensor.shape, dtype, None if plain else tensor.stride, requires_grad=requires_grad, alias=alias)
    return spec if _has_fractions(spec) else replace(spec, values="integers 0 1")


def _has_fractions(spec: TensorSpec) -> bool:
    return spec.torch_dtype.is_floating_point or spec.torch_dtype.is_complex


def _with_limits(case: Case, tensors: list[RecordedTensor]) -> Case:
    """Integers are within the limits that the program's had: indices stay indices. Numbers without a sign keep none."""
    recorded = iter(tensors)

    def limited(spec: TensorSpec) -> TensorSpec:
        low, high = (seen := next(recorded)).min, seen.max
        if not (seen.known and math.isfinite(low) and math.isfinite(high)) or spec.torch_dtype.is_complex:
            return spec
        if not _has_fractions(spec):
            return spec if spec.torch_dtype is torch.bool else replace(spec, values=f"integers {int(low)} {int(high)}")
        if spec.values == "normal" and low >= 0:
            return replace(spec, values=f"uniform {low!r} {high if high > low else low + 1!r}")
        return spec

    args, kwargs = map_specs((case.args, case.kwargs), limited)
    return case.with_changes(args=args, kwargs=kwargs)


def _forms(op: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """A recording writes a tuple as a list. Indices are most often a tuple, which means something else."""
    if op.rpartition(".")[2] in _INDEXING and len(args) > 1 and isinstance(args[1], list):
        yield (args[0], tuple(args[1]), *args[2:])
    yield args


def _problem(case: Case, call: RecordedCall) -> str:
    """Why the case is not the call; "" if nothing is against it. Without memory: on the meta device, where that can run it."""
    try:
        result = make_call(case, torch.device("meta")).run()
    except NotImplementedError:
        return ""
    except Exception as error:  # whatever an operator raises
        return "" if "meta" in str(error) else f"raises when it is made of the recording: {error}"[:200]
    # Of several results the later ones may be another device's own: values for its backward pass.
    results = [(tuple(one.shape), str(one.dtype)) for one in leaves_of(result)[:1]]
    expected = [(one.shape, one.dtype) for place, one in call.outputs if place.startswith("result")][:1]
    return "" if results == expected else "the recording does not tell its arguments: results have other shapes"
