"""Captured gradients are those of torch.autograd.grad of the call alone, whatever else the graph holds."""

import gc
import weakref
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import same_bits
from torch import nn
from torch.utils.checkpoint import checkpoint

import op_tools


def t(*shape):
    """A tensor of random numbers from the test's own generator."""
    return torch.randn(*shape, generator=t.generator)


t.generator = torch.Generator().manual_seed(3)


def flat(value):
    """The tensors in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for part in value or () for item in flat(part)] if isinstance(value, (list, tuple)) else []


def close(captured, expected):
    """A list of gradients against another: None where there is none, the same bits elsewhere."""
    assert len(captured) == len(expected)
    for got, want in zip(captured, expected, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert got.shape == want.shape and got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=0, atol=0)


def alone(function, tensors, grad_outputs):
    """torch.autograd.grad of a call on fresh copies; None for a tensor that takes no gradient."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]
    outputs = [o for o in flat(function(*[x.clone() for x in leaves])) if o.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    gradients = iter(torch.autograd.grad(outputs, wanted, grad_outputs, allow_unused=True))
    return [next(gradients) if x.requires_grad else None for x in leaves]


Pair = namedtuple("Pair", "first second")

# Forms of a call: a function of tensors, and the tensors. The tensors stand in the call in this order.
CALLS = {
    "linear on 3-D input": (lambda x, w, b: F.linear(x, w, b), [t(2, 3, 4), t(5, 4), t(5)]),
    "keyword tensors": (lambda x, w, b: F.linear(input=x, weight=w, bias=b), [t(2, 3, 4), t(5, 4), t(5)]),
    "a positional and a keyword tensor": (lambda x, y: torch.add(x, other=y, alpha=2), [t(3, 4), t(4)]),
    "matmul that broadcasts": (torch.matmul, [t(2, 1, 3, 4), t(5, 4, 2)]),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), [t(6, 10), torch.arange(6)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [t(2, 3, 6), t(6), t(6)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [t(4, 3, 5), t(3), t(3)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [t(2, 4, 5), t(4), t(4)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [t(2, 3, 6, 6), t(4, 3, 3, 3), t(4)]),
    "embedding": (lambda i, w: F.embedding(i, w), [torch.tensor([1, 2, 1]), t(4, 5)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [t(2, 2, 5, 8), t(2, 2, 5, 8), t(2, 2, 5, 8)],
    ),
    "multi-head attention": (
        lambda q, k, v, w, b, ow, ob: F.multi_head_attention_forward(
            q, k, v, 8, 2, w, b, None, None, False, 0.0, ow, ob, need_weights=False
        ),
        [t(5, 2, 8), t(5, 2, 8), t(5, 2, 8), t(24, 8), t(24), t(8, 8), t(8)],
    ),
    "multi-head attention with weights": (
        lambda q, k, v, w, b, ow, ob: F.multi_head_attention_forward(
            q, k, v, 8, 2, w, b, None, None, False, 0.0, ow, ob
        ),
        [t(5, 2, 8), t(5, 2, 8), t(5, 2, 8), t(24, 8), t(24), t(8, 8), t(8)],
    ),
    "einsum": (lambda a, b: torch.einsum("ijk,kl->ijl", a, b), [t(2, 3, 4), t(4, 5)]),
    "bilinear interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [t(1, 2, 3, 3)]),
    "max with indices": (lambda x: x.max(dim=1), [t(3, 4)]),
    "sort": (lambda x: torch.sort(x, dim=0), [t(5, 2)]),
    "topk": (lambda x: x.topk(2), [t(3, 4)]),
    "unbind": (lambda x: x.unbind(0), [t(3, 4)]),
    "split": (lambda x: torch.split(x, 2), [t(5, 4)]),
    "chunk": (lambda x: x.chunk(2, dim=1), [t(2, 5)]),
    "var_mean": (lambda x: torch.var_mean(x, dim=1), [t(3, 4)]),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False), [t(4, 3)]),
    "view": (lambda x: x.view(2, 6), [t(3, 4)]),
    "transpose": (lambda x: x.transpose(0, 1), [t(3, 4)]),
    "expand": (lambda x: x.expand(5, 4), [t(1, 4)]),
    "slice": (lambda x: x[1:, ::2], [t(3, 4)]),
    "index by tensor": (lambda x, i: x[i], [t(5, 4), torch.tensor([0, 2, 2])]),
    "mask": (lambda x, m: x[m], [t(3, 4), torch.eye(3, 4).bool()]),
    "gather": (lambda x, i: x.gather(1, i), [t(3, 4), torch.tensor([[0, 0], [1, 1], [3, 2]])]),
    "in-place addition": (lambda x, y: x.add_(y), [t(3, 4), t(3, 4)]),
    "in-place operator": (lambda x: x.mul_(3), [t(3, 4)]),
    "in-place function": (lambda x: F.relu(x, inplace=True), [t(3, 4)]),
    "in-place sigmoid": (lambda x: x.sigmoid_(), [t(3, 4)]),
    "copy_": (lambda x, y: x.copy_(y), [t(3, 4), t(4)]),
    "masked_fill_": (lambda x, m: x.masked_fill_(m, 0.5), [t(3, 4), torch.eye(3, 4).bool()]),
    "list of tensors": (lambda a, b: torch.cat([a, b], dim=1), [t(3, 2), t(3, 4)]),
    "tuple of tensors": (lambda a, b: torch.stack((a, b)), [t(3, 2), t(3, 2)]),
    "named tuple of tensors": (lambda a, b: torch.stack(Pair(a, b)), [t(3, 2), t(3, 2)]),
    "tensors as arguments of their own": (lambda a, b: torch.atleast_2d(a, b), [t(3), t(2)]),
    "where": (lambda c, a, b: torch.where(c, a, b), [torch.eye(3, 4).bool(), t(3, 4), t(3, 4)]),
    "complex": (lambda x: torch.fft.fft(x), [t(2, 8)]),
    "double precision to single": (lambda x: x.float(), [t(3, 4).double()]),
    "a reduction to a scalar": (lambda x: x.logsumexp((0, 1)), [t(3, 4)]),
}


@pytest.mark.parametrize("backward_inside", [True, False], ids=["inside", "after"])
@pytest.mark.parametrize("kind", CALLS)
def test_gradients_of_a_call_are_those_of_autograd_for_the_call_alone(kind, backward_inside, captured):
    function, tensors = CALLS[kind]
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in tensors]
    inputs = [x * 1.5 if x.requires_grad else x for x in leaves]
    elsewhere = sum((x * 2).sum() for x in inputs if x.requires_grad)  # the call is not the inputs' only consumer
    before = [x.detach().clone() for x in inputs]
    tool = op_tools.OpCapture()
    tool.start()
    outputs = function(*inputs)
    tool.stop()
    (call,) = captured(tool)
    outputs = flat(outputs)
    weights = [torch.randn_like(o) if o.requires_grad else None for o in outputs]
    loss = elsewhere + sum(
        (o * w).sum().abs() * 0 + (o * w).sum().real for o, w in zip(outputs, weights) if w is not None
    )
    arrived = [None] * len(outputs)
    for i, o in enumerate(outputs):
        if o.requires_grad:
            o.register_hook(lambda gradient, i=i: arrived.__setitem__(i, gradient.clone()))
    if backward_inside:
        with op_tools.OpCapture():
            loss.backward()
    else:
        loss.backward()
    tool.flush()
    assert [a is None for a in arrived] == [w is None for w in weights]
    close(call.gradients("outputs"), arrived)
    close(call.gradients("inputs"), alone(function, before, [a for a in arrived if a is not None]))


def test_tensor_given_twice_has_its_whole_gradient_at_both_positions(captured):
    x = t(3, 4).requires_grad_()
    with op_tools.OpCapture() as tool:
        y = torch.mul(x, x)
        y.sum().backward()
    close(captured(tool, "torch.mul")[0].gradients("inputs"), [2 * x.detach()] * 2)


def test_parameter_used_by_several_calls_has_each_calls_own_part(captured):
    layer = nn.Linear(4, 4)
    x = t(2, 4)
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as tool:
        layer(torch.tanh(layer(x))).square().sum().backward()
    calls = captured(tool)
    assert len(calls) == 2
    total = sum(call.gradients("inputs")[1] for call in calls)
    torch.testing.assert_close(total, layer.weight.grad, rtol=1e-6, atol=1e-6)
    for call in calls:
        expected = alone(F.linear, [a.detach() for a in call.args], [call.gradients("outputs")[0]])
        close(call.gradients("inputs")[1:], expected[1:])
    assert calls[0].gradients("inputs")[0] is None  # the images require no gradient
    assert calls[1].gradients("inputs")[0] is not None


def test_in_place_call_on_a_view_has_the_gradient_of_the_view(captured):
    base = t(4, 3).requires_grad_()
    whole = base * 1
    part = whole[1:3]
    row = whole.detach()[0].clone()
    before = part.detach().clone()
    with op_tools.OpCapture(ops="torch.Tensor.mul_") as tool:
        result = part.mul_(row)
    (result * 2).sum().backward()
    (call,) = captured(tool)
    close(call.gradients("outputs"), [torch.full((2, 3), 2.0)])
    close(call.gradients("inputs"), [*alone(lambda x: x.mul_(row), [before], [torch.full((2, 3), 2.0)]), None])


def read_and_doubled(y):
    return (y * 3).sum() + y.mul_(2).sum()  # the first reads it while it is whole


def written_by_index(y):
    y[:, 1] = 0
    return (y * 5).sum()


@pytest.mark.parametrize(
    ("use", "gradient"),
    [(lambda y: y.mul_(2).sum(), [2, 2, 2]), (written_by_index, [5, 0, 5]), (read_and_doubled, [5, 5, 5])],
    ids=["doubled", "index", "read before"],
)
@pytest.mark.parametrize("product", ["linear", "einsum"])
def test_an_output_that_is_a_view_and_is_written_in_place_later_has_its_gradient(product, use, gradient, captured):
    x, w, b = t(2, 3, 4).requires_grad_(), t(5, 4).requires_grad_(), t(5).requires_grad_()
    with op_tools.OpCapture(ops=["torch.nn.functional.linear", "torch.functional.einsum"]) as tool:
        # A view of a result of six rows; that of linear is none in torch 2.14 and newer.
        y = F.linear(x, w, b) if product == "linear" else torch.einsum("bik,ok->bio", x, w)
    assert y._is_view() or product == "linear"
    use(y).backward()
    (call,) = captured(tool)
    expected = torch.tensor(gradient).float().view(1, 3, 1).expand(2, 3, 5)
    close(call.gradients("outputs"), [expected])
    # The bias is no input of einsum.
    close(call.gradients("inputs"), [value.grad for value in (x, w, b) if product == "linear" or value is not b])


def test_parts_that_are_copied_into_a_whole_have_their_gradients(captured):
    left, two = t(3, 2).requires_grad_(), t(3, 1).requires_grad_()
    whole = torch.empty(3, 4)
    with op_tools.OpCapture(ops="torch.Tensor.copy_") as tool:
        whole[:, :2].copy_(left)
        whole[:, 2:].copy_(two)
    weights = t(3, 4)
    (whole * weights).sum().backward()
    first, second = captured(tool)
    close(first.gradients("outputs"), [weights[:, :2]])
    close(first.gradients("inputs"), [None, weights[:, :2]])
    close(second.gradients("outputs"), [weights[:, 2:]])
    close(second.gradients("inputs"), [torch.zeros(3, 2), two.grad])  # nothing is left of overwritten values


def test_out_argument_is_recorded_as_it_was_before_the_call_and_after_it(captured):
    out = torch.full((3,), 9.0)
    with op_tools.OpCapture(ops="torch.add") as tool:
        torch.add(torch.ones(3), torch.ones(3), out=out)
    (call,) = captured(tool)
    assert call.kwargs["out"].tolist() == [9, 9, 9]
    assert call.result.tolist() == [2, 2, 2]
    assert [x.tolist() for x in call.file("output.pth")["mutated"].values()] == [[2, 2, 2]]
    assert call.gradients("inputs") is None


@pytest.mark.parametrize(
    "call",
    [lambda x: F.dropout(x, 0.0), lambda x: x.contiguous(), lambda x: x.to(torch.float32)],
    ids=["dropout", "contiguous", "to"],
)
def test_call_that_returns_its_input_is_noted_as_identity(call, captured):
    x = t(3, 4).requires_grad_()
    y = x * 2
    with op_tools.OpCapture() as tool:
        out = call(y)
    out.sum().backward()
    (recorded,) = captured(tool)
    if out is y:
        assert recorded.meta["identity"] is True and recorded.gradients("inputs") is None
    else:
        close(recorded.gradients("inputs"), [torch.ones(3, 4)])
    assert torch.equal(x.grad, torch.full((3, 4), 2.0))


def test_autograd_grad_gives_the_same_files_as_backward(captured):
    x, w = t(3, 4).requires_grad_(), t(5, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as tool:
        y = F.linear(x, w)
        gradients = torch.autograd.grad(y.square().sum(), [x, w])
    (call,) = captured(tool)
    close(call.gradients("inputs"), gradients)
    close(call.gradients("outputs"), [2 * y.detach()])
    assert tool.result().incomplete_gradients == 0


def test_autograd_grad_of_one_input_only_records_that_and_says_that_the_rest_is_missing(captured):
    x, w = t(3, 4).requires_grad_(), t(5, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.nn.functional.linear") as tool:
        (gradient,) = torch.autograd.grad(F.linear(x, w).sum(), [x])
    (call,) = captured(tool)
    close(call.gradients("inputs"), [gradient, None])
    assert tool.result().incomplete_gradients == 1


def test_double_backward_records_each_pass_over_the_call(captured):
    x = t(3, 4).requires_grad_()
    passes = []
    with op_tools.OpCapture(ops="torch.tanh") as tool:
        y = torch.tanh(x)
        y.register_hook(lambda gradient: passes.append(gradient.detach().clone()))
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        first.square().sum().backward()
    (call,) = captured(tool)
    assert len(passes) == 2
    for number, arrived in enumerate(passes, 1):
        close(call.gradients("outputs", number), [arrived])
        close(call.gradients("inputs", number), alone(torch.tanh, [x], [arrived]))
    assert call.gradients("inputs", 3) is None


def test_calls_of_a_gradient_penalty_have_gradients_that_add_up(captured):
    x, w = t(3, 4).requires_grad_(), t(5, 4).requires_grad_()
    with op_tools.OpCapture() as tool:
        out = torch.sigmoid(F.linear(x, w)).sum()
        (inner,) = torch.autograd.grad(out, x, create_graph=True)
        penalty = inner.pow(2).sum()
        penalty.backward()
    (linear,) = captured(tool, "torch.nn.functional.linear")
    assert linear.gradients("inputs") is not None
    (power,) = captured(tool, "torch.Tensor.pow")
    close(power.gradients("inputs"), [2 * inner.detach()])


def test_numbers_of_a_complex_tensor_that_are_written_in_place_have_no_gradients_recorded(captured, log_level, capfd):
    log_level("error")
    x, y = torch.ones(3, dtype=torch.complex64, requires_grad=True), torch.full((3,), 2 + 1j)

    def program():
        total = x * 2
        torch.view_as_real(total).addcmul_(torch.view_as_real(x), torch.view_as_real(y)).mul_(2)
        return torch.autograd.grad(torch.view_as_real(total).square().sum(), x)[0]

    alone = program()
    with op_tools.OpCapture() as tool, op_tools.OpAutoCompare() as judge:
        under = program()
    assert under.equal(alone) and judge.result().failures == []
    (call,) = captured(tool, "torch.Tensor.addcmul_")
    assert call.gradients("inputs") is None and "not recorded" not in capfd.readouterr().err


@pytest.mark.parametrize("used", ["both", "hidden", "cell"])
def test_an_output_that_another_one_is_made_of_has_the_programs_gradient_only(captured, replay, used):
    cell = torch.nn.LSTMCell(5, 10)
    x, hidden, state = t(1, 5), t(1, 10), t(1, 10)
    values = [x, hidden, state, *(parameter.detach() for parameter in cell.parameters())]

    def loss(outputs):
        weights = [3.0 * (used != "cell"), 2.0 * (used != "hidden")]
        return sum((out * weight).sin().sum() for out, weight in zip(outputs, weights, strict=True) if weight)

    with op_tools.OpCapture() as tool:
        loss(cell(x.requires_grad_(), (hidden.requires_grad_(), state.requires_grad_()))).backward()
    with op_tools.OpAutoCompare() as judge:
        loss(cell(x, (hidden, state))).backward()
    (call,) = captured(tool, "torch.lstm_cell")
    with torch.no_grad():
        outs = torch.lstm_cell(values[0], values[1:3], *values[3:])
    leaves = [out.requires_grad_() for out in outs]
    wanted = torch.autograd.grad(loss(leaves), leaves, allow_unused=True)
    for arrived, gradient in zip(call.gradients("outputs"), wanted, strict=True):
        assert (arrived is None) == (gradient is None)
        assert arrived is None or torch.allclose(arrived, gradient, rtol=1e-5, atol=1e-6)
    assert replay(tool.result().root, "--acc_check").status == 0
    assert judge.result().failures == []


def second_order(x, layers):
    out = layers(x)
    inner, *_ = torch.autograd.grad(out.sum(), [x, *layers.parameters()], create_graph=True)
    (out.pow(2).mean() + inner.pow(2).sum()).backward()


def test_what_a_second_order_pass_adds_inside_a_call_is_no_gradient_of_the_call(captured, replay):
    layers, x = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)), t(4, 2)
    with op_tools.OpCapture() as tool:
        second_order(x.requires_grad_(), layers)
    for linear, layer in zip(captured(tool, "torch.nn.functional.linear"), (layers[0], layers[2]), strict=True):
        inputs = [linear.args[0], layer.weight, layer.bias]
        for number in (1, 2):
            (arrived,) = linear.gradients("outputs", number)
            expected = alone(F.linear, inputs, [arrived])
            arrived_gradients = linear.gradients("inputs", number)
            assert (arrived_gradients[1] is None) == (
                number == 2
            )  # its transpose is part of the call, and of the second order
            for gradient, other in zip(arrived_gradients, expected, strict=True):
                assert gradient is None or gradient.equal(other)
    assert replay(tool.result().root, "--acc_check").status == 0


def test_second_order_training_raises_no_alarm():
    with op_tools.OpAutoCompare() as tool:
        layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        second_order(t(4, 2).requires_grad_(), layers)
        x, weight = t(3, 4).requires_grad_(), t(5, 4).requires_grad_()
        (inner,) = torch.autograd.grad(F.linear(x, weight).sum(), x, create_graph=True)
        torch.autograd.grad(inner.sum(), weight)  # no output of linear's takes part
        y = t(4, 6, 3).requires_grad_()
        (inner,) = torch.autograd.grad(F.group_norm(y, 3).sin().sum(), y, create_graph=True)
        torch.autograd.grad(inner.pow(2).sum(), y)  # the node has its mean among its results
    assert tool.result().failures == []


def test_second_backward_over_a_retained_graph_has_files_of_its_own(captured):
    x = t(3, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.exp") as tool:
        y = torch.exp(x)
        y.sum().backward(retain_graph=True)
        (5 * y).sum().backward()
    (call,) = captured(tool)
    assert sorted(p.name for p in call.folder.iterdir() if "grad" in p.name) == [
        "grad_inputs.2.pth",
        "grad_inputs.pth",
        "grad_outputs.2.pth",
        "grad_outputs.pth",
    ]
    close(call.gradients("inputs", 1), [y.detach()])
    close(call.gradients("inputs", 2), [5 * y.detach()])
    assert tool.result().rows[0].backward == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_calls_have_their_gradients_once(reentrant, captured):
    x, w = t(3, 4).requires_grad_(), t(4, 4).requires_grad_()

    def block(x):
        return torch.tanh(F.linear(x, w))

    with op_tools.OpCapture() as tool:
        (checkpoint(block, x, use_reentrant=reentrant) * 3).sum().backward()
    calls = captured(tool, "torch.nn.functional.linear")
    assert len(calls) == 2  # forward, and again for backward
    with_gradients = [call for call in calls if call.gradients("inputs") is not None]
    assert len(with_gradients) == 1
    leaves = [a.detach().clone().requires_grad_() for a in (x, w)]
    expected = torch.autograd.grad(torch.tanh(F.linear(*leaves)).mul(3).sum(), leaves)
    close(with_gradients[0].gradients("inputs"), expected)
    close([x.grad, w.grad], expected)


def test_calls_of_a_backward_pass_inside_another_are_seen(captured):
    """torch.autograd.backward runs twice then, the inner pass in the same thread: a call of its own."""
    w = t(4, 4).requires_grad_()

    def inner(x):
        return checkpoint(lambda y: torch.tanh(F.linear(y, w)), x, use_reentrant=False)

    with op_tools.OpCapture() as tool:
        checkpoint(inner, t(3, 4).requires_grad_(), use_reentrant=True).sum().backward()
    assert len(captured(tool, "torch.nn.functional.linear")) == 3  # forward, again for the outer, again for the inner


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.mul(x, 2)

    @staticmethod
    def backward(ctx, gradient):
        return torch.mul(gradient, 7)  # not 2: shows whose gradient it is


def test_custom_functions_in_the_graph_are_passed_through(captured):
    x = t(3, 4).requires_grad_()
    with op_tools.OpCapture() as tool:
        before = torch.sin(x)
        after = torch.exp(Doubling.apply(before))
        after.sum().backward()
    (sin,), (exp,) = captured(tool, "torch.sin"), captured(tool, "torch.exp")
    close(exp.gradients("inputs"), [after.detach()])
    close(sin.gradients("outputs"), [7 * after.detach()])
    close(sin.gradients("inputs"), alone(torch.sin, [x], [7 * after.detach()]))
    forward, backward = captured(tool, "torch.mul")
    assert forward.gradients("inputs") is None and backward.gradients("inputs") is None


def test_outputs_of_which_only_one_is_used_have_none_for_the_other(captured):
    x = t(4, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.functional.split") as tool:
        first, _ = torch.split(x, 2)
        first.sum().backward()
    (call,) = captured(tool)
    assert [None if g is None else g.sum().item() for g in call.gradients("outputs")] == [8, None]
    close(call.gradients("inputs"), [torch.cat([torch.ones(2, 4), torch.zeros(2, 4)])])


def test_gradients_go_to_the_files_when_backward_runs_long_after_the_scope(captured):
    x = t(3, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.exp") as tool:
        y = torch.exp(x)
    (call,) = captured(tool)
    assert call.gradients("inputs") is None
    with op_tools.OpCapture(ops="torch.sin"):  # another tool has the thread now
        torch.sin(x)
    y.sum().backward()
    tool.flush()
    close(call.gradients("inputs"), [y.detach()])


def test_call_under_no_grad_has_no_gradients_and_is_no_identity(captured):
    x = t(3, 4).requires_grad_()
    with op_tools.OpCapture(ops="torch.exp") as tool, torch.no_grad():
        torch.exp(x)
    (call,) = captured(tool)
    assert call.gradients("inputs") is None
    assert call.meta["state"]["grad_enabled"] is False and not call.meta.get("identity")


def test_backward_that_raises_leaves_no_half_gradient_files_and_the_error_unchanged(captured):
    x = t(3, 4).requires_grad_()

    def fail(_):
        raise KeyError("from the user's hook")

    with op_tools.OpCapture() as tool:
        middle = torch.exp(x)
        middle.register_hook(fail)
        with pytest.raises(KeyError, match="from the user's hook"):
            torch.sin(middle).sum().backward()
    (exp,) = captured(tool, "torch.exp")
    assert exp.gradients("inputs") is None
    assert not list(Path(tool.result().root).rglob("*.tmp*"))


class Kept:
    """Something that a graph's node keeps alive, and that can be watched."""


class Keeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = Kept()
        Keeper.last = weakref.ref(ctx.kept)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_graphs_that_never_run_backward_leave_nothing_behind(level):
    w = t(4, 4).requires_grad_()
    tool = op_tools.OpCapture(level=level)
    with tool:
        x = Keeper.apply(t(4, 4).requires_grad_())
        y = F.layer_norm(torch.cat([F.linear(x, w), x.mul_(2)]), (4,)).chunk(2)
        watched = [weakref.ref(a) for a in (x, *y)]
        del x, y
        gc.collect()
        assert Keeper.last() is None
        assert [ref() for ref in watched] == [None] * 3


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def test_memory_of_graphs_that_never_run_backward_comes_back():
    w = torch.randn(1000, 1000, requires_grad=True)
    x = torch.randn(1000, 1000)
    with op_tools.OpCapture(ops="torch.nn.functional.linear", max_calls=1, format="container"):
        F.linear(x, w).relu().sum()
        start = resident_mb()
        for _ in range(30):
            F.linear(x, w).sigmoid().mul(2)
        gc.collect()
        assert resident_mb() - start < 60  # 240 MB were made; a leak would keep half of them at the least


def test_bits_of_gradients_are_what_they_are_without_the_tool():
    def run():
        torch.manual_seed(1)
        x = torch.randn(64, 64, requires_grad=True)
        w = torch.randn(64, 64, requires_grad=True)
        y = F.linear(x, w)
        y = y + F.linear(torch.tanh(y), w) + F.layer_norm(y, (64,))
        (y * y.detach().max()).sum().backward()
        return x.grad, w.grad

    plain = run()
    with op_tools.OpCapture(format="container"):
        watched = run()
    assert all(same_bits(a, b) for a, b in zip(plain, watched, strict=True))
