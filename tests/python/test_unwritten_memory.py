"""Memory of torch.empty that is filled part by part: its other elements are nobody's fault, and its written elements are looked at."""

import op_tools.sim_device  # isort: skip  (before the first backward pass)
import contextlib
import ctypes

import pytest
import torch
from torch.library import _scoped_library

import op_tools

LEVELS = ["torch", "aten"]
DEVICES = ["cpu", "sim"]
NAN = 0xFF
ROWS, COLUMNS = 8, 16


def soiled(memory, byte):
    """Memory in which the allocator left these bytes; no call writes them."""
    ctypes.memset(memory.data_ptr(), byte, memory.nbytes)
    return memory


def rows(out, x):
    for i in range(ROWS):
        out[i] = x[i] * 2


def halves(out, x):
    out[:4] = x[:4].relu()
    out[:4] + 1
    out[4:] = x[4:].sigmoid()


def selected(out, x):
    for i in range(ROWS):
        out[i].copy_(x[i])


def indexed(out, x):
    out[torch.tensor([0, 2, 4, 6], device=x.device)] = x[::2]
    out[1::2] = x[1::2]


def out_arguments(out, x):
    torch.mul(x[:4], 2, out=out[:4])
    torch.mul(x[4:], 2, out=out[4:])


def columns(out, x):
    out[:, :8] = x[:, :8]
    out[..., 8:] = x[:, 8:].exp()


def narrowed(out, x):
    out.narrow(0, 0, 4).fill_(1)
    out.narrow(0, 4, 4).zero_()


def copied_rows(out, x):
    out.index_copy_(0, torch.tensor([0, 1], device=x.device), x[:2])
    out[:2] + 1


def filled_rows(out, x):
    out.index_fill_(0, torch.tensor([1], device=x.device), 2.0)
    out[1] + 1


def put_rows(out, x):
    out.index_put_((torch.tensor([0, 1], device=x.device),), x[:2])
    out[:2] + 1


def scattered(out, x):
    out.scatter_(0, torch.zeros(1, COLUMNS, dtype=torch.int64, device=x.device), 1.0)
    out[:1] + 1


def masked(out, x):
    mask = torch.tensor([True, False] * (ROWS // 2), device=x.device)[:, None]
    out.masked_fill_(mask, 3.0)
    out[::2] + 1
    out[mask[:, 0]] = 4.0
    out[0] + 1


def diagonal(out, x):
    out.fill_diagonal_(1.0)
    out.diagonal() + x[0, :8]


def grown(out, x):
    """The elements of an older buffer that is itself not full."""
    out[:2] = x[:2]
    larger = soiled(torch.empty(2 * ROWS, COLUMNS, device=x.device), soil)
    larger[:ROWS] = out
    larger[:2] + 1
    larger[2] = x[2]
    larger[:3] + 1


def of_pairs(out, x):
    pairs = soiled(torch.empty(ROWS, 2, device=x.device, dtype=torch.complex64), soil)
    pairs[0] = torch.complex(x[0, :2], x[1, :2])
    pairs[0] + 1


soil = 0
FILLS = [
    rows,
    halves,
    selected,
    indexed,
    out_arguments,
    columns,
    narrowed,
    copied_rows,
    filled_rows,
    put_rows,
    scattered,
]
FILLS += [masked, diagonal, grown, of_pairs]
WHOLE = {rows, halves, selected, indexed, out_arguments, columns, narrowed}


def program(fill, device, byte):
    global soil
    soil = byte
    torch.manual_seed(0)
    for _ in range(2):
        x = torch.randn(ROWS, COLUMNS).to(device)
        out = soiled(torch.empty(ROWS, COLUMNS, device=device), byte)
        fill(out, x)
        if fill in WHOLE:
            out.sum().item()


def recorded(folder, level, work):
    with op_tools.OpRecord(output_dir=folder, level=level):
        work()


def compared(folder, level, first, second):
    recorded(folder / "a", level, first)
    recorded(folder / "b", level, second)
    return op_tools.compare_runs(folder / "a", folder / "b")


def checked(level, work):
    with op_tools.OpOverflowCheck(level=level) as check:
        work()
    return check.result()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fill", FILLS)
def test_runs_agree_whatever_the_rest_of_the_memory_holds(fill, device, level, tmp_path):
    comparison = compared(tmp_path, level, lambda: program(fill, device, 0x41), lambda: program(fill, device, 0xC2))
    assert [(row.op, row.finding) for row in comparison.ranks[0].rows if row.verdict == "born here"] == []
    assert comparison.exit_status == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fill", FILLS)
def test_a_nan_in_the_rest_of_the_memory_is_no_finding(fill, device, level):
    result = checked(level, lambda: program(fill, device, NAN))
    assert [(row.kind, row.op) for row in result.rows] == []
    assert result.verdict.value == "agrees" and result.came_in == 0


@contextlib.contextmanager
def kernel(op, function):
    with _scoped_library("aten", "IMPL") as library:
        library.impl(op, function, "PrivateUse1")
        yield


def wrong_row(factor):
    """index_copy_ of a device, with a wrong row."""

    def index_copy_(memory, dim, index, source):
        values = source.cpu().clone()
        values[0] *= factor
        for i, row in zip(index.tolist(), values):
            memory.select(dim, i).copy_(row)
        return memory

    return kernel("index_copy_", index_copy_)


def one_row(byte):
    def work():
        out = soiled(torch.empty(ROWS, COLUMNS, device="sim"), byte)
        x = torch.ones(2, COLUMNS).to("sim")
        out.index_copy_(0, torch.tensor([3, 5], device="sim"), x)
        out[3] + 1

    return work


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_row_of_memory_that_is_not_full_is_named(level, tmp_path):
    recorded(tmp_path / "a", level, one_row(0x41))
    with wrong_row(1.5):
        recorded(tmp_path / "b", level, one_row(0xC2))
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.exit_status == 1
    assert comparison.ranks[0].first.op.endswith("index_copy_")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("byte", [0, NAN])
def test_a_nan_in_a_row_of_memory_that_is_not_full_has_its_producer(byte, level):
    with wrong_row(float("nan")):
        result = checked(level, one_row(byte))
    producer = [row for row in result.rows if row.kind == "producer"]
    assert [row.op.split(".")[-1].split(":")[-1] for row in producer] == ["index_copy_"]
    assert (producer[0].nan, producer[0].first) == (COLUMNS, [3, 0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
def test_results_computed_from_the_rest_are_not_judged(device, level, tmp_path):
    def work(byte):
        out = soiled(torch.empty(ROWS, COLUMNS, device=device), byte)
        out[:4] = 1.0
        rest = out[4:] * 2
        whole = out.sum()
        torch.zeros(ROWS, COLUMNS, device=device).copy_(out)
        return rest, whole

    comparison = compared(tmp_path, level, lambda: work(0x41), lambda: work(0xC2))
    assert comparison.exit_status != 1
    verdicts = {row.op: row.verdict for row in comparison.ranks[0].rows}
    assert {verdict for op, verdict in verdicts.items() if "mul" in op or "sum" in op} == {"not compared"}
    result = checked(level, lambda: work(NAN))
    assert result.producers == 0 and result.verdict.value == "not judged" and result.came_in > 0


class Twice:
    """An index that only Python knows."""

    def __index__(self):
        return 2


@pytest.mark.parametrize("device", DEVICES)
def test_where_nobody_can_tell_which_elements_were_written_nothing_is_said(device, tmp_path):
    def work(byte):
        out = soiled(torch.empty(ROWS, COLUMNS, device=device), byte)
        out[Twice()] = 1.0
        return out + 1

    comparison = compared(tmp_path, "torch", lambda: work(0x41), lambda: work(0xC2))
    assert comparison.exit_status != 1
    assert checked("torch", lambda: work(NAN)).producers == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_the_program_gives_did_not_come_in(value, device, level):
    def work():
        filled = torch.full((10,), value, device=device)
        filled[:5] = 1.0
        filled[5:] + 1
        if device == "cpu" and level == "aten":
            return  # there the number of an assignment comes as a tensor that no operator makes
        x = torch.ones(4, device=device)
        x[1] = value
        x[1:3] = value
        x + 1

    result = checked(level, work)
    assert result.producers == 0 and result.came_in == 0 and result.verdict.value == "agrees"


@pytest.mark.parametrize("level", LEVELS)
def test_a_view_hands_its_producers_value_to_its_base(level):
    def work():
        x = torch.ones(4, device="sim")
        x[1:3] = torch.log(torch.zeros(2, device="sim") - 1)
        x + 1

    result = checked(level, work)
    assert [row.op.split(".")[-1].split(":")[-1] for row in result.rows if row.kind == "producer"] == ["log"]
    assert result.came_in == 0
