"""Whatever torch can do to a program, it gives the same with the tools on."""

import copy
import functools
import gc
import json
import random
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import different, same_bits, train
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from unchanged import LEVELS, all_tools, assert_same, run

import op_tools
import op_tools.sim_device

LIBRARY = torch.library.Library("op_tools_test", "DEF")
LIBRARY.define("scale(Tensor x, float factor) -> Tensor")
LIBRARY.impl("scale", lambda a, factor: a * factor, "CPU")
LIBRARY.define("fails(Tensor x) -> Tensor")
LIBRARY.define("composed(Tensor x) -> Tensor")
LIBRARY.impl("composed", lambda a: a.exp() * a, "CompositeImplicitAutograd")


@functools.partial(LIBRARY.impl, "fails", dispatch_key="CPU")
def fails(_):
    raise KeyError("mine")


@torch.library.custom_op("op_tools_test::python_operator", mutates_args=())
def python_operator(a: torch.Tensor) -> torch.Tensor:
    return a.sin()


python_operator.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
torch.library.register_autograd(
    "op_tools_test::scale",
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    lib=LIBRARY,
)


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def loss(weights, inputs):
    return torch.tanh(F.linear(inputs, weights)).square().sum()


def vmapped():
    return torch.func.vmap(lambda a, b: (a @ b, a.softmax(0)))(x(5, 3, 4), x(5, 4, 2))


def func_grad():
    return torch.func.grad(loss)(x(2, 3), x(4, 3))


def per_sample_gradients():
    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(x(2, 3), x(4, 3))


def jacobians():
    def f(v):
        return torch.sin(v).cumsum(0)

    return torch.func.jacrev(f)(x(4)), torch.func.jacfwd(f)(x(4))


def hessian():
    return torch.func.hessian(lambda v: (v.exp() * v).sum())(x(3))


def forward_ad():
    import torch.autograd.forward_ad as fwad

    with fwad.dual_level():
        dual = fwad.make_dual(x(3), x(3) + 1)
        return tuple(fwad.unpack_dual(torch.exp(dual * 2)))


def inference_mode():
    with torch.inference_mode():
        a = x(3).mul_(2)
        a.add_(1)
        return F.relu(a), a


def functional_call():
    layer = nn.Linear(3, 2)
    return torch.func.functional_call(layer, {"weight": x(2, 3), "bias": x(2)}, x(4, 3))


def functionalised():
    return torch.func.functionalize(lambda a: a.clone().add_(1)[1:].mul_(2))(x(4))


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        a = torch.ones(3, 4)
        return (a @ a.t()).shape, F.relu(a).stride()


def scripted():
    @torch.jit.script
    def f(a, n: int):
        for i in range(n):
            a = torch.relu(a * 2) + i
        return a

    return f(x(3), 4)


def traced():
    return torch.jit.trace(lambda a: torch.sin(a) * a, x(3))(x(3) + 1)


def wrapper_class(**properties):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, **properties)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            unwrap = functools.partial(torch.utils._pytree.tree_map_only, cls, lambda w: w.inner)
            return torch.utils._pytree.tree_map_only(torch.Tensor, cls, function(*unwrap(args), **unwrap(kwargs or {})))

    return Wrapper


def wrapper_subclass():
    wrap = wrapper_class()
    result = F.relu(wrap(x(3, 4)) @ wrap(x(4, 2))) + 1
    result.add_(x(3, 2))  # beside a plain tensor
    return result.inner


def subclass_that_answers_for_its_sizes():
    # torch notes an answer in the tensor, which then cannot be copied any more: nobody may ask but the program.
    wrapped = wrapper_class(dispatch_sizes_strides_policy="sizes")(x(3, 4))
    other = copy.deepcopy(wrapped)
    other.add_(x(3, 4))
    return wrapped.inner, other.inner, sorted(vars(wrapped))


def gradient_that_is_a_subclass():
    # It has no memory: a tool's copy of it without its class would be read from nowhere.
    wrap = wrapper_class()
    weight = torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.relu(weight * 2), weight, wrap(x(3, 4)))
    return gradient.inner


def masked_and_nested():
    nested = torch.nested.nested_tensor([x(2), x(3)], layout=torch.jagged)
    return (nested * 2).unbind()


def hooks_of_modules():
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(x(2, 3))
        layer.bias.zero_()
    seen = []
    layer.register_forward_hook(lambda _, __, out: seen.append(out.detach().clone()))
    layer.register_full_backward_hook(lambda _, gi, go: seen.append(go[0].clone()))
    layer(x(4, 3).requires_grad_()).sum().backward()
    return seen


def hooks_of_tensors():
    """Every kind of hook that a tensor or its node may have, in the order in which they run."""
    seen = []

    def note(name, factor=None):
        def hook(*values):
            seen.append((name, [value.detach().clone() for value in tree_leaves(values) if torch.is_tensor(value)]))
            return None if factor is None else values[0] * factor

        return hook

    a, b = x(3, 3).requires_grad_(), (x(3, 3) + 1).requires_grad_()
    y = F.linear(a, b)
    y.retain_grad()
    y.register_hook(note("y", 2))
    z = y.tanh()
    z.grad_fn.register_prehook(note("before tanh"))
    z.grad_fn.register_hook(note("after tanh"))
    a.register_hook(note("a", 3))
    b.register_post_accumulate_grad_hook(note("b is there"))
    torch.autograd.graph.register_multi_grad_hook((a, y), note("both"))
    removed = z.register_hook(note("never"))
    removed.remove()
    (z * a).sum().backward()
    return seen, a.grad, b.grad, y.grad


def failing_everywhere():
    """An exception in each place where a program's own code may run below torch: it arrives, and later calls work."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    def fail(*_, **__):
        raise KeyError("mine")

    class Modes(torch.overrides.TorchFunctionMode):
        __torch_function__ = fail

    class Below(TorchDispatchMode):
        __torch_dispatch__ = fail

    class Subclass(torch.Tensor):
        __torch_function__ = classmethod(fail)

    class Forward(torch.autograd.Function):
        forward, backward = staticmethod(fail), staticmethod(fail)

    class Backward(torch.autograd.Function):
        forward, backward = staticmethod(lambda ctx, a: a.clone()), staticmethod(fail)

    def in_mode(mode):
        with mode:
            F.relu(x(3))

    def in_layer(register):
        layer = nn.Linear(3, 2)
        getattr(layer, register)(fail)
        layer(x(4, 3).requires_grad_()).sum().backward()

    def in_backward(register):
        a = x(3).requires_grad_()
        y = a.exp()
        register(a, y)
        y.sum().backward()

    def in_compiled_graph():
        torch._dynamo.reset()
        torch.compile(lambda a, at: torch.gather(a.sin(), 0, at), backend="eager")(x(3), torch.tensor([7]))

    places = {
        "operator": lambda: torch.mm(x(2, 3), x(2, 3)),
        "out=": lambda: torch.add(x(3), 1, out=torch.empty(3, dtype=torch.bool)),
        "in place on a leaf": lambda: x(3).requires_grad_().add_(1),
        "changed after it was saved": lambda: in_backward(lambda a, y: y.add_(1)),
        "function mode": lambda: in_mode(Modes()),
        "dispatch mode": lambda: in_mode(Below()),
        "subclass": lambda: F.relu(x(3).as_subclass(Subclass)),
        "forward of a function": lambda: Forward.apply(x(3)),
        "backward of a function": lambda: Backward.apply(x(3).requires_grad_()).sum().backward(),
        "hook of a tensor": lambda: in_backward(lambda a, y: y.register_hook(fail)),
        "hook of a node": lambda: in_backward(lambda a, y: y.grad_fn.register_prehook(fail)),
        "hook of a gradient": lambda: in_backward(lambda a, y: a.register_post_accumulate_grad_hook(fail)),
        "hook before a module": lambda: in_layer("register_forward_pre_hook"),
        "hook after a module": lambda: in_layer("register_forward_hook"),
        "hook of a module's backward": lambda: in_layer("register_full_backward_hook"),
        "checkpoint": lambda: checkpoint(lambda a: fail(a.exp()), x(3).requires_grad_(), use_reentrant=False),
        "reentrant checkpoint": lambda: checkpoint(lambda a: fail(a.exp()), x(3).requires_grad_(), use_reentrant=True),
        "vmap": lambda: torch.func.vmap(lambda a: fail(a.exp()))(x(3, 2)),
        "grad": lambda: torch.func.grad(lambda a: fail(a.exp()))(x(3)),
        "operator of one's own": lambda: torch.ops.op_tools_test.fails(x(3)),
        "TorchScript": lambda: torch.jit.trace(torch.mm, (x(3, 3), x(3, 3)), check_trace=False)(x(2, 3), x(2, 3)),
        "compiled": in_compiled_graph,
    }
    seen, modes = [], torch.overrides._len_torch_function_stack()
    for name, place in places.items():
        try:
            place()
            seen.append((name, "no error"))
        except Exception as error:
            seen.append((name, type(error).__name__, str(error).splitlines()[0]))
        a = x(3).requires_grad_()
        a.exp().sum().backward()
        seen.append(a.grad)
    return seen, torch.is_grad_enabled(), torch.overrides._len_torch_function_stack() - modes


def operators_of_ones_own():
    """Of a library, with a gradient, of a Python function, and by way of the dispatcher's Composite key."""
    a = x(3).requires_grad_()
    y = torch.ops.op_tools_test.scale(a, 2.0) + python_operator(a) + torch.ops.op_tools_test.composed(a)
    y.sum().backward()
    return y, a.grad


def saved_tensor_hooks():
    a = x(3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        y = a.exp() * a
    y.sum().backward()
    return a.grad


def parametrised():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        layer.bias.zero_()
        for p in layer.parametrizations.weight.parameters():
            p.copy_(x(*p.shape))
    return layer(x(4, 3))


def threads():
    """As DataParallel does it: replicas that run forward in threads of their own."""
    results = [None] * 4

    def run(i):
        a = x(3, 3).requires_grad_()
        (F.linear(a, a).tanh() * i).sum().backward()
        results[i] = a.grad

    workers = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def exported():
    class Net(nn.Module):
        def forward(self, a):
            return torch.relu(a @ a.t()).sum(0)

    program = torch.export.export(Net(), (x(3, 3),))
    return program.module()(x(3, 3) + 1), str(program.graph_module.graph)


def pickled(tmp="tensor.pt"):
    torch.save({"a": x(3), "b": x(2, 2).requires_grad_()}, tmp)
    return torch.load(tmp, weights_only=True)


def copies():
    a = x(3, 4).requires_grad_()
    return copy.deepcopy(a), copy.copy(a), a.clone(memory_format=torch.preserve_format)


def printing():
    return repr(x(3, 4)), str(x(2).requires_grad_() * 2), format(x(1)[0], ".3f"), x(2).tolist()


class Scaled(torch.autograd.Function):
    """With a backward of its own that can be differentiated again."""

    @staticmethod
    def forward(ctx, a, factor):
        ctx.save_for_backward(a)
        ctx.factor = factor
        return a * a * factor

    @staticmethod
    def backward(ctx, gradient):
        (a,) = ctx.saved_tensors
        return 2 * a * gradient * ctx.factor, None


def own_function():
    a = x(4).requires_grad_()
    (first,) = torch.autograd.grad(Scaled.apply(a, 3.0).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), a)
    return first, second


def checkpointed():
    """Both kinds; the block draws random numbers, which have to be drawn again in the same way."""
    from torch.utils.checkpoint import checkpoint

    gradients = []
    for reentrant in (True, False):
        torch.manual_seed(3)
        a = x(4, 4).requires_grad_()
        y = checkpoint(lambda v: F.dropout(torch.tanh(v @ v), 0.5), a, use_reentrant=reentrant)
        (y * x(4, 4)).sum().backward()
        gradients.append(a.grad)
    return gradients


def checkpoint_that_stops_early():
    """The second forward ends in an exception of Python's, thrown through operators, as soon as it has its tensors."""
    from torch.utils.checkpoint import checkpoint

    a = x(4, 4).requires_grad_()
    y = checkpoint(lambda v: (v.exp() @ v).sin().sum(), a, use_reentrant=False)
    y.backward()
    return a.grad, y


def failing_saved_tensor_hooks():
    def fail(_):
        raise KeyError("mine")

    seen = []
    a = x(3).requires_grad_()
    for pack, unpack in ((fail, lambda t: t), (lambda t: t, fail)):
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                (a.exp() * a).sum().backward()
        except KeyError as error:
            seen.append(str(error))
    return seen, a.grad


def profiled():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        a = x(3, 3).requires_grad_()
        (F.linear(a, a).tanh() + a).sum().backward()
    # In which order they were numbered: a tool that runs a call again, with a graph of its own, leaves gaps.
    numbers = sorted({event.sequence_nr for event in profile.events()})
    names = [(event.name, numbers.index(event.sequence_nr)) for event in profile.events()]
    return [(name, number) for name, number in names if not name.startswith(("[", "PyTorch Profiler"))]


def under_a_dispatch_mode(device="cpu"):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    a = x(3, 3).to(device).requires_grad_()
    with Noting() as mode:
        (F.linear(a, a).softmax(-1) * a * torch.ones(3, device=device)).sum().backward()
    return mode.names, a.grad


def distributed_tensors():
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        a = distribute_tensor(x(4, 3), mesh, [Shard(0)]).requires_grad_()
        w = distribute_tensor(x(2, 3), mesh, [Replicate()])
        F.linear(a, w).relu().sum().backward()
        return a.grad.full_tensor(), F.linear(a, w).full_tensor(), str(a.grad.placements)
    finally:
        dist.destroy_process_group()


PROGRAMS = [
    gradient_that_is_a_subclass,
    own_function,
    operators_of_ones_own,
    hooks_of_tensors,
    failing_everywhere,
    checkpointed,
    checkpoint_that_stops_early,
    failing_saved_tensor_hooks,
    profiled,
    under_a_dispatch_mode,
    distributed_tensors,
    vmapped,
    func_grad,
    per_sample_gradients,
    jacobians,
    hessian,
    forward_ad,
    inference_mode,
    functional_call,
    functionalised,
    fake,
    scripted,
    traced,
    wrapper_subclass,
    subclass_that_answers_for_its_sizes,
    masked_and_nested,
    hooks_of_modules,
    saved_tensor_hooks,
    parametrised,
    threads,
    exported,
    pickled,
    copies,
    printing,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_program_gives_the_same_with_capture_on(level, program, capfd):
    torch.manual_seed(1)
    expected = program()
    torch.manual_seed(1)
    with op_tools.OpCapture(level=level, format="container") as tool:
        result = program()
    assert_same(result, expected)
    assert tool.result().failure == "" and tool.result().lost == 0
    assert "op_tools error" not in capfd.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_program_gives_the_same_with_all_tools_on(program, capfd, monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "container")
    expected = run(program, [])
    assert_same(run(program, all_tools()), expected)
    assert "op_tools error" not in capfd.readouterr().err


@pytest.mark.parametrize("number", range(len(all_tools())))
def test_a_mode_of_the_dispatcher_sees_the_same_operators_of_a_device(number):
    """torch gives a program another tensor where something else holds what a factory made: a detach."""
    expected = run(partial(under_a_dispatch_mode, "sim"), [])
    assert_same(run(partial(under_a_dispatch_mode, "sim"), [all_tools()[number]]), expected)


@pytest.mark.parametrize("seed", range(3))
def test_training_is_the_same_with_all_tools_entered_and_left_in_any_order(seed, capfd, monkeypatch):
    """A step each while tools come and go: nested, interleaved, entered again."""
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "container")
    expected = train("lenet", "adam", steps=24, batch=4)
    chance = random.Random(seed)
    tools = all_tools()
    on = []

    def after_step():
        for tool in chance.sample(on, min(len(on), chance.randint(0, 4))):
            tool.stop()
            on.remove(tool)
        off = [tool for tool in tools if tool not in on]
        for tool in chance.sample(off, min(len(off), chance.randint(0, 4))):
            tool.start()
            on.append(tool)

    try:
        result = train("lenet", "adam", steps=24, batch=4, after_step=after_step)
    finally:
        for tool in on:
            tool.stop()
    assert different(result, expected) == []
    assert [type(tool).__name__ for tool in tools if tool._scope and tool._scope.hook_failures] == []
    assert "op_tools error" not in capfd.readouterr().err


EXITS = {
    "its end": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise ValueError('mine')",
    "a signal": "signal.raise_signal(signal.SIGINT)",
}


@pytest.mark.parametrize("how", EXITS)
def test_interpreter_exits_as_ever_with_scopes_of_all_tools_open(how, python):
    program = f"""
import os, signal, sys, torch
ON
torch.manual_seed(0)
a = torch.randn(4, 4, requires_grad=True)
for _ in range(3):
    torch.nn.functional.linear(a, a).tanh().sum().backward()
print(a.grad.tolist(), flush=True)
{EXITS[how]}
"""
    start = """
import op_tools
from op_tools._tools.tool_classes import tool_classes
kinds = [kind for name, kind in tool_classes().items() if name != "OpDtypeCast"]
assert len(kinds) > 8
tools = [kind(level=level).start() for kind in kinds for level in ("torch", "aten")]
tools += [op_tools.HookScope(op_tools.Hook(), level=level).start() for level in ("torch", "aten")]
"""
    plain = python(program.replace("ON", ""), check=False)
    done = python(program.replace("ON", start), check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (plain.returncode, plain.stdout.splitlines()[0])
    # Python writes an error in pieces, and a thread of a tool may write a line of its own between two of them.
    for word in [word for line in plain.stderr.splitlines()[-1:] for word in line.split()]:
        assert word.rstrip(":") in done.stderr
    assert "op_tools error" not in done.stderr and "Fatal" not in done.stderr


# --- Operators of the program's own -----------------------------------------------------------------------------


class Names(op_tools.Hook):
    def __init__(self):
        self.seen = []

    def before(self, call):
        self.seen.append(call.name)


@pytest.mark.parametrize("level", LEVELS)
def test_custom_operator_is_seen(level):
    hook = Names()
    with op_tools.HookScope(hook, level=level, ops=".*op_tools_test.*"):
        result = torch.ops.op_tools_test.scale(torch.ones(2), 3.0)
    assert result.tolist() == [3, 3]
    assert hook.seen == [{"torch": "torch.ops.op_tools_test.scale", "aten": "op_tools_test::scale"}[level]]


@pytest.mark.parametrize("level", LEVELS)
def test_operator_that_is_registered_inside_a_scope_is_seen_and_works_afterwards(level):
    name = f"late_{level}"
    hook = Names()
    with op_tools.HookScope(hook, level=level, ops=f".*{name}.*"):

        @torch.library.custom_op(f"op_tools_test::{name}", mutates_args=())
        def late(a: torch.Tensor) -> torch.Tensor:
            return a + 1

        late.register_autograd(lambda _, gradient: gradient * 5)
        a = torch.ones(2, requires_grad=True)
        late(a).sum().backward()
    assert a.grad.tolist() == [5, 5]
    assert len(hook.seen) >= 1 and all(name in seen for seen in hook.seen)
    assert late(a).tolist() == [2, 2]


def test_operator_that_went_and_came_again_is_left_out_once(python):
    # The first operator is met inside a scope, so it holds no registration of ours, and goes.
    done = python("""
import torch, op_tools

def make(namespace):
    library = torch.library.Library(namespace, "DEF")
    library.define("twice(Tensor a) -> Tensor")
    library.impl("twice", lambda a: a + a, "CPU")
    return library

def scope():
    return op_tools.HookScope(op_tools.Hook(), level="aten", ops="aten::mul.Tensor")

for _ in range(5):
    with scope():
        library = make("op_tools_again")
        torch.ops.op_tools_again.twice(torch.ones(2))
    library._destroy()
    others = [make(f"op_tools_other{i}") for i in range(20)]  # take the memory that came free
    library = make("op_tools_again")
    with scope():
        assert torch.ops.op_tools_again.twice(torch.ones(2)).tolist() == [2, 2]
    for one in (library, *others):
        one._destroy()
    del library, others
""")
    assert "previously registered" not in done.stderr


# --- Who else holds a tensor ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["OpCapture", "OpAutoCompare", "OpObserve", "OpOverflowCheck", "OpTimeMeasure"])
def test_tensors_that_calls_were_given_can_be_swapped(level, name):
    with getattr(op_tools, name)(level=level):
        left, other = nn.Parameter(x(2, 3)), nn.Parameter(x(3, 2))
        (left @ other).relu().sum().item()
        torch.utils.swap_tensors(left, other)
        assert left.shape == (3, 2) and left._use_count() == 1


# --- Hooks of the program --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["OpCapture", "OpAutoCompare", "OpOverflowCheck"])
def test_hooks_on_saved_tensors_are_called_as_often_as_without_a_tool(level, name):
    def program():
        calls = []

        def pack(tensor):
            calls.append(("pack", tuple(tensor.shape)))
            return tensor.detach().clone()

        def unpack(tensor):
            calls.append(("unpack", tuple(tensor.shape)))
            return tensor

        weight = x(2, 3).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            (F.layer_norm(F.linear(x(4, 3), weight), (2,)).exp() * 2).square().mean().backward()
        return calls, weight.grad

    calls, gradient = program()
    with getattr(op_tools, name)(level=level):
        result = program()
    assert result[0] == calls and same_bits(result[1], gradient)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_results_that_cannot_be_compared_leave_comparison_on(level):
    with op_tools.OpAutoCompare(level=level) as tool:
        pieces = (torch.nested.nested_tensor([x(2, 3), x(4, 3)]) * 2).unbind()
        batch = torch.eye(3)
        a = x(3).requires_grad_()
        (rows,) = torch.autograd.grad(a.sin(), (a,), (batch,), is_grads_batched=True)
        assert tool._scope.hook_failures == 0
    assert same_bits(pieces[1], x(4, 3) * 2) and same_bits(rows, batch * a.detach().cos())


# --- Symbolic numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["OpCapture", "OpAutoCompare", "OpObserve", "OpTimeMeasure"])
def test_symbolic_sizes_stay_symbolic(level, name):
    def program():
        mode = FakeTensorMode(shape_env=ShapeEnv())
        rows, columns = mode.from_tensor(torch.rand(2, 3)).shape
        torch.sym_max(rows, columns)
        return type(rows + columns), type(rows), len(mode.shape_env.guards)

    expected = program()
    with getattr(op_tools, name)(level=level) as tool:
        assert program() == expected
        assert tool._scope.hook_failures == 0


class Counted:
    """A number in the program's own words: it notices who asks."""

    asked = 0

    def __index__(self):
        Counted.asked += 1
        return 1


def test_the_programs_own_numbers_are_not_asked():
    a = x(3, 2)
    a[Counted()]
    asked, Counted.asked = Counted.asked, 0
    with op_tools.OpCapture():
        a[Counted()]
    assert Counted.asked == asked


LSTM = nn.LSTM(3, 2).requires_grad_(False)
FACTORIES = {
    "rand": lambda a: torch.rand(3) + a,
    "ones": lambda a: a + torch.ones(3),
    "zeros_like": lambda a: torch.zeros_like(a) + a,
    "full": lambda a: torch.full((3,), 2.0) * a,
    "zeros by a size": lambda a: a + torch.zeros(a.size(0)),
    "view by a size": lambda a: a.view(a.size(0), 1) * 2,
    "reshape by a size": lambda a: a.reshape(1, a.size(0)) + torch.ones(a.shape[0]),
    "a list of tensors": lambda a: LSTM(a.view(1, 1, 3))[0],
}


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.trace. is deprecated:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "tool",
    [
        op_tools.OpAutoCompare,
        op_tools.OpCapture,
        op_tools.OpFallback,
        op_tools.OpInvariance,
        op_tools.OpOverflowCheck,
        op_tools.OpTimeMeasure,
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_trace_keeps_its_factories_and_sizes(tool, level, device):
    """torch gives a program the result of a factory as it is while nobody else has it; a copy is unknown to the trace.
    Sizes that are values of the trace wait on the thread for the call that takes them: a run again takes none."""
    a = x(3).to(device)
    LSTM.to(device)
    with torch.device(device):
        for function in FACTORIES.values():

            def graph(function=function):
                return str(torch.jit.trace(function, a, check_trace=False).graph)

            expected = graph()
            with tool(level=level):
                assert graph() == expected
            assert graph() == expected


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("tool", [op_tools.OpAutoCompare, op_tools.OpInvariance])
def test_a_traced_call_is_not_judged_and_it_is_said_why(tool):
    with tool() as running:
        torch.jit.trace(lambda a: a.exp(), x(3), check_trace=False)
    result = running.result()
    assert any("torch.jit.trace records it" in reason for reason in result.reasons)


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning", "ignore:Error detected in:UserWarning")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tool", [op_tools.OpAutoCompare, op_tools.OpInvariance])
def test_a_pass_that_anomaly_detection_ends_is_freed(tool, level):
    def memory():
        a = torch.zeros(3, requires_grad=True)
        with tool(level=level), torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
            (a.sqrt() * 0).sum().backward()
        return StorageWeakRef(a.untyped_storage())

    freed = memory()
    gc.collect()
    assert freed.expired()


# --- Operators that take functions: torch dispatches them in Python --------------------------------------------


class Product(torch.autograd.Function):
    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient * b, gradient * a

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent):
        a, b = ctx.saved_tensors
        return a_tangent * b + a * b_tangent

    @staticmethod
    def vmap(info, in_dims, a, b):
        return Product.apply(a, b), 0


FUNCTIONS_UNDER_TRANSFORMS = {
    "grad": lambda a: torch.func.grad(lambda b: Product.apply(b, b).sum())(a),
    "vmap of grad": lambda a: torch.vmap(torch.func.grad(lambda b: Product.apply(b, b).sum()))(a),
    "jvp": lambda a: torch.func.jvp(lambda b: Product.apply(b, b), (a,), (a,)),
}


@pytest.mark.parametrize("name", FUNCTIONS_UNDER_TRANSFORMS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("level", LEVELS)
def test_a_function_of_ones_own_under_a_transform(level, name):
    transform = FUNCTIONS_UNDER_TRANSFORMS[name]
    expected = transform(x(3, 2))
    with op_tools.OpCapture(level=level, format="container") as tool:
        result = transform(x(3, 2))
    assert_same(result, expected)
    assert tool.result().failure == ""


def test_higher_order_operators_made_later_pass_too():
    class Late(torch._ops.HigherOrderOperator):
        def __init__(self):
            super().__init__("op_tools_test_late")

        def __call__(self, function, a):
            return super().__call__(function, a)

    late = Late()
    late.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda function, a: function(a))
    late.py_autograd_impl(lambda function, a: function(a))
    with op_tools.OpCapture(level="aten", format="container") as tool:
        assert same_bits(late(torch.sin, x(3)), x(3).sin())
        sines = sum(row.calls for row in tool.result().rows if row.op == "aten::sin")
    assert sines == 2


# --- Compilers --------------------------------------------------------------------------------------------------


def compiled_step(backend):
    torch._dynamo.reset()
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(x(4, 4))
        layer.bias.zero_()

    @torch.compile(backend=backend)
    def step(a):
        return F.gelu(layer(a)).softmax(-1)

    a = x(3, 4).requires_grad_()
    for _ in range(2):
        out = step(a)
        (out * x(3, 4)).sum().backward()
    return out, a.grad, layer.weight.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_compiled_program_gives_the_same_when_compiled_inside_a_scope(level, backend):
    expected = compiled_step(backend)
    with op_tools.OpCapture(level=level, format="container") as tool:
        result = compiled_step(backend)
    assert_same(result, expected)
    assert tool.result().failure == ""


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_program_runs_eagerly_where_the_tool_wants_it(nested):
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager")
    def step(a):
        b = torch.sin(a)
        torch._dynamo.graph_break()
        return b.exp() if b.sum() > 9 else b.tanh()

    with torch._dynamo.config.patch(nested_graph_breaks=nested), op_tools.OpCapture(compiled="eager") as tool:
        assert same_bits(step(x(3)), torch.sin(x(3)).tanh())
    assert {"torch.sin", "torch.Tensor.tanh"} <= {row.op for row in tool.result().rows}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_program_compiled_outside_runs_inside_and_the_other_way_round(level):
    torch._dynamo.reset()
    step = torch.compile(lambda a: torch.sin(a) + a.exp(), backend="aot_eager")
    expected = torch.sin(x(3)) + x(3).exp()
    assert same_bits(step(x(3)), expected)
    with op_tools.OpCapture(level=level):
        assert same_bits(step(x(3)), expected)
    assert same_bits(step(x(3)), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_what_must_be_one_graph_stays_one(level):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    step = torch.compile(lambda a: torch.sin(a) + a.exp(), backend=counter, fullgraph=True)
    for _ in range(2):
        with op_tools.OpCapture(level=level, format="container") as tool:
            for _ in range(2):
                assert same_bits(step(x(3)), torch.sin(x(3)) + x(3).exp())
        assert counter.frame_count == 1
        calls = {row.op: row.calls for row in tool.result().rows}  # of the graph, where it runs
        assert calls["torch.sin" if level == "torch" else "aten::sin"] >= 2


def accumulated(a):
    from torch._higher_order_ops import scan

    return scan(lambda total, row: (total + row, total * row), torch.zeros(2), a)


@pytest.mark.parametrize("on", ["a mode of the program's", "a tool"])
def test_a_mode_off_its_stack_is_traced_by_torch_compile(on):
    """Module.to() calls the mode in torch's own Python code."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    layer, a = torch.nn.Linear(3, 3), x(2, 3)
    compiled = torch.compile(lambda a: layer.to(torch.float32)(a), backend="eager", fullgraph=True)
    with Mode() if on != "a tool" else op_tools.OpObserve():
        assert torch.equal(compiled(a), layer(a))


COMPILED_BY_TORCH = {
    "cond": lambda a: torch.cond(a.sum() > 0, lambda b: b.sin(), lambda b: b.cos(), (a,)),
    "scan": accumulated,
    "transform": torch.compile(torch.vmap(torch.func.grad(lambda a: a.sin().sum())), backend="eager"),
}


@pytest.mark.parametrize("name", COMPILED_BY_TORCH)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_what_torch_compiles_whole_by_itself(level, name):
    torch._dynamo.reset()
    function = COMPILED_BY_TORCH[name]
    expected = function(x(3, 2))
    for _ in range(2):
        with op_tools.OpCapture(level=level, format="container") as tool, op_tools.OpAutoCompare(level=level) as other:
            result = function(x(3, 2))
        assert_same(result, expected)
        assert tool.result().failure == other.result().failure == ""
        assert tool.result().rows
        torch._dynamo.reset()


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_inside_a_scope(level):
    torch._dynamo.reset()

    def function(a):
        return torch.sin(a) * 2

    with op_tools.OpCapture(level=level, format="container") as tool:
        a = x(8).requires_grad_()
        result = torch.compile(function)(a)
        result.sum().backward()
    torch.testing.assert_close(result, function(x(8)))
    torch.testing.assert_close(a.grad, x(8).cos() * 2)
    assert tool.result().failure == ""


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # of torch: they will be removed
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_objects_of_torchscript_classes_pass_through(level, captured):
    """Packed weights of quantized operators: made by an operator, handed to the next, opened again."""

    def program():
        torch.manual_seed(0)
        weight = torch.quantize_per_tensor(torch.randn(4, 6), 0.1, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, torch.randn(4))
        quantized = torch.quantize_per_tensor(torch.randn(3, 6), 0.1, 128, torch.quint8)
        results = [torch.ops.quantized.linear(quantized, packed, 0.2, 100).int_repr()]
        results.append(torch.ops.quantized.linear_dynamic(torch.randn(3, 6), packed))
        results.append(torch.ops.quantized.linear_unpack(packed)[0].int_repr())
        return results

    alone = program()
    tools = [tool(level=level) for tool in (op_tools.OpAutoCompare, op_tools.OpObserve, op_tools.OpOverflowCheck)]
    capture = op_tools.OpCapture(level=level)
    with tools[0], tools[1], tools[2], capture:
        under = program()
    assert all(one.equal(other) for one, other in zip(alone, under, strict=True))
    assert not any(tool._scope.hook_failures for tool in (*tools, capture))
    assert tools[0].result().failures == []
    calls = [call.meta for call in captured(capture) if "linear_dynamic" in call.folder.parent.name]
    (unsupported,) = [
        value for call in calls for value in call["unsupported"]
    ]  # said, and the rest of the call is saved
    assert unsupported["where"] == "args[1]" and (
        "ScriptObject" in unsupported["type"] or "TorchScript class" in unsupported["why"]
    )


def test_lines_of_calls_are_the_programs_own():
    with op_tools.OpCapture(ops="torch.Tensor.new_empty, torch.Tensor.__deepcopy__, torch.Tensor.add") as tool:
        copy.deepcopy(torch.ones(2))
    (meta,) = Path(tool.result().root).glob("*/*/meta.json")
    assert Path(__file__).name in json.loads(meta.read_text())["stack"][0]
