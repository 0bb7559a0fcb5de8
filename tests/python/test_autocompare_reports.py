"""Wrong results of torch's own CPU kernels that people reported publicly: OpAutoCompare names them, and nothing beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import op_tools


def named(program: Callable[[], object], level: str) -> list[str]:
    """The operators with a failure, in the order of the calls."""
    with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
        program()
    return [op_tools._C.base_name(row.op) for row in tool.result().failures]


@pytest.fixture(params=["torch", "aten"])
def level(request):
    return request.param


def full(value, dtype=torch.bfloat16, size=64):
    return torch.full((size,), value, dtype=dtype)


def test_a_quotient_without_fraction_is_off_by_one(level):  # pytorch/pytorch#193754
    assert named(lambda: torch.floor_divide(full(560.0), full(3.0)), level) == ["floor_divide"]
    half = torch.float16
    assert named(lambda: torch.floor_divide(full(2158.0, half), full(3.0, half)), level) == ["floor_divide"]


def test_quotients_without_fraction_that_are_right(level):
    def right():
        a = torch.arange(-64, 64, dtype=torch.bfloat16)
        torch.floor_divide(a, full(4.0, size=128))
        torch.div(a, 7.0, rounding_mode="trunc")
        torch.div(a.float() * 37.5, 0.1, rounding_mode="floor")

    assert named(right, level) == []


ACTIVATIONS = {
    "hardtanh": F.hardtanh,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "logit": lambda x: torch.special.logit(x, eps=0.1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("size", [33, 36, 64])
def test_gradients_of_nan_differ_within_a_tensor(level, name, size):  # pytorch/pytorch#195075
    def program():
        x = torch.full((size,), float("nan"), requires_grad=True)
        ACTIVATIONS[name](x).sum().backward()

    assert named(program, level) == [name if level == "torch" else f"{name}_backward"]


def test_nan_that_is_treated_alike_everywhere(level):
    def program():
        x = torch.full((36,), float("nan"), requires_grad=True)
        (F.gelu(x) + x.exp() + torch.softmax(x, 0) + x.cumsum(0) + F.silu(x)).sum().backward()
        y = torch.tensor([1.0, float("nan")] * 20, requires_grad=True)
        (y.sort().values + y.flip(0) + y.roll(3) + torch.maximum(y, y.flip(0))).sum().backward()
        torch.nansum(y), y.nan_to_num(), torch.fmax(y, y.flip(0)), torch.linalg.vector_norm(y)

    assert named(program, level) == []


def test_memory_that_is_read_while_it_is_written(level):  # pytorch/pytorch#144861, #76891
    a, b = torch.arange(12.0).reshape(3, 4), torch.arange(1.0, 41).reshape(2, 20)

    def program():
        a[:, 1:] = a[:, :-1]
        b.sub_(b[:, :1])

    with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
        program()
    failures = tool.result().failures
    assert [op_tools._C.base_name(row.op) for row in failures] == [
        "__setitem__" if level == "torch" else "copy_",
        "sub_",
    ]
    assert all("reads memory that it writes" in row.reason for row in failures)


def test_memory_that_is_shared_and_not_read_otherwise(level):
    def program():
        a = torch.arange(12.0).reshape(3, 4)
        a += a
        a.mul_(a)
        a[:, ::2] += a[:, 1::2]
        a[0] = a[2]
        torch.add(a, a, out=a)
        a[:, 1:] = a[:, :-1].clone()
        flat = torch.zeros(20)
        torch._foreach_add_(list(flat.split(5)), [torch.ones(5)] * 4)

    assert named(program, level) == []


def test_sums_that_stop_growing_in_16_bits(level):  # pytorch/pytorch#156173
    index = torch.zeros(1000, dtype=torch.long)

    def program():
        zero = torch.zeros(1, dtype=torch.bfloat16)
        zero.index_put((index,), full(1.0, size=1000), accumulate=True)
        zero.index_add(0, index, full(1.0, size=1000))
        weight = torch.ones(4, 8, dtype=torch.bfloat16, requires_grad=True)
        F.embedding(index, weight).sum().backward()

    gradient = "embedding" if level == "torch" else "embedding_dense_backward"
    assert named(program, level) == ["index_put", "index_add", gradient]


def test_terms_that_cancel_in_16_bits_are_rounding(level):
    def program():
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, 1, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        scores = (q @ k.transpose(1, 2)).softmax(-1)  # over a single key: the gradient of the scores is rounding
        (scores @ v).square().sum().backward()
        x = torch.randn(2, 8, dtype=torch.bfloat16, requires_grad=True)
        F.batch_norm(x, None, None, training=True).square().sum().backward()
        weight = torch.randn(5, 8, dtype=torch.bfloat16, requires_grad=True)
        F.embedding(torch.arange(40) % 5, weight).mul(torch.randn(40, 8)).sum().backward()

    assert named(program, level) == []


def test_variance_in_one_pass(level):  # pytorch/pytorch#40302
    torch.manual_seed(0)
    x = torch.randn(2, 8, 32, 32) + 1e4
    channels_last = x.contiguous(memory_format=torch.channels_last)
    assert named(lambda: F.group_norm(x, 2), level) == []
    assert set(named(lambda: F.group_norm(channels_last, 2), level)) == {
        "group_norm" if level == "torch" else "native_group_norm"
    }


def test_distances_that_are_nothing_but_rounding(level):  # pytorch/pytorch#42479, #37734, #123082
    torch.manual_seed(0)
    near = torch.randn(64, 3) * 1e-3 + 100
    assert named(lambda: torch.cdist(near, near), level) == ["cdist" if level == "torch" else "_euclidean_dist"]
    assert named(lambda: torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist"), level) == []

    def as_usual():
        for x in (torch.randn(64, 3), torch.randn(40, 2) + 100, torch.rand(100, 256)):
            torch.cdist(x, x)  # of each point to itself, too: not zero, but small beside the others
            torch.cdist(x, x.flip(0) * 1.01)

    assert named(as_usual, level) == []


def test_infinities_that_the_dtype_asks_for(level):  # pytorch/pytorch#187179
    torch.manual_seed(0)
    a, b = torch.rand(2, 3, 4), torch.rand(2, 5, 4)
    assert named(lambda: torch.cdist(a, b, p=0.01), level) == []


def test_dtypes_without_a_sum_are_judged(level):
    x = torch.randn(6, dtype=torch.complex64).to(torch.complex32)
    with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
        x.to(torch.complex64)
        torch.randn(6).to(torch.float8_e5m2).to(torch.float32)
    assert not [row.reason for row in tool.result().rows if "the comparison failed" in row.reason]
