"""compare_modules: planted faults are found in the layer that has them; right layers are not reported; nothing is changed."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import Attention, LeNet, ResNet, Rows, digits
from torch import nn
from torch.utils.checkpoint import checkpoint

import op_tools
import op_tools.sim_device as sim
from op_tools._modules.module_runs import CpuNumbers


def images(count=8):
    return digits()[0][:count]


def seeded(make):
    torch.manual_seed(3)
    return make()


@pytest.mark.parametrize("make", [LeNet, Rows, Attention, ResNet])
@pytest.mark.parametrize("training", [True, False])
def test_a_device_that_computes_right(make, training):
    model = seeded(make).train(training)
    result = op_tools.compare_modules(model, on_device="sim", inputs=images())
    assert result.ok, result.table()
    assert result.first is None
    paths = {row.module for row in result.rows if row.phase == "forward"}
    ran = {path for path, module in model.named_modules()}
    assert paths <= ran and len(paths) >= 3
    assert {row.phase for row in result.rows} == {"forward", "backward"}
    assert "no gradients" not in "".join(result.notes)
    assert "results agree" in result.table()


FAULTS = [  # model, operator as the device meets it, which call of it in a run, the module to be named, the tensor
    (LeNet, "convolution", 1, "conv2", "output"),
    (LeNet, "addmm", 0, "fc1", "output"),
    (ResNet, "native_batch_norm", 4, "4.norm2", "output"),
    (Attention, "_softmax|_scaled_dot_product.*", 0, "layer.self_attn", "output [0]"),
    (Attention, "native_layer_norm", 1, "layer.norm2", "output"),
    (LeNet, "convolution_backward", 0, "conv2", "input grad"),
    (LeNet, "convolution_backward", 1, "conv1", "weight grad"),
]


@pytest.mark.parametrize(("make", "ops", "call", "module", "what"), FAULTS)
def test_the_faulty_layer_is_named_first(make, ops, call, module, what):
    model = seeded(make).eval() if make is Attention else seeded(make)
    with sim.fault("scale", ops=ops, call=call, scale=1.01) as fault:
        result = op_tools.compare_modules(model, on_device="sim", inputs=images())
    assert fault.hits == 1
    assert not result.ok
    born = {row.module for row in result.rows if row.origin == "born"}
    assert born == {module}, result.table()
    assert (result.first.module, result.first.what) == (module, what)
    assert result.worst()[0] is result.first
    first_line = result.table().splitlines()[1]
    assert first_line.startswith(module) and "BORN HERE" in first_line
    assert f"first: {module}" in result.table()


def test_what_comes_after_the_fault_is_carried():
    model = seeded(LeNet)
    with sim.fault("scale", ops="convolution", call=0, scale=1.1):
        result = op_tools.compare_modules(model, on_device="sim", inputs=images(), gradients=False)
    origins = {row.module: row.origin for row in result.rows if row.verdict == "differs"}
    assert origins["conv1"] == "born"
    assert set(origins.values()) == {"born", "carried"}
    assert origins[""] == "carried"  # the model round it
    assert all(row.phase == "forward" for row in result.rows)


def test_two_faults_in_parts_that_do_not_feed_each_other():
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.left(x), {"right": self.right(x)}

    with sim.fault("scale", ops="addmm", call=range(2), scale=1.1) as fault:
        result = op_tools.compare_modules(seeded(Twins), on_device="sim", inputs=torch.ones(4, 8), gradients=False)
    assert fault.hits == 2
    assert [row.module for row in result.rows if row.origin == "born"] == ["left", "right"]


def test_an_error_in_a_models_own_code_is_born_in_the_model():
    with sim.fault("scale", ops="relu", call=0, scale=1.1):
        result = op_tools.compare_modules(seeded(LeNet), on_device="sim", inputs=images(), gradients=False)
    assert [row.module for row in result.rows if row.origin == "born"] == [""]


def test_the_side_on_the_cpu_is_taken_for_right():
    model = seeded(LeNet).to("sim")
    with sim.fault("scale", ops="convolution", call=1, scale=1.1):
        result = op_tools.compare_modules(model, on_device="cpu", inputs=images().to("sim"), gradients=False)
    assert result.first.module == "conv2"


class Everything(nn.Module):
    """Outputs of all forms, a module that is called several times, a module that works in place, dropout, a tensor from nowhere."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(6)
        self.pairs = Pairs()

    def forward(self, x, *, mask, scale=2.0):
        for _ in range(3):
            x = self.relu(self.shared(x))
        x = self.norm(self.drop(x)) * scale
        pair, named = self.pairs(x, x)
        return {"out": [pair[0] * mask, named["b"]], "number": 3, "nothing": None}


class Pairs(nn.Module):
    def forward(self, a, b):
        assert a is b  # as some attention asks
        return (a + b, a - 2 * b), {"b": b.exp()}


@pytest.mark.parametrize("training", [True, False])
def test_inputs_and_outputs_of_all_forms(training):
    model = seeded(Everything).train(training)
    inputs = {"x": torch.randn(16, 6, requires_grad=True), "mask": torch.rand(16, 6) > 0.3, "scale": 1.5}
    with pytest.raises(TypeError):  # the model's own
        op_tools.compare_modules(model, on_device="sim", inputs={"x": inputs["x"]})
    result = op_tools.compare_modules(model, on_device="sim", inputs=inputs)
    assert result.ok, result.table()
    shared = [row for row in result.rows if row.module == "shared" and row.what == "output"]
    assert [row.call for row in shared] == [0, 1, 2]
    assert {row.what for row in result.rows if row.module == "pairs" and row.phase == "forward"} == {
        "output [0][0]",
        "output [0][1]",
        "output [1]['b']",
    }
    assert {row.what for row in result.rows if row.module == ""} >= {"output ['out'][0]", "input grad x"}
    assert [row.what for row in result.rows if row.module == "shared" and "weight" in row.what] == ["weight grad"]


def test_a_fault_in_the_second_call_of_a_shared_module():
    model = seeded(Everything)
    inputs = {"x": torch.randn(16, 6), "mask": torch.ones(16, 6)}
    with sim.fault("scale", ops="addmm", call=1, scale=1.1):
        result = op_tools.compare_modules(model, on_device="sim", inputs=inputs)
    assert (result.first.module, result.first.call) == ("shared", 1)
    assert "shared #1" in result.table()


def test_dropout_drops_the_same_elements_on_both_sides():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout1d(0.3), nn.RReLU()).train()
    result = op_tools.compare_modules(model, on_device="sim", inputs=torch.randn(4, 8, 16))
    assert result.ok and result.rows, result.table()
    again = op_tools.compare_modules(model, on_device="sim", inputs=torch.randn(4, 8, 16), seed=5)
    assert again.ok


def test_everything_is_left_as_it_was():
    model = seeded(ResNet)
    model(images()).sum().backward()  # running statistics, gradients
    model.register_forward_hook(lambda *_: None)
    other = seeded(ResNet).to("sim")
    other.load_state_dict(model.state_dict())
    batch = images().clone().requires_grad_()

    def state():
        seen = {}
        for side, network in (("a", model), ("b", other)):
            for name, tensor in network.state_dict().items():
                seen[side, name] = tensor.cpu().clone()
            for name, parameter in network.named_parameters():
                seen[side, name, "grad"] = None if parameter.grad is None else parameter.grad.clone()
                seen[side, name, "wants"] = parameter.requires_grad
            for name, module in network.named_modules():
                seen[side, name, "mode"] = module.training
                seen[side, name, "hooks"] = len(module._forward_hooks), len(module._forward_pre_hooks)
        seen["rng"] = torch.get_rng_state(), torch.sim.get_rng_state()
        seen["python"], seen["numpy"] = random.getstate(), np.random.get_state()[1].copy()
        seen["given"] = batch.detach().clone(), batch.grad
        return seen

    before = state()
    assert op_tools.compare_modules(model, other, batch).ok
    after = state()
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0, equal_nan=True)


def test_everything_is_left_as_it_was_when_the_model_raises():
    class Raises(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            raise ValueError(f"mine {self.norm(x).shape}")

    model = Raises()
    with pytest.raises(ValueError, match="mine"):
        op_tools.compare_modules(model, on_device="sim", inputs=torch.ones(3, 4))
    assert int(model.norm.num_batches_tracked) == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_another_dtype_is_judged_by_the_cpu_in_that_dtype():
    model = seeded(LeNet)
    right = op_tools.compare_modules(model, on_device="sim", dtype=torch.bfloat16, inputs=images())
    assert right.ok, right.table()
    assert {row.dtype for row in right.rows if row.module == "conv2"} == {"bfloat16"}
    with sim.fault("scale", ops="convolution", call=1, scale=1.2):
        wrong = op_tools.compare_modules(model, on_device="sim", dtype=torch.bfloat16, inputs=images())
    assert wrong.first.module == "conv2"


def test_two_models_with_other_weights(tmp_path):
    model, other = seeded(LeNet), seeded(LeNet)
    with torch.no_grad():
        other.fc1.weight[3, 5] += 0.5
    result = op_tools.compare_modules(model, other, images())
    assert result.first.module == "fc1"
    assert "parameters with other values: fc1.weight" in result.notes


def test_only_some_modules():
    result = op_tools.compare_modules(seeded(ResNet), on_device="sim", inputs=images(), modules="3, .*short.*")
    assert {row.module for row in result.rows} <= {"3", "3.conv1", "3.norm1", "3.conv2", "3.norm2", "3.short"} | {
        path for path, _ in ResNet().named_modules() if "short" in path
    }
    assert any(row.module == "3.conv1" for row in result.rows)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant):
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=reentrant))

    result = op_tools.compare_modules(seeded(Saves), on_device="sim", inputs=torch.randn(4, 6, requires_grad=True))
    assert result.ok, result.table()
    assert [row.call for row in result.rows if (row.module, row.what) == ("first", "output")] == [0]
    assert ("no gradients" in "".join(result.notes)) is reentrant


def test_a_compiled_model_is_looked_at_as_it_is_written():
    model = seeded(LeNet)
    result = op_tools.compare_modules(torch.compile(model, backend="eager"), seeded(LeNet).to("sim"), images())
    assert result.ok, result.table()
    assert {"conv1", "conv2", "fc1", "fc2", ""} == {row.module for row in result.rows}


def test_other_losses_and_methods():
    labels = digits()[1][:8]
    result = op_tools.compare_modules(
        seeded(LeNet),
        on_device="sim",
        inputs=images(),
        loss=lambda out: F.cross_entropy(out, labels.to(out.device)),
        method="allclose",
    )
    assert result.ok and any(row.phase == "backward" for row in result.rows)
    with pytest.raises(op_tools.Error, match="method="):
        op_tools.compare_modules(seeded(LeNet), on_device="sim", inputs=images(), method="best")


def test_a_model_without_parameters_in_float64():
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            assert x.dtype == torch.float32
            return self.linear(x)

    result = op_tools.compare_modules(Strict(), on_device="sim", inputs=torch.randn(2, 4))
    assert result.ok
    assert any("no float64 run (AssertionError" in note for note in result.notes)


def test_wrong_usage_is_said():
    model = nn.Linear(2, 2)
    for wrong in ({}, {"model_b": nn.Linear(2, 2), "on_device": "sim"}):
        with pytest.raises(op_tools.Error, match="give either model_b, or on_device="):
            op_tools.compare_modules(model, inputs=torch.ones(1, 2), **wrong)

    class Single(nn.Linear):
        def __deepcopy__(self, _):
            raise TypeError("there is only one of me")

    with pytest.raises(op_tools.Error, match=r"cannot be copied \(TypeError: there is only one of me\)"):
        op_tools.compare_modules(Single(2, 2), on_device="sim", inputs=torch.ones(1, 2))


def test_a_random_operator_that_the_cpu_lacks_runs_on_the_device():
    """cuDNN's recurrent networks are such operators."""
    library = torch.library.Library("op_tools_compare_modules_test", "DEF")
    library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("noise", lambda x: x + 1, "PrivateUse1")
    with CpuNumbers():
        result = torch.ops.op_tools_compare_modules_test.noise(torch.ones(2, device="sim"))
    assert result.device.type == "sim" and result.cpu().tolist() == [2, 2]
