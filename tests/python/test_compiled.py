"""Programs of torch.compile under the tools: what the option `compiled` does, and which wrong compilers OpAutoCompare finds."""

import contextlib

import pytest
import torch
from conftest import launched
from torch import nn
from torch.utils.checkpoint import checkpoint
from unchanged import LEVELS, assert_same

import op_tools

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.last(nn.functional.gelu(self.norm(self.first(x))))


def inputs(rows=5):
    return torch.linspace(-1, 1, 6 * rows).view(rows, 6)


def train(backend, dynamic=None, dtype=torch.float32):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Block().to(dtype)
    step = torch.compile(model, backend=backend, dynamic=dynamic)
    seen = []
    for rows in (5, 7):
        y = step(inputs(rows).to(dtype))
        y.square().mean().backward()
        seen += [y.detach(), model.calls.clone(), *(p.grad.clone() for p in model.parameters())]
    return seen


TOOLS = ["OpAutoCompare", "OpObserve", "OpOverflowCheck", "OpTimeMeasure", "OpRecord", "OpBlackBox", "OpCapture"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TOOLS)
def test_a_compiled_program_runs_as_without_the_tool(name, level, dynamic):
    expected = train("aot_eager", dynamic)
    with getattr(op_tools, name)(level=level) as tool:
        result = train("aot_eager", dynamic)
    assert_same(result, expected)
    assert tool._scope.hook_failures == 0
    account = tool.coverage()
    takes_graphs = level == "torch" and name not in ("OpCapture",)
    assert (account.graphs > 0) == takes_graphs
    assert (account.compiled > 0) == (
        level == "torch" and not takes_graphs
    )  # aot_eager's operators come to the aten level


def replaced(graph, old, new):
    for node in graph.graph.nodes:
        if node.target is old:
            node.target = new
    graph.recompile()
    return graph.forward


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def each(change):
    """A backend that changes the tensors which the graph returns."""

    def backend(graph, _):
        return lambda *args: tuple(
            change(y) if isinstance(y, torch.Tensor) and y.is_floating_point() else y for y in graph(*args)
        )

    return backend


def loses_mutation(graph, _):
    def run(*args):
        return graph(*(x.clone() if isinstance(x, torch.Tensor) and x.dtype == torch.int64 else x for x in args))

    return run


WRONG = {
    "values": (each(lambda y: y * 1.001), "values"),
    "element": (each(lambda y: y.index_fill(0, torch.tensor([0]), 0.25)), "values"),
    "bfloat16": (each(lambda y: y.bfloat16().float()), "values"),
    "shape": (each(lambda y: y[:1]), "shape"),
    "dtype": (each(lambda y: y.double()), "dtype"),
    "strides": (each(lambda y: y.t().contiguous().t()), "strides"),
    "gradient": (each(Halved.apply), "values"),
    "no gradient function": (each(torch.Tensor.detach), "no gradient"),
    "lost mutation": (loses_mutation, "alias"),
    "activation": (lambda graph, _: replaced(graph, nn.functional.gelu, nn.functional.relu), "values"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_compiler_is_found(fault):
    backend, kind = WRONG[fault]
    torch._dynamo.reset()
    model = Block()
    step = torch.compile(model, backend=backend)
    with op_tools.OpAutoCompare() as tool:
        y = step(inputs())
        if y.requires_grad:
            y.square().mean().backward()
    result = tool.result()
    assert result.verdict.value == "differs"
    wrong = [row for row in result.rows if row.verdict == "differs"]
    assert {row.op for row in wrong} <= {"torch.compile.graph_" + row.op.rpartition("_")[2] for row in wrong}
    assert any(kind in (row.kind, row.reason) or kind in row.reason for row in wrong), wrong


def zeros(graph, _):
    return lambda *args: tuple(torch.zeros_like(y) for y in graph(*args))


ROUNDING_ERRORS = {
    "difference": lambda a: a - a.bfloat16().float(),
    "times 1e4": lambda a: (a - a.bfloat16().float()) * 1e4,
    "sum": lambda a: (a - a.half().float()).abs().sum() * 1000,
    "product": lambda a: (a.to(torch.bfloat16) * 3).float() - a * 3,
}


@pytest.mark.parametrize("backend", [zeros, "inductor"])
@pytest.mark.parametrize("name", ROUNDING_ERRORS)
def test_the_error_of_a_cast_that_float64_has_not_is_no_limit_within_which_zeros_agree(name, backend):
    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        torch.compile(ROUNDING_ERRORS[name], backend=backend)(torch.arange(1, 21).reshape(4, 5) / 7)
    result = tool.result()
    assert result.verdict.value == "not judged"  # inductor may give zeros, too: it need not round
    assert "graphs" in result.coverage.gaps()


class DetachedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w) ** 2

    @staticmethod
    def backward(ctx, gradient):
        x, w = (tensor.detach() for tensor in ctx.saved_tensors)
        return gradient * 2 * x * w * w, gradient * 2 * w * x * x


def penalty(function):
    """The gradient of a weight under a penalty on the gradient of the input."""
    x = torch.arange(1.0, 4).requires_grad_()
    w = torch.full((3,), 2.0, requires_grad=True)
    y = function(x, w)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (y.sum() + gradient.pow(2).sum()).backward()
    return w.grad


def test_a_backward_that_cannot_be_differentiated_again_is_found():
    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        wrong = penalty(
            torch.compile(lambda a, w: (a * w) ** 2, backend=lambda *_: lambda *args: (DetachedBackward.apply(*args),))
        )
    assert not torch.equal(wrong, penalty(lambda a, w: (a * w) ** 2))
    result = tool.result()
    assert result.verdict.value == "differs"
    assert [(row.kind, row.phase) for row in result.rows if row.verdict == "differs"] == [("no gradient", "backward")]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, w: (a * w) ** 2,
        lambda a, w: a * 3 + w,  # its gradients have no gradient function
        lambda a, w: (a * w).sin() + torch.vmap(torch.dot)(a[:, None], w[:, None]),
    ],
)
def test_a_right_backward_that_is_differentiated_again_is_right(function):
    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        result = penalty(torch.compile(function, backend=lambda graph, _: graph))
    assert torch.equal(result, penalty(function))
    assert tool.result().verdict.value == "agrees"


def test_aot_autograds_backward_under_create_graph_is_right():
    torch._dynamo.reset()
    x, w = torch.arange(1.0, 4).requires_grad_(), torch.full((3,), 2.0, requires_grad=True)
    with op_tools.OpAutoCompare() as tool:
        y = torch.compile(lambda a, w: (a * w) ** 2, backend="aot_eager")(x, w)
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert tool.result().verdict.value == "agrees"


TRANSFORMS = {
    "vmap": torch.vmap(lambda row: row.sin().sum()),
    "jacrev": lambda a: torch.func.jacrev(torch.sin)(a[0]),
    "hessian": lambda a: torch.func.hessian(lambda row: row.sin() @ row)(a[0]),
    "vmap of grad": torch.vmap(torch.func.grad(lambda row: row.tanh().square().sum())),
}


@pytest.mark.parametrize("backend", ["right", "wrong", "aot_eager"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_graph_that_enters_a_transform_is_judged(name, backend):
    torch._dynamo.reset()
    named = {"right": lambda graph, _: graph, "wrong": each(lambda y: y * 1.001)}
    with op_tools.OpAutoCompare() as tool:
        torch.compile(TRANSFORMS[name], backend=named.get(backend, backend))(inputs())
    result = tool.result()
    assert (result.verdict.value, result.coverage.gaps()) == ("differs" if backend == "wrong" else "agrees", [])


def test_it_is_said_how_a_wrong_graph_seems_to_have_been_computed(capfd):
    torch._dynamo.reset()
    step = torch.compile(Block(), backend=WRONG["bfloat16"][0])
    with op_tools.OpAutoCompare() as tool, torch.no_grad():
        step(inputs())
    result = tool.result()
    [row] = result.failures
    assert row.reason.startswith("as if computed ") and row.reason.endswith("bfloat16")
    assert row.reason in result.table() and row.reason in capfd.readouterr().err


def keeps_memory(*, returns_views):
    """A backend whose results are in the same memory in each call, as those of a graph that was captured on a device."""

    def backend(graph, _):
        kept = []

        def run(*args):
            results = graph(*args)
            kept.extend(result.clone() for result in results if not kept)
            for memory, result in zip(kept, results, strict=True):
                memory.copy_(result)
            return tuple(memory.view_as(memory) for memory in kept) if returns_views else tuple(kept)

        return run

    return backend


def steps_with(program, backend):
    """The findings in a program that calls a compiled function three times; it gets the step's number and the result."""
    torch._dynamo.reset()
    step = torch.compile(lambda x: (x @ x).relu(), backend=backend)
    with torch.no_grad(), op_tools.OpAutoCompare() as tool:
        for number in range(3):
            program(number, step(torch.full((3, 3), number + 1.0)))
    return [(row.kind, row.reason) for row in tool.result().rows if row.verdict == "differs"]


@pytest.mark.parametrize("returns_views", [False, True])
def test_a_result_whose_memory_the_next_call_writes_is_found_while_the_program_holds_it(returns_views):
    results, sums = [], []
    backend = keeps_memory(returns_views=returns_views)
    findings = steps_with(lambda _, y: results.append(y), backend)
    assert {kind for kind, _ in findings} == {"overwritten"} and len(findings) == 2
    assert "result 0 of the call before" in findings[0][1]
    assert steps_with(lambda _, y: sums.append(y.sum()), keeps_memory(returns_views=returns_views)) == []
    assert float(results[0].sum()) == float(sums[2])


def views_of_a_result(x):
    y = x.sin()
    return y, y.view(-1), y[:, ::2], y.cos()


def changed_results(change):
    return lambda graph, _: lambda *args: change(*graph(*args))


SHARED = {
    "copied view": (lambda y, flat, part, z: (y, flat, y.clone()[:, ::2], z), {(2, "alias")}),
    "all copied": (lambda y, flat, part, z: (y, flat.clone(), y.clone()[:, ::2], z), {(1, "alias"), (2, "alias")}),
    "in one buffer": (
        lambda y, flat, part, z: (lambda both: (both[0], both[0].view(-1), both[0][:, ::2], both[1]))(
            torch.stack([y, z])
        ),
        set(),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_results_show_each_others_memory_as_they_do_eagerly(name):
    change, expected = SHARED[name]
    torch._dynamo.reset()
    step = torch.compile(views_of_a_result, backend=changed_results(change))
    with torch.no_grad(), op_tools.OpAutoCompare() as tool:
        step(torch.rand(4, 4))
    rows = [row for row in tool.result().rows if row.op.startswith("torch.compile.graph")]
    assert {(row.index, row.kind) for row in rows if row.verdict == "differs"} == expected


def test_two_results_in_a_single_memory_are_found():
    torch._dynamo.reset()
    step = torch.compile(lambda x: (x * 2, x + x), backend=changed_results(lambda y, _: (y, y)))
    with op_tools.OpAutoCompare() as tool:
        step(torch.ones(2, 2))
    assert [(row.kind, row.index) for row in tool.result().rows if row.verdict == "differs"] == [("alias", 1)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_right_compilers_may_copy_where_nothing_is_dropped(backend):
    def dropped(x):
        y = nn.functional.dropout(x.sin(), 0.5, False)
        return x.cos().split(2), y, nn.functional.dropout(y, 0.5, False)[:, 0], nn.functional.dropout(x, 0.5, False)

    torch._dynamo.reset()
    with torch.no_grad(), op_tools.OpAutoCompare() as tool:
        torch.compile(dropped, backend=backend)(torch.rand(4, 4))
    assert tool.result().verdict.value == "agrees"


def test_a_program_may_write_its_results_itself():
    held = []

    def write(number, y):
        held.append(y)
        held[number // 2].mul_(2.0)

    assert steps_with(write, "aot_eager") == []


def test_a_graph_may_write_its_input_that_it_returned_before():
    def added(cache, x):
        cache.add_(x)
        return cache

    torch._dynamo.reset()
    step, cache = torch.compile(added, backend="aot_eager"), torch.zeros(3)
    with op_tools.OpAutoCompare() as tool:
        for _ in range(3):
            cache = step(cache, torch.ones(3))
    assert tool.result().verdict.value == "agrees" and cache.tolist() == [3.0, 3.0, 3.0]


def test_a_raise_of_the_compiled_code_is_found():
    def backend(graph, _):
        def run(*args):
            raise RuntimeError("the engine has no such kernel")

        return run

    torch._dynamo.reset()
    step = torch.compile(Block(), backend=backend)
    with op_tools.OpAutoCompare() as tool, pytest.raises(RuntimeError, match="no such kernel"):
        step(inputs())
    assert tool.result().verdict.value == "differs"


def test_a_graph_that_draws_random_numbers_is_not_judged():
    torch._dynamo.reset()
    step = torch.compile(lambda x: nn.functional.dropout(x @ x, 0.5), backend="aot_eager")
    with op_tools.OpAutoCompare() as tool:
        for _ in range(2):
            step(torch.ones(4, 4))
    account = tool.coverage()
    assert (account.graphs, account.compiled, account.backends) == (0, 1, {"aot_eager": 1})
    assert tool.result().verdict.value == "not judged" and "2 operators" in "".join(account.reasons())


def half_of_a_buffer(x):
    buffer = torch.empty(2 * len(x))
    buffer[: len(x)] = x.sin()
    return buffer, x.cos()


def a_whole_buffer(x):
    return x.new_empty(x.shape).copy_(x.sin()) + 1, x.cos()


@pytest.mark.parametrize("function", [half_of_a_buffer, a_whole_buffer])
def test_memory_that_a_graph_does_not_write_is_not_judged_and_all_else_is(function):
    def compiled(graph, _):
        """Its first result has other numbers in the second half, its second result in a single element."""

        def run(*args):
            first, second = graph(*args)
            first[len(first) // 2 :] = 7.0
            return first, second.index_fill(0, torch.tensor([1]), 0.25)

        return run

    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        torch.compile(function, backend=compiled)(torch.rand(64))
    rows = [row for row in tool.result().rows if row.op.startswith("torch.compile.graph") and row.part == "output"]
    verdicts = {row.index: (row.verdict, row.not_judged) for row in rows}
    assert verdicts[1] == ("differs", None), rows
    assert verdicts[0] == (("not judged", "uninitialized") if function is half_of_a_buffer else ("differs", None)), rows


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        return self.blocks[0](x) + self.blocks[1](x).sin()


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_nodes_have_the_module_and_the_line_that_they_have_without_torch_compile(level, is_whole):
    def places(compiled):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Two()
        if compiled and not is_whole:
            model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager")
        step = torch.compile(model, backend="aot_eager") if compiled and is_whole else model
        with op_tools.OpAutoCompare(
            level=level, compiled="nodes", ops=".*linear,.*layer_norm,.*gelu,.*addmm,.*sin"
        ) as tool:
            step(inputs()).square().mean().backward()
        assert tool.coverage().gaps() == []
        return [(row.op.removesuffix(".default"), row.phase, row.module, row.source) for row in tool.result().rows]

    assert places(compiled=True) == places(compiled=False)


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y * 2.0

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return (gradient * y).mul(2.0)


class Again(nn.Module):
    """A part that is computed again in the backward pass, with the same random numbers; a function with its own backward."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)

    def part(self, x):
        return self.last(self.drop(self.first(x).sin()))

    def forward(self, x):
        return Exp.apply(checkpoint(self.part, x, use_reentrant=False)).tanh()


@pytest.mark.parametrize("level", LEVELS)
def test_nodes_of_a_checkpoint_and_of_a_function_with_its_own_backward_are_seen_as_without_torch_compile(level):
    def run(compiled, tool):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Again()
        step = torch.compile(model, backend="aot_eager") if compiled else model
        with tool:
            y = step(inputs())
            y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters())]

    def places(tool):
        assert tool.coverage().gaps() == [] and tool.result().verdict.value == "agrees"
        return {(row.op, row.phase, row.module, row.source) for row in tool.result().rows}

    nodes, eager = (op_tools.OpAutoCompare(level=level, compiled="nodes") for _ in range(2))
    assert_same(run(True, nodes), run(True, contextlib.nullcontext()))
    run(False, eager)
    assert places(nodes) == places(eager)


def test_a_graph_with_functions_in_it_runs_compiled_and_is_a_gap():
    torch._dynamo.reset()
    step = torch.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend="aot_eager")
    with op_tools.OpAutoCompare(compiled="nodes") as tool:
        result = step(torch.ones(3))
    assert torch.equal(result, torch.ones(3).sin())
    assert tool.coverage().gaps() == ["graphs"]


@pytest.mark.parametrize("level", LEVELS)
def test_calls_of_dynamos_import_are_none_of_the_programs(level):
    program = f"""
import sys, torch, op_tools
assert "torch._dynamo" not in sys.modules
with op_tools.OpObserve(level="{level}") as tool:
    import torch._dynamo
    torch.ones(2).neg()
print(sorted(row.op for row in tool.result().rows))
"""
    names = {"torch": "['torch.Tensor.neg', 'torch.ones']", "aten": "['aten::neg', 'aten::ones']"}
    assert launched("-c", program).stdout.splitlines()[-1] == names[level]


@pytest.mark.parametrize("level", LEVELS)
def test_eager_runs_without_torch_compile(level):
    torch._dynamo.reset()
    step = torch.compile(Block(), backend=WRONG["values"][0])
    with op_tools.OpAutoCompare(level=level, compiled="eager") as tool:
        step(inputs()).sum().backward()
    account = tool.coverage()
    assert (account.compiled, account.eager, tool.result().verdict.value) == (0, 1, "agrees")
    assert "1 compiled function run eagerly" in " ".join(" ".join(account.lines()).split())


def unflattened(x):
    """torch.compile cannot trace Tensor.unflatten under a torch-function mode."""
    return torch.stack([part.unflatten(-1, (2, -1)).transpose(0, 1) for part in x.chunk(3, -1)])


@pytest.mark.parametrize("level", LEVELS)
def test_graphs_and_graph_breaks_are_those_without_a_tool(level):
    from torch._dynamo.utils import counters

    def counted():
        torch._dynamo.reset()
        counters.clear()
        step = torch.compile(lambda x: unflattened(x).relu(), backend="aot_eager")
        result = step(torch.ones(4, 12))
        with torch.device("cpu"):
            result = result + torch.compile(lambda x: x + torch.ones(4), backend="aot_eager")(torch.ones(4)).sum()
        return result, dict(counters["stats"]), dict(counters["graph_break"])

    expected = counted()
    with op_tools.OpAutoCompare(level=level):
        assert_same(list(counted()), list(expected))


def test_nodes_cast_the_weights_of_each_step_under_autocast():
    def run(tool):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        step, optimizer = torch.compile(model, backend="aot_eager"), torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        with torch.autocast("cpu", dtype=torch.bfloat16), tool:  # around several steps: its cache outlives a step
            for _ in range(3):
                losses.append(step(inputs()).square().mean())
                losses[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
        return [torch.stack(losses).detach(), *(p.detach() for p in model.parameters())]

    alone = run(contextlib.nullcontext())
    assert len(set(alone[0].tolist())) == 3
    for level in LEVELS:
        assert_same(run(op_tools.OpTimeMeasure(level=level, compiled="nodes")), alone)


# --- Compilers of others: inductor of torch 2.13, openvino 2026.4 and iree-turbine 3.9.0 ----------------------------------------------


def with_input_changed(x):
    x.add_(1.0)
    return nn.functional.linear(x, torch.ones(4, 4)) * 2.0


def with_view(x):
    return x.view(-1), nn.functional.linear(x, torch.ones(4, 4)) + 1.0


def near_a_thousandth():
    return torch.linspace(0.0009, 0.0011, 1000)


OF_INDUCTOR = {
    "expm1": (torch.expm1, near_a_thousandth, "values"),
    "atanh": (torch.atanh, near_a_thousandth, "values"),
    "erf": (torch.erf, near_a_thousandth, "values"),
    "remainder": (lambda x: x % 0.5394660234451294, lambda: torch.full((32,), 5.93412971496582), "values"),
    "product with 1": (lambda x: torch.ones(3) * x, lambda: torch.rand(3), "alias"),
}


@pytest.mark.parametrize("fault", OF_INDUCTOR)
def test_faults_of_inductor_are_found(fault):
    function, make, kind = OF_INDUCTOR[fault]
    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        torch.compile(function)(make())
    if not is_healed("inductor", function, make):
        assert kind in {row.kind for row in tool.result().rows if row.verdict == "differs"}


def residual_then_maximum(x, first, second):
    """Under autocast inductor's gradients of both weights are zero."""
    s = x.exp()
    return nn.functional.max_pool2d(s + nn.functional.conv2d(nn.functional.conv2d(s, first), second), 3, 1, 1)


def test_gradients_that_inductor_loses_are_found():
    torch._dynamo.reset()
    torch.manual_seed(0)
    leaves = [torch.randn(*size, requires_grad=True) for size in ((2, 8, 4, 4), (8, 8, 1, 1), (8, 8, 1, 1))]

    def gradients(function):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = function(*leaves)
        return torch.autograd.grad(results.float().square().sum(), leaves)

    step = torch.compile(residual_then_maximum)
    lost = [
        not of_step.any() and bool(of_torch.any())
        for of_step, of_torch in zip(gradients(step), gradients(residual_then_maximum), strict=True)
    ]
    torch._dynamo.reset()
    with op_tools.OpAutoCompare() as tool:
        gradients(step)
    named = {row.index for row in tool.result().rows if row.verdict == "differs" and row.part == "gradient"}
    assert {number for number, is_lost in enumerate(lost) if is_lost} <= named and bool(named) == any(lost)


OF_OPENVINO = {
    "lost change of an input": (with_input_changed, lambda: torch.zeros(4, 4), "values"),
    "view that is a copy": (with_view, lambda: torch.ones(4, 4), "alias"),
    "int64 in 32 bits": (lambda x: x * 3000000000 + 1, lambda: torch.tensor([1, 2, 3]), "values"),
    "float64 product": (lambda x: (x @ x) * 1.0, lambda: torch.eye(8, dtype=torch.float64) / 3 + 1, "values"),
    "std without correction": (lambda x: torch.std(x * 1.0) * 1.0, lambda: inputs(20), "values"),
    "no gradient function": (nn.Sequential(nn.Linear(6, 6), nn.GELU()), inputs, "no gradient"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fault", OF_OPENVINO)
def test_faults_of_openvino_are_found_or_not_judged(fault, level):
    pytest.importorskip("openvino", reason="openvino is not installed")
    function, make, kind = OF_OPENVINO[fault]
    torch._dynamo.reset()
    step = torch.compile(function, backend="openvino")
    with op_tools.OpAutoCompare(level=level) as tool:
        step(make())
    result = tool.result()
    if level == "aten":
        assert result.verdict.value == "not judged" and result.coverage.backends == {"openvino": 1}
    elif not is_healed("openvino", function, make):
        assert result.verdict.value == "differs"
        assert kind in {row.kind for row in result.rows if row.verdict == "differs"}


OF_IREE = {
    "float64 sum": (lambda x: x + x, lambda: torch.linspace(1, 2, 8, dtype=torch.float64), "values"),
    "tanh form of gelu": (lambda x: nn.functional.gelu(x, approximate="tanh"), lambda: inputs(50), "values"),
    "strides": (lambda x: (x @ torch.ones(6, 5)).transpose(0, 1), inputs, "strides"),
}


@pytest.mark.parametrize("fault", OF_IREE)
def test_faults_of_iree_turbine_are_found(fault):
    pytest.importorskip("iree.turbine", reason="iree-turbine is not installed: docs/compiled.md has its versions")
    function, make, kind = OF_IREE[fault]
    torch._dynamo.reset()
    with torch.no_grad(), op_tools.OpAutoCompare(level="torch") as tool:
        torch.compile(function, backend="turbine_cpu")(make())
    if not is_healed("turbine_cpu", function, make):
        assert kind in {row.kind for row in tool.result().rows if row.verdict == "differs"}


def is_healed(backend, function, make):
    """A later compiler, or another processor: then there is nothing to be found."""
    torch._dynamo.reset()
    mine, other = make(), make()
    results = torch.compile(function, backend=backend)(mine), function(other)
    flat = [torch.utils._pytree.tree_leaves(one) for one in results]
    same = all(torch.allclose(a.double(), b.double(), rtol=1e-6) for a, b in zip(*flat, strict=True))
    return (
        same
        and torch.equal(mine, other)
        and all((a.requires_grad, a.stride()) == (b.requires_grad, b.stride()) for a, b in zip(*flat, strict=True))
        and all(
            (a.data_ptr() == mine.data_ptr()) == (b.data_ptr() == other.data_ptr()) for a, b in zip(*flat, strict=True)
        )
    )
