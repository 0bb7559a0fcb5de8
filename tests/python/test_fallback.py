"""OpFallback: operators run on the CPU and everything looks as if the device had done it."""

import gc
import json
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import op_tools
import op_tools.sim_device as sim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
import fallback_stress

LEVELS = ["torch", "aten"]


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def on_device(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).to("sim")


def ran(tool):
    """Which operators of the dispatcher ran on the CPU."""
    return sorted({name for row in tool.result().rows for name in row.ran})


def stayed(tool):
    return sorted({text for row in tool.result().rows for text in row.stayed})


def same(left, right):
    """Two results: structure, devices, dtypes, strides, bits."""
    if isinstance(left, (list, tuple)):
        assert type(left) is type(right) and len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            same(a, b)
    elif isinstance(left, torch.Tensor):
        assert (left.device, left.dtype, left.shape, left.stride()) == (
            right.device,
            right.dtype,
            right.shape,
            right.stride(),
        )
        assert left.requires_grad == right.requires_grad
        assert torch.equal(left.detach().cpu(), right.detach().cpu()) or torch.allclose(
            left.detach().cpu(), right.detach().cpu(), equal_nan=True
        )
    else:
        assert left == right


# --- A wrong kernel -----------------------------------------------------------------------------------------------------


def test_a_wrong_kernel_is_lived_without(level):
    a, b = on_device(5, 6), on_device(6, 7)
    right = a.cpu() @ b.cpu()
    with sim.fault("scale", ops="mm"):
        assert not torch.allclose((a @ b).cpu(), right)
        with op_tools.OpFallback(ops=".*matmul.*" if level == "torch" else "mm", level=level) as tool:
            result = a @ b
        assert result.device == a.device
        assert torch.equal(result.cpu(), right)
        assert ran(tool) == (["aten::matmul"] if level == "torch" else ["aten::mm"])
        assert not torch.allclose((a @ b).cpu(), right)  # off again


def test_gradients_flow_and_backward_runs_on_the_cpu(level):
    x = on_device(4, 6).requires_grad_()
    linear = torch.nn.Linear(6, 3).to("sim")
    host = torch.nn.Linear(6, 3)
    host.load_state_dict({name: value.cpu() for name, value in linear.state_dict().items()})
    host_x = x.detach().cpu().requires_grad_()
    (host(host_x) ** 2).sum().backward()
    with sim.fault("scale", ops="mm|addmm|linear"), op_tools.OpFallback(ops=".*linear", level=level) as tool:
        loss = (linear(x) ** 2).sum()
        loss.backward()
    assert ran(tool) == ["aten::linear"]
    for device, cpu in [(x, host_x), (linear.weight, host.weight), (linear.bias, host.bias)]:
        assert device.grad.device.type == "sim"
        assert torch.allclose(device.grad.cpu(), cpu.grad, atol=1e-6)


def test_at_the_aten_level_backward_operators_fall_back_too():
    a, b = on_device(5, 6).requires_grad_(), on_device(6, 7)
    with sim.fault("scale", ops="mm"):
        loss = (a @ b).sum()
        with op_tools.OpFallback(ops="mm", level="aten") as tool:
            loss.backward()
    assert torch.allclose(a.grad.cpu(), b.cpu().sum(1).expand(5, 6))
    assert ran(tool) == ["aten::mm"]


def test_backward_may_be_differentiated_again(level):
    x = on_device(4).requires_grad_()
    with op_tools.OpFallback(ops=".*pow.*", level=level) as tool:
        y = x.pow(3)
    assert len(ran(tool)) == 1
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(first, 3 * x * x)
    assert torch.allclose(second, 6 * x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own decompositions
def test_forward_mode_differentiation(level):
    x, tangent = on_device(4), on_device(4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        with op_tools.OpFallback(ops=".*sin", level=level) as tool:
            result = torch.autograd.forward_ad.unpack_dual(torch.sin(dual))
    assert ran(tool) == ["aten::sin"]
    assert torch.allclose(result.tangent.cpu(), tangent.cpu() * x.cpu().cos())


def model_and_data(kind):
    torch.manual_seed(3)
    if kind == "lenet":
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(inplace=True),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(100, 10),
        )
        return model, torch.randn(8, 1, 12, 12), torch.randint(0, 10, (8,))
    if kind == "transformer":
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model = torch.nn.Sequential(torch.nn.Embedding(20, 16), layer, torch.nn.Linear(16, 20), torch.nn.Flatten(0, 1))
        return model, torch.randint(0, 20, (4, 6)), torch.randint(0, 20, (24,))

    class Lstm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(5, 8, num_layers=2, dropout=0.1), torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0][-1])

    return Lstm(), torch.randn(7, 8, 5), torch.randint(0, 4, (8,))


def train(kind, steps=3, **fallback):
    model, data, target = model_and_data(kind)
    model, data, target = model.to("sim"), data.to("sim"), target.to("sim")
    # A bias before a normalization has a gradient of rounding alone: with the default eps AdamW makes a step of lr of it.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    torch.manual_seed(5)
    losses = []
    tool = op_tools.OpFallback(**fallback) if fallback else None
    if tool:
        tool.start()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    if tool:
        tool.stop()
    return losses, [p.detach().cpu() for p in model.state_dict().values()], tool


@pytest.mark.parametrize("kind", ["lenet", "lstm", "transformer"])
def test_training_with_everything_on_the_cpu_is_what_it_was(kind, level):
    losses, state, _ = train(kind)
    fallen, fallen_state, tool = train(kind, level=level)
    assert fallen == pytest.approx(losses, abs=1e-5)
    for a, b in zip(state, fallen_state, strict=True):
        assert torch.allclose(a, b, atol=1e-3)
    assert sum(row.calls for row in tool.result().rows) > 20


# --- Results look as if the device had made them -------------------------------------------------------------------------


def test_in_place_changes_the_tensor_itself(level):
    x, y = on_device(4, 4), on_device(4, 4)
    kept, address = x.clone(), x.data_ptr()
    with op_tools.OpFallback(ops=".*add_.*", level=level) as tool:
        result = x.add_(y)
    assert ran(tool) == ["aten::add_.Tensor"]
    assert result is x and x.data_ptr() == address
    same(x, kept + y)


def test_in_place_on_a_view_reaches_its_base_and_its_gradient(level):
    base = on_device(3, 4).requires_grad_()
    work = base * 2
    with op_tools.OpFallback(ops=".*mul_.*", level=level) as tool:
        work[1].mul_(5)
    assert ran(tool) == ["aten::mul_.Tensor"]
    work.sum().backward()
    assert base.grad.cpu().tolist() == [[2] * 4, [10] * 4, [2] * 4]


def test_in_place_is_refused_where_the_device_refuses_it(level):
    leaf = on_device(3).requires_grad_()
    with pytest.raises(RuntimeError) as device:
        leaf.mul_(2)
    with op_tools.OpFallback(ops=".*mul_.*", level=level), pytest.raises(RuntimeError) as cpu:
        leaf.mul_(2)
    assert str(device.value).splitlines()[0] == str(cpu.value).splitlines()[0]


@pytest.mark.parametrize("wrong_size", [False, True])
def test_out_is_written_and_resized(level, wrong_size):
    a, b = on_device(3, 4), on_device(4, 5)
    out = torch.empty(0 if wrong_size else (3, 5), device="sim")
    other = out
    with op_tools.OpFallback(ops=".*mm.*", level=level) as tool:
        result = torch.mm(a, b, out=out)
    assert ran(tool) == ["aten::mm.out"]
    assert result is out and other.shape == (3, 5)
    same(out, torch.mm(a, b))


def test_strides_and_dtypes_are_those_of_the_operator(level):
    x = on_device(2, 3, 4, 4).to(memory_format=torch.channels_last)
    weight = on_device(5, 3, 2, 2)
    with op_tools.OpFallback(ops=".*conv2d|.*convolution|.*max_pool2d.*|.*transpose.*|.*argmax", level=level):
        conv, argmax = F.conv2d(x, weight), x.argmax(1)
        pooled, index = F.max_pool2d(x, 2, return_indices=True)
    assert conv.is_contiguous(memory_format=torch.channels_last)
    assert (index.dtype, argmax.dtype) == (torch.int64, torch.int64)
    same(conv, F.conv2d(x, weight))
    same((pooled, index), F.max_pool2d(x, 2, return_indices=True))


def test_lists_optional_tensors_and_tensors_given_twice(level):
    x, y = on_device(3, 4), on_device(3, 4)
    index = torch.tensor([2, 0], device="sim")

    def results():
        return [
            torch.cat([x, y, x]),
            x[:, index],
            x[index],
            torch.index_put(x, (index,), y[:2]),
            torch._foreach_add([x, y], 1.5),
            torch._foreach_mul([x, y], [y, x]),
            torch.stack([x, x], 1),
            F.layer_norm(x, (4,)),
            torch.split(x, 2),
            torch.addmm(x, x, y.t().contiguous().new_ones(4, 4)),
        ]

    with op_tools.OpFallback(level=level) as tool:
        on_cpu = results()
    for left, right in zip(on_cpu, results(), strict=True):
        same(left, right)
    assert "aten::cat" in ran(tool)


def test_foreach_in_place_writes_every_tensor(level):
    tensors = [on_device(3), on_device(2, 2)]
    expected = [t * 2 for t in tensors]
    with op_tools.OpFallback(ops=".*_foreach_mul_.*", level=level) as tool:
        torch._foreach_mul_(tensors, 2)
    assert ran(tool) == ["aten::_foreach_mul_.Scalar"]
    for left, right in zip(tensors, expected, strict=True):
        same(left, right)


def test_arguments_that_name_the_device(level):
    x = on_device(3, dtype=torch.float32)
    with op_tools.OpFallback(ops=".*(_like|to|_to_copy|double).*", level=level) as tool:
        results = [
            torch.full_like(x, 2.0, device="sim"),
            torch.ones_like(x, dtype=torch.float64, device=x.device),
            x.to("sim", torch.float64),
            x.double(),
        ]
        on_cpu = x.to("cpu")
    assert [r.device.type for r in results] == ["sim"] * 4
    assert [r.dtype for r in results] == [torch.float32] + [torch.float64] * 3
    assert on_cpu.device.type == "cpu"
    assert any("moves data to another device" in text for text in stayed(tool))
    assert {"aten::_to_copy", "aten::full_like", "aten::ones_like"} <= set(ran(tool))


def test_a_tensor_that_depends_on_nothing_of_the_device_is_left_alone(level):
    x = torch.randn(3, 3)
    with op_tools.OpFallback(level=level) as tool:
        x.mm(x).relu_()
    assert ran(tool) == []


def test_no_grad_inference_mode_and_integers(level):
    x, n = on_device(3, 3), torch.arange(6, device="sim")
    with op_tools.OpFallback(level=level) as tool:
        with torch.no_grad():
            same(x.requires_grad_() * 2, x.detach() * 2)
        with torch.inference_mode():
            assert (x * 2).is_inference()
        assert (n // 4).tolist() == [0, 0, 0, 0, 1, 1]
        assert (n > 3).any()
    assert "aten::mul.Tensor" in ran(tool)


# --- Mistakes of torch's own cpu_fallback ----------------------------------------------------------------------------------


def test_known_failure_wrong_output_device_after_a_cpu_scalar(level):
    x, scalar = on_device(3), torch.tensor(2.5)
    with op_tools.OpFallback(level=level) as tool:
        results = [torch.add(scalar, x), scalar * x, torch.where(x > 0, scalar, x), torch.sub(scalar, x, alpha=2)]
    assert all(result.device == x.device for result in results)
    same(results[0], scalar + x)
    assert len(ran(tool)) >= 4


def test_known_failure_empty_results_of_composite_explicit_operators(level):
    library = torch.library.Library("op_tools_fallback_test", "FRAGMENT")
    library.define(f"shifted_{level}(Tensor x, float by=1.) -> (Tensor, Tensor)")
    library.impl(f"shifted_{level}", lambda x, by=1.0: (x + by, x - by), "CompositeExplicitAutograd")
    x = on_device(3, 2)
    names = "op_tools_fallback_test.*|torch.ops.*|.*group_norm.*|.*linspace.*|.*roll"
    with op_tools.OpFallback(ops=names, level=level) as tool:
        up, down = getattr(torch.ops.op_tools_fallback_test, f"shifted_{level}")(x, by=2.0)
        rolled = torch.roll(x, 1)
        normed = F.group_norm(x, 2)
    assert f"op_tools_fallback_test::shifted_{level}" in ran(tool)
    assert torch.equal(up.cpu(), x.cpu() + 2) and torch.equal(down.cpu(), x.cpu() - 2)
    same(rolled, torch.roll(x, 1))
    same(normed, F.group_norm(x, 2))


def test_known_failure_write_back_through_a_kernel_that_backends_lack(level):
    x = on_device(4)
    with sim.fault("missing", ops="_copy_from_and_resize") as missing, op_tools.OpFallback(level=level) as tool:
        expected = x.cpu().mul(3)
        x.mul_(3)
        out = torch.empty(0, device="sim")
        torch.add(x, 1, out=out)
    assert missing.hits == 0
    assert {"aten::mul_.Tensor", "aten::add.out"} <= set(ran(tool))
    assert torch.equal(x.cpu(), expected) and torch.equal(out.cpu(), expected + 1)


def test_known_failure_views_stay_views(level):
    x, z = on_device(4, 6), torch.randn(4, dtype=torch.complex64).to("sim")
    with op_tools.OpFallback(level=level) as tool:
        views = [x.unfold(1, 2, 2), x.t(), x.view(6, 4), x.reshape(2, 12), x[1], x.expand(2, 4, 6), x.diagonal()]
        real = torch.view_as_real(z)
        again = x.contiguous()
    for view in views:
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view._base is x
    assert again.data_ptr() == x.data_ptr()
    real.zero_()
    assert z.abs().sum().item() == 0
    assert any("view of its input" in text for text in stayed(tool))


# --- Refusals -------------------------------------------------------------------------------------------------------------


def test_refusals_are_told_once_with_the_reason(log_level, capfd):
    log_level("info")
    x = on_device(4)
    with op_tools.OpFallback(level="aten") as tool:
        for _ in range(3):
            x.view(2, 2)
            torch.empty(3, device="sim")
            torch.zeros(3, device="sim")
            x.sum().item()
    lines = capfd.readouterr().err.splitlines()
    reasons = [line for line in lines if "leaves as it is" in line]
    assert len(reasons) == len(set(reasons)) >= 4
    assert sum("aten::view: it gives a view of its input" in line for line in reasons) == 1
    assert sum("uninitialized" in line for line in reasons) >= 1
    row = next(row for row in tool.result().rows if row.op == "aten::view")
    assert list(row.stayed.values()) == [3] and row.calls == 0


def test_a_copy_between_devices_is_the_devices_own(level):
    x = on_device(4)
    host = torch.zeros(4)
    with op_tools.OpFallback(level=level):
        host.copy_(x)
        x.copy_(torch.ones(4))
        with pytest.raises(RuntimeError):  # the device's own complaint
            x + torch.ones(4)
    assert x.sum().item() == 4 and host.abs().sum().item() > 0


def test_sparse_and_subclasses():
    class Tagged(torch.Tensor):
        pass

    x = on_device(3).as_subclass(Tagged)
    with op_tools.OpFallback(level="aten") as tool:
        assert type(x + 1) is Tagged
    assert ran(tool) == ["aten::add.Tensor"]


def test_errors_are_the_operators_own(level):
    x = on_device(3, 4)

    def failures():
        for call in (
            lambda: torch.cat([x, x], 5),
            lambda: x.mm(x),
            lambda: x.add_(on_device(7)),
            lambda: torch.gather(x, 1, torch.zeros(2)),
            lambda: x.softmax(9),
            lambda: F.linear(x, x.t()),
        ):
            with pytest.raises((RuntimeError, IndexError)) as caught:
                call()
            yield type(caught.value), str(caught.value).splitlines()[0]

    expected = list(failures())
    before = x.clone()
    with op_tools.OpFallback(level=level):
        assert list(failures()) == expected
    assert IndexError in {kind for kind, _ in expected}
    same(x, before)


# --- Random numbers ----------------------------------------------------------------------------------------------------------


def test_random_numbers_come_from_the_device(level):
    x, weights = on_device(100), torch.rand(10).to("sim")
    draws = [
        lambda: F.dropout(x, 0.5),
        lambda: torch.rand_like(x),
        lambda: x.clone().normal_(),
        lambda: torch.bernoulli(x.sigmoid()),
        lambda: torch.multinomial(weights, 3),
        lambda: F.rrelu(x, training=True),
        lambda: torch.ops.aten.native_dropout(x, 0.5, True)[0],
    ]
    for draw in draws:
        torch.manual_seed(11)
        expected = draw()
        torch.manual_seed(11)
        cpu, device = torch.get_rng_state(), sim_state()
        with op_tools.OpFallback(level=level, skip=".*clone") as tool:
            result = draw()
        assert ran(tool)
        same(result, expected)
        assert torch.equal(torch.get_rng_state(), cpu)
        assert not torch.equal(sim_state(), device)


def sim_state():
    return torch.sim.get_rng_state().clone()


def test_a_generator_of_the_programs_moves_on(level):
    x = on_device(50)
    generators = [torch.Generator("sim").manual_seed(4) for _ in range(2)]
    expected = [x.clone().normal_(generator=generators[0]) for _ in range(2)]
    cpu, device = torch.get_rng_state(), sim_state()
    with op_tools.OpFallback(ops=".*normal_", level=level) as tool:
        results = [x.clone().normal_(generator=generators[1]) for _ in range(2)]
    assert ran(tool) == ["aten::normal_"]
    for left, right in zip(results, expected, strict=True):
        same(left, right)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    assert torch.equal(torch.get_rng_state(), cpu) and torch.equal(sim_state(), device)


# --- Autocast ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_under_autocast_dtypes_are_the_devices(level, dtype):
    x, weight = on_device(4, 8).requires_grad_(), on_device(3, 8).requires_grad_()
    bias = on_device(3)

    def calls():
        hidden = F.linear(x, weight, bias)
        results = [
            hidden,
            x @ weight.t(),
            hidden.softmax(-1),
            hidden.exp(),
            F.layer_norm(hidden, (3,)),
            hidden + bias,
            torch.cat([hidden, bias[None]]),
            F.cross_entropy(hidden, torch.zeros(4, dtype=torch.long, device="sim")),
            hidden.sum(),
            torch.einsum("ij,kj->ik", x, weight),
            hidden.relu(),
        ]
        return results, [*torch.autograd.grad(sum(r.float().sum() for r in results), [x, weight])]

    with torch.autocast("sim", dtype=dtype):
        expected, expected_gradients = calls()
        with op_tools.OpFallback(level=level) as tool:
            results, gradients = calls()
    assert [r.dtype for r in results] == [e.dtype for e in expected]
    assert {r.dtype for r in results} == {dtype, torch.float32}
    for left, right in zip(results + gradients, expected + expected_gradients, strict=True):
        assert torch.allclose(left.float().cpu(), right.float().cpu(), atol=0.05, rtol=0.02)
    assert "aten::linear" in ran(tool) or "aten::addmm" in ran(tool)


# --- Gaps of the device ----------------------------------------------------------------------------------------------------------


def test_on_missing_runs_only_what_the_device_lacks(level):
    a, b = on_device(4, 4), on_device(4, 4)
    with sim.fault("missing", ops="mm"):
        with pytest.raises(NotImplementedError):
            torch.mm(a, b)
        with op_tools.OpFallback(on_missing=True, level=level) as tool:
            product, total = torch.mm(a, b), a + b
        with op_tools.OpFallback(on_missing=True, level=level), pytest.raises(RuntimeError, match=r"shapes|size"):
            torch.mm(a, on_device(3, 3))
    assert ran(tool) == ["aten::mm"]
    assert torch.equal(product.cpu(), a.cpu() @ b.cpu())
    same(total, a + b)


def test_on_missing_undoes_what_a_half_done_operator_changed(level):
    library = torch.library.Library("op_tools_fallback_test", "FRAGMENT")
    library.define(f"doubled_{level}_(Tensor(a!)[] xs) -> ()")
    fails = True

    def half_done(xs):
        for i, x in enumerate(xs):
            if fails and i == 1 and x.device.type == "sim":
                raise NotImplementedError("not on this device")
            x.mul_(2)

    library.impl(f"doubled_{level}_", half_done, "CompositeExplicitAutograd")
    tensors = [on_device(3), on_device(3)]
    expected = [t * 2 for t in tensors]
    with op_tools.OpFallback(on_missing=True, level=level) as tool:
        getattr(torch.ops.op_tools_fallback_test, f"doubled_{level}_")(tensors)
    for left, right in zip(tensors, expected, strict=True):
        same(left, right)
    assert ran(tool) == [f"op_tools_fallback_test::doubled_{level}_"]
    fails = False


def test_an_operator_that_neither_has_raises_the_devices_error(level):
    library = torch.library.Library("op_tools_fallback_test", "FRAGMENT")
    library.define(f"nowhere_{level}(Tensor x) -> Tensor")
    nowhere, x = getattr(torch.ops.op_tools_fallback_test, f"nowhere_{level}"), on_device(2)
    with pytest.raises(NotImplementedError) as device:
        nowhere(x)
    for on_missing in (False, True):
        tool = op_tools.OpFallback(level=level, on_missing=on_missing)
        with tool, pytest.raises(NotImplementedError) as caught:
            nowhere(x)
        assert str(caught.value).splitlines()[0] == str(device.value).splitlines()[0]
        assert any("the CPU has no kernel" in text for text in stayed(tool))


# --- Python functions --------------------------------------------------------------------------------------------------------------


def test_functions_that_exist_in_python_only():
    def twice_plus(x, *, by):
        if torch.overrides.has_torch_function_unary(x) or torch.overrides._len_torch_function_stack():
            return torch.overrides.handle_torch_function(twice_plus, (x,), x, by=by)
        assert x.device.type == "sim"
        return x.mul(2).add_(by["value"])

    query = on_device(3, 2, 8)
    attention = torch.nn.MultiheadAttention(8, 2).to("sim")
    expected = attention(query, query, query)
    with op_tools.OpFallback(ops=".*multi_head_attention_forward|.*twice_plus|.*normalize") as tool:
        results = attention(query, query, query)
        same(twice_plus(query, by={"value": 1}), query * 2 + 1)
        same(F.normalize(query), F.normalize(query))
    for left, right in zip(results, expected, strict=True):
        assert torch.allclose(left.cpu(), right.cpu(), atol=1e-5)
    assert {row.op.rsplit(".", 1)[-1] for row in tool.result().rows} >= {"multi_head_attention_forward", "normalize"}


# --- Filters and dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("add.out, conv2d", ["aten::add.Tensor", "aten::add_.Tensor", "aten::conv2d"]),
        (".*.Scalar", ["aten::pow.Tensor_Scalar"]),
        ("mul.out", ["aten::mul.Tensor"]),
        (".*", None),
    ],
)
def test_dipus_list(monkeypatch, listed, expected):
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", listed)
    x, image, weight = on_device(3), on_device(1, 1, 4, 4), on_device(1, 1, 2, 2)
    with op_tools.OpFallback(level="aten") as tool:
        x.add(1).add_(x).mul(x)
        x.pow(2)
        F.conv2d(image, weight)
    if expected is None:
        assert len(ran(tool)) >= 5
    elif listed == ".*.Scalar":
        assert ran(tool) == [] or ran(tool) == expected
    else:
        assert ran(tool) == expected


def test_dipus_list_at_the_torch_level_and_beside_a_list(monkeypatch, capfd):
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", "add.out")
    x = on_device(3)
    with op_tools.OpFallback(ops=".*mul") as tool:
        x.add(1).mul(2)
    assert ran(tool) == ["aten::mul.Tensor"]
    assert "DIPU" not in capfd.readouterr().err
    with op_tools.OpFallback():
        x.add(1)
    assert "level=" in capfd.readouterr().err
    monkeypatch.setenv("OP_FALLBACK_LIST", "mul")
    with op_tools.OpFallback(level="aten") as tool:
        x.add(1).mul(2)
    assert ran(tool) == ["aten::mul.Tensor"]


def test_half_types_may_be_widened(level, monkeypatch):
    x, y = on_device(64, 64, dtype=torch.bfloat16), on_device(64, 64, dtype=torch.bfloat16)
    x.requires_grad_()
    exact = (x.detach().cpu().float() @ y.cpu().float()).bfloat16()
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    with op_tools.OpFallback(ops=".*mm", level=level) as tool:
        result = torch.mm(x, y)
    assert ran(tool) == ["aten::mm"]
    assert result.dtype == torch.bfloat16
    assert torch.equal(result.cpu(), exact)
    result.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    monkeypatch.setenv("MM_OP_DTYPE_CAST_DICT", "torch.float16->torch.float32")
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    with op_tools.OpFallback(ops=".*mm|.*mul.*", level=level):
        same(torch.mm(x, y), torch.mm(x, y))
        same(x * y, x * y)


@pytest.mark.parametrize(
    "wrong", ["torch.float16", "torch.float16->torch.flaot32", "float16->int32", "float16->float32,half->float64"]
)
def test_a_wrong_dict_is_refused_with_its_name(wrong, monkeypatch):
    with pytest.raises(op_tools.Error, match="cast="):
        op_tools.OpFallback(cast=wrong).start()
    monkeypatch.setenv("LINEAR_OP_DTYPE_CAST_DICT", wrong)
    with pytest.raises(op_tools.Error, match="LINEAR_OP_DTYPE_CAST_DICT"):
        op_tools.OpDtypeCast().start()


# --- Reports and company -----------------------------------------------------------------------------------------------------------


def test_the_table_and_the_summary(log_level, capfd):
    log_level("info")
    a, b = on_device(32, 32), on_device(32, 32)
    with op_tools.OpFallback(ops="torch.mm, torch.add") as tool:
        for _ in range(3):
            torch.mm(a, b)
        torch.add(a, b)
    rows = {row.op: row for row in tool.result().rows}
    assert rows["torch.mm"].calls == 3 and rows["torch.mm"].ran == {"aten::mm": 3}
    assert rows["torch.mm"].bytes == 3 * 3 * 32 * 32 * 4
    assert rows["torch.add"].calls == 1 and rows["torch.add"].milliseconds > 0
    assert "torch.mm" in tool.result().table()
    error = capfd.readouterr().err
    assert "apply OpFallbackHook on torch.mm" in error
    assert "OpFallback: 4 operators ran on the CPU" in error


def test_beside_a_capture_and_observers(tmp_path):
    a, b = on_device(4, 4).requires_grad_(), on_device(4, 4)
    with op_tools.OpCapture(output_dir=str(tmp_path)) as capture, op_tools.OpFallback(ops=".*mm") as tool:
        torch.mm(a, b).sum().backward()
    assert ran(tool) == ["aten::mm"]
    (mm,) = [row for row in capture.result().rows if row.op == "torch.mm"]
    assert (mm.calls, mm.backward) == (1, 1)
    (folder,) = tmp_path.glob("op_capture_result/*/*/torch.mm/*")
    assert torch.equal(torch.load(folder / "output.pth")["args"][0].cpu(), a.detach().cpu() @ b.cpu())
    (gradient, _) = torch.load(folder / "grad_inputs.pth")["args"]
    assert torch.allclose(gradient.cpu(), a.grad.cpu())


def test_threads_have_their_own_and_nothing_leaks():
    x = on_device(16, 16)

    def work(results):
        with op_tools.OpFallback(ops=".*mm") as tool:
            for _ in range(20):
                torch.mm(x, x.t().contiguous())
        results.append(sum(row.calls for row in tool.result().rows))

    counts = []
    threads = [threading.Thread(target=work, args=(counts,)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert counts == [20, 20]

    y = on_device(16, 16).requires_grad_()
    gc.collect()
    torch.sim.synchronize()
    before = torch.sim.memory_allocated()
    with op_tools.OpFallback(ops=".*(mm|relu)"):
        for _ in range(5):
            torch.mm(y, y).relu().sum()
    gc.collect()
    torch.sim.synchronize()
    after = torch.sim.memory_allocated()
    assert after == before


def test_threads_never_draw_the_same_numbers():
    generators = [torch.Generator("sim").manual_seed(4) for _ in range(2)]
    x = on_device(500, 500)
    one_by_one = [x.clone().normal_(generator=generators[0]).cpu() for _ in range(40)]
    drawn = []

    def work():
        with op_tools.OpFallback(ops=".*normal_"):
            for _ in range(10):
                drawn.append(x.clone().normal_(generator=generators[1]).cpu())

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    def first(numbers):
        return sorted(one[0, 0].item() for one in numbers)

    assert first(drawn) == first(one_by_one)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_both_kinds_of_checkpoint_restore_their_random_numbers(level):
    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)).to("sim")
    start = on_device(4, 8)

    def train():
        torch.manual_seed(3)
        x = start.clone().requires_grad_()
        y = checkpoint(block, x, use_reentrant=True) + checkpoint(block, x, use_reentrant=False)
        y.sum().backward()
        return x.grad.cpu()

    expected = train()
    for _ in range(20):  # two threads of autograd ran them side by side, and most came out wrong
        with op_tools.OpFallback(level=level):
            got = train()
        assert torch.allclose(got, expected)


def test_backward_runs_the_programs_code_in_one_thread_as_without(level):
    """Nodes of the CPU run in the caller's thread, those of a device in a thread of their own: a program sees either."""
    weight = on_device(6, 6).requires_grad_()

    def train(tool=None):
        seen = set()

        def note(x):
            seen.add(threading.get_ident())
            return x

        if tool:
            tool.start()
        y = weight.mm(weight).tanh()
        y.register_hook(lambda _: note(None))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, note):
            z = y.exp() * y.relu()
        z.register_hook(lambda _: note(None))
        if tool:
            tool.stop()  # the graph counts, not the scope
        z.sum().backward()
        return len(seen)

    torch.autograd.set_multithreading_enabled(True)
    for ops in (".*mm|.*exp", ".*relu|.*sum", ".*tanh"):
        assert train() == train(op_tools.OpFallback(ops=ops, level=level)) == 1
        gc.collect()
        assert torch.autograd.is_multithreading_enabled()  # as it was


def test_a_setting_of_the_programs_stays_as_it_is():
    torch.autograd.set_multithreading_enabled(False)
    try:
        with op_tools.OpFallback(ops=".*exp"):
            on_device(2).requires_grad_().exp().sum().backward()
        gc.collect()
        assert not torch.autograd.is_multithreading_enabled()
    finally:
        torch.autograd.set_multithreading_enabled(True)


@pytest.mark.parametrize("seed", [0, 7, 18, 23, 39, 44, 48, 53])
def test_programs_whose_backward_computes_again(seed, quiet):
    """Checkpoints, nested passes, hooks, streams and threads; tests/proofs/fallback_stress.py does it for more seeds."""
    if hasattr(
        torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"
    ):  # not in torch 2.9, which does not warn
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    runs, findings = fallback_stress.check(seed, repeat=2)
    assert runs and findings == []


def test_a_recurrent_net_trains_on_a_device_without_its_fused_cells(level):
    """torch asks devices for _thnn_fused_lstm_cell, for which it has no CPU kernel: ours stands in."""

    def train():
        torch.manual_seed(3)
        network = torch.nn.LSTM(4, 5).to("sim")
        network(torch.randn(6, 2, 4).to("sim"))[0].square().sum().backward()
        return [parameter.grad.cpu() for parameter in network.parameters()]

    wanted = train()
    with sim.fault("missing", ops="aten::_thnn_fused_lstm_cell.*"):
        with pytest.raises(NotImplementedError):
            train()
        with op_tools.OpFallback(on_missing=True, level=level) as tool:
            got = train()
    for expected, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(expected, other)
    assert any("lstm" in name for name in ran(tool))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
def test_tangents_are_where_their_tensors_are(level):
    x, tangent = on_device(3), on_device(3)
    with op_tools.OpFallback(level=level), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        y = torch.zeros_like(x)
        y.copy_(dual)
        y.mul_(dual)
        primal, moved = torch.autograd.forward_ad.unpack_dual(y)
    assert moved.device == primal.device == x.device
    assert torch.equal(moved.cpu(), (2 * x * tangent).cpu())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_jacobians_of_a_batch_at_once(level, strategy):
    x = on_device(3)
    plain = torch.autograd.functional.jacobian(torch.exp, x, vectorize=True, strategy=strategy)
    with op_tools.OpFallback(level=level):
        result = torch.autograd.functional.jacobian(torch.exp, x, vectorize=True, strategy=strategy)
    same(result, plain)


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_of_packed_sequences_are_where_the_program_expects_them(level, batch_first):
    rnn = torch.nn.utils.rnn
    x, lengths = torch.randn(3, 3, 4).to("sim"), torch.tensor([3, 2, 1])

    def program():
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=batch_first)
        padded, again = rnn.pad_packed_sequence(packed, batch_first=batch_first)
        return [packed.data, packed.batch_sizes, padded, again, *rnn.unpack_sequence(packed)]

    plain = program()
    with op_tools.OpFallback(level=level):
        moved = program()
    assert [tensor.device.type for tensor in moved] == [tensor.device.type for tensor in plain]
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(moved, plain, strict=True))


def test_calls_that_are_listed_are_the_same_in_every_run_and_can_be_chosen(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).to("sim")
    x = torch.ones(2, 4, device="sim")

    def run(**options):
        tool = op_tools.OpFallback(level="aten", **options)
        with tool:
            for _ in range(2):
                model(x).sum().backward()
                tool.step()
        return {row.op: row.calls for row in tool.result().rows if row.calls}

    lists = []
    for name in ("first", "second"):
        assert run(list_calls=str(tmp_path / name)) == {}, "listing moves nothing"
        lists.append([json.loads(line) for line in (tmp_path / f"{name}.0").read_text().splitlines()])
    by_item = [{one["of_call"]: one for one in calls} for calls in lists]
    assert by_item[0] == by_item[1] and len(by_item[0]) == len(lists[0])
    linear = [one for one in lists[0] if one["op"] == "aten::addmm"]
    assert [(one["module"], one["phase"]) for one in linear] == [
        ("Sequential.0", "forward"),
        ("Sequential.2", "forward"),
    ]
    backward = [one for one in lists[0] if one["op"] == "aten::tanh_backward"]
    assert [(one["module"], one["phase"]) for one in backward] == [("Sequential.1", "backward")]
    assert "test_fallback.py:" in backward[0]["line"], "that of the forward call"

    (tmp_path / "calls").write_text(f"{linear[1]['of_call']}\n{backward[0]['of_op']}\n")
    assert run(only_calls=str(tmp_path / "calls")) == {"aten::addmm": 2, "aten::tanh_backward": 2}
    both = run(only_calls=str(tmp_path / "calls"), list_calls=str(tmp_path / "third"))
    assert both == {"aten::addmm": 2, "aten::tanh_backward": 2}
    again = [json.loads(line) for line in (tmp_path / "third.0").read_text().splitlines()]
    moved = {linear[1]["of_call"], backward[0]["of_call"]}
    assert moved < {one["of_call"] for one in again} < set(by_item[0]), "without the backward of moved calls"


def test_on_copies_everything_is_what_it_was():
    torch.manual_seed(0)
    x = torch.randn(8, 8, device="sim", requires_grad=True)

    def run():
        y = torch.nn.functional.dropout((x @ x).t().relu(), 0.5)
        y.mul_(2)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach().cpu(), gradient.cpu()

    torch.manual_seed(1)
    right = run()
    torch.manual_seed(1)
    tool = op_tools.OpFallback(level="aten", target="same")
    with tool:
        result = run()
    assert all(torch.equal(one, other) for one, other in zip(result, right))
    assert sum(row.calls for row in tool.result().rows) > 4


@pytest.mark.parametrize("target", ["cpu", "same"])
def test_an_error_that_the_device_reports_late_reaches_the_program(target):
    """Else the copy of a later call meets it, the call is left as it is, and the program goes on with wrong numbers."""
    x = torch.ones(3, device="sim")
    outside = torch.tensor([5], device="sim")
    for _ in range(3):
        x.gather(0, outside - 5)  # from the third call on it runs later
    torch.accelerator.synchronize()
    x.gather(0, outside)
    with (
        pytest.raises(RuntimeError, match="index 5 is out of bounds"),
        op_tools.OpFallback(level="aten", target=target),
    ):
        torch.exp(x)


def test_an_out_tensor_has_memory_for_strides_that_reach_further_than_its_elements():
    """The solution of lstsq lies in the memory of the right side, which has more rows."""
    a, b = torch.randn(64, 3, device="sim"), torch.randn(64, 30, device="sim")
    out = tuple(torch.empty(0, dtype=dtype, device="sim") for dtype in (a.dtype, a.dtype, torch.int64, a.dtype))
    with op_tools.OpFallback(ops=".*lstsq.*"):
        solution = torch.linalg.lstsq(a, b, driver="gels", out=out).solution
    reached = sum((size - 1) * stride for size, stride in zip(solution.shape, solution.stride(), strict=True)) + 1
    assert solution.untyped_storage().nbytes() >= reached * solution.itemsize
    torch.testing.assert_close(solution.cpu(), torch.linalg.lstsq(a.cpu(), b.cpu(), driver="gels").solution)
