"""Which calls are random is decided by observation, not by a part of a name."""

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim

DEVICES = ["cpu", "sim"]

# Calls that draw nothing, with the function inside them that computes.
DRAW_NOTHING = {
    "poisson_nll_loss": (lambda x: F.poisson_nll_loss(x, x.abs()), torch, "poisson_nll_loss"),
    "dropout2d": (lambda x: F.dropout2d(x, 0.5, training=False), torch._VF, "feature_dropout"),
    "rrelu": (lambda x: F.rrelu(x, training=False), torch, "rrelu"),
}

DRAW = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "dropout2d": lambda x: F.dropout2d(x, 0.5, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "poisson": lambda x: torch.poisson(x.abs()),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "randn_like": torch.randn_like,
    "random_": lambda x: x.random_(0, 10),
    "gumbel_softmax": F.gumbel_softmax,
}


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


def input_on(device):
    return torch.randn(4, 4, 8, 8).to(device)


def rows_of(tool, name):
    return [row for row in tool.result().rows if row["op"].endswith("." + name)]


@pytest.mark.parametrize("name", DRAW_NOTHING)
@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_draws_nothing_is_judged(device, name):
    x = input_on(device)
    with op_tools.OpAutoCompare() as tool:
        DRAW_NOTHING[name][0](x)
    (row,) = rows_of(tool, name)
    assert row["verdict"] == "agrees" and row["method"] != "statistical", row
    assert tool.result().ok


@pytest.mark.parametrize("name", DRAW_NOTHING)
@pytest.mark.parametrize("device", DEVICES)
def test_a_wrong_result_of_a_call_that_draws_nothing_is_found(device, name, monkeypatch):
    call, place, inner = DRAW_NOTHING[name]
    right = getattr(place, inner)

    def wrong(x, *args, **kwargs):
        result = right(x, *args, **kwargs)
        return result * 1.01 if x.dtype == torch.float32 and x.device.type == device else result

    monkeypatch.setattr(place, inner, wrong)
    x = input_on(device)
    with op_tools.OpAutoCompare() as tool:
        call(x)
    (row,) = tool.result().failures
    assert row["op"].endswith("." + name)


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_draws_is_not_blamed(device, name, level):
    x = input_on(device)
    with op_tools.OpAutoCompare(level=level) as tool:
        DRAW[name](x)
    assert tool.result().failures == []


def test_what_torch_tags_as_random_is_judged_where_it_drew_nothing():
    """aten::scaled_dot_product_attention has the tag whatever its dropout is."""
    query = torch.randn(2, 2, 8, 4).to("sim")
    with op_tools.OpAutoCompare(level="aten", ops="aten::scaled_dot_product_attention") as tool:
        F.scaled_dot_product_attention(query, query, query)
    (row,) = tool.result().rows
    assert row["verdict"] == "agrees" and row["method"] != "statistical", row


@pytest.mark.parametrize("device", DEVICES)
def test_a_generator_of_the_programs_is_not_watched_and_the_name_decides(device):
    generator = torch.Generator(device).manual_seed(3)
    x = input_on(device)
    with op_tools.OpAutoCompare() as tool:
        torch.bernoulli(torch.full_like(x, 0.5), generator=generator)
    assert tool.result().ok, tool.result().failures


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_program_that_draws_while_its_calls_are_judged_draws_the_same_numbers(level):
    def program():
        torch.manual_seed(5)
        large = torch.linspace(-2, 2, 50_000)
        for _ in range(200):
            large.exp()
            yield torch.rand(3)

    plain = torch.stack(list(program()))
    with op_tools.OpAutoCompare(level=level, async_=True) as tool:
        drawn = torch.stack(list(program()))
    assert torch.equal(drawn, plain)
    assert tool.result().passed >= 200
