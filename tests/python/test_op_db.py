"""A handful of torch's own sample calls under every tool; tests/proofs/op_db.py does it for all operators."""

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's test code imports modules that torch itself has deprecated
    import op_db
    from _op_database import Builder, different

# An operator of each kind: views, in place, several results, random numbers, sparse inputs, lists, a Python function, no tensor.
OPERATORS = [
    "add",
    "t",
    "index_put",
    "sort",
    "nn.functional.dropout",
    "nn.functional.layer_norm",
    "cat",
    "unique_consecutive",
    "normal",
    "linalg.solve",
    "zeros",
]


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_gives_the_same_under_every_tool(name, quiet):
    tools = [(tool, level) for tool in op_db.tool_names() for level in ("torch", "aten")]
    rows = op_db.check(Builder(name, 1), tools)
    assert len(rows) == len(tools) and all(row["calls"] >= 2 for row in rows)
    assert [(row["tool"], row["level"], row["changed"]) for row in rows if row["changed"] or row["failed"]] == []


def test_the_comparison_sees_what_changes():
    builder = Builder("exp", 1)
    plain = op_db.observe(builder)

    class Wrong(op_db.DoesNothing):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result + 1e-6 if getattr(function, "__name__", "") == "exp" else result

    changed = different(plain["float32 0 forward"], op_db.observe(builder, Wrong())["float32 0 forward"])
    assert any("bits" in key for key in changed) and any("node" in key for key in changed)
