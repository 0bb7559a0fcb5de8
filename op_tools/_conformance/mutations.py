"""Changed cases: other layouts, dtypes, sizes and aliases of a call that a source has.

A mutation gives None where it changes nothing. Whether the operator still allows a changed call, its caller
finds out: the sources run it on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from . import values
from .case import Case
from .trees import TensorSpec, channels_last, map_specs

_Change = Callable[[TensorSpec], TensorSpec]


def mutated(case: Case, name: str) -> Case | None:
    """The case with a change of MUTATIONS; None where nothing of it changes, or it would mean nothing: where the call was saved with its
    values; and gaps, which no copy of a tensor keeps, for operators that read them."""
    if case.data is not None or (name == "strided" and "as_strided" in case.op):
        return None
    change = _OF_A_TENSOR[name] if name in _OF_A_TENSOR else _OF_A_CASE[name](case)
    if change is None:
        return None
    if name == "strided-gradient":
        return case.with_changes(mutation=name)
    args, kwargs = map_specs((case.args, case.kwargs), change)
    if (args, kwargs) == (case.args, case.kwargs):
        return None
    mutation = f"{case.mutation}+{name}" if case.mutation else name
    return case.with_changes(args=args, kwargs=kwargs, mutation=mutation)


def _is_plain(spec: TensorSpec) -> bool:
    return spec.layout == "contiguous" and spec.alias is None and bool(spec.shape) and spec.numel > 0


def _nhwc(spec: TensorSpec) -> TensorSpec:
    if len(spec.shape) not in (4, 5) or not _is_plain(spec):
        return spec
    return replace(spec, stride=channels_last(spec.shape))


def _strided(spec: TensorSpec) -> TensorSpec:
    """A gap behind each element, and the last two dimensions exchanged in memory."""
    if not _is_plain(spec):
        return spec
    shape = spec.shape
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2] if len(shape) > 1 else [0]
    steps, step = [0] * len(shape), 2
    for dim in reversed(order):
        steps[dim] = step
        step *= shape[dim]
    return replace(spec, stride=tuple(steps))


def _offset(spec: TensorSpec) -> TensorSpec:
    """Behind the begin of its memory, where no vector instruction is aligned."""
    return replace(spec, offset=3) if _is_plain(spec) else spec


def _expanded(spec: TensorSpec) -> TensorSpec:
    """The elements along the first dimension share their memory."""
    if not _is_plain(spec) or spec.shape[0] < 2 or not isinstance(spec.values, str):
        return spec
    if not values_fill(spec):
        return spec
    return replace(spec, stride=(0, *spec.strides[1:]))


def _empty(spec: TensorSpec) -> TensorSpec:
    if not _is_plain(spec):
        return spec
    return replace(spec, shape=(0, *spec.shape[1:]), values=spec.values if values_fill(spec) else ())


def _without_dimensions(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(), stride=None) if _is_plain(spec) and values_fill(spec) else spec


def _four_bytes(spec: TensorSpec) -> TensorSpec:
    """int32 in place of int64. Packed data is packed anew."""
    if spec.dtype != "int64":
        return spec
    if isinstance(spec.values, str) and not values_fill(spec) and spec.values != "permutation":
        data = values.make_values(spec.values, spec.torch_dtype, spec.numel, 0)
        return replace(spec, dtype="int32", values=values.packed(data.int()))
    return replace(spec, dtype="int32")


def _adversarial(kind: str, spec: TensorSpec) -> TensorSpec:
    floating = spec.torch_dtype.is_floating_point or spec.torch_dtype.is_complex
    if not floating or not values_fill(spec) or spec.numel < 2:
        return spec
    return replace(spec, values=f"adversarial:{kind}")


def values_fill(spec: TensorSpec) -> bool:
    """Whether its elements come from a recipe that makes any number of them."""
    return isinstance(spec.values, str) and values.fills_gaps(spec.values)


def _alias(case: Case) -> _Change | None:
    """The first two tensors of equal kind share their memory whole."""
    kinds: dict[tuple[object, ...], int] = {}
    for place, spec in enumerate(case.tensors):
        kind = (spec.shape, spec.dtype, spec.strides, spec.offset)
        if kind in kinds and spec.numel and spec.alias is None and case.tensors[kinds[kind]].alias is None:
            pair = {kinds[kind], place}
            break
        kinds.setdefault(kind, place)
    else:
        return None
    number = max((one.alias for one in case.tensors if one.alias is not None), default=-1) + 1
    places = iter(range(len(case.tensors)))
    return lambda spec: replace(spec, alias=number) if next(places) in pair else spec


def _gradient(case: Case) -> _Change | None:
    return (lambda spec: spec) if case.gradient and not case.mutation else None


_OF_A_TENSOR: dict[str, _Change] = {
    "nhwc": _nhwc,
    "strided": _strided,
    "offset": _offset,
    "expanded": _expanded,
    "empty": _empty,
    "scalar": _without_dimensions,
    "four-bytes": _four_bytes,
    **{kind: functools.partial(_adversarial, kind) for kind in values.ADVERSARIAL},
}
_OF_A_CASE: dict[str, Callable[[Case], _Change | None]] = {"alias": _alias, "strided-gradient": _gradient}
MUTATIONS = (*_OF_A_TENSOR, *_OF_A_CASE)
