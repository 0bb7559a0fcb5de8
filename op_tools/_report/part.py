"""The parts of a report: a part per folder of results, with its coverage, verdict, findings and rows.

A reader (the files beside this file, named after their tools) makes a Part of rows. page.py and text.py show parts.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._base.account import ACCOUNT_FILE, coverage_from
from .._base.core import Coverage, Error
from .._base.data_file import read_json
from .._base.error_text import one_line
from .._base.verdict import Verdict
from .rank_work import Work

MOST_ROWS = 100_000
"""Rows in a report; of more, an even share."""
FEWEST_ROWS = 200  # of a table, where there are few


class Mark(str, enum.Enum):
    """How much a finding, or a row, matters; the most important first."""

    WRONG = "wrong"
    NOT_JUDGED = "not judged"
    NOTE = "note"
    RIGHT = "right"

    __str__ = str.__str__


@dataclass
class Finding:
    """All rows of a tool with the same mark, operator, phase and module."""

    mark: Mark
    tool: str
    op: str
    phase: str
    module: str
    text: str
    """The reason of the first row."""
    line: str
    """The program's line of the first row."""
    rank: str
    count: int = 0
    first_step: int | None = None
    worst: float | None = None
    """In `unit`."""
    unit: str = ""
    """As in "x limit"."""
    saved: str = ""
    """The folder of the first saved call."""
    steps: Counter[int] = field(default_factory=Counter)
    """Step -> rows."""
    table: int = 0
    """Which of the part's tables has the rows."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_number: bool = False
    is_choice: bool = False
    """It has few values, by which a reader filters."""


@dataclass(frozen=True)
class Chart:
    """A point for each row that has both values."""

    title: str
    x: str
    """The title of a column of numbers."""
    y: str
    is_log: bool = False


@dataclass(frozen=True)
class Timeline:
    """The titles of the columns by which rows lie on a line of time."""

    start: str
    length: str
    thread: str
    device: str
    name: str


@dataclass(frozen=True)
class Series:
    """A line of a picture."""

    title: str
    points: tuple[tuple[float, float], ...]
    """x, y; in the order of x."""


@dataclass(frozen=True)
class Curve:
    """Numbers of several runs over a common axis."""

    title: str
    axis: str
    """Of x."""
    series: tuple[Series, ...]
    at: tuple[tuple[float, str], ...] = ()
    """Places of the axis, and what happened there."""
    bytes_on_top_of_each_other: bool = False
    """The series are parts of a sum of bytes: areas, the first at the bottom, all with points at the same x."""


@dataclass(frozen=True)
class Grid:
    """A cell for each pair of a row and a column, as operator and dtype."""

    title: str
    corner: str
    """Of the rows: "operator"."""
    cells: Mapping[tuple[str, str], Counter[Mark]]
    """(row, column) -> how many rows of a table have a mark."""


@dataclass(frozen=True)
class Shares:
    """A bar for each row, whose parts are counts: a histogram of rows by their mark, the calls of a stream by their state."""

    title: str
    corner: str
    """Of the rows: "ULP"."""
    names: tuple[str, ...]
    """Of the parts, in their order."""
    rows: tuple[tuple[str, Mapping[str, int]], ...]
    """A row's title, and the count of each part."""


@dataclass
class Table:
    """Rows behind the findings. Holds at most `most` of the rows that it was given: all that are wrong, as long as they
    fit, and every second, fourth, ... of the others."""

    title: str
    columns: tuple[Column, ...]
    total: int = 0
    """Rows that it was given."""
    chart: Chart | None = None
    timeline: Timeline | None = None
    most: int = MOST_ROWS
    _wrong: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    _others: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    _stride: int = 1
    _wrong_stride: int = 1
    _seen_wrong: int = 0
    _seen_others: int = 0

    def add(self, cells: tuple[Any, ...], *, is_wrong: bool = False) -> None:
        """A row: a text or a number for each column; None where it has no such value."""
        if is_wrong:
            if self._seen_wrong % self._wrong_stride == 0:
                self._wrong.append((self.total, cells))
            self._seen_wrong += 1
        else:
            if self._seen_others % self._stride == 0:
                self._others.append((self.total, cells))
            self._seen_others += 1
        self.total += 1
        self._thin()

    def add_all(self, rows: Sequence[int], wrong: Sequence[int], cells_of: Callable[[int], tuple[Any, ...]]) -> None:
        """Rows of a table that holds none, by number. Cells are made for those that it will hold alone.

        Args:
            rows: numbers of the rows, in their order.
            wrong: those of them that are wrong.
            cells_of: the cells of a row, as for add().
        """
        is_wrong = set(wrong)
        others = [row for row in rows if row not in is_wrong] if wrong else rows
        while len(wrong[:: self._wrong_stride]) + len(others[:: self._stride]) > self.most:
            if len(others[:: self._stride]) > len(wrong[:: self._wrong_stride]):
                self._stride *= 2
            else:
                self._wrong_stride *= 2
        self._wrong = [(row, cells_of(row)) for row in wrong[:: self._wrong_stride]]
        self._others = [(row, cells_of(row)) for row in others[:: self._stride]]
        self.total, self._seen_wrong, self._seen_others = len(rows), len(wrong), len(others)

    def hold(self, most: int) -> None:
        """Holds at most `most` rows from now on."""
        self.most = min(self.most, most)
        self._thin()

    def _thin(self) -> None:
        while len(self._wrong) + len(self._others) > self.most:
            if len(self._others) > len(self._wrong):
                self._others, self._stride = self._others[::2], 2 * self._stride
            else:
                self._wrong, self._wrong_stride = self._wrong[::2], 2 * self._wrong_stride

    @property
    def marked_rows(self) -> list[tuple[bool, tuple[Any, ...]]]:
        """The rows that it holds, in their order, and whether each is wrong."""
        rows = [(number, True, cells) for number, cells in self._wrong]
        rows += [(number, False, cells) for number, cells in self._others]
        return [(is_wrong, cells) for _, is_wrong, cells in sorted(rows, key=lambda row: row[0])]

    def first_rows(self, most: int) -> list[tuple[bool, tuple[Any, ...]]]:
        """Some of them, those that are wrong first."""
        rows = [(True, cells) for _, cells in self._wrong[:most]]
        return rows + [(False, cells) for _, cells in self._others[: most - len(rows)]]

    @property
    def thinned(self) -> str:
        """Which rows it does not hold; "" where it holds all."""
        held = len(self._wrong) + len(self._others)
        if held == self.total:
            return ""
        if self._stride == self._wrong_stride == 1:  # put together of tables that hold their shares
            return f"{held:,} of {self.total:,} rows are shown: of each rank its share"
        wrong = "all that are wrong" if self._wrong_stride == 1 else f"each {self._wrong_stride}th that is wrong"
        return f"{held:,} of {self.total:,} rows are shown: {wrong}, and each {self._stride}th of the others"


@dataclass
class Place:
    """A module, or a line of the program, with the findings of all tools."""

    calls: int = 0
    """Rows of any tool."""
    wrong: int = 0
    not_judged: int = 0
    self_ms: float = 0.0
    alive_bytes: int = 0

    def add(self, other: Place) -> None:
        """Counts the content of another place here, too."""
        self.calls += other.calls
        self.wrong += other.wrong
        self.not_judged += other.not_judged
        self.self_ms += other.self_ms
        self.alive_bytes += other.alive_bytes


@dataclass(frozen=True)
class Command:
    """A command that answers the next question."""

    purpose: str
    text: str


@dataclass
class Origin:
    """Where the rows of a part come from."""

    folder: str = ""
    """ "" for a result that has no files."""
    rank: str = ""
    account: Coverage | None = None
    """None: there is none, or it is damaged."""
    command: str = ""
    """That starts the program again, as it was started."""
    working_folder: str = ""
    """In which it was started."""
    gaps: list[str] = field(default_factory=list)
    """Why it is not known that nothing is wrong, besides those of the account."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many each file of rows had when the run ended, by its name; of an older version none."""
    ranks: int = 1
    """How many processes the launcher of the run started, as far as it is known."""

    @property
    def looked_at(self) -> list[str]:
        """The examined work, in words."""
        return self.account.lines()[:1] if self.account else []  # the others are gaps

    @property
    def reasons(self) -> list[str]:
        """All gaps, in words."""
        return [*(self.account.reasons() if self.account else []), *self.gaps]


@dataclass
class Part:
    """The content of a folder of results, or of a result in memory."""

    tool: str
    origin: Origin
    verdict: Verdict | None = None
    """None: the tool gives no verdict."""
    facts: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    modules: dict[str, Place] = field(default_factory=dict)
    lines: dict[str, Place] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    cannot_tell: list[str] = field(default_factory=list)
    bars: list[tuple[str, float, str]] = field(default_factory=list)
    """A title, a number, and its text: a bar each, the longest first."""
    bars_title: str = ""
    curves: list[Curve] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    shares: list[Shares] = field(default_factory=list)
    text: str = ""
    """Lines of the tool itself, where they say more than rows."""
    work: Work | None = None
    """Of a rank, with its times, to be compared with those of the others."""

    def place(self, module: str, line: str) -> list[Place]:
        """The places of a row."""
        places = [self.modules.setdefault(module, Place())] if module else []
        return [*places, self.lines.setdefault(line, Place())] if line else places


def share_rows(parts: Iterable[Part], most: int = MOST_ROWS) -> None:
    """Thins the tables of all parts, so that a report of many ranks is no larger than that of a rank: each holds its share."""
    tables = [table for part in parts for table in part.tables]
    total = sum(table.total for table in tables)
    if total > most:
        for table in tables:
            table.hold(max(min(FEWEST_ROWS, most // len(tables)), most * table.total // total))


class FindingsOf:
    """Puts rows of a tool together to findings."""

    def __init__(self, part: Part, unit: str = "") -> None:
        self._part, self._unit = part, unit
        self._by_key: dict[tuple[Any, ...], Finding] = {}

    def add(
        self,
        mark: Mark,
        row: Mapping[str, Any],
        *,
        text: str,
        worst: float | None = None,
        line: str = "line",
        saved: str = "",
        table: int = 0,
        apart: object = None,
    ) -> None:
        """Counts a row.

        Args:
            mark: how much it matters.
            row: fields op, phase, module, step, and the program's line.
            text: the reason.
            worst: how bad, in the unit of all.
            line: the name of the field with the program's line.
            saved: the folder of the call.
            table: which of the part's tables has the row.
            apart: rows with another value are another finding.
        """
        op, phase, module = text_of(row, "op"), text_of(row, "phase"), text_of(row, "module")
        key = mark, op, phase, module, apart
        finding = self._by_key.get(key)
        if finding is None:
            finding = self._by_key[key] = Finding(
                mark, self._part.tool, op, phase, module, text, text_of(row, line), self._part.origin.rank
            )
            finding.unit, finding.table = self._unit, table
            self._part.findings.append(finding)
        finding.count += 1
        step = integer_of(row, "step")
        if step is not None:
            finding.steps[step] += 1
            finding.first_step = step if finding.first_step is None else min(step, finding.first_step)
        if worst is not None and (finding.worst is None or not worst <= finding.worst):
            finding.worst = worst
        finding.saved = finding.saved or saved


# --- Fields of rows that come from files: of any type -----------------------------------------------------------------------


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A field as a text; "" where the row has none."""
    value = row.get(name)
    return value if isinstance(value, str) else "" if value is None else str(value)


def number_of(row: Mapping[str, Any], name: str) -> float | None:
    """A field as a number; None where it is none. Texts of numbers are read, as files of CSV have them."""
    value = row.get(name)
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def integer_of(row: Mapping[str, Any], name: str) -> int | None:
    """A field as an integer; None where it is none."""
    value = number_of(row, name)
    return int(value) if value is not None and math.isfinite(value) else None


def sizes_of(row: Mapping[str, Any], name: str) -> str:
    """A list of sizes as a text: 4x8x8."""
    value = row.get(name)
    return "x".join(map(str, value)) if isinstance(value, list) else text_of(row, name)


def short(value: float | None) -> float | None:
    """Four digits of a number: more would make files large."""
    return value if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def bytes_text(size: float) -> str:
    """1.5 MB."""
    for unit, bytes_of_unit in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= bytes_of_unit:
            return f"{size / bytes_of_unit:.4g} {unit}"
    return f"{size:.0f} B"


def dtype_of(row: Mapping[str, Any], name: str = "dtype") -> str:
    """float32."""
    return text_of(row, name).removeprefix("torch.")


# --- Folders ----------------------------------------------------------------------------------------------------------------


def origin_of(folder: Path) -> Origin:
    """Of a run's folder <result>/<rank>/<time>, with its account."""
    origin = Origin(str(folder), folder.parent.name if folder.parent.name.isdecimal() else "")
    file = folder / ACCOUNT_FILE
    if file.is_symlink() or not file.is_file():
        origin.gaps.append("there is no account of the run (coverage.json): its program was killed, or still runs")
        return origin
    try:
        facts = read_json(file)
        if not isinstance(facts, dict):
            raise Error("is no account of a run")
        origin.account = coverage_from(facts)
        origin.rows, origin.ranks = _rows_by_file(facts.get("rows", {})), integer_of(facts, "ranks") or 1
        program = facts.get("program")
        if isinstance(program, dict):
            origin.command, origin.working_folder = text_of(program, "command"), text_of(program, "folder")
        origin.gaps += _further_reasons(facts, origin.account)
        origin.looked_at, origin.reasons  # noqa: B018  (a field of another type is noticed here)
    except (Error, TypeError, ValueError) as error:
        origin.account = None
        origin.gaps.append(f"{file}: is damaged: {one_line(error)}")
    return origin


def _rows_by_file(facts: object) -> dict[str, int]:
    """Rows by file, of an account."""
    if not isinstance(facts, dict) or not all(type(count) is int for count in facts.values()):
        raise Error("the numbers of its rows are no numbers")
    return facts


def _further_reasons(facts: Mapping[str, Any], account: Coverage) -> list[str]:
    """Those of a file for gaps that its fields do not give here: the version that wrote it knows more of them."""
    gaps, reasons = (facts.get(name, []) for name in ("gaps", "reasons"))
    if not isinstance(gaps, list) or not isinstance(reasons, list):
        raise Error("its gaps are no list")
    known = account.gaps()
    texts = [*map(str, reasons), *map(str, gaps[len(reasons) :])]
    return [text for gap, text in zip(gaps, texts, strict=False) if gap not in known]


def unknown_words(name: str, words: Mapping[str, int]) -> list[str]:
    """The gap that rows make whose column `name` has a word that no reader here knows, of another version: how many rows have each."""
    if not words:
        return []
    listed = ", ".join(f"'{word}'" for word in words)
    return [f"{sum(words.values()):,} rows have a {name} that this version of op_tools does not know: {listed}"]


def run_folder(part: Part) -> str:
    """The folder that the ranks of a run have in common: <run>/<rank>/<time>, or the folder of their files."""
    folder = Path(part.origin.folder)
    if folder.parent.name.isdecimal():
        return str(folder.parents[1])
    return str(folder.parent if folder.suffix else folder)


Reader = Callable[[Iterable[Mapping[str, Any]], Origin], Part]


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Wrong ones first, of these those with the earliest step."""
    order = list(Mark)
    return sorted(
        findings, key=lambda finding: (order.index(finding.mark), finding.first_step is None, finding.first_step or 0)
    )
