"""OpDtypeCast: operators run on their own device in other dtypes, and nobody sees it but in the digits."""

import pytest
import torch
import torch.nn.functional as F

import op_tools

LEVELS = ["torch", "aten"]


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def ran(tool):
    return sorted({name for row in tool.result().rows for name in row.ran})


def half(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def test_half_types_run_in_float32_by_default(level):
    x, y = half(64, 64), half(64, 64, dtype=torch.bfloat16)
    with op_tools.OpDtypeCast(ops=".*(sum|mm)", level=level) as tool:
        total, product = torch.sum(x), torch.mm(x, y)
        untouched = torch.mm(x.float(), y.float())
    assert ran(tool) == ["aten::mm", "aten::sum"]
    assert total.dtype == product.dtype == torch.bfloat16
    assert torch.equal(total, x.float().sum().bfloat16())
    assert torch.equal(product, (x.float() @ y.float()).bfloat16())
    assert untouched.dtype == torch.float32
    assert sum(row.calls for row in tool.result().rows) == 2


def test_results_come_back_in_the_dtypes_that_they_would_have_had(level):
    x, wide, weight = half(4, 8), torch.randn(4, 8), half(8)

    def calls():
        return [
            x + wide,  # promotion decides: float32
            x * torch.tensor(2.0),  # no dimensions: takes no part
            x * 2.5,
            x.softmax(-1, dtype=torch.float32),
            x.to(torch.float32),
            wide.to(torch.bfloat16),
            x.sum(dtype=torch.float64),
            x.argmax(),
            x > 0,
            F.layer_norm(x, (8,), weight, weight),
            torch.where(x > 0, x, weight),
            torch.cat([x, x]),
            torch.std_mean(x),
            x.half() @ x.half().t(),
        ]

    expected = calls()
    with op_tools.OpDtypeCast(level=level) as tool:
        results = calls()
    for result, plain in zip(results, expected, strict=True):
        for tensor, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (result, plain)), strict=True):
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.allclose(tensor.double(), other.double(), atol=0.05, rtol=0.02)
    assert len(ran(tool)) > 8


def test_complex_results_of_real_numbers_and_real_ones_of_complex():
    x = torch.randn(16)
    z = torch.fft.fft(x)
    cast = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    with op_tools.OpDtypeCast(cast=cast, level="aten") as tool:
        transformed, absolute = torch.fft.fft(x), z.abs()
    assert (transformed.dtype, absolute.dtype) == (torch.complex64, torch.float32)
    assert len(ran(tool)) >= 2


def test_in_place_and_out(level):
    x, out = half(3, 3), torch.empty(0, dtype=torch.bfloat16)
    expected = (x.float() * 1.01).bfloat16()
    with op_tools.OpDtypeCast(ops=".*(mul_|add).*", level=level) as tool:
        assert x.mul_(1.01) is x
        torch.add(x, x, out=out)
    assert torch.equal(x, expected) and x.dtype == torch.bfloat16
    assert torch.equal(out, (expected.float() * 2).bfloat16()) and out.shape == (3, 3)
    assert ran(tool) == ["aten::add.out", "aten::mul_.Tensor"]


def test_gradients_come_back_in_the_original_dtypes(level):
    x, weight = half(8, 16).requires_grad_(), torch.nn.Parameter(half(4, 16))
    with op_tools.OpDtypeCast(ops=".*linear", level=level) as tool:
        result = F.linear(x, weight)
    assert ran(tool) == ["aten::linear"]
    result.pow(2).sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    incoming = (2 * result.detach().float()).bfloat16().float()
    assert torch.equal(x.grad, (incoming @ weight.detach().float()).bfloat16())
    assert torch.equal(weight.grad, (incoming.t() @ x.detach().float()).bfloat16())


def test_under_autocast_what_runs_in_half_runs_in_float32(level):
    x, weight = torch.randn(8, 64), torch.randn(4, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16), op_tools.OpDtypeCast(ops=".*linear", level=level) as tool:
        result = F.linear(x, weight)
    assert result.dtype == torch.bfloat16
    assert ran(tool) == ["aten::linear"]
    assert torch.equal(result, F.linear(x.bfloat16().float(), weight.bfloat16().float()).bfloat16())


def test_lists_of_the_environment_and_per_operator_dicts(level, monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_LIST", ".*(mm|mul.*)")
    monkeypatch.setenv("OP_DTYPE_CAST_DISABLE_LIST", ".*bmm")
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    monkeypatch.setenv("MUL_OP_DTYPE_CAST_DICT", "torch.float16->torch.float32")
    x = half(4, 4)
    with op_tools.OpDtypeCast(level=level) as tool:
        torch.mm(x, x)
        torch.mul(x, x)  # its own dict says nothing of bfloat16
        torch.bmm(x[None], x[None])
        torch.mul(x.half(), x.half())
    assert {row.op.rsplit(".", 1)[-1].split("::")[-1]: row.calls for row in tool.result().rows if row.calls} == (
        {"mm": 1, "mul": 1} if level == "torch" else {"mm": 1, "Tensor": 1}
    )


def test_random_numbers_are_the_same_numbers(level):
    x = half(50)

    def draw():
        torch.manual_seed(1)
        return F.dropout(x, 0.5), torch.get_rng_state()

    expected, state = draw()
    with op_tools.OpDtypeCast(ops=".*dropout.*", level=level):
        result, after = draw()
    assert torch.equal(result == 0, expected == 0) and torch.equal(state, after)


def test_views_are_left_alone(level):
    x = half(4, 4)
    with op_tools.OpDtypeCast(level=level) as tool:
        view = x.t().reshape(16)[2:]
        same = x.view(16)
    assert same.data_ptr() == x.data_ptr() and view.dtype == torch.bfloat16
    assert not [name for name in ran(tool) if "view" in name or "slice" in name]
