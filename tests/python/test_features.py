"""apply_feature: a tool for some operators, and only where a condition says so."""

import pytest
import torch

import op_tools
import op_tools.sim_device  # before the first backward() of the process

HALF, FULL = torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3)


def seen(condition=None, **settings):
    """The dtypes of the calls of torch.add in which the feature took part."""
    with op_tools.apply_feature("torch.add", "dump_op_args", condition, detail=0, **settings) as feature:
        torch.add(HALF, HALF)
        torch.add(FULL, other=FULL, alpha=2)
        torch.mul(FULL, FULL)
    return sorted(row.inputs[0].dtype for row in feature.result().rows)


def test_without_a_condition_all_calls_of_the_operator_are_in():
    assert seen() == ["torch.float16", "torch.float32"]


def test_a_condition_of_the_call_sees_its_description():
    calls = []

    def condition(call):
        calls.append(call)
        return call.tensors[0].dtype == torch.float16

    assert seen(condition) == ["torch.float16"]
    half, full = calls
    assert (half.name, half.level, half.step) == ("torch.add", "torch", 0)
    assert half.args[0].shape == (2, 3) and half.args[0].device.type == "cpu"
    assert full.kwargs["alpha"] == 2 and full.kwargs["other"].dtype == torch.float32
    assert len(full.tensors) == 2
    with pytest.raises(AttributeError):
        half.name = "other"  # read-only
    with pytest.raises(AttributeError):
        half.args[0].shape = (1,)
    assert not any(isinstance(value, torch.Tensor) for call in calls for value in (*call.args, *call.kwargs.values()))


def test_a_condition_of_the_arguments_works_as_in_ditorch():
    def condition(a, other, **kwargs):
        return a.dtype == torch.float16 or a.dim() == 3

    assert seen(condition) == ["torch.float16"]
    assert seen(lambda *args, **kwargs: "alpha" in kwargs) == ["torch.float32"]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_tensors_description_answers_what_a_tensor_would(device):
    x = torch.ones(4, 6, dtype=torch.bfloat16, device=device, requires_grad=True).t()
    asked = []

    def condition(a):
        asked.append(a)
        return False

    with op_tools.apply_feature("torch.neg", "dump_op_args", condition, detail=0):
        torch.neg(x)
    (info,) = asked
    for name in ("shape", "dtype", "device", "layout", "requires_grad", "ndim", "is_cpu", "is_cuda"):
        assert getattr(info, name) == getattr(x, name), name
    for name in ("dim", "numel", "size", "stride", "element_size", "is_floating_point", "is_complex"):
        assert getattr(info, name)() == getattr(x, name)(), name
    assert info.size(-1) == x.size(-1) and info.stride(0) == x.stride(0)


def test_a_condition_that_raises_is_told_once_and_counts_as_no(monkeypatch, capfd):
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "error")
    op_tools._C.reload_log_level()
    assert seen(lambda call: call.nothing_of_this_name) == []
    told = capfd.readouterr().err
    assert told.count("nothing_of_this_name") == 1
    assert "the condition of OpObserve failed on torch.add" in told
    assert seen(lambda a: a.dtype == torch.float16) == []  # takes a single argument, add has two
    monkeypatch.delenv("OP_TOOLS_LOG_LEVEL")
    op_tools._C.reload_log_level()


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_fallback_runs_the_picked_calls_on_the_cpu_with_their_gradients(level):
    name = "torch.mm" if level == "torch" else "mm"
    x = torch.ones(3, 3).to("sim").requires_grad_()
    with (
        op_tools.apply_feature(name, "fallback", lambda call: call.tensors[0].shape[0] == 3, level=level) as feature,
        op_tools.sim_device.fault("scale", ops="mm", scale=2.0),
    ):
        right = torch.mm(x, x)
        wrong = torch.mm(x[:2].detach(), x.detach())
    assert torch.equal(right.cpu(), torch.full((3, 3), 3.0))
    assert not torch.equal(wrong.cpu(), torch.full((2, 3), 3.0))
    right.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((3, 3), 6.0))
    assert sum(row.calls for row in feature.result().rows) == 1


@pytest.mark.parametrize(
    ("feature", "count"),
    [
        ("op_capture", lambda result: sum(row.calls for row in result.rows)),
        ("autocompare", lambda result: result.passed > 0),
        ("measure_op_time", lambda result: sum(row.calls for row in result.rows if row.phase == "forward")),
        ("overflow_check", lambda result: result.calls),
        ("cast_dtype", lambda result: sum(row.calls for row in result.rows)),
    ],
)
def test_every_feature_takes_a_condition(feature, count, monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float16->torch.float32,torch.float32->torch.float64")

    def program(condition):
        with op_tools.apply_feature("torch.mul", feature, condition) as applied:
            torch.mul(HALF, HALF)
            torch.mul(FULL, FULL)
        return count(applied.result())

    assert program(None) == (True if feature == "autocompare" else 2)
    assert program(lambda a, b: a.dtype == torch.float16 == b.dtype) == 1
    assert program(lambda call: False) == 0


def test_backward_comes_only_with_calls_that_were_picked():
    x = torch.ones(3, requires_grad=True)
    with op_tools.apply_feature("torch.exp", "dump_op_args", lambda a: a.numel() > 2, detail=0) as feature:
        torch.exp(x).sum().backward()
        torch.exp(x[:2]).sum().backward()
    assert [(row.phase, row.calls) for row in feature.result().rows] == [("forward", 1), ("backward", 1)]


def test_several_operators_and_features_at_once_and_stop():
    first = op_tools.apply_feature(ops=["torch.add", "torch.sub"], feature="dump_op_args", detail=0)
    second = op_tools.apply_feature(ops="torch.mul", feature="overflow_check")
    torch.add(FULL, FULL)
    torch.sub(FULL, FULL)
    torch.mul(FULL, FULL)
    second.stop()
    torch.mul(FULL, FULL)
    torch.add(FULL, FULL)
    first.end()
    torch.add(FULL, FULL)
    assert first.result().calls == 3
    assert second.result().calls == 1


def test_mistakes_are_named():
    with pytest.raises(op_tools.Error, match=r"falback.*OpFallback"):
        op_tools.apply_feature("torch.add", "falback")
    with pytest.raises(op_tools.Error, match="condition_func="):
        op_tools.apply_feature("torch.add", "fallback", condition_func=3)
    with pytest.raises(TypeError, match="detale"):
        op_tools.apply_feature("torch.add", "dump_op_args", detale=3)
