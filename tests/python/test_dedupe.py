"""OpCapture with dedupe=True: equal bytes once, calls that read and replay as without, export."""

import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import launched
from models import same_bits

import op_tools

LAYOUTS = ["folders", "container"]


def train(steps=4):
    torch.manual_seed(0)
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(2, 64)
    for _ in range(steps):
        F.linear(x, weight).relu().sum().backward()
        weight.data.sub_(weight.grad, alpha=0.001)  # version counters do not see this
    return weight


def same(value, other):
    """Equal values, tensors bit for bit."""
    if isinstance(value, torch.Tensor):
        return same_bits(value, other) and value.requires_grad == other.requires_grad
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, (tuple, list)):
        return len(value) == len(other) and all(map(same, value, other))
    return type(value) is type(other) and value == other


def calls_of(root, layout):
    if layout == "folders":
        return {str(path.parent.relative_to(root)): path.parent for path in Path(root).rglob("input.pth")}
    with zipfile.ZipFile(f"{root}/calls.zip") as entries:
        names = [name.rpartition("/")[0] for name in entries.namelist() if name.endswith("/input.pth")]
    return {name: f"{root}/calls.zip!{name}" for name in names}


def run(**arguments):
    with op_tools.OpCapture(**arguments) as tool:
        train()
    return tool.result().root


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_are_those_of_a_capture_without_dedupe(layout):
    plain, shared = run(), run(dedupe=True, format=layout)
    plain_calls, shared_calls = calls_of(plain, "folders"), calls_of(shared, layout)
    assert len(plain_calls) == len(shared_calls) >= 12

    def in_order(calls):
        return [calls[name] for name in sorted(calls, key=lambda name: int(name.rpartition("/")[2]))]

    for folder, shared_folder in zip(in_order(plain_calls), in_order(shared_calls), strict=True):
        alone, other = op_tools.load_call(folder), op_tools.load_call(shared_folder)
        for part in ("name", "args", "kwargs", "result", "grad_inputs", "grad_outputs"):
            assert same(getattr(alone, part), getattr(other, part)), (folder, part)
        for key in alone.meta.keys() - {"id", "time"}:
            assert alone.meta[key] == other.meta[key], (folder, key)


def test_bytes_that_come_again_are_stored_once():
    weight = torch.randn(256, 256)
    sizes = []
    for dedupe in (False, True):
        with op_tools.OpCapture(dedupe=dedupe, ops=".*linear") as tool:
            for i in range(10):
                F.linear(torch.full((1, 256), float(i)), weight)
        sizes.append(sum(file.stat().st_size for file in Path(tool.result().root).rglob("*") if file.is_file()))
    assert sizes[0] > 10 * weight.nbytes
    assert sizes[1] < 2 * weight.nbytes


def test_torch_load_opens_the_files_and_shows_where_the_bytes_are():
    with op_tools.OpCapture(dedupe=True, ops="torch.add") as tool:
        torch.add(torch.full((64, 64), 2.0), 1)
    root = Path(tool.result().root)
    (file,) = root.rglob("input.pth")
    reference = torch.load(file, weights_only=True)["args"][0]["__tensor__"]
    assert reference["dtype"] == torch.float32 and reference["shape"] == (64, 64) and reference["offset"] == 0
    stored = torch.load(root / "tensors" / f"{reference['content']}.pth", weights_only=True)
    assert torch.equal(stored.view(torch.float32).reshape(64, 64), torch.full((64, 64), 2.0))
    assert torch.equal(op_tools.load(file)["args"][0], torch.full((64, 64), 2.0))


def test_the_variable_switches_it_on(monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_DEDUPE", "1")
    assert (Path(run()) / "tensors").is_dir()
    assert not (Path(run(dedupe=False)) / "tensors").exists()
    monkeypatch.setenv("OP_CAPTURE_DEDUPE", "perhaps")
    with pytest.raises(op_tools.Error, match="OP_CAPTURE_DEDUPE"):
        op_tools.OpCapture().start()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_reads_both_layouts(layout, replay):
    root = run(dedupe=True, format=layout)
    done = replay(root, "--acc_check")
    assert done.status == 0, done.out + done.err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_makes_calls_that_stand_alone(layout, tmp_path, replay):
    root = run(dedupe=True, format=layout)
    expected = {name: op_tools.load_call(path) for name, path in calls_of(root, layout).items()}
    done = launched("-m", "op_tools", "export", root, tmp_path / "out")
    assert f"{len(expected)} calls" in done.stdout
    assert not (tmp_path / "out" / "tensors").exists()
    for name, call in expected.items():
        for file in (tmp_path / "out" / name).glob("*.pth"):
            torch.load(file, weights_only=True)
        alone = op_tools.load_call(tmp_path / "out" / name)
        assert same(alone.args, call.args) and same(alone.grad_inputs, call.grad_inputs)
        assert alone.meta == call.meta
    assert replay(tmp_path / "out", "--acc_check").status == 0


def test_export_names_the_call_whose_description_is_damaged(tmp_path):
    with op_tools.OpCapture(output_dir=str(tmp_path / "calls")):
        torch.ones(2).exp()
    (call,) = (tmp_path / "calls").glob("op_capture_result/*/*/torch.Tensor.exp/*")
    (call / "meta.json").write_text("")
    _, problems = op_tools._C.export_calls(str(tmp_path / "calls"), str(tmp_path / "copies"))
    assert any(f"{call}: meta.json" in problem for problem in problems), problems


def test_export_says_what_it_could_not_do(tmp_path):
    done = launched("-m", "op_tools", "export", tmp_path / "none", tmp_path / "out", check=False)
    assert done.returncode == 2 and "none" in done.stderr
    root = Path(run(dedupe=True))
    for file in (root / "tensors").iterdir():
        file.unlink()
    done = launched("-m", "op_tools", "export", root, tmp_path / "out", check=False)
    assert done.returncode == 1 and "shares with other calls" in done.stderr
    assert not list((tmp_path / "out" / "torch.nn.functional.linear").rglob("input.pth"))
