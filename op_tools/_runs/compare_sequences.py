"""A run that computes whole sequences (a trainer's forward pass) and a run that computes them piece by piece (prefill and decode steps of an
engine): the first operator that gives the same token other bits."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from .._base.account import accounts_of, lines_of, reasons_of
from .._base.captured_calls import load_call, tensors_of
from .._base.core import Error, base_name
from .._base.declared_rows import CallVerdict
from .._base.results import Result, Shown, short_name, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.record import RecordedCall, RecordedTensor
from .compare_runs import PathOrRecording, open_run
from .judged_captures import captured_calls, replayed
from .token_rows import (
    NO_TOKEN,
    Place,
    ResultsByPlace,
    Rows,
    TokenRun,
    choices_of,
    matched_tokens,
    results_with_tokens,
)

_BEYOND = 8.0  # times: another order of sums makes a difference of few units, and lets it grow slowly
_SHOWN = 4  # calls of a side
_MOST_REPLAYED = 32  # calls of a side that are run again on the CPU
# Operators in which a token's result is made of the rows of all tokens before it.
_OVER_TOKENS = ("attention", "matmul", "bmm", "baddbmm", "einsum", "cumsum", "conv1d")


@dataclass(frozen=True)
class SequenceRow:
    """A result of an operator that both runs have, over all tokens that both have."""

    op: str
    module: str
    line: str
    """Of A."""
    line_b: str
    place: str
    dtype: str
    verdict: str
    """`agrees`: the same bits for each token; `born here`: of some tokens the inputs have the same bits, the result has not; `carried`: all
    tokens with other bits have other inputs; `differs, cause not found`: no input that could be compared has other bits."""
    tokens: int
    """Rows that were compared."""
    differ: int
    """Of them: with other bits."""
    born: int
    """Of those: whose inputs have the same bits."""
    input_difference: float
    """Of the inputs' rows: the root of the mean square of the difference, each as a share of the row's norm; the input with the largest."""
    difference: float
    """The same of the result."""
    own_difference: float
    """The same of the result's rows whose inputs have the same bits."""
    largest: float
    """The largest difference of a row of the result, as a share of its norm."""
    units: float
    """`largest`, in units of the rounding of the coarsest dtype of this result and those before it."""
    not_compared: list[str]
    """Inputs without rows in common: masks, position tables. Parameters are compared as a whole."""
    ids_a: list[int]
    """Of the calls."""
    ids_b: list[int]
    proof: str = "hashes"
    """`hashes` of the rows; `values`: the captured rows were compared."""
    judged_a: str = ""
    """With captures: A's calls, run again on the CPU: `agrees`, `differs`, `not judged`, `could not run`."""
    judged_b: str = ""


@dataclass(frozen=True)
class TokenDifferences:
    """A number that both runs have of each token: the log-probability."""

    op: str
    module: str
    line: str
    tokens: int
    differ: int
    mean: float
    """Of the absolute differences."""
    largest: float


@dataclass(frozen=True, repr=False)
class SequenceComparison(Result):
    """Whole sequences against pieces of them."""

    a: str
    b: str
    rows: list[SequenceRow]
    """In the order of A."""
    tokens_a: int
    tokens_b: int
    matched: int
    """Tokens of B that A has, too."""
    forwards: tuple[int, int]
    """Forward passes of A and of B."""
    alone: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    """Calls of A and of B on tokens that the other run has no call for: id, and operator, module and line."""
    log_probabilities: TokenDifferences | None
    """Of the last result that is a number for each token."""
    not_compared: list[str] = field(default_factory=list)
    """Operators with results that were computed of tokens, and that have rows of no known tokens: an unusual layout, too many rows."""
    other_parameters: list[str] = field(default_factory=list)
    """Parameters that have other bits in B."""
    accounts: dict[str, Coverage] = field(default_factory=dict)
    incomplete: int = 0

    @property
    def first(self) -> SequenceRow | None:
        """The first operator whose inputs have the same bits and whose result has not; else the first with another result."""
        differing = [row for row in self.rows if row.verdict != CallVerdict.AGREES]
        return differing[0] if differing else None

    @property
    def beyond_rounding(self) -> SequenceRow | None:
        """The first result that differs by much more than rounding, and than any result before it: a wrong operator is not hidden by
        rounding that began earlier."""
        most = 0.0
        for row in self.rows:
            if row.units > _BEYOND and row.largest > _BEYOND * most:
                return row
            most = max(most, row.largest)
        return None

    def before(self, row: SequenceRow) -> list[str]:
        """The last calls of A alone and of B alone before a row that was not born here: it may have been in them.

        Args:
            row: of `rows`.
        """
        if row.born:
            return []
        texts = []
        for name, calls, ids in zip("AB", self.alone, (row.ids_a, row.ids_b), strict=True):
            if before := [text for number, text in calls if number < ids[-1]]:
                texts.append(f"of {name} alone: {', '.join(dict.fromkeys(before[-_SHOWN:]))}")
        return texts

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that tokens have the same bits in both; empty where it is."""
        reasons = [] if self.rows else ["no result was compared"]
        if self.matched < min(self.tokens_a, self.tokens_b):
            reasons.append(f"{self.matched} tokens are in both, A has {self.tokens_a} and B has {self.tokens_b}")
        if any(self.alone):
            counts = [len(calls) for calls in self.alone]
            reasons.append(f"{counts[0]} calls on tokens are in A alone, {counts[1]} in B alone")
        if self.not_compared:
            ops = ", ".join(map(short_name, self.not_compared[:_SHOWN])) + (
                " ..." if len(self.not_compared) > _SHOWN else ""
            )
            reasons.append(f"results with rows of no known tokens: {ops}")
        if self.incomplete:
            reasons.append(f"{self.incomplete} recordings are incomplete")
        return reasons + reasons_of(self.accounts)

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all tokens of the shorter run were compared, in all their calls."""
        return verdict_of(wrong=self.first is not None or bool(self.other_parameters), unseen=self.unseen)

    @property
    def exit_status(self) -> int:
        """0: the same bits; 1: other bits; 2: not judged."""
        return status_of(self.verdict)

    def births(self) -> list[SequenceRow]:
        """The results in which a difference was born, the largest of its own first."""
        return sorted(
            (row for row in self.rows if row.verdict == CallVerdict.BORN), key=lambda row: -row.own_difference
        )

    def table(self) -> str:
        """For people, in 80 columns."""
        return "\n".join(_described(self))

    def to_json(self) -> str:
        """A record for each row, a first_divergence where there is any, and a summary, as lines of JSON."""
        records: list[dict[str, Any]] = [{"kind": "row", **asdict(row)} for row in self.rows]
        if self.first is not None:
            records.append({"kind": "first_divergence", **asdict(self.first), "before": self.before(self.first)})
        if (beyond := self.beyond_rounding) is not None:
            records.append({"kind": "beyond_rounding", **asdict(beyond), "before": self.before(beyond)})
        names = ("tokens_a", "tokens_b", "matched", "forwards", "alone", "other_parameters")
        end = asdict(self.log_probabilities) if self.log_probabilities else None
        verdict = {"exit_status": self.exit_status, "verdict": self.verdict.value, "unseen": self.unseen}
        records.append(
            {"kind": "summary", **verdict, **{name: getattr(self, name) for name in names}, "log_probabilities": end}
        )
        return "".join(json.dumps(record) + "\n" for record in records)


def _described(comparison: SequenceComparison) -> Iterator[str]:
    first = comparison.first
    for name, path in (("A", comparison.a), ("B", comparison.b)):
        yield f"{name}: {path}"
        yield from lines_of(comparison.accounts.get(name))
    forwards_a, forwards_b = comparison.forwards
    yield f"tokens: {comparison.tokens_a} of A in {forwards_a} forward passes, {comparison.tokens_b} of B in {forwards_b}; {comparison.matched} in both"
    yield from (f"another parameter in B: {name}" for name in comparison.other_parameters)
    columns: list[Shown[SequenceRow]] = [
        Shown("op", lambda row: short_name(row.op)),
        worded("module", "module"),
        Shown("differ", lambda row: f"{row.differ}/{row.tokens}", is_number=True),
        Shown("born", lambda row: str(row.born or "-"), is_number=True),
        Shown("in", lambda row: _number_text(row.input_difference), is_number=True),
        Shown("out", lambda row: _number_text(row.difference), is_number=True),
        Shown("units", lambda row: f"{row.units:.2g}" if row.units else "-", is_number=True),
    ]
    if first is not None:
        yield ""
        yield f"First divergence: {first.op}: {_birth_text(first)}"
        yield from _row_lines(comparison, first)
        place = comparison.rows.index(first)
        yield from ("", text_table(columns, comparison.rows[max(0, place - 3) : place + 9], -1, 80))
        beyond = comparison.beyond_rounding
        if beyond is not None and beyond is not first:
            yield ""
            yield f"First beyond rounding: {beyond.op}: a row differs by {beyond.units:.2g} units"
            yield from _row_lines(comparison, beyond)
        births = comparison.births()
        if len(births) > 1:
            yield from ("", "Results that were born with other bits, the largest difference of their own first:")
            yield text_table(columns, births[:8], -1, 80)
    elif comparison.rows:
        yield f"{len(comparison.rows)} results have the same bits for each token that both runs have"
    if (end := comparison.log_probabilities) is not None:
        yield ""
        yield f"At the end ({short_name(end.op)}, {end.line}): {end.differ} of {end.tokens} tokens have another number,"
        yield f"by {end.mean:.3g} in the mean and {end.largest:.3g} at most"
    yield from (
        f"{'NOT JUDGED' if comparison.verdict is Verdict.NOT_JUDGED else 'not compared'}: {reason}"
        for reason in comparison.unseen
    )


def _number_text(number: float) -> str:
    return f"{number:.2g}" if number else "-"


def _birth_text(row: SequenceRow) -> str:
    if row.born:
        return "born here: the inputs of a token have the same bits, its result has not"
    if row.verdict == CallVerdict.CARRIED:
        return "its inputs have other bits already"
    return "it or its inputs, some of which could not be compared"


def _row_lines(comparison: SequenceComparison, row: SequenceRow) -> Iterator[str]:
    yield f"  module: {row.module}"
    yield f"  line: A {row.line}" + (f", B {row.line_b}" if row.line_b != row.line else "")
    yield f"  {row.differ} of {row.tokens} tokens have other bits, {row.born} of them from inputs with the same (by {row.proof})"
    yield from (f"  before it, {text}" for text in comparison.before(row))
    if row.not_compared:
        yield f"  inputs without rows in common: {', '.join(row.not_compared)}"
    judged = {row.judged_a, row.judged_b}
    if judged != {""}:
        both = ": both are right within rounding" if judged == {Verdict.AGREES.value} else ""
        yield f"  run again on the CPU: A {row.judged_a}, B {row.judged_b}{both}"


# --- Comparing ----------------------------------------------------------------------------------------------------------


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


class _Table:
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


class _Comparison:
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
                pairs.append(_Table(rows_a, tokens_a, len(self.a.tokens)).against(rows_b, self.tokens_of_a(tokens_b)))
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


def _ids_and_texts(calls: Sequence[RecordedCall]) -> list[tuple[int, str]]:
    return [(call.id, f"{short_name(call.op)} ({call.module}, {call.line})") for call in calls]


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


def _log_probabilities(comparison: _Comparison) -> TokenDifferences | None:
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
                    table = _Table(rows_a, tokens_a, len(comparison.a.tokens))
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
        ranks = open_run(run)
        if len(ranks) != 1:
            raise Error(f"{name}: {run}: has {len(ranks)} ranks; give the file of a rank")
        runs.append(TokenRun(next(iter(ranks.values())), name))
    a, b = runs
    comparison = _Comparison(a, b)
    rows = comparison.rows()
    alone = comparison.alone()
    result = SequenceComparison(
        a.recording.path,
        b.recording.path,
        rows,
        len(a.tokens),
        len(b.tokens),
        len(set(comparison.match[comparison.match != NO_TOKEN].tolist())),
        (len(set(a.tokens.forward)), len(set(b.tokens.forward))),
        (_ids_and_texts(alone[0]), _ids_and_texts(alone[1])),
        _log_probabilities(comparison),
        not_compared=comparison.not_compared(),
        other_parameters=list(comparison.other_parameters),
        accounts=accounts_of({"A": a.recording, "B": b.recording}),
        incomplete=sum(not run.recording.complete for run in runs),
    )
    return result if captures is None else _proven_rows(result, comparison, captures)


# --- By values ----------------------------------------------------------------------------------------------------------


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


def _proven_rows(result: SequenceComparison, comparison: _Comparison, captures: tuple[Any, Any]) -> SequenceComparison:
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
    comparison: _Comparison, row: SequenceRow, paths: dict[int, str], *, is_b: bool
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
