"""OpAutoCompare on a device: nothing is blamed that is right, and each planted fault is found where it is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import MODELS, OPTIMIZERS, ResNet, digits
from torch import nn

import op_tools
import op_tools.sim_device as sim

LEVELS = ["torch", "aten"]


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


def on_device(*shape, grad=False):
    return torch.randn(*shape).to("sim").requires_grad_(grad)


def blamed(tool):
    return sorted({(row["op"], row["phase"]) for row in tool.result().failures})


def train(model, precision, steps=2):
    torch.manual_seed(7)
    images, labels = digits()
    network = {**MODELS, "resnet": ResNet}[model]().to("sim")
    method = OPTIMIZERS["sgd"](network.parameters())
    images, labels = images.to("sim"), labels.to("sim")
    if precision == "bfloat16":
        network, images = network.bfloat16(), images.bfloat16()
    losses = []
    for step in range(steps):
        rows = slice(step * 8, step * 8 + 8)
        method.zero_grad()
        with torch.autocast("sim", torch.bfloat16, enabled=precision == "autocast"):
            loss = F.cross_entropy(network(images[rows]).float(), labels[rows])
        loss.backward()
        method.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@pytest.mark.parametrize(
    ("model", "precision"),
    [("lenet", "float32"), ("lenet", "autocast"), ("transformer", "bfloat16"), ("lstm", "float32")],
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_right_device_is_not_blamed_and_trains_the_same(level, model, precision):
    plain = train(model, precision)
    with op_tools.OpAutoCompare(level=level) as tool:
        compared = train(model, precision)
    assert compared == plain
    result = tool.result()
    assert result.failures == []
    assert result.passed > 50


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("kind", "ops", "program", "name"),
    [
        ("scale", "mm", lambda x: torch.mm(x, x), "mm"),
        ("element", "sigmoid", torch.sigmoid, "sigmoid"),
        ("low_precision", "mm", lambda x: torch.mm(x, x), "mm"),
        ("swap_rows", "exp", torch.exp, "exp"),
        ("nan", "exp", torch.exp, "exp"),
        ("inf", "exp", torch.exp, "exp"),
        ("mutate_input", "mm", lambda x: torch.mm(x, x), "mm"),
        ("noncontiguous", "mm", lambda x: torch.mm(x.t(), x), "mm"),
        ("above_size", "exp", torch.exp, "exp"),
        ("lost_write", "mul_", lambda x: x.mul_(2), "mul_"),
        ("strides", "mm", lambda x: torch.mm(x, x), "mm"),
        ("nondeterministic", "exp", torch.exp, "exp"),
    ],
)
def test_each_kind_of_fault_is_found_and_only_its_call_blamed(level, kind, ops, program, name):
    x = on_device(32, 16 if kind not in ("scale", "low_precision", "mutate_input", "strides") else 32)
    more = {"size": 100} if kind == "above_size" else {}
    with sim.fault(kind, ops=ops, seed=1, **more) as fault, op_tools.OpAutoCompare(level=level) as tool:
        torch.tanh(program(x) + 1)
    assert fault.hits == 1
    (row,) = tool.result().failures
    assert row["op"].split("::")[-1].split(".")[0] == name if level == "aten" else row["op"].split(".")[-1] == name
    kinds = {"mutate_input": "changed input", "strides": "strides"}
    assert row["kind"] == kinds.get(kind, "values")
    assert row["source"].startswith(__file__)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("cat", lambda x: torch.cat([x, x])),
        ("index_select", lambda x: torch.index_select(x, 0, torch.arange(7, -1, -1, device="sim"))),
        ("gather", lambda x: torch.gather(x, 1, torch.zeros(8, 3, dtype=torch.long, device="sim"))),
        ("amax", lambda x: torch.amax(x, 1)),
    ],
)
def test_a_copied_element_that_is_off_by_a_unit_is_found(level, dtype, op, program):
    x = (on_device(8, 16).abs() + 1).to(dtype)
    unit = 1 + torch.finfo(dtype).eps
    with op_tools.OpAutoCompare(level=level) as clean:
        program(x)
    with sim.fault("element", ops=op, seed=1, scale=unit) as fault, op_tools.OpAutoCompare(level=level) as tool:
        program(x)
    assert clean.result().failures == []
    assert fault.hits == 1
    (row,) = tool.result().failures
    assert row["op"].removeprefix("torch.").removeprefix("aten::").split(".")[0] == op


@pytest.mark.parametrize(("kind", "error"), [("missing", NotImplementedError), ("exception", RuntimeError)])
@pytest.mark.parametrize("level", LEVELS)
def test_what_raises_on_the_device_alone_is_found_and_raises_as_before(level, kind, error):
    x = on_device(4)
    with (
        sim.fault(kind, ops="exp"),
        op_tools.OpAutoCompare(level=level) as tool,
        pytest.raises(error, match="planted"),
    ):
        torch.exp(x)
    (row,) = tool.result().failures
    assert row["kind"] == "raised" and "planted" in row["reason"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_refusal_of_overlapping_memory_is_no_fault(level):
    x = on_device(4, 4)
    with op_tools.OpAutoCompare(level=level) as tool:
        for work in (lambda: x[1:].mul_(x[:-1]), lambda: x.add_(x.t()), lambda: torch.add(x, 1, out=x.t())):
            with pytest.raises(RuntimeError, match="single memory location"):
                work()
    result = tool.result()
    assert result.failed == 0
    reasons = [row.reason for row in result.rows if row.verdict == "not judged"]
    assert sum("its inputs share memory" in reason for reason in reasons) == 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_deep_copy_of_tensors_on_several_devices_is_right(level):
    state = {"moment": on_device(3), "step": torch.tensor(2.0)}
    with op_tools.OpAutoCompare(level=level) as tool:
        copied = copy.deepcopy(state)
    assert tool.result().failed == 0 and copied["step"].device.type == "cpu"


@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_in_backward_is_found_there(level):
    layer = nn.Linear(16, 8).to("sim")
    x = on_device(4, 16, grad=True)
    with op_tools.OpAutoCompare(level=level) as tool:
        y = F.gelu(layer(x))
        with sim.fault("scale", ops="mm", call=0) as fault:
            y.sum().backward()
    assert fault.hits == 1
    if level == "aten":
        assert blamed(tool) == [("aten::mm", "forward")]
    else:
        assert blamed(tool) == [("torch.nn.functional.linear", "backward")]
        assert "input grad" in tool.result().failures[0]["what"]


def test_every_output_of_several_is_judged():
    x = on_device(8, 8)
    with sim.fault("element", ops="aten::max.dim", seed=2), op_tools.OpAutoCompare(level="aten") as tool:
        x.max(1)
    assert [row["what"] for row in tool.result().failures] == ["0th"]


@pytest.mark.parametrize("level", LEVELS)
def test_random_numbers_of_the_device_are_judged_by_their_distribution(level):
    torch.manual_seed(1)
    state = torch.sim.get_rng_state()
    plain = torch.rand(2000, device="sim").cpu(), torch.randn(2000, device="sim").cpu()
    torch.sim.set_rng_state(state)
    with op_tools.OpAutoCompare(level=level) as tool:
        compared = torch.rand(2000, device="sim"), torch.randn(2000, device="sim")
        torch.randperm(100, device="sim"), torch.randint(3, 9, (500,), device="sim")
        F.dropout(torch.ones(3000, device="sim"), 0.3)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(plain, compared, strict=True)), "the stream is untouched"
    result = tool.result()
    assert result.failures == []
    assert any(row["method"] == "statistical" for row in result.rows)

    with sim.fault("scale", ops="aten::uniform_|rand", scale=0.9) as fault, op_tools.OpAutoCompare(level=level) as tool:
        torch.rand(2000, device="sim")
    assert fault.hits == 1
    assert [row["kind"] for row in tool.result().failures] == ["distribution"]


def test_a_factory_on_the_device_is_compared():
    with sim.fault("element", ops="ones|fill_", seed=3) as fault, op_tools.OpAutoCompare(level="aten") as tool:
        torch.ones(20, device="sim")
    assert fault.hits == 1
    assert not tool.result().ok


def test_the_reference_runs_on_the_cpu_alone():
    x = on_device(8, 8)
    before = sim.statistics()["calls"]
    torch.mm(x, x)
    once = sim.statistics()["calls"] - before
    with op_tools.OpAutoCompare(ops="torch.mm") as tool:
        before = sim.statistics()["calls"]
        torch.mm(x, x)
        compared = sim.statistics()["calls"] - before
    assert tool.result().ok
    # The rest are copies of the two inputs and the result to the CPU, and nothing else.
    assert compared - once <= 8


def test_judging_beside_the_device_finds_the_same():
    x = on_device(16, 16)
    with sim.fault("scale", ops="mm", call=3), op_tools.OpAutoCompare(level="aten", async_=True) as tool:
        for _ in range(6):
            x = torch.tanh(torch.mm(x, x))
    failures = tool.result().failures
    assert [row["op"] for row in failures] == ["aten::mm"]


def test_a_saved_failure_replays_on_the_device_and_disagrees_with_the_cpu(tmp_path):
    x = on_device(16, 16)
    with sim.fault("scale", ops="mm"), op_tools.OpAutoCompare() as tool:
        torch.mm(x, x)
        folder = tool.result().failures[0]["saved"]
        from op_tools.run_op_from_data import main

        assert main([f"{folder}/device", "--acc_check", "--device", "sim", "--quiet"]) == 1, "the fault is still there"
    assert main([f"{folder}/device", "--acc_check", "--quiet"]) == 1, "what was saved is wrong"
    assert main([f"{folder}/cpu", "--acc_check", "--device", "sim", "--quiet"]) == 0, "the device is right again"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_in_training_is_blamed_on_its_operator(level, seed):
    ops = ["aten::convolution", "aten::relu", "aten::_log_softmax", "aten::max_pool2d_with_indices"]
    with sim.fault("scale", ops=ops[seed], call=0) as fault, op_tools.OpAutoCompare(level=level) as tool:
        train("lenet", "float32", steps=1)
    assert fault.hits == 1
    names = {row["op"] for row in tool.result().failures}
    assert len(names) == 1
    assert {row["id"] for row in tool.result().failures} == {tool.result().failures[0]["id"]}
    if level == "aten":
        assert names == {ops[seed]}


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_operators_without_a_cpu_kernel_are_judged_by_one_of_ours(cell):
    """The fused cells: torch has them on devices only."""
    inputs = on_device(4, 3, 5)
    with sim.fault("scale", ops="aten::_thnn_fused_.*_cell", call=2, scale=1.01) as fault:
        network = cell(5, 6).to("sim")
        with op_tools.OpAutoCompare(level="aten", max_saved=0) as tool:
            network(inputs)[0].sum().backward()
    assert fault.hits == 1
    name = f"aten::_thnn_fused_{cell.__name__.lower()}_cell"
    assert blamed(tool) == [(name, "forward")]
    assert sum(row["op"].startswith(name) and row["verdict"] == "agrees" for row in tool.result().rows) > 12


def test_a_copy_to_another_device_has_memory_of_its_own():
    here = on_device(3)
    for level in LEVELS:
        with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
            here.cpu()
            torch.ones(3).to(here)
            here.to("cpu", torch.float32)
        assert tool.result().calls >= 3
        assert blamed(tool) == []


def test_a_gradient_that_is_all_cancellation_is_let_pass():
    """A bias in front of a batch norm: its true gradient is zero, the arriving gradient is rounding."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    weights = torch.randn(8, 4, 6, 6)
    for device in ("cpu", "sim"):
        with op_tools.OpAutoCompare(max_saved=0) as tool:
            (network.to(device)(torch.randn(8, 2, 8, 8).to(device)) * weights.to(device)).sum().backward()
        assert blamed(tool) == []
        assert any(row["phase"] == "backward" and "conv2d" in row["op"] for row in tool.result().rows)


@pytest.mark.parametrize("device", ["sim", "cpu"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_reference_that_writes_into_large_inputs_leaves_what_they_were(level, device):
    # Large inputs are shared with the CPU's runs until any of them writes.
    x, out = torch.randn(300, 300).to(device), torch.empty(300, 300).to(device)
    with op_tools.OpAutoCompare(level=level) as tool:
        x.mul_(2).add_(x)
        torch.exp(x, out=out)
        x[:100].relu_()
        x.t()[5:].zero_()
    result = tool.result()
    assert result.failures == [] and result.passed >= 5


@pytest.mark.parametrize("level", LEVELS)
def test_faults_are_found_in_large_tensors(level):
    x = on_device(300, 300)
    with op_tools.OpAutoCompare(level=level) as tool:
        with sim.fault("lost_write", ops="mul_", seed=1):
            x.mul_(2)
        with sim.fault("mutate_input", ops="exp", seed=1):
            torch.exp(x)
        with sim.fault("element", ops="tanh", seed=1):
            torch.tanh(x)
    failures = tool.result().failures
    assert [row["kind"] for row in failures] == ["values", "changed input", "values"]
    assert ["mul_" in failures[0]["op"], "exp" in failures[1]["op"], "tanh" in failures[2]["op"]] == [True] * 3


def with_gradient_sums(x, passes=1):
    """Two gradients of the same tensor, and with a second pass also a sum onto `.grad`."""
    for _ in range(passes):
        y = torch.tanh(x)
        (torch.exp(y) * torch.sigmoid(y)).sum().backward()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["scale", "nan", "swap_rows"])
def test_wrong_sums_of_gradients_are_named(kind, level):  # no torch function makes them
    x = on_device(6, 6, grad=True)
    with op_tools.OpAutoCompare(level=level) as tool:
        with_gradient_sums(x)
        assert tool.result().ok
        with sim.fault(kind, ops="add_.Tensor") as fault:
            with_gradient_sums(x)
    assert fault.hits == 2
    failures = tool.result().failures
    assert [row.op for row in failures] == ["aten::add_.Tensor"] * 2


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({}, True),
        ({"ops": "torch.tanh"}, False),
        ({"skip": "torch.add"}, False),
        ({"gradients": False}, False),
        ({"modules": ".*"}, False),
        ({"steps": [1]}, False),
    ],
)
def test_sums_of_gradients_follow_the_options(options, judged):
    x = on_device(6, 6, grad=True)
    with op_tools.OpAutoCompare(**options) as tool, sim.fault("scale", ops="add_.Tensor") as fault:
        with_gradient_sums(x)
    assert fault.hits == 1
    result = tool.result()
    assert ("aten::add_.Tensor" in {row.op for row in result.failures}) == judged
    assert result.calls == result.coverage.seen


def test_sums_of_gradients_are_judged_between_start_and_stop_only():
    x = on_device(6, 6, grad=True)
    tool = op_tools.OpAutoCompare()
    with sim.fault("scale", ops="add_.Tensor") as fault:
        for number in (1, 2):
            tool.start()
            x.grad = None
            with_gradient_sums(x)
            tool.stop()
            x.grad = None
            with_gradient_sums(x)
            assert fault.hits == 2 * number
            assert [row.op for row in tool.result().failures] == ["aten::add_.Tensor"]


def test_memory_that_only_autograd_holds_and_somebody_writes_to_is_noticed():
    # sigmoid's backward reads sigmoid's result. The program lets its tensor go, so the graph holds the memory alone; then
    # a fault of another operator writes into it, past autograd.
    x = on_device(64, grad=True)
    with op_tools.OpAutoCompare() as tool:
        y = torch.sigmoid(x)
        view = y.detach()
        z = y + 1
        del y
        with sim.fault("mutate_input", ops="exp", seed=1) as fault:
            torch.exp(view)
        del view
        z.sum().backward()
    assert fault.hits == 1
    blamed_for = {(row["op"].split(".")[-1], row["phase"]): row for row in tool.result().failures}
    assert blamed_for["exp", "forward"]["kind"] == "changed input"
    assert set(blamed_for) == {("exp", "forward"), ("sigmoid", "backward")}
    assert "past autograd" in blamed_for["sigmoid", "backward"]["reason"]


def test_memory_that_autograd_frees_during_backward_is_noticed_as_well():
    # linear's backward is two nodes: the node that reads the input lets it go before the gradient of the weight is there.
    x = on_device(12, 8)
    layer = nn.Linear(8, 4).to("sim")
    with op_tools.OpAutoCompare() as tool:
        y = layer(x)
        with sim.fault("mutate_input", ops="flip", seed=1) as fault:
            x.flip(-1)
        del x
        y.square().sum().backward()
    assert fault.hits == 1
    reasons = {(row["op"].split(".")[-1], row["phase"]): row["reason"] for row in tool.result().failures}
    assert set(reasons) == {("flip", "forward"), ("linear", "backward")}
    assert "past autograd" in reasons["linear", "backward"]


def fails_late():
    """A wrong result comes to light when the device is waited for."""
    wide = torch.zeros(4, device="sim")
    far = torch.tensor([1, 9]).to("sim")
    near = torch.tensor([1, 2]).to("sim")
    wide.index_select(0, near)  # the device knows the result's shape now: the next call runs in the queue
    torch.sim.synchronize()
    return wide.index_select(0, far)


@pytest.mark.parametrize("level", LEVELS)
def test_an_error_that_comes_to_light_late_is_the_programs_and_the_tool_goes_on(level, capfd):
    fails_late()
    with pytest.raises(Exception, match="out of") as plain:
        torch.sim.synchronize()

    x = on_device(8)
    with op_tools.OpAutoCompare(level=level, ops=".*exp,.*tanh") as tool:
        fails_late()  # the tool passes it over
        with pytest.raises(Exception, match="out of") as compared:
            torch.exp(x)
        assert torch.equal(torch.tanh(x).cpu(), torch.tanh(x.cpu()))
    assert type(compared.value) is type(plain.value)
    assert str(compared.value).splitlines()[0] == str(plain.value).splitlines()[0]
    result = tool.result()
    assert result.failures == []
    assert ["tanh" in op.op for op in result.ops] == [True]
    told = capfd.readouterr().err
    assert "an error of the program's own" in told and "exp (call" in told and __file__ in told
    assert "is off now" not in told


def test_a_late_error_in_backward_reaches_the_program():
    x = on_device(8, grad=True)
    with op_tools.OpAutoCompare(ops=".*exp") as tool:
        y = torch.exp(x).sum()
        fails_late()
        with pytest.raises(Exception, match="out of"):
            y.backward()
        torch.exp(x.detach())
    assert tool.result().failures == []
    assert tool.result().calls == 2


@pytest.mark.parametrize("level", LEVELS)
def test_a_checkpoint_that_stops_early_is_nobodys_failure(level, replay):
    def program():
        layer = nn.Linear(4, 4).to("sim")
        x = on_device(3, 4, grad=True)
        # Its second run ends inside of the last operator, in the hook that keeps tensors for backward.
        torch.utils.checkpoint.checkpoint(
            lambda x: F.dropout(layer(x).relu(), 0.25), x, use_reentrant=False
        ).sum().backward()

    with op_tools.OpAutoCompare(level=level) as tool:
        program()
    assert tool.result().failures == []
    with op_tools.OpCapture(level=level) as capture:
        program()
    assert sum(row.failed for row in capture.result().rows) == 1
    again = replay(capture.result().root, "--acc_check")
    assert again.status == 0, again.out
    assert "ended by the program: a hook for saved tensors raised" in again.out


@pytest.mark.parametrize("level", LEVELS)
def test_an_operator_that_raises_below_a_saved_tensor_hook_is_a_failure(level):
    x = on_device(3, 4, grad=True)
    with (
        sim.fault("exception", ops="exp"),
        op_tools.OpAutoCompare(level=level) as tool,
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        pytest.raises(RuntimeError),
    ):
        x.exp()
    assert [row["kind"] for row in tool.result().failures] == ["raised"]


def test_hooks_for_saved_tensors_are_given_what_the_program_saves_and_no_more():
    x = on_device(3, 4, grad=True)

    def saved():
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: shapes.append(x.shape) or x, lambda x: x):
            x.exp().tanh().sum().backward()
        return shapes

    plain = saved()
    with sim.fault("scale", ops="tanh|exp"), op_tools.OpAutoCompare() as tool:  # wrong calls are run in float64, too
        assert saved() == plain
    assert {("torch.Tensor.exp", "forward"), ("torch.Tensor.tanh", "forward")} <= set(blamed(tool))


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_decomposition_is_found_although_its_signs_are_free(level):
    matrix = torch.randn(6, 6).to("sim")
    with sim.fault("scale", ops="linalg_qr", scale=1.01) as fault, op_tools.OpAutoCompare(level=level) as tool:
        torch.linalg.qr(matrix)
    assert fault.hits == 1
    assert [row["what"] for row in tool.result().failures] == ["0th"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
def test_zeros_without_memory_are_no_alias():
    x = on_device(3)
    with op_tools.OpAutoCompare(level="aten") as compare:
        torch.func.hessian(lambda x: (x * x).prod() + x.norm())(x)
    assert compare.result().failures == []


def test_what_a_transform_refuses_is_not_the_devices_failure():
    with op_tools.OpAutoCompare() as compare, pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda x: torch.randn(3, device=x.device) + x)(on_device(2, 3))
    result = compare.result()
    assert result.failures == []
    assert any("functorch transform" in row["reason"] for row in result.rows if row["op"] == "torch.randn")


@pytest.mark.parametrize("level", LEVELS)
def test_what_autograd_refuses_is_not_the_devices_failure(level):
    leaf = on_device(3, grad=True)
    with op_tools.OpAutoCompare(level=level) as compare, pytest.raises(RuntimeError, match="leaf"):
        leaf.add_(1)
    assert compare.result().failures == []


REFUSED_DEVICES = {
    "add": lambda: on_device(2) + torch.ones(2),
    "matmul": lambda: on_device(2, 2) @ torch.ones(2, 2),
    "out": lambda: torch.mm(on_device(2, 2), on_device(2, 2), out=torch.ones(2, 2)),
    "list": lambda: torch.cat([on_device(2), torch.ones(2)]),
    "weight": lambda: F.conv2d(torch.ones(1, 1, 4, 4), on_device(1, 1, 2, 2)),
    "hidden": lambda: nn.LSTM(2, 2).to("sim")(on_device(1, 1, 2), (torch.ones(1, 1, 2), torch.ones(1, 1, 2))),
    "attention": lambda: F.scaled_dot_product_attention(on_device(1, 2, 2), torch.ones(1, 2, 2), on_device(1, 2, 2)),
    "block_diag": lambda: torch.block_diag(on_device(2, 2), torch.ones(2, 2)),
    "data": lambda: setattr(on_device(2), "data", torch.ones(2)),
    "no such device": lambda: torch.zeros(2, device=torch.device("sim", 9)),
    "numpy": lambda: on_device(2).numpy(),
    "pin_memory": lambda: on_device(2).pin_memory(),
    "tensor_split": lambda: on_device(4).tensor_split(torch.tensor([1, 2], device="sim")),
    "lengths": lambda: torch._pack_padded_sequence(on_device(2, 1), torch.tensor([2], device="sim"), False),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("program", REFUSED_DEVICES.values(), ids=REFUSED_DEVICES.keys())
def test_devices_that_torch_refuses_are_the_programs_mistake(program, level):
    with op_tools.OpAutoCompare(level=level) as compare, pytest.raises((RuntimeError, TypeError)):
        program()
    result = compare.result()
    assert result.failures == []
    # At the aten level torch may refuse it before it calls an operator.
    assert result.not_judged > 0 or level == "aten"


def test_an_error_about_devices_is_a_failure_where_all_tensors_are_on_the_same():
    @torch.library.custom_op("sim_test::refuses", mutates_args=())
    def refuses(a: torch.Tensor) -> torch.Tensor:
        if not a.is_cpu:
            raise RuntimeError("Expected all tensors to be on the same device")
        return a.clone()

    with op_tools.OpAutoCompare() as compare, pytest.raises(RuntimeError, match="same device"):
        refuses(on_device(2))
    assert [row["kind"] for row in compare.result().failures] == ["raised"]


def error_in_backward(model, kind, ops):
    x = on_device(4, 16, grad=True)
    with op_tools.OpAutoCompare() as tool:
        loss = model(x)
        with sim.fault(kind, ops=ops, call=0) as fault, pytest.raises(RuntimeError, match="planted"):
            loss.backward()
    assert fault.hits == 1
    return tool.result()


@pytest.mark.parametrize("kind", ["missing", "exception"])
def test_what_raises_in_backward_alone_is_found_and_only_its_call_blamed(kind):
    """Other calls of the pass are open when the error ends it: the other branch, the calls that had not come yet."""
    layer = nn.Linear(16, 8).to("sim")

    def model(x):
        return (F.gelu(layer(x)).sum() * 2 + torch.tanh(x).sum()).exp()

    for ops, name in (("gelu_backward", "gelu"), ("tanh_backward", "tanh"), ("mm", "linear")):
        (row,) = error_in_backward(model, kind, ops).failures
        assert (row["op"].split(".")[-1], row["phase"], row["kind"]) == (name, "backward", "raised")
        assert "planted" in row["reason"] and row["source"].startswith(__file__)


def test_an_error_of_the_program_in_backward_is_blamed_on_no_call():
    def raises(gradient):
        raise ValueError("of the program")

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("of the program")

    def hooked(x):
        y = torch.tanh(x)
        y.register_hook(raises)
        return y.exp().sum()

    def hooked_node(x):
        y = torch.tanh(x)
        y.grad_fn.register_prehook(lambda gradients: raises(gradients[0]))
        return y.exp().sum()

    def written(x):
        y = torch.exp(x)
        z = y.sin().sum()
        y.add_(1)
        return z

    def freed(x):
        y = torch.exp(x).sum()
        y.backward()
        return y

    for program in (hooked, hooked_node, written, freed, lambda x: Own.apply(torch.exp(x)).sum()):
        x = on_device(4, 4, grad=True)
        with op_tools.OpAutoCompare() as tool:
            loss = program(x)
            with pytest.raises((ValueError, RuntimeError)):
                loss.backward()
        assert tool.result().failures == []


def test_a_backward_that_raises_everywhere_or_outside_of_the_tool_is_no_finding():
    x = on_device(4, 4, grad=True)
    with op_tools.OpAutoCompare() as tool:
        loss = torch.tanh(x).sum()
    with sim.fault("exception", ops="tanh_backward"), pytest.raises(RuntimeError, match="planted"):
        loss.backward()
    with op_tools.OpAutoCompare() as second, pytest.raises(RuntimeError):
        torch.ones(2, device="sim").sum().backward()
    assert tool.result().failures == [] and second.result().failures == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_constant_rows_are_no_finding(device, level):
    """The difference of equal numbers and their mean is rounding, and 0 / 0 of it is NaN or not."""

    def gradient(program, x):
        program(x.detach().clone().requires_grad_()).sum().backward()

    for seed in range(10):
        torch.manual_seed(seed)
        expanded = torch.randn(4, 1).to(device).expand(4, 50)
        for rows in (expanded, expanded.contiguous(), expanded * 1e4 + 1e4):
            with op_tools.OpAutoCompare(level=level) as tool:
                for program in (torch.corrcoef, torch.cov, lambda x: x.var(1), lambda x: x.std(1), F.normalize):
                    program(rows)
                    gradient(program, rows)
                for norm in (
                    lambda x: F.layer_norm(x, (50,)),
                    lambda x: F.batch_norm(x.t(), None, None, training=True),
                    lambda x: F.group_norm(x.reshape(1, 4, 50), 4),
                    lambda x: F.instance_norm(x.reshape(1, 4, 50)),
                ):
                    norm(rows)
            assert tool.result().failures == [], seed


def test_labels_that_an_operator_compares_are_not_changed(tmp_path):
    """Changed by their rounding they would be no labels any more, and each gradient would be allowed."""
    a, b = torch.randn(12, 5), torch.randn(12, 5).to("sim")
    labels = torch.ones(12, device="sim")
    with op_tools.OpAutoCompare(output_dir=str(tmp_path), level="torch") as tool:
        F.cosine_embedding_loss(a.to("sim").requires_grad_(), b, labels).backward()
        with sim.fault("scale", ops="aten::mul.Tensor", scale=1.1) as fault:
            F.cosine_embedding_loss(a.to("sim").requires_grad_(), b, labels).backward()
    assert fault.hits > 3
    named = [(row.phase, row.id) for row in tool.result().failures]
    assert {phase for phase, _ in named} == {"backward", "forward"} and len({number for _, number in named}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("op", ["tanh", "sigmoid", "rsqrt", "logsumexp", "exp", "expm1"])
def test_a_gradient_made_of_a_result_next_to_a_bound_is_judged_by_the_result_s_rounding(op, dtype):
    """1 - tanh^2 of a tanh that is next to 1 multiplies the last bit of that tanh."""
    program = {"rsqrt": lambda x: (x.abs() + 0.01).rsqrt(), "logsumexp": lambda x: x.logsumexp(-1)}.get(
        op, getattr(torch, op)
    )
    judged = 0
    for seed in range(30):
        x = torch.randn(2, (3, 16)[seed % 2], generator=torch.Generator().manual_seed(seed)) * (1, 4, 9)[seed % 3]
        x = x.to(dtype).to("sim").requires_grad_()
        with sim.rounding(), op_tools.OpAutoCompare(level="torch") as tool:
            result = program(x)
            result.backward(torch.ones_like(result))
        assert tool.result().failures == [], seed
        judged += tool.result().passed
    assert judged >= 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", ["tanh", "sigmoid"])
def test_a_wrong_gradient_made_of_a_result_is_named(op, dtype):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).to(dtype).to("sim").requires_grad_()
    with sim.rounding(), op_tools.OpAutoCompare(level="torch") as tool:
        result = getattr(torch, op)(x)
        with sim.fault("scale", ops=f"aten::{op}_backward", scale=1.05) as fault:
            result.backward(torch.ones_like(result))
    assert fault.hits == 1
    assert blamed(tool) == [(f"torch.{op}", "backward")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("in_order", "kind", "is_wrong"),
    [(True, "scale", True), (True, "swap_rows", True), (False, "element", True), (False, "swap_rows", False)],
)
def test_the_values_of_a_set_are_judged_in_any_order_where_none_is_asked_for(level, in_order, kind, is_wrong):
    x = torch.tensor([3.0, 1.0, 2.0, 1.0, 7.0]).to("sim")
    arguments = {"scale": 3.0} if kind != "swap_rows" else {}
    with sim.fault(kind, ops="aten::_unique2", **arguments), op_tools.OpAutoCompare(level=level) as tool:
        torch.unique(x, sorted=in_order)
    assert [op_tools._C.base_name(op).lstrip("_")[:6] for op, _ in blamed(tool)] == ["unique"] * is_wrong
    with op_tools.OpAutoCompare(level=level) as clean, sim.rounding():
        torch.unique(x, sorted=in_order, return_inverse=True, return_counts=True)
    assert clean.result().ok


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("decompose", "op"),
    [(torch.linalg.qr, "linalg_qr"), (torch.linalg.svd, "_linalg_svd"), (torch.svd, "_linalg_svd")],
    ids=["qr", "linalg.svd", "svd"],
)
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_signs_of_factors_have_to_fit_each_other(decompose, op, level, shape, dtype):
    matrix = torch.randn(shape, dtype=dtype).to("sim")
    with sim.fault("scale", ops=f"aten::{op}", scale=-1.0) as fault, op_tools.OpAutoCompare(level=level) as tool:
        decompose(matrix)
    assert fault.matched and "the product of the factors is not the input" in tool.result().failures[0].reason
    with sim.rounding(), op_tools.OpAutoCompare(level=level) as clean:
        decompose(matrix)
    assert clean.result().failures == []


def adds_beyond(place):
    """A kernel of add_ that writes another element, so many behind the first of its tensor."""

    def kernel(x, other, alpha=1):
        x.copy_((x.cpu() + alpha * other.cpu()).to("sim"))
        x.as_strided((1,), (1,), x.storage_offset() + place).copy_(torch.full((1,), 9.0, device="sim"))
        return x

    return kernel


PARTS = {
    "behind": (8, lambda x: x[2:4], "4 bytes behind input 0"),
    "before": (-1, lambda x: x[2:4], "4 bytes before input 0"),
    "in a gap": (2, lambda x: x[:, :2], "4 bytes between the rows of input 0"),
}


@pytest.mark.parametrize("options", [{}, {"async_": True}], ids=["at once", "beside"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("part", PARTS)
def test_a_kernel_that_writes_beside_its_tensor_is_wrong(part, level, options):
    place, view_of, where = PARTS[part]
    x = torch.randn(8, 4).to("sim")
    view = view_of(x)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("add_.Tensor", adds_beyond(place), "PrivateUse1")
        with op_tools.OpAutoCompare(level=level, **options) as compare:
            view.add_(torch.ones(view.shape, device="sim"))
    (failure,) = compare.result().failures
    assert failure["op"] == ("torch.Tensor.add_" if level == "torch" else "aten::add_.Tensor")
    assert failure["kind"] == "memory beside" and where in failure["reason"]


@pytest.mark.parametrize("level", LEVELS)
def test_neighbours_in_a_storage_may_be_written_together(level):
    flat = torch.randn(64).to("sim")
    parts = list(flat.split(16))
    rows = flat.view(8, 8)
    with op_tools.OpAutoCompare(level=level) as compare:
        torch._foreach_add_(parts, [torch.ones(16, device="sim")] * 4)
        torch._foreach_mul_([rows[:, :3], rows[:, 3:]], 2.0)
        rows[:, 2:5].copy_(torch.ones(8, 3, device="sim"))
        rows.t()[1:3].mul_(0.5)
        torch.add(flat[:8], 1, out=flat[8:16])
        flat[4:9].resize_(3)
        rows[1:1].add_(1)
    assert not compare.result().failures and compare.result().passed >= 7


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("index_select", lambda x, index: torch.index_select(x, 0, index)),
        ("embedding", lambda x, index: F.embedding(index, x)),
        ("gather", lambda x, index: torch.gather(x, 0, index.view(2, 1))),
    ],
    ids=["index_select", "embedding", "gather"],
)
def test_an_index_that_the_device_does_not_check_is_named(op, program, level):
    x, index = torch.randn(4, 3).to("sim"), torch.tensor([9, 1]).to("sim")
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(op, lambda *_, **__: torch.zeros(2, 3).to("sim"), "PrivateUse1")
        with op_tools.OpAutoCompare(level=level) as compare:
            program(x, index)
    (failure,) = compare.result().failures
    assert op in failure["op"] and failure["kind"] == "index"


@pytest.fixture
def kernel():
    """Plants kernels of the device in Python: kernel("exp", function)."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        yield lambda op, function: library.impl(op, function, "PrivateUse1")


def wrong_of(program, level, **options):
    """The operators that were called wrong, with their kinds."""
    with op_tools.OpAutoCompare(level=level, max_saved=0, **options) as compare:
        program()
    return [
        (row.op.split("::")[-1].split(".")[-1 if level == "torch" else 0], row.kind)
        for row in compare.result().failures
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="sim"),
        lambda: torch.ones(3, device="sim:1"),
        lambda: torch.ones(3, device=0),
        lambda: torch.ones(3, device="privateuseone"),
        lambda: torch.ones(3, device=torch.device("sim")),
        lambda: torch.zeros(2).new_ones(3, device="sim"),
        lambda: torch.ones_like(torch.zeros(2), device="sim"),
        lambda: torch.ones_like(torch.zeros(2, device="sim"), device=1),
    ],
    ids=["text", "index", "number", "key", "device", "new", "like", "like elsewhere"],
)
def test_a_reference_of_a_factory_is_made_on_the_cpu_however_the_device_is_named(make, level):
    make()
    assert wrong_of(make, level) == []
    with sim.fault("scale", ops="fill_.Scalar", scale=2):
        assert [kind for _, kind in wrong_of(make, level)] == ["values"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "move",
    [lambda x: x.to(0), lambda x: x.to("sim"), lambda x: x.sim(), lambda x: x.to("sim:1")],
    ids=["number", "text", "method", "index"],
)
def test_a_copy_to_a_device_is_judged_however_the_device_is_named(move, level):
    x = torch.arange(1.0, 4.0)
    assert wrong_of(lambda: move(x), level) == []
    with sim.fault("scale", ops="_copy_from", scale=2):
        assert [kind for _, kind in wrong_of(lambda: move(x), level)] == ["values"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("silu_backward", lambda x: F.silu(x.requires_grad_()).sum().backward()),
        ("linear", lambda x: F.linear(x, torch.ones(4, 4, device="sim"))),
        ("matmul", lambda x: torch.matmul(x, x)),
    ],
    ids=["silu_backward", "linear", "matmul"],
)
def test_a_kernel_of_the_device_for_an_operator_that_others_are_made_of_is_judged(op, program, level, kernel):
    assert wrong_of(lambda: program(torch.randn(4, 4).to("sim")), level) == []
    kernel(op, lambda x, *others: torch.full(x.shape, 7.0).to("sim"))
    (wrong,) = wrong_of(lambda: program(torch.randn(4, 4).to("sim")), level)
    assert wrong[0] == (op if level == "aten" else {"silu_backward": "silu"}.get(op, op))


def test_an_operator_whose_device_kernel_is_gone_is_made_of_others_again():
    def program():
        F.linear(torch.ones(2, 4, device="sim"), torch.ones(3, 4, device="sim"), torch.ones(3, device="sim"))

    def judged():
        with op_tools.OpAutoCompare(level="aten") as compare:
            program()
        return {row.op for row in compare.result().ops}

    assert "aten::addmm" in judged()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(
            "linear", lambda x, weight, bias: F.linear(x.cpu(), weight.cpu(), bias.cpu()).to("sim"), "PrivateUse1"
        )
        assert "aten::linear" in judged()
    assert "aten::addmm" in judged() and "aten::linear" not in judged()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("floor", torch.floor),
        ("round", torch.round),
        ("fmod.Tensor", lambda x: torch.fmod(x, torch.full_like(x, 2))),
        ("remainder.Tensor", lambda x: torch.remainder(x, torch.full_like(x, 2))),
        ("threshold", lambda x: F.threshold(x, 1.0, 20.0)),
        ("clamp", lambda x: x.clamp(-1.0, 3.0)),
    ],
    ids=["floor", "round", "fmod", "remainder", "threshold", "clamp"],
)
def test_nothing_is_allowed_to_an_operator_that_needs_no_rounding(op, program, size, dtype, level):
    x = (torch.arange(size, dtype=dtype) * 0.5).to("sim")
    with sim.rounding():
        assert wrong_of(lambda: program(x), level) == []
    with sim.fault("element", ops=op, scale=2):
        assert len(wrong_of(lambda: program(x), level)) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("result", [lambda y: y, lambda y: y.to("sim:1")], ids=["cpu", "another"])
def test_a_result_on_another_device_is_wrong(result, level, kernel):
    x = torch.randn(4).to("sim")
    kernel("exp", lambda x: result(x.cpu().exp()))
    assert wrong_of(lambda: x.exp(), level) == [("exp", "device")]
    assert (
        wrong_of(lambda: (x.cpu(), x.to("sim:1"), x.type("torch.FloatTensor"), torch.ones_like(x, device="cpu")), level)
        == []
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_stable_sort_keeps_the_order_of_equal_elements(level, kernel):
    def backwards(x, stable, dim=-1, descending=False):
        values, indices = x.cpu().flip(0).sort(stable=True)
        return values.to("sim"), (x.numel() - 1 - indices).to("sim")

    kernel("sort.stable", backwards)
    x = torch.zeros(4).to("sim")
    assert [op for op, _ in wrong_of(lambda: torch.sort(x, stable=True), level)] == ["sort"]
    assert wrong_of(lambda: torch.sort(x), level) == []


def test_an_array_that_a_tensor_is_read_as_is_judged():
    x = torch.arange(1.0, 4.0).to("sim")
    assert wrong_of(lambda: x.numpy(force=True), "torch") == []
    with sim.fault("element", ops="_copy_from", call=0):
        assert wrong_of(lambda: x.numpy(force=True), "torch") == [("numpy", "value")]


def alike_in_rows(x, p, train):
    mask = (torch.rand(1, x.shape[1]) > p).expand(x.shape)
    return (x.cpu() * mask / (1 - p)).to("sim"), mask.contiguous().to("sim")


RANDOM = {
    "an element too few": ("rand", lambda size, **_: torch.rand(size[0] - 1).to("sim"), lambda: torch.rand(1000, device="sim"), "shape"),
    "another dtype": ("rand_like", lambda x, **_: torch.rand(x.shape, dtype=torch.float64).to("sim"), lambda: torch.rand_like(torch.ones(30, device="sim")), "dtype"),
    "an infinity": ("randn", lambda size, **_: torch.randn(size).index_fill(0, torch.tensor([3]), float("inf")).to("sim"), lambda: torch.randn(1000, device="sim"), "distribution"),
    "the bound": ("rand", lambda size, **_: torch.rand(size).index_fill(0, torch.tensor([3]), 1.0).to("sim"), lambda: torch.rand(1000, device="sim"), "distribution"),
    "too wide": ("randn", lambda size, **_: (torch.randn(size) * 1.2).to("sim"), lambda: torch.randn(4000, device="sim"), "distribution"),
    "in order": ("randn", lambda size, **_: torch.randn(size).sort()[0].to("sim"), lambda: torch.randn(1000, device="sim"), "distribution"),
    "rows alike": ("rand", lambda size, **_: torch.rand(1, size[1]).repeat(size[0], 1).to("sim"), lambda: torch.rand(40, 25, device="sim"), "distribution"),
    "no permutation": ("randperm", lambda n, **_: torch.arange(n).to("sim"), lambda: torch.randperm(50, device="sim"), "distribution"),
    "a mask of rows": ("native_dropout", alike_in_rows, lambda: torch.native_dropout(torch.ones(40, 25, device="sim"), 0.5, True), "distribution"),
    "another mask": ("native_dropout", lambda x, p, train: (F.dropout(x.cpu(), p).to("sim"), (torch.rand(x.shape) > p).to("sim")), lambda: torch.native_dropout(torch.ones(40, 25, device="sim"), 0.5, True), "distribution"),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_judged_by_their_form_and_their_independence(name, level, kernel):
    op, wrong, program, kind = RANDOM[name]
    for _ in range(3):
        assert wrong_of(program, level) == []

    def with_generator_of_its_own(*args, **kwargs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return wrong(*args, **kwargs)

    kernel(op, with_generator_of_its_own)
    assert {kind for _, kind in wrong_of(program, level)} == {kind}
