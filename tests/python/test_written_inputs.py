"""Tensors that a call writes, though nothing but its name says so: the running statistics of batch_norm."""

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim

LEVELS = ["torch", "aten"]


def batch_norm(x, mean, variance, training=True):
    return F.batch_norm(x, mean, variance, training=training)


def instance_norm(x, mean, variance, training=True):
    return F.instance_norm(x, mean, variance, use_input_stats=training)


def statistics(device="cpu"):
    return torch.randn(4, 3, 5, 5).to(device), torch.zeros(3, device=device), torch.ones(3, device=device)


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


def mutated_of(call):
    return torch.load(call.folder / "output.pth", weights_only=True).get("mutated", {})


@pytest.mark.parametrize("function", [batch_norm, instance_norm])
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_capture_holds_the_running_statistics_after_the_call(level, device, function, captured):
    x, mean, variance = statistics(device)
    with op_tools.OpCapture(level=level, ops=f".*{function.__name__}.*") as tool:
        function(x, mean, variance)
    calls = captured(tool)
    assert calls, "nothing was captured"
    for call in calls:
        saved = list(mutated_of(call).values())
        assert len(saved) == 2, call.meta["name"]
    if function is batch_norm:
        assert torch.equal(saved[0], mean.cpu()) and torch.equal(saved[1], variance.cpu())


@pytest.mark.parametrize("level", LEVELS)
def test_in_evaluation_nothing_is_written(level, captured):
    x, mean, variance = statistics()
    with op_tools.OpCapture(level=level, ops=".*batch_norm.*") as tool:
        batch_norm(x, mean, variance, training=False)
    for call in captured(tool):
        assert mutated_of(call) == {}


@pytest.mark.parametrize("level", LEVELS)
def test_replay_compares_the_running_statistics(level, replay):
    x, mean, variance = statistics()
    with op_tools.OpCapture(level=level, ops=".*batch_norm.*") as tool:
        batch_norm(x, mean, variance)
        batch_norm(x, mean, variance, training=False)
    report = replay(tool.result().root, "--acc_check")
    assert report.status == 0, report.out
    checked = [check["what"] for call in report.calls for check in call["checks"]]
    assert sum("after the call" in what for what in checked) == 2, checked


@pytest.mark.parametrize("level", LEVELS)
def test_replay_finds_statistics_that_the_captured_call_got_wrong(level, replay):
    """The device loses the update: the saved values are the old ones."""
    x, mean, variance = statistics("sim")
    with (
        sim.fault("lost_write", ops="native_batch_norm") as fault,
        op_tools.OpCapture(level=level, ops=".*batch_norm.*") as tool,
    ):
        batch_norm(x, mean, variance)
    assert fault.hits == 1
    assert torch.equal(mean.cpu(), torch.zeros(3)), "the update is lost"
    report = replay(tool.result().root, "--acc_check")
    assert report.status == 1, report.out
    wrong = [check["what"] for call in report.calls for check in call["checks"] if check["verdict"] == "differs"]
    assert wrong and all("after the call" in what for what in wrong), report.out


@pytest.mark.parametrize("level", LEVELS)
def test_comparing_finds_a_lost_update(level):
    x, mean, variance = statistics("sim")
    with sim.fault("lost_write", ops="native_batch_norm"), op_tools.OpAutoCompare(level=level) as tool:
        batch_norm(x, mean, variance)
    wrong = tool.result().failures
    assert wrong and all("after the call" in row["what"] for row in wrong)


@pytest.mark.parametrize("function", [batch_norm, instance_norm])
@pytest.mark.parametrize("level", LEVELS)
def test_the_fallback_brings_the_statistics_back(level, function):
    x, mean, variance = statistics("sim")
    with op_tools.OpFallback(level=level, ops=f".*{function.__name__}.*"):
        function(x, mean, variance)
    expected = [tensor.cpu() for tensor in (x, torch.zeros(3), torch.ones(3))]
    function(*expected)
    assert torch.allclose(mean.cpu(), expected[1]) and torch.allclose(variance.cpu(), expected[2])
    assert not torch.equal(mean.cpu(), torch.zeros(3))


def test_the_fallback_leaves_the_statistics_alone_in_evaluation():
    x, mean, variance = statistics("sim")
    version = mean._version
    with op_tools.OpFallback(ops=".*batch_norm.*"):
        batch_norm(x, mean, variance, training=False)
    assert torch.equal(mean.cpu(), torch.zeros(3)) and mean._version == version


@pytest.mark.parametrize("name", ["add_", "__iadd__", "out", "inplace", "_foreach_add_"])
def test_forms_of_python_that_write(name, captured):
    x, y = torch.ones(3), torch.ones(3)
    calls = {
        "add_": lambda: x.add_(1),
        "__iadd__": lambda: x.__iadd__(1),
        "out": lambda: torch.add(y, 1, out=x),
        "inplace": lambda: F.relu(x, inplace=True),
        "_foreach_add_": lambda: torch._foreach_add_([x], 1.0),
    }
    with torch.inference_mode():
        x, y = torch.ones(3), torch.ones(3)  # count no versions: nothing but the form tells
        with op_tools.OpCapture() as tool:
            calls[name]()
    (call,) = captured(tool)
    (saved,) = mutated_of(call).values()
    assert torch.equal(saved, x)
