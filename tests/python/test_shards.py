"""A replay in parts: --shard and --merge, and torchrun's ranks that share the calls."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import op_tools

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def captures(tmp_path):
    """Seven calls that agree."""
    folder = tmp_path / "captures"
    with op_tools.OpCapture(output_dir=folder, ops="torch.mul, torch.add"):
        x = torch.randn(5, requires_grad=True)
        for number in range(4):
            torch.mul(x, number).sum().backward()
        for number in range(3):
            torch.add(x, number)
    return folder


def spoil(captures, op="torch.mul"):
    """One captured output becomes another."""
    first = min(captures.rglob(f"{op}/*/output.pth"))
    saved = torch.load(first, weights_only=True)
    saved["args"][0].data.add_(1)
    torch.save(saved, first)
    return first.parent


def in_order(report):
    return [(call["path"], call["status"]) for call in report["calls"]]


def outcome(report):
    return set(in_order(report))


def test_parts_are_the_whole(captures, replay, tmp_path):
    spoil(captures)
    whole = replay(captures, "--acc_check", "--sync_time_measure")
    assert whole.status == 1
    parts = [replay(captures, "--acc_check", "--sync_time_measure", "--shard", f"{i}/3") for i in range(3)]
    assert [part.summary["calls"] for part in parts] == [3, 2, 2]
    assert sorted(part.status for part in parts) == [0, 0, 1]
    assert parts[0].summary["shard"] == [0, 3, 7]
    assert set.union(*(outcome(part.json) for part in parts)) == outcome(whole.json)

    files = []
    for number, part in enumerate(parts):
        files.append(tmp_path / f"part{number}.json")
        files[-1].write_text(json.dumps(part.json))
    merged = replay("--merge", *reversed(files))
    assert merged.status == 1
    assert in_order(merged.json) == in_order(whole.json)
    ours, theirs = ({k: v for k, v in one.summary.items() if k != "seconds"} for one in (merged, whole))
    assert ours == theirs
    assert {(time["name"], time["calls"]) for time in merged.json["times"]} == {
        (time["name"], time["calls"]) for time in whole.json["times"]
    }
    for report in (merged, whole):
        assert "7 calls in" in report.out and "1 differ" in report.out and "Differ (worst first)" in report.out
    assert whole.out.split("Differ ")[1] == merged.out.split("Differ ")[1]


def test_a_part_is_always_the_same(captures, replay):
    part, other = (replay(captures, "--shard", "1/2", "-q") for _ in range(2))
    assert [call["path"] for call in part.calls] == [call["path"] for call in other.calls]
    more = replay(captures, "--shard", "9/10", "-q")
    assert (more.status, more.calls) == (0, [])


def test_what_cannot_be_read_is_told_once(captures, replay, tmp_path):
    (captures / "calls.zip").write_bytes(b"PK\x03\x04 cut off")
    first, second = (replay(captures, "--shard", f"{i}/2", "-q") for i in range(2))
    assert (first.status, second.status) == (2, 0)
    assert len(first.json["problems"]) == 1 and second.json["problems"] == []


@pytest.mark.parametrize("wrong", ["3/3", "-1/2", "1", "a/b", "0/0", "1/2/3", " 0/2"])
def test_a_wrong_part_is_said(captures, replay, wrong):
    done = replay(captures, f"--shard={wrong}")
    assert done.status == 64
    assert f"--shard: '{wrong}' is not allowed; give I/N" in done.err


def test_parts_that_do_not_fit_are_said(captures, replay, tmp_path):
    def part(name, *arguments):
        path = tmp_path / name
        path.write_text(json.dumps(replay(captures, *arguments, "-q").json))
        return path

    first, two = part("a.json", "--shard", "0/2"), part("b.json", "--shard", "1/2")
    other, checked = part("c.json", "--shard", "1/3"), part("d.json", "--shard", "1/2", "--acc_check")
    for files, message in [
        ((first,), "part 1/2 is missing"),
        ((first, first), "the same part as"),
        ((first, other), "belongs to 3 parts"),
        ((first, checked), "was made with other options"),
    ]:
        done = replay("--merge", *files)
        assert (done.status, message in done.err) == (64, True), done.err

    def is_unreadable(path, message):
        done = replay("--merge", path)
        assert (done.status, message in done.err) == (2, True), done.err

    is_unreadable(tmp_path / "no.json", "No such file")
    is_unreadable(tmp_path, f"{tmp_path}: is no file")
    (tmp_path / "torn.json").write_text('{"summary"')
    is_unreadable(tmp_path / "torn.json", "is no report that --json wrote")
    report = json.loads(first.read_text())
    for shard in ([0, 0, 7], [2, 2, 7], [-1, 2, 7]):
        report["summary"]["shard"] = shard
        (tmp_path / "odd.json").write_text(json.dumps(report))
        is_unreadable(tmp_path / "odd.json", "is no report that --json wrote")
    assert replay("--merge", two, first).status == 0


def torchrun(*arguments, cwd):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "op_tools.run_op_from_data", *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


needs_gloo = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")


@needs_gloo
def test_ranks_share_the_calls(captures, tmp_path, replay):
    done = torchrun(captures, "--acc_check", "--json", "all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("7 calls in") == 1  # one summary
    assert "7 agree (7 bit for bit)" in done.stdout
    report = json.loads((tmp_path / "all.json").read_text())
    assert outcome(report) == outcome(replay(captures, "--acc_check").json)
    assert report["summary"]["exit_status"] == 0


@needs_gloo
def test_what_one_rank_finds_is_the_result_of_all(captures, tmp_path):
    folder = spoil(captures)
    done = torchrun(captures, "--acc_check", "-q", "--json", "all.json", cwd=tmp_path)
    assert done.returncode != 0
    assert "1 differ" in done.stdout and str(folder) in done.stdout
    # torchrun tells each rank's own status: that of the whole. It ends the other when one has failed.
    assert "exitcode  : 1" in done.stderr, done.stderr
    assert json.loads((tmp_path / "all.json").read_text())["summary"]["exit_status"] == 1


@needs_gloo
def test_wrong_usage_under_torchrun(captures, tmp_path):
    done = torchrun(captures, "--acc_chekc", cwd=tmp_path)
    assert done.returncode != 0
    assert "acc_chekc" in done.stderr
    assert "exitcode  : 64" in done.stderr
