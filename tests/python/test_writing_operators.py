"""Whatever a schema says that it writes: OpRecord reads that memory again after the call."""

import json
from collections import Counter
from pathlib import Path

import torch
from conftest import launched
from schema_samples import candidates, tensors_of, writing_operators

import op_tools

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "writing_operators.json"
"""Of each operator that can be called so: the number of the first candidate that the CPU accepts. `python
tests/python/schema_samples.py FILE` makes it anew."""


def calls_of_samples():
    """(name, overload, args, kwargs), new ones each time."""
    numbers = json.loads(SAMPLES.read_text())
    for overload in writing_operators():
        number = numbers.get(str(overload))
        if number is None:
            continue
        torch.manual_seed(0)
        for place, make in enumerate(candidates(overload)):
            if place == number:
                yield overload, *make()
                break


def record_samples(level, folder):
    """Reads the tensors that each call writes, and views of them, before and after the call. How many calls changed something."""
    changed = Counter()
    with op_tools.OpRecord(level=level, output_dir=folder) as tool:
        for overload, args, kwargs in calls_of_samples():
            written = [one for one in tensors_of(overload, args, kwargs) if one.layout == torch.strided]
            views = [one.view(-1) for one in written if one.is_contiguous()]
            before = [torch.clone(one) for one in (*written, *views)]
            try:
                overload(*args, **kwargs)
            except Exception:
                changed["failed"] += 1
                continue
            after = [torch.clone(one) for one in (*written, *views)]
            changed["calls"] += 1
            changed["changed"] += any(
                a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, after, strict=True)
            )
    return tool.result(), changed


def stale(path):
    """Calls of clone whose input has other statistics than their result, with the operator before each."""
    differing, last, clones = [], "", 0
    for call in op_tools.read_recording(path).calls:
        if not call.op.endswith("clone"):
            last = call.op
            continue
        entered, got = call.inputs[0][1], call.outputs[0][1]
        clones += 1
        if entered.known and entered.hash != got.hash:
            differing.append(last)
    return differing, clones


def record_others(folder):
    """A call without a schema: `map_`, which is Python's alone, and a write that torch cannot see, for the test itself."""
    with op_tools.OpRecord(output_dir=folder) as tool:
        x, y = torch.ones(3), torch.ones(3)
        torch.clone(x)
        x.map_(y, lambda one, other: one + other)
        torch.clone(x)
        unseen = y.numpy()
        torch.clone(y)
        torch.neg(x)
        unseen[:] = 5
        torch.clone(y)
    return tool.result()


PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import test_writing_operators as test
for level in ("aten", "torch"):
    result, changed = test.record_samples(level, f"{sys.argv[2]}/{level}")
    print("RESULT", test.json.dumps([level, result.failure, *test.stale(result.path), changed]))
print("RESULT", test.json.dumps(test.stale(test.record_others(sys.argv[2] + "/others").path)))
"""


def test_what_any_operator_writes_is_read_again(tmp_path):
    script = tmp_path / "sweep.py"
    script.write_text(PROGRAM)
    done = launched(script, Path(__file__).parent, tmp_path)
    results = [
        json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if line.startswith("RESULT")
    ]
    *levels, others = results
    assert [level for level, *_ in levels] == ["aten", "torch"]
    for _, failure, differing, clones, changed in levels:
        assert failure == "" and differing == []
        assert changed["calls"] == len(json.loads(SAMPLES.read_text())) and changed["changed"] > 850
        assert clones > 4 * changed["calls"]
    assert others == [["torch.neg"], 4]
