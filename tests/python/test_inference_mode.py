"""torch.inference_mode(): the simulated device has its views, OpAutoCompare judges in it and says when it does not."""

import pytest
import torch
from models import LeNet
from torch import nn

import op_tools
import op_tools.sim_device as sim

LEVELS = ["torch", "aten"]

VIEWS = {
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(2, -1),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "index": lambda x: x[1:, ::2],
    "select": lambda x: x.select(0, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "expand": lambda x: x[:, None].expand(4, 3, 4),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x[:1].squeeze(0),
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split(1)[2],
    "unbind": lambda x: x.unbind(1)[3],
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1)),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "flatten": lambda x: x.flatten(),
    "dtype": lambda x: x.view(torch.int32),
    "unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [-1]),
    "real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 2, 2)).conj().resolve_conj()),
}


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


@pytest.mark.parametrize("made_in_the_mode", [False, True], ids=["normal tensor", "inference tensor"])
@pytest.mark.parametrize("used_in_the_mode", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_on_the_device_is_an_inference_tensor_where_it_is_one_on_the_cpu(
    name, made_in_the_mode, used_in_the_mode
):
    results = {}
    for device in ("cpu", "sim"):
        with torch.inference_mode(made_in_the_mode):
            x = torch.arange(16.0).view(4, 4).to(device)
        with torch.inference_mode(used_in_the_mode):
            view = VIEWS[name](x)
            results[device] = (view.is_inference(), view._is_view(), view.cpu().tolist())
            if not made_in_the_mode or used_in_the_mode:
                view.zero_()
        results[device] += (x.cpu().tolist(),)
    assert results["sim"] == results["cpu"]


def forward(device):
    """LeNet in inference mode, with an operator in place, a view that is written and inputs of both kinds."""
    torch.manual_seed(3)
    model, images = LeNet().to(device), torch.randn(2, 1, 8, 8).to(device)
    with torch.inference_mode():
        logits = model(images)
        logits.add_(1)
        logits[0].mul_(2)
        images.clamp_(min=0)
        return torch.softmax(logits, -1).cpu()


@pytest.mark.parametrize("async_", [False, True], ids=["at once", "async"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", LEVELS)
def test_calls_in_inference_mode_are_judged(level, device, async_):
    plain = forward(device)
    with op_tools.OpAutoCompare(level=level, async_=async_) as tool:
        compared = forward(device)
    assert torch.equal(compared, plain)
    result = tool.result()
    assert result.failures == [] and result.unjudged == ""
    unjudged = {row["op"] for row in result.rows if row["verdict"] == "not judged"}
    assert all("empty" in name or "rand" in name or "uniform_" in name for name in unjudged)
    assert result.passed > 10


@pytest.mark.parametrize("kind", ["scale", "mutate_input", "strides", "lost_write"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_in_inference_mode_is_found_and_replays(level, kind, replay):
    x, layer = torch.randn(32, 32).to("sim"), nn.Linear(32, 32).to("sim")
    with torch.inference_mode():
        ops = "mul_" if kind == "lost_write" else "addmm"
        with sim.fault(kind, ops=ops, seed=1) as fault, op_tools.OpAutoCompare(level=level) as tool:
            layer(x).mul_(2)
    assert fault.hits == 1
    (row,) = tool.result().failures
    assert row["op"].split(".")[-1] in {"linear", "mul_", "aten::addmm", "Tensor"}
    done = replay(row["saved"] + "/device", "--acc_check")
    assert done.status == 1, done.out


def test_the_summary_says_when_most_was_not_judged_and_why(python):
    done = python("""
import torch, op_tools
x = torch.randn(4)
with op_tools.OpAutoCompare(golden=False) as tool:
    for _ in range(3):
        x.exp()
    torch.empty(3)
print(tool.result().table())
assert tool.result().reasons == {"no float64 run was asked for": 3, "uninitialized memory": 1}
with op_tools.OpAutoCompare() as tool:
    x.exp()
    torch.empty(3)
assert tool.result().unjudged == "" and tool.result().reasons == {"uninitialized memory": 1}
""")
    said = "MOST WAS NOT JUDGED: 4 of 4 results have no verdict: 3 x no float64 run was asked for; 1 x uninitialized memory"
    assert done.stdout.strip().splitlines()[-1] == said
    assert f"op_tools warning: OpAutoCompare: {said}" in done.stderr
    assert done.stderr.count("MOST WAS NOT JUDGED") == 1
