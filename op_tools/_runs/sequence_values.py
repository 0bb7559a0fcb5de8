"""The rows of a comparison of sequences by the values of captured calls, where the recordings have their fingerprints."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .._base.captured_calls import load_call, tensors_of
from .._base.verdict import Verdict
from .compared_tokens import ComparedTokens
from .judged_captures import captured_calls, replayed
from .sequence_comparison import SequenceComparison, SequenceRow
from .token_rows import NO_TOKEN, Place, TokenRun

_MOST_REPLAYED = 32  # calls of a side that are run again on the CPU


def _captured_rows(run: TokenRun, number: int, place: Place, path: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and elements of each choice of rows of a captured result."""
    tensors = list(tensors_of(load_call(path).result))
    outputs = run.calls[number].outputs
    index = [name for name, _ in outputs].index(place.output)
    if index >= len(tensors):
        return
    values = tensors[index]
    for rows, tokens in run.rows(outputs[index][1]):
        if tokens is not None:
            yield tokens, values.movedim(rows.dims, tuple(range(len(rows.dims)))).reshape(-1, rows.width)


def proven_rows(
    result: SequenceComparison, comparison: ComparedTokens, captures: tuple[Any, Any]
) -> SequenceComparison:
    """The two rows that are named, by the captured tensors of their calls, which are run again on the CPU."""
    of_a, of_b = ({one.id: one.path for one in captured_calls(folder)} for folder in captures)
    rows = list(result.rows)
    for row in {id(row): row for row in (result.first, result.beyond_rounding) if row is not None}.values():
        sides = [_rows_by_token(comparison, row, paths, is_b=is_b) for paths, is_b in ((of_a, False), (of_b, True))]
        if all(sides):
            rows[_row_number(rows, row)] = _proven(row, sides[0], sides[1], of_a, of_b)
    return replace(result, rows=rows)


def _row_number(rows: Sequence[SequenceRow], row: SequenceRow) -> int:
    return next(place for place, other in enumerate(rows) if other is row)


def _rows_by_token(
    comparison: ComparedTokens, row: SequenceRow, paths: dict[int, str], *, is_b: bool
) -> dict[int, list[torch.Tensor]]:
    """Captured rows by the token of A; empty where a call was not captured."""
    run, ids = (comparison.b, row.ids_b) if is_b else (comparison.a, row.ids_a)
    places = {call.id: place for place, call in enumerate(run.calls)}
    of_token: dict[int, list[torch.Tensor]] = defaultdict(list)
    for number in ids:
        if number not in paths:
            return {}
        for tokens, values in _captured_rows(
            run, places[number], Place(run.keys[places[number]], row.place), paths[number]
        ):
            of_a = comparison.tokens_of_a(tokens) if is_b else tokens
            for token, value in zip(of_a.tolist(), values, strict=True):
                if token != NO_TOKEN:
                    of_token[token].append(value)
            break
    return of_token


def _proven(
    row: SequenceRow,
    a: dict[int, list[torch.Tensor]],
    b: dict[int, list[torch.Tensor]],
    paths_a: dict[int, str],
    paths_b: dict[int, str],
) -> SequenceRow:
    pairs = [(a[token][0], value) for token, values in b.items() for value in values if token in a]
    pairs = [(left, right) for left, right in pairs if left.shape == right.shape and left.dtype == right.dtype]
    if len(pairs) != row.tokens:
        return row
    differ, gaps = 0, []
    for left, right in pairs:
        differ += not torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
        wide_left, wide_right = left.to(torch.float64), right.to(torch.float64)
        norm = max(float(wide_left.norm()), float(wide_right.norm()))
        gaps.append(float((wide_left - wide_right).norm()) / norm if norm else 0.0)
    judged_a, judged_b = (
        _worst_status(replayed([paths[one] for one in ids[:_MOST_REPLAYED]]))
        for paths, ids in ((paths_a, row.ids_a), (paths_b, row.ids_b))
    )
    return replace(
        row,
        differ=differ,
        difference=math.sqrt(sum(gap**2 for gap in gaps) / len(gaps)),
        largest=max(gaps),
        units=row.units * max(gaps) / row.largest if row.largest else 0.0,
        proof="values",
        judged_a=judged_a,
        judged_b=judged_b,
    )


def _worst_status(reports: dict[str, dict[str, Any]]) -> str:
    words = [str(report.get("status", Verdict.NOT_JUDGED.value)) for report in reports.values()]
    return next((word for word in words if word != Verdict.AGREES.value), Verdict.AGREES.value)
