"""A report as a page: a single file of HTML that asks nothing of any network.

Coverage, verdict, findings and the first rows are plain HTML. page.js, whose source is in web/, shows all rows. No text of the data is
ever markup: each goes through escape(), and the rows are base64.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._base.error_text import printable
from .._base.verdict import Verdict
from .packed import packed_rows
from .page_tables import PageTables
from .part import Finding, Mark, Part, Place, Table, bytes_text
from .pictures import curve_svg, flame_svg, grid_table, shares_table, steps_svg
from .summary import (
    Kind,
    Module,
    commands_of_parts,
    kinds_by_mark,
    lines_of_parts,
    module_tree,
    parts_by_tool,
    verdict_of_parts,
    verdict_sentence,
)

GENERATED = '<meta name="generator" content="op-tools report">'
"""By this a page of ours is known."""
_MOST_FINDINGS = 100  # of a mark, in a table
_MOST_ROWS, _FEWEST_ROWS, _MOST_ROWS_OF_ALL = 30, 3, 1_500  # without JavaScript: of a table, and of all tables
_MOST_LINES = 20
_MOST_COMMANDS = 40
_MOST_MODULES = 1_000
_MOST_RANKS = 4  # in a line of the findings
_MOST_RANKS_COVERED = 16  # of a tool, whose coverage is shown rank by rank
_MOST_TEXT = 300  # characters of a reason
_SPARKS = 24  # bars of a sparkline
_CLASSES = {Mark.WRONG: "wrong", Mark.NOT_JUDGED: "open", Mark.NOTE: "note", Mark.RIGHT: "right"}
_SIGNS = {Mark.WRONG: "✗", Mark.NOT_JUDGED: "?", Mark.NOTE: "•", Mark.RIGHT: "✓"}
_MARK_OF = {Verdict.DIFFERS: Mark.WRONG, Verdict.NOT_JUDGED: Mark.NOT_JUDGED, Verdict.AGREES: Mark.RIGHT}


def escape(text: object) -> str:
    """A text of the data: in it nothing is markup, and no character turns the direction of what follows."""
    return html.escape(printable(str(text), keep="\n\t"))


def _cut_reason(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def figure(value: object) -> str:
    """A number of a table for people; "" for None; a flag and a text as they are."""
    if value is None or isinstance(value, (str, bool)):
        return str(value or "")
    size = abs(float(str(value)))
    return f"{value:,.0f}" if size < 1e15 and (size >= 1000 or size == int(size)) else f"{value:.4g}"


def counted_text(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _broken(text: object) -> str:
    """An escaped name or path, which may be broken where a reader would break it."""
    return re.sub(r"([./_])(?=\w)", r"\1<wbr>", escape(text))


def _mark(mark: Mark, text: str = "") -> str:
    return f'<span class="mark {_CLASSES[mark]}">{_SIGNS[mark]} {escape(text or mark.value)}</span>'


def _verdict_mark(verdict: Verdict | None) -> str:
    return _mark(_MARK_OF[verdict], verdict.value) if verdict is not None else '<span class="quiet">none</span>'


def _cards(titles: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """A table that becomes cards on a narrow screen. Cells are (class, HTML)."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in titles)
    body = []
    for row in rows:
        cells = (
            f'<td{f" class={name!r}" if name else ""} data-title="{escape(title)}">{content}</td>'
            for title, (name, content) in zip(titles, row, strict=True)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="plain cards"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


# --- Sections ---------------------------------------------------------------------------------------------------------------


def _coverage_of(part: Part) -> list[tuple[str, str]]:
    looked_at = "".join(f"<div>{escape(line.partition(': ')[2])}</div>" for line in part.origin.looked_at)
    facts = ", ".join(f"{value} {name}" if value[:1].isdecimal() else f"{name}: {value}" for name, value in part.facts)
    gaps = "".join(f"<li>{escape(reason)}</li>" for reason in part.origin.reasons)
    if not part.origin.account and not gaps:
        looked_at = '<div class="quiet">its files have no account of what was not looked at</div>'
    return [
        ("op tool", escape(part.tool)),
        ("", _verdict_mark(part.verdict)),
        ("", escape(facts)),
        ("", f"<div>{looked_at}{gaps and f'<ul class=gaps>{gaps}</ul>'}</div>"),
        ("n", escape(part.origin.rank)),
        ("code small", _broken(part.origin.folder)),
    ]


def _coverage_section(parts: Sequence[Part]) -> str:
    rows = []
    for tool, shown, others in parts_by_tool(parts, _MOST_RANKS_COVERED):
        rows += [_coverage_of(part) for part in shown]
        lines = "".join(f"<div>{escape(line)}</div>" for line in others)
        if lines:
            rows.append([("op tool", escape(tool)), *[("", "")] * 2, ("", f"<div>{lines}</div>"), *[("", "")] * 2])
    titles = ("tool", "verdict", "figures", "looked at, and not", "rank", "folder")
    texts = "".join(f"<h3>{escape(part.tool)}</h3><pre>{escape(part.text)}</pre>" for part in parts if part.text)
    return _section("coverage", "What was looked at, and what was not", _cards(titles, rows) + texts)


def _sparkline(finding: Finding) -> str:
    """How many rows in each step, or in each run of steps."""
    if len(finding.steps) < 2:
        return ""
    first, last = min(finding.steps), max(finding.steps)
    width = max(1, -(-(last - first + 1) // _SPARKS))
    bars = [0] * ((last - first) // width + 1)
    for step, count in finding.steps.items():
        bars[(step - first) // width] += count
    most = max(bars)
    rects = "".join(
        f'<rect x="{4 * number}" y="{16 - (height := max(1, round(16 * count / most)))}" width="3" height="{height}"/>'
        for number, count in enumerate(bars)
        if count
    )
    label = f"steps {first} to {last}, at most {most} rows in {'a step' if width == 1 else f'{width} steps'}"
    name = "spark" if finding.mark is Mark.WRONG else "spark note"
    return f'<svg class="{name}" role="img" aria-label="{label}" width="{4 * len(bars)}" height="16"><title>{label}</title>{rects}</svg>'


def _link_to_rows(finding: Finding, text: str, part: Part, tables: PageTables) -> str:
    """A link that shows the rows of a finding alone."""
    if not part.tables:
        return text
    number = tables.number_of(part, finding.table)
    titles = {column.title for column in tables.all[number].table.columns}
    wanted = {name: getattr(finding, name) for name in ("op", "phase", "module", "rank") if name in titles}
    choice = escape(json.dumps({"table": number, **wanted}))
    return f'<a href="#table-{number}" data-filter="{choice}">{text}</a>'


def _finding_row(kind: Kind, parts: Sequence[Part], tables: PageTables) -> list[tuple[str, str]]:
    finding = kind.finding
    links = [
        _link_to_rows(source, f"{source.count:,}", parts[number], tables)
        for number, source in kind.sources[: _MOST_RANKS + 1]
    ]
    count = links[0]
    if len(links) > 1:
        of_ranks = (
            f"<div>rank {escape(source.rank)}: {link}</div>"
            for link, (_, source) in zip(links[:_MOST_RANKS], kind.sources, strict=False)
        )
        left = f"<div>and {len(kind.sources) - _MOST_RANKS:,} more</div>" if len(links) > _MOST_RANKS else ""
        count = f"<div>{finding.count:,}<div class='small quiet'>{''.join(of_ranks)}{left}</div></div>"
    worst = f"{figure(finding.worst)} {escape(finding.unit)}" if finding.worst is not None else ""
    module = f'<span class="code">{_broken(finding.module)}</span>' if finding.module else ""
    place = " · ".join(filter(None, [escape(finding.phase), module]))
    line = f'<div class="code quiet">{_broken(finding.line)}</div>' if finding.line else ""
    step = "" if finding.first_step is None else f"{finding.first_step:,}"
    rank = f", rank {finding.rank}" if len(links) == 1 and finding.rank not in ("", "0") else ""
    return [
        ("", _mark(finding.mark)),
        ("where", f'<div class="op code">{_broken(finding.op)}</div><div>{place}</div>{line}'),
        ("n", count),
        ("n", step),
        ("", _sparkline(finding)),
        ("n", worst),
        ("why", escape(_cut_reason(finding.text))),
        ("tool", escape(finding.tool + rank)),
    ]


_FINDING_TITLES = ("mark", "operator, module, line", "rows", "first step", "by step", "worst", "why", "tool")


def _findings_section(parts: Sequence[Part], tables: PageTables) -> str:
    content = []
    by_mark = kinds_by_mark(parts)
    for mark, kinds in by_mark.items():
        if not kinds:
            continue
        shown = kinds[:_MOST_FINDINGS]
        rows = (_finding_row(kind, parts, tables) for kind in shown)
        table = f'<div class="scroll">{_cards(_FINDING_TITLES, rows)}</div>'
        if len(kinds) > len(shown):
            table += f'<p class="quiet">and {len(kinds) - len(shown):,} more; the rows below have all</p>'
        if mark is Mark.WRONG:
            content.append(table)
        else:
            total = sum(kind.finding.count for kind in kinds)
            figures = f"{counted_text(len(kinds), 'kind')}, {counted_text(total, 'row')}"
            content.append(f"<details><summary>{_mark(mark)} {figures}</summary>{table}</details>")
    if not by_mark[Mark.WRONG]:
        content.insert(0, "<p>Nothing wrong is among the rows. What was not looked at stands above.</p>")
    intro = '<p class="quiet">A line for each operator, phase and module. The number of rows leads to the rows themselves.</p>'
    return _section("findings", "Findings", intro + "".join(content))


def _place_figures(place: Place) -> str:
    marks = _mark(Mark.WRONG, f"{place.wrong:,} wrong") if place.wrong else ""
    marks += _mark(Mark.NOT_JUDGED, f"{place.not_judged:,} not judged") if place.not_judged else ""
    figures = [counted_text(place.calls, "row")] if place.calls else []
    figures += [f"{place.self_ms:,.3g} ms"] if place.self_ms else []
    figures += [f"{bytes_text(place.alive_bytes)} alive"] if place.alive_bytes else []
    return f'{marks}<span class="figure small">{escape(", ".join(figures))}</span>'


def _tree(module: Module, left: list[int]) -> str:
    items = []
    for inner in sorted(module.inner.values(), key=lambda inner: -inner.place.wrong):
        left[0] -= 1
        if left[0] < 0:
            break
        title = f"{escape(inner.name)}{_place_figures(inner.place)}"
        if not inner.inner:
            items.append(f"<li>{title}</li>")
        else:
            is_open = " open" if inner.place.wrong or module.name == "" else ""
            items.append(f"<li><details{is_open}><summary>{title}</summary>{_tree(inner, left)}</details></li>")
    return f"<ul>{''.join(items)}</ul>"


def _where_section(parts: Sequence[Part]) -> str:
    root = module_tree(parts)
    left = [_MOST_MODULES]
    modules = (
        f'<div class="tree">{_tree(root, left)}</div>' if root.inner else '<p class="quiet">No row names a module.</p>'
    )
    if left[0] < 0:
        modules += f'<p class="quiet">The first {_MOST_MODULES:,} modules.</p>'
    lines = lines_of_parts(parts)
    rows = [[("code", _broken(line)), ("", _place_figures(place))] for line, place in lines[:_MOST_LINES]]
    table = _cards(("line", "figures"), rows) if rows else '<p class="quiet">No row names a line.</p>'
    more = f'<p class="quiet">and {len(lines) - len(rows):,} more lines</p>' if len(lines) > len(rows) else ""
    content = f"<div><h3>Modules</h3>{modules}</div><div><h3>Lines of the program</h3>{table}{more}</div>"
    return _section("where", "Where", f'<div class="two">{content}</div>')


def _bars_section(parts: Sequence[Part]) -> str:
    drawn = [part for _, shown, _ in parts_by_tool(parts, _MOST_RANKS) for part in shown]
    few = f'<p class="open">The pictures of single results are those of {len(drawn):,} of {len(parts):,} results: of each tool the worst ranks.</p>'
    content = []
    for part in drawn:
        if not part.bars:
            continue
        most = max(value for _, value, _ in part.bars) or 1.0
        rows = "".join(
            f'<tr><td class="code">{escape(name)}</td><td class="n">{escape(text)}</td><td><svg aria-hidden="true" width="200" height="12" viewBox="0 0 200 12" preserveAspectRatio="none">'
            f'<rect width="{max(1.0, 200 * value / most):.0f}" height="12" rx="2"/></svg></td></tr>'
            for name, value, text in part.bars
        )
        source = f'<p class="quiet small code">{_broken(part.origin.folder)}</p>' if part.origin.folder else ""
        title = f"<h3>{escape(part.bars_title)}</h3>{source}"
        content.append(f'<div>{title}<div class="scroll"><table class="plain bars">{rows}</table></div></div>')
    bars = f'<div class="two">{"".join(content)}</div>' if content else ""
    pictures = _pictures(parts, drawn)
    if not pictures and not bars:
        return ""
    return _section("figures", "How much", (few if len(drawn) < len(parts) else "") + pictures + bars)


def _pictures(parts: Sequence[Part], drawn: Sequence[Part]) -> str:
    """Curves and grids of `drawn`; operators over steps, and the time of modules, of all parts."""
    content = []

    def add(title: str, picture: str, source: str = "") -> None:
        if picture:
            place = f'<p class="quiet small code">{_broken(source)}</p>' if source else ""
            content.append(f"<div><h3>{escape(title)}</h3>{place}{picture}</div>")

    for part in drawn:
        for curve in part.curves:
            add(curve.title, curve_svg(curve), part.origin.folder)
    add("Wrong rows over the steps", steps_svg(kinds_by_mark(parts)[Mark.WRONG]))
    root = module_tree(parts)
    add("Time by module" if root.place.self_ms else "Rows by module", flame_svg(root))
    for part in drawn:
        for shares in part.shares:
            add(shares.title, shares_table(shares), part.origin.folder)
        for grid in part.grids:
            add(grid.title, grid_table(grid), part.origin.folder)
    return "".join(content)


def _next_section(parts: Sequence[Part]) -> str:
    commands = {command.text: command.purpose for command in commands_of_parts(parts)}
    if not commands:
        return ""
    lines = [
        f'<div class="quiet small">{escape(purpose)}</div><div class="command"><code>{escape(text)}</code></div>'
        for text, purpose in list(commands.items())[:_MOST_COMMANDS]
    ]
    if len(commands) > len(lines):
        lines.append(f'<p class="quiet">and {len(commands) - len(lines):,} more, of other results</p>')
    intro = '<p class="quiet">From the folder in which the report was made.</p>'
    return _section("next", "Next", intro + "".join(lines))


def _first_rows(table: Table, most: int) -> str:
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in table.columns)
    body = []
    for is_wrong, cells in table.first_rows(most):
        texts = (
            f'<td class="{"n" if column.is_number else "code"}">{escape(figure(cell) if column.is_number else _cut_reason(str(cell or "")))}</td>'
            for column, cell in zip(table.columns, cells, strict=True)
        )
        body.append(f"<tr{' class=wrong' if is_wrong else ''}>{''.join(texts)}</tr>")
    count = min(table.total, most)
    caption = f"{count:,} of {table.total:,} rows; with JavaScript all can be seen, sorted and saved."
    return (
        f'<div class="scroll without-script"><table class="plain small"><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _rows_section(tables: PageTables) -> str:
    content = []
    most = max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_ROWS_OF_ALL // max(1, len(tables.all))))
    for number, shown in enumerate(tables.all):
        table = shown.table
        rank = f", rank {shown.rank}" if shown.rank else ""
        title = f"{escape(shown.tool)}: {escape(table.title)}"
        place = (
            f'<span class="quiet small">{counted_text(table.total, "row")}{escape(rank)} {_broken(shown.folder)}</span>'
        )
        thinned = f'<p class="open">{escape(table.thinned)}</p>' if table.thinned else ""
        chart = f'<div class="chart" id="table-{number}-chart"></div>' if table.chart else ""
        chart += f'<div class="timeline" id="table-{number}-timeline"></div>' if table.timeline else ""
        content.append(
            f'<details id="table-{number}"{"" if number else " open"}><summary><b>{title}</b> {place}</summary>{thinned}{chart}'
            f'<div id="table-{number}-rows"></div>{_first_rows(table, most)}</details>'
        )
    return _section("rows", "Rows", "".join(content)) if content else ""


def _limits_section(parts: Sequence[Part]) -> str:
    texts = dict.fromkeys(text for part in parts for text in part.cannot_tell)
    texts |= {
        "Nothing here says anything of operators that ran where no tool was on: other ranks, threads, processes, steps.": None
    }
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return _section("limits", "What this cannot tell", f"<ul>{items}</ul>")


_SECTIONS = {
    "coverage": "Coverage",
    "findings": "Findings",
    "where": "Where",
    "figures": "How much",
    "next": "Next",
    "rows": "Rows",
    "limits": "Limits",
}


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>'


# --- The page -----------------------------------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash_of(text: str) -> str:
    """As a Content Security Policy names a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_of(parts: Sequence[Part], title: str) -> str:
    """The page.

    Args:
        parts: at least a part.
        title: of the report.
    """
    script = _asset("page.js")
    verdict = verdict_of_parts(parts)
    mark = _MARK_OF[verdict]
    tables = PageTables(parts)
    sections = [
        _coverage_section(parts),
        _findings_section(parts, tables),
        _where_section(parts),
        _bars_section(parts),
        _next_section(parts),
        _rows_section(tables),
        _limits_section(parts),
    ]
    links = "".join(
        f'<a href="#{name}">{text}</a>'
        for (name, text), section in zip(_SECTIONS.items(), sections, strict=True)
        if section
    )
    wrong = kinds_by_mark(parts)[Mark.WRONG]
    rows = sum(kind.finding.count for kind in wrong)
    told = f"{counted_text(len(wrong), 'kind')} of finding, {counted_text(rows, 'row')}" if wrong else ""
    gaps = sum(bool(part.origin.reasons) for part in parts)
    told_gaps = f"gaps in {gaps} of {counted_text(len(parts), 'result')}" if gaps else ""
    figures = " · ".join(filter(None, [told, told_gaps]))
    header = f"""<p class="line"><span class="verdict {_CLASSES[mark]}">{_SIGNS[mark]} {escape(verdict.value)}</span>
<span>{escape(verdict_sentence(parts))}</span></p>
<p class="quiet">{escape(figures)}</p>"""
    body = f"""<nav aria-label="Sections"><div>{links}</div></nav>
<main>
{"".join(sections)}
</main>
<script type="application/octet-stream" id="data">{packed_rows(tables.all)}</script>
<script>{script}</script>"""
    return _document(title, f"script-src {_hash_of(script)};", header, body)


def message_page(title: str, text: str) -> str:
    """A page that has a sentence instead of results."""
    return _document(title, "", "", f"<main><p>{escape(text)}</p></main>")


def _document(title: str, scripts: str, header: str, body: str) -> str:
    """The file. It may load nothing; of scripts and styles those of ours run alone."""
    style = _asset("page.css")
    policy = f"default-src 'none'; {scripts} style-src {_hash_of(style)}; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
{GENERATED}
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header class="top"><div>
<h1>{escape(title)}</h1>
{header}
</div></header>
{body}
</body>
</html>
"""


def fragment_of(part: Part) -> str:
    """The coverage and the findings of a result, for a notebook: HTML without style or script."""
    return f"<div>{_coverage_section([part])}{_findings_section([part], PageTables([part]))}</div>".replace(
        "<section", "<div"
    ).replace("</section", "</div")
