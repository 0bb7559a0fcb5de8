"""OpAutoCompare on the CPU: judged against float64, and the rules of every device."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import different, train

import op_tools
import op_tools.sim_device  # before the first backward() of the process

LEVELS = ["torch", "aten"]


@torch.library.custom_op("autocompare::bad_relu", mutates_args=())
def bad_relu(x: torch.Tensor) -> torch.Tensor:
    """Right in float64; in float32 a tenth of a percent too large."""
    return x.relu() * (1.001 if x.dtype == torch.float32 else 1)


@bad_relu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


bad_relu.register_autograd(
    lambda ctx, grad: grad * ctx.mask * (1.01 if grad.dtype == torch.float32 else 1),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "mask", inputs[0] > 0),
)


@torch.library.custom_op("autocompare::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Its backward writes into the arriving gradient. In float32 it is wrong on the device that `twice.wrong_on` names."""
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(
    lambda ctx, grad: grad.mul_(
        2.02 if grad.device.type == getattr(twice, "wrong_on", None) and grad.dtype == torch.float32 else 2
    )
)


def rows(tool, op=None):
    return [row for row in tool.result().rows if op in (None, row["op"])]


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("model", ["lenet", "transformer"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_compared_run_trains_like_an_uncompared_one_and_all_is_right(level, model, autocast):
    plain = train(model, "sgd", autocast, steps=2)
    with op_tools.OpAutoCompare(level=level) as tool:
        compared = train(model, "sgd", autocast, steps=2)
    assert different(compared, plain) == []
    result = tool.result()
    assert result.ok and result.failures == []
    assert result.passed > 60
    if level == "torch":
        assert any(row["phase"] == "backward" and row["verdict"] == "agrees" for row in result.rows)


@pytest.mark.parametrize("level", LEVELS)
def test_a_kernel_that_is_wrong_in_its_own_dtype_is_found(level):
    x = torch.randn(64, 8)
    with op_tools.OpAutoCompare(level=level) as tool:
        bad_relu(x) + x.relu()
    result = tool.result()
    assert not result.ok
    (failure,) = result.failures
    assert "bad_relu" in failure["op"] and failure["kind"] == "values"
    assert failure["number"] > failure["limit"] > 0
    assert failure["worst_result"] != failure["worst_reference"]
    assert failure["source"].startswith(__file__)
    assert any("bad_relu" in op.op and op.failed == 1 for op in result.ops)
    assert "bad_relu" in result.table().splitlines()[2]  # after the account and the titles


def test_a_wrong_gradient_is_found_and_named():
    x = torch.randn(64, 8, dtype=torch.float32, requires_grad=True)
    with op_tools.OpAutoCompare(ops=".*bad_relu.*") as tool:
        bad_relu(x).sum().backward()
    assert [(row["phase"], row["what"]) for row in tool.result().failures] == [
        ("forward", "output"),
        ("backward", "0th input grad"),
    ]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_hook_that_writes_an_arriving_gradient_in_place_is_no_failure(device):
    """The values that the nodes read count; and the gradients of a second pass are judged as those of the first."""
    weight = torch.full((16, 16), 0.05).to(device).requires_grad_()  # a saturated sigmoid would be another matter

    def losses():
        hidden = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)).to(device) @ weight
        out = torch.sigmoid(hidden) * torch.relu(hidden)
        out.grad_fn.register_prehook(lambda gradients: tuple(gradient.mul_(3) for gradient in gradients))
        for _ in range(2):
            out.square().sum().backward(retain_graph=True)
        result, weight.grad = weight.grad, None
        return result

    plain = losses()
    with op_tools.OpAutoCompare() as tool:
        compared = losses()
    assert torch.equal(compared, plain)
    assert tool.result().failures == []
    assert len([row for row in rows(tool, "torch.sigmoid") if row["phase"] == "backward"]) == 2


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_backward_that_writes_what_arrives_is_judged_by_what_arrived(device, right, monkeypatch):
    # A node of the program's own: its inputs are not there any more when its gradients are looked at.
    monkeypatch.setattr(twice, "wrong_on", None if right else device, raising=False)
    x = torch.randn(64, 8).to(device).requires_grad_()
    with op_tools.OpAutoCompare() as tool:
        (twice(x.square()) * 3).sum().backward()
    assert torch.allclose(x.grad.cpu(), (12 if right else 12.12) * x.detach().cpu())
    verdicts = {row["phase"]: row["verdict"] for row in rows(tool) if "twice" in row["op"]}
    assert verdicts == {"forward": "agrees", "backward": "agrees" if right else "differs"}
    assert len(tool.result().failures) == (0 if right else 1)


def test_gradients_can_be_left_out():
    x = torch.randn(8, requires_grad=True)
    with op_tools.OpAutoCompare(gradients=False) as tool:
        x.exp().sum().backward()
    assert {row["phase"] for row in rows(tool)} == {"forward"}


def test_rows_of_the_files_are_those_of_the_result():
    x = torch.randn(4, 4)
    with op_tools.OpAutoCompare() as tool:
        x.add(1)
        torch.topk(x, 2)
    root = tool.result().root
    with Path(root, "autocompare.csv").open() as file:
        from_csv = list(csv.DictReader(file))
    with Path(root, "autocompare.jsonl").open() as file:
        from_json = [json.loads(line) for line in file]
    kept = rows(tool)
    assert [row["what"] for row in kept] == ["output", "0th", "1th"]
    for row, text, parsed in zip(kept, from_csv, from_json, strict=True):
        assert parsed["op"] == text["op"] == row["op"]
        assert parsed["verdict"] == text["verdict"] == row["verdict"] == "agrees"
        assert parsed["shape"] == row["shape"] == json.loads(text["shape"])
        assert row["method"] and row["thresholds"] and row["deciding"]
        assert float(text["number"]) == row["number"]
    assert kept[2]["method"] == "bitwise" and kept[2]["dtype"] == "torch.int64"


def test_raising_at_the_first_failure_names_the_line():
    x = torch.randn(8, 8)
    with op_tools.OpAutoCompare(raise_on_failure=True):
        x.relu()
        with pytest.raises(RuntimeError, match=rf"bad_relu.* is wrong.*{__file__}:\d+"):
            bad_relu(x)
        x.relu()


def test_raising_at_the_first_failure_works_in_backward():
    x = torch.randn(8, 8, requires_grad=True)
    with op_tools.OpAutoCompare(ops=".*wrong_gradient.*", raise_on_failure=True):
        y = wrong_gradient(x).sum()
        with pytest.raises(RuntimeError, match="0th input grad is wrong"):
            y.backward()


@torch.library.custom_op("autocompare::wrong_gradient", mutates_args=())
def wrong_gradient(x: torch.Tensor) -> torch.Tensor:
    return x * 2


wrong_gradient.register_autograd(lambda _, grad: grad * (2.1 if grad.dtype == torch.float32 else 2))


def test_a_failed_call_is_saved_and_replays(replay):
    x = torch.randn(16, 16)
    with op_tools.OpAutoCompare(ops=".*bad_relu.*", level="aten") as tool:
        for _ in range(4):
            bad_relu(x)
    result = tool.result()
    assert (result.saved, result.not_saved) == (2, 2), "max_saved is 2 for each operator, shapes and dtypes"
    folder = result.failures[0]["saved"]
    saved = torch.load(f"{folder}/device/input.pth", weights_only=True)
    assert torch.equal(saved["args"][0], x)
    output = torch.load(f"{folder}/device/output.pth", weights_only=True)["args"][0]
    assert torch.equal(output, x.relu() * 1.001)
    meta = json.loads(Path(folder, "device", "meta.json").read_text())
    assert meta["stack"][0].startswith(__file__)
    assert "saved" not in result.failures[3]


def test_limits_say_what_they_left_out():
    x = torch.randn(8)
    with op_tools.OpAutoCompare(first_n_per_signature=6, every_nth=3) as tool:
        for _ in range(10):
            x.exp()
        torch.randn(9).exp()
    result = tool.result()
    assert len(rows(tool, "torch.Tensor.exp")) == 3 and result.left_out == 8

    with op_tools.OpAutoCompare(steps=[1]) as tool:
        for _ in range(3):
            x.exp()
            tool.step()
    assert [row["step"] for row in rows(tool)] == [1]


@pytest.mark.parametrize("level", LEVELS)
def test_judging_beside_the_program_gives_the_same_rows_in_order(level):
    def program():
        torch.manual_seed(0)
        x = torch.randn(32, 32, requires_grad=True)
        for _ in range(5):
            y = F.softmax(x @ x, -1)
            x.add(1).mul_(2)
            y.sum().backward()

    tables = []
    for settings in ({}, {"async_": True}, {"async_": True, "workers": 4, "max_pending_mb": 1}):
        with op_tools.OpAutoCompare(level=level, **settings) as tool:
            program()
        tool.flush()
        tables.append([(row["op"], row["what"], row["verdict"]) for row in rows(tool)])
    assert len(tables[0]) > 20
    if level == "aten":
        assert tables[0] == tables[1] == tables[2]
    else:  # each backward follows its forward, but others may come between
        assert sorted(tables[0]) == sorted(tables[1]) == sorted(tables[2])
    forwards = [[row for row in one if "grad" not in row[1]] for one in tables]
    assert forwards[0] == forwards[1] == forwards[2]


def test_random_results_replay_from_the_state_or_are_judged_by_their_distribution():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    plain = torch.rand(100), F.dropout(torch.ones(50)), torch.get_rng_state()
    torch.set_rng_state(before)
    with op_tools.OpAutoCompare() as tool:
        compared = torch.rand(100), F.dropout(torch.ones(50)), torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(plain, compared, strict=True))
    assert tool.result().ok
    assert {row["op"]: row["verdict"] for row in rows(tool)}["torch.nn.functional.dropout"] == "agrees"


def test_uninitialised_results_are_not_comparable():
    with op_tools.OpAutoCompare(ops="torch.empty_like") as tool:
        torch.empty_like(torch.ones(3))
    (row,) = rows(tool)
    assert (row["verdict"], row["reason"]) == ("not judged", "uninitialized memory")
    assert tool.result().failed == 0 and tool.result().verdict.value == "not judged"


def test_nan_and_infinities_are_no_failure_where_they_belong():
    x = torch.tensor([-1.0, 0.0, 1.0, math.inf])
    with op_tools.OpAutoCompare() as tool:
        x.sqrt(), x.log(), x - x, (x * 1e38).half()
    assert tool.result().ok and tool.result().passed >= 4


def test_equal_elements_may_be_named_in_any_order():
    x = torch.zeros(100, 3)
    with op_tools.OpAutoCompare() as tool:
        x.sort(0), x.argmax(), x.topk(5, 0), x.max(1)
    assert tool.result().ok


def test_an_input_that_is_changed_is_judged_too():
    x, out = torch.randn(8), torch.empty(8)
    with op_tools.OpAutoCompare(level="aten") as tool:
        x.mul_(2)
        torch.exp(x, out=out)
        torch._foreach_add_([x, out], 1.0)
    assert tool.result().ok
    assert any("after the call" in row["what"] for row in rows(tool))


@pytest.mark.parametrize("method", ["relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute"])
def test_methods_by_name(method):
    with op_tools.OpAutoCompare(method=method, ops="torch.Tensor.clone") as tool:
        torch.randn(8).clone()
    (row,) = rows(tool)
    assert row["verdict"] == "agrees" and row["method"] == method


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"method": "close"}, "relative, allclose"),
        ({"async_": True, "raise_on_failure": True}, "raise_on_failure"),
        ({"every_nth": 0}, "every_nth"),
        ({"max_saved": -1}, "max_saved"),
    ],
)
def test_wrong_settings_are_errors_that_name_them(settings, named):
    with pytest.raises(op_tools.Error, match=named):
        op_tools.OpAutoCompare(**settings).start()


def test_settings_from_the_environment(monkeypatch):
    monkeypatch.setenv("OP_AUTOCOMPARE_LIST", "torch.Tensor.exp")
    monkeypatch.setenv("OP_AUTOCOMPARE_METHOD", "allclose")
    monkeypatch.setenv("EXP_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "1e-3,1e-3")
    with op_tools.OpAutoCompare() as tool:
        torch.randn(8).exp().log()
    (row,) = rows(tool)
    assert row["method"] == "allclose" and row["thresholds"] == "atol 0.001, rtol 0.001"
    monkeypatch.setenv("OP_AUTOCOMPARE_METHOD", "nearly")
    with pytest.raises(op_tools.Error, match="OP_AUTOCOMPARE_METHOD"):
        op_tools.OpAutoCompare().start()


def test_lines_are_the_known_ones(python):
    done = python(
        "import torch, op_tools\n"
        "with op_tools.OpAutoCompare():\n"
        "    x = torch.ones(2, requires_grad=True)\n"
        "    torch.Tensor.div(x, 2).sum().backward()\n"
    )
    lines = done.stderr.splitlines()
    assert any(
        line.startswith("OpAutoCompareHook: torch.Tensor.div  ") and "allclose: True    max_diff:" in line
        for line in lines
    )
    assert any("torch.Tensor.div 0th input grad" in line for line in lines)
    assert any("0 results WRONG" in line and "ops seen were judged" in line for line in lines)


def test_the_operators_own_errors_pass_and_are_no_failure():
    with op_tools.OpAutoCompare() as tool, pytest.raises(RuntimeError, match="shape"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert tool.result().ok


def test_documented_numbers_are_those_that_decide():
    page = (Path(__file__).resolve().parents[2] / "docs" / "autocompare.md").read_text()
    shown = page.split("<!-- tolerances -->\n```\n")[1].split("```\n<!-- end of tolerances -->")[0]
    assert [line.rstrip() for line in shown.splitlines()] == [
        line.rstrip() for line in op_tools.OpAutoCompare.tolerances().splitlines()
    ]


@pytest.mark.filterwarnings("ignore:.*quantize", "ignore:Sparse")
@pytest.mark.parametrize("level", LEVELS)
def test_what_cannot_be_judged_is_said_and_the_program_goes_on(level):
    """Values whose comparison itself fails: dtypes without numbers, quantized and sparse tensors."""
    quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    sparse = torch.eye(3).to_sparse_csr()
    with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
        bits = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
        copies = bits.clone(), quantized.clone(), sparse.clone()
        total = torch.ones(3) + 1
    assert copies[1].equal(quantized)
    assert copies[2].to_dense().equal(torch.eye(3))
    assert total.sum() == 6
    result = tool.result()
    assert result.ok
    assert [
        row["verdict"]
        for row in result.rows
        if row["op"] in ("torch.Tensor.add", "torch.Tensor.__add__", "aten::add.Tensor")
    ] == ["agrees"]
    assert all(row["reason"] for row in result.rows if row["verdict"] == "not judged")


def attention_over_one_key(dtype):
    query = torch.randn(2, 4, 8, 16, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(2, 4, 1, 16, dtype=dtype, requires_grad=True) for _ in range(2))
    return F.scaled_dot_product_attention(query, key, value)


def batch_norm_of_two_values(dtype):
    return torch.nn.BatchNorm2d(8).to(dtype)(torch.randn(2, 8, 1, 1, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("forward", [attention_over_one_key, batch_norm_of_two_values])
def test_gradients_that_are_nothing_but_rounding_are_no_failures_on_the_cpu(forward, dtype, level):
    torch.manual_seed(3)
    with op_tools.OpAutoCompare(level=level) as tool:
        output = forward(dtype)
        output.backward(torch.randn_like(output))
    gradients = [row for row in tool.result().rows if row["verdict"] != "not judged" and row["number"] != 0]
    assert gradients, tool.result().rows
    assert tool.result().failed == 0, [row for row in tool.result().rows if row["verdict"] == "differs"]


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_eigenvectors_of_another_sign_agree(level):
    matrix = torch.randn(5, 5)
    matrix = (matrix + matrix.mT).requires_grad_()
    with op_tools.OpAutoCompare(level=level) as tool:
        for seed in range(20):
            torch.manual_seed(seed)
            symmetric = torch.randn(5, 5)
            torch.linalg.eigh(symmetric + symmetric.mT)
            torch.linalg.eig(symmetric)
        torch.linalg.eigh(matrix).eigenvectors.sum().backward()
    assert tool.result().failed == 0, [row for row in tool.result().rows if row["verdict"] == "differs"]
    assert any(row["reason"] == "equal up to ambiguous signs" for row in tool.result().rows)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_step_where_float32_has_it_is_right(level, mode):
    # 0.1, 0.3 and 0.7 are other numbers in float32, where these quotients are whole.
    x = torch.arange(2048, dtype=torch.float32)
    with op_tools.OpAutoCompare(level=level) as compare:
        for step in (0.1, 0.3, 0.7, 0.01826502772701133):
            torch.div(x * step, step, rounding_mode=mode)
            torch.remainder(x * step, step)
            torch.fmod(x * step, step)
    assert compare.result().failures == []
    assert compare.result().rows


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, on first use
@pytest.mark.parametrize("level", LEVELS)
def test_forward_mode_is_not_comparable_in_plain_words(level):
    x = torch.randn(3)
    with op_tools.OpAutoCompare(level=level) as compare, torch.autograd.forward_ad.dual_level():
        torch.autograd.forward_ad.make_dual(x, torch.ones(3)).exp()
    assert compare.result().failures == []
    assert not any("INTERNAL ASSERT" in row["reason"] for row in compare.result().rows)
