"""The tables of a page. Those of many ranks are a table with a column for the rank: a page with a table for each of 1,000 ranks would
be large, slow to open, and of no use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .part import Column, Part, Table, run_folder

_MOST_RANKS = 8  # of more ranks the tables are joined
_RANK = Column("rank", is_choice=True)


@dataclass(frozen=True)
class PageTable:
    """A table, and the result whose rows it has."""

    tool: str
    rank: str
    """Of a single rank; "" where the table has a column for it."""
    folder: str
    table: Table


class PageTables:
    """All tables of a page, by number."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.all: list[PageTable] = []
        self._numbers: dict[int, int] = {}  # by the identity of a part's table
        groups: dict[tuple[Any, ...], list[tuple[Part, Table]]] = {}
        for part in parts:
            for table in part.tables:
                key = (part.tool, run_folder(part), table.columns, table.chart, table.timeline)
                groups.setdefault(key, []).append((part, table))
        for group in groups.values():
            if len(group) > _MOST_RANKS and len({part.origin.rank for part, _ in group}) > _MOST_RANKS:
                self._add(_of_all_ranks(group), [table for _, table in group])
                continue
            for part, table in group:
                self._add(PageTable(part.tool, part.origin.rank, part.origin.folder, table), [table])

    def _add(self, shown: PageTable, tables: Sequence[Table]) -> None:
        self._numbers |= {id(table): len(self.all) for table in tables}
        self.all.append(shown)

    def number_of(self, part: Part, table: int) -> int:
        """Of the page's table that has the rows of a part's table."""
        return self._numbers[id(part.tables[table])]


def _of_all_ranks(group: Sequence[tuple[Part, Table]]) -> PageTable:
    """The rows of all, with their ranks. Each table holds its share of the rows of the page already."""
    part, first = group[0]
    titles = {table.title for _, table in group}
    title = first.title if len(titles) == 1 else f"{first.title} and of {len(group) - 1:,} more"
    joined = Table(title, (*first.columns, _RANK), most=sum(table.most for _, table in group))
    joined.chart, joined.timeline = first.chart, first.timeline
    for other, table in group:
        for is_wrong, cells in table.marked_rows:
            joined.add((*cells, other.origin.rank), is_wrong=is_wrong)
    joined.total = sum(table.total for _, table in group)
    return PageTable(part.tool, "", run_folder(part), joined)
