"""OpAutoCompare reports nothing for differences of float64, autocast, copies and autograd, and is blind to none of them."""

import math
from functools import partial

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import op_tools
import op_tools.sim_device as sim

LEVELS = ["torch", "aten"]
DEVICES = ["cpu", "sim"]
INF = float("inf")


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


def failures(program, level="torch", seeds=1, **settings):
    """Of `program()`, once for each seed; an error of the program's own is nothing."""
    failed = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        with op_tools.OpAutoCompare(level=level, max_saved=0, **settings) as tool:
            try:
                program()
            except RuntimeError:
                failed.append("raised")
        failed += [(row["op"], row["phase"], row["what"], row["kind"]) for row in tool.result().failures]
    return failed


# --- Defaults that depend on the dtype


def low_rank(*shape):
    return torch.randn(shape[0], 3) @ torch.randn(3, shape[1])


@torch.library.custom_op("edges::rms_norm", mutates_args=())
def rms_norm_with_a_wrong_root(x: torch.Tensor) -> torch.Tensor:
    eps = torch.finfo(torch.float32).eps
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * (1.001 if x.dtype == torch.float32 else 1)


WITH_DEFAULTS = {
    **{
        f"rms_norm {std:g} {dtype}": lambda std=std, dtype=dtype: F.rms_norm(
            (torch.randn(64, 32) * std).to(dtype), (32,)
        )
        for std in (1, 0.1, 0.01, 1e-3, 1e-4)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    },
    "RMSNorm": lambda: torch.nn.RMSNorm(16)(torch.randn(8, 16) * 1e-3).sum().backward(),
    "nan_to_num": lambda: torch.nan_to_num(torch.tensor([INF, -INF, math.nan, 1.0])),
    "nan_to_num posinf": lambda: torch.nan_to_num(torch.tensor([INF, -INF, math.nan, 1.0]), posinf=7.0),
    "nan_to_num positional": lambda: torch.nan_to_num(torch.tensor([INF, -INF, 1.0]), 0.0, None, -3.0),
    "nan_to_num_ half": lambda: torch.tensor([INF, -INF, 1.0]).half().nan_to_num_(),
    "pinv": lambda: torch.linalg.pinv(low_rank(8, 6)),
    "pinv hermitian": lambda: torch.linalg.pinv((a := low_rank(8, 8)) @ a.t(), hermitian=True),
    "pinv atol": lambda: torch.linalg.pinv(low_rank(8, 6), atol=1e-3),
    "matrix_rank": lambda: torch.linalg.matrix_rank(low_rank(8, 6)),
    "matrix_rank tol": lambda: torch.linalg.matrix_rank(low_rank(8, 6), tol=1e-3),
    "lstsq": lambda: torch.linalg.lstsq(low_rank(8, 6), torch.randn(8, 2), driver="gelsd"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WITH_DEFAULTS)
def test_defaults_by_dtype_are_those_of_the_call_in_float64(name, level):
    assert failures(WITH_DEFAULTS[name], level, seeds=3) == []


@pytest.mark.parametrize("std", [1, 0.01, 1e-3])
def test_a_wrong_root_is_found_whatever_the_inputs_are(std):
    assert failures(lambda: rms_norm_with_a_wrong_root(torch.randn(64, 32) * std)) != []


@pytest.mark.parametrize("std", [1, 0.01, 1e-3])
def test_a_wrong_rms_norm_of_a_device_is_found_whatever_the_inputs_are(std):
    x = (torch.randn(64, 32) * std).to("sim")
    with sim.fault("scale", ops=["aten::rsqrt", "aten::_fused_rms_norm"], scale=1.001, seed=1) as fault:
        failed = failures(lambda: F.rms_norm(x, (32,)))
    assert fault.hits == 1 and len(failed) == 1


# --- Copies to another device

COPIES = {
    "cpu of every other column": lambda x: x[:, ::2].cpu(),
    "to of every other row": lambda x: x[::2].to("cpu"),
    "cpu of an expanded one": lambda x: x[:, :1].expand(8, 6).cpu(),
    "detach, cpu": lambda x: x[:, ::2].detach().cpu(),
    "cpu of a transposed one": lambda x: x.t().cpu(),
    "cpu of a permuted one with gaps": lambda x: x.view(4, 6, 2)[:, ::2].permute(2, 0, 1).cpu(),
    "to, copy": lambda x: x[:, ::2].to("cpu", copy=True),
    "to, dtype": lambda x: x[:, ::2].to("cpu", torch.float64),
    "to the device": lambda x: torch.randn(8, 6)[:, ::2].to("sim"),
    "to the device, expanded": lambda x: torch.randn(8, 1).expand(8, 6).to("sim"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_view_with_gaps_has_the_strides_of_a_copy(name, level):
    x = torch.randn(8, 6).to("sim")
    assert failures(lambda: COPIES[name](x), level) == []


# --- Autocast


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings", [{}, {"label_smoothing": 0.1}, {"reduction": "none"}], ids=["mean", "smooth", "none"]
)
def test_cross_entropy_under_autocast_may_round_where_the_cpu_does_not(settings, device, level):
    def program():
        x = torch.randn(64, 32).to(device).requires_grad_()
        weight, labels = torch.randn(50, 32).to(device).requires_grad_(), torch.randint(0, 50, (64,)).to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(F.linear(x, weight), labels, **settings)
        loss.sum().backward()

    assert failures(program, level, seeds=3) == []


@pytest.mark.parametrize("op", ["aten::_log_softmax", "aten::nll_loss_forward"])
def test_a_fault_in_cross_entropy_under_autocast_is_found(op):
    logits, labels = torch.randn(64, 50).to("sim").bfloat16(), torch.randint(0, 50, (64,)).to("sim")

    def program():
        with torch.autocast("sim", torch.bfloat16):
            F.cross_entropy(logits, labels)

    with sim.fault("scale", ops=op, scale=1.1) as fault:
        failed = failures(program)
    assert fault.hits == 1 and len(failed) == 1


def gradient_above_the_largest_number_of_float16():
    x = torch.randn(6, 8)
    weight = torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.linear(x, weight).sum()
    (loss * 2.0**15).backward()


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_overflow_in_the_dtype_of_autocast_are_right(level):
    """The first steps of GradScaler."""
    assert failures(gradient_above_the_largest_number_of_float16, level, seeds=3) == []


def sums_below_the_smallest_number_of_float16():
    attention = torch.nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 17, 32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        y = attention(x, x)
    y.float().sum().backward()


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_float16_loses_are_right(level):
    assert failures(sums_below_the_smallest_number_of_float16, level, seeds=3) == []


@torch.library.custom_op("edges::wrong_in_bfloat16", mutates_args=())
def wrong_in_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x * (3 if x.dtype == torch.bfloat16 else 2)


@pytest.mark.parametrize("level", LEVELS)
def test_autocast_excuses_no_kernel_of_the_cpu(level):
    """The same kernel in the dtype of autocast is as wrong."""

    def program():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wrong_in_bfloat16(torch.randn(64).bfloat16())

    assert [kind for *_, kind in failures(program, level)] == ["values"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("op", "value", "dtype"),
    [
        (torch.exp, 100.0, torch.float32),
        (torch.exp, 100.0, torch.bfloat16),
        (torch.exp, 20.0, torch.float16),
        (torch.sinh, 100.0, torch.float32),
        (torch.reciprocal, 1e-40, torch.float32),
    ],
)
def test_a_gradient_of_zero_times_infinity_is_right(op, value, dtype, device, level):
    """In float64 the result is finite, and its gradient zero."""

    def program():
        x = torch.tensor([value, 1.0], dtype=dtype, device=device, requires_grad=True)
        y = op(x)
        torch.where(y < 1e4, y, 0.0).sum().backward()
        assert x.grad[0].isnan() and x.grad[1].isfinite()

    assert failures(program, level) == []


# --- Lists of numbers


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_list_of_numbers_is_judged_as_a_tensor(device, level):
    x = torch.randn(300, 2)
    with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
        numbers = [part.to(device).tolist() for part in (x, x > 0, (x * 9).int())]
    rows = [row for row in tool.result().rows if row.op == "torch.Tensor.tolist"]
    assert numbers == [x.tolist(), (x > 0).tolist(), (x * 9).int().tolist()]
    assert [(row.verdict, row.numel) for row in rows] == ([("agrees", 600)] * 3 if level == "torch" else [])


# --- Numbers of one on the way


def sure_classifier(device, loss, margin):
    labels = torch.randint(0, 4, (6,))
    answers = F.one_hot(labels, 4)
    logits = torch.randn(6, 4) + margin * (answers if loss is F.cross_entropy else 2 * answers - 1)
    target = labels if loss is F.cross_entropy else answers.float()
    loss(logits.to(device).requires_grad_(), target.to(device)).backward()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("margin", [4, 8, 12, 14])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.binary_cross_entropy_with_logits])
def test_the_loss_of_a_sure_classifier_has_the_rounding_of_one(loss, margin, device, level):
    with sim.rounding():
        assert failures(partial(sure_classifier, device, loss, margin), level, seeds=5) == []


def masked_language_model(device, margin, options):
    """Most rows are ignored; each of the others has its share of the loss. A softmax of many classes loses small numbers beside one."""
    labels = torch.randint(0, 1000, (64,))
    logits = torch.randn(64, 1000)
    logits[torch.arange(64), labels] += margin
    labels[:55] = -100
    F.cross_entropy(logits.to(device).requires_grad_(), labels.to(device), **options).backward()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"label_smoothing": 0.1}], ids=str)
def test_the_gradient_of_few_sure_rows_has_the_rounding_of_their_share(options, device, level):
    with sim.rounding():
        assert failures(partial(masked_language_model, device, 20, options), level, seeds=5) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", ["_log_softmax", "_log_softmax_backward_data"])
@pytest.mark.parametrize(
    "program",
    [
        partial(sure_classifier, "sim", F.cross_entropy, 2),
        partial(masked_language_model, "sim", 4, {}),
        partial(masked_language_model, "sim", 4, {"reduction": "sum"}),
    ],
    ids=["classifier", "masked", "masked, sum"],
)
def test_a_wrong_loss_of_a_classifier_is_found(program, op, level):
    with sim.fault("scale", ops=f"aten::{op}", scale=1.01) as fault:
        failed = failures(program, level, seeds=1)
    assert fault.hits == 1 and failed


# --- Cancellation


def cosine_embedding(device, scale):
    a = torch.randn(8, 16)
    F.cosine_embedding_loss(a.to(device), (a * scale).to(device), torch.ones(8).to(device))


def constant_rows():
    return torch.ones(3, 7) * torch.tensor([0.1, 0.3, 0.7])[:, None]


CANCELLING = {
    "cosine_embedding_loss, equal": lambda device: cosine_embedding(device, 1),
    "cosine_embedding_loss, parallel": lambda device: cosine_embedding(device, 3),
    "cosine_embedding_loss, close": lambda device: cosine_embedding(device, 1 + 1e-4 * torch.randn(8, 16)),
    "cov of constant rows": lambda device: torch.cov(constant_rows().to(device)),
    "corrcoef of constant rows": lambda device: torch.corrcoef(constant_rows().to(device)),
    "corrcoef of a constant row": lambda device: torch.corrcoef(
        torch.cat([torch.full((1, 7), 0.1), torch.randn(2, 7)]).to(device)
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_not_blamed(name, device):
    assert failures(lambda: CANCELLING[name](device), seeds=5) == []


@torch.library.custom_op("edges::nan_for_one", mutates_args=())
def nan_for_one(x: torch.Tensor) -> torch.Tensor:
    """NaN for the first element in float32."""
    result = x.exp()
    if x.dtype == torch.float32:
        result[0] = math.nan
    return result


@pytest.mark.parametrize("device", DEVICES)
def test_a_nan_that_no_rounding_explains_is_a_failure(device):
    x = torch.randn(32).to(device)
    if device == "cpu":
        assert len(failures(lambda: nan_for_one(x))) == 1
    else:
        with sim.fault("nan", ops="exp", seed=1):
            assert len(failures(lambda: torch.exp(x))) == 1


# --- Refusals of autograd


def on_chunk(device):
    (torch.randn(4, 4).to(device).requires_grad_() * 1).chunk(2)[0].add_(1)


def on_view_made_without_grad(device):
    x = torch.randn(4, 4).to(device).requires_grad_()
    with torch.no_grad():
        view = x.view(-1)
    view.add_(1)


def inference_tensor(device):
    with torch.inference_mode():
        return torch.randn(3).to(device)


def of_tangents(device):
    with forward_ad.dual_level():
        torch.geqrf(forward_ad.make_dual(torch.randn(3, 3).to(device), torch.randn(3, 3).to(device)))


REFUSED = {
    "a complex result": lambda device: torch.geqrf(
        torch.randn(3, 3, dtype=torch.complex64).to(device).requires_grad_()
    ),
    "tangents": of_tangents,
    "a leaf": lambda device: torch.randn(4).to(device).requires_grad_().add_(1),
    "a view of a leaf": lambda device: torch.randn(4).to(device).requires_grad_().view(2, 2).add_(1),
    "a chunk": on_chunk,
    "one of unbind": lambda device: (torch.randn(4, 4).to(device).requires_grad_() * 1).unbind(0)[0].mul_(2),
    "a view made without grad": on_view_made_without_grad,
    "an inference tensor in place": lambda device: inference_tensor(device).add_(1),
    "an inference tensor saved": lambda device: torch.randn(3).to(device).requires_grad_() * inference_tensor(device),
    "out=": lambda device: torch.add(torch.randn(3).to(device).requires_grad_(), 1, out=torch.empty(3, device=device)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of make_dual
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_autograd_refuses_the_program_is_not_the_devices_failure(name, device, level):
    assert failures(lambda: REFUSED[name](device), level) == ["raised"]


# --- Backwards that read what the program packed (saved_tensors_hooks)


def packed(hooks, device):
    x = torch.randn(5, 6).to(device).requires_grad_()
    with hooks:
        result = x.exp() * x
    result.sum().backward()


HOOKS = {
    "in bfloat16": (lambda: saved_tensors_hooks(lambda x: x.bfloat16(), lambda x: x.float()), False),
    "as they are": (lambda: saved_tensors_hooks(lambda x: x.clone(), lambda x: x), True),
    "torch's own": (save_on_cpu, True),
}


@pytest.mark.parametrize("tool", [op_tools.OpAutoCompare, op_tools.OpInvariance])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", HOOKS)
def test_tensors_that_the_program_packed_make_no_operator_wrong(name, device, tool):
    hooks, keep_bits = HOOKS[name]
    with tool() as running:
        packed(hooks(), device)
    result = running.result()
    assert result.verdict.value != "differs"
    assert ("undetermined" in result.coverage.not_judged) != keep_bits


@pytest.mark.parametrize("name", HOOKS)
def test_a_wrong_backward_is_found_behind_hooks_of_torchs_own(name):
    with sim.fault("scale", ops="mul", call=range(1, 100), scale=1.1, seed=1):
        failed = failures(lambda: packed(HOOKS[name][0](), "sim"))
    of_backward = [phase for _, phase, *_ in failed if phase == "backward"]
    assert bool(of_backward) == (name == "torch's own"), failed


# --- Zeros


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel.*")
def test_the_sign_of_a_zero_counts_for_bitwise_alone():
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("relu", lambda x: torch.relu(x.cpu()).mul(-0.0).to("sim"), "PrivateUse1")
        failures_by_method = {
            method: failures(lambda: torch.zeros(3, device="sim").relu(), method=method)
            for method in ("relative", "allclose", "bitwise", "ulp")
        }
    finally:
        library._destroy()
    assert {method for method, failed in failures_by_method.items() if failed} == {"bitwise"}


# --- Integers made of integers, on the CPU


def faulty(name, dtypes):
    """A custom operator that adds 3 to each element; to another element in these dtypes."""

    @torch.library.custom_op(f"edges::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        result = x + 3
        if x.dtype in dtypes:
            result[-1] += 1
        return result

    return op


FAULTY = {
    "uint8": (faulty("uint8", [torch.uint8]), torch.uint8),
    "int8": (faulty("int8", [torch.int8]), torch.int8),
    "int16": (faulty("int16", [torch.int16]), torch.int16),
    "int32": (faulty("int32", [torch.int32]), torch.int32),
    "uint8 right": (faulty("uint8_right", []), torch.uint8),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_kernel_that_is_wrong_for_narrow_integers_is_found(name):
    op, dtype = FAULTY[name]
    failed = failures(lambda: op(torch.arange(20).to(dtype)))
    assert [row[1:] for row in failed] == ([] if "right" in name else [("forward", "output", "values")])


calls = []


@torch.library.custom_op("edges::wrong_once", mutates_args=())
def wrong_once(x: torch.Tensor) -> torch.Tensor:
    calls.append(1)
    return x + (1 if len(calls) == 1 else 0)


def test_integers_that_a_second_run_does_not_give_are_wrong():
    calls.clear()
    assert len(failures(lambda: wrong_once(torch.arange(5)))) == 1


OF_INTEGERS = {
    "wraps": lambda x: x + 200,
    "product wraps": lambda x: x * x,
    "negative": lambda x: -x,
    "not": lambda x: ~x,
    "shift": lambda x: (x << 3) >> 1,
    "compare": lambda x: x > 100,
    "floor": lambda x: x // 3,
    "sum": lambda x: x.sum(),
    "sort": lambda x: x.sort(),
    "unique": lambda x: x.unique(),
    "bits": lambda x: x.view(torch.int8),
    "as other bits": lambda x: x.view(torch.int16),
    "bool": lambda x: x.bool(),
    "cast": lambda x: (x.long() * 100).to(torch.uint8),
    "index": lambda x: torch.arange(300)[x.long()],
    "clamp": lambda x: x.clamp(10, 20),
    "cumsum": lambda x: x.cumsum(0),
    "bincount": lambda x: x.bincount(),
    "one_hot": lambda x: F.one_hot(x.long()),
    "float": lambda x: x.float() / 255,
    "in place": lambda x: x.clone().add_(3),
    "interpolate": lambda x: F.interpolate(x.view(1, 1, 8, 8), scale_factor=2, mode="bilinear"),
    "max_pool": lambda x: F.max_pool2d(x.view(1, 1, 8, 8), 2),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_made_of_integers_are_judged_and_right(name, level):
    x = torch.arange(64, dtype=torch.uint8) * 4
    with op_tools.OpAutoCompare(level=level) as tool:
        OF_INTEGERS[name](x)
    result = tool.result()
    assert result.failures == []
    assert result.not_judged == 0 and result.passed > 0


# --- Strides


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", ["aten::mm", "aten::mul", "aten::gelu_backward"])
def test_strides_of_gradients_are_judged_and_the_saved_failure_replays(op, level, replay):
    x, weight = (torch.randn(16, 16).to("sim").requires_grad_() for _ in range(2))
    y = None
    with op_tools.OpAutoCompare(level=level) as tool:
        y = F.gelu(torch.mm(x, weight)) * weight.detach()
        with sim.fault("strides", ops=op, seed=1, call=0) as fault:
            y.sum().backward()
    assert fault.hits == 1
    failed = [row for row in tool.result().failures if row["kind"] == "strides"]
    assert failed
    for row in failed:
        assert replay(row["saved"] + "/device", "--acc_check").status == 1
        assert replay(row["saved"] + "/cpu", "--acc_check").status == 0


def test_nextafter_is_not_compared_with_another_dtype():
    x = torch.tensor([0.0, 1.0, INF, torch.finfo(torch.float32).max])
    assert failures(lambda: torch.nextafter(x, torch.zeros(4))) == []
    with sim.fault("element", ops="aten::nextafter", seed=1) as fault:
        failed = failures(lambda: torch.nextafter(torch.rand(4, 4).to("sim"), torch.ones(4, 4).to("sim")))
    assert fault.hits == 1 and len(failed) == 1


# --- Long sums: torch's CPU kernels add up one element after the other in some layouts


def terms_that_cancel():
    """Gradients [16, 2, 64, 64] whose sum over a channel is small, and whose partial sums are not."""
    draw = torch.Generator().manual_seed(1)
    gradient = torch.randn(16, 2, 64, 64, generator=draw) + torch.randn(16, 2, 1, 1, generator=draw)
    return gradient - gradient.double().mean((0, 2, 3), keepdim=True).float()


def bias_of_a_convolution():
    convolution = torch.nn.Conv2d(1, 2, 1)
    convolution(torch.randn(16, 1, 64, 64)).backward(terms_that_cancel())
    return convolution.bias.grad.double(), terms_that_cancel().double().sum((0, 2, 3))


def statistics_of_a_batch():
    x = (torch.rand(16, 8, 96, 96) + 3).to(memory_format=torch.channels_last)
    right = F.batch_norm(x.double(), None, None, training=True)
    return F.batch_norm(x, None, None, training=True).double(), right


def bias_under_a_mean():
    convolution = torch.nn.Conv2d(1, 2, 1)
    convolution(torch.randn(16, 1, 96, 96)).mean().backward()
    return convolution.bias.grad.double(), torch.full((2,), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    "program", [bias_of_a_convolution, bias_under_a_mean, statistics_of_a_batch], ids=lambda f: f.__name__
)
def test_the_rounding_of_sums_in_order_is_no_failure(program):
    torch.manual_seed(0)
    result, right = program()
    unit = torch.finfo(torch.float32).eps / 2
    assert (result - right).square().mean() > (30 * unit * right.square().mean().sqrt()) ** 2
    for level in LEVELS:
        assert failures(program, level) == []


@torch.library.custom_op("edges::wrong_channel_means", mutates_args=())
def wrong_channel_means(x: torch.Tensor) -> torch.Tensor:
    return x.mean((0, 2, 3)) * (1.001 if x.dtype == torch.float32 else 1)


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_factor_of_a_long_sum_is_a_failure(level):
    failed = failures(lambda: wrong_channel_means(torch.randn(16, 2, 96, 96) + 0.1), level)
    assert len(failed) == 1


# --- Indices: those of other, equal elements are right, as far as the operator may give them


def with_indices(function, change):
    """A kernel that runs `function` on the CPU and changes its two results."""

    def kernel(*args, **kwargs):
        args = [arg.cpu() if isinstance(arg, torch.Tensor) else arg for arg in args]
        return tuple(tensor.to("sim") for tensor in change(*function(*args, **kwargs)))

    return kernel


def cummax_into(indices):
    def kernel(x, values, into, dim):
        values.copy_(torch.cummax(x.cpu(), dim)[0].to("sim"))
        into.copy_(torch.tensor(indices).to("sim"))

    return kernel


def places(*numbers):
    return lambda values, _: (values, torch.tensor(numbers))


TIES, ROWS = [1.0, 3.0, 3.0, 0.0], [[1.0] * 4] * 3
OTHER_INDICES = {
    "topk, another of equals": ("topk", with_indices(torch.topk, places(2, 1)), lambda x: x.topk(2), TIES, True),
    "topk, an element twice": ("topk", with_indices(torch.topk, places(1, 1)), lambda x: x.topk(2), TIES, False),
    "topk, in another order": (
        "topk",
        with_indices(torch.topk, lambda values, indices: (values.flip(0), indices.flip(0))),
        lambda x: x.topk(3, sorted=False),
        TIES,
        True,
    ),
    "topk, sorted, in another order": (
        "topk",
        with_indices(torch.topk, lambda values, indices: (values.flip(0), indices.flip(0))),
        lambda x: x.topk(3),
        TIES,
        False,
    ),
    "topk, in another order, an element twice": (
        "topk",
        with_indices(torch.topk, lambda values, _: (values.flip(0), torch.tensor([0, 1, 1]))),
        lambda x: x.topk(3, sorted=False),
        TIES,
        False,
    ),
    "topk, in another order, other values": (
        "topk",
        with_indices(torch.topk, lambda *_: (torch.tensor([3.0, 3.0, 0.0]), torch.tensor([1, 2, 3]))),
        lambda x: x.topk(3, sorted=False),
        TIES,
        False,
    ),
    "sort, another order of equals": (
        "sort.stable",
        with_indices(torch.sort, lambda values, indices: (values, indices.flip(0))),
        lambda x: x.sort(0),
        ROWS,
        True,
    ),
    "sort, no permutation": (
        "sort.stable",
        with_indices(torch.sort, lambda values, indices: (values, indices * 0)),
        lambda x: x.sort(0),
        ROWS,
        False,
    ),
    "sort, a permutation along another dimension": (
        "sort.stable",
        with_indices(torch.sort, lambda values, _: (values, torch.arange(3)[:, None].expand(3, 4).contiguous())),
        lambda x: x.sort(),
        ROWS,
        False,
    ),
    "cummax, an earlier of equals": (
        "_cummax_helper",
        cummax_into([0, 0, 0, 0]),
        lambda x: x.cummax(0),
        [1.0] * 4,
        True,
    ),
    "cummax, a later one": ("_cummax_helper", cummax_into([3, 3, 3, 3]), lambda x: x.cummax(0), [1.0] * 4, False),
}


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel.*")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OTHER_INDICES)
def test_indices_of_equal_elements_have_to_be_possible(name, level):
    operator, kernel, program, numbers, right = OTHER_INDICES[name]
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(operator, kernel, "PrivateUse1")
        failed = failures(lambda: program(torch.tensor(numbers).to("sim")), level)
    finally:
        library._destroy()
    assert (not failed) == right, failed


# --- Means near zero: the CPU adds up in float64 where other devices update a float32 mean with each element


def variance_and_running_mean(x, dim=None, *, correction=1, keepdim=False, factor=1.0):
    """Of rows, by Welford's method in float32."""
    rows = x.cpu()
    mean, squares = torch.zeros(len(rows)), torch.zeros(len(rows))
    for count, column in enumerate(rows.unbind(1), 1):
        apart = column - mean
        mean = mean + apart / count
        squares = squares + apart * (column - mean)
    return (squares / (rows.shape[1] - correction)).to("sim"), (mean * factor).to("sim")


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel.*")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "columns"), [(25, 7), (200, 64), (300, 256)])
def test_means_near_zero_have_the_rounding_of_their_terms(rows, columns, level):
    library = torch.library.Library("aten", "IMPL")

    def program():
        torch.var_mean(torch.randn(rows, columns).to("sim"), dim=1)

    try:
        library.impl("var_mean.correction", variance_and_running_mean, "PrivateUse1")
        assert failures(program, level, seeds=4) == []
    finally:
        library._destroy()
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("var_mean.correction", partial(variance_and_running_mean, factor=1.0002), "PrivateUse1")
        failed = failures(program, level, seeds=4)
        assert len(failed) == 4 and all("var_mean" in op for op, *_ in failed), failed
    finally:
        library._destroy()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("tool", [op_tools.OpAutoCompare, op_tools.OpInvariance])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_file_of_the_program_is_not_opened_again(dtype, shared, tool, level, tmp_path):
    file = tmp_path / "numbers"
    content = bytes(range(4 * dtype.itemsize))
    file.write_bytes(content)
    with tool(level=level) as running:
        torch.from_file(str(file), shared=shared, size=4, dtype=dtype)
    assert file.read_bytes() == content
    result = running.result()
    assert result.verdict.value == "not judged"
    assert any("opens a file" in reason for reason in result.reasons)
