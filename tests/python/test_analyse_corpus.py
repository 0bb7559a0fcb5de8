"""op-tools analyse on small programs with the truth beside them (tests/data/analyse/corpus.txt)."""

import collections
import csv
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from op_tools.analyse._analyse import Request, analyse
from op_tools.analyse._support import names_only
from op_tools.analyse._table import SupportTable

CORPUS = Path(__file__).resolve().parents[1] / "data" / "analyse" / "corpus.txt"
MISSING = {
    "torch.baddbmm": "baddbmm",
    "torch.nn.functional.grid_sample": "grid_sampler",
    "torch.nn.Upsample": "upsample",
    "torch.matmul": "matmul",
    "torch.Tensor.__matmul__": "matmul",
    "torch.Tensor.cumsum": "cumsum",
    "torch.Tensor.masked_fill_": "masked_fill_.Scalar",
}
RUNS = {"torch.relu": "relu", "torch.ones": "ones", "torch.nn.functional.relu": "relu", "torch.Tensor.numpy": "relu"}
FILES = {
    "unsupported": "unsupported_api.csv",
    "unknown": "unknown_api.csv",
    "cuda": "cuda_op_list.csv",
    "precision": "api_precision_advice.csv",
    "performance": "api_performance_advice.csv",
    "affinity": "affinity_api_call.csv",
}


@dataclass
class Case:
    name: str
    mode: str
    family: str
    files: dict[str, str] = field(default_factory=dict)


def cases():
    cases_of_corpus = []
    path = ""
    for line in CORPUS.read_text().splitlines():
        if line.startswith("=== "):
            cases_of_corpus.append(Case(*(part.strip() for part in line[4:].split("|"))))
        elif line.startswith("--- "):
            path = line[4:]
            cases_of_corpus[-1].files[path] = ""
        elif cases_of_corpus:
            cases_of_corpus[-1].files[path] += line + "\n"
    return cases_of_corpus


CASES = cases()


def device():
    """A table in which a few operators are missing."""
    content = dict(names_only().content)
    content["operators"] = {
        f"aten::{name}": {"status": "missing", "evidence": "not there"} for name in MISSING.values()
    }
    content["operators"].update(
        {f"aten::{one}": {"status": "kernel", "evidence": ""} for one in {*RUNS.values(), "sort"}}
    )
    content["functions"] = {
        name: {"samples": 1, "errors": 0, "operators": [[f"aten::{operator}"]], "backward": []}
        for name, operator in {**MISSING, **RUNS}.items()
    }
    content["functions"]["torch.sort"] = {
        "samples": 2,
        "errors": 0,
        "operators": [["aten::sort"], ["aten::sort", "aten::cumsum"]],
        "backward": [],
    }
    return SupportTable(content)


def truth(case):
    """The names that should be found, and those that are known to be missed."""
    wanted, missed = set(), set()
    for file, text in case.files.items():
        if file == "expect":
            for line in text.splitlines():
                report, _, names = line.partition(": ")
                wanted |= {(report, name.strip()) for name in names.split(",")}
            continue
        if file.endswith(".ipynb"):
            text = "".join("".join(one["source"]) for one in json.loads(text)["cells"] if one["cell_type"] == "code")
        for number, line in enumerate(text.splitlines(), 1):
            for kind, name in re.findall(r"# !(\w+) ?([\w.]*)", line):
                if kind == "missed":
                    missed.add((FILES["unsupported"], file, number, name))
                else:
                    wanted.add((FILES[kind], file, name) if kind == "cuda" else (FILES[kind], file, number, name))
    return wanted, missed


def found_in(folder, case):
    rows = set()
    for path in folder.glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if path.name == "unreadable.csv":
                    rows.add((path.name, row["File"]))
                elif case.mode == "third_party":
                    rows.add((path.name, row.get("3rd-party API") or row.get("Torch API") or row["OP Name"]))
                elif path.name == "cuda_op_list.csv":
                    rows.add((path.name, row["File"], row["Api"]))
                else:
                    name = row.get("OP", row.get("Api Type")) if "advice" not in path.name else ""
                    rows.add((path.name, row["File"], int(row["Start Line"]), name))
    return rows


def result_of(case, folder):
    root = folder / "program"
    for name, text in case.files.items():
        if name != "expect":
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    source = root / "lib" if (root / "lib" / "__init__.py").exists() else root
    (outcome,) = analyse(Request([str(source)], str(folder / "out"), device(), case.mode, jobs=1))
    return found_in(outcome.folder, case)


def judged(case, wanted):
    """The reports that a case is about: those that it names; advice only where it is about advice."""
    if case.mode == "third_party":
        return {one[0] for one in wanted}
    advice = {FILES["precision"], FILES["performance"]}
    return {*FILES.values(), "unreadable.csv"} - (set() if case.family == "advice" else advice)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, tmp_path):
    wanted, missed = truth(case)
    reported = result_of(case, tmp_path)
    assert {one for one in reported if one[0] in judged(case, wanted)} == wanted
    assert not missed & reported, "it is found now: say !unsupported"


def test_corpus_has_every_family_of_defects_and_its_precision_and_recall(tmp_path):
    assert len(CASES) >= 60
    assert {"names", "aliases", "classes", "operators", "propagation", "files", "affinity", "C++"} <= {
        case.family for case in CASES
    }
    counts = collections.Counter()
    for number, case in enumerate(CASES):
        wanted, missed = truth(case)
        reported = result_of(case, tmp_path / str(number))
        reported = {one for one in reported if one[0] in judged(case, wanted)}
        counts.update(
            right=len(reported & wanted), wrong=len(reported - wanted), missed=len(wanted - reported) + len(missed)
        )
    precision = counts["right"] / (counts["right"] + counts["wrong"])
    recall = counts["right"] / (counts["right"] + counts["missed"])
    print(f"{len(CASES)} cases, {counts}: precision {precision:.3f}, recall {recall:.3f}")  # noqa: T201  # pytest -s shows it
    assert precision == 1
    assert recall > 0.95
