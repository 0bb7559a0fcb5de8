"""Models of many kinds under OpAutoCompare: nothing is blamed that is right, and they train as without it.

tests/proofs/compare_models.py does the same for more steps and in more precisions.
"""

import sys
from pathlib import Path

import pytest

import op_tools
import op_tools.sim_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))

import _zoo


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("model", list(_zoo.ZOO))
def test_a_right_model_is_not_blamed_and_trains_the_same(model, device):
    plain = _zoo.train(model, device, "autocast", 1)
    for level in ("torch", "aten"):
        with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
            assert _zoo.train(model, device, "autocast", 1) == plain
        result = tool.result()
        assert result.calls > 20
        assert [(row["op"], row["what"], row["kind"], row["reason"]) for row in result.failures] == []
