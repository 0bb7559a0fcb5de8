"""OpOverflowCheck: the operator that made a NaN or an infinity, and no other."""

import contextlib
import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import launched

import op_tools
import op_tools.sim_device  # before the first backward() of the process
from op_tools._report.scan import read_parts

LEVELS = ["torch", "aten"]
INF = math.inf


def checked(function, **options):
    with op_tools.OpOverflowCheck(**options) as check:
        function()
    return check.result()


def short(name):
    """sqrt of torch.Tensor.sqrt, torch.sqrt and aten::sqrt."""
    return name.replace("::", ".").split(".")[2 if name.startswith("torch.Tensor.") else 1]


def producers(result):
    return [short(row.op) for row in result.rows if row.kind == "producer"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_the_producer_is_named_and_what_follows_is_not_blamed(level, dtype):
    x = torch.ones(2, 3, dtype=dtype)
    x[1, 2] = 0

    def program():
        y = torch.log(x)  # -inf
        z = torch.mul(y, 2)
        torch.sum(z)

    result = checked(program, level=level)
    assert producers(result) == ["log"]
    assert not result.ok and result.producers == 1 and result.propagators == 2
    row = result.rows[0]
    assert (row.phase, row.output, row.shape, row.first) == ("forward", 0, [2, 3], [1, 2])
    assert row.dtype == str(dtype)
    assert (row.nan, row.pos_inf, row.neg_inf) == (0, 0, 1)
    assert Path(row.line.split(":")[0]).name == "test_overflow.py"


@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_made_of_allowed_infinities_has_a_producer(level):
    scores = torch.zeros(2, 2)
    nobody = torch.ones(2, 2, dtype=torch.bool)

    def program():
        torch.softmax(scores.masked_fill(nobody, -INF), -1)

    result = checked(program, level=level)
    assert producers(result) == ["softmax" if level == "torch" else "_softmax"]
    assert result.rows[0].nan == 4


@pytest.mark.parametrize("level", LEVELS)
def test_masks_are_no_overflow(level):
    scores = torch.randn(2, 4, 4)

    def program():
        mask = torch.triu(torch.full((4, 4), -INF), diagonal=1)
        assert torch.isfinite(torch.softmax(scores + mask, -1)).all()
        filled = torch.where(torch.eye(4, dtype=torch.bool), 0.0, -INF)
        assert torch.isfinite((scores + filled).exp()).all()
        query = torch.randn(1, 1, 4, 8)
        F.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    result = checked(program, level=level)
    assert result.ok and result.rows == []


GIVEN = {
    "scatter": lambda x: x.scatter(0, torch.tensor([0]), -INF),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0]), -INF),
    "pad": lambda x: F.pad(x, (1, 1), value=-INF),
    "mul": lambda x: (x.abs() + 1) * -INF,
    "mul of both signs": lambda x: x * -INF,
    "sub": lambda x: x - INF,
    "add": lambda x: x + -INF,
    "where": lambda x: torch.where(x > 0, x, -INF),
    "clamp": lambda x: x.clamp(min=-INF),
    "masked_fill_": lambda x: x.clone().masked_fill_(x > 0, -INF),
    "full_like": lambda x: torch.full_like(x, -INF),
    "new_full": lambda x: x.new_full((2,), -INF),
    "setitem": lambda x: x.clone().__setitem__(0, -INF),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), torch.tensor(-INF)),
    "threshold": lambda x: F.threshold(x, 0.5, -INF),
    "scalar_tensor": lambda x: torch.scalar_tensor(-INF) + x,
    "nan_to_num": lambda x: torch.nan_to_num(x * math.nan, nan=-INF),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", LEVELS)
def test_an_infinity_that_the_call_is_given_has_no_producer(level, device, name):
    x = torch.tensor([1.0, -2.0, 3.0]).to(device)

    def program():
        with torch.device(device):
            GIVEN[name](x)

    assert [one for one in producers(checked(program, level=level)) if name != "nan_to_num"] == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_of_zero_times_a_given_infinity_has_a_producer(level):
    assert producers(checked(lambda: torch.tensor([0.0, 1.0]) * -INF, level=level)) == ["mul"]


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("op", ["cat", "stack", "copy_", "add", "mul"])
def test_a_fault_of_an_operator_hits_the_programs_calls_and_none_of_the_check(op, kind):
    """With a fault in all calls of an operator, a call of the check itself would have its neighbours reported."""
    x = torch.randn(4, 4)

    def program():
        model = torch.nn.Linear(4, 4).to("sim")
        for _ in range(3):
            y = model(x.to("sim"))
            torch.cat([y, y.relu()]).sum()

    with op_tools.sim_device.fault(kind, ops=f"aten::{op}", seed=3) as fault:
        result = checked(program)
    assert producers(result) == (["cat"] * 3 if op == "cat" else [])
    assert fault.hits == (3 if op == "cat" else 0)


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_number_that_the_program_reads_is_a_result(kind, level):
    x = torch.ones(3).to("sim")

    def program():
        for _ in range(3):
            x.sum().item()
            x.tolist()

    assert checked(program, level=level).verdict == "agrees"
    with op_tools.sim_device.fault(kind, ops="_local_scalar_dense", call=1):
        result = checked(program, level=level)
    assert producers(result) == ["_local_scalar_dense" if level == "aten" else "item"]
    assert (result.rows[0].nan, result.rows[0].pos_inf) == ((1, 0) if kind == "nan" else (0, 1))


@pytest.mark.parametrize("level", LEVELS)
def test_the_number_of_a_tensor_that_is_not_finite_is_handed_on(level):
    def program():
        zero = torch.zeros(1).to("sim")
        zero.log().item()
        torch.full((1,), -math.inf).to("sim").item()

    assert producers(checked(program, level=level)) == ["log"]


def test_infinities_can_be_left_out():
    def program():
        infinite = torch.log(torch.zeros(2))
        infinite - infinite

    assert producers(checked(program)) == ["log"]
    assert producers(checked(program, inf=False)) == ["sub"]


@pytest.mark.parametrize("level", LEVELS)
def test_in_place_and_out_are_seen(level):
    x = torch.tensor([0.0, 1.0])
    out = torch.ones(2)

    def program():
        x.log_()
        torch.sqrt(torch.tensor([-1.0, 1.0]), out=out)

    names = producers(checked(program, level=level))
    assert names == ["log_", "sqrt"]


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_written_and_not_returned_is_seen(level, device, replay):
    ones, zeros = ([torch.full((3,), value, device=device) for _ in range(2)] for value in (1.0, 0.0))
    place = torch.zeros(3, device=device)

    def program():
        torch._foreach_div_(ones, [1.0, 0.0])
        place[1:] = torch.ones(2, device=device)
        torch._foreach_log_(zeros)

    result = checked(program, level=level)
    assert producers(result) == ["_foreach_div_", "_foreach_log_", "_foreach_log_"]
    rows = result.rows
    assert [(row.pos_inf, row.neg_inf) for row in rows] == [(3, 0), (0, 3), (0, 3)]
    saved = op_tools.load_call(rows[0].saved)
    assert all(torch.equal(tensor, torch.ones(3)) for tensor in saved.args[0])
    again = replay(rows[0].saved, "--acc_check")
    assert again.status == 0, again.out


def test_uninitialised_memory_and_integers_are_no_finding():
    def program():
        y = torch.empty(1000)
        y.fill_(1)
        torch.empty_like(y)
        torch.tensor([1, 2]).mul(2**62)

    assert checked(program, level="aten").ok
    assert checked(program).ok


@pytest.fixture
def nan_in_new_memory():
    torch.use_deterministic_algorithms(True)  # torch fills new memory with NaN then
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.usefixtures("nan_in_new_memory")
def test_views_of_memory_that_nobody_has_written_are_no_finding(level):
    def program():
        memory = torch.empty(4, 3)
        memory.detach_()
        weight = memory.detach()[1:]  # as torch.nn.Parameter does it
        weight.fill_(1)
        weight.sum()

    result = checked(program, level=level)
    assert result.rows == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.usefixtures("nan_in_new_memory")
def test_who_reads_memory_that_nobody_has_written_passes_on_what_it_holds(level):
    result = checked(lambda: torch.empty(3).clone().mul(2), level=level)
    assert [(row.kind, short(row.op)) for row in result.rows] == [("propagator", "clone"), ("propagator", "mul")]


def test_the_logarithms_of_zero_inside_of_ctc_loss_are_no_finding():
    scores = torch.randn(6, 2, 5).log_softmax(-1).requires_grad_()
    targets, lengths = torch.tensor([[1, 2], [3, 3]]), torch.tensor([6, 5])

    def program():
        F.ctc_loss(scores, targets, lengths, torch.tensor([2, 2])).backward()

    assert checked(program, level="aten").rows == []


@pytest.mark.parametrize("level", LEVELS)
def test_backward_has_producers_of_its_own(level):
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    result = checked(lambda: torch.sqrt(x).sum().backward(), level=level)
    (row,) = [row for row in result.rows if row.kind == "producer"]
    assert row.pos_inf == 1
    if level == "torch":
        assert (row.op, row.phase) == ("torch.sqrt", "backward")
    else:
        assert row.op == "aten::div.Tensor"  # a part of sqrt's derivative


class Root(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.root = Root()

    def forward(self, x):
        return self.root(x) * 2


@pytest.mark.parametrize("level", LEVELS)
def test_the_producers_module_is_named_forward_and_backward(level, tmp_path):
    model = Model()
    forward = checked(lambda: model(torch.tensor([-1.0])), level=level, output_dir=str(tmp_path))
    assert {(row.module, row.kind) for row in forward.rows} == {("Model.root", "producer"), ("Model", "propagator")}
    assert "Model.root" in forward.table()
    meta = json.loads(Path(forward.rows[0].saved, "meta.json").read_text())
    assert (meta["model"], meta["module"]) == ("Model", "root")

    x = torch.tensor([0.0, 4.0], requires_grad=True)
    backward = checked(lambda: model(x).sum().backward(), level=level)
    (row,) = [row for row in backward.rows if row.kind == "producer"]
    assert row.module == "Model.root"


def test_a_loss_scalers_overflow_can_be_expected():
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    result = checked(lambda: torch.sqrt(x).sum().backward(), allow_in_backward_with_scaler=True)
    assert result.ok and result.expected == 1
    assert result.rows[0].expected


@pytest.mark.parametrize("level", LEVELS)
def test_views_and_strides(level):
    base = torch.ones(4, 6)
    base[3, 5] = INF

    def program():
        part = base[:2].t()  # finite
        part.exp()
        base.t().mul(1)  # given
        torch.log(base[::2, ::3] - 1)  # made: log(0)

    result = checked(program, level=level)
    assert producers(result) == ["log"]


def test_a_tensor_that_is_written_is_looked_at_again():
    x = torch.ones(3)

    def program():
        torch.neg(x)
        x.data[0] = math.nan  # behind the version counter's back: not seen
        x[1] = math.nan
        torch.neg(x)

    result = checked(program, level="aten", ops="neg")
    assert result.propagators == 1 and result.producers == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_that_the_version_of_a_tensor_does_not_count_is_seen(level):
    x = torch.ones(8)

    def program():
        torch.neg(x)
        with torch.autograd._unsafe_preserve_version_counter(x):
            x.view(2, 4)[1].div_(0)
        torch.mul(x, 2)

    assert producers(checked(program, level=level)) == ["div_"]


@pytest.mark.parametrize("level", LEVELS)
def test_clean_training_has_no_finding(level):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)

    def program():
        for _ in range(10):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(3, 5, 16), src_mask=mask, is_causal=True).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    result = checked(program, level=level)
    assert result.ok and result.rows == [] and result.calls > 100


def test_a_run_in_which_nothing_was_found_stands_in_a_report(tmp_path):
    clean = checked(lambda: torch.ones(2).mul(2), output_dir=tmp_path / "clean")
    assert (Path(clean.root) / "overflow.jsonl").read_text() == ""
    (part,) = read_parts([tmp_path / "clean"])
    assert (part.tool, part.verdict.value, part.findings) == ("OpOverflowCheck", clean.verdict.value, [])
    assert not checked(lambda: None, output_dir=tmp_path / "empty").root
    assert not (tmp_path / "empty").exists()


def test_values_that_came_in_and_went_no_further_are_a_gap_in_a_report_too(tmp_path):
    values = torch.full((2,), math.nan, device="sim")
    result = checked(lambda: torch.nan_to_num(values), output_dir=tmp_path)
    assert (result.came_in, result.rows, result.verdict.value) == (1, [], "not judged")
    (part,) = read_parts([tmp_path])
    assert part.verdict.value == "not judged"


def test_rows_are_in_the_file_and_in_the_table(tmp_path):
    result = checked(lambda: torch.log(torch.zeros(3)).mul(2), output_dir=tmp_path)
    rows = [json.loads(line) for line in (Path(result.root) / "overflow.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["producer", "propagator"]
    assert rows == [vars(row) for row in result.rows]
    row = next(line for line in result.table().splitlines() if line.startswith("producer"))
    assert row.split()[:4] == ["producer", "torch.log", "forward", "0"]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_are_taken_over_as_without_the_tool(level):
    def gradient_is_taken_over():
        x = torch.ones(8, requires_grad=True)
        seen = []
        y = x * 2
        y.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
        x.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
        y.sum().backward()
        return seen[-1] == x.grad.data_ptr()

    plain = gradient_is_taken_over()
    with op_tools.OpOverflowCheck(level=level):
        tooled = gradient_is_taken_over()
    assert plain == tooled


@pytest.mark.parametrize("level", LEVELS)
def test_on_a_device_the_window_is_judged_in_order(level):
    x = torch.ones(2, 3).to("sim")
    zero = torch.zeros(2).to("sim")

    def program():
        for _ in range(5):
            torch.mul(x, 2)
        bad = torch.log(zero)
        torch.mul(bad, 2)
        torch.mul(x, 3)

    result = checked(program, level=level, every=1000)
    assert producers(result) == ["log"]
    assert result.propagators == 1
    assert (result.rows[0].neg_inf, result.rows[0].first) == (2, [0])
    one_by_one = checked(program, level=level, every=1)
    assert producers(one_by_one) == ["log"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_immediate_stops_the_program_at_the_producer(level, device):
    x = torch.zeros(2).to(device)
    seen = []

    def program():
        seen.append(torch.exp(x))
        torch.log(x)
        seen.append("not reached")

    with pytest.raises(RuntimeError, match=r"OpOverflowCheck: .*log.* made 2 -inf .*test_overflow.py"):
        checked(program, level=level, immediate=True)
    assert len(seen) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_producers_call_is_saved_and_replays(level, tmp_path, replay):
    x = torch.tensor([0.0, 4.0])
    result = checked(lambda: torch.log(x), level=level, output_dir=tmp_path)
    (row,) = result.rows
    assert row.not_saved is None
    saved = op_tools.load_call(row.saved)
    assert torch.equal(saved.args[0], x)
    assert saved.result[0] == -INF
    again = replay(row.saved, "--acc_check")
    assert again.status == 0, again.out  # the CPU makes the same infinity of it


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("every", [1, 1000])
def test_a_device_that_made_a_nan_is_shown_by_the_replay(level, every, tmp_path, replay):
    a, b = torch.rand(4, 4).to("sim"), torch.rand(4, 4).to("sim")

    def program():
        with op_tools.sim_device.fault("nan", ops="mm", call=1):
            for _ in range(3):
                torch.mm(a, b)
        a.zero_()  # the call's inputs are gone before the window is judged

    before = a.cpu().clone()
    result = checked(program, level=level, every=every, output_dir=tmp_path)
    (row,) = [row for row in result.rows if row.kind == "producer"]
    assert short(row.op) == "mm"
    assert row.nan > 0 and row.not_saved is None
    assert torch.equal(op_tools.load_call(row.saved).args[0], before)
    again = replay(row.saved, "--acc_check")
    assert again.status == 1, again.out  # without the fault the result is different
    assert "nan" in again.out.lower()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_inputs_that_the_call_overwrites_are_saved_as_they_were(level, device, tmp_path):
    start = torch.tensor([-1.0, 4.0])
    x, other, out = start.clone().to(device), torch.ones(2).to(device), torch.zeros(2).to(device)
    mean, spread = torch.zeros(3).to(device), torch.ones(3).to(device)
    image = torch.full((2, 3, 2), INF).to(device)

    def program():
        x.sqrt_()
        torch.log(other - 1, out=out)
        torch.nn.functional.batch_norm(torch.nan_to_num(image, posinf=3e38), mean, spread, training=True)

    result = checked(program, level=level, output_dir=tmp_path)
    rows = {short(row.op): row for row in result.rows if row.kind == "producer"}
    assert torch.equal(op_tools.load_call(rows["sqrt_"].saved).args[0], start)
    logged = op_tools.load_call(rows["log"].saved)
    assert torch.equal(logged.kwargs["out"], torch.zeros(2))
    norm = next(row for row in rows.values() if "batch_norm" in row.op)
    assert norm.not_saved is None
    saved = op_tools.load_call(norm.saved)
    tensors = [value for value in [*saved.args, *saved.kwargs.values()] if isinstance(value, torch.Tensor)]
    assert any(torch.equal(tensor, torch.ones(3)) for tensor in tensors)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_backward_that_made_an_infinity_is_saved_with_its_forward(device, tmp_path):
    x = torch.tensor([0.0, 4.0], device=device, requires_grad=True)
    result = checked(lambda: torch.sqrt(x).sum().backward(), output_dir=tmp_path)
    (row,) = [row for row in result.rows if row.kind == "producer"]
    assert (row.op, row.phase, row.not_saved) == ("torch.sqrt", "backward", None)
    saved = op_tools.load_call(row.saved)
    assert torch.equal(saved.args[0].detach(), x.detach().cpu())
    assert saved.args[0].requires_grad
    assert torch.equal(saved.grad_outputs[0], torch.ones(2))
    assert saved.grad_inputs[0][0] == INF


def test_a_backward_whose_inputs_are_gone_says_so(tmp_path):
    def program():
        x = torch.tensor([0.0, 4.0], requires_grad=True) * 1
        y = torch.sqrt(x)  # keeps its result, not x
        del x
        y.sum().backward()

    result = checked(program, output_dir=tmp_path, ops="torch.sqrt")
    (row,) = result.rows
    assert row.kind == "producer" and row.saved is None
    assert "forward call are gone" in row.not_saved


def test_few_calls_are_saved(tmp_path):
    def program():
        for _ in range(4):
            torch.log(torch.zeros(3))

    result = checked(program, output_dir=tmp_path)
    assert [row.saved is not None for row in result.rows] == [True, True, False, False]
    assert "max_saved" in result.rows[2].not_saved
    result = checked(program, max_saved=0)
    assert [(row.saved, row.not_saved) for row in result.rows] == [(None, None)] * 4
    result = checked(program, max_saved=9, max_saved_mb=0)
    assert "max_saved_mb" in result.rows[0].not_saved
    with pytest.raises(op_tools.Error, match="max_saved="):
        checked(program, max_saved=-1)


@pytest.mark.parametrize("level", LEVELS)
def test_training_on_a_device_is_the_same_under_it(level):
    def losses():
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(True), torch.nn.Linear(8, 1)
        )
        model.to("sim")
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        values = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(6, 4).to("sim")).square().mean()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    plain = losses()
    with op_tools.OpOverflowCheck(level=level) as check:
        tooled = losses()
    assert plain == tooled
    assert check.result().ok


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_tensors_of_inference_mode_at_addresses_of_others(level):
    with op_tools.OpOverflowCheck(level=level) as tool:
        for _ in range(50):  # memory that is freed here is taken there
            torch.ones(3) + 1
            with torch.inference_mode():
                torch.ones(3) + 1
        assert tool._scope.hook_failures == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("max_saved", [0, 2])
def test_an_infinity_that_was_there_is_not_the_in_place_calls_who_writes_over_it(level, max_saved):
    # Nobody asked for these values before the call, and after it they are gone: its results of them are not its own.
    x = torch.tensor([1.0, INF])
    many = [torch.tensor([1.0, INF]), torch.ones(2)]
    shared = torch.tensor([INF, 1.0, 2.0, 3.0])

    def program():
        x.mul_(0)
        torch._foreach_mul_(many, 0.0)
        shared.sub_(shared.view(4))

    result = checked(program, level=level, max_saved=max_saved)
    assert result.producers == 0 and result.propagators == 4  # and the view
    assert result.came_in == 3 and result.verdict.value == "not judged"


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_call_was_given_is_asked_when_it_made_something_of_it(level):
    weight, hot = torch.ones(3, 3), torch.ones(3, 3)
    hot[1, 1] = INF

    def program():
        torch.mm(weight, weight)
        weight.t()
        torch.mm(weight.t(), hot)  # a propagator
        hot.t()  # and this
        torch.log(weight - 1)  # -inf of its own

    result = checked(program, level=level)
    assert producers(result) == ["log"]
    assert [short(row.op) for row in result.rows if row.kind == "propagator"] == ["mm", "t"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_view_is_sound_as_long_as_what_it_shows_is(level):
    x = torch.ones(4, 4)

    def program():
        y = x * 2
        view = y.view(16).detach()
        view[3:5].log_().div_(0)  # through a view of a view: log_ is sound
        y.t()
        torch.as_strided(y, (2,), (1,))

    result = checked(program, level=level)
    assert producers(result) == ["div_"]
    names = [short(row.op) for row in result.rows if row.kind == "propagator"]
    assert names == ["t"]  # as_strided shows two elements that are sound


@pytest.mark.parametrize("level", LEVELS)
def test_training_with_shared_weights_and_large_gradients_is_the_same_under_it(level):
    def trained(tool):
        torch.manual_seed(0)
        layer = torch.nn.Linear(512, 512)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        grads = []
        with tool:
            for _ in range(3):
                optimizer.zero_grad()
                x = torch.randn(300, 512)
                layer(layer(x) + layer(x)).square().mean().backward()
                grads.append(layer.weight.grad.clone())
                optimizer.step()
        return [*grads, layer.weight.detach(), layer.bias.detach()]

    check = op_tools.OpOverflowCheck(level=level)
    for with_it, without in zip(trained(check), trained(contextlib.nullcontext()), strict=True):
        assert torch.equal(with_it, without)
    assert check.result().ok


def test_a_backward_that_made_an_infinity_is_saved_with_large_gradients(tmp_path):
    x = torch.ones(600, 600, requires_grad=True)
    with op_tools.OpOverflowCheck(output_dir=str(tmp_path)) as check:
        y = x * 2e19
        y.backward(torch.full((600, 600), 3e19))
    row = next(row for row in check.result().rows if row.kind == "producer")
    assert row.phase == "backward" and row.op == "torch.Tensor.mul"
    gradients = torch.load(f"{row.saved}/grad_outputs.pth", weights_only=True)
    assert torch.equal(gradients["args"][0], torch.full((600, 600), 3e19))


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("size", [4, 600])
@pytest.mark.parametrize("shared", [False, True])
def test_a_backward_that_made_an_infinity_is_saved_where_gradients_add_up(device, size, shared, tmp_path):
    """The engine adds into memory that the tool was lent."""
    x = torch.ones(size, size, device=device, requires_grad=True)
    x.grad = torch.ones(size, size, device=device)
    arriving = torch.full((size, size), 3e19)

    def program():
        y = x * 2e19
        (y + x if shared else y).backward(arriving.to(device))

    result = checked(program, output_dir=tmp_path)
    (row,) = [row for row in result.rows if row.kind == "producer"]
    assert (row.op, row.phase, row.not_saved) == ("torch.Tensor.mul", "backward", None)
    saved = op_tools.load_call(row.saved)
    assert torch.equal(saved.grad_outputs[0], arriving)
    assert torch.isinf(saved.grad_inputs[0]).all()


@pytest.mark.parametrize("value", [INF, math.nan])
def test_what_the_program_gives_itself_has_no_producer(value):
    def program():
        torch.tensor([1.0, value])
        torch.from_numpy(np.array([1.0, value])).sum()
        torch.full((2,), value)
        torch.zeros(2).fill_(value)
        torch.ones(2) * value
        torch.ones(2).masked_fill(torch.tensor([True, False]), value)

    result = checked(program)
    assert producers(result) == [] and result.came_in == 1  # by from_numpy, which is no call
    assert "sum" in [short(row.op) for row in result.rows if row.kind == "propagator"]


def test_a_producer_beside_what_the_program_gives():
    def program():
        limit = torch.tensor(INF)
        torch.minimum(torch.ones(2), limit) / 0

    assert producers(checked(program)) == ["div"]


class Halves(torch.nn.Module):
    def forward(self, x):
        parts = [
            part.log()  # the call
            for part in x.chunk(2)
        ]
        return parts[0]


class BackwardOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 0  # the call


def of_many_lines(x):
    return torch.add(
        x,
        torch.mul(
            x,
            2,
        ),
    ).add(
        torch.log(x * 0),  # the call
    )


def in_backward(x):
    root = (x * 0).sqrt()  # the call
    root.sum().backward()


def under_no_grad(x):
    with torch.no_grad():
        x = x + 1
        x.mul_(0).reciprocal_()  # the call
    return x


def as_operator(x):
    y = x * 0
    y /= 0  # the call
    return y


def in_a_closure(x):
    return (lambda t: t.log())(x * 0)  # the call


def in_a_wrapper(x):
    return torch.nn.Sequential(Halves())(x * 0)


def of_ones_own_function(x):
    BackwardOfItsOwn.apply(x).sum().backward()


def in_map(x):
    return list(
        map(
            torch.log,
            [x * 0],
        )
    )


def line_of(function):
    """The line marked "the call" in `function`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + place for place, text in enumerate(lines) if "# the call" in text)


PLACES = {
    of_many_lines: of_many_lines,
    in_backward: in_backward,
    under_no_grad: under_no_grad,
    as_operator: as_operator,
    in_a_closure: in_a_closure,
    in_a_wrapper: Halves.forward,
    of_ones_own_function: BackwardOfItsOwn.backward,
}


@pytest.mark.parametrize("program", PLACES, ids=lambda program: program.__name__)
@pytest.mark.parametrize("level", LEVELS)
def test_the_line_is_that_of_the_call(level, program):
    x = torch.ones(4, requires_grad=True)
    result = checked(lambda: program(x), level=level)
    row = next(row for row in result.rows if row.kind == "producer")
    file, line = row.line.split()[0].rsplit(":", 1)
    assert (Path(file).name, int(line)) == ("test_overflow.py", line_of(PLACES[program])), row.line


@pytest.mark.parametrize("level", LEVELS)
def test_the_line_of_a_call_that_a_builtin_makes_is_that_of_the_builtin(level):
    row = checked(lambda: in_map(torch.ones(4)), level=level).rows[0]
    lines, first = inspect.getsourcelines(in_map)
    assert first < int(row.line.split()[0].rsplit(":", 1)[1]) < first + len(lines)


FORMULAS = {
    "pow": lambda t: t.pow(2),
    "mul": lambda t: t * t,
    "sin": torch.sin,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "div": lambda t: 1 / t,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "layer_norm": lambda t: F.layer_norm(t, (3,)),
    "softmax": lambda t: t.softmax(0),
    "cross_entropy": lambda t: F.cross_entropy(t * 1.0, torch.tensor(1)),
}


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", LEVELS)
def test_backward_that_reads_a_nan_which_its_forward_saved_is_no_producer(level, device):
    x, w = torch.tensor([-1.0, 2.0, 3.0]).to(device), torch.ones(3, device=device, requires_grad=True)

    def program():
        for formula in FORMULAS.values():
            with torch.device(device):
                formula(torch.log(x * w)).sum().backward()

    assert producers(checked(program, level=level)) == ["log"] * len(FORMULAS)


def test_backward_that_reads_a_nan_from_outside_is_no_producer():
    outside, w = torch.tensor([math.nan, 2.0]), torch.ones(2, requires_grad=True)

    def program():
        torch.where(torch.isnan(outside), w, w * outside).sum().backward()

    result = checked(program, level="torch")
    assert producers(result) == [] and result.propagators > 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_whose_inputs_cannot_be_asked_is_not_said_to_make_a_nan_from_finite_inputs(level):
    sparse = torch.tensor([[0.0, math.nan]]).to_sparse()
    assert producers(checked(lambda: sparse.to_dense() * 2, level=level)) == []


COLLECTIVES = """
import inspect, os, sys
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import op_tools

dist.init_process_group("gloo")
rank, level = dist.get_rank(), sys.argv[1]
# The torch level sees no broadcast of a torch that does not ask for __torch_function__ in it (docs/torch_versions.md).
broadcast_is_seen = level == "aten" or "handle_torch_function" in inspect.getsource(dist.broadcast)
with op_tools.OpOverflowCheck(level=level, max_saved=0) as check:
    bad = torch.log(torch.full((5,), -1.0 if rank == 1 else 1.0))
    summed, sent, late = bad.clone(), bad.clone(), bad.clone()
    for tensor in (summed, sent, late):
        tensor * 2  # their earlier values are known
    dist.all_reduce(summed)
    if broadcast_is_seen:
        dist.broadcast(sent, 1)
    else:
        dist.all_reduce(sent)
    work = dist.all_reduce(late, async_op=True)
    work.wait()
    gathered = torch.zeros(10)
    dist.all_gather_into_tensor(gathered, bad)
    waited = functional.all_reduce(bad, "sum", dist.group.WORLD)
    for tensor in (summed, sent, late, gathered, waited):
        assert torch.isnan(tensor * 2).any()
producers = [(row.op, row.kind) for row in check.result().rows if row.kind == "producer"]
assert len(producers) == rank and all("log" in op for op, _ in producers), producers
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_nan_that_a_collective_brings_has_its_producer_on_the_rank_that_made_it(level, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(COLLECTIVES)
    launched(script, level, ranks=2)


def test_what_autograd_adds_up_between_calls_of_the_torch_level_is_not_called_sound():
    """An addition of gradients is no call there: that no call made the infinity is no all-clear."""

    def program(fault):
        x = torch.ones(4, device="sim", requires_grad=True)
        with fault:
            (x.sin().sum() + x.cos().sum()).backward()
        return x.grad * 2

    tool = op_tools.OpOverflowCheck(level="torch")
    with tool:
        program(contextlib.nullcontext())
    assert tool.result().verdict.value == "agrees"
    with tool, op_tools.sim_device.fault("inf", ops="aten::add.Tensor", call=1) as fault:
        program(contextlib.nullcontext())
    result = tool.result()
    assert fault.hits == 1 and result.producers == 0 and result.came_in == 1
    assert result.verdict.value == "not judged" and not result.ok
