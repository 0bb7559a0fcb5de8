"""op_tools_compat.troubleshooter: the files of api_dump are those that the tool itself wrote of the same program."""

import csv
import importlib.util
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import launched
from torch import nn

import op_tools
from op_tools import formats
from op_tools_compat import troubleshooter as ts
from op_tools_compat._align import align
from op_tools_compat.troubleshooter._compare import nine_digits

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "formats"


def model_of_the_golden_dumps():
    spec = importlib.util.spec_from_file_location("golden_model", GOLDEN / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make()


@pytest.fixture
def golden(tmp_path):
    def unpack(name):
        with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
        return tmp_path / name

    return unpack


def train(output, steps=2, lr=0.1, init=None, **start):
    net, x = model_of_the_golden_dumps()
    ts.migrator.api_dump_init(net, output, **(init or {"retain_backward": True, "compare_statedict": True}))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    ts.migrator.api_dump_start(**start)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).backward()
        optimizer.step()
    ts.migrator.api_dump_stop()
    return net


def rows(folder, rank=0):
    text = (folder / f"rank{rank}" / "torch_api_dump_info.csv").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("filter_data", [True, False])
def test_the_files_are_those_of_the_tool(filter_data, golden, tmp_path):
    theirs = golden("troubleshooter" if filter_data else "troubleshooter_unfiltered")
    train(tmp_path / "ours", filter_data=filter_data)
    ours = tmp_path / "ours"
    # torch hands the arguments of functions that are written in Python to modes as keywords, which have no rows.
    by_keyword = {f"Functional_dropout_{i}_forward_input.1" for i in (0, 1)}
    expected = {row[0]: row for row in rows(theirs) if row[0] not in by_keyword}
    own_rows = {row[0]: row for row in rows(ours)}
    assert set(own_rows) == set(expected)
    # Forward rows in their order; the engine's order of gradients is its own.
    assert [name for name in own_rows if "forward" in name] == [name for name in expected if "forward" in name]
    for name, row in expected.items():
        own = own_rows[name]
        assert own[1:5] == row[1:5], name
        assert own[5][:2] == row[5][:2], name
        if "_forward_output" in name and row[4]:
            assert own[5][2] == pytest.approx(np.load(ours / f"rank0/torch_api_dump/{name}.npy").mean(), abs=1e-6)
        assert own[7] == pytest.approx(row[7], rel=1e-6), name
    arrays = {path.name for path in (ours / "rank0/torch_api_dump").iterdir()}
    assert arrays == {path.name for path in (theirs / "rank0/torch_api_dump").iterdir() if path.stem not in by_keyword}
    for name in arrays:
        own, other = (np.load(folder / "rank0/torch_api_dump" / name) for folder in (ours, theirs))
        assert np.array_equal(own, other) and own.dtype == other.dtype, name
        assert (ours / "rank0/torch_api_dump" / name).stat().st_mode & 0o777 == 0o400
    stacks = json.loads((ours / "rank0/torch_api_dump_stack.json").read_text())
    other = json.loads((theirs / "rank0/torch_api_dump_stack.json").read_text())
    assert set(stacks) == set(other) and "LAYER: block_lin forward" in stacks
    layer = stacks["LAYER: block_lin forward"][0].partition("model.py")[2]
    assert layer == other["LAYER: block_lin forward"][0].partition("model.py")[2] != ""
    line = stacks["torch.nn.functional.dropout(0) forward"][0]
    assert line.endswith("model.py, line 12, in forward, \n y = F.dropout(y, 0.5, training=True)")
    assert line.partition("model.py")[2] == other["torch.nn.functional.dropout(0) forward"][0].partition("model.py")[2]
    state = torch.load(ours / "rank0/pt_net.pth", weights_only=True)
    assert set(state) == {"block.lin.weight", "block.lin.bias"}
    assert torch.equal(state["block.lin.weight"], model_of_the_golden_dumps()[0].block.lin.weight)


def of_mindtorch(folder):
    """The same dump as if mindtorch had written it."""
    for path in sorted(folder.rglob("torch_api_dump*"), reverse=True):
        path.rename(path.with_name(path.name.replace("torch", "mindtorch", 1)))
    return folder


def test_a_dump_of_mindtorch_is_compared_in_its_columns(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b")
    ts.migrator.api_dump_compare(str(tmp_path / "a"), str(of_mindtorch(tmp_path / "b")), str(tmp_path / "out"))
    with (tmp_path / "out" / "ts_api_forward_compare_0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "ORIGIN NET (pytorch)",
        "TARGET NET (mindtorch)",
        "ratio of allclose",
        "cosine similarity",
        "mean cmp (pt, mt)",
        "max cmp (pt, mt)",
        "min cmp (pt, mt)",
        "shape cmp (pt, mt)",
        "dtype cmp (pt, mt)",
    ]
    linear = next(row for row in rows if row["ORIGIN NET (pytorch)"] == "NN_Linear_0_forward_output")
    values = np.load(tmp_path / "a" / "rank0" / "torch_api_dump" / "NN_Linear_0_forward_output.npy")
    largest, again = linear["max cmp (pt, mt)"].split(", ")
    assert largest == again and float(largest) == pytest.approx(values.max())
    assert linear["shape cmp (pt, mt)"] == str(values.shape) and linear["dtype cmp (pt, mt)"] == "float32"
    assert linear["ratio of allclose"] == "100.00%"


def test_the_dump_is_read_and_its_calls_replay(tmp_path, replay):
    train(tmp_path / "ours", filter_data=False)
    done = formats.import_dump(formats.read_dump(tmp_path / "ours"), tmp_path / "calls")
    again = replay(tmp_path / "calls", "--acc_check")
    assert again.status == 0 and again.summary["agrees"] >= 10, again.out
    assert done.calls >= again.summary["agrees"]


def test_nothing_is_dropped_and_p_is_given_back(tmp_path):
    net, x = model_of_the_golden_dumps()
    lstm = nn.LSTM(3, 3, num_layers=2, dropout=0.5)
    net.add_module("lstm", lstm)
    before = torch.get_rng_state()
    ts.migrator.api_dump_init(net, tmp_path)
    ts.migrator.api_dump_start(dump_type="stack")
    assert net.drop.p == 0 and lstm.dropout == 0
    same = [
        torch.equal(net(x), net(x)),
        torch.equal(F.alpha_dropout(x, 0.9, True), x),
        torch.equal(lstm(x)[0], lstm(x)[0]),
    ]
    attention = [F.scaled_dot_product_attention(x, x, x, dropout_p=0.9) for _ in range(2)]
    ts.migrator.api_dump_stop()
    assert all(same) and torch.equal(*attention)
    assert torch.equal(torch.get_rng_state(), before)
    assert net.drop.p == 0.3 and lstm.dropout == 0.5
    assert not torch.equal(F.dropout(x + 1, 0.9), x + 1)


def test_a_program_that_raises_gets_its_dropout_back(tmp_path):
    net, x = model_of_the_golden_dumps()
    ts.migrator.api_dump_init(net, tmp_path)
    ts.migrator.api_dump_start()
    with pytest.raises(RuntimeError):
        net(torch.ones(2, 7))
    net(x)  # and later calls are dumped
    ts.migrator.api_dump_stop()
    assert net.drop.p == 0.3
    assert "NN_Linear_0_forward_output" in [row[0] for row in rows(tmp_path)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mode": "list", "scope": ["NN_Linear_1", "Torch_cat_0"]}, {"NN_Linear_1", "Torch_cat_0"}),
        ({"mode": "api_list", "scope": ["relu", "cat"]}, {"NN_ReLU_0", "NN_ReLU_1", "Torch_cat_0", "Torch_cat_1"}),
        (
            {"mode": "range", "scope": ["Tensor_split_0", "Tensor_sum_0"]},
            {"Tensor_split_0", "Functional_layer_norm_0", "Tensor_sum_0"},
        ),
    ],
)
def test_scopes(settings, expected, tmp_path):
    train(tmp_path, **settings)
    dump = formats.read_dump(tmp_path)
    assert {call.foreign_name for call in dump.calls} == expected


@pytest.mark.parametrize(
    ("dump_type", "arrays", "numbers"),
    [("all", True, True), ("statistics", False, True), ("npy", True, False), ("stack", False, False)],
)
def test_types_of_dumps(dump_type, arrays, numbers, tmp_path):
    train(tmp_path, dump_type=dump_type)
    relu = next(row for row in rows(tmp_path) if row[0] == "NN_ReLU_0_forward_output")
    assert (relu[5][0] == relu[5][0]) is numbers  # else NaN
    assert any((tmp_path / "rank0/torch_api_dump").iterdir()) is arrays
    assert (tmp_path / "rank0/torch_api_dump_stack.json").stat().st_size > 100


def test_numbers_go_on_after_a_pause(tmp_path):
    net, x = model_of_the_golden_dumps()
    ts.migrator.api_dump_init(net, tmp_path)
    for _ in range(2):
        ts.migrator.api_dump_start()
        net(x)
        ts.migrator.api_dump_stop()
        net(x)
    names = [row[0] for row in rows(tmp_path)]
    assert "NN_Linear_0_forward_output" in names and "NN_Linear_1_forward_output" in names
    assert "NN_Linear_2_forward_output" not in names


def test_a_gradient_that_comes_after_the_stop_is_added(tmp_path):
    net, x = model_of_the_golden_dumps()
    ts.migrator.api_dump_init(net, tmp_path, retain_backward=True)
    ts.migrator.api_dump_start()
    loss = net(x)
    ts.migrator.api_dump_stop()
    loss.backward()
    assert "NN_ReLU_0_backward_input" in [row[0] for row in rows(tmp_path)]


def test_operators_and_methods_have_their_names(tmp_path):
    net, x = model_of_the_golden_dumps()
    ts.migrator.api_dump_init(net, tmp_path)
    ts.migrator.api_dump_start()
    x.mul(2.0) + x
    y = x / x
    y -= x
    ts.migrator.api_dump_stop()
    names = {call.foreign_name for call in formats.read_dump(tmp_path).calls}
    assert names == {"Tensor_mul_0", "Tensor___add___0", "Tensor___truediv___0", "Tensor___isub___0"}


def test_the_program_computes_what_it_computes_without_dropout(tmp_path):
    net = train(tmp_path)
    plain, x = model_of_the_golden_dumps()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        plain.drop.p = 0.0
        torch.manual_seed(0)
        y = plain.block.act(plain.block.lin(x))
        y = plain.drop(torch.cat([y, y * 2.0], dim=1))
        a, b = y.split([3, 1], dim=1)
        (F.layer_norm(a, (3,)).sum() + b.mean().add(1)).backward()
        optimizer.step()
    assert torch.equal(net.block.lin.weight, plain.block.lin.weight)


def test_wrong_arguments_are_said(tmp_path):
    net, _ = model_of_the_golden_dumps()
    with pytest.raises(op_tools.Error, match="net is a int"):
        ts.migrator.api_dump_init(3, tmp_path)
    ts.migrator.api_dump_init(net, tmp_path)
    for arguments, message in [
        ({"mode": "some"}, "mode: 'some' is not allowed; give all, list"),
        ({"dump_type": "x"}, "dump_type: 'x' is not allowed"),
        ({"scope": ["a_0"]}, "mode 'all' has no scope"),
        ({"mode": "list", "scope": ["relu"]}, "names as Functional_softmax_1"),
        ({"mode": "range", "scope": ["a_0"]}, r"\[start, end\]"),
        ({"mode": "api_list"}, "parts of names"),
        ({"statistic_category": ["median"]}, "statistic_category: 'median' is not allowed"),
    ]:
        with pytest.raises(op_tools.Error, match=message):
            ts.migrator.api_dump_start(**arguments)


# --- Comparing ----------------------------------------------------------------------------------------------------------


def table(path):
    with path.open() as file:
        return [row for row in csv.reader(file) if row]


def test_the_tables_are_those_of_the_tool(golden, tmp_path, capsys):
    origin, target = golden("troubleshooter"), golden("troubleshooter_other")
    ts.migrator.api_dump_compare(origin, target, tmp_path / "out")
    assert "2 steps" in capsys.readouterr().out
    for step in (0, 1):
        for name in ("mapping", "forward_compare", "backward_compare"):
            file = f"ts_api_{name}_{step}.csv"
            ours, theirs = table(tmp_path / "out" / file), table(GOLDEN / "troubleshooter_compare" / file)
            assert ours[0] == theirs[0], file
            if name == "mapping":
                assert ours == [row for row in theirs if "LAYER" not in row[0]]
                continue
            assert sorted(row[:5] for row in ours) == sorted(row[:5] for row in theirs), file
            numbers = {row[0]: row[5:] for row in theirs[1:]}
            for row in ours[1:]:
                near = [
                    (float(a), float(b))
                    for x, y in zip(row[5:], numbers[row[0]])
                    for a, b in zip(x.rstrip("%").split(", "), y.rstrip("%").split(", "))
                ]
                # Cut to two decimals of a ratio, and to five of other numbers.
                limits = [1.1e-2, *[1.1e-5] * (len(near) - 1)]
                assert all(a == pytest.approx(b, abs=limit, nan_ok=True) for (a, b), limit in zip(near, limits)), row
    # Theirs prints 0.00000 for this difference; nine digits are kept here.
    small = next(
        row for row in table(tmp_path / "out/ts_api_backward_compare_1.csv") if "split_1_backward_input.0" in row[0]
    )
    assert "e-0" in small[7]
    both = table(tmp_path / "out" / "ts_api_forward_compare.csv")
    steps = [table(tmp_path / "out" / f"ts_api_forward_compare_{step}.csv") for step in (0, 1)]
    assert both == [*steps[0], *steps[1][1:]]


def test_statistics_are_compared_where_there_are_no_values(tmp_path):
    train(tmp_path / "a", dump_type="statistics")
    train(tmp_path / "b", dump_type="statistics", lr=0.2)
    ts.migrator.api_dump_compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    header, *compared = table(tmp_path / "out/ts_api_forward_compare_1.csv")
    assert header[2:] == ["shape of orig", "shape of target", "max, min, mean diffs"]
    linear = next(row for row in compared if row[0] == "NN_Linear_1_forward_output")
    largest, smallest, mean = (float(one) for one in linear[4].split(", "))
    assert largest > 0.01 and mean > 0 and smallest == pytest.approx(0, abs=1)


def test_calls_of_one_dump_only_are_rows_with_none(tmp_path):
    class Longer(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(torch.tanh(x))

    for name, wrap in (("a", lambda net: net), ("b", Longer)):
        net, x = model_of_the_golden_dumps()
        net = wrap(net)
        ts.migrator.api_dump_init(net, tmp_path / name)
        ts.migrator.api_dump_start()
        net(x)
        ts.migrator.api_dump_stop()
    ts.migrator.api_dump_compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert table(tmp_path / "out/ts_api_mapping_0.csv")[1] == ["", "Torch_tanh_0"]
    compared = table(tmp_path / "out/ts_api_forward_compare_0.csv")
    assert ["None", "Torch_tanh_0_forward_output", "None", "(2, 3)", "False", "0.00%", "nan", "nan, nan"] in compared
    ts.migrator.api_dump_compare(tmp_path / "a", tmp_path / "b", tmp_path / "less", ignore_unmatched=True)
    assert not any("None" in row for row in table(tmp_path / "less/ts_api_forward_compare_0.csv"))


def test_alignment_pairs_every_item_once_and_in_order():
    pairs = align("abcxd", "bcyd")
    assert pairs == [(0, None), (1, 0), (2, 1), (3, None), (None, 2), (4, 3)]
    assert align([], "ab") == [(None, 0), (None, 1)]
    assert (nine_digits(0.0, 5), nine_digits(4.7e-7, 5), nine_digits(1.0, 2), nine_digits(float("nan"), 5)) == (
        "0.00000",
        "4.7e-07",
        "1.00",
        "nan",
    )


PARALLEL = """
import sys, time, torch, torch.distributed as dist
from op_tools_compat import troubleshooter as ts
dist.init_process_group("gloo")
for folder in sys.argv[1:]:
    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    ts.migrator.api_dump_init(net, folder, retain_backward=True)
    ts.migrator.api_dump_start()
    for _ in range(2):
        ddp(torch.full((2, 3), dist.get_rank() + 1.0)).sum().backward()
    ts.migrator.api_dump_stop()
time.sleep(1)  # gloo's thread frees the last gradient's work; where Python ends first, torch aborts
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_every_rank_of_a_parallel_run_has_its_dump(tmp_path):
    (tmp_path / "train.py").write_text(PARALLEL)
    launched("train.py", "a", "b", ranks=2, cwd=tmp_path)
    inputs = [np.load(tmp_path / f"a/rank{rank}/torch_api_dump/NN_Linear_1_forward_input.0.npy") for rank in (0, 1)]
    assert (inputs[0] == 1).all() and (inputs[1] == 2).all()
    for rank in (0, 1):
        assert "NN_Linear_1_backward_input" in [row[0] for row in rows(tmp_path / "a", rank)]
    assert {call.rank for call in formats.read_dump(tmp_path / "a").calls} == {0, 1}
    ts.migrator.api_dump_compare(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert all(row[4] == "True" for row in table(tmp_path / "out/rank1/ts_api_forward_compare_1.csv")[1:])
