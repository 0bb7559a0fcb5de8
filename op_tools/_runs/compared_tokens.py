"""Rows of the results of two runs, put together by their tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .._base.core import base_name
from .._base.declared_rows import CallVerdict
from .._tools.record import RecordedCall, RecordedTensor
from .sequence_comparison import SequenceRow
from .token_rows import NO_TOKEN, Place, ResultsByPlace, Rows, TokenRun, choices_of, matched_tokens, results_with_tokens

# Operators in which a token's result is made of the rows of all tokens before it.
_OVER_TOKENS = ("attention", "matmul", "bmm", "baddbmm", "einsum", "cumsum", "conv1d")


@dataclass
class _Gap:
    """Rows of the same tokens."""

    tokens: int = 0
    differ: int = 0
    squares: float = 0.0  # of differences, as shares of norms
    largest: float = 0.0

    def add(self, same: torch.Tensor, shares: torch.Tensor) -> None:
        self.tokens += same.numel()
        self.differ += int((~same).sum())
        self.squares += float(shares.square().sum())
        self.largest = max(self.largest, float(shares.max()) if shares.numel() else 0.0)

    @property
    def share(self) -> float:
        return math.sqrt(self.squares / self.tokens) if self.tokens else 0.0


@dataclass
class _Pair:
    """The rows of a tensor of B, and those of the same tokens in A."""

    tokens: torch.Tensor  # of A
    same: torch.Tensor
    shares: torch.Tensor


class TokenTable:
    """The rows of a place in A, by token."""

    def __init__(self, rows: Rows, tokens: torch.Tensor, count: int) -> None:
        self.rows = rows
        self.place = torch.full((count,), -1)
        real = tokens != NO_TOKEN
        self.place[tokens[real]] = torch.arange(len(tokens))[real]

    def places_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The rows of these tokens of A; -1 where there is none."""
        return torch.where(tokens == NO_TOKEN, -1, self.place[tokens.clamp_min(0)])

    def against(self, rows: Rows, tokens: torch.Tensor) -> _Pair:
        """`tokens`: of A, NO_TOKEN where it has none."""
        place = self.places_of(tokens)
        both = place >= 0
        of_a = place[both]
        same = self.rows.hashes[of_a] == rows.hashes[both]
        a, b = self.rows.numbers[of_a], rows.numbers[both]
        distance = (a[:, 1:] - b[:, 1:]).square().mean(-1).sqrt()
        shares = torch.where(same, 0.0, distance / torch.maximum(a[:, 0], b[:, 0]).clamp_min(1e-300))
        return _Pair(tokens[both], same, shares.nan_to_num(nan=1.0))


class ComparedTokens:
    """The results of two runs, by the tokens that both have."""

    def __init__(self, a: TokenRun, b: TokenRun) -> None:
        self.a, self.b = a, b
        self.match = matched_tokens(a, b)
        self.of_a, self.of_b = results_with_tokens(a), results_with_tokens(b)
        self.calls_a = _by_key(a)
        self.other_parameters: dict[str, None] = {}
        self._sequence = torch.tensor(a.tokens.sequence)
        self._position = torch.tensor(a.tokens.position)

    def rows(self) -> list[SequenceRow]:
        rows, unit = [], 0.0
        for place, of_a in self.of_a.items():
            of_b = self.of_b.get(place)
            if of_b is None or (_only_moved(self.a, of_a) and _only_moved(self.b, of_b)):
                continue
            if (row := self._row(place, of_a, of_b)) is not None:
                unit = max(unit, _unit(f"torch.{row.dtype}"))
                rows.append(replace(row, units=row.largest / unit))
        return rows

    def not_compared(self) -> list[str]:
        """Operators of A with results of tokens whose rows are of no known tokens. Sums over all tokens are numbers, and have none."""
        ops = [
            call.op
            for call in self.a.calls
            for _, tensor in call.outputs
            if tensor.shape
            and self.a.is_of_tokens(tensor)
            and not self.a.is_moved(tensor)
            and all(tokens is None for _, tokens in self.a.rows(tensor))
        ]
        return list(dict.fromkeys(ops))

    def alone(self) -> tuple[list[RecordedCall], list[RecordedCall]]:
        """Calls that computed results with tokens, and that the other run has none for."""
        return _alone(self.a, self.of_a, self.of_b), _alone(self.b, self.of_b, self.of_a)

    def tokens_of_a(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens of A that these tokens of B are; NO_TOKEN where it has none."""
        return torch.where(tokens == NO_TOKEN, NO_TOKEN, self.match[tokens.clamp_min(0)])

    def _pairs(self, of_a: Sequence[RecordedTensor], of_b: RecordedTensor) -> _Pair | None:
        """All rows of a tensor of B whose tokens are in tensors of A."""
        pairs = []
        for tensor in of_a:
            for rows_a, tokens_a, rows_b, tokens_b in choices_of(self.a, tensor, self.b, of_b):
                pairs.append(
                    TokenTable(rows_a, tokens_a, len(self.a.tokens)).against(rows_b, self.tokens_of_a(tokens_b))
                )
                break
        if not pairs:
            return None
        return _Pair(*(torch.cat([getattr(pair, name) for pair in pairs]) for name in ("tokens", "same", "shares")))

    def _row(
        self, place: Place, of_a: list[tuple[int, RecordedTensor]], of_b: list[tuple[int, RecordedTensor]]
    ) -> SequenceRow | None:
        calls_a = [self.a.calls[number] for number in self.calls_a[place.key]]
        outputs, own = _Gap(), _Gap()
        inputs: dict[str, _Gap] = defaultdict(_Gap)
        not_compared: dict[str, None] = {}
        ids_b = []
        for number, tensor in of_b:
            call = self.b.calls[number]
            pair = self._pairs([one for _, one in of_a], tensor)
            if pair is None or not pair.tokens.numel():
                continue
            ids_b.append(call.id)
            agree = self._inputs_agree(place, call, calls_a, pair.tokens, inputs, not_compared)
            outputs.add(pair.same, pair.shares)
            own.add(pair.same[agree], pair.shares[agree])
        if not outputs.tokens:
            return None
        first_a, first_b = self.a.calls[of_a[0][0]], self.b.calls[of_b[0][0]]
        dtype = of_a[0][1].dtype
        verdict = _verdict(outputs, own, is_carried=any(gap.differ for gap in inputs.values()))
        return SequenceRow(
            first_a.op,
            first_a.module,
            first_a.line,
            first_b.line,
            place.output,
            dtype.removeprefix("torch."),
            verdict.value,
            outputs.tokens,
            outputs.differ,
            own.differ,
            max((gap.share for gap in inputs.values()), default=0.0),
            outputs.share,
            own.share,
            outputs.largest,
            0.0,
            list(not_compared),
            [self.a.calls[number].id for number, _ in of_a],
            ids_b,
        )

    def _inputs_agree(
        self,
        place: Place,
        call: RecordedCall,
        calls_a: Sequence[RecordedCall],
        tokens: torch.Tensor,
        gaps: dict[str, _Gap],
        not_compared: dict[str, None],
    ) -> torch.Tensor:
        """bool, for each of these tokens of A: all rows that its result is made of have the same bits in this call of B."""
        agree = torch.ones(len(tokens), dtype=torch.bool)
        for name, tensor in call.inputs:
            of_a = [input_a for other in calls_a for at, input_a in other.inputs if at == name]
            if self._is_parameter(name, tensor, of_a, agree):
                continue
            pair = self._pairs(of_a, tensor)
            if pair is None:
                if tensor.shape and all(one.hash != tensor.hash for one in of_a):
                    not_compared[name] = None
                    if self.b.is_of_tokens(tensor):
                        agree.fill_(False)  # it is not known
                continue
            gaps[name].add(pair.same, pair.shares)
            agree &= self._over_tokens(pair, tokens) if _is_over_tokens(place.key.op) else _each_token(pair, tokens)
        return agree

    def _is_parameter(
        self, name: str, tensor: RecordedTensor, of_a: Sequence[RecordedTensor], agree: torch.Tensor
    ) -> bool:
        if tensor.origin != "parameter" or not of_a:
            return False
        if tensor.known and all(one.known and one.hash != tensor.hash for one in of_a):
            self.other_parameters[tensor.name or name] = None
            agree.fill_(False)
        return True

    def _over_tokens(self, pair: _Pair, tokens: torch.Tensor) -> torch.Tensor:
        """A token's result is made of all rows of its sequence up to its own."""
        wrong = pair.tokens[~pair.same]
        begins: dict[int, int] = {}  # by sequence: the first position with other bits
        for sequence, position in zip(self._sequence[wrong].tolist(), self._position[wrong].tolist(), strict=True):
            begins[sequence] = min(position, begins.get(sequence, position))
        return torch.tensor(
            [
                position < begins.get(sequence, position + 1)
                for sequence, position in zip(
                    self._sequence[tokens].tolist(), self._position[tokens].tolist(), strict=True
                )
            ],
            dtype=torch.bool,
        )


def _verdict(outputs: _Gap, own: _Gap, *, is_carried: bool) -> CallVerdict:
    if not outputs.differ:
        return CallVerdict.AGREES
    if own.differ:
        return CallVerdict.BORN
    return CallVerdict.CARRIED if is_carried else CallVerdict.CAUSE_NOT_FOUND


def _alone(run: TokenRun, own: ResultsByPlace, others: ResultsByPlace) -> list[RecordedCall]:
    return [
        run.calls[results[0][0]]
        for place, results in own.items()
        if place not in others and not _only_moved(run, results)
    ]


def _only_moved(run: TokenRun, results: Sequence[tuple[int, RecordedTensor]]) -> bool:
    return all(run.is_moved(tensor) for _, tensor in results)


def _each_token(pair: _Pair, tokens: torch.Tensor) -> torch.Tensor:
    wrong = set(pair.tokens[~pair.same].tolist())
    return torch.tensor([token not in wrong for token in tokens.tolist()], dtype=torch.bool)


def _is_over_tokens(op: str) -> bool:
    return any(word in base_name(op) for word in _OVER_TOKENS)


def _by_key(run: TokenRun) -> dict[Any, list[int]]:
    calls = defaultdict(list)
    for number, key in enumerate(run.keys):
        calls[key].append(number)
    return calls


def _unit(dtype: str) -> float:
    known = getattr(torch, dtype.removeprefix("torch."), None)
    return torch.finfo(known).eps if known is not None and known.is_floating_point else torch.finfo(torch.float64).eps
