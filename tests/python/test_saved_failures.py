"""A saved failure is judged by replay as it was judged live; tests/proofs/saved_failures.py does it for all operators."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools.sim_device as sim

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's test code imports modules that torch itself has deprecated
    import saved_failures

# Of each kind some: elementwise, sums, in place, several results, indices, views, lists, float32 scalars, convolutions,
# norms, losses, Python functions, decompositions.
OPERATORS = [
    "add",
    "mul",
    "div.floor_rounding",
    "exp",
    "sum",
    "mean",
    "cumsum",
    "mm",
    "addmm",
    "bmm",
    "matmul",
    "softmax",
    "log_softmax",
    "sort",
    "topk",
    "index_put",
    "index_select",
    "cat",
    "stack",
    "where",
    "clamp",
    "sub",
    "linalg.solve",
    "linalg.qr",
    "nn.functional.layer_norm",
    "nn.functional.batch_norm",
    "nn.functional.conv2d",
    "nn.functional.linear",
    "nn.functional.gelu",
    "nn.functional.embedding",
    "nn.functional.cross_entropy",
    "nn.functional.mse_loss",
    "nn.functional.interpolate.bilinear",
    "nn.functional.max_pool2d",
    "masked.softmax",
]


@pytest.mark.parametrize("name", OPERATORS)
def test_verdict_limits_and_numbers_are_the_live_ones(name, quiet):
    levels = ("torch", "aten")
    count = saved_failures.check_operator(name, samples=1, levels=levels)
    if count.saved == 0:  # seen once in a long run: the operator refused its first sample, a scalar, for each dtype
        count = saved_failures.check_operator(name, samples=3, levels=levels)
    assert count.saved > 0, "\n".join(["no fault was found: there is nothing to replay", *count.tried])
    assert [text for text in count.unequal if not saved_failures.reason_of(text)] == []


def live_and_replayed(tmp_path, work, kind="scale", **fault):
    """The live rows of the only failure of `work`, and those of its replay."""
    with sim.fault(kind, **fault), op_tools.OpAutoCompare(level="torch") as tool:
        work()
    (folder,) = {row["saved"] for row in tool.result().failures}
    rows = [row for row in tool.result().rows if row.get("saved") == folder]
    again, _ = saved_failures.replayed(folder, tmp_path / "report.json")
    return rows, again


def test_a_failure_under_autocast_is_judged_with_its_dtype(tmp_path):
    x = torch.randn(16, 16, device="sim")

    def work():
        with torch.autocast("sim", dtype=torch.bfloat16):
            torch.mm(x, x)

    rows, again = live_and_replayed(tmp_path, work, ops="mm", scale=1.5)
    assert [saved_failures.difference(row, again, "") for row in rows] == [""]
    assert rows[0]["dtype"] == "torch.bfloat16"


def test_scalars_that_float32_rounds_are_rounded_again(tmp_path):
    x = torch.arange(64, device="sim") * 0.1
    rows, again = live_and_replayed(
        tmp_path, lambda: torch.floor_divide(x, 0.1), "element", ops="floor_divide", scale=3.0
    )
    assert [saved_failures.difference(row, again, "") for row in rows] == [""]


def test_strides_that_a_device_got_wrong_are_still_wrong(tmp_path):
    x = torch.randn(4, 6, device="sim")
    rows, again = live_and_replayed(tmp_path, lambda: torch.exp(x), "strides", ops="exp")
    assert rows[0]["kind"] == "strides"
    assert [saved_failures.difference(row, again, "") for row in rows] == [""]


def test_the_method_of_the_failure_is_used_unless_another_is_given(tmp_path):
    x = torch.randn(8, 8, device="sim")
    with sim.fault("scale", ops="mm"), op_tools.OpAutoCompare(method="bitwise") as tool:
        torch.mm(x, x)
    (row,) = tool.result().failures
    again, _ = saved_failures.replayed(row["saved"], tmp_path / "report.json")
    assert again["output"]["method"] == row["method"] == "bitwise"
    other, _ = saved_failures.replayed(row["saved"], tmp_path / "other.json", "--method", "allclose")
    assert other["output"]["method"] == "allclose"


def test_the_fault_is_judged_alike_when_the_device_still_has_it(tmp_path):
    x = torch.randn(16, 16, device="sim")
    with sim.fault("scale", ops="mm"):
        with op_tools.OpAutoCompare() as tool:
            torch.mm(x, x)
        (row,) = tool.result().failures
        again, _ = saved_failures.replayed(row["saved"], tmp_path / "report.json", "--device", "sim", against="cpu")
    assert saved_failures.difference(row, again, "") == ""


def adds_beyond(x, other, alpha=1):
    """A kernel of add_ that writes an element behind its tensor, too."""
    x.copy_((x.cpu() + alpha * other.cpu()).to("sim"))
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).copy_(torch.full((1,), 9.0, device="sim"))
    return x


def test_memory_that_a_device_wrote_beside_is_still_written(tmp_path):
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("add_.Tensor", adds_beyond, "PrivateUse1")
        with op_tools.OpAutoCompare(output_dir=tmp_path) as tool, op_tools.OpCapture(output_dir=tmp_path) as capture:
            torch.randn(8).to("sim")[:4].add_(torch.ones(4, device="sim"))
        (row,) = tool.result().failures
        assert row["kind"] == "memory beside"
        report = tmp_path / "report.json"
        for options, against in (((), "saved"), (("--device", "sim"), "cpu")):
            again, _ = saved_failures.replayed(row["saved"], report, *options, against=against)
            assert saved_failures.difference(row, again, "") == ""
        # A capture says nothing of memory beside; the device that runs it again does.
        (folder,) = Path(capture.result().root).glob("torch.Tensor.add_/*")
        kinds = []
        for device in ("sim", "cpu"):
            arguments = [str(folder), "--acc_check", "--quiet", "--no_summary", "--json", str(report)]
            saved_failures.replay([*arguments, "--device", device])
            (call,) = json.loads(report.read_text())["calls"]
            kinds.append([check["kind"] for check in call["checks"] if check["verdict"] == "differs"])
        assert kinds == [["memory beside"], []]


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_result_on_another_device_is_named_by_replay(level, tmp_path):
    with op_tools.OpCapture(level=level, output_dir=tmp_path) as capture:
        torch.exp(torch.ones(4, device="sim"))
        torch.ones(4, device="sim").cpu()
    report = tmp_path / "report.json"

    def differing():
        saved_failures.replay(
            [capture.result().root, "--acc_check", "--quiet", "--no_summary", "--json", str(report), "--device", "sim"]
        )
        checks = [(call["name"], check) for call in json.loads(report.read_text())["calls"] for check in call["checks"]]
        return [("exp" in op, check["kind"]) for op, check in checks if check["verdict"] == "differs"]

    assert differing() == []
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("exp", lambda x: torch.exp(x.cpu()), "PrivateUse1")
        assert differing() == [(True, "device")]
