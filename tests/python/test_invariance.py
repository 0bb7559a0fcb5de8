"""OpInvariance: faults are named with their relation, nothing is named without one, and the program stays as it is.

tests/proofs/invariance_faults.py does it at length. The table of batches (src/hooks/batch_form.cpp) is proven here: in float64, on torch's
own samples, rows in another batch differ by no more than rounding."""

import contextlib
import csv
import functools
import json
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import op_tools
import op_tools.run_op_from_data
import op_tools.sim_device as sim
from op_tools.__main__ import main as command
from op_tools._base.verdict import Verdict
from op_tools._report.scan import read_parts
from op_tools._tools.launch import environment, status_of_tools
from op_tools.repro import Plan, make
from op_tools.repro._relation import write_relation
from op_tools.repro._saved import read_saved

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "proofs"))
import invariance_faults  # noqa: E402


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "off")
    monkeypatch.setenv("OP_TOOLS_OUTPUT_DIR", str(tmp_path))
    op_tools._C.reload_log_level()
    yield
    sim.faults_clear()
    monkeypatch.undo()
    op_tools._C.reload_log_level()


RELATIONS = (
    "repeat",
    "memory",
    "threads",
    "stream",
    "neighbour",
    "batch",
    "position",
    "strides",
    "shift",
    "sequence",
    "padding",
    "pieces",
    "packed",
)


def gates(rows=6, device="sim"):
    # Operators that round a single time give the same bits in a vector and behind its end; torch's exp and sigmoid do not.
    torch.manual_seed(3)
    return (torch.rand(rows, 8) + 0.5).to(device)


def relations(result):
    return {(row.op, row.relation) for row in result.rows}


@pytest.mark.parametrize(
    ("kind", "options", "relation"),
    [
        ("batch_size", {}, "batch"),
        ("batch_position", {}, "position"),
        ("misaligned", {}, "memory"),
        ("every_second", {}, "repeat"),
        ("bit_flip", {"call": 0}, "repeat"),
        ("neighbour", {}, "neighbour"),
        ("other_stream", {}, "stream"),
        ("gaps", {}, "strides"),
    ],
)
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_fault_is_named_with_the_relation_that_it_breaks(kind, options, relation, level):
    x = gates()
    with sim.fault(kind, ops="aten::sqrt", **options) as fault, op_tools.OpInvariance(level=level) as tool:
        torch.sqrt(x * 3)
    assert fault.hits > 0
    result = tool.result()
    name = "torch.sqrt" if level == "torch" else "aten::sqrt"
    assert relations(result) == {(name, relation)}
    (row,) = result.rows
    assert row.transient == (kind == "bit_flip")
    assert "test_invariance.py" in row.line
    assert row.elements > 0
    assert row.device.startswith("sim")
    assert result.verdict is Verdict.DIFFERS
    assert (result.varied[relation], sum(result.varied.values())) == (1, 1)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_result_that_depends_on_the_length_of_the_sequence_is_named(level):
    x = gates().view(3, 4, 4)
    with sim.fault("sequence_length", ops="aten::sqrt"), op_tools.OpInvariance(level=level) as tool:
        torch.sqrt(x)
    (row,) = tool.result().rows
    assert (row.relation, row.batch, row.run) == ("sequence", 3, "the first 2 of 4 places")
    with sim.fault("sequence_length", ops="aten::sqrt"), op_tools.OpInvariance(level=level) as tool:
        torch.sqrt(x[:, :1].contiguous())
    (row,) = tool.result().rows  # a place cannot be cut: the sequences behind each other
    assert (row.relation, row.run) == ("sequence", "all 3 sequences as a single one, behind each other")


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_result_that_depends_on_the_place_in_the_sequence_is_named(level):
    x = gates().view(3, 4, 4)
    with sim.fault("token_position", ops="aten::sqrt"), op_tools.OpInvariance(level=level) as tool:
        torch.sqrt(x)
    result = tool.result()
    (row,) = result.rows
    assert (row.relation, row.batch, row.run) == ("shift", 3, "each a place further")
    # The pieces begin at other places, too: that follows from it.
    assert result.reasons == {"its rows depend on their place in the sequence": 1}
    with op_tools.OpInvariance(level=level) as tool:
        torch.sqrt(x)
        torch.sqrt(x[:, :1].contiguous())  # nothing that could be moved
        torch.sqrt(x[0])
    assert (tool.result().kept["shift"], tool.result().rows) == (1, [])


def test_a_backward_that_depends_on_the_place_in_the_sequence_is_named():
    x = gates().view(3, 4, 4).requires_grad_()
    with sim.fault("token_position", ops="aten::threshold_backward", scale=1.5), op_tools.OpInvariance() as tool:
        torch.relu(x).square().sum().backward()
    assert ("torch.relu", "shift") in relations(tool.result())
    assert {row.phase for row in tool.result().rows} == {"backward"}


MASKS = {
    "causal": lambda below: {"is_causal": True},
    "bool": lambda below: {"attn_mask": below},
    "float": lambda below: {
        "attn_mask": torch.zeros(below.shape, dtype=torch.float64, device="sim").masked_fill(~below, -torch.inf)
    },
    "none": lambda below: {},
}


def judged_attention(level, mask, planted, tokens=6):
    """Attention of two sequences, with a mask of MASKS, while `planted` is on."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, tokens, 4, dtype=torch.float64).to("sim") for _ in range(3))
    options = MASKS[mask](torch.ones(tokens, tokens, dtype=torch.bool).tril().to("sim"))
    with planted, op_tools.OpInvariance(level=level, ops=".*scaled_dot_product.*") as tool:
        F.scaled_dot_product_attention(q, k, v, **options)
    return tool.result()


@pytest.mark.parametrize("mask", ["causal", "bool", "float"])
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_attention_that_depends_on_the_keys_that_are_left_out_is_named(level, mask):
    judged = functools.partial(judged_attention, level, mask, tokens=5)
    clean = judged(contextlib.nullcontext())
    assert clean.kept["padding"] + clean.varied["padding"] == 1
    assert all(row.max_abs < 1e-12 and row.right == "both right" for row in clean.rows)
    faulty = judged(sim.fault("row_length", ops="aten::_softmax", scale=1.01))
    (row,) = [row for row in faulty.rows if row.relation == "padding"]
    assert row.run == "1 behind the 5"
    assert row.max_abs > 1e-4
    assert row.right != "both right"


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("shape", [(3, 1, 1, 5), (3, 2, 5, 5), (5, 5)])
def test_a_mask_of_each_row_moves_with_its_row(shape, device, level):
    torch.manual_seed(0)
    q = torch.randn(3, 2, 5, 4).to(device)
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    with op_tools.OpInvariance(level=level, ops=".*scaled_dot_product.*", sequence=False) as tool:
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask.to(device))
    result = tool.result()
    assert sum(result.kept.values()) + sum(result.varied.values()) > 0
    assert all(row.max_abs < 1e-5 for row in result.rows)


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_backward_pass_is_run_again_in_the_dtype_of_its_autocast(dtype, device):
    """Also where it is not the device's default, and the program has left autocast."""
    torch.manual_seed(1)
    weight = torch.randn(4, 8).to(device).requires_grad_()
    with op_tools.OpInvariance(ops="torch.nn.functional.linear", batch=False, sequence=False) as tool:
        with torch.autocast(device, dtype=dtype):
            y = F.linear(torch.randn(16, 8).to(device), weight)
        y.float().square().mean().backward()
    result = tool.result()
    assert result.rows == [] and result.kept["repeat"] == 2


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_attention_that_depends_on_the_number_of_queries_is_named(level, mask):
    """A prefill in chunks: the first queries with the keys up to theirs, then the others with all keys."""
    judged = functools.partial(judged_attention, level, mask)
    clean = judged(contextlib.nullcontext())
    assert clean.kept["pieces"] + clean.varied["pieces"] == 1
    assert all(row.max_abs < 1e-12 and row.right == "both right" for row in clean.rows)
    # Scores and result: each is [batch and heads, queries, ...] on the device.
    (row,) = [
        row
        for row in judged(sim.fault("sequence_length", ops="aten::bmm", scale=1.01)).rows
        if row.relation == "pieces"
    ]
    # Where keys that are left out change the bits, the piece keeps them: that is `padding`.
    keys = {6} if mask == "none" else {3, 6}
    assert row.run in {f"queries 0 to 2 of 6, with {count} of 6 keys" for count in keys}
    assert row.max_abs > 1e-4
    assert row.right != "both right"


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_attention_with_padding_on_the_left_is_that_with_padding_on_the_right(level, mask):
    judged = functools.partial(judged_attention, level, mask)
    clean = judged(contextlib.nullcontext())
    # Where more tokens behind the last change the bits already, that is `padding` or `pieces`.
    reasons = [reason for reason in clean.reasons if "number of its tokens" in reason]
    assert clean.kept["shift"] + clean.varied["shift"] + len(reasons) == 1, clean.reasons
    assert all(row.max_abs < 1e-12 and row.right == "both right" for row in clean.rows)
    faulty = judged(sim.fault("token_position", ops="aten::bmm", scale=1.01))
    if reasons:
        return
    (row,) = [row for row in faulty.rows if row.relation == "shift"]
    assert row.run == "1 more in front" + (", left out" if mask != "none" else "")
    assert row.max_abs > 1e-4
    assert "pieces" not in {row.relation for row in faulty.rows}


def pack(tensor):
    return tensor.cpu().movedim(0, -3).flatten(-3, -2).unsqueeze(0).to(tensor.device)


@pytest.mark.parametrize("mask", ["none", "causal", "table", "of each"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_packed_sequences_are_judged_as_torch_alone_has_them(device, mask):
    """Behind each other in a row, kept apart by a mask."""
    torch.manual_seed(0)
    for size, dtype in ((4, torch.float64), (32, torch.float32)):
        q, k, v = (torch.randn(3, 2, size, size, dtype=dtype).to(device) for _ in range(3))
        below = torch.ones(size, size, dtype=torch.bool).tril()
        of_each = torch.stack([below, below, below.fliplr().flipud().logical_or(below)])[:, None]
        options, masks = {
            "none": ({}, [torch.ones_like(below)] * 3),
            "causal": ({"is_causal": True}, [below] * 3),
            "table": ({"attn_mask": below.to(device)}, [below] * 3),
            "of each": ({"attn_mask": of_each.to(device)}, list(of_each[:, 0])),
        }[mask]
        with op_tools.OpInvariance(ops=".*scaled_dot_product.*") as tool:
            program = F.scaled_dot_product_attention(q, k, v, **options)
        result = tool.result()
        others = {row.relation for row in result.rows} - {"packed", "memory", "strides"}
        if others or any("mask in place" in reason for reason in result.reasons):
            assert (result.kept["packed"], result.varied["packed"]) == (0, 0)
            continue
        apart = torch.block_diag(*(part.int() for part in masks)).bool().to(device)
        by_hand = F.scaled_dot_product_attention(*map(pack, (q, k, v)), attn_mask=apart)
        assert (result.kept["packed"] == 1) == torch.equal(by_hand.cpu(), pack(program).cpu()), result.reasons
        assert all(row.max_abs < 1e-5 and row.right == "both right" for row in result.rows)


def test_packed_gradients_are_those_of_the_program():
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 6, 4, dtype=torch.float64, device="sim", requires_grad=True) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril().to("sim")}):
        with op_tools.OpInvariance(level="torch", ops=".*scaled_dot_product.*") as tool:
            F.scaled_dot_product_attention(q, k, v, **options).square().sum().backward()
        result = tool.result()
        assert all(row.max_abs < 1e-12 for row in result.rows), result.rows
        assert result.kept["packed"] + result.varied["packed"] > 0 or result.reasons, result.kept


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_gradients_of_queries_with_padding_are_those_of_the_program(device):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool, device=device).tril()}):
        with op_tools.OpInvariance(level="torch", ops=".*scaled_dot_product.*") as tool:
            F.scaled_dot_product_attention(q, k, v, **options).square().sum().backward()
        assert all(row.max_abs < 1e-12 for row in tool.result().rows), tool.result().rows


def test_the_last_queries_get_a_mask_in_place_of_the_causal_order():
    """A single query in front: the first piece is right where the fault needs two."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3, 4, dtype=torch.float64).to("sim") for _ in range(3))
    with (
        sim.fault("above_size", ops="aten::bmm", size=8, scale=1.01) as fault,
        op_tools.OpInvariance(ops=".*scaled_dot_product.*") as tool,
    ):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert fault.hits > 0
    rows = {row.relation: row for row in tool.result().rows}
    assert rows["pieces"].right != "unknown"


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_gradients_of_queries_in_pieces_are_those_of_the_program(device):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool, device=device).tril()}):
        with op_tools.OpInvariance(level="torch", ops=".*scaled_dot_product.*") as tool:
            F.scaled_dot_product_attention(q, k, v, **options).square().sum().backward()
        result = tool.result()
        assert result.kept["pieces"] + result.varied["pieces"] == 2, (options, result.reasons)
        assert all(row.max_abs < 1e-12 for row in result.rows), result.rows


def test_a_single_query_has_no_pieces():
    q, k, v = (torch.randn(2, 2, count, 4) for count in (1, 5, 5))
    with op_tools.OpInvariance() as tool:
        F.scaled_dot_product_attention(q, k, v)
    result = tool.result()
    assert result.kept["pieces"] + result.varied["pieces"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_packed_sequences_of_torch_are_not_judged_and_it_is_said_why(level):
    """Jagged tensors have sizes that are no numbers: at level torch their calls are left out, and at level aten those of their parts
    that are nested have no plain copy."""
    parts = [torch.randn(count, 2, 8) for count in (3, 5)]
    q, k, v = (torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2) for _ in range(3))
    with op_tools.OpInvariance(level=level) as tool:
        F.scaled_dot_product_attention(q, k, v)
    result = tool.result()
    assert result.verdict is Verdict.NOT_JUDGED
    if level == "torch":
        assert result.coverage.lost["jagged"] == 1
        assert result.coverage.reasons() == ["1 call left out (1 jagged)"]
    else:
        assert result.reasons["an input has no plain copy"] > 0
    assert not [op for op in result.ops if "scaled_dot_product" in op.op]


def test_a_flip_in_a_call_that_is_left_out_leaves_the_run_not_judged():
    """What was not run again is counted, and is no all-clear."""
    x = gates()
    with sim.fault("bit_flip", ops="aten::sqrt", call=120) as fault, op_tools.OpInvariance() as tool:
        for _ in range(150):
            torch.sqrt(x)
    assert fault.hits == 1
    result = tool.result()
    assert (result.rows, result.calls, result.left_out) == ([], 3, 147)
    assert result.verdict is Verdict.NOT_JUDGED


@pytest.mark.parametrize("call", range(12, 60))
def test_a_flip_in_any_run_is_named_as_one(call):
    """Also in the runs that look for the cause of another finding: it is not told as one of memory, and `begins` stays right."""
    x = gates(rows=12)
    # The program's call is the first; the fault by size makes the call run further, until it is known where it begins.
    with (
        sim.fault("batch_size", ops="aten::sqrt"),
        sim.fault("bit_flip", ops="aten::sqrt", call=call) as flip,
        op_tools.OpInvariance(gradients=False) as tool,
    ):
        torch.sqrt(x)
    rows = {row.relation: row for row in tool.result().rows}
    if flip.hits == 0 or "repeat" in rows:
        assert set(rows) <= {"repeat", "batch"}
        return
    assert set(rows) == {"batch"}
    assert rows["batch"].begins == 2


def test_attention_without_a_mask_reads_every_key():
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    with op_tools.OpInvariance(level="torch") as tool:
        F.scaled_dot_product_attention(q, k, v)
    result = tool.result()
    assert result.kept["padding"] + result.varied["padding"] == 0


def test_the_gradients_of_padded_attention_are_those_of_the_program():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    with op_tools.OpInvariance(level="torch") as tool:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    result = tool.result()
    (op,) = [op for op in result.ops if op.op.endswith("scaled_dot_product_attention")]
    assert op.backward == 1
    assert result.kept["padding"] + result.varied["padding"] == 2
    assert all(row.max_abs < 1e-12 for row in result.rows), result.rows


def test_the_batch_from_which_on_bits_are_other_is_found():
    x = gates(rows=12)
    with sim.fault("batch_size", ops="aten::sqrt"), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    (row,) = tool.result().rows
    assert (row.batch, row.begins, row.run) == (12, 2, "row 0 alone")
    assert (row.rows, row.of_rows) == (1, 1)


def test_a_row_that_takes_from_another_is_named_once():
    """Alone and at other positions it has other bits, too: that follows from it."""
    x = gates()
    with sim.fault("neighbour", ops="aten::sqrt", scale=1.01), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    result = tool.result()
    (row,) = result.rows
    assert (row.relation, row.batch, row.begins) == ("neighbour", 6, None)
    assert row.run == "odd rows replaced by even rows near them"
    assert (row.rows, row.of_rows) == (2, 3)  # rows 2 and 4 of 0, 2 and 4: row 0 has no row before it
    assert (result.kept["batch"], result.kept["position"]) == (0, 0)
    assert result.reasons == {"its rows depend on the values of others": 3}  # position, batch, strides


def test_other_values_are_put_beside_a_row_where_there_are_some():
    """Each row is beside an equal one: another further away takes its place."""
    x = gates()
    x[:4] = x[0].clone()
    x[4:] = x[4].clone()
    with sim.fault("neighbour", ops="aten::sqrt", scale=1.01), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    (row,) = tool.result().rows
    assert row.relation == "neighbour"
    assert (row.run, row.rows) == ("odd rows replaced by even rows near them", 2)  # rows 2 and 4


def test_a_backward_whose_rows_take_from_others_is_named():
    x = gates(rows=5).requires_grad_()
    arriving = gates(rows=5)
    with sim.fault("neighbour", ops="aten::threshold_backward", scale=1.01), op_tools.OpInvariance() as tool:
        torch.relu(x).backward(arriving)
    result = tool.result()
    (row,) = result.rows
    assert (row.op, row.phase, row.relation) == ("torch.relu", "backward", "neighbour")
    assert row.right in ("program wrong", "both wrong")
    with op_tools.OpInvariance() as tool:
        torch.relu(x).backward(arriving)
    assert tool.result().rows == []
    assert tool.result().kept["neighbour"] == 2  # forward and backward


def test_equal_rows_are_no_other_values():
    with op_tools.OpInvariance() as tool:
        torch.sqrt(torch.ones(6, 8, device="sim"))
    result = tool.result()
    assert (result.kept["neighbour"], result.kept["batch"], result.kept["position"]) == (0, 1, 1)
    assert [reason for reason in result.reasons if "rows are equal" in reason]


def test_a_stream_of_the_program_stays_current():
    x, side = gates(), torch.Stream(device="sim")
    torch.accelerator.synchronize()
    with side, op_tools.OpInvariance() as tool:
        torch.sqrt(x)
        assert torch.accelerator.current_stream() == side
    assert tool.result().kept["stream"] == 1
    with sim.fault("other_stream", ops="aten::sqrt"), op_tools.OpInvariance(stream=False) as tool:
        torch.sqrt(x)
    result = tool.result()
    assert result.rows == []
    assert result.kept["stream"] == 0


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@torch.library.custom_op("invariance_test::by_threads", mutates_args=())
def by_threads(x: torch.Tensor) -> torch.Tensor:
    """A CPU kernel whose result depends on the number of threads."""
    if x.numel() == 3 and torch.get_num_threads() == 1:
        raise ValueError("no single thread")
    return x * (1 + 1e-3 * torch.get_num_threads())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_result_that_depends_on_the_number_of_threads_is_named(level):
    x = gates(device="cpu")
    with op_tools.OpInvariance(level=level, ops=".*by_threads.*|.*sqrt.*", threads=True) as tool:
        by_threads(x)
        torch.sqrt(x)
        assert torch.get_num_threads() == 2
    result = tool.result()
    (row,) = result.rows
    assert "by_threads" in row.op
    assert (row.relation, row.transient, row.elements) == ("threads", False, 48)
    assert result.kept["threads"] == 1
    with op_tools.OpInvariance(level=level, ops=".*by_threads.*") as tool:
        by_threads(x)
    assert tool.result().rows == []
    assert tool.result().kept["threads"] == 0


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_stays_where_the_run_again_raises():
    x = torch.ones(3)
    with op_tools.OpInvariance(level="aten", ops=".*by_threads.*", threads=True) as tool:
        by_threads(x)
        assert torch.get_num_threads() == 2
    result = tool.result()
    assert result.rows == []
    assert any("no single thread" in reason for reason in result.reasons)


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_by_threads_are_named_as_torch_alone_has_them(threads, two_threads):
    torch.set_num_threads(threads)
    x = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(1))
    by_hand = []
    for count in (1, 2):
        torch.set_num_threads(count)
        by_hand.append((x.sum(), x.sum(-1)))
    torch.set_num_threads(threads)
    with op_tools.OpInvariance(level="aten", batch=False, threads=True, first_n_per_signature=9) as tool:
        x.sum()
        x.sum(-1)
    other = sum(not torch.equal(a, b) for a, b in zip(*by_hand, strict=True))
    assert [row.relation for row in tool.result().rows] == ["threads"] * other
    assert tool.result().kept["threads"] == 2 - other
    assert torch.get_num_threads() == threads


def test_a_single_row_is_judged_in_a_larger_batch():
    x = gates(rows=1)
    with sim.fault("batch_size", ops="aten::sqrt", scale=1.001), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    (row,) = tool.result().rows
    assert (row.relation, row.batch, row.begins) == ("batch", 1, 2)


def test_rounding_is_told_from_a_wrong_result():
    x = gates()
    with sim.fault("batch_size", ops="aten::sqrt", scale=1 + 1e-7), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    assert [row.right for row in tool.result().rows] in (["both right"], [])
    with sim.fault("batch_size", ops="aten::sqrt", scale=1.5), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    assert [row.right for row in tool.result().rows] == ["program wrong"]  # the row alone is right


def test_a_backward_that_does_not_repeat_is_named():
    x = gates().requires_grad_()
    with sim.fault("every_second", ops="aten::threshold_backward"), op_tools.OpInvariance() as tool:
        torch.relu(x).sum().backward()
    assert [(row.op, row.phase, row.relation) for row in tool.result().rows] == [("torch.relu", "backward", "repeat")]


@pytest.mark.parametrize(("kind", "relation"), [("batch_size", "batch"), ("batch_position", "position")])
def test_a_backward_whose_rows_depend_on_the_others_is_named(kind, relation):
    x = gates(rows=5).requires_grad_()
    with sim.fault(kind, ops="aten::threshold_backward"), op_tools.OpInvariance() as tool:
        torch.relu(x).sum().backward()
    (row,) = tool.result().rows
    assert (row.op, row.phase, row.relation) == ("torch.relu", "backward", relation)
    assert row.batch == 5
    assert row.right in ("program wrong", "both wrong")  # the row at the place of the fault is wrong in both


def test_gradients_of_weights_are_not_compared_with_those_of_other_batches():
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 6).double().to("sim"), gates(rows=6).double().requires_grad_()
    with op_tools.OpInvariance(ops="torch.nn.functional.linear") as tool:
        layer(x).backward(torch.ones(6, 6, dtype=torch.float64, device="sim"))
    result = tool.result()
    assert {row.relation for row in result.rows if row.phase == "backward"} <= {"batch"}
    assert all(row.output == 0 and row.right == "both right" for row in result.rows)


def test_runs_again_take_no_more_than_their_share_of_the_time():
    x = gates()
    with op_tools.OpInvariance(first_n_per_signature=1000, most_share=1e-9) as tool:
        for _ in range(20):
            torch.sqrt(x)
    result = tool.result()
    assert (result.calls, result.left_out) == (1, 19)
    with op_tools.OpInvariance(first_n_per_signature=1000, most_share=1000) as tool:
        for _ in range(20):
            torch.sqrt(x)
    assert tool.result().calls == 20


def test_faults_are_counted_by_device_and_bit():
    x = gates()
    with sim.fault("bit_flip", ops="aten::sqrt", call=0), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    with sim.fault("every_second", ops="aten::sqrt"), op_tools.OpInvariance() as other:
        torch.sqrt(x)
    (row,) = tool.result().rows
    (faults,) = tool.result().faults.values()
    assert (faults.transient, faults.persistent) == (1, 0)
    (bit,) = faults.bits
    assert faults.bits[bit] == 1 and row.bits == f"bit {bit}"
    (device,) = other.result().faults
    assert device.startswith("sim")
    assert (other.result().faults[device].transient, other.result().faults[device].persistent) == (0, 1)


def test_flips_are_counted_by_rank_and_address(monkeypatch, tmp_path):
    """A bad line of the cache, or a bank, has few places: the address of the element, not its number."""
    monkeypatch.setenv("RANK", "3")
    x = gates()
    with sim.fault("bit_flip", ops="aten::sqrt", call=0), op_tools.OpInvariance(output_dir=str(tmp_path)) as tool:
        y = torch.sqrt(x)
    result = tool.result()
    (row,) = result.rows
    (faults,) = result.faults.values()
    (place,) = (y.cpu() != x.cpu().sqrt()).flatten().nonzero().flatten().tolist()
    address = y.data_ptr() + 4 * place
    assert row.places == str(place)
    assert row.page_bytes == str(address % 4096)
    assert (faults.rank, faults.line_bytes, faults.page_bytes) == (3, {address % 64: 1}, {address % 4096: 1})
    assert Path(result.root).relative_to(tmp_path).parts[:2] == ("op_invariance_result", "3")


def test_the_run_that_is_alone_has_the_address(capfd, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "warn")
    op_tools._C.reload_log_level()
    x = gates()
    # The program's call is right; in the runs again, of which several are other, no run is alone.
    with sim.fault("every_second", ops="aten::sqrt"), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    (faults,) = tool.result().faults.values()
    assert (faults.persistent, faults.line_bytes, faults.page_bytes) == (1, {}, {})
    assert tool.result().rows[0].page_bytes is None
    with sim.fault("bit_flip", ops="aten::sqrt", call=0), op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    (byte,) = next(iter(tool.result().faults.values())).page_bytes
    text = capfd.readouterr().err
    assert f"by byte of a page of 4096: {byte}: 1" in text
    assert "rank 0, sim:0: 1 calls had other bits in a single run" in text


# --- The script of torch alone


def saved_finding(work, relation, fault=None, **options):
    """The folder of the call."""
    with fault or contextlib.nullcontext(), op_tools.OpInvariance(**options) as tool:
        work()
    (row,) = [row for row in tool.result().rows if row.relation == relation]
    assert row.saved
    return row


def script_of(folder, device="sim"):
    script = Path("repro.py")
    saved = read_saved(folder)
    written = write_relation(saved, Plan(device), script, 0, 3)
    script.write_text(written.text)
    if written.side_file:
        torch.save(written.side_file, script.with_suffix(".pth"))
    return script


def ran(script, monkeypatch, capsys):
    """Exit status and output, in this process."""
    monkeypatch.setattr(sys, "argv", [str(script)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code, capsys.readouterr().out


def attention(**options):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 6, 4).to("sim") for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v, **options)


def packable():
    """Attention that keeps its bits where sequences of it are packed: 32 keys and 16 elements fill vectors."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 1, 32, 16).to("sim") for _ in range(3))
    below = torch.ones(32, 32, dtype=torch.bool).tril().to("sim")
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=below)


def backward():
    x = gates(rows=5).requires_grad_()
    return lambda: torch.relu(x).backward(gates(rows=5))


SHOWN = {
    "repeat": ("every_second:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "memory": ("misaligned:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "stream": ("other_stream:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "neighbour": ("neighbour:ops=aten::sqrt,scale=1.01", lambda: lambda: torch.sqrt(gates())),
    "batch": ("batch_size:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "position": ("batch_position:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "strides": ("gaps:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates())),
    "shift": ("token_position:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates().view(3, 4, 4))),
    "sequence": ("sequence_length:ops=aten::sqrt", lambda: lambda: torch.sqrt(gates().view(3, 4, 4))),
    "padding": ("row_length:ops=aten::_softmax,scale=1.01", lambda: attention(is_causal=True)),
    "pieces": ("sequence_length:ops=aten::bmm,scale=1.01", lambda: attention(is_causal=True)),
    "packed": ("above_size:ops=aten::_softmax,scale=1.01,size=6200", lambda: packable()),
    "shift of attention": ("token_position:ops=aten::bmm,scale=1.01", lambda: attention(is_causal=True)),
    "batch of a backward": ("batch_size:ops=aten::threshold_backward", backward),
}


def planted(text):
    kind, _, rest = text.partition(":")
    options = dict(pair.split("=") for pair in rest.split(","))
    numbers = {"scale": float(options["scale"])} if "scale" in options else {}
    if "size" in options:
        numbers["size"] = int(options["size"])
    return sim.fault(kind, ops=options["ops"], **numbers)


@pytest.mark.parametrize("name", list(SHOWN))
def test_a_script_of_torch_alone_shows_the_finding(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fault, make_work = SHOWN[name]
    row = saved_finding(make_work(), name.split()[0], planted(fault))
    script = script_of(row.saved)
    text = script.read_text()
    assert "op_tools" not in text.replace("op_tools_load_device", "").replace(str(tmp_path), "").partition('"""\n\n')[2]
    status, out = ran(script, monkeypatch, capsys)
    assert (status, out.splitlines()[-1]) == (0, "the same bits"), out
    with planted(fault):
        status, out = ran(script, monkeypatch, capsys)
    assert status == 1, out
    assert "OTHER BITS: " in out
    assert ("gradient of input 0" in out) == ("backward" in name)


@pytest.mark.usefixtures("two_threads")
def test_a_script_shows_that_bits_depend_on_the_number_of_threads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    torch.set_num_threads(1)
    by_hand = x.sum()
    torch.set_num_threads(2)
    if torch.equal(x.sum(), by_hand):
        pytest.skip("the sums of this CPU are the same with two threads")
    row = saved_finding(x.sum, "threads", threads=True)
    status, out = ran(script_of(row.saved, "cpu"), monkeypatch, capsys)
    assert status == 1, out
    assert torch.get_num_threads() == 2


def test_the_printed_command_makes_a_script_that_shows_it_in_a_fresh_process(tmp_path, monkeypatch, capfd, build_dir):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "warn")
    op_tools._C.reload_log_level()
    fault = SHOWN["batch"][0]
    row = saved_finding(lambda: torch.sqrt(gates(rows=12)), "batch", planted(fault))
    printed = capfd.readouterr().err
    assert f"to show it with torch alone: op-tools repro {Path(row.saved).relative_to(tmp_path)}" in printed
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", fault)
    plan = Plan("sim", libraries=(str(build_dir / "libop_tools_sim_device.so"),))
    said = []
    _, _, script = make(row.saved, Path("repro.py"), plan, 120, said.append, runs=1)
    assert (script.reproduces, script.verdict) == (True, Verdict.DIFFERS), script.output
    assert said == ["other bits: 1 of 1 runs"]
    assert script.finding.startswith("output: ")
    text = Path("repro.py").read_text()
    assert "row 0 alone, of 12; from 2 rows on" in text
    assert "places(x[0], 0, [0])" in text
    assert command(["repro", row.saved, "--shrink"]) == 64
    assert "--shrink and --cpp are for wrong results" in capfd.readouterr().err


def test_a_call_is_saved_once_for_each_kind_of_finding(tmp_path):
    x = gates()
    with sim.fault("batch_size", ops="aten::sqrt"), op_tools.OpInvariance(output_dir=str(tmp_path)) as tool:
        torch.sqrt(x)
        torch.sqrt(x)
    assert [bool(row.saved) for row in tool.result().rows] == [True, False]
    report_of = (*read_parts([str(tmp_path)])[0].commands,)
    saved = tool.result().rows[0].saved
    again, script = [command.text for command in report_of]
    assert again.endswith(f"{saved} --invariance")
    assert script.endswith(f"repro {saved} --import op_tools.sim_device")
    with sim.fault("batch_size", ops="aten::sqrt"), op_tools.OpInvariance(max_saved=0) as tool:
        torch.sqrt(x)
    assert [row.saved for row in tool.result().rows] == [None]
    # It is a saved call like any other.
    assert op_tools.run_op_from_data.main([str(tmp_path), "--acc_check", "--quiet"]) == 1  # batch_size is wrong, too
    assert op_tools.load_call(Path(next(Path(tmp_path).rglob("batch")))).name == "torch.sqrt"


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_saved_calls_are_run_again_in_the_relations(level, tmp_path, capfd):
    x = gates(device="cpu").requires_grad_()
    with op_tools.OpCapture(level=level, ops=".*(sqrt|relu).*", output_dir=tmp_path / "capture") as capture:
        torch.relu(torch.sqrt(x)).sum().backward()
    paths = [str(tmp_path / "capture"), "--invariance", "--quiet"]
    assert op_tools.run_op_from_data.main([*paths, "--device", "sim"]) == 0
    with sim.fault("batch_size", ops="aten::sqrt"):
        assert op_tools.run_op_from_data.main([*paths, "--device", "sim"]) == 1
    files = sorted(tmp_path.glob("op_invariance_result/*/*/invariance.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    name = "torch.sqrt" if level == "torch" else "aten::sqrt"
    assert {(row["op"], row["relation"], row["level"]) for row in rows} == {(name, "batch", level)}
    saved = {json.loads(path.read_text())["id"] for path in (tmp_path / "capture").rglob("meta.json")}
    assert {row["id"] for row in rows} <= saved
    assert capture.result().rows
    assert op_tools.run_op_from_data.main([*paths, "--jobs", "2"]) == 64
    assert "--invariance runs a call at a time" in capfd.readouterr().err


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_what_keeps_its_bits_agrees(device, level):
    x = gates(device=device).requires_grad_()
    norm = nn.LayerNorm(8).to(device)
    with op_tools.OpInvariance(level=level) as tool:
        norm(torch.relu(x) * 2).softmax(-1).sum().backward()
    result = tool.result()
    assert result.rows == []
    assert result.verdict is Verdict.AGREES
    assert result.ok
    assert result.kept["batch"] >= 3
    assert result.kept["position"] >= 3
    assert result.kept["memory"] >= 3
    assert any(op.backward for op in result.ops) == (level == "torch")


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_random_numbers_are_drawn_again_and_the_stream_stays(device, level):
    def run():
        torch.manual_seed(5)
        y = F.dropout(torch.ones(4, 8, device=device), 0.5)
        z = torch.empty(4, device=device).normal_()
        return [y, z, torch.rand(3, device=device), torch.rand(3)]

    plain = run()
    with op_tools.OpInvariance(level=level) as tool:
        watched = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    result = tool.result()
    assert result.rows == []
    assert result.kept["repeat"] > 0
    assert any("random" in reason for reason in result.reasons)


def test_in_place_calls_run_from_their_former_inputs():
    x = gates()
    expected = x.clone().mul_(2).add_(1)
    with op_tools.OpInvariance(level="aten") as tool:
        x.mul_(2).add_(1)
    assert torch.equal(x, expected)
    assert tool.result().rows == []
    assert {op.op for op in tool.result().ops if "batch" in op.keeps.split()} == {
        "aten::mul_.Tensor",
        "aten::add_.Tensor",
    }
    with sim.fault("every_second", ops="aten::mul_.Tensor"), op_tools.OpInvariance(level="aten") as tool:
        x.mul_(2)
    assert relations(tool.result()) == {("aten::mul_.Tensor", "repeat")}


def test_limits_leave_calls_out_and_say_so():
    x = gates(device="cpu")
    with op_tools.OpInvariance(first_n_per_signature=4, every_nth=2) as tool:
        for _ in range(10):
            torch.sqrt(x)
    result = tool.result()
    assert (result.calls, result.left_out) == (2, 8)
    assert result.coverage.lost == {"limits": 8}
    with op_tools.OpInvariance(batch=False, alignment=False, strides=False, sequence=False, repeats=1) as tool:
        torch.sqrt(x)
    assert tool.result().kept == dict.fromkeys(RELATIONS, 0) | {"repeat": 1}


def test_an_operator_whose_batch_is_not_known_is_not_judged():
    x = torch.eye(3)
    with op_tools.OpInvariance() as tool:
        torch.linalg.inv(x)
    result = tool.result()
    assert result.coverage.not_judged == {"no_batch": 6}  # relations of rows, but of attention
    assert any("not known" in reason for reason in result.reasons)
    assert result.kept["repeat"] == 1


def test_files_have_the_rows(tmp_path):
    x = gates()
    with sim.fault("batch_size", ops="aten::sqrt"), op_tools.OpInvariance(output_dir=str(tmp_path)) as tool:
        torch.sqrt(x)
    result = tool.result()
    (line,) = (Path(result.root) / "invariance.jsonl").read_text().splitlines()
    assert json.loads(line)["relation"] == "batch"
    with (Path(result.root) / "invariance.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["op"] == "torch.sqrt"
    assert "torch.sqrt" in result.table()


def test_a_call_that_raises_is_not_judged_and_raises():
    x = torch.ones(2, 3)
    with op_tools.OpInvariance() as tool, pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.mm(x, x)
    assert tool.result().coverage.not_judged == {"raised": 11}  # relations


@pytest.mark.parametrize(("ops", "status", "fail_on"), [("aten::relu", 1, "variant"), ("", 0, "wrong")])
def test_op_tools_run_ends_with_the_verdict(ops, status, fail_on, tmp_path):
    script = tmp_path / "serve.py"
    planted = f'sim.fault("batch_size", ops="{ops}")' if ops else "torch.no_grad()"
    script.write_text(
        "import torch, op_tools.sim_device as sim\n"
        'x = torch.randn(6, 8).to("sim")\n'
        f"with torch.no_grad(), {planted}:\n"
        "    torch.relu(x * 2)\n"
    )
    command = [sys.executable, "-m", "op_tools", "run", "--invariance", "--fail-on", fail_on, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == status, done.stderr


def test_fail_on_variant_is_about_bits_alone(tmp_path, capsys):
    """A wrong kernel that keeps its bits fails --fail-on wrong; the status of --fail-on variant is OpInvariance's."""
    x = gates()
    with sim.fault("scale", ops="aten::sqrt"), op_tools.OpAutoCompare() as compare, op_tools.OpInvariance() as tool:
        torch.sqrt(x)
    assert (compare.result().verdict, tool.result().verdict) == (Verdict.DIFFERS, Verdict.AGREES)
    assert status_of_tools([compare, tool], fail_on="wrong") == 1
    assert status_of_tools([compare, tool], fail_on="variant") == 0
    (tmp_path / "empty.py").write_text("")
    assert command(["run", "--autocompare", "--fail-on", "variant", str(tmp_path / "empty.py")]) == 64
    assert "--fail-on variant: add --invariance" in capsys.readouterr().err
    variables = environment([op_tools.OpInvariance()], fail_on="variant")
    assert variables["OP_TOOLS_FAIL_ON_VARIANT"] == "1"


@pytest.mark.parametrize("seed", range(6))
def test_trials(seed):
    quick = tuple(name for name, kind in invariance_faults.KINDS.items() if not kind.is_rare)
    _, right, others, text = invariance_faults.trial(seed, quick)
    assert right, text
    assert not others, text


@pytest.mark.parametrize("kind", ["row_length", "query_count", "attention_position", "packed_size"])
def test_trials_of_attention(kind):
    name, right, others, text = invariance_faults.trial(1, (kind,))
    assert (name, right, others) == (kind, True, set()), text


def test_a_trial_that_cannot_act_ends(monkeypatch):
    monkeypatch.setattr(invariance_faults, "MODELS", {"attention": invariance_faults.MODELS["attention"]})
    monkeypatch.setattr(invariance_faults, "MOST_DRAWS", 3)
    with pytest.raises(RuntimeError, match="none of 3 draws of row_length"):
        invariance_faults.trial(0, ("row_length",))  # without a mask


@pytest.mark.parametrize("seed", range(6))
def test_without_a_fault_torch_alone_confirms_what_is_named(seed):
    where, _, alarms, kept = invariance_faults.clean(seed)
    assert kept > 0
    assert not alarms, f"{where}: {alarms}"


# --- The table of batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's test code imports modules that torch itself has deprecated
    from torch.testing._internal.common_methods_invocations import op_db

FAMILIES = [
    "add", "mul", "div", "sub", "maximum", "where", "clamp", "exp", "log", "tanh", "sigmoid", "pow", "lerp", "addcmul", "nn.functional.relu",
    "nn.functional.gelu", "nn.functional.silu", "nn.functional.hardtanh", "nn.functional.softplus", "nn.functional.elu",
    "nn.functional.linear", "mm", "mv", "addmm", "bmm", "baddbmm", "matmul",
    "nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d", "nn.functional.conv_transpose2d",
    "nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.avg_pool1d", "nn.functional.avg_pool2d", "nn.functional.avg_pool3d",
    "nn.functional.adaptive_avg_pool2d", "nn.functional.interpolate",
    "softmax", "log_softmax", "nn.functional.softmin", "sum", "mean", "amax", "argmax", "prod", "std", "var", "logsumexp", "cumsum",
    "any", "all", "sort", "topk", "nn.functional.normalize",
    "nn.functional.layer_norm", "native_layer_norm", "nn.functional.rms_norm", "nn.functional.group_norm",
    "nn.functional.local_response_norm", "nn.functional.embedding", "nn.functional.scaled_dot_product_attention",
]  # fmt: skip


# At the other level the batch is not known: torch.where has a form that is not pointwise, the operator takes sizes as numbers.
AT_ONE_LEVEL = {"where": "aten", "nn.functional.group_norm": "torch"}
CASES = [(name, level) for name in FAMILIES for level in ("torch", "aten") if AT_ONE_LEVEL.get(name, level) == level]


def samples(name, most=12):
    return [
        (op, sample)
        for op in op_db
        if op.name == name and torch.float64 in op.dtypes
        for sample, _ in zip(op.sample_inputs("cpu", torch.float64), range(most), strict=False)
    ]


OF_ROWS = ("neighbour", "batch", "position", "strides", "shift", "sequence", "padding", "pieces", "packed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "level"), CASES)
def test_rows_in_another_batch_are_mathematically_the_same(name, level):
    torch.manual_seed(0)
    cases = samples(name)
    with op_tools.OpInvariance(level=level, alignment=False, repeats=1, first_n_per_signature=1000) as tool:
        for op, sample in cases:
            op(sample.input, *sample.args, **sample.kwargs)
    result = tool.result()
    assert result.kept["batch"] + result.varied["batch"] > 0, result.reasons
    rows = [row for row in result.rows if row.relation in OF_ROWS]
    assert [row for row in rows if row.structure or row.max_abs > 1e-9] == []
    assert all(row.relation != "repeat" for row in result.rows)


def test_the_proof_of_the_table_sees_a_wrong_batch():
    """Rows of a running sum along the first dimension, under the name of an operator that has a batch."""
    x = torch.rand(6, 4, dtype=torch.float64).to("sim")
    with sim.fault("batch_position", ops="aten::cumsum", scale=2.0), op_tools.OpInvariance(level="aten") as tool:
        x.cumsum(1)
    assert [row for row in tool.result().rows if row.max_abs > 1e-9]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("offset", [0, 50])
@pytest.mark.parametrize("name", ["OpInvariance", "OpAutoCompare"])
def test_a_program_with_a_sparse_addend_lives(name, offset, level, tmp_path):
    """torch's own kernel counts the offset twice: copies with an offset of ours would be written past their end."""
    code = f"""
import torch, op_tools
dense = torch.zeros(300)[{offset}:{offset} + 100].view(20, 5)
with op_tools.{name}(level="{level}") as tool:
    dense.add_(torch.ones(20, 5).to_sparse())
print("alive", tool.result().verdict.value)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("alive")
    if offset == 0:
        assert run.stdout != "alive differs\n"


def test_beside_a_sparse_tensor_the_alignment_is_not_judged():
    dense, sparse = torch.zeros(4, 5), torch.ones(4, 5).to_sparse()
    with op_tools.OpInvariance(repeats=1) as tool:
        dense.add_(sparse)
    result = tool.result()
    assert result.kept["memory"] == 0 and any("sparse" in reason for reason in result.reasons)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_zero_tensors_without_memory_are_not_judged(level):
    x = torch.tensor([-0.4, 1.4, -2.6])
    with op_tools.OpInvariance(level=level) as tool:
        torch._efficientzerotensor((3,)) * x
        torch.func.hessian(lambda y: y.sin() @ y)(x)
    assert tool.result().rows == []
    assert tool.result().verdict.value == "not judged"
