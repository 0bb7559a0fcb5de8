"""The memory of a tool does not grow with the calls: in bytes. tests/proofs/memory_bounds.py makes 100,000 of them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
import memory_bounds

import op_tools

CALLS, SIZE = 160, 1024
TENSOR = 4 * SIZE * SIZE  # bytes of a result


@pytest.mark.parametrize("tool", [name for name in memory_bounds.TOOLS if name != "none"])
def test_large_results_do_not_stay(tool):
    memory = memory_bounds.in_own_process((tool, "torch", "forward", CALLS, SIZE))
    assert memory["second"] - memory["first"] < CALLS / 2 * TENSOR / 4


@pytest.mark.parametrize("tool", ["OpOverflowCheck", "OpTimeMeasure"])
def test_what_is_noted_of_large_tensors_that_are_gone_does_not_stay(tool):
    memory = memory_bounds.in_own_process((tool, "aten", "training", CALLS, SIZE))
    assert memory["second"] - memory["first"] < CALLS / 2 * TENSOR / 4


def test_a_comparison_row_costs_a_few_hundred_bytes(tmp_path):
    import torch

    x = torch.ones(2)
    with op_tools.OpAutoCompare(ops="torch.exp", output_dir=str(tmp_path)) as tool:
        for _ in range(12_000):
            torch.exp(x)
        tool._hook.flush()
        before = memory_bounds.resident()
        result = tool.result()
        taken = memory_bounds.resident() - before
    assert (len(result.rows), result.rows_dropped, result.calls) == (10_000, 2_000, 12_000)
    assert taken < memory_bounds.MOST_OF_RESULT
    assert len((next(tmp_path.glob("**/autocompare.jsonl"))).read_text().splitlines()) == 12_000
    first, last = result.rows[0], result.rows[-1]
    assert (first.op, last.op) == ("torch.exp", "torch.exp")
    assert (first["op"], first["shape"], first["verdict"], first["bit_equal"]) == ("torch.exp", [2], "agrees", False)
