"""Operators that Python handlers call: the local operators of a tensor subclass, all operators under a dispatch mode."""

import contextlib

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import op_tools
import op_tools.sim_device as sim


class Names(op_tools.Hook):
    def __init__(self):
        super().__init__()
        self.names = []

    def before(self, call):
        self.names.append(call.name)


class Wrapper(Tensor):
    """Holds its data in another tensor, as a DTensor does."""

    @staticmethod
    def __new__(cls, local):
        return Tensor._make_wrapper_subclass(cls, local.shape, dtype=local.dtype, device=local.device)

    def __init__(self, local):
        self.local = local

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda one: one.local, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, function(*args, **kwargs))


class Failing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        function(*args, **(kwargs or {}))
        raise LookupError("the mode fails")


def names_of(work, *inside):
    hook = Names()
    with op_tools.HookScope(hook, level="aten"), contextlib.ExitStack() as stack:
        for context in inside:
            stack.enter_context(context)
        work()
    return hook.names


def work_on(x):
    return (x.mm(x).relu() + 1).sum()


@pytest.mark.parametrize("modes", [1, 2])
def test_a_dispatch_mode_hides_nothing(modes):
    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)

    def work():
        torch.autograd.grad((x.mm(y).relu() + 1).sum(), x)

    expected = names_of(work)
    assert "aten::mm" in expected and "aten::threshold_backward" in expected
    under = [FlopCounterMode(display=False) for _ in range(modes)]
    names = names_of(work, *under)
    assert [
        name for name in names if name != "aten::detach"
    ] == expected  # torch detaches a saved result by a mode's handler
    assert under[0].get_total_flops() == 2 * 2 * 4**3


def test_a_scope_inside_a_mode_sees_too():
    x = torch.randn(4, 4)
    with FlopCounterMode(display=False):
        assert names_of(lambda: work_on(x)) == ["aten::mm", "aten::relu", "aten::add.Tensor", "aten::sum"]


def test_operators_inside_a_subclass_are_seen_once_with_the_tensors_that_hold_the_data():
    class Shapes(Names):
        def before(self, call):
            super().before(call)
            assert all(type(one) is Tensor for one in call.args if isinstance(one, Tensor))

    hook, x = Shapes(), torch.randn(4, 4)
    with op_tools.HookScope(hook, level="aten"):
        result = work_on(Wrapper(x))
    assert hook.names == ["aten::mm", "aten::relu", "aten::add.Tensor", "aten::sum"]
    assert torch.equal(result.local, work_on(x))


def test_what_a_hooked_operator_does_with_subclasses_and_modes_is_a_part_of_it():
    with torch.library._scoped_library("handlers", "DEF") as library:
        library.define("inner(Tensor x) -> Tensor")

        def inner(x):
            with FlopCounterMode(display=False):
                return Wrapper(x).mm(Wrapper(x)).local + work_on(x)

        library.impl("inner", inner, "CPU")
        x = torch.randn(4, 4)
        assert names_of(lambda: torch.ops.handlers.inner(x)) == ["handlers::inner"]
        assert names_of(lambda: torch.ops.handlers.inner(x), FlopCounterMode(display=False)) == ["handlers::inner"]


def test_a_handler_that_fails_leaves_everything_as_it_was():
    x = torch.randn(4, 4)
    hook = Names()
    with op_tools.HookScope(hook, level="aten"):
        with pytest.raises(LookupError), Failing():
            x.mm(x)
        before = torch._C._dispatch_tls_local_exclude_set()
        x.exp()
        assert torch._C._dispatch_tls_local_exclude_set() == before
    assert hook.names == ["aten::mm", "aten::exp"]
    with Failing(), pytest.raises(LookupError):
        x.sin()
    assert hook.names == ["aten::mm", "aten::exp"]


DISTRIBUTED = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
import op_tools

class Names(op_tools.Hook):
    def before(self, call):
        print(call.name)

dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
x = distribute_tensor(torch.randn(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
x.mm(x).relu()  # values for a placement are computed once
with op_tools.HookScope(Names(), level="aten"):
    x.mm(x).relu()
dist.destroy_process_group()
"""


def test_local_operators_of_a_distributed_tensor_are_seen(python, tmp_path):
    done = python(DISTRIBUTED.replace("{store}", str(tmp_path / "store")))
    assert done.stdout.split() == ["aten::mm", "aten::relu"]


@pytest.mark.parametrize("wrap", [Wrapper, lambda x: x], ids=["subclass", "mode"])
def test_a_wrong_operator_is_named_there(wrap):
    x = torch.randn(8, 8).to("sim")
    mode = FlopCounterMode(display=False) if wrap is not Wrapper else contextlib.nullcontext()
    with sim.fault("scale", ops="aten::mm", scale=1.5), mode, op_tools.OpAutoCompare(level="aten") as tool:
        work_on(wrap(x))
    assert [row.op for row in tool.result().failures] == ["aten::mm"]


def test_operators_move_there():
    x = torch.randn(8, 8).to("sim")
    expected = x.cpu().mm(x.cpu())
    with sim.fault("scale", ops="aten::mm", scale=1.5), FlopCounterMode(display=False):
        with op_tools.OpFallback(level="aten", ops="mm"):
            moved = x.mm(x), Wrapper(x).mm(Wrapper(x)).local
        wrong = x.mm(x)
    assert all(torch.allclose(one.cpu(), expected) for one in moved)
    assert not torch.allclose(wrong.cpu(), expected)


def test_what_a_fake_tensor_mode_calls_has_no_data_and_is_not_seen():
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(4, 4))
        assert names_of(lambda: work_on(x + torch.ones(4, 4))) == []


def test_backward_calls_inside_a_subclass_have_the_line_and_module_of_the_forward_call(tmp_path):
    class Layer(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x.mm(self.weight))

    layer = Layer()
    layer.weight = torch.nn.Parameter(Wrapper(torch.randn(4, 4)))
    with op_tools.OpRecord(level="aten", output_dir=tmp_path) as tool:
        layer(Wrapper(torch.randn(4, 4))).sum().backward()
    calls = {(call.op, call.phase): call for call in op_tools.read_recording(tool.result().path).calls}
    for forward, backward in (("aten::mm", "aten::mm"), ("aten::relu", "aten::threshold_backward")):
        forward_call, other = calls[forward, "forward"], calls[backward, "backward"]
        assert (other.module, other.line, other.forward_id) == ("Layer", forward_call.line, forward_call.id)
        assert "test_python_handlers.py" in forward_call.line  # the handler's, which is code of this program
