"""The device rounds as another correct implementation: other bits where something was rounded, and only there."""

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim


@pytest.fixture(autouse=True)
def _rounding():
    with sim.rounding():
        yield


X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
W = torch.randn(16, 32, generator=torch.Generator().manual_seed(2))
IMAGES = X.reshape(4, 8, 8, 8)
KERNELS = W.reshape(8, 8, 2, 4)


def batch_norm(x):
    mean, variance = torch.zeros(8, device=x.device), torch.ones(8, device=x.device)
    result = F.batch_norm(x, mean, variance, training=True)
    return torch.cat([result.flatten(), mean, variance])


def gradients(x):
    x = x.detach().clone().requires_grad_()
    w = W.to(x.device, copy=True).requires_grad_()
    F.layer_norm(x @ w.T, (16,)).softmax(-1).square().sum().backward()
    return torch.cat([x.grad.flatten(), w.grad.flatten()])


def optimizer_step(x):
    parameter = torch.nn.Parameter(x.clone())
    parameter.grad = x.cos().detach()
    torch.optim.AdamW([parameter], foreach=True).step()
    return parameter.detach()


def convolution(x):
    return F.conv2d(IMAGES.to(x.device), KERNELS.to(x.device), stride=2, padding=1)


ROUNDED = {
    "mm": lambda x: x @ W.to(x.device).T,
    "sum": lambda x: x.sum(1),
    "exp": lambda x: x.exp(),
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (32,)),
    "group_norm": lambda x: F.group_norm(IMAGES.to(x.device), 4),
    "batch_norm": lambda x: batch_norm(IMAGES.to(x.device)),
    "conv2d": convolution,
    "add": lambda x: x + x * 3,
    "add_": lambda x: x.clone().add_(x, alpha=0.3),
    "out": lambda x: torch.mul(x, 0.3, out=torch.empty_like(x)),
    "lists": lambda x: torch._foreach_addcmul([x + 1], [x], [x], 0.3)[0],
    "complex": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "cumsum": lambda x: x.cumsum(0),
    "optimizer": optimizer_step,
    "gradients": gradients,
}
EXACT = {
    "relu": lambda x: x.relu(),
    "times two": lambda x: x * 2,
    "counts": lambda x: (x > 0).float().sum(),
    "sum of ones": lambda x: torch.ones_like(x).sum(),
    "clamp": lambda x: x.clamp(0.1, 0.3),
    "fill": lambda x: x.clone().fill_(0.1),
    "pad": lambda x: F.pad(x, (1, 1), value=0.1),
    "floor_divide": lambda x: x // 0.1,
    "to bfloat16": lambda x: x.bfloat16(),
    "max": lambda x: x.max(1).values,
    "sort": lambda x: x.sort(1).values,
    "gather": lambda x: x[torch.arange(5, device=x.device)],
    "max_pool": lambda x: F.max_pool2d(IMAGES.to(x.device), 2),
    "infinities": lambda x: (x / 0).clamp(-1e9, 1e9),
}


IN_16_BITS = ("exp", "cumsum")
IN_FLOAT32 = ("add", "add_", "out", "lists", "sum")  # by devices, for 16 bits


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in ROUNDED]
    + [(name, dtype) for name in IN_16_BITS for dtype in (torch.bfloat16, torch.float16)],
)
def test_what_is_rounded_has_other_bits_and_the_same_value(name, dtype):
    function = ROUNDED[name]
    host = function(X.to(dtype))
    results = [function(X.to(dtype).to("sim")) for _ in range(3)]  # the second and third run in the worker thread
    assert all(torch.equal(results[0], result) for result in results)
    assert results[0].dtype == host.dtype and results[0].stride() == host.stride()
    off = (results[0].cpu().double() - host.double()).abs()
    assert off.max() > 0
    assert off.max() <= 16 * torch.finfo(host.dtype).eps * host.double().abs().max()


@pytest.mark.parametrize("name", EXACT)
def test_what_is_exact_stays(name):
    assert torch.equal(EXACT[name](X.to("sim")).cpu(), EXACT[name](X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", IN_FLOAT32)
def test_what_is_computed_in_float32_is_rounded_to_16_bits_once(name, dtype):
    x = X.to(dtype)
    function = ROUNDED[name]
    assert torch.equal(function(x.to("sim")).cpu(), function(x))


def test_sums_run_in_another_order():
    with sim.rounding(on=False):
        right = (X.to("sim") @ W.to("sim").T).cpu()
    off = ((X.to("sim") @ W.to("sim").T).cpu() - right).abs() / right.abs()
    assert off.max() > 4 * torch.finfo(torch.float32).eps  # more than a last bit, where terms cancel


def test_results_keep_their_bounds():
    x = (20 * X).to("sim")
    for result in (x.sigmoid(), x.softmax(1), x.tanh().abs(), x.sin().abs()):
        assert result.min().item() >= 0 and result.max().item() <= 1


def test_random_numbers_are_the_same():
    with sim.rounding(on=False):
        torch.manual_seed(3)
        right = torch.rand(8, device="sim"), F.dropout(X.to("sim"), 0.3)
    torch.manual_seed(3)
    assert all(torch.equal(*pair) for pair in zip(right, (torch.rand(8, device="sim"), F.dropout(X.to("sim"), 0.3))))


def test_a_faultless_device_has_no_wrong_operator(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )
    model.to("sim")
    optimizer = torch.optim.AdamW(model.parameters())
    with op_tools.OpAutoCompare(output_dir=str(tmp_path), level="aten") as compare:
        for _ in range(2):
            F.cross_entropy(model(X.to("sim")), torch.arange(64, device="sim") % 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert compare.result().failures == [] and compare.result().rows


def test_work_that_is_still_queued_at_exit(python):
    """Three times: the workers compute in oneDNN while the process is being taken down."""
    code = """
import torch
import op_tools.sim_device
net = torch.nn.Sequential(torch.nn.Conv2d(8, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3)).to("sim")
x = torch.randn(16, 8, 32, 32).to("sim")
for _ in range(40):
    net(x).square().mean().backward()
print("end", flush=True)
"""
    assert [python(code, fresh=True).returncode for _ in range(3)] == [0, 0, 0]


def test_the_variable(python):
    code = "import op_tools.sim_device as sim; print(sim.is_rounding())"
    assert python(code, OP_TOOLS_SIM_ROUNDING="1").stdout == "True\n"
    assert python(code).stdout == "False\n"
    wrong = python(
        "import op_tools\ntry:\n    import op_tools.sim_device\nexcept op_tools.Error as error:\n    print(error)",
        OP_TOOLS_SIM_ROUNDING="maybe",
    )
    assert "OP_TOOLS_SIM_ROUNDING: 'maybe' is not allowed; give 1 or 0" in wrong.stdout
