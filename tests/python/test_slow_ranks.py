"""The report over OpTimeMeasure's results of several ranks: which of them is slow, and in which operator."""

import csv
import random

import pytest

import op_tools  # noqa: F401  (the core that the report asks)
from op_tools._report.scan import read_parts
from op_tools._report.slow_ranks import TITLE

OPS = {"aten::mm": 2.0, "aten::add.Tensor": 0.2, "aten::native_layer_norm": 0.5, "aten::gelu": 0.3}


def write_ranks(folder, count, *, seed=1, calls=20, change=lambda rank, op: 1.0, calls_of=lambda rank: None):
    """Each rank's median of an operator is off by 2 % at random, and its sum has a first call that takes long."""
    draw = random.Random(seed)
    for rank in range(count):
        run = folder / "op_time_measure_result" / str(rank) / "2026-01-01--00-00"
        run.mkdir(parents=True)
        with (run / "summary.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerow(["op", "phase", "shapes", "dtypes", "device", "calls", "self_ms", "p50_ms"])
            number = calls_of(rank) or calls
            for op, ms in OPS.items():
                median = ms * (1 + 0.02 * draw.uniform(-1, 1)) * change(rank, op)
                first = draw.uniform(1, 30)
                rows.writerow(
                    [op, "forward", "[[64, 64]]", "float32", "cuda:0", number, number * median + first, median]
                )
            rows.writerow(["c10d::allreduce_", "forward", "[[64]]", "float32", "cuda:0", 5, draw.uniform(1, 50), 1.0])


def of_ranks(folder):
    parts = [part for part in read_parts([folder]) if part.tables and part.tables[0].title == TITLE]
    assert len(parts) == 1 and parts[0].verdict is None
    return parts[0].text, [cells for _, cells in parts[0].tables[0].first_rows(5)]


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_slow_operator_of_a_rank_is_named(tmp_path, count, factor):
    write_ranks(tmp_path, count, change=lambda rank, op: factor if (rank, op) == (3, "aten::mm") else 1.0)
    text, rows = of_ranks(tmp_path)
    assert "rank 3 is slow" in text and text.count("is slow") == 1 and "aten::mm on [[64, 64]]" in text
    assert rows[0][0] == 3 and rows[0][5] == "aten::mm" and abs(rows[0][7] - factor) < 0.1


def test_a_rank_that_is_slow_in_everything_and_a_slow_node_are_named(tmp_path):
    write_ranks(tmp_path / "clock", 16, change=lambda rank, op: 1.2 if rank == 7 else 1.0)
    assert "rank 7 is slow: 1.2" in of_ranks(tmp_path / "clock")[0]
    write_ranks(tmp_path / "node", 64, change=lambda rank, op: 1.3 if rank // 8 == 2 else 1.0)
    text = of_ranks(tmp_path / "node")[0]
    assert all(f"rank {rank} is slow" in text for rank in range(16, 24)) and text.count("is slow") == 8


@pytest.mark.parametrize("seed", range(20))
def test_no_rank_is_named_where_all_are_alike(tmp_path, seed):
    write_ranks(tmp_path, 8 + 8 * seed, seed=1000 + seed)
    assert of_ranks(tmp_path)[0].startswith("no rank is slow: at most 1.0")


def test_ranks_with_other_calls_are_not_compared(tmp_path):
    write_ranks(tmp_path, 6, calls_of=lambda rank: 40 if rank == 5 else None)
    text = of_ranks(tmp_path)[0]
    assert "rank 5: not compared" in text and "(40 of aten::" in text and "where 5 ranks made 20)" in text
    assert "rank 5 is slow" not in text


def test_of_two_ranks_it_is_not_known_which_is_slow(tmp_path):
    write_ranks(tmp_path, 2, change=lambda rank, op: 2.0 if rank == 1 else 1.0)
    text = of_ranks(tmp_path)[0]
    assert "rank 1 takes" in text and "is not known" in text and "is slow" not in text


def test_a_single_rank_has_no_comparison(tmp_path):
    write_ranks(tmp_path, 1)
    assert all(part.tables[0].title != TITLE for part in read_parts([tmp_path]))
