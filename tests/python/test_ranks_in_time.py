"""The times of the ranks of a run beside each other: who is named slow, in which operator, who is not judged, and why. Times are written, not
measured."""

import csv
import dataclasses
import random

import pytest
import torch

import op_tools
import op_tools.sim_device
from op_tools.__main__ import main
from op_tools._base.declared_rows import TimeRow
from op_tools._base.verdict import Verdict
from op_tools._report import summed_work
from op_tools._report.page import page_of
from op_tools._report.rank_work import Measure, Mode
from op_tools._report.ranks_in_time import State, compared
from op_tools._report.scan import read_parts
from op_tools._report.summary import verdict_of_parts
from op_tools._report.text import text_of_parts
from op_tools._report.time_by_rank import TOOL

FIELDS = [field.name for field in dataclasses.fields(TimeRow)]
TIME = "2026-01-01--00-00"
SCREEN = 25  # lines
# Operator, shapes, calls, milliseconds of a call.
STEP = (
    ("aten::mm", "[[64, 64], [64, 64]]", 100, 1.0),
    ("aten::gelu", "[[64, 64]]", 100, 0.5),
    ("aten::add.Tensor", "[[64, 64], [64, 64]]", 200, 0.2),
    ("aten::sum", "[[64, 64]]", 100, 0.3),
)


def row(op, shapes, calls, ms, *, device="cpu", shortest=None, longest=None):
    values = {
        "op": op,
        "phase": "forward",
        "shapes": shapes,
        "dtypes": "float32",
        "device": device,
        "calls": calls,
        "total_ms": calls * ms,
        "self_ms": calls * ms,
        "mean_ms": ms,
        "p50_ms": ms,
        "p99_ms": ms,
        "min_ms": ms if shortest is None else shortest,
        "max_ms": 2 * ms if longest is None else longest,
    }
    return {name: values.get(name, "") for name in FIELDS}


def write(place, rank, rows, *, mode="sync", time=TIME):
    """The files of a rank."""
    folder = place / "op_time_measure_result" / str(rank) / time
    folder.mkdir(parents=True)
    with (folder / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    if mode:
        (folder / "trace.json").write_text(
            f'{{"schemaVersion":1,"op_tools":{{"mode":"{mode}","calls":1}},"traceEvents":[]}}'
        )
    return folder


def step(*, factor=1.0, factors=None, noise=None, device="cpu", work=STEP):
    """The rows of a rank: times of all operators times `factor`, of some times their `factors`."""
    return [
        row(
            op,
            shapes,
            calls,
            ms * factor * (factors or {}).get(op, 1.0) * (noise.uniform(0.97, 1.03) if noise else 1),
            device=device,
        )
        for op, shapes, calls, ms in work
    ]


def compared_in(place):
    (run,) = compared(read_parts([place]))
    return run


def part_in(place):
    """The first of a report."""
    part = read_parts([place])[0]
    assert part.tool == TOOL
    return part


def states(run):
    return {time.rank: time.state for time in run.times}


def test_a_slow_rank_is_named_with_its_operator_in_the_first_lines(tmp_path, capsys):
    noise = random.Random(0)
    for rank in range(64):
        write(tmp_path, rank, step(factors={"aten::gelu": 3.0} if rank == 37 else None, noise=noise))
    run = compared_in(tmp_path)
    (slow,) = run.slow
    assert (slow.rank, slow.peers, slow.measure, slow.is_everywhere) == (37, 63, Measure.EACH, False)
    assert [cause.op for cause in slow.slow_in] == ["aten::gelu"]
    assert slow.slow_in[0].call_ms == pytest.approx(3 * slow.slow_in[0].peer_call_ms, rel=0.1)
    assert slow.excess_ms == pytest.approx(100, rel=0.2)
    for command in (["show", str(tmp_path)], ["report", str(tmp_path), "--text"]):
        assert main(command) == 0
        first = " ".join(" ".join(capsys.readouterr().out.splitlines()[:SCREEN]).split())
        assert (
            "rank 37 is slow: 1.4" in first
            and "most in gelu [[64, 64]] (shortest call 1.4" in first
            and "63 ranks" in first
        )


def test_time_is_no_verdict(tmp_path):
    for rank in range(4):
        write(tmp_path, rank, step(factor=3.0 if rank == 3 else 1.0))
    parts = read_parts([tmp_path])
    assert parts[0].verdict is None and not parts[0].findings
    assert [time.rank for time in compared(parts)[0].slow] == [3]
    assert verdict_of_parts(parts) is Verdict.NOT_JUDGED  # as of the times of a single rank
    assert not any(is_wrong for table in parts[0].tables for is_wrong, _ in table.marked_rows)


def test_the_page_has_the_table_of_ranks(tmp_path):
    for rank in range(12):
        write(tmp_path, rank, step(factors={"aten::mm": 2.0} if rank == 5 else None))
    page = page_of(read_parts([tmp_path]), "times")
    assert "rank 5 is slow: 1.4" in page and f"{TOOL}: Operators in which ranks are slow" in page


def test_a_rank_that_is_slow_in_everything_is_named_so(tmp_path):
    noise = random.Random(1)
    for rank in range(16):
        write(tmp_path, rank, step(factor=1.3 if rank == 4 else 1.0, noise=noise))
    (slow,) = compared_in(tmp_path).slow
    assert slow.rank == 4 and slow.is_everywhere
    assert "ms more, in all operators alike" in part_in(tmp_path).text


def test_the_ranks_of_a_slow_node_are_named_together(tmp_path):
    noise = random.Random(2)
    for rank in range(64):
        write(tmp_path, rank, step(factor=1.4 if 16 <= rank < 24 else 1.0, noise=noise))
    assert {time.rank for time in compared_in(tmp_path).slow} == set(range(16, 24))
    assert part_in(tmp_path).text.splitlines()[0] == "8 ranks are slow: ranks 16 to 23"


@pytest.mark.parametrize("seed", range(5))
def test_of_ranks_that_differ_by_noise_nobody_is_named(tmp_path, seed):
    noise = random.Random(seed)
    for rank in range(32):
        write(tmp_path, rank, step(factor=noise.gauss(1, 0.05), noise=noise))
    assert set(states(compared_in(tmp_path)).values()) == {State.USUAL}
    text = part_in(tmp_path).text
    assert "no rank of 32 is slow" in text and "from 1." in text


def test_a_difference_of_less_than_milliseconds_is_nothing(tmp_path):
    short = tuple((op, shapes, calls, ms / 1000) for op, shapes, calls, ms in STEP)
    for rank in range(8):
        write(tmp_path, rank, step(factor=3.0 if rank == 2 else 1.0, work=short))
    assert not compared_in(tmp_path).slow


def test_ranks_with_other_work_are_compared_with_their_like_alone(tmp_path):
    """Of a pipeline: stages of other sizes, and another number of layers. The second takes three times as long, as it should."""
    second = tuple((op, shapes.replace("64", "128"), calls, 3 * ms) for op, shapes, calls, ms in STEP)
    third = tuple((op, shapes, 2 * calls, ms) for op, shapes, calls, ms in STEP)
    stages = (STEP, second, third)
    for rank in range(24):
        write(tmp_path, rank, step(work=stages[rank // 8]))
    run = compared_in(tmp_path)
    assert set(states(run).values()) == {State.USUAL} and {time.kind for time in run.times} == {1, 2, 3}
    assert {time.peers for time in run.times} == {7} and not any(time.more_calls for time in run.times)
    assert "ranks 8 to 15, 660 ms" in part_in(tmp_path).text

    write(tmp_path / "slow", 0, step())
    for rank in range(1, 24):
        write(tmp_path / "slow", rank, step(work=stages[rank // 8], factors={"aten::sum": 4.0} if rank == 9 else None))
    (slow,) = compared_in(tmp_path / "slow").slow
    assert slow.rank == 9 and slow.peers == 7 and [cause.shapes for cause in slow.slow_in] == ["[[128, 128]]"]


def test_a_rank_with_more_calls_has_more_work_and_is_not_slow(tmp_path):
    more = tuple((op, shapes, 180 if op == "aten::mm" else calls, ms) for op, shapes, calls, ms in STEP)
    for rank in range(16):
        write(tmp_path, rank, step(work=more if rank == 5 else STEP))
    run = compared_in(tmp_path)
    assert not run.slow
    (busy,) = [time for time in run.times if time.more_calls]
    assert busy.rank == 5 and [(row.op, row.calls, row.peer_calls) for row in busy.more_calls] == [
        ("aten::mm", 180, 100)
    ]
    assert busy.more_calls[0].excess_ms == pytest.approx(80)
    assert "rank 5 has more work: 1.8 times as many calls of mm (180, others 100), 80 ms" in part_in(tmp_path).text


def test_a_rank_with_operators_of_its_own_is_judged_by_the_others(tmp_path):
    """As rank 0, which prints and saves."""
    own = (("aten::topk", "[[64, 64]]", 100, 1.0),)
    for rank in range(8):
        factors = {"aten::mm": 2.0} if rank == 0 else None
        write(tmp_path, rank, step(work=STEP + own if rank == 0 else STEP, factors=factors))
    run = compared_in(tmp_path)
    (slow,) = run.slow
    assert slow.rank == 0 and slow.peers == 7 and [cause.op for cause in slow.slow_in] == ["aten::mm"]
    assert [row.op for row in slow.more_calls] == ["aten::topk"]
    assert "rank 0 has more work: calls that others do not make: topk (100), 100 ms" in part_in(tmp_path).text


@pytest.mark.parametrize(
    "op", ["c10d::allreduce_", "_c10d_functional::wait_tensor", "torch.distributed.distributed_c10d.all_reduce"]
)
def test_the_time_of_collectives_is_a_column_of_its_own(tmp_path, op):
    """The rank that waits is not slow; the slow rank waits least."""
    for rank in range(8):
        wait = row(op, "[[64]]", 100, 0.1 if rank == 6 else 2.0)
        write(tmp_path, rank, [*step(factor=1.5 if rank == 6 else 1.0), wait])
    run = compared_in(tmp_path)
    assert [time.rank for time in run.slow] == [6]
    waits = {time.rank: time.work.waits_ms for time in run.times}
    assert waits[6] == pytest.approx(10) and waits[0] == pytest.approx(200)
    table = part_in(tmp_path).tables[0]
    assert [column.title for column in table.columns][5] == "collectives ms"
    assert table.first_rows(1)[0][1][:2] == (6, "slow") and table.first_rows(1)[0][1][5] == 10


def test_a_rank_that_is_slow_in_some_calls(tmp_path):
    """Its shortest calls are those of the others. A single long call, as the first of a process, names nobody."""
    for rank in range(8):
        rows = step()
        if rank == 1:
            rows = [row(op, shapes, calls, 2 * ms, shortest=ms, longest=8 * ms) for op, shapes, calls, ms in STEP]
        elif rank == 2:
            rows[0] = row(*STEP[0][:3], 6.0, shortest=1.0, longest=500.0)
        write(tmp_path, rank, rows)
    (slow,) = compared_in(tmp_path).slow
    assert slow.rank == 1 and slow.measure is Measure.SOME
    assert "rank 1 is slow, in some of its calls" in part_in(tmp_path).text


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_two_ranks_have_a_ratio_and_no_culprit(tmp_path, factor):
    write(tmp_path, 0, step())
    write(tmp_path, 1, step(factors={"aten::mm": factor}))
    run = compared_in(tmp_path)
    assert set(states(run).values()) == {State.OF_TWO} and not run.slow
    text = part_in(tmp_path).text
    assert "which of two ranks is usual nobody knows" in text and "is slow" not in text
    assert ("rank 1 takes 1.45 times the time of rank 0, 100 ms more, most in mm" in text) == (factor > 1)


def test_a_single_rank_is_compared_with_nobody(tmp_path):
    write(tmp_path, 0, step())
    parts = read_parts([tmp_path])
    assert [part.tool for part in parts] == ["OpTimeMeasure"] and compared(parts) == []


@pytest.mark.parametrize(
    ("mode", "state"), [("host", State.ISSUED), ("", State.UNKNOWN), ("sync", State.SLOW), ("event", State.SLOW)]
)
def test_times_that_do_not_measure_the_device_name_nobody(tmp_path, mode, state):
    for rank in range(4):
        write(tmp_path, rank, step(factor=3.0 if rank == 3 else 1.0, device=f"sim:{rank}"), mode=mode)
    run = compared_in(tmp_path)
    assert states(run)[3] is state
    part = part_in(tmp_path)
    why = {State.ISSUED: "mode host does not measure the device", State.UNKNOWN: "the mode is not known"}
    if state in why:
        assert not part.text and part.origin.gaps[0].startswith("ranks 0 to 3: not judged: " + why[state])
        assert "not judged: " + why[state] in " ".join(text_of_parts([part]).split())
    else:
        assert not part.origin.gaps


def test_on_the_cpu_the_mode_does_not_matter(tmp_path):
    for rank in range(4):
        write(tmp_path, rank, step(factor=3.0 if rank == 3 else 1.0), mode="host")
    assert [time.rank for time in compared_in(tmp_path).slow] == [3]


@pytest.mark.parametrize(("mode", "known"), [("sync", Mode.MEASURED), ("host", Mode.ISSUED)])
def test_the_files_of_the_tool_say_how_it_measured(tmp_path, monkeypatch, mode, known):
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with op_tools.OpTimeMeasure(output_dir=str(tmp_path), mode=mode, lines=False, level="aten"):
            torch.ones(8, device="sim") + 1
    run = compared_in(tmp_path)
    assert {time.rank: time.work.mode for time in run.times} == {0: known, 1: known}


def test_a_rank_without_times_is_said(tmp_path):
    for rank in range(6):
        folder = write(tmp_path, rank, step())
        if rank in (2, 5):
            (folder / "summary.csv").unlink()
        if rank == 3:
            (folder / "summary.csv").unlink()
            (folder / "trace.json").unlink()
            folder.rmdir()
            folder.parent.rmdir()
    assert compared_in(tmp_path).missing == [2, 3, 5]
    assert "ranks 2, 3, 5: no times here" in part_in(tmp_path).origin.gaps


def test_ranks_without_common_work_are_not_judged(tmp_path):
    for rank in range(5):
        sizes = tuple((op, shapes.replace("64", str(100 + rank)), calls, ms) for op, shapes, calls, ms in STEP)
        write(tmp_path, rank, step(work=sizes))
    assert set(states(compared_in(tmp_path)).values()) == {State.OTHER_WORK}
    part = part_in(tmp_path)
    assert not part.text and part.origin.gaps == [
        "ranks 0 to 4: not judged: no few other ranks have the same operators on the same shapes"
    ]


def test_few_calls_are_not_judged(tmp_path):
    for rank in range(4):
        few = tuple((op, shapes, 2, ms) for op, shapes, _, ms in STEP)
        write(tmp_path, rank, step(work=few, factor=30.0 if rank == 1 else 1.0))
    assert set(states(compared_in(tmp_path)).values()) == {State.FEW_CALLS}


def test_each_run_of_a_folder_is_compared_with_its_like(tmp_path):
    """The eleventh run of a minute comes after the second."""
    for rank in range(4):
        for number in range(1, 12):
            slow = rank == 3 and number == 10
            time = TIME if number == 1 else f"{TIME}-{number}"
            write(tmp_path, rank, step(factor=2.0 if slow else 1.0), time=time)
    parts = read_parts([tmp_path])
    assert {run.number: [time.rank for time in run.slow] for run in compared(parts)} == {
        **{number: [] for number in range(1, 12)},
        10: [3],
    }
    shown = [part for part in parts if part.tool == TOOL]
    assert [dict(part.facts)["run"] for part in shown] == ["10 of 11", "11 of 11"]


DAMAGED = (
    "",
    "nan",
    "inf",
    "-1",
    "1e308",
    "-inf",
    "1e-320",
    "x",
    "\0",
    "99999999999999999999999",
    "é" * 50,
    '"',
    "1e12",
)


@pytest.mark.parametrize("seed", range(10))
def test_garbage_in_a_file_stops_nothing(tmp_path, seed):
    choice = random.Random(seed)
    for rank in range(6):
        folder = write(tmp_path, rank, step(factor=2.0 if rank == 1 else 1.0))
        if rank != 4:
            continue
        file = folder / "summary.csv"
        rows = step()
        for _ in range(20):
            choice.choice(rows)[choice.choice(FIELDS)] = choice.choice(DAMAGED)
        with file.open("w", newline="") as content:
            writer = csv.DictWriter(content, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
        data = bytearray(file.read_bytes())
        for _ in range(seed):
            data[choice.randrange(len(data))] = choice.randrange(256)
        file.write_bytes(bytes(data))
        (folder / "trace.json").write_bytes(choice.randbytes(100))
    run = compared_in(tmp_path)
    assert states(run)[1] is State.SLOW and states(run)[0] is State.USUAL
    assert text_of_parts(read_parts([tmp_path])) and page_of(read_parts([tmp_path]), "garbage")


def test_a_rank_has_a_limit_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(summed_work, "_MOST_ROWS", 3)
    for rank in range(4):
        write(tmp_path, rank, step(factor=2.0 if rank == 2 else 1.0))
    run = compared_in(tmp_path)
    assert [time.rank for time in run.slow] == [2] and {len(time.work.keys) for time in run.times} == {3}
