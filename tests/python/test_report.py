"""op-tools report: parts of all kinds of folders, the page that a browser shows, the text; nothing of the data is ever markup."""

import csv
import dataclasses
import gzip
import hashlib
import html.parser
import inspect
import itertools
import json
import math
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path

import pytest
import torch
from conftest import PYTHON, ROOT, launched
from printed_commands import commands_in, refused

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.declared_rows import BlackBoxRow
from op_tools._base.verdict import Verdict
from op_tools._bisect.result import BisectResult
from op_tools._report import autocompare, black_box, memory
from op_tools._report.of_result import write_page
from op_tools._report.page import escape, page_of
from op_tools._report.part import Column, Mark, Origin, Table, share_rows
from op_tools._report.pictures import curve_svg
from op_tools._report.scan import read_parts
from op_tools._report.summary import kinds_by_mark
from op_tools._report.text import text_of_parts
from op_tools._runs.compare_many import ManyRuns, OddRow
from op_tools._runs.compare_ranks import RanksComparison, SpreadRow
from op_tools._runs.comparison import RunsComparison
from op_tools._runs.judged_captures import Confirmation, ConfirmedRow
from op_tools._runs.one_iter import OneIterComparison, OneIterRow
from op_tools._runs.sequence_comparison import SequenceComparison, SequenceRow
from op_tools._tools.black_box_file import BlackBox

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'=cmd"
ASSETS = ROOT / "op_tools" / "_report"
MOST_ASSET = 250_000  # bytes
MOST_PAGE = 3_000_000  # bytes, of 100,000 rows


def model():
    """Its second layer has a name that would be markup."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8))
    layers.add_module(HOSTILE.replace(".", ""), torch.nn.Linear(8, 1))
    return layers


def train(steps=2, device="sim"):
    layers = model().to(device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(steps):
        layers(torch.ones(4, 8, device=device)).sum().backward()
        optimizer.step()
        yield


def run(tool, program):
    with tool:
        for _ in program:
            tool.step()
    return tool.result()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with a result of each tool: the class of the tool -> its result."""
    place = tmp_path_factory.mktemp("results")
    of_tools = {}

    def add(tool_class, program, **options):
        of_tools[tool_class] = run(tool_class(output_dir=str(place / tool_class.__name__), **options), program)

    torch.manual_seed(0)
    with sim.fault("scale", ops="addmm", scale=1.5):
        add(op_tools.OpAutoCompare, train())
    add(op_tools.OpOverflowCheck, (torch.log(torch.tensor([-1.0, 1.0])) * 2 for _ in range(3)))
    add(op_tools.OpTimeMeasure, train(), with_stack=True, with_modules=True)
    kept = []
    add(op_tools.OpMemoryCheck, (kept.append(torch.ones(1000) * 2) for _ in range(8)))
    add(op_tools.OpCapture, train(1))
    add(op_tools.OpObserve, train(1))
    add(op_tools.OpBlackBox, train(1))
    torch.manual_seed(0)
    add(op_tools.OpRecord, train(1))
    torch.manual_seed(0)
    with sim.fault("scale", ops="addmm", scale=1.5):
        other = run(op_tools.OpRecord(output_dir=str(place / "other")), train(1))
    comparison = op_tools.compare_runs(str(place / "OpRecord"), str(place / "other"))
    (place / "comparison.jsonl").write_text(comparison.to_json())
    assert other.calls > 0
    with sim.fault("every_second", ops="addmm"):
        add(op_tools.OpInvariance, train(1))
    return place, of_tools


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    """The page of all of them."""
    place, _ = results
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page_of(read_parts([place]), f"Report of {HOSTILE}"))
    return file


def part_of(place, tool):
    return next(part for part in read_parts([place]) if part.tool == tool)


def rows_in(page_text):
    """The rows that the page carries."""
    return json.loads(gzip.decompress(b64decode(re.search(r'id="data">([^<]*)<', page_text)[1])))


# --- Parts --------------------------------------------------------------------------------------------------------------------


def test_each_kind_of_folder_is_a_part(results):
    place, of_tools = results
    parts = {part.tool: part for part in read_parts([place])}
    assert set(parts) == {tool.__name__ for tool in of_tools} | {"op-tools compare"}
    for tool, result in of_tools.items():
        part = parts[tool.__name__]
        verdict = getattr(result, "verdict", None)
        assert part.verdict == (verdict if isinstance(verdict, Verdict) else None), tool
        assert part.tables[0].total > 0 and part.cannot_tell, tool


def test_findings_are_those_of_the_tools(results):
    place, of_tools = results
    compared = part_of(place, "OpAutoCompare")
    wrong = [finding for finding in compared.findings if finding.mark is Mark.WRONG]
    failures = of_tools[op_tools.OpAutoCompare].failures
    assert failures and sum(finding.count for finding in wrong) == len(failures)
    assert {(finding.op, finding.module) for finding in wrong} == {(row.op, row.module) for row in failures}
    assert wrong[0].first_step == 0 and wrong[0].steps == {0: 1, 1: 1} and wrong[0].worst > 100
    assert compared.tables[0].total == len(of_tools[op_tools.OpAutoCompare].rows)

    overflow = part_of(place, "OpOverflowCheck")
    by_mark = {mark: [one for one in overflow.findings if one.mark is mark] for mark in Mark}
    assert [(one.op, one.count) for one in by_mark[Mark.WRONG]] == [("torch.log", 3)]
    assert [(one.op, one.count) for one in by_mark[Mark.NOTE]] == [("torch.Tensor.mul", 3)]

    (leak,) = part_of(place, "OpMemoryCheck").findings
    assert leak.mark is Mark.WRONG and leak.worst == pytest.approx(4000, rel=0.1)

    comparison = part_of(place, "op-tools compare")
    pairs = [json.loads(line) for line in (place / "comparison.jsonl").read_text().splitlines()]
    pairs = [pair for pair in pairs if pair["kind"] == "pair"]
    assert comparison.tables[0].total == len(pairs)
    born = [one for one in comparison.findings if one.mark is Mark.WRONG]
    assert sum(one.count for one in born) == sum(pair["verdict"] == "born here" for pair in pairs) > 0
    assert (born[0].op, born[0].module) == ("torch.nn.functional.linear", "Sequential.0")


def test_times_and_memory_are_in_modules_and_lines(results):
    place, of_tools = results
    times = part_of(place, "OpTimeMeasure")
    assert times.modules["Sequential.0"].self_ms > 0
    total = sum(row.self_ms for row in of_tools[op_tools.OpTimeMeasure].rows)
    assert sum(place.self_ms for place in times.lines.values()) == pytest.approx(total, rel=1e-3)
    memory = part_of(place, "OpMemoryCheck")
    assert sum(place.alive_bytes for place in memory.lines.values()) >= 8 * 4000


def test_a_run_without_its_account_is_not_judged(tmp_path):
    run(op_tools.OpAutoCompare(output_dir=str(tmp_path)), (torch.ones(2) + 1 for _ in range(1)))
    assert part_of(tmp_path, "OpAutoCompare").verdict is Verdict.AGREES
    (account,) = tmp_path.rglob("coverage.json")
    for content in (None, "{", '{"seen": "x"}', '{"seen": {}}', "[]", "null", '{"threads": [1], "lost": 3}'):
        if content is None:
            account.unlink()
        else:
            account.write_text(content)
        part = part_of(tmp_path, "OpAutoCompare")
        assert part.verdict is Verdict.NOT_JUDGED, content
        assert any("coverage.json" in reason for reason in part.origin.reasons), content
        assert "coverage.json" in page_of([part], "") and "coverage.json" in text_of_parts([part])


def test_a_wrong_result_stays_wrong_without_account(results, tmp_path):
    place, _ = results
    shutil.copytree(place / "OpAutoCompare", tmp_path / "copy")
    (account,) = (tmp_path / "copy").rglob("coverage.json")
    account.unlink()
    assert part_of(tmp_path, "OpAutoCompare").verdict is Verdict.DIFFERS


def test_nan_that_came_in_is_not_judged(tmp_path):
    values = torch.tensor([float("nan"), 1.0])
    result = run(op_tools.OpOverflowCheck(output_dir=str(tmp_path)), (values * 2 for _ in range(1)))
    assert result.verdict is Verdict.NOT_JUDGED
    part = part_of(tmp_path, "OpOverflowCheck")
    assert part.verdict is Verdict.NOT_JUDGED and "no call seen here made" in part.origin.reasons[0]


VALUES = [None, True, -1, 1e400, "x", "", [], [None], {}, {"a": []}, "1" * 400, [[1]], 10**400, "\ud800\u202e"]


def test_damaged_files_give_a_report_or_an_error(results, tmp_path):
    """Fields of any type, torn lines, bytes that are no text."""
    place, _ = results
    random.seed(0)
    tried = 0
    names = ("*.jsonl", "*.csv", "meta.json")
    for file in sorted(file for name in names for file in place.rglob(name)):
        folder = tmp_path / f"{tried}"
        shutil.copytree(file.parent, folder)
        copy = folder / file.name
        if file.suffix == ".csv":
            lines = file.read_bytes().split(b"\n")
            lines[2:4] = [b'"' + lines[2][:30], b"\xff\0" + lines[-2]]
            copy.write_bytes(b"\n".join(lines))
        else:
            rows = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else []
            lines = [json.dumps({**row, random.choice([*row]): random.choice(VALUES)}) for row in rows for _ in "ab"]
            copy.write_text("\n".join([*lines, '{"op": "tor', "3", "[" * 50_000, "{}"]))
        try:
            parts = read_parts([folder])
        except op_tools.Error:
            continue
        finally:
            tried += 1
        assert page_of(parts, "damaged") and text_of_parts(parts)
    assert tried > 8


def test_lines_that_are_damaged_are_counted(results, tmp_path):
    place, of_tools = results
    root = Path(of_tools[op_tools.OpAutoCompare].root)
    shutil.copytree(root, tmp_path / "0")
    with (tmp_path / "0" / autocompare.FILE).open("a") as file:
        file.write('{"op": "torch.ad')
    part = part_of(tmp_path, "OpAutoCompare")
    assert part.tables[0].total == part_of(place, "OpAutoCompare").tables[0].total
    assert any("1 lines are damaged" in reason for reason in part.origin.reasons)


def test_a_process_that_died_in_a_call_is_a_finding(python, tmp_path):
    ended = python(
        """
import os, torch, op_tools

@torch.library.custom_op("dies::here", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    os._exit(7)

op_tools.OpBlackBox(level="aten").start()
torch.ops.dies.here(torch.ones(2))
""",
        check=False,
    )
    assert ended.returncode == 7
    part = part_of(tmp_path, "OpBlackBox")
    assert part.verdict is Verdict.DIFFERS, part.text
    (wrong,) = [one for one in part.findings if one.mark is Mark.WRONG]
    assert wrong.op == "dies::here" and "ended in it" in wrong.text


def test_ranks_with_the_same_finding_are_a_line(results, tmp_path):
    root = Path(results[1][op_tools.OpAutoCompare].root)
    for rank in range(3):
        shutil.copytree(root, tmp_path / f"{rank}" / "2026-11-27--02-43")
    file = tmp_path / "1" / "2026-11-27--02-43" / autocompare.FILE
    file.write_text(file.read_text() * 2)  # this rank has most
    parts = read_parts([tmp_path])
    assert [part.origin.rank for part in parts] == ["0", "1", "2"]
    kinds = kinds_by_mark(parts)[Mark.WRONG]
    assert [(kind.finding.op, kind.finding.count) for kind in kinds] == [
        (kind.finding.op, 4 * kind.finding.count) for kind in kinds_by_mark(parts[:1])[Mark.WRONG]
    ]
    assert [source.rank for _, source in kinds[0].sources] == ["1", "0", "2"] and kinds[0].finding.first_step == 0
    shown = page_of(parts, "ranks")
    assert "rank 1: <a href" in shown and "something is wrong, as OpAutoCompare of 3 ranks found" in shown
    # Two runs of a rank are not added up.
    shutil.copytree(root, tmp_path / "0" / "2026-11-27--03-00")
    assert len(kinds_by_mark(read_parts([tmp_path]))[Mark.WRONG]) == 2 * len(kinds)


def test_a_million_rows_are_thinned_and_it_is_said():
    table = Table("rows", (Column("number", is_number=True),), most=1000)
    wrong = set(random.Random(0).sample(range(100_000), 50))
    for number in range(100_000):
        table.add((number,), is_wrong=number in wrong)
    rows = table.marked_rows
    assert len(rows) <= 1000 and [cells[0] for is_wrong, cells in rows if is_wrong] == sorted(wrong)
    others = [cells[0] for is_wrong, cells in rows if not is_wrong]
    assert max(after - before for before, after in itertools.pairwise(others)) < 300  # an even share
    assert table.thinned.startswith(f"{len(rows):,} of 100,000 rows are shown: all that are wrong, and each ")

    table = Table("rows", (Column("number", is_number=True),), most=1000)
    for number in range(100_000):
        table.add((number,), is_wrong=True)
    assert 500 <= len(table.marked_rows) <= 1000 and "each 128th that is wrong" in table.thinned


def test_a_folder_without_results_is_an_error(tmp_path, capsys):
    for place in (tmp_path, tmp_path / "none", tmp_path / "file.txt"):
        if place.suffix:
            place.write_text("x")
        assert main(["report", str(place)]) == 2
        assert f"op-tools: {place}: " in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--text", "-o", "x.html"]) == 64


def test_a_file_of_another_is_left_alone(results, tmp_path, monkeypatch, capsys):
    folder = str(results[0] / "OpOverflowCheck")
    monkeypatch.chdir(tmp_path)
    assert main(["report", folder]) == 0 and main(["report", folder]) == 0  # a page of ours is made anew
    Path("report.html").write_text("<p>mine</p>")
    assert main(["report", folder]) == 2 and "report.html: is there" in capsys.readouterr().err
    assert Path("report.html").read_text() == "<p>mine</p>"
    Path("elsewhere.html").write_text("behind a link")
    Path("link.html").symlink_to("elsewhere.html")
    assert main(["report", folder, "-o", "link.html"]) == 0
    assert Path("elsewhere.html").read_text() == "behind a link" and "DOCTYPE" in Path("link.html").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere.html", "link.html", "report.html"]


def test_many_ranks_share_the_rows(results, tmp_path):
    root = Path(results[1][op_tools.OpAutoCompare].root)
    for rank in range(4):
        shutil.copytree(root, tmp_path / f"{rank}" / "2026-11-27--02-43")
    parts = read_parts([tmp_path])
    totals = [part.tables[0].total for part in parts]
    findings = [finding.count for part in parts for finding in part.findings]
    for part in parts:
        for number in range(1000):
            part.tables[0].add((str(number),) * len(part.tables[0].columns))
    share_rows(parts, 2000)
    assert [part.tables[0].total for part in parts] == [total + 1000 for total in totals]
    held = [len(part.tables[0].marked_rows) for part in parts]
    assert sum(held) <= 2000 and len(set(held)) == 1 and held[0] >= 200
    assert all(part.tables[0].thinned for part in parts)
    assert [finding.count for part in parts for finding in part.findings] == findings


def test_a_link_in_the_place_of_the_page_is_not_written_through(results, tmp_path):
    (tmp_path / "report.html.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(op_tools.Error, match="cannot be written"):
        write_page(read_parts([results[0] / "OpObserve"]), tmp_path / "report.html", "title")
    assert not (tmp_path / "elsewhere").exists()


def test_a_page_that_cannot_be_written_is_an_error(results, tmp_path, capsys):
    assert main(["report", str(results[0] / "OpAutoCompare"), "-o", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


# --- Text ---------------------------------------------------------------------------------------------------------------------


def test_the_text_has_a_line_per_kind_of_finding(results, capsys):
    place, _ = results
    assert main(["report", str(place / "OpAutoCompare"), "--text"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("OpAutoCompare: differs") and "Looked at: " in text
    assert sum(line.startswith("wrong ") for line in lines) == 2  # of both layers
    assert f"{Path(__file__).name}:" in text and "something is wrong, as OpAutoCompare found" in text
    assert all(len(line) <= 80 or "/" in line for line in lines)
    assert main(["show", str(place / "OpAutoCompare")]) == 0 and capsys.readouterr().out == text


def test_names_in_the_text_do_not_drive_the_terminal(capsys, tmp_path):
    hostile = "\x1b[2J\u202e\nop-tools: error"
    part = autocompare.part_of_rows([{"op": hostile, "module": hostile, "verdict": "differs"}], Origin())
    file = tmp_path / "autocompare.jsonl"
    file.write_text(json.dumps({"op": hostile, "module": hostile, "verdict": "differs", "reason": hostile}))
    assert part.verdict is Verdict.DIFFERS and main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[2J" in shown
    assert not any(line.startswith("op-tools: error") for line in shown.splitlines())


def test_the_next_commands_work_as_they_are_printed(results):
    place, _ = results
    commands = part_of(place, "OpAutoCompare").commands
    (replay,), (repro,) = ([*commands_in(command.text)] for command in commands)
    assert (replay[0], repro[:2]) == ("run_op_from_data", ["op-tools", "repro"])
    again = launched(*shlex.split(commands[0].text)[1:], check=False)
    assert again.returncode == 1 and "torch.nn.functional.linear" in again.stdout  # saved with the fault, run without
    assert "--import op_tools.sim_device" in commands[1].text
    again = launched(*shlex.split(part_of(place, "OpCapture").commands[0].text)[1:], check=False)
    assert again.returncode == 0 and re.match("[0-9]+ calls in .* 0 differ", again.stdout)


@pytest.mark.parametrize("is_on_path", [True, False])
def test_every_command_of_a_report_is_one_that_is_here(results, is_on_path, tmp_path, monkeypatch):
    """Of all tools, called as op-tools can be called: by its name, or by this Python."""
    place, _ = results
    if is_on_path:
        (tmp_path / "op-tools").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = text_of_parts(read_parts([place]))
    shown = [command.text for part in read_parts([place]) for command in part.commands]
    assert len(shown) > 4 and all(command in text for command in shown)
    called = "op-tools " if is_on_path else f"{sys.executable} -m op_tools "
    for command in shown:
        ((program, *words),) = commands_in(command)
        assert command.startswith(
            called if program == "op-tools" else f"{sys.executable} -m op_tools.run_op_from_data "
        )
        assert program != "op-tools" or refused(words) == "", command
        assert all(Path(word).exists() for word in words if word.startswith("/")), command


@pytest.mark.usefixtures("op_tools_on_path")
def test_the_command_line_of_a_run_is_kept_and_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "train.py").write_text("import torch, sys; torch.ones(2) * 2; print(sys.argv)")
    words = ["run", "--observe", "--output-dir", "a b", "train.py", "--name", "it's"]
    launched("-m", "op_tools", *words, cwd=tmp_path, OP_TOOLS_SIM_ROUNDING="1")
    (part,) = read_parts([tmp_path])
    command = shlex.split(part.origin.command)
    assert command[0] == "env" and "OP_TOOLS_SIM_ROUNDING=1" in command
    assert command[-len(words) - 1 :] == ["op-tools", *words]
    assert part.origin.working_folder == str(tmp_path)
    line = f"  (cd {tmp_path} && {part.origin.command})"
    assert line in text_of_parts([part]).splitlines()
    done = subprocess.run(
        ["bash", "-c", line.replace("op-tools", f"{PYTHON} -m op_tools")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "['train.py', '--name', \"it's\"]\n"


# --- The page, as text ----------------------------------------------------------------------------------------------------------


class Markup(html.parser.HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))


def test_nothing_of_the_data_is_markup(page):
    text = page.read_text()
    markup = Markup(text)
    tags = [tag for tag, _ in markup.elements]
    assert tags.count("script") == 2 and "img" not in tags and "iframe" not in tags and "link" not in tags
    assert not [name for _, attributes in markup.elements for name in attributes if name.startswith("on")]
    assert not [attributes for _, attributes in markup.elements if "style" in attributes]
    hrefs = {attributes["href"] for _, attributes in markup.elements if "href" in attributes}
    assert hrefs and all(href.startswith("#") for href in hrefs)
    assert escape(HOSTILE) in text and "&lt;/script&gt;" in text
    assert "<img" not in escape(HOSTILE) and escape("\u202ea\x1b") == "\\u202ea\\x1b"


def test_the_policy_allows_the_two_parts_of_ours_alone(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page.read_text())
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert all("unsafe" not in rule and "*" not in rule and "http" not in rule for rule in rules.values())


def test_the_rows_of_the_page_are_those_of_the_files(page, results):
    data = rows_in(page.read_text())
    strings = data["strings"]
    table = next(table for table in data["tables"] if table["title"] == "Comparisons")
    columns = {column["title"]: column for column in table["columns"]}
    file = Path(results[1][op_tools.OpAutoCompare].root) / autocompare.FILE
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [strings[number] for number in columns["op"]["values"]] == [row["op"] for row in rows]
    assert columns["call"]["values"] == [row["id"] for row in rows]
    assert table["wrong"] == [int(row["verdict"] == "differs") for row in rows]
    for value, row in zip(columns["error"]["values"], rows):
        assert value is None if row["verdict"] == "not judged" else value == pytest.approx(row["number"], rel=1e-3)


def test_the_same_rows_give_the_same_page(results):
    place, _ = results
    pages = [page_of(read_parts([place / "OpAutoCompare"]), "same") for _ in range(2)]
    assert pages[0] == pages[1]


def test_the_assets_are_those_of_their_sources_small_and_with_their_licenses():
    names = ("package.json", "package-lock.json", "build.mjs", "report.js", "timeline.js", "report.css")
    stamp = hashlib.sha256(b"".join((ROOT / "web" / name).read_bytes() for name in names)).hexdigest()
    script, style = ((ASSETS / name).read_text() for name in ("page.js", "page.css"))
    for text in (script, style):
        assert f"sources {stamp}" in text.splitlines()[0], "./dev page makes them anew"
        assert "</" not in text and "<!--" not in text
    assert len(script.encode()) + len(style.encode()) <= MOST_ASSET
    for name in ("uplot 1.6.32", "@tanstack/virtual-core 3.19.11"):
        assert name in script
    assert script.count("Permission is hereby granted") == 2
    assert "http" not in style and "url(" not in style


def many_rows(count):
    """Rows as a large model gives them."""
    draw = random.Random(0)
    for number in range(count):
        wrong = draw.random() < 0.003
        limit = 10 ** draw.uniform(-7, -5)
        yield {
            "op": f"torch.nn.functional.op{draw.randrange(60)}",
            "phase": "backward" if number % 2 else "forward",
            "module": f"GPT.layers.{draw.randrange(48)}.mlp.{draw.choice(('up', 'down', 'norm'))}",
            "verdict": "differs" if wrong else "agrees",
            "part": "output",
            "step": number // 5000,
            "id": number // 2,
            "number": limit * draw.random() * (1000 if wrong else 1),
            "limit": limit,
            "max_abs": draw.random() * 1e-6,
            "max_ulp": float(draw.randrange(1000)),
            "dtype": "torch.float32",
            "shape": [draw.choice((8, 16)), 1024, 768],
            "device": "cuda:0",
            "source": f"/home/user/train/model.py:{draw.randrange(900)} forward",
        }


@pytest.fixture(scope="module")
def large_page(tmp_path_factory):
    file = tmp_path_factory.mktemp("large") / "large.html"
    file.write_text(page_of([autocompare.part_of_rows(many_rows(100_000), Origin())], "large"))
    return file


def test_a_page_of_a_hundred_thousand_rows_is_small(large_page):
    assert large_page.stat().st_size <= MOST_PAGE
    assert len(rows_in(large_page.read_text())["tables"][0]["wrong"]) == 100_000


# --- Results of commands -----------------------------------------------------------------------------------------------------------

ITERATION = """
import sys, torch
if "sim" in sys.argv: import op_tools.sim_device
torch.manual_seed(0)
layer = torch.nn.Linear(4, 2)
layer.to("sim" if "sim" in sys.argv else "cpu")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(3, 4).to(layer.weight.device)).sum().backward()
optimizer.step()
"""


def test_an_iteration_of_modules_is_a_part(tmp_path):
    (tmp_path / "train.py").write_text(ITERATION)
    command = ["-m", "op_tools", "one-iter"]
    launched(*command, "save", "right", "train.py", cwd=tmp_path)
    faults = {"OP_TOOLS_SIM_FAULTS": "scale:ops=addmm,scale=1.5"}
    compare = [*command, "compare", "--json", "compared.jsonl", "--output-dir", "other", "right", "train.py", "sim"]
    launched(*compare, cwd=tmp_path, check=False, **faults)
    part = part_of(tmp_path, "op-tools one-iter")
    assert part.verdict is Verdict.DIFFERS and part.tables[0].total > 3
    (born,) = [finding for finding in part.findings if finding.mark is Mark.WRONG and finding.phase == "forward"]
    assert (born.op, born.module) == ("module:Linear", "Linear")
    assert part.modules["Linear"].wrong >= 1
    cut = (tmp_path / "compared.jsonl").read_text().splitlines()[:-1]
    (tmp_path / "compared.jsonl").write_text("\n".join(line.replace("differs", "agrees") for line in cut))
    part = part_of(tmp_path, "op-tools one-iter")
    assert part.verdict is Verdict.NOT_JUDGED and "cut off" in part.origin.gaps[0]


def test_a_number_of_lines_below_all_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", ".", "--text", "--lines", "-2"])
    assert ended.value.code == 64 and "give a number from 0, or -1 for all" in capsys.readouterr().err


def pairs_of_captures(*b):
    return [ConfirmedRow("aten::mm", "Net", 0, "a", "b", 0.0, 0.1, "agrees", side, "", f"B {side}") for side in b]


def spread_rows(*findings):
    return [SpreadRow(0, "mm", "forward", "Net", "", "0", (2, 2), "sum", "bits", text, [], 1) for text in findings]


def sequence_rows(*verdicts):
    numbers = (2, 1, 1, 0.0, 0.1, 0.1, 0.1, 1.0, [], [1], [2])
    return [SequenceRow("mm", "Net", "", "", "0", "float32", verdict, *numbers) for verdict in verdicts]


def odd_runs(count):
    rows = [
        OddRow(f"run{n}", 0, "torch.tanh", "backward", "Net", "", 0, n, "other results", 1, 2, "") for n in range(count)
    ]
    return ManyRuns(["a", "b", "c"], rows, calls={"compared": 9})


def sequences(*verdicts):
    return SequenceComparison("a", "b", sequence_rows(*verdicts), 2, 2, 2, (1, 1), ([], []), None)


FURTHER = {
    "many": (lambda: odd_runs(0), lambda: odd_runs(2)),
    "captures": (
        lambda: Confirmation(pairs_of_captures("agrees", "agrees"), []),
        lambda: Confirmation(pairs_of_captures("agrees", "differs"), []),
    ),
    "ranks": (
        lambda: RanksComparison("a", ["b"], spread_rows("", "", ""), 0),
        lambda: RanksComparison("a", ["b"], spread_rows("", "no sum"), 0),
    ),
    "sequences": (lambda: sequences("agrees", "agrees"), lambda: sequences("agrees", "born here")),
}


@pytest.mark.parametrize("form", FURTHER)
@pytest.mark.parametrize("name", ["compared.json", "compared.jsonl"])
def test_every_form_of_a_comparison_is_a_part(form, name, tmp_path):
    right, wrong = FURTHER[form]
    file = tmp_path / name

    def page(text):
        file.write_text(text)
        (part,), (alone,) = read_parts([tmp_path]), read_parts([file])
        assert (part.tool, part.verdict) == (alone.tool, alone.verdict) == ("op-tools compare", part.verdict)
        return part

    assert page(right().to_json()).verdict is Verdict.AGREES
    part = page(wrong().to_json())
    assert part.verdict is Verdict.DIFFERS
    assert any(finding.mark is Mark.WRONG for finding in part.findings)
    assert part.tables[0].total == 2
    *lines, end = wrong().to_json().splitlines(keepends=True)
    assert page("".join(lines)).verdict is Verdict.DIFFERS  # without its summary
    of_right = right().to_json().splitlines(keepends=True)
    assert page("".join(of_right[1:] or [lines[0], *of_right])).verdict is not Verdict.AGREES  # a row less, or more
    if len(of_right) > 1:
        assert page("".join(of_right[-1:])).verdict is Verdict.NOT_JUDGED
    assert page(lines[0][:20] + "\n" + end).verdict is Verdict.DIFFERS
    (tmp_path / "right.jsonl").write_text(right().to_json())
    file.write_text(lines[0][:90])
    unread = next(part for part in read_parts([tmp_path]) if part.tool == name)
    assert unread.verdict is Verdict.NOT_JUDGED and "no line of it can be read" in unread.origin.gaps[0]


def test_an_odd_backward_pass_is_named_as_such():
    assert "torch.tanh backward" in odd_runs(1).table()


def test_a_result_that_is_wrong_within_its_limit_shows_the_reason(tmp_path):
    row = OneIterRow(0, "forward", "Net.norm", "module:Norm", "differs", "born here", 0.3, 8.0, "", "an input differs")
    comparison = OneIterComparison(RunsComparison([]), [row])
    (line,) = [line for line in comparison.table().splitlines() if "module:Norm" in line]
    assert line.endswith("an input differs")
    (tmp_path / "compared.jsonl").write_text(comparison.to_json())
    (finding,) = read_parts([tmp_path])[0].findings
    assert finding.worst is None and "an input differs" in finding.text


@pytest.mark.parametrize("damage", ["missing", "doubled", "rows", "first line", "summary"])
def test_rows_of_a_comparison_are_those_that_its_summary_counts(damage, tmp_path, results):
    """Of two runs, and of an iteration."""
    counts = {"agrees": 3, "not compared": 1}
    pairs = [{"kind": "pair", "verdict": name, "op": "mm"} for name, count in counts.items() for _ in range(count)]
    of_runs = [*pairs, {"kind": "summary", "verdict": "agrees", "unseen": [], "verdicts": counts, "incomplete": []}]
    modules = [{"kind": "result", "what": "output", "verdict": "agrees", "module": "Net"} for _ in range(4)]
    of_iteration = [
        *modules,
        {"kind": "summary", "verdict": "agrees", "unseen": [], "verdicts": {"agrees": 4}, "first": None},
    ]
    for records, tool in ((of_runs, "op-tools compare"), (of_iteration, "op-tools one-iter")):
        file = tmp_path / "compared.json"
        lines = [json.dumps(record) + "\n" for record in records]
        file.write_text("".join(lines))
        (part,) = read_parts([tmp_path])
        assert (part.tool, part.verdict, part.origin.gaps) == (tool, Verdict.AGREES, [])
        damaged = {
            "missing": lines[1:],
            "doubled": lines[:1] + lines,
            "rows": lines[-1:],
            "first line": [lines[0][:20] + "\n", *lines[1:]],
            "summary": lines[:-1],
        }
        file.write_text("".join(damaged[damage]))
        (part,) = read_parts([tmp_path])
        assert (part.tool, part.verdict) == (tool, Verdict.NOT_JUDGED) and part.origin.gaps
    comparison = part_of(results[0], "op-tools compare")  # of a real file: its rows are as many as it says
    assert not [gap for gap in comparison.origin.gaps if "by the summary" in gap]


def test_a_replay_is_a_part(tmp_path, build_dir):
    with sim.fault("scale", ops="addmm", scale=1.5):
        captured = run(op_tools.OpCapture(output_dir=str(tmp_path)), train(1)).root
    program, report = str(build_dir / "run_op_from_data"), str(tmp_path / "replay.json")
    done = subprocess.run([program, captured, "--acc_check", "--json", report], capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    part = part_of(tmp_path, "run_op_from_data")
    wrong = [finding for finding in part.findings if finding.mark is Mark.WRONG]
    assert part.verdict is Verdict.DIFFERS and {finding.op for finding in wrong} == {"torch.nn.functional.linear"}
    assert (Path(wrong[0].saved) / "input.pth").is_file() and wrong[0].worst > 100
    assert any("--acc_check" in command.text for command in part.commands)
    subprocess.run([program, captured, "--json", report], capture_output=True, check=False)
    part = part_of(tmp_path, "run_op_from_data")
    assert part.verdict is None and "without --acc_check" in part.origin.gaps[-1]


@pytest.mark.parametrize(
    ("said", "verdict"),
    [("found", Verdict.DIFFERS), ("not an operator", Verdict.DIFFERS), ("inconsistent", Verdict.NOT_JUDGED)],
)
def test_a_bisection_is_a_part(tmp_path, said, verdict):
    culprits = [{"op": "aten::mm", "module": "Net.fc", "line": "train.py:3", "phase": "forward", "calls": 2}]
    curves = {"before": [1.0, float("nan"), 3.0], "after": [1.0, 0.5, 0.25]}
    moved = culprits if said == "found" else []
    result = BisectResult(said, HOSTILE, "fallback", culprits=moved, runs=7, seconds=3.0, **curves)
    (tmp_path / "result.json").write_text(result.to_json())
    (part,) = read_parts([tmp_path])
    assert (part.tool, part.verdict, len(part.findings)) == ("op-tools bisect", verdict, len(moved))
    (curve,) = part.curves
    assert [len(series.points) for series in curve.series] == [3, 3]
    text = page_of([part], "bisection")
    assert "<polyline" in text and HOSTILE not in text and escape(HOSTILE) in text


def test_other_files_of_json_are_no_results(tmp_path):
    for name, content in {
        "a.json": '{"calls": 3}',
        "b.json": "[1]",
        "c.json": '{"verdict": ',
        "d.jsonl": "3",
        "e.jsonl": '{"kind": "row", "a": 1}',
        "f.jsonl": '{"kind": "pair", "a": 1}',
    }.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(op_tools.Error, match="no tool of op_tools wrote anything here"):
        read_parts([tmp_path])
    with pytest.raises(op_tools.Error, match="is no file of which a report is made"):
        read_parts([tmp_path / "a.json"])


def test_operators_by_dtype_and_losses_are_pictures(results, tmp_path):
    comparison = part_of(results[0], "op-tools compare")
    (curve,) = comparison.curves
    losses = {series.title: [y for _, y in series.points] for series in curve.series}
    assert len(losses["A"]) == len(losses["B"]) == 1 and losses["A"] != losses["B"]
    assert (curve.at and "addmm" in curve.at[0][1]) or "linear" in curve.at[0][1]
    folder = tmp_path / "conformance"
    words = ["--device", "sim", "--import", "op_tools.sim_device", "--fname", "torch.mm", "-o", str(folder)]
    launched("-m", "op_tools", "conformance", "run", *words, check=False)
    (part,) = read_parts([folder])
    (grid,) = part.grids
    assert {row for row, _ in grid.cells} == {"torch.mm"} and len(grid.cells) > 2
    assert sum(counts.total() for counts in grid.cells.values()) == part.tables[0].total
    text = page_of([part], "grid")
    assert 'class="plain grid-of-marks small"' in text and "✓" in text


def test_errors_in_ulp_are_a_histogram():
    sizes = [0.0, 0.0, 0.25, 1.0, 1.5, 3.0, 4.0, 5.0, 2.0**19, 2.0**30, math.inf]
    rows = [{"op": "op", "verdict": "agrees", "dtype": "torch.float32", "max_ulp": size} for size in sizes]
    rows += [{**rows[5], "verdict": "differs"}, {**rows[0], "verdict": "not judged"}, {**rows[0], "max_ulp": None}]
    rows += [{**rows[0], "dtype": "torch.int64"}, {**rows[0], "dtype": "torch.bfloat16", "max_ulp": "nan"}]
    part = autocompare.part_of_rows(rows, Origin())
    (shares,) = part.shares
    assert shares.title.endswith("float32")
    counts = {name: dict(counts) for name, counts in shares.rows if counts}
    assert counts == {
        "0": {"right": 2},
        "0 to 1": {"right": 2},
        "1 to 2": {"right": 1},
        "2 to 4": {"wrong": 1, "right": 2},
        "4 to 8": {"right": 1},
        "262,144 to 524,288": {"right": 1},
        "more than 1,048,576": {"right": 2},
    }
    assert [name for name, _ in shares.rows][4:] == [
        "4 to 8",
        "...",
        "262,144 to 524,288",
        "...",
        "more than 1,048,576",
    ]
    text = page_of([part], "ULP")
    assert (
        text.count('class="share p0"') == 2 and 'class="share p1"' not in text
    )  # with the sign above; none without a verdict


def test_memory_over_the_steps_says_who_holds_it(results):
    (curve,) = part_of(results[0], "OpMemoryCheck").curves
    *kinds, leak = curve.series
    assert "held by" in leak.title and "test_report.py" in leak.title and "mul" in leak.title
    assert [x for x, _ in leak.points] == list(range(1, len(leak.points) + 1)) and len(leak.points) >= 7
    growth = [after - before for (_, before), (_, after) in itertools.pairwise(leak.points)]
    assert all(4000 <= bytes_of_step <= 4100 for bytes_of_step in growth)
    assert all(len(series.points) == len(leak.points) for series in kinds)
    text = curve_svg(curve)
    assert text.count("<polygon") == len(curve.series) and "held by" in text
    assert f"{leak.points[-1][1] / 1e3:.4g} KB" in text
    assert memory.part_of_rows([{"kind": "other", "alive_bytes": 3}], Origin()).curves == []  # of an older version


def test_calls_of_each_stream_are_counted_by_their_state(results):
    (shares,) = part_of(results[0], "OpBlackBox").shares
    assert sum(map(sum, (counts.values() for _, counts in shares.rows))) == len(results[1][op_tools.OpBlackBox].rows)
    ended = dict.fromkeys((column.name for column in dataclasses.fields(BlackBoxRow)), "")
    ended |= {"step": 0, "id": 1, "thread": 1, "begun": 0.0, "ms": None, "number": 0}
    states = [("ended", True), ("ended", True), ("ended", False), ("failed", False), ("open", False)]
    rows = [
        BlackBoxRow(**{**ended, "state": state, "done": done, "stream": "npu:0, stream 3"}) for state, done in states
    ]
    box = BlackBox("file", 7, 2, "host", "train.py", 0.0, False, False, rows=rows)
    (shares,) = black_box.part_of_boxes([box], [], Origin()).shares
    assert shares.rows == (("rank 2, process 7: npu:0, stream 3", {"done": 3, "launched": 1, "open": 1}),)


def test_modules_are_a_flame_graph_by_rows_where_nothing_has_times(results):
    text = page_of([part_of(results[0], "OpAutoCompare")], "flame")
    assert "Rows by module" in text and "Flame graph: rows by module" in text and 'class="flame bad"' in text
    assert "Flame graph: time by module" in page_of([part_of(results[0], "OpTimeMeasure")], "flame")


def test_a_folder_whose_name_is_a_digit_and_no_number_is_no_rank(results, tmp_path):
    root = Path(results[1][op_tools.OpAutoCompare].root)
    shutil.copytree(root, tmp_path / "²" / root.name)
    parts = read_parts([tmp_path])
    assert [part.origin.rank for part in parts] == [""]
    assert page_of(parts, "rank") and text_of_parts(parts)


def test_tables_of_many_ranks_are_a_table_with_their_rank(results, tmp_path):
    root = Path(results[1][op_tools.OpAutoCompare].root)
    for rank in range(20):
        shutil.copytree(root, tmp_path / f"{rank}" / "2026-11-27--02-43")
    (tmp_path / "7" / "2026-11-27--02-43" / "coverage.json").unlink()
    parts = read_parts([tmp_path])
    text = page_of(parts, "ranks")
    (table,) = rows_in(text)["tables"]
    assert len(table["wrong"]) == sum(part.tables[0].total for part in parts)
    assert table["columns"][-1]["title"] == "rank" and len(set(table["columns"][-1]["values"])) == 20
    assert "rank&quot;: &quot;0&quot;" in text  # the rows of a finding of a rank
    assert "<div>and 16 more</div>" in text and "coverage.json" in text
    assert text.count("<tr") < 200  # 20 tables of 30 rows, and 20 histograms, would be 1,000
    few = page_of(parts[:3], "ranks")
    assert len(rows_in(few)["tables"]) == 3


def test_modules_that_were_compared_are_shown_again(tmp_path, capsys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with sim.fault("scale", ops="addmm", call=1, scale=1.01):
        result = op_tools.compare_modules(model, on_device="sim", inputs=torch.ones(3, 4), output_dir=tmp_path)
    (part,) = read_parts([tmp_path])
    assert Path(result.root).parent == tmp_path / "op_compare_modules_result" / "0"
    assert (part.tool, part.verdict, part.tables[0].total) == ("compare_modules", Verdict.DIFFERS, len(result.rows))
    (wrong,) = [one for one in part.findings if one.mark is Mark.WRONG]
    assert wrong.module == "2" and part.modules["2"].wrong and part.shares
    assert main(["show", str(tmp_path)]) == 0 and "differs: " in capsys.readouterr().out
    file = next(tmp_path.rglob("modules.jsonl"))
    file.write_text(
        "".join(line for line in file.read_text().splitlines(keepends=True) if '"differs"' not in line)
    )  # without its summary: cut off
    (part,) = read_parts([tmp_path])
    assert part.verdict is Verdict.NOT_JUDGED and "did not end" in part.origin.reasons[0]
    right = op_tools.compare_modules(model, on_device="sim", inputs=torch.ones(3, 4), output_dir=tmp_path / "right")
    (part,) = read_parts([right.root])
    assert part.verdict is right.verdict is Verdict.AGREES and not part.findings
    none = op_tools.compare_modules(model, on_device="sim", inputs=torch.ones(3, 4), files=False)
    assert none.root == "" and len(list(tmp_path.rglob("modules.jsonl"))) == 2
    (tmp_path / "file").touch()
    lost = op_tools.compare_modules(model, on_device="sim", inputs=torch.ones(3, 4), output_dir=tmp_path / "file")
    assert lost.root == "" and lost.ok  # it is said, and the answer stays


def test_calls_on_captured_inputs_are_shown_again(tmp_path):
    values = torch.linspace(-1, 1, 8)

    def program():
        on_device = values.to("sim")
        return torch.exp(on_device), torch.tanh(on_device)

    with op_tools.OpCapture(output_dir=tmp_path / "good") as capture:
        program()
    with (
        sim.fault("scale", ops="exp", scale=1.5),
        op_tools.OpShadow(capture.result().root, output_dir=tmp_path / "shadow") as shadow,
    ):
        program()
    result = shadow.result()
    (part,) = read_parts([tmp_path / "shadow"])
    assert (part.tool, part.verdict) == ("OpShadow", Verdict.DIFFERS) and part.tables[0].total == len(result.rows)
    (wrong,) = [one for one in part.findings if one.mark is Mark.WRONG]
    assert wrong.op == "torch.exp" and wrong.saved == result.wrong[0].path_b
    assert any("run_op_from_data" in command.text and "exp" in command.text for command in part.commands)
    assert part.origin.account is not None and part.origin.looked_at
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "shadow"), "-o", str(page)]) == 0
    assert "torch.<wbr>exp" in page.read_text()


# --- Results in memory ------------------------------------------------------------------------------------------------------------


def test_a_result_writes_its_page(tmp_path):
    with op_tools.OpAutoCompare() as tool, sim.fault("scale", ops="exp", scale=2):
        torch.exp(torch.ones(3, device="sim"))
    text = tool.result().report(tmp_path / "result.html").read_text()
    assert "✗ differs" in text and "torch.<wbr>exp" in text
    assert len(rows_in(text)["tables"][0]["wrong"]) == len(tool.result().rows)
    shutil.rmtree(tool.result().root)
    again = tool.result().report(tmp_path / "again.html").read_text()
    assert rows_in(again)["tables"][0]["wrong"] == rows_in(text)["tables"][0]["wrong"]


def test_every_result_writes_its_page(results, tmp_path):
    for tool, result in results[1].items():
        text = result.report(tmp_path / f"{tool.__name__}.html").read_text()
        assert rows_in(text)["tables"], tool


def test_a_result_shows_its_findings_in_a_notebook(results):
    shown = results[1][op_tools.OpAutoCompare]._repr_html_()
    tags = {tag for tag, _ in Markup(shown).elements}
    assert "script" not in tags and "style" not in tags and "img" not in tags
    assert "differs" in shown and "torch.<wbr>nn." in shown and "calls seen" in shown
    assert "calls seen" not in op_tools.read_recording(results[1][op_tools.OpRecord].path)._repr_html_()


def test_rows_with_a_verdict_are_findings_and_show_themselves(tmp_path):
    right, wrong = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    result = op_tools.compare_modules(right, wrong, torch.ones(3, 4))
    assert result.verdict is Verdict.DIFFERS
    assert "✗ wrong" in result._repr_html_()
    assert "✗ differs" in result.report(tmp_path / "modules.html").read_text()


def test_a_comparison_writes_its_page(results, tmp_path):
    place, _ = results
    comparison = op_tools.compare_runs(str(place / "OpRecord"), str(place / "other"))
    text = comparison.report(tmp_path / "runs.html").read_text()
    assert "born here" in text and rows_in(text)["tables"][0]["title"] == "Pairs of calls"


def test_a_result_is_shown_by_tensorboard(results, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from op_tools.integrations.tensorboard import add_result

    with SummaryWriter(tmp_path) as writer:
        for step, tool in enumerate((op_tools.OpAutoCompare, op_tools.OpTimeMeasure)):
            add_result(writer, results[1][tool], step)
    events = EventAccumulator(str(tmp_path)).Reload()
    (wrong,) = events.Scalars("op_tools/OpAutoCompare/wrong")
    assert (wrong.step, wrong.value) == (0, len(results[1][op_tools.OpAutoCompare].failures))
    names = events.Tags()["scalars"]
    assert any(name.startswith("op_tools/OpAutoCompare/worst/torch.nn.functional.linear") for name in names)
    assert any("Self_time" in name or "Self time" in name for name in names)
    (text,) = (tag for tag in events.Tags()["tensors"] if "OpAutoCompare" in tag)
    lines = events.Tensors(text)[0].tensor_proto.string_val[0].decode().splitlines()
    assert "differs" in lines[0] and all(line.startswith("    ") for line in lines)


# --- The page in a browser ----------------------------------------------------------------------------------------------------------

WAIT = 20  # seconds


class Browser:
    """A headless Chromium that notes every request."""

    def __init__(self, downloads):
        webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
        program, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
        if not program or not driver:
            pytest.skip("there is no chromium with its driver")
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        self.downloads = downloads
        self.web = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))

    def command(self, name, **arguments):
        return self.web.execute_cdp_cmd(name, arguments)

    def open(self, file, *, script=True, width=1280, height=900):
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self.command("Emulation.setEmulatedMedia", media="", features=[])
        self.web.get_log("performance"), self.web.get_log("browser")
        self.web.get(file.as_uri())
        if script:
            self.until("document.documentElement.dataset.ready === 'yes'")

    def run(self, text):
        return self.web.execute_script(text)

    def until(self, condition):
        end = time.monotonic() + WAIT
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def texts(self, selector):
        return self.run(f"return [...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")

    def requests(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.web.get_log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def column(self, title, table=0):
        """The cells of a column that are on the screen, from above."""
        return self.run(
            """const table = document.getElementById(`table-${arguments[1]}`);
            const at = [...table.querySelectorAll('[role=columnheader] button')].findIndex(
                one => one.title === `Sort by ${arguments[0]}`);
            return [...table.querySelectorAll('.body .row')].sort((a, b) => a.dataset.at - b.dataset.at)
                .map(row => row.children[at].textContent)""".replace("arguments[0]", json.dumps(title)).replace(
                "arguments[1]", str(table)
            )
        )

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("downloads"))
    yield browser
    browser.web.quit()


def number_of_table(page, title):
    return [table["title"] for table in rows_in(page.read_text())["tables"]].index(title)


def test_the_page_opens_without_a_request_and_without_a_complaint(chromium, page):
    chromium.open(page)
    assert chromium.requests() == [page.as_uri()]
    assert chromium.web.get_log("browser") == []  # no script of the data ran, nothing was refused
    assert chromium.run("return document.images.length + document.querySelectorAll('iframe').length") == 0
    assert HOSTILE in chromium.texts("h1")[0]
    assert chromium.texts(".verdict") == ["✗ differs"]


def test_the_page_says_the_same_without_javascript(chromium, page):
    chromium.open(page, script=False)
    content = chromium.command("DOM.getDocument", depth=0)["root"]["nodeId"]
    text = chromium.command("DOM.getOuterHTML", nodeId=content)["outerHTML"]
    assert "data-ready" not in text.split("<body")[0]
    shown = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    for words in (
        "What was looked at",
        "calls seen",
        "differs",
        "torch.<wbr>nn.<wbr>functional.<wbr>linear",
        " repro ",
    ):
        assert words in shown
    boxes = chromium.command("DOM.querySelector", nodeId=content, selector="#table-0 .without-script table")
    assert chromium.command("DOM.getBoxModel", nodeId=boxes["nodeId"])["model"]["height"] > 50


def test_rows_are_sorted_by_any_column(chromium, page):
    table = number_of_table(page, "Comparisons")
    chromium.open(page)
    chromium.run(f"document.getElementById('table-{table}').open = true")
    header = f'#table-{table} button[title="Sort by of limit"]'
    chromium.click(header)
    largest = chromium.column("of limit", table)[:4]
    numbers = [float(text.replace(",", "")) for text in largest]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > 100
    state = f"document.querySelector('{header}').parentElement.ariaSort"
    assert chromium.run(f"return {state}") == "descending"
    chromium.click(header)
    assert chromium.run(f"return {state}") == "ascending"
    chromium.click(f'#table-{table} button[title="Sort by op"]')
    ops = chromium.column("op", table)
    assert len(ops) > 5 and ops == sorted(ops)


def test_a_finding_leads_to_its_rows(chromium, page):
    table = number_of_table(page, "Comparisons")
    chromium.open(page)
    link = f"#findings a[href='#table-{table}']"
    count = chromium.texts(link)[0]
    chromium.click(link)
    chromium.until(f"document.querySelector('#table-{table}').open")
    assert chromium.texts(f"#table-{table} [role=status]")[0].startswith(f"{count} of ")
    assert "differs" in chromium.column("verdict", table)
    assert len(set(chromium.column("module", table))) == 1


def test_the_guilty_line_is_at_most_three_clicks_away(chromium, tmp_path):
    with op_tools.OpAutoCompare(output_dir=str(tmp_path)), sim.fault("scale", ops="exp", scale=2):
        values = torch.ones(3, device="sim")
        torch.tanh(values)
        guilty = inspect.currentframe().f_lineno + 1
        torch.exp(values)
    page = tmp_path / "report.html"
    page.write_text(page_of(read_parts([tmp_path]), "clicks"))
    chromium.open(page)
    chromium.click("#findings a[data-filter]")  # the first finding
    chromium.until("document.querySelector('#table-0').open")
    chromium.click("#table-0 .body .row")  # its first row
    chromium.until("!document.querySelector('#table-0 dl.detail').hidden")
    names, texts = (chromium.texts(f"#table-0 dl.detail {tag}") for tag in ("dt", "dd"))
    row = dict(zip(names, texts, strict=True))
    assert row["verdict"] == "differs" and row["op"] == "torch.exp"
    assert re.search(rf"test_report\.py:{guilty} ", row["line"])
    assert f"test_report.py:{guilty}" in chromium.texts("#findings .where .code.quiet")[0]  # without a click


def test_rows_are_filtered_and_saved(chromium, page):
    table = number_of_table(page, "Comparisons")
    chromium.open(page)
    chromium.run(f"document.getElementById('table-{table}').open = true")
    state = f"#table-{table} [role=status]"
    everything = chromium.texts(state)[0]

    def enter(text, *, regex=False):
        before = chromium.texts(state)[0]
        chromium.run(
            f"""const table = document.getElementById('table-{table}');
            const [text, regex] = table.querySelectorAll('.tools input');
            regex.checked = {json.dumps(regex)};
            text.value = {json.dumps(text)};
            text.dispatchEvent(new Event('input'))"""
        )
        chromium.until(f"document.querySelector('{state}').textContent !== {json.dumps(before)}")

    enter("ONERROR")
    assert chromium.column("module", table) and all("onerror" in text for text in chromium.column("module", table))
    enter("^backward$", regex=True)
    assert set(chromium.column("phase", table)) == {"backward"}
    enter("functional.linear")
    chromium.run(
        f"""const menu = document.querySelector('#table-{table} select[aria-label=verdict]');
        menu.value = [...menu.options].find(one => one.text.startsWith('differs')).value;
        menu.dispatchEvent(new Event('change'))"""
    )
    rows = int(chromium.texts(state)[0].split(" of ")[0])
    chromium.click(f"#table-{table} .export")
    end = time.monotonic() + WAIT
    while not (files := list(chromium.downloads.glob("*.csv"))) and time.monotonic() < end:
        time.sleep(0.02)
    with files[0].open(newline="") as file:
        saved = list(csv.DictReader(file))
    assert len(saved) == rows > 0 and {row["verdict"] for row in saved} == {"differs"}
    assert any(HOSTILE.replace(".", "") in row["module"] for row in saved)
    chromium.click(f"#table-{table} .clear")
    assert chromium.texts(state)[0] == everything


def test_the_timeline_zooms_and_moves(chromium, page):
    table = number_of_table(page, "Single calls")
    chromium.open(page)
    chromium.run(f"document.getElementById('table-{table}').open = true")
    canvas = f"document.querySelector('#table-{table}-timeline canvas')"
    chromium.until(f"{canvas}.dataset.until")

    def shown():
        return [float(chromium.run(f"return {canvas}.dataset.{name}")) for name in ("from", "until")]

    def key(name):
        chromium.run(f"{canvas}.dispatchEvent(new KeyboardEvent('keydown', {{key: {json.dumps(name)}}}))")
        return shown()

    first, last = shown()
    assert first == 0 and last > 0
    begin, end = key("+")
    assert end - begin == pytest.approx((last - first) / 1.3)
    assert key("ArrowRight")[1] >= end and key("-")[0] >= 0
    assert key("0") == [first, last]
    colours = chromium.run(
        f"""const canvas = {canvas}, data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
        return seen.size"""
    )
    assert colours > 3  # the lanes, the texts and calls


def test_pictures_have_no_style_of_their_own(page):
    shown = page.read_text().partition("<body>")[2].partition("<script")[0]
    assert shown.count("<svg") > 2 and " style=" not in shown
    assert "Losses of both runs" in shown and "Time by module" in shown and "Wrong rows over the steps" in shown


def test_texts_that_a_table_program_would_run_are_saved_as_texts(chromium, tmp_path):
    formula = '=cmd|"/c calc"!A1'
    rows = [{"op": formula, "verdict": "agrees", "number": -1.0, "limit": 1.0, "module": 'a,b\n"c"'}]
    page = tmp_path / "formula.html"
    page.write_text(page_of([autocompare.part_of_rows(rows, Origin())], "formula"))
    for file in chromium.downloads.glob("*"):
        file.unlink()
    chromium.open(page)
    chromium.click(".export")
    end = time.monotonic() + WAIT
    while not (files := list(chromium.downloads.glob("*.csv"))) and time.monotonic() < end:
        time.sleep(0.02)
    with files[0].open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["op"] == f"'{formula}" and row["module"] == 'a,b\n"c"' and row["error"] == "-1"


def test_the_keyboard_is_enough(chromium, page):
    keys = pytest.importorskip("selenium.webdriver.common.keys", reason="selenium is not installed").Keys
    chromium.open(page)
    body = chromium.web.find_element("css selector", "body")
    body.send_keys("/")
    assert chromium.run("return document.activeElement.type") == "search"
    grid = chromium.web.find_element("css selector", ".grid")
    grid.send_keys(keys.END)
    chromium.until("document.querySelector('.row.chosen')")
    count = int(chromium.texts("[role=status]")[0].split(" of ")[0].replace(",", ""))
    assert chromium.run("return Number(document.querySelector('.row.chosen').dataset.at)") == count - 1
    grid.send_keys(keys.HOME + keys.ARROW_DOWN)
    chromium.until("document.querySelector('.row.chosen')?.dataset.at === '1'")
    assert "torch." in chromium.texts("dl.detail dd")[1]


def test_dark_and_light(chromium, page):
    chromium.open(page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        chromium.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        seen.append(chromium.run(colour))
    chromium.click("#theme")
    seen.append(chromium.run(colour))
    assert seen[0] != seen[1] and seen[2] == seen[0]


def test_the_page_is_accessible(chromium, results, tmp_path):
    """By the rules of axe-core: names of controls, roles, order of titles; contrast in both schemes."""
    axe_module = pytest.importorskip("axe_selenium_python", reason="axe-selenium-python is not installed")
    file = tmp_path / "report.html"
    folders = [results[0] / name for name in ("OpAutoCompare", "OpMemoryCheck", "OpBlackBox", "OpTimeMeasure")]
    file.write_text(page_of(read_parts(folders), "accessible"))
    chromium.open(file)
    axe_module.Axe(chromium.web).inject()
    for scheme, options in (("light", {}), ("dark", {"runOnly": {"type": "rule", "values": ["color-contrast"]}})):
        chromium.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        report = chromium.web.execute_async_script(
            "const done = arguments[1]; axe.run(document, arguments[0]).then(done, (error) => done(String(error)))",
            options,
        )
        assert isinstance(report, dict), report
        assert [(one["id"], one["nodes"][0]["html"]) for one in report["violations"]] == []
        assert len(report["passes"]) > (0 if options else 10)


@pytest.mark.parametrize("width", [320, 400, 1280, 3840])
def test_the_page_fits_its_screen(chromium, page, width):
    chromium.open(page, width=width)
    assert chromium.run("return document.documentElement.scrollWidth") <= width


def test_the_page_prints_rows_instead_of_controls(chromium, page):
    chromium.open(page)
    shown = "return getComputedStyle(document.querySelector('{}')).display"
    assert chromium.run(shown.format(".without-script")) == "none"
    chromium.command("Emulation.setEmulatedMedia", media="print")
    assert chromium.run(shown.format(".without-script")) == "block"
    assert [chromium.run(shown.format(one)) for one in (".grid", ".tools", "nav")] == ["none"] * 3


def test_a_hundred_thousand_rows_in_a_browser(chromium, large_page):
    chromium.open(large_page)
    assert chromium.texts("[role=status]") == ["100,000 of 100,000 rows"]
    assert chromium.run("return document.querySelectorAll('.body .row').length") < 100  # those on the screen
    chromium.run("document.querySelector('.grid').scrollTop = 28 * 90_000")
    chromium.until("[...document.querySelectorAll('.body .row')].some(row => row.dataset.at === '90000')")
    assert chromium.requests() == [large_page.as_uri()]
