"""A report of results of which a part is lost, damaged or of another version is never all right: it says which part, and why."""

import json
import shutil

import pytest
import torch
from conftest import launched
from test_report import run

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.verdict import Verdict
from op_tools._report.page import page_of
from op_tools._report.scan import read_parts
from op_tools._report.summary import verdict_of_parts


def wrong_program():
    x = torch.randn(3, 4, device="sim", generator=torch.Generator("sim").manual_seed(0))
    weight = torch.ones(4, 4, device="sim")
    for _ in range(3):
        x = torch.addmm(torch.zeros(4, device="sim"), x, weight).tanh()
        yield


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A folder with results of several tools; OpAutoCompare found something wrong."""
    place = tmp_path_factory.mktemp("wrong")
    options = {"output_dir": str(place)}
    with sim.fault("scale", ops="addmm", scale=1.5):
        run(op_tools.OpAutoCompare(**options), wrong_program())
    run(op_tools.OpOverflowCheck(**options), wrong_program())
    run(op_tools.OpTimeMeasure(**options), wrong_program())
    run(op_tools.OpObserve(**options), wrong_program())
    run(op_tools.OpInvariance(**options), wrong_program())
    kept = []
    run(op_tools.OpMemoryCheck(**options), (kept.append(torch.ones(1000) * 2) for _ in range(8)))
    return place


@pytest.fixture
def copied(wrong, tmp_path):
    return shutil.copytree(wrong, tmp_path / "copied")


def file_of(place, name):
    (file,) = place.rglob(name)
    return file


def part_of(place, tool):
    (part,) = (part for part in read_parts([place]) if part.tool == tool)
    return part


def test_files_that_lost_nothing_have_no_gap(wrong):
    parts = read_parts([wrong])
    assert not [gap for part in parts for gap in part.origin.gaps]
    told = json.loads(file_of(wrong, "autocompare.jsonl").with_name("coverage.json").read_text())
    assert told["tool"] == "OpAutoCompare" and told["ranks"] == 1
    for name in ("autocompare.jsonl", "autocompare.csv"):
        lines = file_of(wrong, name).read_text().splitlines()
        assert told["rows"][name] == len(lines) - name.endswith(".csv") > 3


NEEDED = {
    "autocompare.jsonl": "OpAutoCompare",
    "overflow.jsonl": "OpOverflowCheck",
    "memory.jsonl": "OpMemoryCheck",
    "invariance.jsonl": "OpInvariance",
    "summary.csv": "OpTimeMeasure",
    "calls.jsonl": "OpObserve",
}


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("is_link", [False, True], ids=["gone", "link"])
@pytest.mark.parametrize("with_account", [True, False], ids=["account", "killed"])
def test_a_file_of_rows_that_is_gone_is_a_gap(name, is_link, with_account, copied, tmp_path):
    file = file_of(copied, name)
    shutil.move(file, tmp_path / "elsewhere")
    if is_link:
        file.symlink_to(tmp_path / "elsewhere")
    if not with_account:
        file.with_name("coverage.json").unlink()
    part = part_of(copied, NEEDED[name])
    why = "is a symbolic link, and was not followed" if is_link else "is missing"
    assert f"{file}: {why}: its rows are not known" in part.origin.gaps
    has_leaks = name == "memory.jsonl"  # leaks.jsonl has them, too
    if part.verdict is not None:
        assert part.verdict is (Verdict.DIFFERS if has_leaks else Verdict.NOT_JUDGED)
    assert why in page_of(read_parts([copied]), "title")


@pytest.mark.parametrize("name", ["autocompare.jsonl", "memory.jsonl", "summary.csv", "calls.jsonl", "calls.csv"])
def test_a_file_that_was_cut_at_the_end_of_a_line_is_a_gap(name, wrong, copied):
    file = file_of(copied, name)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]))
    rows = len(lines) - name.endswith(".csv")
    lost = len(lines) - 2
    gaps = [gap for part in read_parts([copied]) for gap in part.origin.gaps]
    assert f"{file}: {lost:,} of {rows:,} rows are missing" in gaps


def test_wrong_rows_that_were_cut_off_leave_a_run_not_judged(copied):
    file = file_of(copied, "autocompare.jsonl")
    assert part_of(copied, "OpAutoCompare").verdict is Verdict.DIFFERS
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"differs"' not in line))
    assert part_of(copied, "OpAutoCompare").verdict is Verdict.NOT_JUDGED


def test_a_file_with_more_rows_than_the_run_wrote_is_a_gap(copied):
    file = file_of(copied, "invariance.jsonl").with_name("coverage.json")
    told = json.loads(file.read_text())
    rows = file_of(copied, "autocompare.jsonl")
    rows.write_text(rows.read_text() * 2)
    assert any("rows more than its run wrote" in gap for gap in part_of(copied, "OpAutoCompare").origin.gaps)
    assert told["tool"] == "OpInvariance"


def test_rows_of_a_backward_pass_after_the_end_are_in_the_account(tmp_path):
    x = torch.ones(4, requires_grad=True)
    with op_tools.OpAutoCompare(output_dir=str(tmp_path)) as tool:
        y = (x * 2).sum()
    y.backward()
    tool.flush()
    (part,) = read_parts([tmp_path])
    assert part.tables[0].total > 1 and part.origin.gaps == [] and part.verdict is Verdict.AGREES


def test_words_of_another_version_are_not_judged(copied):
    compared, overflown = file_of(copied, "autocompare.jsonl"), file_of(copied, "overflow.jsonl")
    compared.write_text(compared.read_text().replace('"verdict":"differs"', '"verdict":"wrong"'))
    part = part_of(copied, "OpAutoCompare")
    assert part.verdict is Verdict.NOT_JUDGED
    assert any("a verdict that this version of op_tools does not know: 'wrong'" in gap for gap in part.origin.gaps)
    overflown.write_text('{"op": "aten::x", "kind": "maker", "nan": 1}\n')
    part = part_of(copied, "OpOverflowCheck")
    assert part.verdict is Verdict.NOT_JUDGED
    assert any("a kind that this version of op_tools does not know: 'maker'" in gap for gap in part.origin.gaps)


@pytest.mark.parametrize(
    ("gaps", "reasons", "said"),
    [(["newgap"], ["the moon was in the way"], "the moon was in the way"), (["newgap"], [], "newgap")],
)
def test_gaps_of_another_version_are_gaps(gaps, reasons, said, copied):
    file = file_of(copied, "overflow.jsonl").with_name("coverage.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "gaps": gaps, "reasons": reasons}))
    part = part_of(copied, "OpOverflowCheck")
    assert part.verdict is Verdict.NOT_JUDGED and said in part.origin.gaps


@pytest.mark.parametrize(
    "changed", [{"gaps": "newgap"}, {"reasons": 3}, {"rows": []}, {"rows": {"overflow.jsonl": "3"}}]
)
def test_an_account_with_a_damaged_field_is_a_gap(changed, copied):
    file = file_of(copied, "overflow.jsonl").with_name("coverage.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    part = part_of(copied, "OpOverflowCheck")
    assert part.verdict is Verdict.NOT_JUDGED and any("is damaged" in gap for gap in part.origin.gaps)


def test_a_leak_whose_place_is_lost_is_wrong(copied):
    memory = file_of(copied, "memory.jsonl")
    leaks = memory.with_name("leaks.jsonl").read_text().splitlines()
    memory.write_text("")
    part = part_of(copied, "OpMemoryCheck")
    assert part.verdict is Verdict.DIFFERS and sum(finding.count for finding in part.findings) == len(leaks) >= 1
    assert "held by" in part.findings[0].text


@pytest.mark.parametrize(
    ("name", "content", "tool"),
    [
        ("x.oprec", b"abc", "OpRecord"),
        ("x.oprec", b"", "OpRecord"),
        ("1.blackbox", b"abc" * 1000, "OpBlackBox"),
        ("calls.zip", b"PK\3\4abc", "OpCapture"),
    ],
)
def test_a_damaged_file_hides_no_other_result(name, content, tool, copied, capsys):
    (copied / name).write_bytes(content)
    parts = {part.tool: part for part in read_parts([copied])}
    assert set(parts) >= {*NEEDED.values(), tool}
    assert parts[tool].verdict is Verdict.NOT_JUDGED
    assert any("cannot be read: " in gap and name in gap for gap in parts[tool].origin.gaps)
    assert main(["show", str(copied)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "OpAutoCompare: differs" in shown and "cannot be read: " in shown, shown
    alone = copied / "alone"
    alone.mkdir()
    shutil.move(copied / name, alone)
    assert main(["report", str(alone), "--text"]) == 2  # nothing else is there
    assert name in capsys.readouterr().err


def test_a_file_of_json_that_was_cut_is_named_where_it_is_ours(copied):
    content = {"calls": [{"checks": [], "name": "aten::mm", "path": "x", "status": "differs"}], "summary": {}}
    (copied / "replay.json").write_text(json.dumps(content)[:-5])
    (copied / "other.json").write_text('{"calls": ')
    parts = {part.tool: part for part in read_parts([copied])}
    assert parts["replay.json"].verdict is Verdict.NOT_JUDGED and "other.json" not in parts


def test_a_killed_run_of_conformance_is_not_judged(tmp_path):
    folder = tmp_path / "conformance"
    words = ["--device", "sim", "--import", "op_tools.sim_device", "--fname", "torch.mm", "-o", str(folder)]
    launched("-m", "op_tools", "conformance", "run", *words, check=False)
    (folder / "summary.json").unlink()
    (part,) = read_parts([folder])
    assert part.verdict is Verdict.NOT_JUDGED and "there is no summary.json" in part.origin.gaps[0]


PLACES = (".", "", "/", "missing/x", "file/x", "folder")


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_cannot_be_written_is_said(place, wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    run(op_tools.OpRecord(output_dir="a"), wrong_program())
    for words in (
        ["report", str(wrong), "-o", place],
        ["compare", "a", "a", "--json", place],
        ["compare", "a", "a", "--csv", place],
    ):
        if place:  # an empty word is no option there
            assert main(words) == 2, words
            assert capsys.readouterr().err.startswith("op-tools: ")


def test_show_names_all_results_beside_a_recording(wrong, copied, capsys):
    run(op_tools.OpRecord(output_dir=str(copied)), wrong_program())
    assert list(copied.glob("*.oprec"))
    assert main(["show", str(copied)]) == 0
    shown = capsys.readouterr().out
    assert "OpAutoCompare: differs" in shown and "OpRecord" in shown


def ranks(place, wrong, numbers, **account):
    """The result of OpOverflowCheck as that of ranks."""
    run_of_rank = file_of(wrong, "overflow.jsonl").parent
    for number in numbers:
        folder = shutil.copytree(run_of_rank, place / "op_overflow_check_result" / str(number) / run_of_rank.name)
        file = folder / "coverage.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **account}))
    return place


@pytest.mark.parametrize(
    ("numbers", "account", "missing"),
    [
        ([0, 1, 5], {}, "ranks 2 to 4: no results here, of 6 ranks"),
        ([0, 1], {"ranks": 4}, "ranks 2, 3: no results here, of 4 ranks"),
        ([0, 1], {"ranks": 2}, None),
        ([0, 1], {}, None),
    ],
)
def test_ranks_without_results_are_named(numbers, account, missing, wrong, tmp_path):
    place = ranks(tmp_path, wrong, numbers, **account)
    parts = read_parts([place])
    assert verdict_of_parts(parts) is (Verdict.NOT_JUDGED if missing else Verdict.AGREES)
    assert [gap for part in parts for gap in part.origin.gaps] == ([missing] if missing else [])
    of_rank = read_parts([place / "op_overflow_check_result" / "1"])  # no other rank is asked for
    assert verdict_of_parts(of_rank) is Verdict.AGREES


def test_a_rank_that_began_and_left_nothing_is_named(wrong, tmp_path):
    place = ranks(tmp_path, wrong, [0, 1])
    (place / "op_overflow_check_result" / "2").mkdir()
    assert any("rank 2: no results here" in gap for part in read_parts([place]) for gap in part.origin.gaps)


def test_show_and_report_name_calls_that_are_missing(tmp_path, capsys):
    with op_tools.OpCapture(ops="torch.(exp|sin)", format="folders", output_dir=tmp_path) as tool:
        torch.sin(torch.exp(torch.ones(3)))
    (run,) = tmp_path.glob("op_capture_result/*/*")
    assert str(run) == tool.result().root
    shutil.rmtree(run / "torch.sin")
    said = "1 of 2 saved calls are missing (1 of torch.sin): not judged"
    assert main(["show", str(tmp_path)]) == 0
    assert f"{run}: {said}" in capsys.readouterr().out
    (part,) = read_parts([tmp_path])
    assert [gap for gap in part.origin.gaps if said in gap] == part.origin.gaps
    main(["report", str(tmp_path), "--text"])
    assert said in " ".join(capsys.readouterr().out.split())
    shutil.rmtree(run / "torch.exp")
    assert main(["show", str(tmp_path)]) == 2
    assert "2 of 2 saved calls are missing" in capsys.readouterr().err
