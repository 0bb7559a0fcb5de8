"""A run that computes whole sequences (a trainer's forward pass) and a run that computes them piece by piece (prefill and decode steps of an
engine): the first operator that gives the same token other bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._base.account import accounts_of
from .._base.core import Error
from .._base.results import short_name
from .._tools.record import RecordedCall
from .compare_runs import PathOrRecording, find_run
from .compared_tokens import ComparedTokens, TokenTable
from .sequence_comparison import SequenceComparison, TokenDifferences
from .sequence_values import proven_rows
from .token_rows import NO_TOKEN, TokenRun, choices_of


def _ids_and_texts(calls: Sequence[RecordedCall]) -> list[tuple[int, str]]:
    return [(call.id, f"{short_name(call.op)} ({call.module}, {call.line})") for call in calls]


def _log_probabilities(comparison: ComparedTokens) -> TokenDifferences | None:
    """Of the last result with a number for each token. Its projection is that number, or its negative."""
    of_a, of_b = comparison.of_a, comparison.of_b
    for place in reversed(of_a):
        number, tensor = of_a[place][0]
        is_number = tensor.dtype.startswith(("torch.float", "torch.bfloat"))
        widths = {rows.width for rows, tokens in comparison.a.rows(tensor) if tokens is not None}
        if place not in of_b or not is_number or widths != {1}:
            continue
        gaps = []
        for _, of_run in of_b[place]:
            for _, of_other in of_a[place]:
                for rows_a, tokens_a, rows_b, tokens_b in choices_of(comparison.a, of_other, comparison.b, of_run):
                    table = TokenTable(rows_a, tokens_a, len(comparison.a.tokens))
                    at = table.places_of(comparison.tokens_of_a(tokens_b))
                    gaps.append((rows_a.numbers[at[at >= 0], 1] - rows_b.numbers[at >= 0, 1]).abs())
                    break
        gap = torch.cat(gaps) if gaps else torch.empty(0)
        if gap.numel():
            call = comparison.a.calls[number]
            numbers = (gap.numel(), int((gap > 0).sum()), float(gap.mean()), float(gap.max()))
            return TokenDifferences(call.op, call.module, call.line, *numbers)
    return None


def compare_sequences(
    train: PathOrRecording, serve: PathOrRecording, *, captures: tuple[Any, Any] | None = None
) -> SequenceComparison:
    """Compares a run that computes whole sequences with a run that computes them piece by piece.

    Rows of tensors belong together by their tokens: those that the embedding was given, with the same number of the vocabulary and the
    nearest results. The first operator is named that makes other bits of the same bits.

    Args:
        train: the recording of the forward passes over whole sequences, made with `row_hashes=True`.
        serve: that of the engine: prefill and decode steps, in batches of any size and order.
        captures: the folders of OpCapture that was on beside OpRecord in both runs: the first call's rows are compared by their
            values, and its calls are run again on the CPU.

    Returns:
        a row for each result that both runs have.

    Raises:
        op_tools.Error: a recording has no rows or no embedding; a folder has several ranks.
    """
    runs = []
    for name, run in (("A", train), ("B", serve)):
        ranks = find_run(run)
        if len(ranks) != 1:
            raise Error(f"{name}: {run}: has {len(ranks)} ranks; give the file of a rank")
        if ranks.absent:
            raise Error(f"{name}: {ranks.missing()[0]}; give the file of a rank")
        runs.append(TokenRun(next(iter(ranks.values()))(), name))
    a, b = runs
    comparison = ComparedTokens(a, b)
    rows = comparison.rows()
    alone = comparison.alone()
    matched = set(comparison.match[comparison.match != NO_TOKEN].tolist())
    ends = _ends_alone(a, matched)
    result = SequenceComparison(
        a.recording.path,
        b.recording.path,
        rows,
        len(a.tokens),
        len(b.tokens),
        len(matched),
        (len(set(a.tokens.forward)), len(set(b.tokens.forward))),
        (_ids_and_texts(alone[0]), _ids_and_texts(alone[1])),
        _log_probabilities(comparison),
        not_compared=comparison.not_compared(),
        other_parameters=list(comparison.other_parameters),
        accounts=accounts_of({"A": a.recording, "B": b.recording}),
        incomplete=sum(not run.recording.complete for run in runs),
        tokens_alone=(len(a.tokens) - len(matched) - ends, int((comparison.match == NO_TOKEN).sum())),
        ends=ends,
    )
    return result if captures is None else proven_rows(result, comparison, captures)


def _ends_alone(run: TokenRun, matched: set[int]) -> int:
    """How many sequences of a run end with a token that the other run has not, and have all others in both: an engine gives a last
    token, and computes nothing with it."""
    sequences: dict[tuple[int, int], list[int]] = {}
    for token, key in enumerate(zip(run.tokens.forward, run.tokens.sequence, strict=True)):
        sequences.setdefault(key, []).append(token)
    count = 0
    for tokens in sequences.values():
        *others, last = sorted(tokens, key=run.tokens.position.__getitem__)
        count += last not in matched and bool(others) and matched.issuperset(others)
    return count
