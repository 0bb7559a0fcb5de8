"""A few modules, optimizers and small operators of torch's databases under every tool; tests/proofs/torch_db.py: all."""

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's test code imports modules that torch itself has deprecated
    import op_db
    import torch_db
    from _torch_database import Modules, database, of

# An entry of each kind: parameters and buffers, random numbers, hooks on tuples, views; loops over lists, sparse;
# a Function of one's own, an operator whose kernel is Python, an operator that takes functions.
ENTRIES = [
    "module nn.BatchNorm1d",
    "module nn.FractionalMaxPool2d",
    "module nn.Linear",
    "module nn.GRUCell",
    "optimizer Adam",
    "optimizer SparseAdam",
    "function NumpySortAutogradFunction",
    "custom NumpyMulCustomOp",
    "higher invoke_quant.simple",
]
ALL_TOOLS = [("together", "torch"), ("together", "aten")]
FEW = [("looking", "torch"), ("OpCapture", "torch"), ("OpCapture", "aten"), *ALL_TOOLS]


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_gives_the_same_under_the_tools(name, quiet, build_dir):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tools = ALL_TOOLS if name.startswith("optimizer") else FEW  # the samples of an optimizer are many steps
        rows = op_db.check(of(name, 1), tools, torch_db.look)
    assert len(rows) == len(tools) and all(row["calls"] >= 1 and row["asked"] for row in rows)
    assert [(row["tool"], row["level"], row["changed"], row["failed"]) for row in rows if row["changed"]] == []
    assert [(row["tool"], row["level"], row["failed"]) for row in rows if row["failed"]] == []


def test_what_the_programs_keep_shows_every_change():
    """Each of these is a mistake that a tool could make, made by hand."""
    calls = Modules("module nn.BatchNorm1d", database()["module nn.BatchNorm1d"], 1)
    plain = op_db.observe(calls)
    assert not any(facts["error"] for facts in plain.values() if "eps" not in str(facts["error"]))

    class Wrong(op_db.DoesNothing):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") == "batch_norm":
                args[1].add_(1e-6)
            return function(*args, **(kwargs or {}))

    under = op_db.observe(calls, Wrong())
    changed = op_db.different(plain["float32 train 0 plain"], under["float32 train 0 plain"])
    assert {key.split(":")[0] for key in changed} >= {"buffers 0"} and "output 0: bits" not in changed
