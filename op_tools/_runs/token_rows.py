"""The rows of tokens in a recording with `row_hashes=True`: which row of which tensor is of which token, and which tokens of two runs
are the same."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from .._base.core import Error, Recording, base_name
from .._tools.record import RecordedCall, RecordedCalls, RecordedTensor

_PRINT_WORDS = 6  # of RowPrint in src/record/recording.h: hash, norm, four projections
NO_TOKEN = -1
_MOST_KEYS = 96  # places at which tokens of two runs are measured
_NEIGHBOURS = 8  # tokens before and behind a token
_FARTHEST = 0.5  # mean share of the norm by which rows of the same token may differ


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor along a choice of its dimensions."""

    dims: tuple[int, ...]
    outer: tuple[int, ...]
    """Sizes of these dimensions."""
    width: int
    """Elements of a row."""
    hashes: torch.Tensor
    """int64[rows]."""
    numbers: torch.Tensor
    """float64[rows, 5]: norm, projections."""


@dataclass(frozen=True)
class CallKey:
    """What calls of two runs have in common: the module without the class of the model, the operator, and the how-manyth of its calls
    in that module of a forward pass."""

    module: str
    op: str
    number: int


@dataclass
class Tokens:
    """Of a run: each place at which its embedding was given a token."""

    forward: list[int] = field(default_factory=list)
    """Which forward pass of the model."""
    sequence: list[int] = field(default_factory=list)
    """Which sequence, in the order of the program: of a batch that is computed at once."""
    position: list[int] = field(default_factory=list)
    """In the sequence, as the tensor has it."""
    kind: list[int] = field(default_factory=list)
    """The hash of its row of the embedding: the same for the same number of the vocabulary."""

    def __len__(self) -> int:
        return len(self.kind)


class TokenRun:
    """A recording, with the tokens of its rows.

    Args:
        recording: made with `row_hashes=True`.
        name: for errors.

    Raises:
        op_tools.Error: it has no rows, or no embedding: nothing says which tokens there are.
    """

    def __init__(self, recording: Recording, name: str) -> None:
        self.recording = recording
        prints = bytearray(recording.prints)
        if not prints:
            raise Error(
                f"{name}: {recording.path} has no rows: record it with row_hashes=True, or --record --row-hashes"
            )
        words = torch.frombuffer(prints, dtype=torch.int64).view(-1, _PRINT_WORDS)
        self._hashes = words[:, 0].contiguous()
        self._numbers = words[:, 1:].contiguous().view(torch.float64)
        self._tables: dict[int, list[tuple[tuple[int, ...], int, int]]] = defaultdict(list)
        begin = 0
        for value, first, second, count in recording.rows:
            self._tables[value].append(((first,) if second < 0 else (first, second), begin, count))
            begin += count
        self._of_value: dict[int, list[torch.Tensor | None]] = {}
        self._of_tokens: set[int] = set()
        self._moved: set[int] = set()
        self.tokens = Tokens()
        self.calls = [call for call in RecordedCalls(recording) if call.phase == "forward" and not call.error]
        embedding = self._embedding(name)
        self.forwards = self._forwards(embedding)
        self.keys = self._keys()
        for number, call in enumerate(self.calls):
            self._follow(call, self.forwards[number], is_embedding=(call.op, _inside(call.module)) == embedding)

    # --- Rows ---

    def rows(self, tensor: RecordedTensor) -> list[tuple[Rows, torch.Tensor | None]]:
        """All choices of rows of a tensor, with the tokens of the rows where they are known."""
        tables = self._tables.get(tensor.number, [])
        tokens = self._of_value.get(tensor.number) or [None] * len(tables)
        return [(self._rows(tensor, *table), of_rows) for table, of_rows in zip(tables, tokens, strict=True)]

    def _rows(self, tensor: RecordedTensor, dims: tuple[int, ...], begin: int, count: int) -> Rows:
        outer = tuple(tensor.shape[dim] for dim in dims)
        width = 1
        for dim, size in enumerate(tensor.shape):
            width *= 1 if dim in dims else size
        end = begin + count
        return Rows(dims, outer, width, self._hashes[begin:end], self._numbers[begin:end])

    def is_of_tokens(self, tensor: RecordedTensor) -> bool:
        """Computed from results of the embedding: also where its rows are of no known tokens."""
        return tensor.number in self._of_tokens

    def is_moved(self, tensor: RecordedTensor) -> bool:
        """A view, a slice, a cache: rows of the call's inputs, of which nothing was computed."""
        return tensor.number in self._moved

    # --- Forward passes ---

    def _embedding(self, name: str) -> tuple[str, str]:
        """The operator and the module that are given the tokens: the embedding of most rows in a call."""
        best, most = None, 0
        for call in self.calls:
            if base_name(call.op) != "embedding" or not call.outputs:
                continue
            count = max((rows.hashes.numel() for rows, _ in self.rows(call.outputs[0][1])), default=0)
            if count > most:
                best, most = (call.op, _inside(call.module)), count
        if best is None:
            raise Error(f"{name}: {self.recording.path} has no call of embedding: nothing says which tokens there are")
        return best

    def _forwards(self, embedding: tuple[str, str]) -> list[int]:
        """Of each call: its forward pass of the model, from 0."""
        of_embedding = [(call.op, _inside(call.module)) == embedding for call in self.calls]
        count = max(1, sum(of_embedding))
        turns: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)  # by module: its calls in their order
        for call in self.calls:
            of_module = turns[call.module]
            of_module.setdefault((call.step, call.module_call), len(of_module))
        begun, forwards = -1, []
        for call, begins in zip(self.calls, of_embedding, strict=True):
            begun += begins
            of_module = turns[call.module]
            if call.module and len(of_module) % count == 0:
                forwards.append(of_module[call.step, call.module_call] * count // len(of_module))
            else:
                forwards.append(max(begun, 0))
        return forwards

    def _keys(self) -> list[CallKey]:
        seen: Counter[tuple[int, str, str]] = Counter()
        keys = []
        for call, forward in zip(self.calls, self.forwards, strict=True):
            module = _inside(call.module)
            keys.append(CallKey(module, call.op, seen[forward, module, call.op]))
            seen[forward, module, call.op] += 1
        return keys

    # --- Tokens of rows ---

    def _follow(self, call: RecordedCall, forward: int, *, is_embedding: bool) -> None:
        """Gives the rows of the call's results their tokens."""
        if is_embedding or any(tensor.number in self._of_tokens for _, tensor in call.inputs):
            self._of_tokens.update(tensor.number for _, tensor in call.outputs)
        inputs = [pair for _, tensor in call.inputs for pair in self.rows(tensor)]
        for _, tensor in call.outputs:
            if tensor.number in self._of_value or tensor.number not in self._tables:
                continue
            choices = [rows for rows, _ in self.rows(tensor)]
            if is_embedding:
                self._of_value[tensor.number] = [self._new_tokens(rows, forward) for rows in choices[:1]] + [
                    None for _ in choices[1:]
                ]
            else:
                moves = any(_has_its_elements(tensor, of_input) for _, of_input in call.inputs)
                tokens = _of_same_rows(choices, inputs)
                if moves or any(of_rows is not None for of_rows in tokens):
                    self._moved.add(tensor.number)
                else:
                    tokens = [_in_order(rows, inputs) for rows in choices]
                self._of_value[tensor.number] = tokens

    def _new_tokens(self, rows: Rows, forward: int) -> torch.Tensor:
        begin, count = len(self.tokens), rows.hashes.numel()
        inner = rows.outer[-1] if len(rows.outer) > 1 else count
        sequences = 1 + (max(self.tokens.sequence) if begin else -1)
        self.tokens.forward += [forward] * count
        self.tokens.sequence += [sequences + place // inner for place in range(count)]
        self.tokens.position += [place % inner for place in range(count)]
        self.tokens.kind += rows.hashes.tolist()
        return torch.arange(begin, begin + count)


def _inside(module: str) -> str:
    """A module's path without the class of the model and without wrappers."""
    inside = module.partition(".")[2]
    for wrapper in ("module.", "_orig_mod."):
        inside = inside.removeprefix(wrapper)
    return inside


def _has_its_elements(result: RecordedTensor, of_input: RecordedTensor) -> bool:
    """All elements of the input, in another order at most."""
    if result.dtype != of_input.dtype or math.prod(result.shape) != math.prod(of_input.shape):
        return False
    if not (result.known and of_input.known):
        return False
    numbers = [(one.min, one.max, one.nan, one.inf, one.zero) for one in (result, of_input)]
    return numbers[0] == numbers[1] and math.isclose(result.norm, of_input.norm, rel_tol=1e-9)


def _of_same_rows(
    choices: Sequence[Rows], inputs: Sequence[tuple[Rows, torch.Tensor | None]]
) -> list[torch.Tensor | None]:
    """The tokens of the same rows of an input: views, slices, caches."""
    known = [(rows, tokens) for rows, tokens in inputs if tokens is not None]
    return [_same_rows(rows, inputs, known) if known else None for rows in choices]


def _same_rows(
    rows: Rows, inputs: Sequence[tuple[Rows, torch.Tensor | None]], known: Sequence[tuple[Rows, torch.Tensor]]
) -> torch.Tensor | None:
    for of_input, tokens in known:
        if of_input.width == rows.width and torch.equal(of_input.hashes, rows.hashes):
            return tokens
    places: dict[int, list[int]] = defaultdict(list)
    for of_input, of_rows in inputs:
        if of_input.width == rows.width:
            numbers = [NO_TOKEN] * len(of_input.hashes) if of_rows is None else of_rows.tolist()
            for row_hash, token in zip(of_input.hashes.tolist(), numbers, strict=True):
                places[row_hash].append(token)
    if not places:
        return None
    taken: Counter[int] = Counter()  # rows with the same bits, in their order
    tokens_of_rows = []
    for row_hash in rows.hashes.tolist():
        tokens_of_hash = places.get(row_hash)
        if tokens_of_hash is None:
            return None
        tokens_of_rows.append(tokens_of_hash[taken[row_hash] % len(tokens_of_hash)])
        taken[row_hash] += 1
    return torch.tensor(tokens_of_rows) if any(token != NO_TOKEN for token in tokens_of_rows) else None


def _in_order(rows: Rows, inputs: Sequence[tuple[Rows, torch.Tensor | None]]) -> torch.Tensor | None:
    """The tokens of the input that has as many rows in the same dimensions."""
    known = [(of_input, tokens) for of_input, tokens in inputs if tokens is not None]
    for of_input, tokens in known:
        if of_input.dims == rows.dims and of_input.outer == rows.outer:
            return tokens
    for of_input, tokens in known:  # a part of it: queries of queries, keys and values
        if of_input.dims == tuple(dim + 1 for dim in rows.dims) and of_input.outer == rows.outer:
            return tokens
    # Batch and sequence in a dimension, or in two.
    flat = ((0,), (0, 1))
    for of_input, tokens in known:
        if rows.dims in flat and of_input.dims in flat and of_input.hashes.numel() == rows.hashes.numel():
            return tokens
    return None


# --- The same tokens of two runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A result that both runs have: of which call, and which of its tensors."""

    key: CallKey
    output: str


ResultsByPlace = dict[Place, list[tuple[int, RecordedTensor]]]
"""By place: the calls of a run, by their number in `calls`, and the tensors."""


def results_with_tokens(run: TokenRun) -> ResultsByPlace:
    """The results with rows of known tokens."""
    places: ResultsByPlace = defaultdict(list)
    for number, (call, key) in enumerate(zip(run.calls, run.keys, strict=True)):
        for output, tensor in call.outputs:
            if any(tokens is not None for _, tokens in run.rows(tensor)):
                places[Place(key, output)].append((number, tensor))
    return places


def choices_of(
    a: TokenRun, of_a: RecordedTensor, b: TokenRun, of_b: RecordedTensor
) -> Iterator[tuple[Rows, torch.Tensor, Rows, torch.Tensor]]:
    """The rows of two tensors that can be compared: of the same width, with tokens in both."""
    for rows_a, tokens_a in a.rows(of_a):
        for rows_b, tokens_b in b.rows(of_b):
            if tokens_a is not None and tokens_b is not None and rows_a.width == rows_b.width:
                yield rows_a, tokens_a, rows_b, tokens_b


def _measured(run: TokenRun, places: ResultsByPlace, chosen: Sequence[Place]) -> torch.Tensor:
    """float64[tokens, places, 6]: the numbers of the token's row, and its width; NaN where there is none."""
    numbers = torch.full((len(run.tokens), len(chosen), 6), torch.nan, dtype=torch.float64)
    for column, place in enumerate(chosen):
        for _, tensor in places[place]:
            for rows, tokens in run.rows(tensor):
                if tokens is not None:
                    real = tokens != NO_TOKEN
                    numbers[tokens[real], column, :5] = rows.numbers[real]
                    numbers[tokens[real], column, 5] = float(rows.width)
                    break
    return numbers


def _row_distances(a: TokenRun, b: TokenRun) -> dict[tuple[int, int], float]:
    """Of tokens of B and of A with the same number of the vocabulary: the mean share of the norm by which their rows differ, 1 at most."""
    of_a, of_b = results_with_tokens(a), results_with_tokens(b)
    shared = [place for place in of_a if place in of_b]
    chosen = shared[:: max(1, -(-len(shared) // _MOST_KEYS))]
    numbers_a, numbers_b = _measured(a, of_a, chosen), _measured(b, of_b, chosen)
    by_kind: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, run in enumerate((a, b)):
        for token, kind in enumerate(run.tokens.kind):
            by_kind[kind][side].append(token)
    distances = {}
    for tokens_a, tokens_b in by_kind.values():
        if not tokens_a or not tokens_b:
            continue
        rows_a, rows_b = numbers_a[tokens_a][None], numbers_b[tokens_b][:, None]
        # The mean over the projections of the squared difference estimates the squared norm of the difference.
        gaps = (rows_b[..., 1:5] - rows_a[..., 1:5]).square().mean(-1).sqrt() / rows_a[..., 0].clamp_min(1e-300)
        gaps = torch.where(rows_a[..., 5] == rows_b[..., 5], gaps, torch.nan)
        means = gaps.clamp(max=1.0).nanmean(-1).nan_to_num(nan=1.0).tolist()
        for token, of_token in zip(tokens_b, means, strict=True):
            distances.update({(token, other): far for other, far in zip(tokens_a, of_token, strict=True)})
    return distances


def _nearest_pairs(a: TokenRun, b: TokenRun, distances: dict[tuple[int, int], float]) -> list[tuple[float, int, int]]:
    """Distance, token of B, token of A: the nearest first. Tokens of a prompt that several sequences begin with are told apart by those
    that follow them in the same piece."""

    def beside(run: TokenRun, token: int, by: int) -> int | None:
        other = token + by
        is_there = 0 <= other < len(run.tokens) and run.tokens.sequence[other] == run.tokens.sequence[token]
        return other if is_there else None

    pairs = []
    for (token, other), far in distances.items():
        if far > _FARTHEST:
            continue
        around = []
        for by in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
            if by and (of_b := beside(b, token, by)) is not None:
                of_a = beside(a, other, by)
                around.append(1.0 if of_a is None else distances.get((of_b, of_a), 1.0))
        pairs.append((far + (sum(around) / len(around) if around else 0.0), token, other))
    return sorted(pairs)


def matched_tokens(a: TokenRun, b: TokenRun) -> torch.Tensor:
    """int64[tokens of B]: the token of A that is the same, or NO_TOKEN.

    The same number of the vocabulary, and the nearest rows in the results that both runs have: rows of a token with another
    history, or at another place, are others.
    """
    match = torch.full((len(b.tokens),), NO_TOKEN)
    taken: set[int] = set()
    pairs = _nearest_pairs(a, b, _row_distances(a, b))
    for again in (False, True):  # then those that were computed more than once
        for _, token, other in pairs:
            if match[token] == NO_TOKEN and (again or other not in taken):
                match[token] = other
                taken.add(other)
    return match
