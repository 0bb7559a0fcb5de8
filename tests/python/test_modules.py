"""Module paths: in meta.json, in rows, and as a filter; on the stack of calls, in backward, and where it is easily wrong."""

import gc
import json
import threading
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import LeNet
from torch import nn
from torch.utils.checkpoint import checkpoint

import op_tools
import op_tools.sim_device

LINEAR = {"torch": "torch.nn.functional.linear", "aten": "addmm"}


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv1 = nn.Linear(width, width)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(self.conv1(x)) + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer3 = nn.Sequential(Block(), Block())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return torch.tanh(self.head(self.layer3(x)))


def modules_of(calls):
    return [call.meta.get("module") for call in calls]


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_captured_call_says_its_module(captured, level):
    model = Net()
    with op_tools.OpCapture(level=level, ops=f"{LINEAR[level]}, .*tanh, .*neg") as capture:
        model(torch.ones(3, 4))
        torch.neg(torch.ones(2))
    calls = captured(capture)
    assert modules_of(calls) == ["layer3.0.conv1", "layer3.1.conv1", "head", "", None]
    assert [call.meta.get("model") for call in calls] == ["Net"] * 4 + [None]


def test_only_the_named_modules(captured):
    model = Net()

    def linears(**arguments):
        with op_tools.OpCapture(ops="torch.nn.functional.linear", **arguments) as capture:
            model(torch.ones(3, 4))
            F.linear(torch.ones(1, 4), torch.ones(2, 4))
        return modules_of(captured(capture))

    both = ["layer3.0.conv1", "layer3.1.conv1"]
    assert linears(modules="layer3") == both  # all that is inside
    assert linears(modules="layer3.*") == both
    assert linears(modules="Net.layer3") == both
    assert linears(modules=[".*.1.conv1", "head"]) == ["layer3.1.conv1", "head"]
    assert linears(modules="Net") == [*both, "head"]
    assert linears(modules="conv1") == []
    assert len(linears(modules="")) == 4


def test_the_filter_has_a_variable_and_says_what_is_wrong(captured, monkeypatch, capfd):
    monkeypatch.setenv("OP_CAPTURE_MODULES", "head, laier3")
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as capture:
        Net()(torch.ones(3, 4))
    assert modules_of(captured(capture)) == ["head"]
    assert "OP_CAPTURE_MODULES: 'laier3' matched no module" in capfd.readouterr().err
    with pytest.raises(op_tools.Error, match=r"modules=: '\('"):
        op_tools.OpCapture(modules="(").start()


def test_backward_comes_with_the_calls_that_were_admitted(captured):
    model = Net()
    with op_tools.OpCapture(ops="torch.nn.functional.linear", modules="head") as capture:
        model(torch.ones(3, 4)).sum().backward()
    (call,) = captured(capture)
    assert call.gradients("inputs") is not None


def test_backward_operators_belong_to_the_module_of_their_forward_call(captured):
    model = Net()
    with op_tools.OpCapture(level="aten", ops="addmm, mm, gelu, gelu_backward, tanh, tanh_backward") as capture:
        model(torch.ones(3, 4)).sum().backward()
    by_op = {}
    for call in captured(capture):
        by_op.setdefault(call.folder.parent.name, []).append(call.meta.get("module"))
    assert by_op["aten.tanh_backward"] == [""]
    assert by_op["aten.gelu_backward"] == ["layer3.1.act", "layer3.0.act"]
    assert by_op["aten.mm"] == ["head"] * 2 + ["layer3.1.conv1"] * 2 + ["layer3.0.conv1"]


def test_backward_on_the_engines_own_thread(captured):
    """The thread of a device has no Python stack."""
    model = Net().to("sim")
    with op_tools.OpCapture(level="aten", ops="addmm, mm") as capture:
        model(torch.ones(3, 4, device="sim")).sum().backward()
    modules = [call.meta.get("module") for call in captured(capture) if call.folder.parent.name == "aten.mm"]
    assert modules == ["head"] * 2 + ["layer3.1.conv1"] * 2 + ["layer3.0.conv1"]


def test_double_backward(captured):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3, requires_grad=True)
    with op_tools.OpCapture(level="aten", ops="addmm, mm, tanh, tanh_backward, mul.Tensor") as capture:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
    for call in captured(capture):
        if call.folder.parent.name == "aten.mm":
            assert call.meta["module"] == "0"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_runs_again_is_where_it_was(captured, reentrant):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = Outer()
    x = torch.ones(2, 4, requires_grad=True)
    for level in ("torch", "aten"):
        with op_tools.OpCapture(level=level, ops=LINEAR[level]) as capture:
            model(x).sum().backward()
        assert modules_of(captured(capture)) == [f"layers.{i}.conv1" for i in (0, 1, 1, 0)]


def test_an_exception_leaves_nothing_behind(captured):
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError("mine")

    model = nn.Sequential(nn.Linear(2, 2), Raises())
    with op_tools.OpCapture(ops="torch.nn.functional.linear, torch.neg") as capture:
        for _ in range(2):
            with pytest.raises(ValueError, match="mine"):
                model(torch.ones(1, 2))
            torch.neg(torch.ones(1))
    assert modules_of(captured(capture)) == ["0", None, "0", None]


def test_a_tool_that_starts_inside_a_module(captured):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            capture.start()
            y = self.inner(x)
            capture.stop()
            return self.inner(y)

    capture = op_tools.OpCapture(ops="torch.nn.functional.linear")
    Half()(torch.ones(1, 2))
    assert modules_of(captured(capture)) == ["inner"]


def test_a_shared_module_and_one_outside_of_the_model(captured):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            shared = nn.Linear(2, 2)
            self.left = nn.Sequential(shared)
            self.right = nn.Sequential(shared)
            self.hidden = [nn.Linear(2, 2)]  # registered nowhere

        def forward(self, x):
            return self.hidden[0](self.right(self.left(x)))

    with op_tools.OpCapture(ops="torch.nn.functional.linear") as capture:
        Tied()(torch.ones(1, 2))
    assert modules_of(captured(capture)) == ["left.0", "right.0", "Linear"]


def test_threads_have_modules_of_their_own(captured):
    models = [nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))) for _ in range(3)]
    paths = {}

    def work(number):
        with op_tools.OpTimeMeasure(
            with_modules=True, ops="torch.nn.functional.linear", lines=False, files=False
        ) as tool:
            for _ in range(50):
                models[number](torch.ones(1, 2))
        paths[number] = {row.module: row.calls for row in tool.result().by_module}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == {number: {"Sequential.0": 50, "Sequential.1.0": 50} for number in range(3)}


def test_models_are_not_kept_alive(captured):
    model = Net()
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as capture:
        model(torch.ones(3, 4))
    assert len(captured(capture)) == 3
    gone = [weakref.ref(module) for module in model.modules()]
    del model
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)


def test_modules_that_come_and_go_have_their_own_names(captured):
    """An address may be used again."""
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as capture:
        for number in range(40):
            nn.ModuleDict({"a": nn.Linear(2, 2)})["a"](torch.ones(1, 2))
            nn.Sequential(*[nn.Identity()] * (number % 3), nn.Linear(2, 2))(torch.ones(1, 2))
    expected = [path for number in range(40) for path in ("", str(number % 3))]
    assert modules_of(captured(capture)) == expected


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")
def test_modules_of_torchscript(captured, level):
    with op_tools.OpCapture(level=level, ops=f"{LINEAR[level]}, linear, .*neg") as capture:
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
        scripted(torch.ones(3, 4))
        torch.neg(torch.ones(2))
    assert capture.result().failure == ""
    assert modules_of(captured(capture)) == ([None] if level == "torch" else ["", None])


def test_torch_compile_is_left_alone(captured):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    model = Net()
    expected = model(torch.ones(3, 4))
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with op_tools.OpCapture(level="aten", ops="addmm") as capture:
        assert torch.equal(compiled(torch.ones(3, 4)), expected)
    assert counter.frame_count == 1
    calls = captured(capture)
    assert len(calls) == 3  # the backend runs torch's operators as they are
    assert {call.meta["model"] for call in calls} == {"Net"}


def test_names_are_the_same_where_the_compiler_breaks_a_graph(captured):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            torch._dynamo.graph_break()
            return self.block(x)

    torch._dynamo.reset()
    model = nn.Sequential(Broken(), nn.Linear(4, 4))
    model[0] = torch.compile(model[0], backend="eager")
    with op_tools.OpCapture(level="aten", ops="addmm") as capture:
        model(torch.ones(3, 4))
    calls = captured(capture)
    assert len(calls) == 2
    assert calls[0].meta["module"] == "0.block" or calls[0].meta["module"] == "0"  # inside, compiled code has no stack
    assert calls[1].meta["module"] == "1"


def test_rows_of_other_tools_say_the_module(tmp_path):
    model = LeNet().to("sim")
    x = torch.ones(2, 1, 8, 8, device="sim")
    with (
        op_tools.sim_device.fault("scale", ops="convolution", call=1, scale=2.0),
        op_tools.OpAutoCompare(ops="torch.nn.functional.*", output_dir=tmp_path) as tool,
    ):
        model(x).sum().backward()
    wrong = {row["module"] for row in tool.result().failures}
    assert wrong == {"LeNet.conv2"}
    rows = [json.loads(line) for line in (Path(tool.result().root) / "autocompare.jsonl").read_text().splitlines()]
    assert all(row["module"].startswith("LeNet") for row in rows)


def test_a_hook_of_ones_own_is_on_in_the_named_modules_only():
    class Names(op_tools.Hook):
        def __init__(self):
            self.names = []

        def before(self, call):
            self.names.append((call.name, call.module))

    names = Names()
    with op_tools.HookScope(names, modules="layer3.0.act"):
        Net()(torch.ones(1, 4))
    assert names.names == [("torch.nn.functional.gelu", "Net.layer3.0.act")]
