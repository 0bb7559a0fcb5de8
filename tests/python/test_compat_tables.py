"""op-tools compare --format: the rows of a comparison as the tables of msprobe and troubleshooter."""

import csv
from pathlib import Path

import pytest
import torch
from test_compare_runs import recorded

import op_tools.sim_device as sim
from op_tools.__main__ import main


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_of_msprobe_has_its_columns_and_every_tensor(tmp_path):
    a = recorded(tmp_path / "a", device="sim").path
    with sim.fault("scale", ops="aten::relu", call=1, scale=1.5):
        b = recorded(tmp_path / "b", device="sim").path
    assert main(["compare", a, b, "--csv", str(tmp_path / "table.csv"), "--format", "msprobe"]) == 1
    rows = read_table(tmp_path / "table.csv")
    assert list(rows[0])[:2] == ["NPU Name", "Bench Name"] and list(rows[0])[8:12] == [
        "Max diff",
        "Min diff",
        "Mean diff",
        "L2norm diff",
    ]
    assert len(rows[0]) == 28
    (wrong,) = [row for row in rows if row["Result"] == "error"]
    assert wrong["NPU Name"] == wrong["Bench Name"] == "Torch.relu.1.forward.output.0"
    assert wrong["Err_message"] == "born here: other numbers" and "test_compare_runs.py" in wrong["NPU_Stack_Info"]
    assert float(wrong["NPU max"]) == pytest.approx(1.5 * float(wrong["Bench max"]))
    assert float(wrong["Max diff"]) == pytest.approx(0.5 * float(wrong["Bench max"]))
    assert wrong["MaxRelativeErr"].endswith("%") and float(wrong["MaxRelativeErr"][:-1]) == pytest.approx(50)
    names = [row["Bench Name"] for row in rows]
    assert "Functional.linear.3.forward.input.0" in names and "Functional.linear.3.backward.output.0" in names
    carried = {row["Bench Name"] for row in rows if row["Result"] == "warning"}
    assert "Functional.linear.2.forward.output.0" in carried


def test_a_call_of_one_run_has_its_rows_in_the_tables(tmp_path):
    a = recorded(tmp_path / "a", steps=2).path
    b = recorded(tmp_path / "b", edits={1: torch.relu}, steps=2).path
    assert main(["compare", a, b, "--csv", str(tmp_path / "table.csv"), "--format", "msprobe"]) == 0
    assert sorted(one.name for one in tmp_path.glob("table*")) == ["table_step0.csv", "table_step1.csv"]
    rows = read_table(tmp_path / "table_step1.csv")
    alone = [row for row in rows if row["Bench Name"] == "N/A"]
    assert {row["NPU Name"].split(".")[1] for row in alone} == {"relu"}
    assert {row["Result"] for row in alone} == {"N/A"} and "only in B" in {row["Err_message"] for row in alone}


def test_the_tables_of_troubleshooter_are_those_of_its_own_compare(tmp_path):
    a = recorded(tmp_path / "a", edits={1: lambda out: out * out + out}, steps=2).path
    b = recorded(tmp_path / "b", edits={1: lambda out: torch.addcmul(out, out, out)}, steps=2).path
    assert main(["compare", a, b, "--csv", str(tmp_path / "ts"), "--format", "troubleshooter"]) == 0
    names = sorted(one.name for one in (tmp_path / "ts").iterdir())
    golden = Path(__file__).resolve().parents[1] / "data" / "formats" / "troubleshooter_compare"
    assert {one.name for one in golden.iterdir()} < set(names) and len(names) == 9
    mapping = read_table(tmp_path / "ts" / "ts_api_mapping_0.csv")
    assert list(mapping[0]) == list(read_table(golden / "ts_api_mapping_0.csv")[0])
    assert {"ORIGIN NET (pytorch)": "Tensor_mul_0\nTensor_add_0", "TARGET NET (pytorch)": "Torch_addcmul_0"} in mapping
    rows = read_table(tmp_path / "ts" / "ts_api_forward_compare_0.csv")
    assert list(rows[0]) == [*list(mapping[0]), "shape of orig", "shape of target", "max, min, mean diffs"]
    linear = next(row for row in rows if row["ORIGIN NET (pytorch)"] == "Functional_linear_0_forward_input.0")
    assert linear["shape of orig"] == "(8, 16)" and linear["max, min, mean diffs"] == "0.00000, 0.00000, 0.00000"
    backward = read_table(tmp_path / "ts" / "ts_api_backward_compare.csv")
    assert "Functional_linear_3_backward_input.0" in [row["TARGET NET (pytorch)"] for row in backward]


def test_a_table_that_cannot_be_written_is_said(tmp_path, capsys):
    a = recorded(tmp_path / "a").path
    for form in ([], ["--format", "msprobe"], ["--format", "troubleshooter"]):
        assert main(["compare", a, a, "--csv", "/proc/none/table.csv", *form]) == 2
        assert "/proc/none" in capsys.readouterr().err
