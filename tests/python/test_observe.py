"""OpObserve: the calls of a program, their values, and which shapes vary."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim  # before the first backward() of the process

LEVELS = ["torch", "aten"]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BITS = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*FLOATS, *EIGHT_BITS, *COMPLEX, *INTEGERS, torch.bool]
INF = math.inf


def observed(function, **options):
    """(result, rows of the file)"""
    with op_tools.OpObserve(**options) as observe:
        function()
    result = observe.result()
    file = Path(result.root) / "calls.jsonl" if result.root else None
    return result, [json.loads(line) for line in file.read_text().splitlines()] if file else []


def statistics(tensor):
    """Those of a tensor, as a row has them."""
    _, rows = observed(lambda: torch.clone(tensor), ops="torch.clone")
    (row,) = rows
    return row["args"][0]


def sample(dtype, shape, special):
    """A tensor of the dtype with some zeros, and with NaN and infinities where it has them."""
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * 20
    flat = numbers.view(-1)
    flat[::7] = 0
    if special and flat.numel() > 4:
        flat[1], flat[2], flat[3] = math.nan, INF, -INF
    if dtype == torch.bool:
        return flat.nan_to_num().view(shape) > 0
    if dtype in INTEGERS:
        signed = not str(dtype).startswith("torch.uint")
        whole = flat.nan_to_num(0, 0, 0).round()
        return (whole if signed else whole.abs()).view(shape).to(torch.int64).to(dtype)
    if dtype in COMPLEX:
        return torch.complex(numbers, numbers.flip(0)).to(dtype)
    return numbers.to(torch.float32).to(dtype)


def wide(tensor):
    """Exactly the same numbers in a dtype for which torch has every operator."""
    if tensor.dtype in EIGHT_BITS:
        return tensor.float().double()
    if tensor.dtype == torch.uint64:
        return tensor.to(torch.int64).double()  # samples are small
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def same(number, expected):
    """A number of a row, and a number of torch's."""
    number = {"nan": math.nan, "inf": INF, "-inf": -INF}.get(number, number)
    return number == expected or (math.isnan(number) and math.isnan(expected))


def near(number, expected, scale):
    return same(number, expected) or abs(float(number) - expected) <= 1e-12 * scale


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_are_torchs_own(dtype, device, special):
    plain = sample(dtype, (13, 1100), special)
    row = statistics(plain.to(device))
    numbers = wide(plain)
    sizes = numbers.abs()
    ordered = sizes if numbers.is_complex() else numbers
    assert same(row["min"], ordered.min().item())
    assert same(row["max"], ordered.max().item())
    assert near(row["mean"], ordered.mean().item(), sizes.mean().item())
    norm = torch.linalg.vector_norm(numbers).item()
    assert near(row["norm"], norm, norm)
    assert row["nan"] == torch.isnan(numbers).sum()
    assert row["inf"] == torch.isinf(numbers).sum()
    assert row["zero"] == (numbers == 0).sum()
    assert (row["shape"], row["dtype"]) == ([13, 1100], str(dtype))
    if special and dtype in FLOATS:
        assert row["nan"] == 1 and row["inf"] == 2 and row["min"] == "nan"
    # The kind of the number is that of the elements.
    kinds = bool if dtype == torch.bool else int if dtype in INTEGERS else (float, str)
    assert isinstance(row["max"], kinds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_equal_to_the_last_bit_in_the_dtype_itself(dtype):
    x = torch.randn(100_000, dtype=dtype)
    row = statistics(x)
    assert (row["min"], row["max"]) == (x.min().item(), x.max().item())


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_hash_is_the_same_for_all_strides_and_devices(dtype, device):
    x = sample(dtype, (6, 10), True)
    expected = statistics(x)["hash"]
    assert len(expected) == 16
    spread = torch.empty(10, 12, dtype=dtype).copy_(torch.cat([x, x]).t())[:, :6].t()
    assert spread.stride() != x.stride()
    assert statistics(spread.to(device))["hash"] == expected
    assert statistics(spread)["stride"] == list(spread.stride())
    assert statistics(x.to(device)[:, :9])["hash"] != expected
    if dtype != torch.bool:
        changed = x.clone()
        changed.view(torch.uint8)[5, 3] ^= 1
        assert statistics(changed.to(device))["hash"] != expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_hash_of_a_part_is_the_devices_as_well(dtype):
    """Words of eight bytes and chunks of 512: parts that begin within a chunk, and that do not fill the last."""
    x = sample(dtype, (1100,), False)
    for begin, end in [(0, 1), (0, 7), (1, 9), (3, 40), (5, 5 + 8), (8, 39), (0, 64), (0, 512), (1, 513), (7, 1100)]:
        expected = statistics(x[begin:end].clone())["hash"]
        assert statistics(x[begin:end])["hash"] == expected
        assert statistics(x.to("sim")[begin:end])["hash"] == expected


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_statistics_of_parts_and_of_nothing(dtype, device):
    whole = sample(dtype, (30, 40), False)
    for part in (whole[::3, 1::2], whole.t(), whole[4], whole[:, :1].expand(30, 5), whole[2, 2]):
        row, numbers = statistics(part.to(device)), wide(part)
        ordered = numbers.abs() if numbers.is_complex() else numbers
        assert same(row["max"], ordered.max().item())
        assert near(row["mean"], ordered.mean().item(), ordered.abs().mean().item())
        assert row["zero"] == (numbers == 0).sum()
    empty = statistics(whole[:0].to(device))
    assert empty["shape"] == [0, 40]
    assert (empty["min"], empty["max"], empty["mean"], empty["norm"], empty["zero"]) == (None, None, None, 0, 0)


def test_large_whole_numbers_are_exact():
    for device in ("cpu", "sim"):
        row = statistics(torch.tensor([2**63 - 1, 5, -(2**63)], device=device))
        assert (row["min"], row["max"]) == (-(2**63), 2**63 - 1)
        unsigned = torch.tensor([2**64 - 1, 7], dtype=torch.uint64).to(device)
        assert (statistics(unsigned)["min"], statistics(unsigned)["max"]) == (7, str(2**64 - 1))


def test_lazy_conjugation_and_negation_are_looked_through():
    x = torch.randn(5, 4, dtype=torch.complex64)
    assert statistics(x.conj())["hash"] == statistics(x.conj().resolve_conj())["hash"]
    assert statistics(x.conj().imag)["min"] == x.conj().imag.resolve_neg().min().item()


def test_what_has_no_numbers_is_described_all_the_same():
    _, rows = observed(lambda: torch.clone(torch.eye(3).to_sparse()), ops="torch.clone")
    assert rows[0]["args"][0]["layout"] == "torch.sparse_coo"
    assert "hash" not in rows[0]["args"][0]
    with op_tools.OpObserve() as observe:
        torch.ones(2, device="meta") + 1
    assert observe.result().calls >= 1


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_the_calls_in_order_with_their_arguments(level):
    x = torch.ones(2, 3, requires_grad=True)

    def program():
        y = torch.add(x, 2, alpha=3)
        y.sum().backward()

    result, rows = observed(program, level=level, steps=[0])
    first = rows[0]
    assert first["op"] == ("torch.add" if level == "torch" else "aten::add.Tensor")
    assert 3 in [*first["args"], *first["kwargs"].values()]  # alpha
    assert first["args"][0]["requires_grad"] is True
    assert first["result"]["mean"] == 7
    assert Path(first["line"].split(":")[0]).name == "test_observe.py"
    assert result.written == len(rows) == result.calls
    if level == "torch":
        assert ("torch.add", "backward") in {(row["op"], row["phase"]) for row in rows}
    assert "op_observe_result" in result.root


@pytest.mark.parametrize("level", LEVELS)
def test_rows_name_the_module_forward_and_backward(level):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    _, rows = observed(lambda: model(torch.ones(1, 2)).sum().backward(), level=level)
    tanh = {row["phase"]: row["module"] for row in rows if "tanh" in row["op"]}
    assert tanh == {"forward": "Sequential.1", "backward": "Sequential.1"}
    assert [row["module"] for row in rows if "sum" in row["op"] and row["phase"] == "forward"] == [None]


def test_a_call_that_raised_is_a_row_with_its_error():
    def program():
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    _, rows = observed(program, ops="torch.mm")
    assert "shapes cannot be multiplied" in rows[0]["error"]
    assert rows[0]["result"] is None


@pytest.mark.parametrize("level", LEVELS)
def test_a_device_is_read_once_a_step(level):
    x = torch.ones(4, 4).to("sim")
    with op_tools.OpObserve(level=level) as observe:
        for _ in range(3):
            for _ in range(5):
                torch.mul(x, 2).add_(1)
            observe.step()
        assert observe.result().read_backs == 3
        torch.mul(x, 3)
    result = observe.result()
    assert result.read_backs == 4
    rows = [json.loads(line) for line in (Path(result.root) / "calls.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    values = [row["result"]["max"] for row in rows if "add_" in row["op"]]
    assert values == [3] * 15
    assert rows[-1]["result"]["max"] == 3


def test_a_device_that_refused_statistics_is_asked_again_in_the_next_run():
    x = torch.ones(8, 4, device="sim")

    def read_backs():
        with op_tools.OpObserve(level="aten", lines=False) as tool:
            for _ in range(4):
                torch.neg(x)
        rows = [json.loads(line) for line in (Path(tool.result().root) / "calls.jsonl").read_text().splitlines()]
        assert [row["result"]["norm"] for row in rows] == [pytest.approx(32**0.5)] * 4
        return tool.result().read_backs

    with sim.fault("exception", ops="sum"):
        assert read_backs() == 0
    assert read_backs() == 1  # the first tensors are compared with the host's at once


def test_dipus_variable_sets_the_detail_and_prints(monkeypatch, capfd):
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "info")
    op_tools._C.reload_log_level()
    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "2")
    _, rows = observed(lambda: torch.neg(torch.ones(3)), ops="torch.neg")
    assert "hash" not in rows[0]["args"][0]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "OpObserveHook: torch.neg" in line]
    assert '"shape":[3]' in line
    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "0")
    result, rows = observed(lambda: torch.neg(torch.ones(3)), ops="torch.neg")
    assert rows == [] and result.calls == 1 and result.root == ""
    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "many")
    with pytest.raises(op_tools.Error, match="DIPU_DUMP_OP_ARGS"):
        op_tools.OpObserve().start()
    monkeypatch.delenv("OP_TOOLS_LOG_LEVEL")
    op_tools._C.reload_log_level()


class TextModel(torch.nn.Module):
    """A batch of sentences of the same length; the next batch has another."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)
        self.mix = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, batch):
        x = F.relu(self.mix(self.words(batch)))
        return self.head(x.mean(1))


@pytest.mark.parametrize("level", LEVELS)
def test_dynamic_shapes_of_a_text_batch_are_found(level):
    torch.manual_seed(0)
    model = TextModel()
    lengths = [5, 9, 7, 5]
    with op_tools.OpObserve(level=level, detail=0) as observe:
        for length in lengths:
            model(torch.randint(50, (4, length))).sum().backward()
    result = observe.result()
    embedding = "torch.nn.functional.embedding" if level == "torch" else "aten::embedding"
    varying = [one for one in result.varying if one.op == embedding and one.phase == "forward"]
    # The words' indices and their vectors vary in dimension 1; the batch and the table of words do not.
    indices = 0 if level == "torch" else 1
    forward = {(one.of, one.tensor, one.dimension): one for one in varying}
    assert set(forward) == {("input", indices, 1), ("output", 0, 1)}
    assert forward["output", 0, 1].sizes == [5, 7, 9]
    assert forward["output", 0, 1].calls == len(lengths)
    assert Path(forward["output", 0, 1].line.split(":")[0]).name == "test_observe.py"
    # The head is a linear, too, as mix is: met with other shapes, but always the same ones.
    linear = "torch.nn.functional.linear" if level == "torch" else "aten::addmm"
    lines = {one.line for one in result.varying if one.op == linear and one.phase == "forward"}
    assert len(lines) == 1
    assert embedding in result.dynamic_ops
    table = result.table(row_limit=-1)
    marked = [line for line in table.splitlines() if line.startswith(embedding + " ")]
    assert len([line for line in marked if line.endswith("dynamic")]) >= 3
    by_op = result.table(by="op")
    (line,) = [line for line in by_op.splitlines() if line.startswith(embedding + " ") and " forward " in line]
    assert "dim 1: 5, 7, 9" in line or "..." in line
    with pytest.raises(op_tools.Error, match="by="):
        result.table(by="colour")


def test_a_model_with_fixed_shapes_has_none():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with op_tools.OpObserve(detail=0) as observe:
        for _ in range(3):
            first = model[0](torch.ones(5, 4))
            second = model[2](model[1](first))
            second.sum().backward()
    assert observe.result().varying == []
    assert "dynamic" not in observe.result().table()


@pytest.mark.parametrize("level", LEVELS)
def test_the_table_is_live_and_counts_every_call(level):
    with op_tools.OpObserve(level=level, ops="relu" if level == "aten" else "torch.relu") as observe:
        for _ in range(3):
            torch.relu(torch.ones(2, 5))
        (row,) = observe.result().rows
        torch.relu(torch.ones(2, 5, dtype=torch.float64))
    assert row.calls == 3
    assert str(row.inputs[0]) == "float32[2, 5]"
    assert sum(row.calls for row in observe.result().rows) == 4
    assert "float64[2, 5]" in observe.result().table()


@pytest.mark.parametrize("level", LEVELS)
def test_values_are_those_of_now_whatever_wrote_them(level):
    """Known tensors are read again: some writes move no counter of versions."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(40, 30, generator=generator)
    views = [x, x.view(-1), x.t(), x[3:], x.detach(), x.view(1200, 1)]
    writes = [
        lambda place: x.numpy().__setitem__(place, 7.5),
        lambda place: x.data[place].add_(1),
        lambda place: x[place].mul_(-3),
        lambda place: x.view(torch.int32)[place].zero_(),
        lambda place: None,
    ]
    expected = []

    def program():
        for turn in torch.randint(0, len(views) * len(writes), (120,), generator=generator).tolist():
            view = views[turn % len(views)]
            writes[turn // len(views)]((turn % 40, turn % 30))
            expected.append((view.min().item(), view.max().item(), view.double().mean().item()))
            torch.abs(view)

    _, rows = observed(program, level=level, ops="torch.abs" if level == "torch" else "aten::abs")
    assert len(rows) == len(expected)
    for row, (least, most, mean) in zip(rows, expected, strict=True):
        tensor = row["args"][0]
        assert (tensor["min"], tensor["max"]) == (least, most)
        assert near(tensor["mean"], mean, 10)
        assert row["result"]["max"] == max(-least, most)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_program_computes_the_same_under_it(level, device):
    def gradients():
        torch.manual_seed(3)
        model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device)
        model(torch.randn(2, 4, 8).to(device)).square().mean().backward()
        return [parameter.grad.cpu() for parameter in model.parameters()] + [torch.rand(1)]

    plain = gradients()
    with op_tools.OpObserve(level=level):
        tooled = gradients()
    assert all(torch.equal(one, other) for one, other in zip(plain, tooled, strict=True))
