"""Two runs agree only where their losses, gradients and parameters do; a device that rounds otherwise is no difference."""

import op_tools.sim_device as sim  # isort: skip  (before the first backward pass)
import contextlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import op_tools

LEVELS = ["torch", "aten"]


def train(device, steps, make, loss_of, optimizer, logs=False, record=None):
    torch.manual_seed(0)
    nets = [net.to(device) for net in make()]
    x = torch.randn(12, 6, 8).to(device)
    method = optimizer([parameter for net in nets for parameter in net.parameters()])
    with record:
        for _ in range(steps):
            y = x
            for net in nets:
                y = net(y)
            loss = loss_of(y[0] if isinstance(y, tuple) else y)
            method.zero_grad()
            loss.backward()
            if logs:
                for net in nets:
                    for parameter in net.parameters():
                        parameter.grad.cpu().double()
            method.step()
            record.step()


def square(y):
    return y.square().mean()


def mlp():
    return [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def compared(folder, level, make=mlp, loss_a=square, loss_b=square, optimizer=sgd, device="sim", logs=False):
    """A on the CPU; B on the device, whose inputs are off by a unit in the last place."""
    for name, on, loss_of in (("a", "cpu", loss_a), ("b", device, loss_b)):
        record = op_tools.OpRecord(output_dir=folder / name, level=level, jitter=int(name == "b"))
        train(on, 2, make, loss_of, optimizer, logs, record)
    return op_tools.compare_runs(folder / "a", folder / "b")


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_gradient_is_named_where_the_runs_round_differently(level, tmp_path):
    with sim.fault("scale", ops="aten::tanh_backward", scale=1.02):
        first = compared(tmp_path, level).ranks[0].first
    assert first is not None and "tanh" in first.op
    assert first.phase == "backward" and first.verdict == "born here"
    assert first.limit < 1e-3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("factor", [2.0, -1.0, 1000.0])
def test_another_loss_never_agrees(level, factor, tmp_path):
    comparison = compared(tmp_path, level, loss_b=lambda y: square(y) * factor)
    assert comparison.exit_status == 1 and not comparison.agrees


@pytest.mark.parametrize("level", LEVELS)
def test_other_logits_never_agree(level, tmp_path):
    labels = torch.arange(12) % 8

    def of_classes(factor):
        return lambda y: F.cross_entropy((y * factor if factor != 1 else y)[:, 0], labels.to(y.device))

    comparison = compared(tmp_path, level, loss_a=of_classes(1), loss_b=of_classes(2.0))
    assert comparison.exit_status == 1


@pytest.mark.parametrize("level", LEVELS)
def test_copies_to_the_host_are_no_calls(level, tmp_path):
    comparison = compared(tmp_path, level, logs=True)
    assert comparison.agrees, comparison.table()


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)  # lists of tensors on the device, single tensors on the CPU


def two_roots():
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", [mlp, two_roots, lambda: [nn.LSTM(8, 8)], lambda: [nn.GRU(8, 8)]])
def test_the_same_program_on_a_device_agrees(level, make, tmp_path):
    comparison = compared(tmp_path, level, make=make, optimizer=adam)
    assert comparison.agrees, comparison.table()


FORMS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 3e-2}),
}


def blind_bias():
    """The gradient of the first bias is rounding alone: the mean is taken out behind it."""
    return [nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16, elementwise_affine=False), nn.Tanh(), nn.Linear(16, 8))]


def recorded_forms(folder, level, optimizer, forms, factor=1.0):
    method, options = OPTIMIZERS[optimizer]
    for name, form in zip("ab", forms, strict=True):
        rate = {"lr": options["lr"] * (factor if name == "b" else 1)}
        record = op_tools.OpRecord(output_dir=folder / name, level=level, jitter=int(name == "b"))

        def make(parameters, form=form, rate=rate):
            return method(parameters, **(options | rate), **FORMS[form])

        train("cpu", 2, blind_bias, square, make, record=record)
    return op_tools.compare_runs(folder / "a", folder / "b")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("forms", [("single", "foreach"), ("single", "fused"), ("foreach", "fused")])
def test_forms_of_an_optimizer_agree_and_a_wrong_step_does_not(forms, optimizer, level, tmp_path):
    comparison = recorded_forms(tmp_path / "right", level, optimizer, forms)
    assert comparison.agrees, comparison.table()
    first = recorded_forms(tmp_path / "wrong", level, optimizer, forms, factor=1.02).ranks[0].first
    assert first is not None and first.finding == "other numbers" and first.step == 0
    assert first.calls_a > 1 and first.calls_b > 1  # the step, and no call before it


@pytest.mark.parametrize("level", LEVELS)
def test_a_parameter_that_only_one_form_steps_is_named(level, tmp_path):
    for name, form, frozen in (("a", "single", False), ("b", "foreach", True)):
        record = op_tools.OpRecord(output_dir=tmp_path / name, level=level)

        def make(parameters, form=form, frozen=frozen):
            return torch.optim.SGD(parameters[2:] if frozen else parameters, lr=0.1, **FORMS[form])

        train("cpu", 1, mlp, square, make, record=record)
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None and first.tensor_a["name"] in ("Sequential.0.weight", "Sequential.0.bias")


class ByHand(nn.LayerNorm):
    """layer_norm as a formula; `unbiased`: a wrong formula."""

    unbiased = False

    def forward(self, x):
        spread = torch.rsqrt(x.var(-1, keepdim=True, unbiased=self.unbiased) + self.eps)
        return (x - x.mean(-1, keepdim=True)) * spread * self.weight + self.bias


class WrongByHand(ByHand):
    unbiased = True


class ByRoot(nn.LayerNorm):
    def forward(self, x):
        apart = x - x.mean(-1, keepdim=True)
        return apart / torch.sqrt((apart**2).mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_layer_norm_agrees_with_its_formula(optimizer, device, level, tmp_path):
    def compare(by_hand):
        folder = tmp_path / by_hand.__name__
        for name, on, norm in (("a", "cpu", nn.LayerNorm), ("b", device, by_hand)):

            def make(norm=norm):
                return [nn.Sequential(nn.Linear(8, 16), norm(16), nn.Tanh(), nn.Linear(16, 8))]

            record = op_tools.OpRecord(output_dir=folder / name, level=level, jitter=int(name == "b"))
            train(on, 2, make, square, optimizer, record=record)
        return op_tools.compare_runs(folder / "a", folder / "b")

    for right in (ByHand, ByRoot):
        comparison = compare(right)
        assert comparison.agrees, comparison.table()
    wrong = compare(WrongByHand)
    assert wrong.exit_status == 1


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_were_not_cleared_are_named(level, tmp_path):
    """B adds up the gradients of all steps: the engine's sums are no calls at the torch level."""
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    for name in "ab":
        torch.manual_seed(0)
        (net,) = mlp()
        method = torch.optim.Adagrad(net.parameters(), lr=0.03, foreach=name == "b")
        x = torch.randn(12, 6, 8)
        record = op_tools.OpRecord(output_dir=tmp_path / name, level=level)
        with record:
            for _ in range(2):
                if name == "a":
                    method.zero_grad()
                square(net(x)).backward()
                method.step()
                record.step()
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 1 and comparison.ranks[0].first.step == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1.01, 1.5])
@pytest.mark.parametrize("operator", ["aten::tanh_backward", "aten::mse_loss_backward", "aten::addmm"])
def test_a_scaled_result_is_named_where_it_was_made(operator, scale, level, tmp_path):
    def loss(y):
        return F.mse_loss(y, torch.zeros_like(y))

    with sim.fault("scale", ops=operator, scale=scale) as fault:
        first = compared(tmp_path, level, loss_a=loss, loss_b=loss).ranks[0].first
    assert fault.hits > 0 and first is not None
    named = operator.removeprefix("aten::").removesuffix("_backward")
    assert named in first.op or (operator == "aten::addmm" and "linear" in first.op)
    assert first.verdict == "born here"


@pytest.mark.parametrize("level", LEVELS)
def test_another_loss_of_the_same_gradients_differs_without_a_cause(level, tmp_path):
    """Each call that both runs make agrees, and nothing that they compute reads results of B alone."""
    torch.ones(1, requires_grad=True).sum().backward()
    for name, factor in (("a", 1.0), ("b", 2.0)):
        torch.manual_seed(0)
        (net,) = mlp()
        x, gradient = torch.randn(12, 6, 8), torch.tensor(1 / factor)
        with op_tools.OpRecord(output_dir=tmp_path / name, level=level):
            loss = square(net(x))
            (loss if factor == 1 else loss * factor).backward(gradient)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    first = comparison.ranks[0].first
    assert comparison.exit_status == 1 and not comparison.agrees
    assert first is not None and first.verdict == "differs, cause not found"
    assert first.finding == "another loss, gradient or parameter" and "mean" in first.op
    assert first.output_difference == pytest.approx(0.5, rel=1e-3)
    assert "differs, cause not found" in comparison.table()


class Renamed(nn.Sequential):
    """A root of another class: its parameters have other names."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("foreach", [False, True])
def test_roots_of_other_names_agree(foreach, level, tmp_path):
    for name, root, in_lists in (("a", nn.Sequential, False), ("b", Renamed, foreach)):
        record = op_tools.OpRecord(output_dir=tmp_path / name, level=level, jitter=int(name == "b"))

        def make(parameters, in_lists=in_lists):
            return torch.optim.Adam(parameters, lr=1e-2, foreach=in_lists)

        train("cpu", 2, lambda root=root: [root(*mlp()[0])], square, make, record=record)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.agrees, comparison.table()


@pytest.mark.parametrize("level", LEVELS)
def test_the_next_step_names_no_step_that_agreed(level, tmp_path):
    """A key's bias has gradients that are rounding alone, of which a step makes any sign: those who read it say no more."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out((q @ k.mT / 8**0.5).softmax(-1) @ v)

    def adagrad(parameters):
        return torch.optim.Adagrad(parameters, lr=0.03)  # lists of tensors on the device, single tensors on the CPU

    comparison = compared(tmp_path, level, make=lambda: [Attention()], optimizer=adagrad)
    assert comparison.agrees, comparison.table()


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor if self.factor != 1 else x


@pytest.mark.parametrize("level", LEVELS)
def test_a_running_mean_that_is_another_is_named_though_the_normalisation_hides_it(level, tmp_path):
    def normalised(factor):
        return lambda: [nn.Sequential(nn.Linear(8, 8), Scaled(factor), nn.BatchNorm1d(6), nn.Linear(8, 8))]

    for name, factor in (("a", 1), ("b", 0.5)):
        record = op_tools.OpRecord(output_dir=tmp_path / name, level=level)
        train("cpu" if name == "a" else "sim", 2, normalised(factor), square, sgd, record=record)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 1


def adam_of_single_tensors(parameters):
    return torch.optim.Adam(parameters, lr=1e-2, foreach=False)


@pytest.mark.parametrize("level", LEVELS)
def test_a_second_moment_with_a_wrong_element_is_named(level, tmp_path):
    """The gradient, whose square is added, is many times larger than the sum: it explains no difference of that size."""
    with sim.rounding(), sim.fault("element", ops="aten::addcmul_", call=1, scale=2.0):
        small = {"loss_a": lambda y: square(y) * 1e-4, "loss_b": lambda y: square(y) * 1e-4}
        first = compared(tmp_path, level, optimizer=adam_of_single_tensors, **small).ranks[0].first
    assert first is not None and first.op.endswith("addcmul_") and first.verdict == "born here"


@pytest.mark.parametrize("level", LEVELS)
def test_a_quotient_by_a_number_may_differ_no_more_than_its_dividend(level, tmp_path):
    """A dividend is no divisor: elements next to zero in it make no element of the quotient large."""

    def wide():
        return [nn.Sequential(nn.Linear(8, 256), nn.Tanh())]

    def of_means(y):
        return y.mean(1).square().mean()

    with sim.rounding(), sim.fault("scale", ops="aten::div.Tensor", call=1, scale=1.01):
        first = compared(tmp_path, level, make=wide, loss_a=of_means, loss_b=of_means).ranks[0].first
    assert first is not None and first.op in ("torch.Tensor.mean", "aten::div.Scalar", "aten::div.Tensor")
    assert first.verdict == "born here" and first.limit < 1e-3


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("optimizer", [adam, momentum])
@pytest.mark.parametrize("level", LEVELS)
def test_parameters_and_statistics_that_are_rounding_alone_are_no_fault(level, optimizer, tmp_path):
    """A normalisation's shift is a sum of zero behind it: its gradient is rounding, and its new value a step of that."""

    def normalised_twice():
        return [nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Mish())]

    with sim.rounding():
        comparison = compared(tmp_path, level, make=normalised_twice, optimizer=optimizer)
    assert comparison.agrees, comparison.table()


class ShiftedBehindNorms(nn.Module):
    def __init__(self, amount):
        super().__init__()
        self.norms = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6))
        self.linear = nn.Linear(8, 4)
        self.amount = amount

    def forward(self, x):
        return self.linear(self.norms(x) + self.amount)


@pytest.mark.parametrize("amount", [0.0, 0.01])
def test_a_running_mean_that_is_rounding_alone_explains_no_difference_behind_it(amount, tmp_path):
    """The second mean differs by nearly all of itself. A recording of modules does not see who adds to their results."""
    with sim.rounding():
        for name, on, shift in (("a", "cpu", 0.0), ("b", "sim", amount)):
            record = op_tools.OpRecord(output_dir=tmp_path / name, modules_only=True)
            train(on, 2, lambda shift=shift: [ShiftedBehindNorms(shift)], square, sgd, record=record)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    if amount == 0:
        assert comparison.agrees, comparison.table()
    else:
        first = comparison.ranks[0].first
        assert comparison.exit_status == 1 and first.module.endswith("linear") and first.step == 0


@contextlib.contextmanager
def kernel(op, function):
    """Of the simulated device, in the place of its own."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(op, function, "PrivateUse1")
        yield


def recorded(folder, level, program):
    torch.manual_seed(1)
    with op_tools.OpRecord(output_dir=folder, level=level):
        program()


def reads_numbers():
    x, y = torch.randn(2, 9, 4).to("sim")
    for _ in range(5):
        y = torch.tanh(x @ y.t() @ y)
        y.sum().item()
        torch.equal(x, y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("op", "wrong"), [("_local_scalar_dense", lambda x: 7.25), ("equal", lambda x, y: True)], ids=["item", "equal"]
)
def test_a_number_that_a_call_gives_to_the_program_is_a_result(op, wrong, level, tmp_path):
    recorded(tmp_path / "a", level, reads_numbers)
    with kernel(op, wrong):
        recorded(tmp_path / "b", level, reads_numbers)
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None and first.verdict == "born here"
    assert first.op.split(".")[-1].split("::")[-1] in (op, "item")


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_that_round_otherwise_agree(level, tmp_path):
    recorded(tmp_path / "a", level, reads_numbers)
    with sim.rounding():
        recorded(tmp_path / "b", level, reads_numbers)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    rows = comparison.ranks[0].rows
    assert comparison.exit_status == 0
    assert (
        sum(row.op in ("torch.Tensor.item", "aten::_local_scalar_dense", "torch.equal", "aten::equal") for row in rows)
        == 10
    )
    assert any(row.output_difference > 0 for row in rows)


def writes_a_part(read=lambda x: (x * 2).sum()):
    x = torch.randn(8, 4).to("sim") * 1
    x[:4].add_(torch.ones(4, 4, device="sim"))
    read(x)


def adds_beyond(x, other, alpha=1):
    x.copy_((x.cpu() + alpha * other.cpu()).to("sim"))
    x.as_strided((2,), (1,), x.storage_offset() + x.numel()).copy_(torch.full((2,), 9.0, device="sim"))
    return x


@pytest.mark.parametrize("level", LEVELS)
def test_memory_that_changes_between_calls_is_named_by_its_reader(level, tmp_path):
    recorded(tmp_path / "a", level, writes_a_part)
    with kernel("add_.Tensor", adds_beyond):
        recorded(tmp_path / "b", level, writes_a_part)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    first = comparison.ranks[0].first
    assert comparison.exit_status == 1
    assert (first.finding, first.verdict) == ("an input changed between calls", "born here")
    assert first.op in ("torch.Tensor.mul", "aten::mul.Tensor") and first.tensor_a["place"] == "args[0]"


def writes_a_row(read):
    x = torch.randn(8, 4).to("sim") * 1
    x[1].add_(torch.ones(4, device="sim"))
    read(x)


def selected_to_a_copy(x, dim, index):
    return x.cpu().select(dim, index).clone().to("sim")


MOVES = ("torch.Tensor.cpu", "aten::_to_copy")
WRONG_WRITES = [(writes_a_part, "add_.Tensor", adds_beyond), (writes_a_row, "select.int", selected_to_a_copy)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("writes", "op", "function"), WRONG_WRITES, ids=["beyond", "lost"])
def test_memory_that_a_program_only_copies_to_the_host_is_compared(writes, op, function, level, tmp_path):
    def program():
        for _ in range(3):
            writes(torch.Tensor.cpu)

    for folder in "a", "same":
        recorded(tmp_path / folder, level, program)
    with kernel(op, function):
        recorded(tmp_path / "b", level, program)
    assert op_tools.compare_runs(tmp_path / "a", tmp_path / "same").agrees
    for paths in ("a", "b"), ("b", "a"):
        comparison = op_tools.compare_runs(*(tmp_path / path for path in paths))
        first = comparison.ranks[0].first
        assert comparison.exit_status == 1 and first.verdict == "born here" and first.op in MOVES
        assert first.tensor_a["place"] == "args[0]"


@pytest.mark.parametrize("level", LEVELS)
def test_moves_of_the_programs_own_data_have_no_rows(level, tmp_path):
    def program():
        for _ in range(3):
            torch.rand(8, 4).to("sim").cpu()

    for folder in "a", "b":
        recorded(tmp_path / folder, level, program)
    assert all(row.op not in MOVES for row in op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].rows)


@pytest.mark.parametrize("read", [lambda x: (x * 2).sum(), torch.Tensor.cpu], ids=["mul", "cpu"])
@pytest.mark.parametrize(("writes", "op", "function"), WRONG_WRITES, ids=["beyond", "lost"])
@pytest.mark.parametrize("sick", [0, 2])
@pytest.mark.parametrize("level", LEVELS)
def test_memory_that_changes_between_calls_makes_a_rank_odd(
    sick, writes, op, function, level, read, tmp_path, monkeypatch
):
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        wrong = kernel(op, function) if rank == sick else contextlib.nullcontext()
        with wrong:
            recorded(tmp_path, level, lambda: writes(read))
    many = op_tools.compare_many([tmp_path])
    (odd,) = many.rows
    assert many.exit_status == 1
    assert (odd.rank, odd.finding, odd.others) == (sick, "an input changed between calls", 3)
    assert odd.op in ("torch.Tensor.mul", "aten::mul.Tensor", *MOVES)


@pytest.mark.parametrize("level", LEVELS)
def test_a_buffer_with_data_of_each_rank_makes_no_rank_odd(level, tmp_path, monkeypatch):
    def program():
        buffer = torch.zeros(8, 4).to("sim")
        for _ in range(2):
            buffer[:4].copy_(data)
            torch.tanh(buffer).sum()

    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        data = torch.full((4, 4), float(rank)).to("sim")
        recorded(tmp_path, level, program)
    assert not op_tools.compare_many([tmp_path]).rows


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_write_of_a_part_is_named_and_not_its_reader(level, tmp_path):
    recorded(tmp_path / "a", level, writes_a_part)
    with sim.fault("scale", ops="aten::add_.Tensor", scale=1.1):
        recorded(tmp_path / "b", level, writes_a_part)
    rank = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0]
    assert rank.first.op in ("torch.Tensor.add_", "aten::add_.Tensor")
    assert sum(row.verdict == "born here" for row in rank.rows) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_parts_that_are_written_with_other_rounding_agree(level, tmp_path):
    def fills_a_cache():
        cache = torch.zeros(12, 16).to("sim")
        weights = torch.randn(16, 16).to("sim")
        x = torch.randn(3, 16).to("sim")
        for place in range(0, 12, 3):
            x = torch.tanh(x @ weights)
            cache[place : place + 3] = x
            cache[place : place + 3].mul_(0.5)
            (cache[: place + 3] @ weights).softmax(-1)
        cache.sum()

    recorded(tmp_path / "a", level, fills_a_cache)
    with sim.rounding():
        recorded(tmp_path / "b", level, fills_a_cache)
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 0, comparison.table()


@pytest.mark.parametrize("level", LEVELS)
def test_a_replica_whose_loss_is_another_call_is_odd(level, tmp_path):
    """Its gradients differ from the start, which have names as parameters do."""

    def distance(reduction):
        return lambda y: F.l1_loss(y, torch.zeros_like(y), reduction=reduction)

    for rank, reduction in enumerate(("mean", "mean", "sum")):
        record = op_tools.OpRecord(output_dir=tmp_path / str(rank), level=level)
        train("cpu", 2, mlp, distance(reduction), sgd, record=record)
    many = op_tools.compare_many([tmp_path / str(rank) for rank in range(3)])
    (odd,) = many.rows
    assert (Path(odd.run).parent.name, odd.finding, many.exit_status) == ("2", "a parameter is another tensor", 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("op", "wrong", "program"),
    [
        ("log", lambda x: x.cpu().log().abs().to("sim"), lambda: torch.zeros(4, device="sim").log()),
        (
            "add.Tensor",
            lambda x, y, alpha=1: (x.cpu().double() + y.cpu()).long().to("sim"),
            lambda: torch.tensor([2**60 + 1, 5]).to("sim") + torch.tensor([2, 3]).to("sim"),
        ),
        (
            "bitwise_xor.Tensor",
            lambda x, y: (x.cpu() ^ y.cpu() ^ 1).to("sim"),
            lambda: torch.tensor([2**60, 2**61]).to("sim") ^ torch.tensor([5, 6]).to("sim"),
        ),
    ],
    ids=["infinities", "sum", "xor"],
)
def test_infinities_of_the_other_sign_and_the_last_bit_of_integers_are_compared(op, wrong, program, level, tmp_path):
    def three_times():
        for _ in range(3):
            program()

    recorded(tmp_path / "a", level, three_times)
    recorded(tmp_path / "same", level, three_times)
    with kernel(op, wrong):
        recorded(tmp_path / "b", level, three_times)
    assert op_tools.compare_runs(tmp_path / "a", tmp_path / "same").exit_status == 0
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None and op.split(".")[0] in first.op.replace("__xor__", "bitwise_xor")


@pytest.mark.parametrize("level", LEVELS)
def test_another_dtype_is_said(level, tmp_path):
    x = torch.arange(4.0).to("sim")
    recorded(tmp_path / "a", level, lambda: [x.exp() for _ in range(3)])
    with kernel("exp", lambda y: y.cpu().exp().double().to("sim")):
        recorded(tmp_path / "b", level, lambda: [x.exp() for _ in range(3)])
    table = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").table()
    assert "3 of them have results of another dtype in B, the first: " in table


@pytest.mark.parametrize("level", LEVELS)
def test_another_dtype_is_said_of_ranks_that_agree(level, tmp_path, monkeypatch):
    x = torch.arange(4.0).to("sim")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        recorded(tmp_path / "a", level, lambda: x.exp())
        wrong = kernel("exp", lambda y: y.cpu().exp().bfloat16().to("sim")) if rank else contextlib.nullcontext()
        with wrong:
            recorded(tmp_path / "b", level, lambda: x.exp())
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 0
    assert "ranks 1, 2: 1 of them have results of another dtype in B, the first: " in comparison.table()
    assert [rank.other_dtypes for rank in comparison.ranks] == [0, 1, 1]
    assert [row.other for row in comparison.rows if row.other] == [["dtype"], ["dtype"]]
    *_, summary = comparison.records()
    assert (summary["kind"], summary["other_dtypes"]) == ("summary", 2)


def recorded_step(folder, level, form, *, built_inside, without=None, steps=2):
    """Training on the device; in its last step the parameters of the module number `without` get no gradient."""
    torch.manual_seed(0)

    def built():
        net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to("sim")
        return net, torch.optim.SGD(net.parameters(), lr=0.1, foreach=form == "foreach")

    model = None if built_inside else built()
    with op_tools.OpRecord(output_dir=folder, level=level) as record:
        net, method = model or built()
        for step in range(steps):
            method.zero_grad()
            net(torch.ones(4, 6, device="sim")).square().mean().backward()
            if without is not None and step == steps - 1:
                for parameter in net[without].parameters():
                    parameter.grad = None
            method.step()
            record.step()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", ["single", "foreach"])
@pytest.mark.parametrize("built_inside", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_parameters_that_one_run_leaves_in_the_last_step_are_named(steps, built_inside, form, level, tmp_path):
    """Also where models have no names for them: calls of the recording made their memory."""
    for name, without in (("a", None), ("again", None), ("b", 1)):
        recorded_step(tmp_path / name, level, form, built_inside=built_inside, without=without, steps=steps)
    again = op_tools.compare_runs(tmp_path / "a", tmp_path / "again")
    assert again.exit_status == 0, again.table()
    for runs in ("ab", "ba"):
        comparison = op_tools.compare_runs(*(tmp_path / name for name in runs))
        assert comparison.exit_status == 1, comparison.table()
        assert comparison.ranks[0].first.step == steps - 1 and "add" in comparison.ranks[0].first.op


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_leaves_all_parameters_is_named(level, tmp_path):
    for name, rate in (("a", 0.1), ("b", None)):
        torch.manual_seed(0)
        with op_tools.OpRecord(output_dir=tmp_path / name, level=level):
            net = nn.Linear(6, 1).to("sim")
            net(torch.ones(4, 6, device="sim")).square().mean().backward()
            if rate:
                torch.optim.SGD(net.parameters(), lr=rate).step()
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 1, comparison.table()
    first = comparison.ranks[0].first
    assert first.verdict == "differs, cause not found" and first.finding == "another loss, gradient or parameter"


READERS = {
    "numpy": lambda y: y.cpu().numpy().sum(),
    "tolist": lambda y: y.tolist(),
    "print": lambda y: str(y.cpu()),
    "nothing": lambda y: y.cpu(),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reader", list(READERS))
def test_a_copy_to_the_host_with_other_elements_is_named_whatever_reads_it(reader, level, tmp_path):
    x = torch.linspace(-1, 1, 24).reshape(4, 6).to("sim")
    for name in ("a", "again", "b"):
        wrong = sim.fault("scale", ops="_copy_from|_to_copy", scale=2) if name == "b" else contextlib.nullcontext()
        with op_tools.OpRecord(output_dir=tmp_path / name, level=level):
            y = x.relu()
            with wrong:
                READERS[reader](y)
    assert op_tools.compare_runs(tmp_path / "a", tmp_path / "again").exit_status == 0
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 1, comparison.table()
    first = comparison.ranks[0].first
    if reader in ("numpy", "nothing"):  # the others are calls that give the numbers
        assert (first.verdict, first.finding) == ("only in B", "other numbers") and first.output_difference > 0.1
    mirrored = op_tools.compare_runs(tmp_path / "b", tmp_path / "a").ranks[0].first
    assert mirrored is not None and mirrored.op == first.op


@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_to_the_device_with_other_elements_is_named_though_nothing_reads_it(level, tmp_path):
    for name in ("a", "b"):
        wrong = sim.fault("scale", ops="_copy_from|_to_copy", scale=2) if name == "b" else contextlib.nullcontext()
        with op_tools.OpRecord(output_dir=tmp_path / name, level=level), wrong:
            torch.full((3,), 4.0).to("sim")
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None and (first.verdict, first.finding) == ("only in B", "other numbers")


@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_of_memory_that_was_never_written_is_no_difference(level, tmp_path):
    for number, name in enumerate("ab"):
        torch.full((1 << 10,), float(number))  # freed: the next tensor may have its bytes
        with op_tools.OpRecord(output_dir=tmp_path / name, level=level):
            whole = torch.empty(1 << 10)
            whole.to("sim").cpu().numpy()
            whole[:10] = 1.0
            whole.to("sim")
            torch.ones(3, device="sim").relu()
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.agrees, comparison.table()
