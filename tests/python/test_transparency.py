"""Training with the tools on gives the bits that it gives without them."""

import copy
import functools
import pickle

import pytest
import torch
from models import MODELS, OPTIMIZERS, different, train

import op_tools

LEVELS = ["torch", "aten"]


@functools.cache
def expected(model, optimizer, autocast):
    return train(model, optimizer, autocast)


class Counting(op_tools.Hook):
    """Looks at nothing, but has calls made for everything."""

    gradients = True


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_equal_with_capture_on(level, model, optimizer, autocast):
    with op_tools.OpCapture(level=level, format="container") as tool:
        result = train(model, optimizer, autocast)
    assert different(result, expected(model, optimizer, autocast)) == []
    recorded = tool.result()
    assert (recorded.lost, recorded.failure) == (0, "")
    assert sum(row.calls for row in recorded.rows) > 30
    assert level == "aten" or sum(row.backward for row in recorded.rows) > 10


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_equal_with_a_hook_that_does_nothing(level, model, autocast):
    with op_tools.HookScope(Counting(), level=level) as scope:
        result = train(model, "adam", autocast)
    assert scope.calls_seen > 30
    assert different(result, expected(model, "adam", autocast)) == []


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_equal_with_recording_on(level, model, autocast, tmp_path):
    with op_tools.OpRecord(level=level, output_dir=tmp_path) as tool:
        result = train(model, "adam", autocast)
    assert tool.result().calls > 30 and tool.result().failure == ""
    assert different(result, expected(model, "adam", autocast)) == []


@pytest.mark.parametrize("model", MODELS)
def test_training_is_bit_equal_with_several_tools_of_both_levels_on(model):
    with (
        op_tools.OpCapture(level="aten", ops="aten::mm,addmm"),
        op_tools.HookScope(Counting()) as outer,
        op_tools.OpCapture(ops=".*linear|.*relu"),
        op_tools.HookScope(op_tools.Hook(), level="aten") as inner,
    ):
        result = train(model, "sgd")
    assert outer.calls_seen > 30 and inner.calls_seen > outer.calls_seen
    assert different(result, expected(model, "sgd", False)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_equal_when_the_tool_goes_on_and_off_between_steps(level):
    tool = op_tools.OpCapture(level=level, format="container")
    tool.start()

    def toggle():
        tool.stop() if tool._depth else tool.start()

    try:
        result = train("lenet", "adam", after_step=toggle)
    finally:
        tool.stop()
    assert different(result, expected("lenet", "adam", False)) == []


@pytest.mark.parametrize("level", LEVELS)
def test_training_is_bit_equal_when_only_the_last_step_is_recorded(level):
    tool = op_tools.OpCapture(level=level, steps=[2], format="container")
    with tool:
        result = train("transformer", "sgd", after_step=tool.step)
    assert different(result, expected("transformer", "sgd", False)) == []
    assert sum(row.calls for row in tool.result().rows) > 10


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("model", MODELS)
def test_training_is_bit_equal_when_the_filter_leaves_nearly_everything_out(level, model):
    plain = train(model)
    with op_tools.HookScope(op_tools.Hook(), level=level, ops=".*linear, aten::addmm") as scope:
        narrow = train(model)
    assert different(plain, narrow) == []
    assert scope.calls_seen > 0


WRAPPERS = {  # methods in Python that call the method of the same name in C
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "split": lambda x: x.split(2, 1),
    "norm": lambda x: x.norm(),
    "stft": lambda x: x.stft(4, window=torch.ones(4), return_complex=True),
    "floordiv": lambda x: x // 2,
    "len": len,
    "repr": repr,
    "format": lambda x: f"{x.sum():.2f}",
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "unique": lambda x: x.unique(return_counts=True),
    "index": lambda x: [range(9)[i] for i in x.argmax(1)],
    "iterate": list,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_functions_that_the_filter_leaves_out_run_as_they_are(name):
    x = torch.arange(12.0).reshape(2, 6)
    plain = WRAPPERS[name](x)
    with op_tools.HookScope(op_tools.Hook(), ops=".*linear"):
        narrow = WRAPPERS[name](x)
    assert repr(narrow) == repr(plain)
