"""op-tools support: the operators that a device runs. The proof support_tables runs all of torch's samples against the predictions."""

import csv
import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools.__main__
import op_tools.sim_device as sim
from op_tools._torch.backends import usable_device
from op_tools._torch.operator_support import Watch, registration
from op_tools.analyse import _support
from op_tools.analyse._judged import enter_conformance, read_conformance
from op_tools.analyse._support import _add_by_name, _operators, _row_of_calls
from op_tools.analyse._table import SupportTable, read_table


@pytest.fixture
def table():
    """Makes a table of the simulated device, of a few functions."""
    functions = {
        "torch.mm": lambda device: torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device)),
        "torch.nn.functional.linear": lambda device: torch.nn.functional.linear(
            torch.ones(2, 2, device=device, requires_grad=True), torch.ones(2, 2, device=device)
        ),
        "torch.relu": lambda device: torch.relu(torch.ones(2, device=device)),
    }

    def make():
        watch = Watch("sim")
        rows = {
            name: _row_of_calls([lambda device, call=call: lambda: call(device)], watch, "sim")
            for name, call in functions.items()
        }
        operators = _operators("PrivateUse1", watch.tried)
        _add_by_name(rows, operators)
        names = {"torch": dir(torch), "torch.Tensor": dir(torch.Tensor)}
        return SupportTable(
            {
                "format": 1,
                "torch": torch.__version__,
                "device": "sim",
                "backend": "PrivateUse1",
                "operators": operators,
                "functions": rows,
                "names": names,
            }
        )

    return make


def test_kinds_of_registration():
    assert registration("aten::mm", "CPU") == ("kernel", "kernel for CPU")
    assert registration("aten::linear", "CPU") == ("composite", "CompositeImplicitAutograd")
    assert registration("aten::cudnn_convolution", "CPU")[0] == "missing"
    assert registration("aten::int_repr", "CPU") == ("kernel", "kernel for QuantizedCPU")
    assert registration("aten::cudnn_convolution", "PrivateUse1")[0] == "fallback"


def test_functions_are_what_their_operators_are(table):
    whole = table()
    assert whole.support("torch.mm").status == "supported"
    assert whole.support("torch.nn.functional.linear").status == "supported"
    with sim.fault("missing", ops="mm"):
        without = table()
    assert without.content["operators"]["aten::mm"]["status"] == "missing"
    assert "NotImplementedError" in without.support("torch.mm").evidence
    for name in ("torch.mm", "torch.nn.functional.linear", "torch.Tensor.mm", "torch.ops.aten.mm.default"):
        assert without.support(name).status == "unsupported", name
    assert without.support("torch.relu").status == "supported"


def test_a_missing_operator_of_backward_is_found(table):
    with sim.fault("missing", ops="mm", call=range(2, 100)):  # of torch.mm, and linear's forward
        measured = table()
    row = measured.content["operators"]["aten::mm"]
    assert row["status"] == "kernel" and "refused" in row["evidence"]
    assert "aten::mm" in measured.content["functions"]["torch.nn.functional.linear"]["backward"]


def test_names_that_no_sample_calls(table):
    measured = table()
    assert measured.support("torch.Tensor.relu_").status == "supported"
    assert measured.support("torch.Tensor.shape").status == "python"
    assert measured.support("torch.save").status == "python"
    assert measured.support("torch.no_such_name").status == "unknown"
    assert measured.support("torch.ops.aten.no_such_name.default").status == "unknown"


def test_a_table_is_read_as_it_was_written(table, tmp_path):
    measured = table()
    measured.write(tmp_path / "t.json")
    read = read_table(tmp_path / "t.json")
    assert read.content == measured.content and read.counts() == measured.counts() and read.device == "sim"


def test_the_command_makes_a_table_of_the_cpu(tmp_path, capsys, quiet):
    assert op_tools.__main__.main(["support", "--device", "cpu", "--samples", "1", "-o", str(tmp_path / "t.json")]) == 0
    assert "functions supported" in capsys.readouterr().out
    table = read_table(tmp_path / "t.json")
    assert table.counts()["supported"] > 1000
    for name in ("torch.nn.Linear", "torch.nn.functional.conv2d", "torch.Tensor.__matmul__", "torch.linalg.det"):
        assert table.support(name).status == "supported", name
    assert table.support("torch.cudnn_convolution").status == "unsupported"
    assert "aten::_softmax" in table.support("torch.softmax").evidence


def test_a_backend_that_is_not_there_is_named(tmp_path, capsys):
    out = ["-o", str(tmp_path / "t.json")]
    assert op_tools.__main__.main(["support", "--device", "cuda", *out]) == 2
    assert "--device cuda" in capsys.readouterr().err
    assert op_tools.__main__.main(["support", "--device", "cpu", "--import", "no_such_module", *out]) == 2
    assert "no_such_module" in capsys.readouterr().err


def test_an_index_that_no_device_has_is_named():
    with pytest.raises(op_tools.Error, match=r"sim:9: .*there are 2, with numbers from 0") as raised:
        usable_device("sim:9")
    assert "--import" not in str(raised.value)


def test_no_samples_are_wrong_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        op_tools.__main__.main(["support", "--device", "cpu", "-o", "t.json", "--samples", "0"])
    assert ended.value.code == 64 and "give a number from 1" in capsys.readouterr().err


MINE = [
    {
        "op": "torch.mm",
        "args": [{"tensor": {"shape": [4, 5], "dtype": dtype}}, {"tensor": {"shape": [5, 3], "dtype": dtype}}],
    }
    for dtype in ("float32", "float64", "bfloat16")
] + [{"op": "torch.relu", "args": [{"tensor": {"shape": [4], "dtype": "float32"}}]}]


def test_what_a_conformance_result_found_is_in_the_table_and_in_the_analysis(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text(json.dumps(MINE))
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=mm,scale=1.001;missing:ops=relu")  # less than bfloat16 shows
    arguments = ["--device", "sim", "--import", "op_tools.sim_device", "--mine", "mine.json", "-o", "result"]
    assert op_tools.__main__.main(["conformance", "run", *arguments]) == 1
    monkeypatch.delenv("OP_TOOLS_SIM_FAULTS")
    measured = table()
    assert measured.support("torch.mm") == measured.support("torch.Tensor.mm")
    assert measured.support("torch.mm").status == "supported" and not measured.support("torch.mm").warning
    judged_table = SupportTable(measured.content)
    enter_conformance(judged_table, read_conformance("result", "sim"))
    judged = judged_table.content["functions"]["torch.mm"]["judged"]
    assert {dtype: (one["right"], one["wrong"], one["unsupported"]) for dtype, one in judged.items()} == {
        "bfloat16": (1, 0, 0),
        "float32": (0, 1, 0),
        "float64": (0, 1, 0),
    }
    for name in ("torch.mm", "torch.Tensor.mm"):
        said = judged_table.support(name).warning
        assert said.startswith("float32: 1 of 1 cases: forward: aten::mm: values of output"), name
    assert judged_table.support("torch.nn.functional.linear").warning.startswith(
        "aten::mm: float32"
    )  # its gradient calls it
    assert judged_table.support("torch.ops.aten.mm.default").warning and not judged_table.support("torch.relu").warning
    assert (
        judged_table.support("torch.relu").status == "partial"
        and "float32: forward: " in judged_table.support("torch.relu").evidence
    )
    judged_table.write("t.json")
    Path("net.py").write_text("import torch\na = torch.ones(2, 2)\nprint(torch.relu(torch.mm(a, a)))\n")
    assert op_tools.__main__.main(["analyse", "-i", "net.py", "-o", ".", "--support", "t.json"]) == 0
    with Path("net_analysis/api_precision_advice.csv").open(newline="") as file:
        (row,) = [one for one in csv.DictReader(file) if "conformance" in one["Tips"]]
    assert row["OP"] == "torch.mm" and row["Start Line"] == "3" and "values of output" in row["Tips"]
    assert "torch.relu,some calls do not run: float32" in Path("net_analysis/unknown_api.csv").read_text()
    capsys.readouterr()
    shutil.copytree("result", "void")
    facts = json.loads(Path("void/run.json").read_text())
    Path("void/run.json").write_text(json.dumps({**facts, "self-test": "no fault was found"}))
    wrong = [("cpu", "result", "of device sim"), ("sim", "nowhere", "no result of op-tools conformance")]
    for device, folder, text in (*wrong, ("sim", "void", "not to be trusted: no fault was found")):
        command = ["support", "--device", device, "--conformance", folder, "-o", "u.json"]
        assert op_tools.__main__.main(command) == 2 and text in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_predictions_are_what_really_runs(monkeypatch, quiet):
    """A share of the proof support_tables: every fifth function of torch's samples, 40 operators removed."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "proofs"))
    import support_tables as proof

    op_db, _ = _support._databases()
    monkeypatch.setattr(_support, "_databases", lambda: (op_db[::5], []))
    functions = {_support._names_of(info)[0]: [info] for info in op_db[::5]}
    sim.set_asynchronous(False)
    try:
        whole = _support.make_table("sim", 3)
        names = random.Random(5).sample(proof.candidates_of(whole), 40)
        counts = Counter()
        with sim.fault("missing", ops=proof.expressions_of(names)):
            tables = {"measured": _support.make_table("sim", 3), "derived": proof.removed_from(whole, names)}
            proof.compare(tables, "sim", functions, counts, 3)
    finally:
        sim.set_asynchronous(True)
    assert counts["measured", "all"] > 100 and counts["measured", "really unsupported"] >= 10
    for kind in ("measured", "derived"):
        assert counts[kind, "agree"] >= 0.99 * counts[kind, "all"], kind
