"""The result of comparing two runs: pairs of calls with verdicts, and the text of it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

from .._base.account import lines_of, reasons_of
from .._base.core import RunComparison, base_name, text_table
from .._base.declared_rows import CallVerdict, Finding, RunRow
from .._base.error_text import printable
from .._base.own_command import op_tools_line
from .._base.rank_text import lines_of_ranks, ranks_text
from .._base.results import DEFAULT_ROWS, Result, finite_json, short_name
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.record import losses_of

_WIDTH = 80
_BEFORE = 10  # calls that are shown before the first divergence
_WORST = 5
_STRUCTURE = 3  # lines of a rank that is not described
_RANKS = 3  # that are described, each with another first divergence


class ComparedAgain:
    """A comparison that is made again when something of it is asked for: those of a thousand ranks do not fit into memory. The last that
    was made stays."""

    _last: ClassVar[tuple[ComparedAgain, RunComparison] | None] = None

    def __init__(self, make: Callable[[], RunComparison], rows: int) -> None:
        self._make = make
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by pickle before there is anything in this object
            raise AttributeError(name)
        last = ComparedAgain._last
        if last is None or last[0] is not self:
            ComparedAgain._last = None  # before the next takes its place in memory
            last = ComparedAgain._last = (self, self._make())
        return getattr(last[1], name)


class RunRows(Sequence[RunRow]):
    """The rows of a comparison. Each is made when it is asked for: there may be a million."""

    def __init__(self, comparison: RunComparison | ComparedAgain) -> None:
        self._found = comparison

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> RunRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[RunRow]: ...
    def __getitem__(self, index: int | slice) -> RunRow | list[RunRow]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return RunRow(**self._found.row(index % len(self)))

    def __iter__(self) -> Iterator[RunRow]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True)
class Structure:
    """How two recordings differ besides their numbers."""

    ops: list[tuple[str, str, int, int]]
    """Operator, phase, calls in A, calls in B, where the counts differ; the largest difference first."""
    header: list[tuple[str, Any, Any]]
    """Differing versions, devices, flags, seeds and variables: name, in A, in B."""
    steps_only_a: list[int]
    """Steps that only A has: they are not compared."""
    steps_only_b: list[int]

    @property
    def lines(self) -> list[str]:
        """For people."""
        shown = [f"{name}: A {a!r}, B {b!r}" for name, a, b in self.header]
        shown += [f"{op} ({phase}): {a} calls in A, {b} in B" for op, phase, a, b in self.ops[:DEFAULT_ROWS]]
        if len(self.ops) > DEFAULT_ROWS:
            shown.append(f"... and {len(self.ops) - DEFAULT_ROWS} more operators")
        for name, steps in (("A", self.steps_only_a), ("B", self.steps_only_b)):
            if steps:
                shown.append(f"steps that only {name} has: {', '.join(map(str, steps[:DEFAULT_ROWS]))}")
        return shown


@dataclass(frozen=True, repr=False)
class RankComparison(Result):
    """A process of run A and a process of run B."""

    a: str
    """The recording's path."""
    b: str
    rank: int
    rows: RunRows
    """Pairs of calls in the order of the runs, and calls that only A or only B made."""
    counts: dict[str, int]
    """Rows by verdict."""
    structure: Structure
    incomplete: list[str]
    """Recordings that end before their program did, or are damaged: missing calls are not compared."""
    first_by_step: list[tuple[int, int]]
    """For each step that diverges: the step, and the row with its first divergence."""
    births: list[int]
    """The rows in which a difference was born."""
    accounts: dict[str, Coverage] = field(default_factory=dict)
    """Which calls the runs "A" and "B" saw and did not see, where their recordings say so."""
    is_judged: bool = True
    """False: nothing was named, but most rows were not compared, or are calls of a single run whose results go into no call
    that both make."""
    other_dtypes: int = 0
    """How many rows have a result of another dtype in B, which is no divergence by itself."""
    _other_dtype_op: str = ""
    _first: RunRow | None = None
    _found: Any = field(default=None, compare=False)

    @property
    def first(self) -> RunRow | None:
        """The first row in which a difference was born; None where the runs agree."""
        return self._first

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that the runs agree; empty where it is."""
        reasons = reasons_of(self.accounts)
        if not self.rows:
            reasons.append("no call was recorded")
        if self.incomplete:
            reasons.append("a recording is incomplete")
        if self.structure.steps_only_a or self.structure.steps_only_b:
            reasons.append("some steps are in A or B alone")
        if self.rows and not self.is_judged:
            missing = self.counts.get(CallVerdict.NOT_COMPARED, 0)
            reasons.append(
                f"{missing} of {len(self.rows)} rows were not compared, {self._alone} are calls of A or B alone"
            )
        return reasons

    @property
    def dtypes_line(self) -> str:
        """That results have another dtype in B, for people; "" where none has."""
        if not self.other_dtypes:
            return ""
        return f"{self.other_dtypes} of them have results of another dtype in B, the first: {short_name(self._other_dtype_op)}"

    @property
    def _alone(self) -> int:
        return sum(self.counts.get(verdict, 0) for verdict in (CallVerdict.ONLY_A, CallVerdict.ONLY_B))

    @property
    def chain(self) -> list[RunRow]:
        """The longest way that the first difference took: from row to row along the producers."""
        return [] if self._first is None else [self.rows[row] for row in self._found.chain(self._first.row)]

    def without_rows(self, make: Callable[[], RunComparison]) -> RankComparison:
        """The same, with rows that `make` gives again when they are asked for."""
        again = ComparedAgain(make, len(self.rows))
        return dataclasses.replace(self, rows=RunRows(again), _found=again)

    def worst(self, verdict: str = CallVerdict.BORN) -> list[RunRow]:
        """The rows with a verdict, the largest share of its limit first.

        Args:
            verdict: a verdict of the rows, "born here", "carried", ..., or of CallVerdict.
        """
        return [self.rows[row] for row in self._found.worst(CallVerdict(verdict).value)]

    def first_divergence(self) -> dict[str, Any] | None:
        """The record that a program reads: {"kind": "first_divergence", "op", "phase", "module", "line", ...}."""
        first = self.first
        if first is None:
            return None
        names = ("op", "phase", "module", "line", "step", "rank", "verdict", "finding", "row", "id_a", "id_b")
        of_b = ("op_b", "module_b", "line_b", "input_difference", "output_difference", "limit", "noise")
        return {"kind": "first_divergence", **{name: getattr(first, name) for name in (*names, *of_b)}}

    def table(self) -> str:
        """All of it for people, in 80 columns."""
        return "\n".join(_described(self))


@dataclass(frozen=True, repr=False)
class RunsComparison(Result):
    """The processes of two runs, rank by rank."""

    ranks: list[RankComparison]
    not_compared: list[str] = field(default_factory=list)
    """Ranks that only A or only B has."""

    @property
    def rows(self) -> list[RunRow]:
        """The rows of all ranks."""
        return [row for rank in self.ranks for row in rank.rows]

    @property
    def agrees(self) -> bool:
        """No call of any rank gave birth to a difference."""
        return all(rank.first is None for rank in self.ranks)

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that the runs agree; empty where it is."""
        return [f"rank {rank.rank}: {reason}" for rank in self.ranks for reason in rank.unseen] + self.not_compared

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where the runs were recorded whole, and where their rows were compared."""
        return verdict_of(wrong=not self.agrees, unseen=self.unseen)

    @property
    def exit_status(self) -> int:
        """0: all agree; 1: they diverge; 2: not judged."""
        return status_of(self.verdict)

    def table(self) -> str:
        """All ranks for people: of several, those that diverged first are described, the others are a line."""
        parts = [self.ranks[0].table()] if len(self.ranks) == 1 else _of_ranks(self.ranks)
        if self.verdict is Verdict.NOT_JUDGED:
            parts.append("\n".join(f"NOT JUDGED: {reason}" for reason in _unseen_by_reason(self)))
        else:
            parts += [f"not compared: {rank}" for rank in self.not_compared]
        return "\n\n".join(parts)

    def records(self) -> Iterator[dict[str, Any]]:
        """Records for programs: a record per pair, a first_divergence for each rank that diverged, the losses of each step, a summary."""
        for rank in self.ranks:
            for row in rank.rows:
                yield {"kind": "pair", **dataclasses.asdict(row)}
            if (first := rank.first_divergence()) is not None:
                yield first
            for side, recording in (("A", rank._found.a), ("B", rank._found.b)):
                for step, value in losses_of(recording).items():
                    yield {"kind": "loss", "rank": rank.rank, "side": side, "step": step, "value": value}
        counts: Counter[str] = Counter()
        for rank in self.ranks:
            counts.update(rank.counts)
        yield {
            "kind": "summary",
            "exit_status": self.exit_status,
            "verdict": self.verdict.value,
            "unseen": self.unseen,
            "ranks": len(self.ranks),
            "verdicts": dict(counts),
            "other_dtypes": sum(rank.other_dtypes for rank in self.ranks),
            "incomplete": [recording for rank in self.ranks for recording in rank.incomplete] + self.not_compared,
        }

    def to_json(self) -> str:
        """The records as lines of JSON; numbers that are not finite are strings."""
        return "".join(json.dumps(finite_json(record)) + "\n" for record in self.records())


def plain_name(op: str) -> str:
    """Without namespace, overload and the mark of an in-place form: aten::add_.Tensor and torch.add are "add"."""
    return base_name(op).strip("_")


# --- For people --------------------------------------------------------------------------------------------------


def _cut(text: str, width: int = _WIDTH) -> str:
    """A line with a long path stays whole: the path's end, a file and a line, says most."""
    has_path = any("/" in word and len(word) > width // 2 for word in text.split())
    return text if len(text) <= width or has_path else text[: width - 3] + "..."


def _two_digits(value: float | None) -> str:
    return "" if value is None or value == 0 else f"{value:.2g}"


def _table(rows: Iterable[RunRow]) -> str:
    shown = [("row", True), ("step", True), ("op", False), ("module", False), ("verdict", False)]
    numbers = [("in", True), ("out", True), ("limit", True)]
    return text_table(
        shown + numbers,
        [
            [
                str(row.row),
                str(row.step),
                short_name(row.op) + (" backward" if row.phase == "backward" else ""),
                row.module,
                row.verdict,
                _two_digits(row.input_difference),
                _two_digits(row.output_difference),
                _two_digits(row.limit),
            ]
            for row in rows
        ],
        _WIDTH,
    )


def _tensor_text(tensor: dict[str, Any] | None) -> str:
    if tensor is None:
        return "none"
    text = f"{str(tensor['dtype']).removeprefix('torch.')}{list(tensor['shape'])}"
    numbers = [f"{name} {tensor[name]:.6g}" for name in ("min", "max", "norm") if name in tensor]
    counts = [f"{name} {tensor[name]}" for name in ("nan", "inf") if tensor.get(name)]
    return " ".join([tensor.get("name") or tensor["place"], text, *numbers, *counts])


def _first_lines(rank: RankComparison, first: RunRow) -> list[str]:
    lines = [
        f"First divergence: {short_name(first.op)} ({first.phase}, step {first.step}): {first.verdict}: {first.finding}"
    ]
    if first.op_b and first.op_b != first.op:
        lines.append(f"  in B: {short_name(first.op_b)}")
    for what, value, other in (("module", first.module, first.module_b), ("line", first.line, first.line_b)):
        if value or other:
            lines.append(f"  {what}: {value}" + (f"; in B {other}" if other and other != value else ""))
    lines += [f"  A: {_tensor_text(first.tensor_a)}", f"  B: {_tensor_text(first.tensor_b)}"]
    if first.finding == Finding.CHANGED_INPUT and first.tensor_b:
        lines += [
            f"  B's memory was written last by {short_name(first.tensor_b['written_by'])} (id {first.tensor_b['written_by_id']}),",
            "  which may have written beside its own tensor, as any call before it may",
        ]
    if first.output_difference:
        limit = f"; rounding explains {first.limit:.2g}" if first.limit else ""
        noise = f"; the noise is {first.noise:.2g}" if first.noise else ""
        inputs = f"its inputs by {first.input_difference:.2g}" if first.input_difference else "its inputs not at all"
        lines.append(f"  differs by {first.output_difference:.2g} of its norm, {inputs}{limit}{noise}")
    lines = list(map(printable, lines))
    lines += ["", f"The {_BEFORE} calls before it:", _table(rank.rows[max(0, first.row - _BEFORE) : first.row + 1])]
    return lines


def _chain_lines(rank: RankComparison) -> list[str]:
    chain = rank.chain
    if len(chain) < 2:
        return []
    shown = chain if len(chain) <= _BEFORE else [*chain[: _BEFORE - 3], *chain[-3:]]
    left = len(chain) - len(shown)
    return ["", f"How it went on{f' ({left} calls of the chain left out)' if left else ''}:", _table(shown)]


def _worst_lines(rank: RankComparison) -> list[str]:
    worst = rank.worst()[:_WORST]
    return ["", "The operators with the largest differences of their own:", _table(worst)] if len(worst) > 1 else []


def _unseen_by_reason(comparison: RunsComparison) -> list[str]:
    if len(comparison.ranks) == 1:
        return comparison.unseen
    reasons = ((rank.rank, reason) for rank in comparison.ranks for reason in rank.unseen)
    return [*lines_of_ranks(reasons), *comparison.not_compared]


def _at_most(lines: Sequence[str], count: int) -> list[str]:
    left = len(lines) - count
    return [*lines[:count], f"... and {left} more lines"] if left > 0 else list(lines)


def _of_ranks(ranks: Sequence[RankComparison]) -> list[str]:
    """A fault of one rank reaches the others through collectives: the earliest divergence comes first."""
    agree = [rank for rank in ranks if rank.first is None]
    kinds: dict[tuple[int, int, str, str, str], list[RankComparison]] = {}
    for rank in ranks:
        if (first := rank.first) is not None:
            kinds.setdefault((first.step, first.row, first.op, first.phase, first.module), []).append(rank)
    earliest = sorted(kinds.items())
    parts = []
    if earliest:
        columns = [("step", True), ("row", True), ("op", False), ("phase", False), ("module", False), ("ranks", False)]
        cells = [
            [str(step), str(row), short_name(op), phase, module, ranks_text(rank.rank for rank in those)]
            for (step, row, op, phase, module), those in earliest[:DEFAULT_ROWS]
        ]
        more = len(earliest) - len(cells)
        parts.append(
            f"{len(ranks) - len(agree)} of {len(ranks)} ranks diverge, the earliest first:\n"
            + text_table(columns, cells, _WIDTH)
            + (f"\n... and {more} more first divergences" if more else "")
        )
        parts += [those[0].table() for _, those in earliest[:_RANKS]]
        if others := [rank for _, those in earliest[:_RANKS] for rank in those[1:]] or [
            those[0] for _, those in earliest[_RANKS:]
        ]:
            parts.append(f"Another rank: {op_tools_line('compare', str(others[0].a), str(others[0].b))}")
    if agree:
        calls = sum(len(rank.rows) for rank in agree)
        alone = " The others changed nothing." if any(rank._alone for rank in agree) else ""
        parts.append(
            f"No difference was born in any of the {calls} calls of {ranks_text(rank.rank for rank in agree)}.{alone}"
        )
        dtypes = [(rank.rank, rank.dtypes_line) for rank in agree if rank.dtypes_line]
        incomplete = [(rank.rank, f"incomplete: {recording}") for rank in agree for recording in rank.incomplete]
        structures = [(rank.rank, line) for rank in agree for line in _at_most(rank.structure.lines, _STRUCTURE)]
        for texts in (dtypes, incomplete, structures):
            lines = _at_most(lines_of_ranks(texts), DEFAULT_ROWS)
            parts += ["\n".join(_cut(printable(line)) for line in lines)] if lines else []
    return parts


def _described(rank: RankComparison) -> list[str]:
    lines = [f"rank {rank.rank}"]
    for name, path in (("A", rank.a), ("B", rank.b)):
        lines += [f"{name}: {path}", *lines_of(rank.accounts.get(name))]
    lines += [f"incomplete: {path}" for path in rank.incomplete]
    if structure := rank.structure.lines:
        lines += ["", "Structure", *(f"  {line}" for line in structure)]
    lines += ["", "Calls: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(rank.counts.items()))]
    lines += [rank.dtypes_line] if rank.dtypes_line else []
    lines = list(map(printable, lines))
    first = rank.first
    if first is None:
        if rank.unseen:
            return [*map(_cut, lines), "No difference was born in a call that was compared."]
        others = " The others changed nothing." if rank._alone else ""
        return [*map(_cut, lines), f"No difference was born in any call.{others}"]
    lines += ["", *_first_lines(rank, first), *_chain_lines(rank), *_worst_lines(rank)]
    return [line if "\n" in line else _cut(line) for line in lines]
