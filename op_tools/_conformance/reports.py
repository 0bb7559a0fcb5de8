"""The files of a result: cases.csv, error_report.csv, junit.xml, summary.json and scorecard.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .._base.core import Error
from .._base.verdict import Verdict
from .graph_judge import Ran
from .rows import AGREES, ERROR, EXPECTED, NOT_JUDGED, RIGHT, STATUSES, UNSUPPORTED, WRONG, Row, write_csv
from .summary import IDS, SUMMARY_FILE, Rows, RunResult, missing_in, summary_of, verdict_in

_MOST_OTHERS = 3
_MOST_FAILURES = 50  # in the scorecard; error_report.csv has all
_JUNIT = {
    **dict.fromkeys(WRONG, "failure"),
    ERROR: "error",
    **dict.fromkeys((UNSUPPORTED, EXPECTED, NOT_JUDGED), "skipped"),
}
_COUNTS = {
    "breaks": "torch.compile ended a graph and began another",
    "recompiles": "the second call was compiled again; with dynamic sizes its sizes are others",
    "fallbacks": "operators that came to torch's kernels in a call",
}
# Characters that XML 1.0 cannot hold.
_CONTROL = {code: " " for code in range(32) if chr(code) not in "\t\n\r"}


def share(row: Row) -> float:
    """How many times its limit the error of a row is; infinite where it has no number."""
    return row.error / row.limit if row.error is not None and row.limit else float("inf")


def failures(rows: Rows) -> list[Row]:
    """The rows that are wrong or could not be tried, the worst first."""
    wrong = [row for of_case in rows.values() for row in of_case if row.status in (*WRONG, ERROR)]
    return sorted(wrong, key=lambda row: (-share(row), row.case, row.phase))


def write_reports(folder: Path, result: RunResult) -> dict[str, Any]:
    """Writes all files; gives the summary.

    Raises:
        op_tools.Error: a file cannot be written.
    """
    rows, facts, summary = result.rows, result.facts, summary_of(result)
    every = [row for of_case in rows.values() for row in of_case]
    files: dict[str, Callable[[Path], None]] = {
        "cases.csv": lambda path: write_csv(path, every),
        "error_report.csv": lambda path: write_csv(path, failures(rows)),
        "junit.xml": lambda path: _write_junit(path, every, facts),
        SUMMARY_FILE: lambda path: _write_text(path, json.dumps(summary, indent=1) + "\n"),
        "scorecard.md": lambda path: _write_text(path, scorecard(rows, summary, facts)),
    }
    for name, write in files.items():
        try:
            write(folder / name)
        except OSError as error:
            raise Error(f"{folder / name}: cannot be written: {error.strerror}") from None
    return summary


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _write_junit(path: Path, rows: list[Row], facts: Mapping[str, Any]) -> None:
    counts = Counter(_JUNIT.get(row.status, "") for row in rows)
    suite = ElementTree.Element(
        "testsuite",
        name=f"op-tools conformance, {facts['device']}",
        tests=str(len(rows)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    for row in rows:
        names = {"classname": f"{row.source}.{row.op}", "name": f"{row.case} {row.phase}", "time": f"{row.seconds:.3f}"}
        test = ElementTree.SubElement(suite, "testcase", names)
        if kind := _JUNIT.get(row.status):
            text = f"{row.status}: {row.reason}".translate(_CONTROL)
            ElementTree.SubElement(test, kind, message=text)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


# --- The scorecard ------------------------------------------------------------------------------------------------------


def verdict_text(summary: Mapping[str, Any]) -> str:
    """The verdict, in a sentence."""
    counts = summary["statuses"]
    right, wrong = (sum(counts.get(one, 0) for one in kind) for kind in (RIGHT, WRONG))
    apart = [f"{counts[one]} {one}" for one in (UNSUPPORTED, EXPECTED, NOT_JUDGED, ERROR) if counts.get(one)]
    text = f"{summary['device']}: {right} of {right + wrong} judged cases right"
    if apart:
        text += f"; {', '.join(apart)}"
    if summary["without rows"]:
        text += f"; {summary['without rows']} of {summary['cases']} cases were not run"
    if others := summary.get("cases of another list"):
        more = f" and {len(others) - _MOST_OTHERS} more" if len(others) > _MOST_OTHERS else ""
        text += f"; of another list, not counted: {', '.join(others[:_MOST_OTHERS])}{more}"
    if damaged := summary.get("damaged lines"):
        text += f"; {damaged} lines of rows are damaged"
    if summary["self-test"]:
        text += f"; not to be trusted: {summary['self-test']}"
    return text + _not_judged_text(summary)


def _not_judged_text(summary: Mapping[str, Any]) -> str:
    if verdict_in(summary) is not Verdict.NOT_JUDGED:
        return ""
    return f"; NOT JUDGED: {', '.join(one.value for one in missing_in(summary))}"


def saved_text(summary: Mapping[str, Any]) -> str:
    """Of golden data."""
    saved = summary["statuses"].get(AGREES, 0)
    return f"{summary['device']}: {saved} of {summary['cases']} cases saved{_not_judged_text(summary)}"


def model_text(name: str, model: Mapping[str, int]) -> str:
    """ "resnet50: 41 of 43 cases, 99.7 % of its calls, 96.0 % of its bytes"."""
    judged = model["cases"] - model["not judged"]
    return (
        f"{name}: {model['right']} of {judged} cases, {_percent(model['calls right'], model['calls'])} of its calls, "
        f"{_percent(model['bytes right'], model['bytes'])} of its bytes"
    )


def _percent(part: int, whole: int) -> str:
    """Rounded down: only all is shown as 100 %."""
    return f"{1000 * part // whole / 10:.1f} %" if whole else "none"


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _markdown_table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    names = list(titles)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows), ""]


def scorecard(rows: Rows, summary: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The result for people, in Markdown."""
    lines = [f"# Conformance of {summary['device']}", "", verdict_text(summary), ""]
    lines += _markdown_table(
        ("cases", "", "meaning"), ((count, name, STATUSES[name]) for name, count in summary["statuses"].items())
    )
    if summary["models"]:
        lines += ["## Models", "", "Of the calls that a training step makes:", ""]
        lines += [f"- {model_text(name, model)}" for name, model in summary["models"].items()] + [""]
    if summary["ran"]:
        lines += ["## Who ran the compiled cases", ""]
        lines += _markdown_table(
            ("rows", "", ""), ((count, name, Ran[name.upper()].value) for name, count in summary["ran"].items())
        )
    if compiled := summary.get("compiled"):
        lines += [f"In {compiled['runs']} runs of two calls:", ""]
        lines += _markdown_table(
            ("times", "in runs", "", ""),
            ((compiled[name]["times"], compiled[name]["runs"], name, text) for name, text in _COUNTS.items()),
        )
    wrong = failures(rows)
    if wrong:
        lines += ["## Wrong results, worst first", ""]
        lines += _markdown_table(
            ("operator", "dtype", "phase", "", "times its limit", "case", "why"),
            (
                (
                    row.op,
                    row.dtype,
                    row.phase,
                    row.status,
                    f"{share(row):.3g}" if row.limit else "",
                    row.case,
                    row.reason[:300],
                )
                for row in wrong[:_MOST_FAILURES]
            ),
        )
        if len(wrong) > _MOST_FAILURES:
            lines += [f"{len(wrong) - _MOST_FAILURES} more are in error_report.csv.", ""]
    lines += ["## Operators and dtypes", "", "Cases that are right, of those that were judged:", "", *_matrix(summary)]
    lines += ["## The dispatcher's operators on this device", "", *_coverage_lines(facts)]
    told = {**facts, "self-test": facts["self-test"] or "passed: the fault that it planted was found"}
    lines += ["## The run", "", *_markdown_table(("", ""), _flat_facts(told))]
    return "\n".join(lines)


def _matrix(summary: Mapping[str, Any]) -> list[str]:
    dtypes = sorted({dtype for of_op in summary["operators"].values() for dtype in of_op})

    def cell(counts: Mapping[str, int] | None) -> str:
        if counts is None:
            return ""
        right, wrong = (sum(counts.get(one, 0) for one in kind) for kind in (RIGHT, WRONG))
        lacking = counts.get(UNSUPPORTED, 0) + counts.get(EXPECTED, 0)
        if not right + wrong:
            return "unsupported" if lacking else "?"
        return f"{'**' if wrong else ''}{right}/{right + wrong}{'**' if wrong else ''}" + (
            f" -{lacking}" if lacking else ""
        )

    rows = ((op, *(cell(of_op.get(dtype)) for dtype in dtypes)) for op, of_op in summary["operators"].items())
    return _markdown_table(("operator", *(dtype or "none" for dtype in dtypes)), rows)


def _coverage_lines(facts: Mapping[str, Any]) -> list[str]:
    meanings = {
        "kernel": "a kernel of the device's own",
        "composite": "made of other operators",
        "fallback": "by the backend's fallback, mostly on the CPU",
        "missing": "neither",
    }
    coverage = facts.get("coverage") or {}
    return _markdown_table(
        ("operators", "", ""), ((coverage.get(kind, 0), kind, text) for kind, text in meanings.items())
    )


def _flat_facts(facts: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in facts.items():
        if name in ("coverage", IDS):
            continue
        if isinstance(value, dict):
            yield from _flat_facts(value, f"{prefix}{name}: ")
        else:
            yield f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, list) else value
