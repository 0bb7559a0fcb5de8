"""The files of an analysis. Their names and columns are those of PyTorch Analyse; rows are sorted, so that two runs agree."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._file_facts import Problem
from ._project import Finding
from ._rules import Hit
from ._table import SupportTable

_LINE = "Start Line"
_API = ("File", _LINE, "End Line", "OP", "Tips")
_AFFECTED = ("Torch API", "Affected 3rd-party API")
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "torch_apis": {
        "unsupported_api.csv": _API,
        "unknown_api.csv": _API,
        "api_precision_advice.csv": _API,
        "api_performance_advice.csv": _API,
        "cuda_op_list.csv": ("File", "Api"),
    },
    "third_party": {
        "full_unsupported_results.csv": ("File", "3rd-party API", "Message"),
        "framework_unsupported_op.csv": _AFFECTED,
        "migration_needed_op.csv": _AFFECTED,
        "unknown_op.csv": _AFFECTED,
        "cuda_op.csv": ("OP Name", "Affected 3rd-party API"),
    },
    "affinity_apis": {
        "affinity_api_call.csv": ("File", _LINE, "End Line", "Api Type", "Api Call Name", "Affinity Api Name"),
    },
    "dynamic_shape": {
        "msft_dynamic_shape_analysis_report.csv": (
            "Function Name",
            "File Path",
            "Line Number",
            "Call Stack",
            "Input Shape Range",
            "Output Shape Range",
        ),
    },
}
_UNREADABLE = ("File", "Line", "Reason")
_NAMES_PER_ROW = 100

Row = tuple[Any, ...]


@dataclass
class Report:
    """The rows of an analysis, by file."""

    mode: str
    rows: dict[str, list[Row]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    unsupported: int = 0
    """Uses of operators that the device does not run."""

    def counts(self) -> dict[str, int]:
        """Rows per file, for the closing table."""
        counts = {name: len(self.rows.get(name, [])) for name in COLUMNS[self.mode]}
        return {**counts, "unreadable.csv": len(self.problems)}

    def write(self, folder: Path) -> None:
        """Writes the CSV files."""
        for name, columns in COLUMNS[self.mode].items():
            _write(folder / name, columns, self.rows.get(name, []))
        unreadable = sorted({(one.file, one.line, one.reason) for one in self.problems})
        _write(folder / "unreadable.csv", _UNREADABLE, unreadable)

    def to_json(self, table: SupportTable) -> str:
        """All rows with their columns."""
        content = {
            "format": 1,
            "mode": self.mode,
            "torch": table.torch,
            "device": table.device,
            "files": self.files,
            "lines": self.lines,
            "rows": {
                name: [dict(zip(columns, row, strict=True)) for row in self.rows.get(name, [])]
                for name, columns in COLUMNS[self.mode].items()
            },
            "unreadable": [
                dict(zip(_UNREADABLE, (problem.file, problem.line, problem.reason), strict=True))
                for problem in self.problems
            ],
        }
        return json.dumps(content, indent=1) + "\n"


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def is_cuda(symbol: str) -> bool:
    """Whether a name belongs to CUDA alone."""
    return symbol.startswith("torch.cuda.") or symbol in ("torch.cuda", "torch.Tensor.cuda", "torch.nn.Module.cuda")


def is_vendor(symbol: str) -> bool:
    """Whether a name belongs to a kind of device, and so has to be migrated."""
    parts = symbol.split(".")
    return is_cuda(symbol) or any(one in ("mlu", "mps", "musa", "xpu", "npu") for one in parts[1:])


def api_rows(findings: Iterable[Finding], report: Report) -> None:
    """The rows of mode torch_apis, but for advice."""
    unsupported: set[Row] = set()
    unknown: set[Row] = set()
    slow: set[Row] = set()
    cuda: set[Row] = set()
    wrong: set[Row] = set()
    for finding in findings:
        place = (finding.file, finding.use.line, finding.use.end, finding.symbol)
        if is_cuda(finding.symbol):
            cuda.add((finding.file, finding.symbol))
        elif finding.support.status == "unsupported":
            unsupported.add((*place, finding.support.evidence))
        elif finding.support.status == "partial":
            unknown.add((*place, f"some calls do not run: {finding.support.evidence}"))
        elif finding.support.status == "unknown":
            unknown.add((*place, finding.support.evidence))
        elif finding.support.status == "fallback":
            slow.add((*place, f"runs on the CPU: {finding.support.evidence}"))
        if finding.support.warning:
            wrong.add((*place, f"op-tools conformance found wrong results: {finding.support.warning}"))
    report.rows["unsupported_api.csv"] = sorted(unsupported)
    report.rows["unknown_api.csv"] = sorted(unknown)
    report.rows["cuda_op_list.csv"] = sorted(cuda)
    report.rows["api_performance_advice.csv"] = sorted(slow)
    report.rows["api_precision_advice.csv"] = sorted(wrong)
    report.unsupported = len(unsupported)


def advice_rows(hits: Iterable[Hit], report: Report) -> None:
    """Adds the advice of rules."""
    for hit in hits:
        row = (hit.file, hit.line, hit.end, hit.name, hit.rule["text"])
        report.rows.setdefault(f"api_{hit.rule['report']}_advice.csv", []).append(row)
    for name in ("api_precision_advice.csv", "api_performance_advice.csv"):
        report.rows[name] = sorted(set(report.rows.get(name, [])))


def affinity_rows(hits: Iterable[Hit], report: Report) -> None:
    """The rows of mode affinity_apis."""
    calls = {(one.file, one.line, one.end, one.kind, _shown_name(one), one.rule.get("replacement", "")) for one in hits}
    report.rows["affinity_api_call.csv"] = sorted(calls)


def _shown_name(hit: Hit) -> str:
    return "input[condition] = value" if hit.kind == "special" else hit.name


def affected_rows(affected: dict[str, set[str]]) -> list[Row]:
    """A row for each name and 100 functions that it affects, which are separated by line ends."""
    rows: list[Row] = []
    for name in sorted(affected):
        functions = sorted(affected[name])
        for first in range(0, len(functions), _NAMES_PER_ROW):
            rows.append((name, "\n".join(functions[first : first + _NAMES_PER_ROW])))
    return rows


def sarif(report: Report, version: str) -> str:
    """The rows that name a line, as SARIF 2.1.0, for code hosts and editors."""
    levels = {"unsupported_api.csv": "error", "unknown_api.csv": "warning"}
    results = []
    for name, rows in report.rows.items():
        columns = COLUMNS[report.mode].get(name, ())
        if _LINE not in columns:
            continue
        for row in rows:
            values = dict(zip(columns, row, strict=True))
            text = values.get("Tips") or values.get("Affinity Api Name", "")
            results.append(
                {
                    "ruleId": name.removesuffix(".csv"),
                    "level": levels.get(name, "note"),
                    "message": {"text": f"{row[3]}: {text}"},
                    "locations": [
                        {
                            "physicalLocation": {
                                "artifactLocation": {"uri": row[0]},
                                "region": {"startLine": max(1, row[1]), "endLine": max(1, row[2])},
                            }
                        }
                    ],
                }
            )
    rules = [{"id": name.removesuffix(".csv")} for name in COLUMNS[report.mode]]
    driver = {"name": "op-tools analyse", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=1) + "\n"
