"""How a tensor of one rank is spread over several ranks: found by statistics of recordings, proven by captures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from .._base.core import Error
from .._tools.record import RecordedTensor

# The error that other orders of sums may give a statistic, in units of its dtype.
_UNITS = 512.0

Parts = Sequence[RecordedTensor]


@dataclass(frozen=True)
class RankPlan:
    """How the parts, a tensor of each rank, make the whole; false: they do not."""

    kind: str = ""
    """`replica`, `concatenation`, `sum`, or `sums_concatenated`: groups of ranks have sums, the groups have pieces."""
    dims: tuple[int, ...] = ()
    """Of a concatenation: the dimension or the two dimensions that are split."""
    times: int = 1
    """The parts make the whole, multiplied by this number: N for the gradients of N ranks that each have the mean of their own loss."""
    ranks: tuple[int, ...] = ()
    """The ranks whose parts make the whole."""
    copies: int = 1
    """How many ranks have the same part."""
    proof: str = ""
    """`bits`: the tensors are the same bit for bit; `values`: captures were put together and compared; `projections`,
    `statistics`, `counts`, `totals`: as far as these tell."""

    def __bool__(self) -> bool:
        return bool(self.kind)

    def __str__(self) -> str:
        if not self.kind:
            return ""
        is_mean = self.kind == "sum" and self.times == len(self.ranks) > 1
        text = "mean" if is_mean else self.kind.replace("_", ", ")
        if self.dims:
            text += f" along dim{'s' * (len(self.dims) > 1)} {' and '.join(map(str, self.dims))}"
        if self.times > 1 and not is_mean:
            text += f", times {self.times}"
        return text + f", {self.copies} copies of each" * (self.copies > 1)


def wanted_plan(rule: str) -> tuple[str, tuple[int, ...]]:
    """The kind (`mean` for a sum that is divided) and the split dimensions that a rule stands for: "b s h[tp]", "b s h" for
    replicas, "sum", "mean".

    Raises:
        op_tools.Error: more than two dimensions are split.
    """
    words = rule.split()
    if words in (["sum"], ["mean"]):
        return words[0], ()
    split = tuple(place for place, word in enumerate(words) if word.endswith("]"))
    if len(split) > 2:
        raise Error(f"rule {rule!r}: two dimensions can be split, not {len(split)}")
    return ("concatenation", split) if split else ("replica", ())


def follows(plan: RankPlan, rule: str) -> bool:
    """Is this the plan that the rule stands for? How often a part is there, and how it is scaled, makes no difference."""
    kind = "mean" if plan.kind == "sum" and plan.times > 1 else plan.kind
    return (kind, plan.dims) == wanted_plan(rule)


# --- By statistics --------------------------------------------------------------------------------------------------


def _unit(*tensors: RecordedTensor) -> float:
    known = [getattr(torch, one.dtype.removeprefix("torch."), None) for one in tensors]
    return max((torch.finfo(one).eps for one in known if one is not None and one.is_floating_point), default=0.0)


def _numel(tensor: RecordedTensor) -> int:
    return math.prod(tensor.shape)


def _total(tensor: RecordedTensor) -> float:
    return tensor.mean * _numel(tensor) if _numel(tensor) else 0.0


def _is_near(a: float, b: float, scale: float, unit: float) -> bool:
    return a == b or abs(a - b) <= _UNITS * unit * scale


def _is_finite(*tensors: RecordedTensor) -> bool:
    return all(one.nan <= 0 and one.inf <= 0 for one in tensors)


def _is_sum(whole: RecordedTensor, parts: Parts, times: float) -> bool:
    """The parts sum up to `times` times the whole: their projections do, because they are sums themselves."""
    unit = _unit(whole, *parts)
    scale = times * whole.norm + sum(part.norm for part in parts)
    sums = [math.fsum(numbers) for numbers in zip(*(part.projections for part in parts), strict=True)]
    pairs = [*zip(whole.projections, sums, strict=True), (_total(whole), math.fsum(_total(part) for part in parts))]
    return all(_is_near(times * a, b, scale, unit) for a, b in pairs)


def _is_concatenation(whole: RecordedTensor, parts: Parts, times: float) -> bool:
    """The whole's statistics by those of its parts."""
    filled = [part for part in parts if _numel(part)]  # a rank may have nothing
    unit = _unit(whole, *parts)
    largest = times * max(abs(whole.min), abs(whole.max))
    norm = times * whole.norm
    return (
        _is_near(times * whole.min, min(part.min for part in filled), largest, unit)
        and _is_near(times * whole.max, max(part.max for part in filled), largest, unit)
        and _is_near(norm, math.sqrt(math.fsum(part.norm**2 for part in parts)), norm, unit)
        and _has_total(whole, parts, times)
    )


def _has_total(whole: RecordedTensor, parts: Parts, times: float) -> bool:
    scale = sum(part.norm * math.sqrt(_numel(part)) for part in parts) + times * whole.norm * math.sqrt(_numel(whole))
    return _is_near(times * _total(whole), math.fsum(_total(part) for part in parts), scale, _unit(whole, *parts))


def _split_dims(whole: RecordedTensor, parts: Parts) -> tuple[int, ...]:
    """The dimensions, two at most, in which the parts are smaller than the whole."""
    if any(len(part.shape) != len(whole.shape) for part in parts):
        return ()
    pairs = [(d, size, part.shape[d]) for part in parts for d, size in enumerate(whole.shape)]
    if any(of_part > size for _, size, of_part in pairs):
        return ()
    dims = tuple(sorted({d for d, size, of_part in pairs if of_part != size}))
    return dims if len(dims) <= 2 else ()


def _non_finite_plan(whole: RecordedTensor, parts: Parts) -> RankPlan:
    """Of tensors with NaN and infinities no more than their counts can be compared."""

    def counts(tensors: Parts) -> list[int]:
        return [sum(one.nan for one in tensors), sum(one.inf for one in tensors), sum(one.zero for one in tensors)]

    if all(part.shape == whole.shape for part in parts):
        if all(counts([part]) == counts([whole]) for part in parts):
            return RankPlan("replica", proof="counts")
        return RankPlan("sum", proof="counts") if not _is_finite(whole) and not _is_finite(*parts) else RankPlan()
    dims = _split_dims(whole, parts)
    fills = dims and sum(map(_numel, parts)) == _numel(whole) and counts(parts) == counts([whole])
    return RankPlan("concatenation", dims, proof="counts") if fills else RankPlan()


def _are_same(tensor: RecordedTensor, other: RecordedTensor) -> bool:
    if tensor.shape != other.shape:
        return False
    return (bool(tensor.hash) and tensor.hash == other.hash) or (
        _is_finite(tensor, other) and _is_sum(tensor, [other], 1)
    )


def _flat_plans(whole: RecordedTensor, parts: Parts, factors: Sequence[int]) -> Iterator[RankPlan]:
    """All plans in which each part counts."""
    same_shape = all(part.shape == whole.shape for part in parts)
    if same_shape and whole.hash and all(part.hash == whole.hash for part in parts):
        yield RankPlan("replica", proof="bits")
    elif not _is_finite(whole, *parts):
        if plan := _non_finite_plan(whole, parts):
            yield plan
        return
    elif same_shape and all(_is_sum(whole, [part], 1) for part in parts):
        yield RankPlan("replica", proof="projections")
    if same_shape:
        # 0 is each of these; a scaled replica is a sum as well, and says more.
        scaled = [f for f in factors if f > 1 and whole.norm and all(_is_sum(whole, [p], f) for p in parts)]
        yield from (RankPlan("replica", times=factor, proof="projections") for factor in scaled)
        sums = [factor for factor in factors if _is_sum(whole, parts, factor)]
        yield from (RankPlan("sum", times=factor, proof="projections") for factor in sums)
        return
    dims = _split_dims(whole, parts)
    fill = sum(map(_numel, parts)) / max(1, _numel(whole))
    for factor in factors if dims else ():
        if fill == 1 and _is_concatenation(whole, parts, factor):
            yield RankPlan("concatenation", dims, factor, proof="statistics")
        elif fill > 1 and len(parts) % fill == 0 and _has_total(whole, parts, factor):
            yield RankPlan("sums_concatenated", dims, factor, proof="totals")


def _groups(count: int) -> Iterator[list[range]]:
    """All ways to see the ranks as a rectangle: its rows, then its columns."""
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            yield [range(start, start + size) for start in range(0, count, size)]
            yield [range(start, count, count // size) for start in range(count // size)]


def rank_plans(whole: RecordedTensor, parts: Parts) -> Iterator[RankPlan]:
    """All plans that hold, the most specific first.

    Args:
        whole: the tensor of the single rank.
        parts: that of each of the others, in the order of the ranks.
    """
    if not whole.known or not all(part.known for part in parts):
        return
    count = len(parts)
    factors = [factor for factor in range(1, count + 1) if count % factor == 0]
    every = tuple(range(count))
    plans = [replace(plan, ranks=every) for plan in _flat_plans(whole, parts, factors)]
    yield from (plan for plan in plans if plan.times == 1 and plan.proof != "totals")
    for groups in _groups(count):
        if all(_are_same(parts[group[0]], parts[rank]) for group in groups for rank in group):
            ranks = tuple(group[0] for group in groups)
            for plan in _flat_plans(whole, [parts[rank] for rank in ranks], factors):
                yield replace(plan, ranks=ranks, copies=len(groups[0]))
    yield from (plan for plan in plans if plan.times != 1 or plan.proof == "totals")


# --- By values ------------------------------------------------------------------------------------------------------


def _interleaved(parts: Sequence[torch.Tensor], dim: int) -> Iterator[torch.Tensor]:
    """The parts in their order, and in turns of the same size: heads of attention that are flattened with the batch."""
    yield torch.cat(list(parts), dim)
    size = parts[0].shape[dim]
    if any(part.shape != parts[0].shape for part in parts):
        return
    for turns in range(2, size + 1):
        if size % turns == 0:
            pieces = [part.reshape(*part.shape[:dim], turns, size // turns, *part.shape[dim + 1 :]) for part in parts]
            yield torch.stack(pieces, dim + 1).flatten(dim, dim + 2)


def _put_together(plan: RankPlan, parts: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that the parts may make. Statistics do not tell which rank has which piece of a rectangle."""
    if plan.kind == "sum":
        yield torch.stack(list(parts)).sum(0)
        return
    if plan.kind == "concatenation" and len(plan.dims) == 1:
        yield from _interleaved(parts, plan.dims[0])
        return
    inner, *outer = plan.dims
    for groups in _groups(len(parts)):
        members = [[parts[rank] for rank in group] for group in groups]
        if plan.kind == "concatenation":
            yield torch.cat([torch.cat(group, inner) for group in members], outer[0])
        elif not outer and all(part.shape == group[0].shape for group in members for part in group):
            yield from _interleaved([torch.stack(group).sum(0) for group in members], inner)


def proven_by_values(plan: RankPlan, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> RankPlan:
    """The plan, proven by the tensors' values; no plan if the parts do not make the whole. Sums that are concatenated in
    two dimensions stay as they are: that needs three groups of ranks.

    Args:
        plan: the plan by the statistics.
        whole: any shape and dtype.
        parts: of each rank.
    """
    if plan.kind == "sums_concatenated" and len(plan.dims) > 1:
        return plan
    wide = [parts[rank].to(torch.float64) for rank in plan.ranks]
    aim = plan.times * whole.to(torch.float64)
    unit = torch.finfo(whole.dtype).eps if whole.is_floating_point() else 0.0

    def is_near(tensor: torch.Tensor) -> bool:
        if tensor.shape != aim.shape:
            return False
        difference = torch.where(tensor == aim, 0.0, tensor - aim).nan_to_num(nan=math.inf)
        both_nan = tensor.isnan() & aim.isnan()
        size = aim[aim.isfinite()].norm()
        return bool(difference.masked_fill(both_nan, 0.0).norm() <= _UNITS * unit * size)

    holds = all(map(is_near, wide)) if plan.kind == "replica" else any(map(is_near, _put_together(plan, wide)))
    return replace(plan, proof="values") if holds else RankPlan()
