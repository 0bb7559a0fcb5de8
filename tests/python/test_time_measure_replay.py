"""run_op_from_data --sync_time_measure: warm-up, medians, spread, and the ratio to another report."""

import json
import statistics

import pytest
import torch

import op_tools
from op_tools.run_op_from_data import main


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
    of_replay = {(time["name"], time["phase"]): time["median_ms"] for time in other["times"]}
    for phase in ("forward", "backward"):
        ratio = time["torch.matmul", phase] / of_replay["torch.matmul", phase]
        row = next(line for line in text.splitlines() if line.split()[:2] == ["torch.matmul", phase])
        assert float(row.split()[-1]) == pytest.approx(ratio, abs=0.001)
    assert "torch.exp forward" in next(line for line in text.splitlines() if line.startswith("not in "))
    assert "torch.sin" in next(line for line in text.splitlines() if line.startswith("only in "))


def test_a_report_without_times_is_refused_before_anything_runs(captures, replay, tmp_path):
    report = replay(captures, "--compare", tmp_path / "missing.json")
    assert report.status == 2
    assert "missing.json" in report.err
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    report = replay(captures, "--compare", empty)
    assert report.status == 2
    assert "--sync_time_measure --json" in report.err


def test_warm_up_can_be_chosen(captures, replay):
    report = replay(captures, "--sync_time_measure", "--warm_up", 0, "--run_times", 2)
    assert all(len(call["forward_ms"]) == 2 for call in report.calls)
    assert replay(captures, "--warm_up", -1).status == 64


def test_tools_look_at_a_replay_as_at_a_program(captures):
    with op_tools.OpTimeMeasure() as times, op_tools.OpObserve() as observed:
        assert main([captures, "--acc_check", "--run_times", "3", "--quiet"]) == 0
    measured = {(row.op, row.phase): row.calls for row in times.result().rows}
    # The CPU's and the float64 runs are no calls of the program.
    assert measured == {(op, phase): 3 for op in ("torch.matmul", "torch.exp") for phase in ("forward", "backward")}
    assert {row.op for row in observed.result().rows} == {"torch.matmul", "torch.exp"}


def test_the_workers_of_jobs_are_looked_at_as_well(tmp_path):
    x = torch.randn(8, 8)
    with op_tools.OpCapture(ops="torch.mm", output_dir=str(tmp_path)) as tool:
        for _ in range(12):
            torch.mm(x, x)
    with op_tools.OpTimeMeasure() as times:
        assert main([tool.result().root, "--jobs", "4", "--quiet"]) == 0
    assert [(row.op, row.calls) for row in times.result().rows] == [("torch.mm", 12)]


def test_a_hook_of_the_users_sees_the_recorded_calls(captures):
    seen = []

    class Names(op_tools.Hook):
        gradients = True

        def after(self, call, state):
            seen.append((call.name, call.phase, call.id))

    with op_tools.HookScope(Names()):
        main([captures, "--quiet"])
    assert sorted(name + " " + phase for name, phase, _ in seen) == [
        "torch.exp backward",
        "torch.exp forward",
        "torch.matmul backward",
        "torch.matmul forward",
    ]
    assert len({number for _, _, number in seen}) == 2, "backward has the id of its forward call"
