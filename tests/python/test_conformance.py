"""op-tools conformance: verdicts of cases, worker processes, exceptions, golden data, results, every flag and exit status."""

import contextlib
import csv
import dataclasses
import datetime
import functools
import importlib.util
import json
import multiprocessing
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from conftest import PYTHON
from sample_cases import ADD, ADD_, MM, OUT, SIM, SOFTMAX, case, tensor

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._conformance import repeat
from op_tools._conformance.case import Case, TensorSpec
from op_tools._conformance.exceptions import read_exceptions
from op_tools._conformance.golden import Golden, GoldenJudge, GoldenWriter, write_facts
from op_tools._conformance.lists import load_cases
from op_tools._conformance.repeat import digest_of, equal_bits
from op_tools._conformance.rows import COLUMNS, RowWriter, read_rows, row_of, rows_below
from op_tools._conformance.shard_run import sampled, share_of
from op_tools._conformance.verdict import Judge
from op_tools._conformance.workers import StartError, prepare, work_through
from op_tools._report.scan import read_parts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


RANDOM = case("torch.dropout", tensor(40, 50), 0.5, True)
EMPTY = case("torch.empty", [3, 4], kwargs={"device": torch.device("meta")})
RAISES = case("torch.mm", tensor(7, 9), tensor(8, 5), variant="error")
WRONG_CALL = case("torch.mm", tensor(7, 9), tensor(8, 5))
CASES = (MM, SOFTMAX, ADD, ADD_, OUT, RANDOM, EMPTY, RAISES, WRONG_CALL)


def write_cases(path, cases=CASES):
    path.write_text("".join(one.to_json() + "\n" for one in cases))
    return path


@pytest.fixture
def listed(tmp_path):
    return str(write_cases(tmp_path / "cases.jsonl"))


def conformance(*arguments):
    return main(["conformance", *map(str, arguments)])


def statuses(folder):
    return {
        (row.case, row.phase): row.status for rows in read_rows(Path(folder) / "rows.jsonl").values() for row in rows
    }


def counts(folder):
    return json.loads((Path(folder) / "summary.json").read_text())["statuses"]


def junit(folder):
    return ElementTree.parse(Path(folder) / "junit.xml").getroot()  # noqa: S314  (our own file)


# --- Worker processes ---------------------------------------------------------------------------------------------------


def _nothing():
    pass


def _fail_to_start():
    raise ValueError("no such device here")


def _obey(order):
    if order == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order == "hang":
        time.sleep(1000)
    return order, os.environ.get("ORDER")


def test_workers_go_on_after_a_crash_and_a_hang():
    items = ["a", "crash", "b", "hang", "c", "d"]
    limits = {"hang": 0.5}
    done = work_through(
        items,
        _nothing,
        _obey,
        jobs=2,
        seconds=lambda item: limits.get(item, 60),
        environment={**os.environ, "ORDER": "x"},
    )
    outcomes = {item: (result, failure) for item, result, failure in done}
    assert {item: result for item, (result, failure) in outcomes.items() if failure is None} == {
        letter: (letter, "x") for letter in "abcd"
    }
    assert outcomes["crash"][1].kind == "crashed" and "SIGSEGV" in outcomes["crash"][1]
    assert outcomes["hang"][1].kind == "hung" and outcomes["hang"][1] == "not done after 0.5 s"


def _large_waits_for_small(item):
    """(seconds at the start, seconds at the end); the end is None where no small item ran beside a large item."""
    began = time.monotonic()
    small_item_ran = Path(os.environ["SMALL_ITEM_RAN"])
    if item[0] == "small":
        small_item_ran.touch()
    while not small_item_ran.exists():
        if time.monotonic() - began > 60:
            return began, None
        time.sleep(0.01)
    time.sleep(0.1)
    return began, time.monotonic()


def test_items_that_do_not_fit_beside_each_other_run_one_after_the_other(tmp_path):
    items = [("large", 1), ("large", 2), *(("small", number) for number in range(4))]

    def fits(item, others):
        return [item[0], *(kind for kind, _ in others)].count("large") < 2

    times_by_item = {
        item: times
        for item, times, _ in work_through(
            items,
            _nothing,
            _large_waits_for_small,
            jobs=3,
            seconds=120,
            environment={**os.environ, "SMALL_ITEM_RAN": str(tmp_path / "small_item_ran")},
            fits=fits,
        )
    }
    assert set(times_by_item) == set(items)
    first, other = sorted(times_by_item[item] for item in items[:2])
    assert first[1] is not None  # small items did not wait for both large ones
    assert first[1] <= other[0]


def test_cases_without_enough_memory_are_not_judged_and_counted(listed, monkeypatch, capsys):
    monkeypatch.setattr("op_tools._conformance.shard_run.free_bytes", lambda: 13 * 7000)
    assert RANDOM.bytes > 7000 > max(one.bytes for one in CASES if one is not RANDOM)
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "result") == 0
    assert "1 cases need more memory than the 0.0 GiB that are free: not judged" in capsys.readouterr().err
    (row,) = read_rows(Path("result/rows.jsonl"))[RANDOM.id]
    assert row.status == "not judged" and "of memory" in row.reason


def test_a_worker_that_cannot_start_is_an_error():
    with pytest.raises(StartError, match="no such device here"):
        list(work_through([1, 2], _fail_to_start, _obey, jobs=2, seconds=60))


# --- Verdicts -----------------------------------------------------------------------------------------------------------


def judged(of_case, kind=None, ops="", device="sim:0", **fault):
    judge = Judge(torch.device(device))
    if kind is None:
        return judge.rows(of_case)
    with sim.fault(kind, ops=ops, **fault):
        return judge.rows(of_case)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_right_cases_pass(device):
    for of_case in (MM, SOFTMAX, ADD, ADD_, OUT, RANDOM, RAISES):
        rows = judged(of_case, device=device)
        assert [row.status for row in rows] == ["agrees"] * len(rows), rows
        assert [row.phase for row in rows] == (["forward", "backward"] if of_case is SOFTMAX else [rows[0].phase])
    assert judged(ADD_)[0].phase == "inplace" and judged(OUT)[0].phase == "out"
    assert judged(RAISES)[0].method == "error"
    assert judged(RANDOM)[0].reference == "distribution"


def test_what_nothing_judges_says_why():
    for of_case, why in ((EMPTY, "uninitialized memory"), (WRONG_CALL, "the CPU raises as well: RuntimeError: mat1")):
        (row,) = judged(of_case)
        assert row.status == "not judged" and row.reason.startswith(why)
    (row,) = judged(case("torch.mm", tensor(7, 9), tensor(9, 5), variant="error"))
    assert (row.status, row.reason) == ("not judged", "the CPU raises no error")


@pytest.mark.parametrize(
    ("of_case", "kind", "ops", "phase", "status", "why", "blamed"),
    [
        (MM, "scale", "mm", "forward", "differs", "aten::mm: values of output", "aten::mm"),
        (
            SOFTMAX,
            "element",
            "_softmax_backward_data",
            "backward",
            "differs",
            "values of",
            "aten::_softmax_backward_data",
        ),
        (MM, "nan", "mm", "forward", "differs", "NaN or infinite", "aten::mm"),
        (MM, "strides", "mm", "forward", "differs", "strides of output", "aten::mm"),
        (OUT, "mutate_input", "mul.*", "out", "differs", "changed input", "aten::mul.out"),
        (OUT, "lost_write", "mul.*", "out", "differs", "values of", "aten::mul.out"),
        (ADD, "scale", "add.Tensor", "forward", "differs", "values of output", "aten::add.Tensor"),
        (MM, "exception", "mm", "forward", "differs", "RuntimeError: sim: aten::mm failed", "aten::mm"),
        (MM, "missing", "mm", "forward", "unsupported", "Could not run 'aten::mm'", "aten::mm"),
        (SOFTMAX, "missing", "_softmax_backward_data", "backward", "unsupported", "Could not run", None),
        (MM, "leak", "mm", "forward", "differs", "each call leaves 140 bytes", "torch.mm"),
        (MM, "late_write", "mm", "forward", "differs", "other bits in the second call", "torch.mm"),
        (
            RANDOM,
            "wrong_generator",
            "native_dropout",
            "forward",
            "differs",
            "the CPU's random generator",
            "torch.dropout",
        ),
    ],
)
def test_planted_faults_are_found_where_they_are(of_case, kind, ops, phase, status, why, blamed):
    rows = {row.phase: row for row in judged(of_case, kind, ops)}
    assert rows[phase].status == status and why in rows[phase].reason, rows[phase]
    assert blamed is None or rows[phase].blamed == blamed
    if phase == "backward":
        assert rows["forward"].status == "agrees"
    assert all(row.status == "agrees" for row in judged(ADD_, kind, ops))


@pytest.mark.parametrize(
    ("of_case", "why"),
    [
        (
            case(
                "torch.mode",
                tensor(4, 6),
                variant="out",
                kwargs={"out": (tensor(4), tensor(4, dtype="int64", values="integers 0 5"))},
            ),
            "mode only supports CPU, CUDA and XPU device type",
        ),
        (
            case("torch.Tensor.conj_physical_", tensor(4, dtype="complex64"), variant="inplace"),
            "missing kernel for sim",
        ),
    ],
)
def test_what_only_some_devices_have_is_unsupported(of_case, why):
    (row,) = judged(of_case)
    assert row.status == "unsupported" and why in row.reason, row


def test_indices_that_torch_reads_on_the_cpu_are_there():
    (row,) = judged(case("torch.tensor_split", tensor(7, 3), tensor(2, dtype="int64", values=(1, 4))))
    assert row.status == "agrees", row


def test_a_second_call_that_differs_is_found_only_where_torch_promises_the_same():
    # Below the rounding that OpAutoCompare allows, so that only a second call shows it.
    (row,) = judged(MM, "nondeterministic", "mm", scale=1 + 2e-7)
    assert row.status == "differs" and row.reason.startswith("not deterministic: result 0")


@pytest.mark.parametrize(
    ("held", "leaked"),
    [
        ([0, 100, 200, 300, 300, 400, 500], 100),  # a run frees memory of an earlier call
        ([0, 100, 100, 100], 0),
        ([0, 100, 200, 200, 200, 200, 200, 200, 200], 0),
        ([0, 0], 0),
    ],
)
def test_memory_that_is_freed_meanwhile_hides_no_leak(monkeypatch, held, leaked):
    left = iter(held)
    monkeypatch.setattr(repeat, "allocated", lambda device: next(left))
    assert repeat.first_and_leak(lambda: "first", torch.device("cpu")) == ("first", leaked)


def test_a_wrong_forward_is_blamed_for_the_backward_too():
    forward, backward = judged(SOFTMAX, "scale", "_softmax")
    assert forward.blamed == backward.blamed == "aten::_softmax"
    assert backward.reason.startswith("after the wrong result of the call")


def test_an_error_that_is_missing_is_found():
    calls_that_raise_on_the_cpu_only = case(
        "torch.linalg.cholesky", tensor(3, 3, values="uniform -2 -1"), variant="error"
    )
    (row,) = judged(calls_that_raise_on_the_cpu_only)
    assert row.status == "agrees" and row.expected.startswith("_LinAlgError")
    (row,) = judged(RAISES, "missing", "mm")  # says nothing of the error that is due
    assert row.status == "unsupported"


def test_one_phase_and_times():
    rows = Judge(torch.device("cpu"), phase="backward", timed=True).rows(SOFTMAX)
    assert [row.phase for row in rows] == ["backward"]
    (row,) = Judge(torch.device("cpu"), timed=True).rows(MM)
    assert 0 < row.median < 10


# --- Exceptions ---------------------------------------------------------------------------------------------------------

ENTRY = {"op": r"torch\.mm", "expect": "fail", "reason": "driver 24.1"}
TODAY = datetime.date(2026, 11, 23)


def exceptions(path, *entries, today=TODAY):
    path.write_text(json.dumps({"exception": list(entries)}))
    return read_exceptions(path, today)


def applied(known, of_case, **row):
    changed = row_of(of_case, **row)
    known.apply(of_case, changed)
    return changed.status, changed.reason


def test_an_exception_changes_what_a_failure_means(tmp_path):
    path = tmp_path / "known.json"
    known = exceptions(path, {**ENTRY, "dtype": ["float16", "float32"], "shape": "rank == 2 and elements > 40"})
    failed = {"status": "differs", "reason": "rmse"}
    assert applied(known, MM, **failed) == ("expected", "driver 24.1 (differs: rmse)")
    assert applied(known, MM, status="crashed", reason="x")[0] == "expected"
    assert applied(known, MM, status="unsupported", reason="x")[0] == "unsupported"
    assert applied(known, MM) == ("unexpected agreement", f"{path}: exception 1 is not needed: driver 24.1")
    assert applied(known, ADD, **failed)[0] == "differs"
    for key, other in (("dtype", "float64"), ("shape", "rank == 3"), ("shape", "smallest < 5"), ("phase", "backward")):
        assert applied(exceptions(path, {**ENTRY, key: other}), MM, **failed)[0] == "differs", (key, other)
    missing = exceptions(path, {**ENTRY, "expect": "unsupported"})
    assert applied(missing, MM, status="unsupported", reason="x")[0] == "expected"
    assert applied(missing, MM, **failed)[0] == "differs"
    assert missing.not_met() == []
    assert exceptions(path, ENTRY).not_met() == [f"{path}: exception 1"]


def test_an_exception_ends(tmp_path):
    path = tmp_path / "known.json"
    entry = {**ENTRY, "until": "2026-11-22"}
    status, reason = applied(exceptions(path, entry), MM, status="differs", reason="rmse")
    assert status == "differs" and reason == f"{path}: exception 1 ended on 2026-11-22: driver 24.1. rmse"
    assert applied(exceptions(path, {**entry, "expect": "unsupported"}), MM, status="unsupported")[0] == "differs"
    day_before = datetime.date(2026, 11, 22)
    assert applied(exceptions(path, entry, today=day_before), MM, status="differs")[0] == "expected"
    slow = exceptions(path, {**ENTRY, "expect": "slow"})
    assert slow.may_be_slow(MM) and not slow.may_be_slow(ADD)
    assert not exceptions(path, {**entry, "expect": "slow"}).may_be_slow(MM)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"expect": "fail", "reason": "x"}, "op is missing"),
        ({**ENTRY, "reason": " "}, "reason is missing"),
        ({**ENTRY, "expect": "skip"}, "expect: 'skip' is not allowed; give fail, unsupported or slow"),
        ({**ENTRY, "phase": "sideways"}, "phase: 'sideways' is not allowed"),
        ({**ENTRY, "tolerance": 1}, "unknown 'tolerance'"),
        ({**ENTRY, "op": "("}, "is no regular expression"),
        ({**ENTRY, "dtype": 3}, "dtype is 3; give str or list"),
        ({**ENTRY, "shape": "rank = 3"}, "give conditions on rank, elements"),
        ({**ENTRY, "shape": "__import__('os') > 3"}, "give conditions on"),
        ({**ENTRY, "until": "soon"}, "until is 'soon'; give a day"),
        ("torch.mm", "is no object with op, "),
    ],
)
def test_a_wrong_exception_is_named(tmp_path, entry, why):
    with pytest.raises(op_tools.Error, match=re.escape("exception 1: ")) as error:
        exceptions(tmp_path / "known.json", entry)
    assert why in str(error.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python has no TOML")
def test_exceptions_in_toml_and_yaml(tmp_path):
    toml = tmp_path / "known.toml"
    toml.write_text("[[exception]]\nop = 'torch\\.mm'\nexpect = 'fail'\nreason = 'r'\nuntil = 2026-11-23\n")
    assert applied(read_exceptions(toml, TODAY), MM, status="differs")[0] == "expected"
    text = "exception:\n- op: torch.mm\n  expect: fail\n  reason: r\n  until: 2026-11-23\n"
    (tmp_path / "known.yaml").write_text(text)
    if importlib.util.find_spec("yaml"):
        assert applied(read_exceptions(tmp_path / "known.yaml", TODAY), MM, status="differs")[0] == "expected"
    else:
        with pytest.raises(op_tools.Error, match="YAML needs a library: pip install pyyaml"):
            read_exceptions(tmp_path / "known.yaml")
    for name, content in (("a.toml", "x ="), ("a.yaml", "a: [1"), ("a.json", "{"), ("b.json", "[]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(op_tools.Error, match=re.escape(str(tmp_path / name))):
            read_exceptions(tmp_path / name)


# --- Shares and files ---------------------------------------------------------------------------------------------------


def test_shards_have_all_cases_once_and_about_the_same_cost():
    cases = [case("torch.add", tensor(10 ** (n % 6)), n) for n in range(60)]
    parts = [share_of(cases, number, 4) for number in range(4)]
    assert sorted(one.id for part in parts for one in part) == sorted(one.id for one in cases)
    loads = [sum(one.bytes + 200_000 for one in part) for part in parts]
    assert max(loads) < 1.3 * min(loads)


def test_a_sample_is_spread_over_the_operators():
    cases = [case("torch.add", tensor(3), n) for n in range(50)] + [case("torch.mul", tensor(3), 1), MM]
    chosen = sampled(cases, 4)
    assert {one.op for one in chosen} == {"torch.add", "torch.mul", "torch.mm"}
    assert len(chosen) == 4 and chosen == sampled(list(reversed(cases)), 4)[::-1]


def test_a_torn_line_is_run_again_and_a_foreign_one_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    writer = RowWriter(path)
    writer.write([row_of(MM)])
    writer.write([row_of(ADD)])
    writer.close()
    path.write_bytes(path.read_bytes()[:-20])
    assert list(read_rows(path)) == [MM.id]
    writer = RowWriter(path)
    writer.write([row_of(OUT)])
    writer.close()
    assert list(read_rows(path)) == [MM.id, OUT.id]
    for foreign in ('[{"case": 3}]', "[]", "3", '[{"case": "a", "no": 1}]'):
        path.write_text(foreign + "\n")
        with pytest.raises(op_tools.Error, match=re.escape(f"{path}:1: is no row")):
            read_rows(path)


def test_of_a_case_that_two_files_have_the_worse_rows_count(tmp_path):
    for name, statuses in {"rows.jsonl": ("agrees", "differs"), "rows.1-of-2.jsonl": ("differs", "agrees")}.items():
        writer = RowWriter(tmp_path / name)
        writer.write([row_of(MM, status=statuses[0])])
        writer.write([row_of(ADD, status="agrees")])
        writer.write([row_of(MM, status=statuses[1])])
        writer.close()
        assert [row.status for row in read_rows(tmp_path / name)[MM.id]] == ["differs"]
        assert {case: row.status for case, (row,) in rows_below(tmp_path).items()} == {
            MM.id: "differs",
            ADD.id: "agrees",
        }


# --- The command --------------------------------------------------------------------------------------------------------


def test_a_device_that_is_right(listed, capsys):
    assert conformance("run", *SIM, "--list", listed, "-o", "result", "--time") == 0
    assert "7 of 7 judged cases right; 2 not judged" in capsys.readouterr().err
    assert counts("result") == {"agrees": 7, "not judged": 2}
    rows = list(csv.reader(Path("result/cases.csv").read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 11
    assert ",".join(COLUMNS) == (
        "case,source,op,overload,dtype,layout,phase,status,method,error,limit,reference,index,got,expected,reason,seconds,worker"
    )
    assert len(Path("result/error_report.csv").read_text().splitlines()) == 1
    suite = junit("result")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("10", "0", "2")
    card = Path("result/scorecard.md").read_text()
    assert "net: 2 of 2 cases, 100.0 % of its calls, 100.0 % of its bytes" in card
    assert "| torch.add |" in card and "| kernel |" in card
    facts = json.loads(Path("result/run.json").read_text())
    assert {"torch", "op_tools", "git", "list", "environment", "coverage", "system"} <= facts.keys()
    assert facts["coverage"]["kernel"] > 1000 and facts["self-test"] == ""
    assert facts["ids"] == [one.id for one in CASES]
    assert conformance("verify", "result") == 0
    assert "the summary follows from the rows" in capsys.readouterr().out


def test_failures_a_crash_and_a_hang_are_named_and_the_run_goes_on(listed, monkeypatch, capsys):
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=mm;crash:ops=_softmax;hang:ops=add_.*;missing:ops=mul.*")
    assert conformance("run", *SIM, "--list", listed, "-o", "result", "--timeout", 3, "--jobs", 2) == 1
    by_case = statuses("result")
    assert by_case[MM.id, "forward"] == "differs" and by_case[SOFTMAX.id, "forward"] == "crashed"
    assert by_case[ADD_.id, "inplace"] == "hung" and by_case[OUT.id, "out"] == "unsupported"
    assert by_case[ADD.id, "forward"] == by_case[RANDOM.id, "forward"] == "agrees"
    told = capsys.readouterr().err
    assert f"{SOFTMAX.id}: its process was ended by SIGSEGV" in told and f"{ADD_.id}: not done after 3 s" in told
    report = list(csv.DictReader(Path("result/error_report.csv").read_text().splitlines()))
    assert {row["op"] for row in report} == {"torch.mm", "torch.nn.functional.softmax", "torch.Tensor.add_"}
    suite = junit("result")
    assert suite.get("failures") == "3"
    assert "net: 0 of 2 cases, 0.0 % of its calls" in Path("result/scorecard.md").read_text()
    assert conformance("report", "result") == 1
    capsys.readouterr()

    Path("known.json").write_text(
        json.dumps(
            {
                "exception": [
                    {**ENTRY},
                    {"op": ".*softmax|.*add_", "expect": "fail", "reason": "firmware"},
                    {"op": "torch.mul", "expect": "unsupported", "reason": "not yet"},
                    {"op": "torch.add", "expect": "fail", "reason": "was mended"},
                    {"op": "torch.sub", "expect": "fail", "reason": "nothing is about it"},
                ]
            }
        )
    )
    arguments = ("--list", listed, "-o", "known", "--timeout", 3, "--device-config", "known.json")
    assert conformance("run", *SIM, *arguments) == 0
    assert counts("known") == {"expected": 4, "unexpected agreement": 1, "agrees": 2, "not judged": 2}
    assert "known.json: exception 5 is about no case of this run" in capsys.readouterr().err

    assert conformance("report", "result", "known") == 0
    told = capsys.readouterr().out
    assert "0 regressions, 0 repaired" in told
    monkeypatch.delenv("OP_TOOLS_SIM_FAULTS")
    assert conformance("run", *SIM, "--list", listed, "-o", "right") == 0
    assert conformance("report", "result", "right") == 0
    assert "4 repaired, 0 that were right are gone, 0 new cases" in capsys.readouterr().out
    assert conformance("report", "right", "result") == 1
    told = capsys.readouterr().out
    assert told.startswith("4 regressions") and MM.id in told


def test_times_of_two_results(tmp_path, capsys):
    for name, seconds in (("old", 1e-5), ("new", 3e-5)):
        folder = tmp_path / name
        folder.mkdir()
        writer = RowWriter(folder / "rows.jsonl")
        writer.write([row_of(MM, median=seconds)])
        writer.write([row_of(ADD, median=1e-5)])
        writer.close()
        facts = {"format": 1, "device": "x", "torch": "2", "list": name, "cases": 2, "self-test": ""}
        (folder / "run.json").write_text(json.dumps(facts))
    assert conformance("report", "old", "new") == 0
    printed = capsys.readouterr()
    assert "the results are of different lists" in printed.err
    lines = printed.out.split("Time, worst first:")[1].splitlines()
    assert MM.id in lines[2] and "3.00" in lines[2] and ADD.id in lines[3]


def test_a_summary_that_does_not_follow_from_its_rows(listed, capsys):
    assert conformance("run", "--device", "cpu", "--list", listed, "--fname", "mm|add", "-o", "result") == 0
    path = Path("result/summary.json")
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "statuses": {"agrees": 1000}}))
    assert conformance("verify", "result") == 1
    assert 'statuses: {"agrees": 1000} in summary.json' in capsys.readouterr().out
    path.write_text(json.dumps(told))
    rows = Path("result/rows.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[1:]))
    assert conformance("verify", "result") == 1
    assert "without rows: 0 in summary.json, 1 by the rows" in capsys.readouterr().out
    for damage in ("{", "[]", '{"format": 1}'):
        Path("result/run.json").write_text(damage)
        assert conformance("verify", "result") == 2
        assert "result/run.json" in capsys.readouterr().err


FACTS = {"format": 1, "device": "x", "torch": "2", "list": "L", "cases": 3, "self-test": ""}


def result_of_rows(folder, *rows, **facts):
    """The folder of a run over MM, ADD and OUT, with a line for each row."""
    folder = Path(folder)
    folder.mkdir()
    writer = RowWriter(folder / "rows.jsonl")
    for row in rows or (row_of(MM), row_of(ADD), row_of(OUT)):
        writer.write([row])
    writer.close()
    (folder / "run.json").write_text(json.dumps({**FACTS, "ids": [MM.id, ADD.id, OUT.id], **facts}))
    conformance("report", folder)  # its summary
    return folder


def verdict_of_page(folder):
    (part,) = read_parts([folder])
    return part.verdict.value, part.text + "".join(part.origin.gaps)


@pytest.mark.parametrize("rest", ["a line", "half a line", "nothing", "zeros", "no UTF-8", "no file"])
def test_every_reader_notices_rows_that_are_lost(rest):
    file = result_of_rows("result") / "rows.jsonl"
    assert verdict_of_page("result")[0] == "agrees" and conformance("verify", "result") == 0
    first, second, third = file.read_bytes().splitlines(keepends=True)
    content = {
        "a line": first + third,
        "half a line": first + second[:90] + b"\n" + third,
        "nothing": b"",
        "zeros": first + bytes(len(second)) + b"\n" + third,
        "no UTF-8": first + b"\xff\xfe" + second[2:] + third,
    }
    file.write_bytes(content.get(rest, b""))
    if rest == "no file":
        file.unlink()
        Path("beside").mkdir()
        result_of_rows("beside/right")
        Path("result").rename("beside/result")
        verdicts = {Path(part.origin.folder).name: part.verdict.value for part in read_parts(["beside"])}
        assert verdicts == {"right": "agrees", "result": "not judged"}
        return
    verdict, why = verdict_of_page("result")
    assert verdict == "not judged" and "have no row" in why and "summary.json does not follow" in why
    assert ("damaged" in why) == (rest in ("half a line", "zeros", "no UTF-8"))
    assert conformance("report", "result") == conformance("verify", "result") == 1
    Path("result/summary.json").unlink()
    assert conformance("report", "result") == 2 and conformance("verify", "result") == 2


def test_a_report_makes_no_summary_of_rows_that_another_summary_is_beside(capsys):
    folder = result_of_rows("result")
    told = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert conformance("report", folder) == 0  # again, of the same rows
    rows = folder / "rows.jsonl"
    rows.write_text(rows.read_text().replace('"agrees"', '"differs"', 1))
    changed = rows.read_bytes()
    capsys.readouterr()
    assert conformance("report", folder) == conformance("verify", folder) == 1
    said = capsys.readouterr()
    assert 'statuses: {"agrees": 3} in summary.json' in said.out and "result/summary.json is of other rows" in said.err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {**told, "rows.jsonl": changed}
    (folder / "summary.json").write_text("{")
    assert conformance("report", folder) == 2 and "summary.json" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    assert conformance("report", folder) == 1 and (folder / "summary.json").exists()


def test_the_page_is_made_of_the_rows_and_not_of_the_summary_beside_them():
    result_of_rows("right")
    result_of_rows("wrong", row_of(MM), row_of(ADD, status="differs"), row_of(OUT))
    Path("right/rows.jsonl").write_bytes(Path("wrong/rows.jsonl").read_bytes())
    assert verdict_of_page("right")[0] == "differs"
    for damage in ("", "{", "gone"):
        Path("right/run.json").unlink() if damage == "gone" else Path("right/run.json").write_text(damage)
        assert verdict_of_page("right")[0] == "differs"  # the rows say so
        Path("wrong/run.json").write_text(damage)
    Path("right/rows.jsonl").write_text(
        "".join(f"{line}\n" for line in Path("right/rows.jsonl").read_text().split("\n")[:1])
    )
    assert verdict_of_page("right")[0] == "not judged"


@pytest.mark.parametrize("rows", [(MM, RANDOM, EMPTY), (MM, ADD, OUT, RANDOM), (MM, ADD, RANDOM, EMPTY)])
def test_cases_of_another_list_stand_in_for_none(rows, capsys):
    folder = result_of_rows("result", *map(row_of, rows))
    capsys.readouterr()
    assert conformance("report", folder) == conformance("verify", folder) == 2
    told = capsys.readouterr().out
    listed = {MM.id, ADD.id, OUT.id} & {one.id for one in rows}
    assert (
        f"x: {len(listed)} of {len(listed)} judged cases right" in told
        and f"of another list, not counted: {RANDOM.id}" in told
    )
    assert ("were not run" in told) == (len(listed) < 3)
    verdict, why = verdict_of_page(folder)
    assert verdict == "not judged" and RANDOM.id in why


def test_a_result_of_a_version_that_wrote_no_ids_is_read(capsys):
    folder = result_of_rows("result", ids=None)
    assert conformance("report", folder) == conformance("verify", folder) == 0
    assert verdict_of_page(folder)[0] == "agrees"
    more = result_of_rows("more", row_of(MM), row_of(ADD), row_of(OUT), row_of(RANDOM), ids=None)
    assert conformance("report", more) == 2 and "1 of the 4 that have rows" in capsys.readouterr().out
    (folder / "run.json").write_text(json.dumps({**FACTS, "cases": 4}))
    (folder / "summary.json").unlink()
    assert conformance("report", folder) == 2


def test_a_torn_line_whose_case_was_run_again_is_no_gap():
    folder = result_of_rows("result")
    file = folder / "rows.jsonl"
    for torn in (40, 90):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(lines[0] + lines[1][:torn] + b"\n" + b"".join(lines[1:]))
    assert conformance("verify", folder) == 0 and verdict_of_page(folder)[0] == "agrees"


def test_two_results_are_compared_only_where_each_is_judged(capsys):
    result_of_rows("right")
    result_of_rows("killed", row_of(MM))
    result_of_rows("void", row_of(MM, status="differs"), **{"self-test": "a planted fault was not found"})
    Path("void/rows.jsonl").write_bytes(Path("right/rows.jsonl").read_bytes())
    assert conformance("report", "right", "right") == 0
    for old, new, whose in (("killed", "killed", "OLD"), ("right", "void", "NEW"), ("void", "right", "OLD")):
        capsys.readouterr()
        assert conformance("report", old, new) == 2, (old, new)
        assert f"NOT JUDGED: {whose}: " in capsys.readouterr().out
    assert conformance("report", "killed", "killed", "--allow-unseen") == 0
    result_of_rows("wrong", row_of(MM), row_of(ADD, status="differs"), row_of(OUT))
    assert conformance("report", "right", "wrong") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"op": ["a"]},
        {"error": "x"},
        {"models": [1]},
        {"models": {"net": "x"}},
        {"phase": 7},
        {"seconds": "q"},
        {"bytes": None},
    ],
)
def test_a_row_with_a_field_of_another_type_is_named(fields, capsys):
    folder = result_of_rows("result")
    with (folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps([{**dataclasses.asdict(row_of(EMPTY)), **fields}]) + "\n")
    capsys.readouterr()
    assert conformance("report", folder) == conformance("verify", folder) == main(["report", "result", "--text"]) == 2
    assert capsys.readouterr().err.count("rows.jsonl:4: is no row of op-tools conformance") == 3


@pytest.mark.parametrize(
    "facts", [{"coverage": [1]}, {"cases": True}, {"cases": -1}, {"ids": ["a"]}, {"ids": [1, 2, 3]}]
)
def test_damaged_facts_of_a_run_are_named(facts, capsys):
    folder = result_of_rows("result")
    (folder / "run.json").write_text(json.dumps({**FACTS, "ids": [MM.id, ADD.id, OUT.id], **facts}))
    assert conformance("report", folder) == conformance("verify", folder) == 2
    (name,) = facts
    assert capsys.readouterr().err.count(f"run.json: '{name}' is damaged") == 2
    assert verdict_of_page(folder)[0] == "not judged"
    assert conformance("verify", "nothing") == 2


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--fname", "mm"], {MM, RAISES, WRONG_CALL}),
        (["--model", "net"], {MM, SOFTMAX}),
        (["--filter-dtype", "float32", "float64", "--fname", "torch.*add"], {ADD}),
        (["--phase", "inplace"], {ADD_}),
        (["--phase", "out"], {OUT}),
        (["--phase", "backward"], {SOFTMAX}),
        (["--sample", "2", "--fname", "mm|add"], None),
        (["--shard", "0/2"], None),
    ],
)
def test_flags_that_select_cases(listed, flags, left):
    stage = "gen" if "--phase" in flags else "run"
    conformance(stage, "--device", "cpu", "--list", listed, "-o", "result", *flags)
    judged_cases = set(read_rows(next(Path("result").glob("rows*.jsonl"))))
    assert judged_cases == {one.id for one in left} if left is not None else 0 < len(judged_cases) < len(CASES)


def test_flags_that_select_cases_together(listed):
    flags = (
        "--fname",
        ".*(mm|add|mul)",
        "--filter-dtype",
        "int64",
        "--phase",
        "forward",
        "--model",
        "net",
        "--jobs",
        "1",
    )
    for stage in ("run", "gen"):
        assert conformance(stage, "--device", "cpu", "--list", listed, "-o", stage, *flags) == 0
        assert set(read_rows(Path(stage) / "rows.jsonl")) == {MM.id}


def test_layouts_and_dtypes_that_are_changed(tmp_path):
    image = case("torch.relu", tensor(2, 3, 4, 5))
    listed = write_cases(tmp_path / "some.jsonl", [image, ADD])
    for stage in ("run", "gen"):
        assert conformance(stage, "--device", "cpu", "--list", listed, "-o", stage, "--nhwc", "--four-bytes") == 0
        rows = [row for rows in read_rows(Path(stage) / "rows.jsonl").values() for row in rows]
        assert {(row.op, row.dtype, row.layout) for row in rows} == {
            ("torch.relu", "float32", "nhwc"),
            ("torch.add", "int32", "contiguous"),
        }


def test_shards_in_one_folder_are_one_result(listed):
    for number in range(2):
        assert conformance("run", "--device", "cpu", "--list", listed, "-o", "parts", "--shard", f"{number}/2") == 0
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "whole", "--jobs", 1) == 0
    assert Path("parts/summary.json").read_text() == Path("whole/summary.json").read_text()
    assert conformance("verify", "parts") == 0


def test_the_method(listed):
    assert (
        conformance("run", "--device", "cpu", "--list", listed, "--fname", "mm", "--method", "allclose", "-o", "r") == 0
    )
    rows = read_rows(Path("r/rows.jsonl"))
    assert rows[MM.id][0].method == "allclose"


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["run", "--device", "cpu"], 64, "-o/--output"),
        (["run", "-o", "r"], 64, "--device"),
        (["nothing"], 64, ""),
        (["run", "--device", "cpu", "-o", "r", "--shard", "2/2"], 64, "--shard"),
        (["run", "--device", "cpu", "-o", "r", "--jobs", "0"], 64, "--jobs"),
        (["run", "--device", "cpu", "-o", "r", "--timeout", "-1"], 64, "--timeout"),
        (["run", "--device", "cpu", "-o", "r", "--sample", "x"], 64, "--sample"),
        (["run", "--device", "cpu", "-o", "r", "--method", "magic"], 64, "--method"),
        (["run", "--device", "cpu", "-o", "r", "--phase", "all"], 64, "--phase"),
        (["run", "--device", "cpu", "-o", "r", "--digests"], 64, "--digests"),
        (["gen", "--device", "cpu", "-o", "r", "--golden", "g"], 64, "--golden"),
        (["gen", "--device", "cpu", "-o", "r", "--device-config", "f"], 64, "--device-config"),
        (["gen", "--device", "cpu", "-o", "r", "--time"], 64, "--time"),
        (["gen", "--device", "cpu", "-o", "r", "--method", "ulp"], 64, "--method"),
        (["gen", "--device", "cpu", "-o", "r", "--digests", "--float64"], 64, "--float64"),
        (["report", "a", "b", "c"], 64, "give a result"),
        (["run", "--device", "nonsense", "-o", "r"], 2, "--device nonsense"),
        (["run", "--device", "cpu", "--import", "no_such_backend", "-o", "r"], 2, "--import no_such_backend"),
        (["run", "--device", "cpu", "-o", "r", "--fname", "("], 64, "--fname"),
        (["run", "--device", "cpu", "-o", "r", "--fname", "no_such_function"], 2, "no case is left"),
        (["run", "--device", "cpu", "-o", "r", "--model", "no_such_model"], 64, "--model no_such_model"),
        (["run", "--device", "cpu", "-o", "r", "--filter-dtype", "float3"], 64, "--filter-dtype float3"),
        (["run", "--device", "cpu", "-o", "r", "--golden", "nowhere"], 2, "nowhere/golden.json"),
        (["run", "--device", "cpu", "-o", "r", "--device-config", "nowhere.json"], 2, "nowhere.json"),
        (["run", "--device", "cpu", "-o", "cases.jsonl/r"], 2, "-o cases.jsonl/r"),
        (["report", "nowhere"], 2, "nowhere"),
    ],
)
def test_wrong_usage_and_what_cannot_be_done(listed, capsys, arguments, status, why):
    arguments = [*arguments, "--list", listed] if arguments[0] in ("run", "gen") else arguments
    try:
        ended = conformance(*arguments)
    except SystemExit as error:
        ended = error.code
    assert ended == status and why in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["OP_TOOLS_MAX_ROWS_GB", "AUTOCOMPARE_ERROR_TOLERANCE", "OP_AUTOCOMPARE_METHOD"])
def test_a_variable_that_no_tool_takes_is_wrong_usage(variable, listed, monkeypatch, capsys):
    monkeypatch.setenv(variable, "x")
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "r") == 64
    assert capsys.readouterr().err.count(variable) == 1 and not Path("r").exists()


def test_nothing_judged_is_no_success(tmp_path, monkeypatch):
    listed = write_cases(tmp_path / "some.jsonl", [EMPTY])
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "a") == 2
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "missing:ops=mm")
    listed = write_cases(tmp_path / "some.jsonl", [MM])
    assert conformance("run", *SIM, "--list", listed, "-o", "b") == 2
    assert counts("b") == {"unsupported": 1}


def test_a_self_test_that_finds_nothing_makes_the_result_void(listed, monkeypatch, capsys):
    monkeypatch.setattr("op_tools._conformance.self_test.SelfTest.outcome", lambda _: "a planted fault was not found")
    assert conformance("run", "--device", "cpu", "--list", listed, "--fname", "mm", "-o", "result") == 2
    assert "not to be trusted: a planted fault was not found" in capsys.readouterr().err
    assert conformance("report", "result") == 2


def test_a_self_test_of_a_shard_that_finds_nothing_is_hidden_by_no_other_shard(listed, monkeypatch):
    run = ["run", "--device", "cpu", "--list", listed, "-o", "parts", "--shard"]
    with monkeypatch.context() as patch:
        patch.setattr("op_tools._conformance.self_test.SelfTest.outcome", lambda _: "a planted fault was not found")
        assert conformance(*run, "0/2") == 2
    assert conformance(*run, "1/2") == 2
    assert conformance("report", "parts") == 2


def test_the_self_test_finds_what_is_planted(monkeypatch):
    from op_tools._conformance import self_test

    assert self_test.find_trouble() == ""
    monkeypatch.setattr(self_test, "_FAULTS", (("latency_of_nothing", "mm", "mm", "differs"),))
    with pytest.raises(op_tools.Error):
        self_test.find_trouble()
    with sim.fault("scale", ops="add.*"):
        assert self_test.find_trouble().startswith("without a fault: {'torch.add'")


def test_a_result_is_not_overwritten(listed, capsys):
    run = functools.partial(conformance, "run", "--device", "cpu", "--list", listed, "-o", "result")
    assert run("--fname", "mm") == 0
    assert run("--fname", "mm") == 2
    assert "go on with it by --resume" in capsys.readouterr().err
    assert run("--fname", "add", "--resume") == 2
    assert "has a run with another list, cases" in capsys.readouterr().err
    before = Path("result/rows.jsonl").read_text()
    assert run("--fname", "mm", "--resume") == 0
    assert Path("result/rows.jsonl").read_text() == before


def command(*arguments, launcher=(), **options):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    options.setdefault("env", {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    return subprocess.Popen(
        [PYTHON, "-m", *(launcher or ()), "op_tools", "conformance", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def test_kill_9_and_resume(tmp_path):
    cases = [case("torch.add", tensor(3), number) for number in range(200)]
    listed = write_cases(tmp_path / "many.jsonl", cases)
    rows = Path("result/rows.jsonl")
    run = command("run", "--device", "cpu", "--list", listed, "-o", "result", "--jobs", 1)
    deadline = time.monotonic() + 100
    while (not rows.exists() or rows.read_text().count("\n") < 20) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.kill()
    run.communicate()
    done = len(read_rows(rows))
    assert 20 <= done < 200
    kept = rows.read_text()
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "result", "--resume") == 0
    assert rows.read_text().startswith(kept[: kept.rindex("\n")])
    assert counts("result") == {"agrees": 200} and conformance("verify", "result") == 0


def _alive(words):
    """Processes that were started with these words, and their forks."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "):
                processes.append(int(folder.name))
    return processes


@pytest.mark.parametrize("end", ["end", "kill", "kill while one hangs", "interrupt"])
def test_no_process_outlives_the_command(tmp_path, monkeypatch, end):
    """Its processes are forks of it."""
    cases = [case("torch.add", tensor(3), number) for number in range(3000 if end in ("kill", "interrupt") else 3)]
    if end == "kill while one hangs":
        monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "hang:ops=mm")
        cases.append(case("torch.mm", tensor(1, 1), tensor(1, 1)))  # the smallest comes last
    folder = tmp_path / "result"
    run = command("run", "--device", "sim", "--list", write_cases(tmp_path / "c.jsonl", cases), "-o", folder)
    deadline = time.monotonic() + 100
    rows = folder / "rows.jsonl"
    while (not rows.exists() or not rows.stat().st_size) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if end.startswith("kill"):
        assert len(_alive(str(folder))) >= 3  # the command, the process that workers are forked from, a worker
        run.kill()
    elif end == "interrupt":
        run.send_signal(signal.SIGINT)
    told = run.communicate()[0]
    assert (run.returncode == 0) == (end == "end"), told
    while _alive(str(folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _alive(str(folder)) == []


def _one_rank(rank, port, arguments, told):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    told.put((rank, main(arguments)))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_four_ranks_give_the_summary_of_one(listed):
    """As torchrun starts them, but without importing torch once more for each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prepare()
    context = multiprocessing.get_context("forkserver")
    told = context.Queue()
    arguments = ["conformance", "run", "--device", "cpu", "--list", listed, "-o", "ranks"]
    ranks = [context.Process(target=_one_rank, args=(rank, port, arguments, told)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    assert sorted(told.get(timeout=300) for _ in ranks) == [(rank, 0) for rank in range(4)]
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "one") == 0
    assert Path("ranks/summary.json").read_text() == Path("one/summary.json").read_text()
    assert len(list(Path("ranks").glob("rows*.jsonl"))) == 4
    assert conformance("verify", "ranks") == 0


def test_the_session_of_the_page_is_what_is_printed(monkeypatch, capsys):
    page = (ROOT / "docs" / "conformance.md").read_text()
    mine, known = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    Path("mine.json").write_text(mine)
    Path("known.json").write_text(known)

    def shown(name):
        return page.split(f"<!-- session: {name} -->\n```text\n")[1].split("```")[0]

    def printed(command, status):
        (line,) = re.findall(rf"`op-tools ({command}[^`]*)`", page)
        capsys.readouterr()
        assert main(line.split()) == status
        out, err = capsys.readouterr()
        return "".join(f"{one.rstrip()}\n" for one in (err or out).splitlines())

    (faults,) = re.findall(r"OP_TOOLS_SIM_FAULTS=([^`]*)`", page)
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", faults)
    assert printed("conformance run .* -o before", 1) == shown("before")
    assert shown("scorecard") in Path("before/scorecard.md").read_text()
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "missing:ops=_softmax")
    assert printed("conformance run .* -o after", 0) == shown("after")
    assert printed("conformance report before after", 0) == shown("report")


# --- Golden data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [[], ["--digests"], ["--float64"]])
def test_golden_data_of_another_device(listed, monkeypatch, kind):
    assert conformance("gen", "--device", "cpu", "--list", listed, "-o", "golden", *kind) == 0
    assert counts("golden")["agrees"] == 5  # not kept: random, uninitialized, two that raise
    assert conformance("run", *SIM, "--list", listed, "-o", "right", "--golden", "golden") == 0
    assert counts("right") == {"agrees": 7, "not judged": 2}
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=mm;element:ops=_softmax_backward_data")
    assert conformance("run", *SIM, "--list", listed, "-o", "wrong", "--golden", "golden") == 1
    failed = {key for key, status in statuses("wrong").items() if status == "differs"}
    assert failed == {(MM.id, "forward"), (SOFTMAX.id, "backward")}
    row = read_rows(Path("wrong/rows.jsonl"))[MM.id][0]
    assert row.error > row.limit > 0 and row.index and row.got != row.expected


def test_golden_data_of_the_simulated_device_judges_the_cpu_and_itself(listed, monkeypatch):
    assert conformance("gen", *SIM, "--list", listed, "-o", "golden") == 0
    for name, device in (("cpu", ("--device", "cpu")), ("sim", SIM)):
        assert conformance("run", *device, "--list", listed, "-o", name, "--golden", "golden") == 0
        assert counts(name) == {"agrees": 7, "not judged": 2}
        row = read_rows(Path(name) / "rows.jsonl")[MM.id][0]
        assert (row.reference, row.method) == ("sim, float64", "bits")
    # A result nearer to float64 than the golden result is right.
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=mm")
    assert conformance("gen", *SIM, "--list", listed, "-o", "worse") == 0
    monkeypatch.delenv("OP_TOOLS_SIM_FAULTS")
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "better", "--golden", "worse") == 0
    row = read_rows(Path("better/rows.jsonl"))[MM.id][0]
    assert row.reference == "sim, float64" and row.method != "bits" and row.error < row.limit


def golden_of(folder):
    """The file of a case, and a judge by it."""
    folder.mkdir()
    cpu = torch.device("cpu")
    (row,) = GoldenWriter(cpu, folder, "values").rows(MM)
    assert row.status == "agrees"
    write_facts(folder, "values", {"device": "cpu"})
    (path,) = folder.rglob("*.pth")
    return path, GoldenJudge(cpu, golden=Golden(folder))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("owned"),)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(pickle.dumps(Evil())),
        lambda path: torch.save({"case": MM.id, "results": [Evil()], "gradients": []}, path),
        lambda path: torch.save({"case": MM.id, "results": "none", "gradients": []}, path),
        lambda path: torch.save([1, 2], path),
        lambda path: torch.save({"case": "another", "results": [torch.ones(3)], "gradients": []}, path),
    ],
)
def test_hostile_golden_files(tmp_path, damage):
    path, judge = golden_of(tmp_path / "golden")
    damage(path)
    (row,) = judge.rows(MM)
    assert row.status == "error" and str(path) in row.reason
    assert not Path("owned").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99, "kind": "values"}', '{"format": 1, "kind": "magic"}'])
def test_hostile_golden_facts(listed, content, capsys):
    Path("golden").mkdir()
    Path("golden/golden.json").write_text(content)
    assert conformance("run", "--device", "cpu", "--list", listed, "-o", "result", "--golden", "golden") == 2
    assert "golden/golden.json" in capsys.readouterr().err


def test_golden_data_with_another_number_of_results(tmp_path):
    path, judge = golden_of(tmp_path / "golden")
    assert [row.status for row in judge.rows(MM)] == ["agrees"]
    torch.save({"case": MM.id, "results": [], "gradients": []}, path)
    (row,) = judge.rows(MM)
    assert (row.status, row.reason) == ("differs", "1 results instead of 0")


def test_a_damaged_golden_file_makes_the_run_end_with_status_2(listed, capsys):
    arguments = ("--device", "cpu", "--list", listed, "--fname", "mm|add")
    assert conformance("gen", *arguments, "-o", "golden") == 0
    for path in Path("golden/data").rglob("*.pth"):
        path.write_bytes(b"no data")
    assert conformance("run", *arguments, "-o", "result", "--golden", "golden") == 2
    assert counts("result")["error"] == 2 and "2 error" in capsys.readouterr().err


def test_a_golden_file_that_gen_wrote_and_that_is_gone_makes_the_run_end_with_status_2(listed, capsys):
    arguments = ("--device", "cpu", "--list", listed)
    assert conformance("gen", *arguments, "-o", "golden") == 0
    next(Path("golden/data").rglob("*.pth")).unlink()
    assert conformance("run", *arguments, "-o", "result", "--golden", "golden") == 2
    assert counts("result")["error"] == 1 and "1 error" in capsys.readouterr().err


def test_bits_are_compared_as_digests_are():
    row = torch.arange(1 << 20, dtype=torch.float32)  # four megabytes, which are compared in pieces
    late = row.clone()
    late[-1] = 0
    alike = [row, row.clone(), torch.stack([row, row], 1)[:, 0], torch.complex(row, -row).conj().real]
    other = [late, row.double(), row.reshape(2, -1), torch.empty(0), torch.tensor(1.0)]
    for like_row in alike:
        assert equal_bits(row, like_row) and digest_of(row) == digest_of(like_row)
    for like_row in other:
        assert not equal_bits(row, like_row) and not equal_bits(like_row, row) and digest_of(row) != digest_of(like_row)
    nan = torch.tensor([float("nan"), -0.0])
    assert equal_bits(nan, nan.clone()) and not equal_bits(nan, nan.abs())
    assert equal_bits(torch.empty(0, 3), torch.empty(0, 3)) and not equal_bits(torch.empty(0, 3), torch.empty(3, 0))
    sparse = torch.eye(3).to_sparse()
    assert equal_bits(sparse, sparse) and not equal_bits(sparse, torch.eye(3)) and not equal_bits(torch.eye(3), sparse)


def test_a_gradient_without_memory_has_a_digest_and_a_failure_of_the_suite_ends_one_case_alone(monkeypatch):
    zero = torch._efficientzerotensor(3)
    assert digest_of(zero) == digest_of(torch.zeros(3)) != digest_of(torch.ones(3))
    assert equal_bits(zero, torch.zeros(3)) and not equal_bits(zero, torch.ones(3))
    case = Case.make("mine", "torch.neg", "function", (TensorSpec((3,), "float32", values="normal"),), {})
    judge = Judge(torch.device("cpu"))
    assert [row.status for row in judge.rows(case)] == ["agrees"]

    def broken(self, case, call):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Judge, "judge", broken)
    (row,) = judge.rows(case)
    assert row.status == "error" and row.reason == "could not be judged: ZeroDivisionError: ours"


def test_an_overflow_next_to_the_largest_value_is_not_judged_by_the_cpu_alone():
    args = tuple(TensorSpec(shape, "float32", values="adversarial:boundary") for shape in ((4, 64), (64, 4)))
    extreme = Case.make("mine", "torch.mm", "function", args, {})
    (row,) = Judge(torch.device("cpu")).rows(extreme)
    assert row.status == "not judged" and "overflows in its dtype" in row.reason
    with sim.fault("nan", ops="mm"):
        (row,) = Judge(torch.device("sim")).rows(extreme)
    assert row.status == "differs"
    (row,) = Judge(torch.device("sim")).rows(extreme)
    assert row.status == "agrees"


def test_a_case_whose_result_the_operator_leaves_open_does_not_agree():
    """eig: what is beside its eigenvalues, or inside of the call, says nothing of them."""
    case = next(
        case for case in load_cases(sources=("op_db",)) if case.op == "torch.linalg.eigvals" and case.variant != "error"
    )
    judge = Judge(torch.device("sim:0"))
    with sim.fault("scale", ops="aten::linalg_eig|aten::_linalg_eigvals|aten::linalg_eigvals", scale=3.0) as fault:
        rows = judge.rows(case)
    assert fault.matched and rows[0].status != "agrees"
