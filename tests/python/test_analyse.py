"""op-tools analyse: files, options, hostile input; cases outside of the corpus (test_analyse_corpus.py)."""

import ast
import csv
import json
import os
import subprocess

import pytest
from conftest import launched

import op_tools
import op_tools.__main__
from op_tools._base.own_command import op_tools_line
from op_tools.analyse._detector_copy import copy_with_detector
from op_tools.analyse._project import Project
from op_tools.analyse._reports import COLUMNS
from op_tools.analyse._rules import PACKAGED, Rules, read_rules
from op_tools.analyse._scan import scan
from op_tools.analyse._support import names_only
from op_tools.analyse._table import FORMAT, SupportTable, read_table


@pytest.fixture(scope="module")
def table_file(tmp_path_factory):
    """A device that lacks baddbmm; relu runs on the CPU there."""
    content = dict(names_only().content)
    content["device"] = "toy"
    content["operators"] = {
        "aten::baddbmm": {"status": "missing", "evidence": "no kernel"},
        "aten::relu": {"status": "fallback", "evidence": "no kernel, a fallback"},
    }
    content["functions"] = {
        f"torch.{name}": {"samples": 1, "errors": 0, "operators": [[f"aten::{name}"]], "backward": []}
        for name in ("baddbmm", "relu")
    }
    path = tmp_path_factory.mktemp("table") / "toy.json"
    SupportTable(content).write(path)
    return path


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(*arguments):
    return op_tools.__main__.main(["analyse", *map(str, arguments)])


PROGRAM = "import torch\nx = torch.baddbmm(a, b, c)\ny = torch.relu(x)\n"


@pytest.mark.parametrize("mode", COLUMNS)
def test_folder_files_and_columns_are_those_of_the_reference(mode, tmp_path, table_file):
    source = tmp_path / "net"
    source.mkdir()
    (source / "a.py").write_text(PROGRAM)
    (source / "calls.jsonl").write_text('{"op":"torch.add","args":[],"result":null}\n')
    assert run("-i", source, "-o", tmp_path / "new" / "out", "-v", "2.13.0", "-m", mode, "--support", table_file) == 0
    folder = tmp_path / "new" / "out" / "net_analysis"
    assert {path.name for path in folder.iterdir()} == {*COLUMNS[mode], "unreadable.csv", "pytorch_analysis.txt"}
    for name, columns in COLUMNS[mode].items():
        assert (folder / name).read_text().splitlines()[0] == ",".join(columns)
    assert "[INFO]" in (folder / "pytorch_analysis.txt").read_text()


def test_a_file_that_was_not_read_is_no_file_without_faults(tmp_path, table_file, capsys):
    source = tmp_path / "src"
    source.mkdir()
    words = ["-i", source, "-o", tmp_path / "out", "--support", table_file]
    assert run(*words) == 0 and "0 files, 0 lines; nothing was read" in capsys.readouterr().out
    assert run(*words, "--fail-on", "unsupported") == 2  # there was nothing
    capsys.readouterr()
    (source / "a.py").write_text("import torch\ny = torch.relu(x)\n")
    assert run(*words, "--fail-on", "unsupported") == 0
    assert "; all files were read" in capsys.readouterr().out
    (source / "b.py").write_text("def broken(:\n")
    (source / "c.py").write_bytes(b"x = 1\0")
    assert run(*words, "--fail-on", "unsupported") == 2
    assert "2 of them were not read, or not whole (unreadable.csv)" in capsys.readouterr().out
    (source / "d.py").write_text(PROGRAM)
    assert run(*words, "--fail-on", "unsupported") == 1
    assert run(*words, "-m", "affinity_apis", "--fail-on", "unsupported") == 64  # it counts none


def test_a_row_has_place_name_and_evidence_and_the_closing_table_counts(tmp_path, table_file, capsys):
    (tmp_path / "a.py").write_text(PROGRAM)
    arguments = ["-i", tmp_path / "a.py", "-o", tmp_path, "--support", table_file, "--json", "--sarif"]
    assert run(*arguments) == 0
    assert run(*arguments, "--fail-on", "unsupported") == 1
    folder = tmp_path / "a_analysis"
    assert rows(folder / "unsupported_api.csv") == [
        {"File": "a.py", "Start Line": "2", "End Line": "2", "OP": "torch.baddbmm", "Tips": "aten::baddbmm: no kernel"}
    ]
    assert rows(folder / "api_performance_advice.csv")[0]["Tips"].startswith("runs on the CPU")
    content = json.loads((folder / "analysis.json").read_text())
    assert content["device"] == "toy" and content["rows"]["unsupported_api.csv"][0]["OP"] == "torch.baddbmm"
    (log,) = json.loads((folder / "analysis.sarif").read_text())["runs"]
    assert [one["level"] for one in log["results"]].count("error") == 1
    shown = capsys.readouterr().out
    assert (
        "| unsupported_api.csv        |          1 |" in shown
        and f"Next: {op_tools_line('run', '--fallback', '--fallback-on-missing', 'train.py')}" in shown
    )


def test_another_version_of_torch_is_noted(tmp_path, table_file):
    (tmp_path / "a.py").write_text(PROGRAM)
    run("-i", tmp_path / "a.py", "-o", tmp_path, "-v", "1.11.0", "--support", table_file)
    assert "the code is for torch 1.11.0" in (tmp_path / "a_analysis" / "pytorch_analysis.txt").read_text()


def test_nothing_is_asked_and_two_runs_agree_with_any_number_of_processes(tmp_path, table_file):
    source = tmp_path / "many"
    for number in range(150):
        (source / f"p{number % 7}").mkdir(parents=True, exist_ok=True)
        (source / f"p{number % 7}" / f"m{number}.py").write_text(PROGRAM * 3)
    (tmp_path / "out" / "many_analysis").mkdir(parents=True)  # a result of before
    contents = []
    for jobs in (1, 3):
        run("-i", source, "-o", tmp_path / "out", "--support", table_file, "--jobs", jobs)
        folder = tmp_path / "out" / "many_analysis"
        contents.append({path.name: path.read_bytes() for path in folder.glob("*.csv")})
    assert contents[0] == contents[1] and contents[0]["unsupported_api.csv"].count(b"\n") == 1 + 3 * 150


HOSTILE = {
    "syntax.py": b"def f(:\n    pass\n",
    "python2.py": b"print 'hello'\n",
    "null.py": b"import torch\n\x00\n",
    "latin.py": "# größe\nx = 'ä'\n".encode("latin-1"),
    "utf16.py": "import torch\n".encode("utf-16"),
    "codec.py": b"# -*- coding: no-such-codec -*-\n",
    "brackets.py": b"x = " + b"(" * 3000 + b"1" + b")" * 3000 + b"\n",
    "unary.py": b"x = " + b"-" * 60000 + b"1\n",
    "broken.ipynb": b'{"cells": 3}',
    "list.ipynb": b"[1, 2]",
}
FINE = {
    "empty.py": b"",
    "declared.py": "# -*- coding: latin-1 -*-\nimport torch\nx = torch.baddbmm('ä')\n".encode("latin-1"),
    "mark.py": b"\xef\xbb\xbfimport torch\nx = torch.baddbmm(1)\n",
    "chain.py": b"import torch\nx = " + b" + ".join([b"torch.baddbmm(1)"] * 3000) + b"\n",
    "dots.py": b"import torch\nx = torch" + b".a" * 500 + b"\n",
    "methods.py": b"import torch\nx = torch.relu(1)" + b".float()" * 2000 + b"\n",
    "long.py": b"import torch\n" + b"y = torch.relu(x)\n" * 100000,
    'a,b\nc".py': b"import torch\nx = torch.baddbmm(1)\n",
    "escapes.py": b"import torch\nx = '\\d'\ny = torch.baddbmm(1) is 1\n",
    "loop.cu": b'TORCH_LIBRARY(a, m) { m.def("f(',
    "marks.cpp": b'R"x(' * 100 + b"PYBIND11_MODULE(((((((" * 1000,
}


def test_what_cannot_be_read_is_listed_with_the_reason_and_all_else_is_read(tmp_path, table_file):
    source = tmp_path / "hostile"
    source.mkdir()
    for name, content in {**HOSTILE, **FINE}.items():
        (source / name).write_bytes(content)
    (source / "loop").symlink_to(source)
    (source / "nowhere.py").symlink_to(source / "not_there.py")
    os.mkfifo(source / "pipe.py")
    assert run("-i", source, "-o", tmp_path, "--support", table_file, "--sarif", "--json") == 0
    folder = tmp_path / "hostile_analysis"
    reasons = {row["File"]: row["Reason"] for row in rows(folder / "unreadable.csv")}
    assert set(reasons) == {*HOSTILE, "loop", "nowhere.py", "pipe.py"}
    assert all(reasons.values()) and "encoding" in reasons["latin.py"] and "syntax" in reasons["python2.py"]
    files = [row["File"] for row in rows(folder / "unsupported_api.csv")]
    assert {"declared.py", "mark.py", "chain.py", "escapes.py", 'a,b\nc".py'} == set(files)


def test_a_notebook_with_a_broken_cell_is_read_without_it(tmp_path, table_file):
    cells = ["x = (", "import torch\n!ls\ny = torch.baddbmm(1)", "%%bash\nls -l"]
    document = {"cells": [{"cell_type": "code", "source": one} for one in cells]}
    (tmp_path / "n.ipynb").write_text(json.dumps(document))
    run("-i", tmp_path / "n.ipynb", "-o", tmp_path, "--support", table_file)
    folder = tmp_path / "n_analysis"
    assert [row["Start Line"] for row in rows(folder / "unsupported_api.csv")] == ["4"]
    assert [row["Reason"][:11] for row in rows(folder / "unreadable.csv")] == ["code cell 1"]


def test_both_files_that_the_reference_names_for_api(tmp_path, table_file):
    library, script = tmp_path / "lib", tmp_path / "script.py"
    library.mkdir()
    (library / "__init__.py").write_text("from .ops import product\n")
    (library / "ops.py").write_text("import torch\ndef product(x):\n    return torch.baddbmm(x)\n")
    script.write_text("import lib\nfrom lib import product as p\nlib.product(1)\np(2)\n")
    assert run("-i", library, "-o", tmp_path, "-m", "third_party", "--support", table_file) == 0
    for name in ("full_unsupported_results.csv", "framework_unsupported_op.csv"):
        api = tmp_path / "lib_analysis" / name
        assert run("-i", script, "-o", tmp_path, "--support", table_file, "-api", api) == 0
        unsupported = rows(tmp_path / "script_analysis" / "unsupported_api.csv")
        assert [(row["Start Line"], row["OP"]) for row in unsupported] == [("3", "lib.product"), ("4", "lib.product")]
    message = rows(tmp_path / "lib_analysis" / "full_unsupported_results.csv")[0]["Message"]
    assert message == "file_path:ops.py, start_line:3, api_name:torch.baddbmm"


def test_env_follows_names_through_a_library(tmp_path, table_file):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("from torch import baddbmm as product\n")
    (tmp_path / "script.py").write_text("from lib import product\nproduct(1)\n")
    run("-i", tmp_path / "script.py", "-o", tmp_path, "--support", table_file, "-env", tmp_path / "lib")
    assert [row["OP"] for row in rows(tmp_path / "script_analysis" / "unsupported_api.csv")] == ["torch.baddbmm"]


def test_names_affected_by_one_operator_are_100_a_row(tmp_path, table_file):
    text = "import torch\n" + "".join(f"def f{one}(x):\n    return torch.baddbmm(x)\n" for one in range(250))
    (tmp_path / "lib.py").write_text(text)
    run("-i", tmp_path / "lib.py", "-o", tmp_path, "-m", "third_party", "--support", table_file)
    affected = rows(tmp_path / "lib_analysis" / "framework_unsupported_op.csv")
    assert [row["Affected 3rd-party API"].count("\n") + 1 for row in affected] == [100, 100, 50]


def test_fixes_are_a_diff_that_applies_and_only_safe_ones(tmp_path, table_file):
    source = tmp_path / "net"
    source.mkdir()
    before = (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "a = DataLoader(data)\nb = DataLoader(\n    data,\n    shuffle=True,  # always\n)\nc = [DataLoader(DataLoader(d), num_workers=1)]\n"
        "o = torch.optim.SGD(p)\ns = DataLoader(*x)\n"
    )
    (source / "a.py").write_text(before)
    run("-i", source, "-o", tmp_path, "--support", table_file, "--fix")
    diff = tmp_path / "net_analysis" / "fixes.diff"
    assert (source / "a.py").read_text() == before
    subprocess.run(["patch", "-p1", "-i", str(diff)], cwd=source, check=True, capture_output=True)
    after = (source / "a.py").read_text()
    calls = [one for one in ast.walk(ast.parse(after)) if isinstance(one, ast.Call)]
    pinned = [one for one in calls if any(keyword.arg == "pin_memory" for keyword in one.keywords)]
    assert len(pinned) == 4 and after.count("pin_memory=True") == 4 and "fused" not in after


@pytest.mark.parametrize("rule", read_rules(PACKAGED), ids=lambda rule: rule["id"])
def test_each_rule_applies_to_its_example_and_not_to_its_counterexample(rule, table_file):
    def hits(code):
        facts = scan(ast.parse(code), "a.py", "a")
        project = Project([facts], read_table(table_file))
        return list(Rules([rule], [rule["report"]]).apply(project, [facts], lambda _: code.splitlines()))

    assert hits(rule["example"]) and not hits(rule["counterexample"])
    dictionary = 'd = {}\nd["a"] = 1\nfor k, v in d.items():\n    d[k] = v\nd.update(a=1)\n'
    assert not hits(dictionary)


def test_rules_of_users_are_added_and_wrong_ones_are_named(tmp_path, table_file):
    (tmp_path / "a.py").write_text("import ours\nours.slow(1)\n")
    good = {"id": "ours", "report": "performance", "call": ["ours.slow"], "text": "use ours.fast"}
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"format": 1, "rules": [good]}))
    arguments = ["-i", tmp_path / "a.py", "-o", tmp_path, "--support", table_file, "--rules", rules]
    assert run(*arguments) == 0
    assert rows(tmp_path / "a_analysis" / "api_performance_advice.csv")[0]["Tips"] == "use ours.fast"
    for wrong in (
        {**good, "cal": []},
        {**good, "report": "x"},
        {**good, "argument": "("},
        3,
        {"id": "x", **good, "call": 1},
    ):
        rules.write_text(json.dumps({"format": 1, "rules": [wrong]}))
        assert run(*arguments) == 2


def test_dynamic_shapes_of_an_observed_run(tmp_path, python):
    python(
        "import torch, op_tools\n"
        "with op_tools.OpObserve(detail=2):\n"
        "    for size in (2, 3, 5):\n"
        "        x = torch.ones(size, 4)\n"
        "        y = torch.relu(x)\n"
        "        z = torch.ones(7)\n"
    )
    assert run("-i", tmp_path / "op_observe_result", "-o", tmp_path, "-m", "dynamic_shape") == 0
    name = "msft_dynamic_shape_analysis_report.csv"
    by_function = {row["Function Name"]: row for row in rows(tmp_path / "op_observe_result_analysis" / name)}
    assert set(by_function) == {"torch.ones", "torch.relu"}
    assert (
        by_function["torch.relu"]["Input Shape Range"]
        == "[(2, 4)-(5, 4)]"
        == by_function["torch.relu"]["Output Shape Range"]
    )
    assert by_function["torch.relu"]["Line Number"] == "5" and by_function["torch.relu"]["File Path"].endswith(".py")


PROGRAM_TO_WATCH = """#!/usr/bin/env python
# -*- coding: latin-1 -*-
'''Trains. \xe9'''
from __future__ import annotations

import torch

weight = torch.ones(4, 3, requires_grad=True)
text = "\xe9"
for epoch in range(2):
    for number, size in enumerate([2, 3, 5]): \xe9 = torch.ones(size, 4); torch.relu(\xe9 @ weight).sum().backward()
for epoch in 1, 2:
    weight.sum().backward()
for name in [text]:
    print(number, epoch, ascii(name), __doc__ == "Trains. " + text, weight.grad.sum().item())
"""


def test_a_copy_with_a_detector_writes_the_report_and_does_what_the_program_does(tmp_path, capsys):
    source, name = tmp_path / "train", "msft_dynamic_shape_analysis_report.csv"
    (source / "package").mkdir(parents=True)
    (source / "train.py").write_bytes(PROGRAM_TO_WATCH.encode("latin-1"))
    (source / "package" / "odd.py").write_text("def (:\n")
    (source / "data.txt").write_text("stays")
    assert run("-i", source, "-o", tmp_path, "-m", "dynamic_shape", "--detector") == 0
    shown = capsys.readouterr().out
    result = tmp_path / "train_analysis"
    assert "loops that are observed: train.py:11, train.py:12" in shown and str(result / "detector") in shown
    assert rows(result / "unreadable.csv")[0]["File"] == "package/odd.py"
    assert (result / "detector" / "data.txt").read_text() == "stays"
    assert (source / "train.py").read_bytes() == PROGRAM_TO_WATCH.encode("latin-1")
    plain = launched(source / "train.py").stdout
    assert "2 2 '\\xe9' True" in plain
    assert launched(result / "detector" / "train.py").stdout == plain
    by_function = {row["Function Name"]: row for row in rows(result / name)}
    assert by_function["torch.relu"]["Input Shape Range"] == "[(2, 3)-(5, 3)]"
    assert by_function["torch.relu"]["File Path"] == str(result / "detector" / "train.py")
    assert run("-i", source, "-o", tmp_path, "--detector") == 64


@pytest.mark.parametrize(
    "text",
    [
        '"""Text."""; import torch\nfor x in data: x.backward()\n',
        "from __future__ import annotations; import torch  # both\nfor x in data: x.backward()\n",
        "a = 1\n\f\nfor x in data:\n  x.backward('\u2028\x1c')\n",
        "a = 1\r\nfor é in f('ü',\r\n    2):\r\n  é.backward()\r\n",
        "for x in 1, 2: x.backward()\n",
        "DETECTOR = 1\nfor x in data: x.backward()\nassert DETECTOR == 1\n",
        "@wrapped\ndef f():\n  for x in (yield): x.backward()\n",
    ],
)
def test_a_rewritten_file_is_the_program_with_an_import_and_its_lines(text, tmp_path):
    (tmp_path / "a.py").write_bytes(text.encode("utf-8-sig"))
    loops, problems = copy_with_detector(tmp_path / "a.py", tmp_path / "out")
    assert (loops, problems) == ([f"a.py:{text[: text.index('for ')].count(chr(10)) + 1}"], [])
    before, after = (ast.parse(path.read_bytes()) for path in (tmp_path / "a.py", tmp_path / "out/detector/a.py"))
    loop = next(one for one in ast.walk(after) if isinstance(one, ast.For))
    name = ast.unparse(loop.iter.func).removesuffix(".start")
    assert name.endswith("DETECTOR") and name not in text
    loop.iter = loop.iter.args[0]
    added = [one for one in after.body if ast.unparse(one).startswith(("from op_tools", f"{name} ="))]
    assert after.body.index(added[0]) == _leading(before)
    after.body = [one for one in after.body if one not in added]
    assert ast.unparse(after) == ast.unparse(before)


def _leading(tree):
    """How many statements have to stay first: the docstring, imports from __future__."""
    return sum(isinstance(one, ast.Expr) or "__future__" in ast.unparse(one) for one in tree.body[:1])


def test_loops_of_several_files_are_in_one_report_and_no_file_is_left_out(tmp_path):
    source = tmp_path / "code"
    loop = "import torch\ndef run(sizes):\n    for size in sizes:\n        torch.ones(size, requires_grad=True).{}().sum().backward()\n"
    for name, op in (("error_analysis", "relu"), ("second", "sigmoid")):
        (source / name).mkdir(parents=True)
        (source / name / "__init__.py").write_text(loop.format(op))
    (source / "a.py").write_text(
        "import error_analysis, second\nfor one in (error_analysis, second, second): one.run((2, 3))\n"
    )
    (source / "odd.py").mkdir()
    for _ in range(2):  # results below the input, made anew
        assert run("-i", source, "-o", source / "out", "-m", "dynamic_shape", "--detector") == 0
    folder = source / "out/code_analysis"
    assert not list((folder / "detector").rglob("code_analysis"))
    launched(folder / "detector/a.py")
    dynamic = rows(folder / "msft_dynamic_shape_analysis_report.csv")
    assert {"torch.Tensor.relu", "torch.Tensor.sigmoid"} <= {row["Function Name"] for row in dynamic}
    assert len(list(folder.glob("op_observe_result/0/*/calls.jsonl"))) == 1


def test_dynamic_shapes_of_a_damaged_or_missing_file(tmp_path, capsys):
    assert run("-i", tmp_path, "-o", tmp_path, "-m", "dynamic_shape") == 2
    assert "op-tools run --observe" in capsys.readouterr().err
    (tmp_path / "calls.jsonl").write_bytes(b'{"op": "a"}\n{"op"\n3\n\xff\n')
    assert run("-i", tmp_path, "-o", tmp_path / "out", "-m", "dynamic_shape") == 0
    assert len(rows(tmp_path / "out" / f"{tmp_path.name}_analysis" / "unreadable.csv")) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-i", "nowhere"], "no such file"),
        (["-i", "a.py"], "which device?"),
        (["-i", "a.py", "--support", "a.py"], "op-tools support makes a support table"),
        (["-i", "a.py", "--support", "list.json"], "not a support table"),
        (["-i", "a.py", "--support", "old.json"], "make it again"),
        (["-i", "a.py", "--device", "nodevice"], "--device nodevice"),
        (["-i", "a.py", "a.py", "--support", "good.json"], "analyse each of them"),
        (["-i", "a.py", "--support", "good.json", "-api", "a.py"], "Affected 3rd-party API"),
        (["-i", "a.py", "--support", "good.json", "-env", "nowhere"], "-env nowhere"),
        (["-i", "a.py", "--support", "good.json", "--rules", "a.py"], "a file of rules is JSON"),
    ],
)
def test_wrong_usage_is_named(arguments, text, tmp_path, table_file, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "list.json").write_text("[]")
    content = json.loads(table_file.read_text())
    (tmp_path / "good.json").write_text(json.dumps(content))
    (tmp_path / "old.json").write_text(json.dumps({**content, "format": FORMAT + 1}))
    if arguments[1] == "nowhere":
        arguments = [*arguments, "--support", "good.json"]
    assert run(*arguments, "-o", tmp_path) == (64 if text == "which device?" else 2)
    assert text in capsys.readouterr().err
