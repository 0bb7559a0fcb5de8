"""Pictures of a report as SVG in the page, without script: curves of runs, memory over steps, operators over steps, the time of
modules, histograms, operators by dtype.

Colours are classes of report.css, so that a picture is dark where the page is, and prints. Each has its numbers as texts beside or in it.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from .._base.error_text import printable
from .part import Curve, Grid, Mark, Series, Shares, bytes_text
from .summary import Kind, Module

_WIDTH, _HEIGHT = 640, 200  # pixels, of curves
_LEFT, _BELOW, _ABOVE = 64, 22, 10  # for the axes
_MOST_POINTS = 600  # of a series
_MOST_OPS, _MOST_STEPS = 30, 48  # of operators over steps
_CELL = 13  # pixels
_MOST_GRID_ROWS = 60
_MOST_DEPTH, _BAR = 12, 20  # of a flame graph: rows, and pixels of each
_MOST_BARS = 400
_LETTER = 6.6  # pixels, about
_AREAS = 8  # fills of report.css
_BAR_WIDTH, _MOST_SHARES = 240, 40  # of a bar of shares: pixels; rows
_DASHES = ("", "6 3", "2 3", "8 3 2 3")  # of series: a reader need not tell colours


def _escape(text: object) -> str:
    return html.escape(printable(str(text)))


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // _MOST_POINTS) or 1
    return [*points[::step], *points[-1:]] if step > 1 else list(points)


def _polylines(series: Series, place: tuple[float, float, float, float], number: int) -> str:
    """A series as lines; a value that is not finite interrupts them."""
    left, width, low, high = place
    parts: list[list[str]] = [[]]
    for x, y in _thinned(series.points):
        if not math.isfinite(y):
            parts.append([])
            continue
        height = _HEIGHT * (1 - (y - low) / (high - low))
        parts[-1].append(f"{_LEFT + _WIDTH * (x - left) / width:.1f},{_ABOVE + height:.1f}")
    dash = _DASHES[number % len(_DASHES)]
    style = f' stroke-dasharray="{dash}"' if dash else ""
    lines = (f'<polyline class="trace s{number % 4}"{style} points="{" ".join(part)}"/>' for part in parts if part)
    return "".join(lines)


def _on_top_of_each_other(curve: Curve) -> Curve:
    """The series, each with the sum of those before it."""
    sums = [0.0] * len(curve.series[0].points)
    lines = []
    for series in curve.series:
        sums = [low + size for low, (_, size) in zip(sums, series.points, strict=True)]
        points = tuple((x, height) for (x, _), height in zip(series.points, sums, strict=True))
        lines.append(Series(series.title, points))
    return replace(curve, series=tuple(lines))


def _areas(curve: Curve, place: tuple[float, float, float, float]) -> str:
    """The areas below the lines of sums; the largest sum first, so that each smaller covers its part."""
    left, width, low, high = place
    bottom = _ABOVE + _HEIGHT
    areas = []
    for number, series in reversed(list(enumerate(curve.series))):
        points = " ".join(
            f"{_LEFT + _WIDTH * (x - left) / width:.1f},{_ABOVE + _HEIGHT * (1 - (y - low) / (high - low)):.1f}"
            for x, y in _thinned(series.points)
        )
        areas.append(
            f'<polygon class="area a{number % _AREAS}" points="{_LEFT},{bottom} {points} {_LEFT + _WIDTH},{bottom}"/>'
        )
    return "".join(areas)


def _legend(curve: Curve, figure: Callable[[float], str]) -> str:
    """The series with their first and last values."""
    items = []
    for number, series in enumerate(curve.series):
        if not series.points:
            continue
        if curve.bytes_on_top_of_each_other:
            sign = f'<rect class="area a{number % _AREAS}" width="30" height="8"/>'
        else:
            dash = _DASHES[number % len(_DASHES)]
            sign = f'<line class="trace s{number % 4}" x1="0" x2="30" y1="4" y2="4" stroke-dasharray="{dash}"/>'
        values = f"{figure(series.points[0][1])} to {figure(series.points[-1][1])}"
        items.append(
            f'<li><svg width="30" height="8" aria-hidden="true">{sign}</svg> {_escape(series.title)}: {values}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def curve_svg(curve: Curve) -> str:
    """Numbers of several runs over a common axis, or parts of a sum; "" where there are none."""
    finite = [(x, y) for series in curve.series for x, y in series.points if math.isfinite(y)]
    if not finite:
        return ""
    figure = bytes_text if curve.bytes_on_top_of_each_other else _figure
    legend = _legend(curve, figure)
    if curve.bytes_on_top_of_each_other:
        curve = _on_top_of_each_other(curve)
        finite = [(x, y) for series in curve.series for x, y in series.points] + [(finite[0][0], 0.0)]
    left, right = min(x for x, _ in finite), max(x for x, _ in finite)
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    width, high = right - left or 1.0, high if high > low else low + (abs(low) or 1.0)
    bottom = _ABOVE + _HEIGHT
    marks = "".join(
        f'<line class="at" x1="{(x_of := _LEFT + _WIDTH * (x - left) / width):.1f}" x2="{x_of:.1f}" y1="{_ABOVE}" y2="{bottom}"/>'
        f'<text class="at" x="{x_of + 4:.1f}" y="{_ABOVE + 12}">{_escape(text)}</text>'
        for x, text in curve.at[:3]
        if left <= x <= right
    )
    axes = "".join(
        f'<text x="{_LEFT - 6}" y="{y:.0f}" text-anchor="end">{figure(value)}</text>'
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        for value, y in ((high, _ABOVE + 4.0), ((low + high) / 2, _ABOVE + _HEIGHT / 2), (low, float(bottom)))
    )
    axes += f'<text x="{_LEFT}" y="{bottom + 16}">{_escape(curve.axis)} {_figure(left)}</text>'
    axes += f'<text x="{_LEFT + _WIDTH}" y="{bottom + 16}" text-anchor="end">{_figure(right)}</text>'
    place = (left, width, low, high)
    if curve.bytes_on_top_of_each_other:
        drawn = _areas(curve, place)
    else:
        drawn = "".join(_polylines(series, place, number) for number, series in enumerate(curve.series))
    title = f"{_escape(curve.title)}, {_escape(curve.axis)} {_figure(left)} to {_figure(right)}"
    size = f'viewBox="0 0 {_LEFT + _WIDTH + 8} {bottom + _BELOW}"'
    return (
        f'<figure class="picture"><svg class="curve" role="img" aria-label="{title}" {size}><title>{title}</title>'
        f"{axes}{drawn}{marks}</svg>{legend}</figure>"
    )


def steps_svg(kinds: Iterable[Kind]) -> str:
    """Operators over steps: how many wrong rows. "" where the findings have fewer than two steps."""
    by_op: dict[str, Counter[int]] = {}
    for kind in kinds:
        by_op.setdefault(kind.finding.op, Counter()).update(kind.finding.steps)
    steps = sorted({step for counts in by_op.values() for step in counts})
    if len(steps) < 2:
        return ""
    first, last = steps[0], steps[-1]
    of_column = max(1, -(-(last - first + 1) // _MOST_STEPS))
    columns = (last - first) // of_column + 1
    ops = sorted(by_op.items(), key=lambda item: (min(item[1], default=last), -item[1].total()))[:_MOST_OPS]
    name_width = max(len(op) for op, _ in ops) * _LETTER + 8
    cells, most = [], 1
    counted = []
    for row, (op, counts) in enumerate(ops):
        in_columns: Counter[int] = Counter()
        for step, count in counts.items():
            in_columns[(step - first) // of_column] += count
        counted.append((row, op, in_columns))
        most = max([most, *in_columns.values()])
    for row, op, in_columns in counted:
        y = row * (_CELL + 2)
        cells.append(f'<text x="{name_width - 6:.0f}" y="{y + 11}" text-anchor="end">{_escape(op)}</text>')
        for column in range(columns):
            count = in_columns[column]
            begin = first + column * of_column
            end = min(last, begin + of_column - 1)
            strength = 0 if not count else 1 + min(3, int(3 * math.log(count) / math.log(most))) if most > 1 else 4
            of = f"step {begin}" if begin == end else f"steps {begin} to {end}"
            cells.append(
                f'<rect class="heat h{strength}" x="{name_width + column * (_CELL + 2):.0f}" y="{y}" width="{_CELL}" height="{_CELL}" rx="2">'
                f"<title>{_escape(op)}, {of}: {count} rows</title></rect>"
            )
    below = len(ops) * (_CELL + 2) + 12
    end_x = name_width + columns * (_CELL + 2)
    cells.append(f'<text x="{name_width:.0f}" y="{below}">step {first}</text>')
    cells.append(f'<text x="{end_x:.0f}" y="{below}" text-anchor="end">{last}</text>')
    title = f"Wrong rows by operator and step, steps {first} to {last}; at most {most} in a cell"
    left = f'<p class="quiet small">and {len(by_op) - len(ops):,} more operators</p>' if len(by_op) > len(ops) else ""
    width = max(end_x, name_width + 90)
    return (
        f'<figure class="picture"><div class="scroll" tabindex="0" role="region" aria-label="{title}"><svg role="img" aria-label="{title}" width="{width:.0f}" height="{below + 6}">'
        f"<title>{title}</title>{''.join(cells)}</svg></div>{left}</figure>"
    )


def flame_svg(root: Module) -> str:
    """The modules by their time, each below its parent; by their rows where no tool measured times. "" without modules."""
    is_time = root.place.self_ms > 0

    def size_of(module: Module) -> float:
        return module.place.self_ms if is_time else module.place.calls

    total = size_of(root)
    if total <= 0 or not root.inner:
        return ""
    unit = "ms" if is_time else "rows"
    bars: list[str] = []
    depth = 0

    def draw(module: Module, x: float, level: int, path: str) -> None:
        nonlocal depth
        for inner in sorted(module.inner.values(), key=lambda inner: -size_of(inner)):
            width = _WIDTH * size_of(inner) / total
            if width < 1 or level >= _MOST_DEPTH or len(bars) >= _MOST_BARS:
                break  # the others take less
            depth = max(depth, level + 1)
            name = f"{path}.{inner.name}" if path else inner.name
            text = f"{name}: {size_of(inner):.4g} {unit}, {100 * size_of(inner) / total:.1f} %"
            if inner.place.wrong:
                text += f", {inner.place.wrong:,} wrong"
            letters = int((width - 8) / _LETTER)
            label = inner.name if len(inner.name) <= letters else ""
            bars.append(
                f'<g><title>{_escape(text)}</title><rect class="flame {"bad" if inner.place.wrong else f"f{level % 3}"}" x="{x:.1f}" y="{level * _BAR}" '
                f'width="{max(1.0, width - 1):.1f}" height="{_BAR - 2}" rx="2"/>'
                + (f'<text class="in" x="{x + 4:.1f}" y="{level * _BAR + 13}">{_escape(label)}</text>' if label else "")
                + "</g>"
            )
            draw(inner, x, level + 1, name)
            x += width

    draw(root, 0.0, 0, "")
    title = f"Flame graph: {'time' if is_time else 'rows'} by module, {total:.4g} {unit} in all"
    return (
        f'<figure class="picture"><svg class="curve" role="img" aria-label="{title}" viewBox="0 0 {_WIDTH} {depth * _BAR}">'
        f"<title>{title}</title>{''.join(bars)}</svg></figure>"
        if bars
        else ""
    )


def shares_table(shares: Shares) -> str:
    """A bar for each row, whose parts are as long as their counts, with the counts beside it."""
    shown = shares.rows[:_MOST_SHARES]
    most = max((sum(counts.values()) for _, counts in shown), default=0) or 1
    names = [name for name in shares.names if any(counts.get(name) for _, counts in shares.rows)]
    body = []
    for title, counts in shown:
        parts, x = [], 0.0
        for name in names:
            if count := counts.get(name):
                width = max(1.5, _BAR_WIDTH * count / most)
                parts.append(
                    f'<rect class="share p{shares.names.index(name)}" x="{x:.1f}" width="{width:.1f}" height="12"/>'
                )
                x += width
        figures = "".join(
            f'<td class="n">{count:,}</td>' if (count := counts.get(name)) else "<td></td>" for name in names
        )
        bar = f'<svg aria-hidden="true" width="{_BAR_WIDTH + 6}" height="12">{"".join(parts)}</svg>'
        body.append(f'<tr><th scope="row" class="code">{_escape(title)}</th>{figures}<td>{bar}</td></tr>')
    head = "".join(
        f'<th scope="col" class="n"><svg aria-hidden="true" width="10" height="10"><rect class="share p{shares.names.index(name)}" width="10" height="10"/></svg> {_escape(name)}</th>'
        for name in names
    )
    left = (
        f'<p class="quiet small">and {len(shares.rows) - len(shown):,} more</p>'
        if len(shares.rows) > len(shown)
        else ""
    )
    label = _escape(shares.title)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="plain shares small"><thead><tr>'
        f'<th scope="col">{_escape(shares.corner)}</th>{head}<td></td></tr></thead><tbody>{"".join(body)}</tbody></table></div>{left}'
    )


_SIGNS = {
    Mark.WRONG: ("wrong", "✗"),
    Mark.NOT_JUDGED: ("open", "?"),
    Mark.NOTE: ("note", "•"),
    Mark.RIGHT: ("right", "✓"),
}


def grid_table(grid: Grid) -> str:
    """A table of marks: rows with wrong cells first. A cell shows its worst mark, and how many of its rows have it."""
    columns = sorted({column for _, column in grid.cells})
    rows: dict[str, Counter[Mark]] = {}
    for (row, _), counts in grid.cells.items():
        rows.setdefault(row, Counter()).update(counts)
    order = sorted(
        rows, key=lambda row: (*(-rows[row][mark] for mark in (Mark.WRONG, Mark.NOT_JUDGED, Mark.NOTE)), row)
    )
    shown = order[:_MOST_GRID_ROWS]
    body = []
    for row in shown:
        cells = []
        for column in columns:
            of_cell = grid.cells.get((row, column))
            if not of_cell:
                cells.append('<td class="none"></td>')
                continue
            mark = next(mark for mark in Mark if of_cell[mark])
            name, sign = _SIGNS[mark]
            total = of_cell.total()
            figures = f"{of_cell[mark]}/{total}" if mark is not Mark.RIGHT else f"{total}"
            cells.append(f'<td class="{name}" title="{mark.value}">{sign} {figures}</td>')
        body.append(f'<tr><th scope="row" class="code">{_escape(row)}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{_escape(column)}</th>' for column in columns)
    left = (
        f'<p class="quiet small">and {len(order) - len(shown):,} more, with fewer</p>'
        if len(order) > len(shown)
        else ""
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(grid.title)}"><table class="plain grid-of-marks small"><thead><tr><th scope="col">{_escape(grid.corner)}</th>{head}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>{left}"
    )
