"""run_op_from_data --sync_time_measure: warm-up, medians, spread, and the ratio to another report."""

import json
import statistics

import pytest
import torch

import op_tools


@pytest.fixture
def captures():
    x = torch.randn(64, 64, requires_grad=True)
    with op_tools.OpCapture(ops="torch.matmul, torch.exp") as tool:
        torch.exp(torch.matmul(x, x)).sum().backward()
    return tool.result().root


def test_medians_and_spread_of_the_runs(captures, replay):
    report = replay(captures, "--sync_time_measure", "--run_times", 5)
    assert report.status == 0
    for call in report.calls:
        for phase in ("forward_ms", "backward_ms"):
            runs = call[phase]
            assert len(runs) == 5  # the warm-up is none of them
            assert call[f"{phase}_median"] == pytest.approx(statistics.median(runs))
            first, _, third = statistics.quantiles(runs, n=4, method="inclusive")
            assert call[f"{phase}_spread"] == pytest.approx((third - first) / statistics.median(runs))
    times = {(time["name"], time["phase"]): time for time in report.json["times"]}
    assert set(times) == {(op, phase) for op in ("torch.matmul", "torch.exp") for phase in ("forward", "backward")}
    assert all(time["calls"] == 1 and time["runs"] == 5 for time in times.values())
    for word in ("operator", "median ms", "fastest ms", "spread", "torch.matmul"):
        assert word in report.out


def test_the_ratio_to_another_report(captures, replay, tmp_path):
    first = replay(captures, "--sync_time_measure", "--run_times", 3)
    other = dict(first.json)
    other["times"] = [{**time, "median_ms": time["median_ms"] * 2} for time in other["times"]]
    other["times"] = [time for time in other["times"] if time["name"] != "torch.exp"]
    other["times"].append({**other["times"][0], "name": "torch.sin"})
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))
    report = replay(captures, "--sync_time_measure", "--run_times", 3, "--compare", path)
    assert report.status == 0
    assert f"Ratio of medians to {path}" in report.out
    text = report.out[report.out.index("Ratio of medians") :]
    time = {(time["name"], time["phase"]): time["median_ms"] for time in report.json["times"]}
    there = {(time["name"], time["phase"]): time["median_ms"] for time in other["times"]}
    for phase in ("forward", "backward"):
        ratio = time["torch.matmul", phase] / there["torch.matmul", phase]
        row = next(line for line in text.splitlines() if line.split()[:2] == ["torch.matmul", phase])
        assert float(row.split()[-1]) == pytest.approx(ratio, abs=0.001)
    assert "torch.exp forward" in next(line for line in text.splitlines() if line.startswith("not in "))
    assert "torch.sin" in next(line for line in text.splitlines() if line.startswith("only in "))


def test_a_report_without_times_is_refused_before_anything_runs(captures, replay, tmp_path):
    report = replay(captures, "--compare", tmp_path / "missing.json")
    assert report.status == 64
    assert "missing.json" in report.err
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    report = replay(captures, "--compare", empty)
    assert report.status == 64
    assert "--sync_time_measure --json" in report.err


def test_warm_up_can_be_chosen(captures, replay):
    report = replay(captures, "--sync_time_measure", "--warm_up", 0, "--run_times", 2)
    assert all(len(call["forward_ms"]) == 2 for call in report.calls)
    assert replay(captures, "--warm_up", -1).status == 64
