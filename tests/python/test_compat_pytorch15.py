"""The .h5 files of PyTorch 1.5's dumper, its drop-in, and op-tools convert."""

import re
import sys
import types
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.__main__ as command_line
from op_tools import formats
from op_tools_compat.arrays import convert
from op_tools_compat.pytorch15 import dumper, get_op_map


def attributes(data, kind, code):
    data.attrs["Type"] = np.int32(kind)
    if code is not None:
        data.attrs.update({"DeviceType": np.int32(0), "DataType": np.int32(code), "FormatType": np.int32(2)})
        data.attrs["Stride"] = np.array([1], dtype="int64")


def by_hand(path, seqids=(1,)):
    """A file as the description of the format has it: addmm, and a list; not written by our writer."""
    x, w, b = (np.arange(n, dtype="float32").reshape(s) / 7 for n, s in ((6, (2, 3)), (12, (3, 4)), (4, (4,))))
    with h5py.File(path, "w") as file:
        for seqid in seqids:
            group = file.create_group(f"/addmm/{seqid}/input")
            for name, value in (("self", b), ("mat1", x), ("mat2", w)):
                attributes(group.create_dataset(name, data=value), 0, 1)
            attributes(group.create_dataset("beta", data=np.array([1.0])), 7, None)
            attributes(group.create_dataset("alpha", data=np.array([2.0])), 7, None)
            output = file.create_group(f"/addmm/{seqid}/output").create_dataset("result", data=b + 2 * (x @ w))
            attributes(output, 0, 1)
        tensors = file.create_group("/cat/90/input/tensors")
        for i in range(11):
            attributes(tensors.create_dataset(f"tensors_{i}", data=np.full((2,), i, dtype="float32")), 1, 10)
        attributes(file["/cat/90/input"].create_dataset("dim", data=np.array([0])), 3, None)
        joined = np.repeat(np.arange(11), 2).astype("float32")
        attributes(file.create_group("/cat/90/output").create_dataset("result", data=joined), 0, 10)
        attributes(file.create_group("/AddmmBackward/91/input/grads").create_dataset("grads_0", data=x), 1, 1)
        odd = file.create_group("/logical_not/92/input").create_dataset("self", data=np.array([0, 1], dtype="int8"))
        attributes(odd, 0, 9)
    return path


def test_a_file_of_15_is_read_and_its_calls_replay(tmp_path, replay, capsys):
    path = by_hand(tmp_path / "dump.h5")
    dump = formats.read_dump(path)
    assert [(call.name, call.phase) for call in dump.calls] == [
        ("aten::addmm", "forward"),
        ("aten::cat", "forward"),
        ("", "backward"),
        ("aten::logical_not", "forward"),
    ]
    addmm, cat, _, odd = dump.calls
    assert addmm.foreign_name == "addmm/1" and addmm.kwargs == {"beta": 1.0, "alpha": 2.0}
    # Items of a list sort as numbers, and float16 and bool stay float16 and bool.
    assert [formats.load_values(one)[0].item() for one in cat.args[0]] == list(range(11))
    assert formats.load_values(cat.args[0][0]).dtype == torch.float16
    assert formats.load_values(odd.args[0]).tolist() == [False, True]
    assert command_line.main(["import", str(path), str(tmp_path / "calls")]) == 1
    told = capsys.readouterr()
    assert "3 calls" in told.out and "AddmmBackward/91" in told.err and "an autograd node" in told.err
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.status == 0 and done.summary["agrees"] == 2, done.out


def test_seqids_sort_as_numbers(tmp_path):
    dump = formats.read_dump(by_hand(tmp_path / "dump.h5", seqids=(1, 2, 10, 11)))
    assert [call.foreign_name for call in dump.calls][:4] == ["addmm/1", "addmm/2", "addmm/10", "addmm/11"]


def test_what_torch_has_not_is_listed(tmp_path):
    with h5py.File(tmp_path / "dump.h5", "w") as file:
        attributes(file.create_group("/npu_fancy/1/input").create_dataset("x", data=np.ones(2)), 0, 11)
        attributes(file.create_group("/relu/2/input").create_dataset("other", data=np.ones(2)), 0, 11)
        file.create_group("/relu/notes/input")
    dump = formats.read_dump(tmp_path / "dump.h5")
    assert [call.why_not for call in dump.calls] == [
        "torch has no operator npu_fancy",
        "aten::relu is not the operator of the file: the entry has no argument self",
    ]
    assert len(dump.problems) == 1 and "/relu/notes" in dump.problems[0]


def hostile(tmp_path, kind):
    path, other = tmp_path / "dump.h5", tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(3)
    with h5py.File(path, "w") as file:
        group = file.create_group("/relu/1/input")
        if kind == "external link":
            group["self"] = h5py.ExternalLink(str(other), "/secret")
        elif kind == "soft link":
            group["self"] = h5py.SoftLink("/relu")
        elif kind == "external data":
            group.create_dataset("self", (3,), "float64", external=[(str(other), 0, 24)])
        elif kind == "virtual data":
            layout = h5py.VirtualLayout((3,), "float64")
            layout[:] = h5py.VirtualSource(str(other), "secret", (3,))
            group.create_virtual_dataset("self", layout)
    return path


@pytest.mark.parametrize("kind", ["external link", "soft link", "external data", "virtual data"])
def test_what_leads_to_other_files_is_refused(kind, tmp_path):
    with pytest.raises(op_tools.Error, match=r"dump\.h5!/relu/1/input/self: .* file"):
        formats.read_dump(hostile(tmp_path, kind))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_files_give_errors_only(seed, tmp_path):
    data = bytearray(by_hand(tmp_path / "good.h5").read_bytes())
    random = np.random.default_rng(seed)
    for _ in range(int(random.integers(1, 20))):
        data[int(random.integers(len(data)))] = int(random.integers(256))
    if seed % 3 == 0:
        data = data[: int(random.integers(len(data)))]
    path = tmp_path / "bad.h5"
    path.write_bytes(bytes(data))
    said = ""
    try:
        formats.import_dump(formats.read_dump(path), tmp_path / "calls")
    except op_tools.Error as error:
        said = str(error)
    assert not said or "bad.h5" in said


# --- The drop-in ----------------------------------------------------------------------------------------------------------


def step(x, weight, bias):
    return torch.relu(torch.addmm(bias, x, weight)).sum()


def tensors():
    torch.manual_seed(1)
    return torch.randn(2, 3), torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)


def test_every_operator_and_node_is_dumped_in_their_layout(tmp_path):
    x, weight, bias = tensors()
    with dumper(dump_path=str(tmp_path)) as dump:
        step(x, weight, bias).backward()
    with h5py.File(dump.path) as file:
        names = {name for name in file if "Backward" in name}
        assert {"addmm", "relu", "sum"} <= set(file) and names == {"AddmmBackward", "ReluBackward", "SumBackward"}
        (seqid,) = file["addmm"]
        mat1 = file[f"/addmm/{seqid}/input/mat1"]
        assert np.array_equal(mat1, x.numpy())
        assert {name: np.asarray(mat1.attrs[name]).tolist() for name in mat1.attrs} == {
            "DeviceType": 0,
            "DataType": 1,
            "FormatType": 2,
            "Type": 0,
            "Stride": [3, 1],
        }
        (node,) = file["AddmmBackward"]
        assert np.array_equal(file[f"/AddmmBackward/{node}/input/mat1"], x.numpy())
        gradients = file[f"/AddmmBackward/{node}/output/grad_inputs"]
        assert sorted(gradients) == ["grad_inputs_0", "grad_inputs_1"]
        assert np.array_equal(gradients["grad_inputs_0"], bias.grad.numpy())
        (order,) = (sorted((int(number), name) for name in file for number in file[name]),)
        assert [number for number, _ in order] == list(range(1, len(order) + 1))
    assert dump.path.endswith(".h5") and dump.overflowed == []


def test_the_program_computes_what_it_computes(tmp_path):
    plain, watched = tensors(), tensors()
    step(*plain).backward()
    with dumper(dump_path=str(tmp_path)):
        step(*watched).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain[1:], watched[1:]))
    size = [path.stat().st_size for path in tmp_path.iterdir()]
    step(*tensors()).backward()  # nothing is on now
    assert [path.stat().st_size for path in tmp_path.iterdir()] == size


def test_the_dump_replays(tmp_path, replay):
    arguments = tensors()
    with dumper(dump_path=str(tmp_path / "h5")) as dump:
        step(*arguments)
    done = formats.import_dump(formats.read_dump(dump.path), tmp_path / "calls")
    assert done.calls == 3 and done.problems == ()
    again = replay(tmp_path / "calls", "--acc_check")
    assert again.status == 0 and again.summary["agrees"] == 3, again.out


def test_only_what_overflows_is_dumped(tmp_path):
    x = torch.tensor([1.0, 200.0], requires_grad=True)
    with dumper(check_overflow=True, dump_path=str(tmp_path)) as dump:
        y = torch.exp(x) * 2
        torch.sin(y)  # its input has overflowed already
    assert dump.overflowed == ["exp"]
    with h5py.File(dump.path) as file:
        assert list(file) == ["exp"] and file["/exp/1/input/self"][1] == 200
    with dumper(check_overflow=True, dump_path=str(tmp_path / "none")) as quiet:
        torch.exp(torch.ones(2))
    assert quiet.path == "" and not (tmp_path / "none").exists()


def test_an_overflow_in_backward_is_found(tmp_path):
    x = torch.zeros(2, requires_grad=True)
    with dumper(check_overflow=True, dump_path=str(tmp_path)) as dump:
        torch.sqrt(x).sum().backward()
    assert dump.overflowed == ["SqrtBackward"]


def test_inputs_are_those_of_the_file(tmp_path):
    """A shadow run: each operator gets the inputs of the other run, so a fault stays in its operator."""
    x, weight, bias = tensors()
    with dumper(dump_path=str(tmp_path / "a")) as origin:
        step(x, weight, bias)
    other = torch.randn(2, 3)
    with torch.no_grad(), dumper(dump_path=str(tmp_path / "b"), load_file_path=origin.path, use_load=True) as dump:
        step(other, weight, bias)
    assert torch.equal(other, x)  # overwritten in place, as the dumper of 1.5 does
    assert dump.loaded == ["addmm/1", "relu/2", "sum/3"]
    with h5py.File(origin.path) as a, h5py.File(dump.path) as b:
        assert np.array_equal(a["/sum/3/output/result"], b["/sum/3/output/result"])
    with dumper(dump_path=str(tmp_path / "c"), load_file_path=origin.path, use_load=True) as none:
        torch.relu(torch.ones(7))
    assert none.loaded == []  # no entry has this shape


def test_wrong_arguments_are_said(tmp_path):
    with pytest.raises(op_tools.Error, match="use_load=True needs load_file_path"):
        dumper(use_load=True)
    with pytest.raises(op_tools.Error, match="there is no such file to load"):
        dumper(use_load=True, load_file_path=str(tmp_path / "gone.h5"))
    with pytest.raises(op_tools.Error, match="needs torch_npu"):
        dumper(load_with_acl_dump=True)


def test_the_device_dumps_what_was_loaded(tmp_path, monkeypatch):
    with dumper(dump_path=str(tmp_path / "a")) as origin:
        torch.relu(torch.ones(3))
    asked = []
    npu = types.SimpleNamespace(
        init_dump=lambda: asked.append("init"),
        set_dump=lambda file: asked.append(file),
        finalize_dump=lambda: asked.append("end"),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    options = {"load_file_path": origin.path, "use_load": True, "load_with_acl_dump": True}
    with dumper(dump_path=str(tmp_path / "b"), **options):
        torch.relu(torch.zeros(3))
        torch.neg(torch.zeros(3))
    assert asked == ["init", "acl.json", "end"]


def test_operators_of_two_files_are_mapped(tmp_path):
    def file(name, calls):
        with h5py.File(tmp_path / name, "w") as h5:
            for seqid, ir_name in enumerate(calls, 1):
                data = h5.create_group(f"/{ir_name}/{seqid}/output").create_dataset("result", data=np.ones(2))
                attributes(data, 0, 11)
        return tmp_path / name

    a = file("a.h5", ["conv", "relu", "NpuConvolutionBackward"])
    b = file("b.h5", ["conv", "dropout", "relu", "CudnnConvolutionBackward"])
    assert get_op_map(a, b) == [
        ("conv/1", "conv/1"),
        (None, "dropout/2"),
        ("relu/2", "relu/3"),
        ("NpuConvolutionBackward/3", "CudnnConvolutionBackward/4"),
    ]


def test_captures_as_h5_and_back(tmp_path, replay, capsys):
    x, weight, bias = tensors()
    with op_tools.OpCapture(output_dir=tmp_path, ops="torch.addmm,torch.relu,torch.nn.functional.normalize") as tool:
        step(x, weight, bias)
        F.normalize(x)
    source = tool.result().root
    assert command_line.main(["export", source, str(tmp_path / "h5"), "--format", "h5"]) == 1
    assert (
        "no single aten operator is behind torch.nn.functional.normalize" in capsys.readouterr().err
    )  # several operators are behind it
    (path,) = (tmp_path / "h5").iterdir()
    assert path.name == "rank0_step0.h5"
    done = formats.import_dump(formats.read_dump(path), tmp_path / "back")
    assert done.calls == 2
    again = replay(tmp_path / "back", "--acc_check")
    assert again.status == 0 and again.summary["agrees"] == 2, again.out


def test_the_snippet_of_the_page_runs(tmp_path, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()
    (snippet,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    known = {"net": torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), "batch": torch.ones(2, 3)}
    exec(compile(snippet, "formats.md", "exec"), known)  # noqa: S102
    assert known["shadow"].loaded == ["addmm/1", "relu/2"]
    assert known["pairs"][:2] == [("addmm/1", "addmm/1"), ("relu/2", "relu/2")]


# --- Converting -----------------------------------------------------------------------------------------------------------


def test_arrays_go_through_all_forms(tmp_path, capsys):
    path = by_hand(tmp_path / "dump.h5")
    assert command_line.main(["convert", str(path), str(tmp_path / "arrays.npy")]) == 0
    assert "21 files" in capsys.readouterr().out
    mat1 = np.load(tmp_path / "arrays.npy/addmm/1/input/mat1.npy")
    assert mat1.shape == (2, 3)
    assert command_line.main(["convert", str(tmp_path / "arrays.npy"), str(tmp_path / "all.pth")]) == 0
    loaded = torch.load(tmp_path / "all.pth", weights_only=True)
    assert np.array_equal(loaded["addmm/1/input/mat1"], mat1)
    assert command_line.main(["convert", str(tmp_path / "all.pth"), str(tmp_path / "again.h5")]) == 0
    with h5py.File(tmp_path / "again.h5") as file:
        assert np.array_equal(file["addmm/1/input/mat1"], mat1)
    array = tmp_path / "arrays.npy/addmm/1/input/mat1.npy"
    assert command_line.main(["convert", str(array), str(tmp_path / "one.txt")]) == 0
    assert np.array_equal(np.loadtxt(tmp_path / "one.txt").astype("float32"), mat1.reshape(-1))
    assert command_line.main(["convert", str(tmp_path / "one.txt"), str(tmp_path / "one.npy")]) == 0
    assert np.array_equal(np.load(tmp_path / "one.npy").astype("float32"), mat1.reshape(-1))


def test_what_cannot_be_converted_is_said(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "bad.txt").write_text("1\n2\nthree\n")
    torch.save({"../../evil": torch.ones(1), "b": torch.ones(1)}, tmp_path / "evil.pth")
    torch.save(torch.ones(2, dtype=torch.complex64), tmp_path / "complex.pth")
    for source, target, message in [
        ("a.npy", "a.csv", "the suffix is '.csv', expected one of"),
        ("a.npy", "a.npy", "is there already"),
        ("a.npy", "missing/b.pth", "missing/b.pth: No such file"),
        ("gone.npy", "b.npy", "there is no such file"),
        ("bad.txt", "b.npy", r"bad\.txt: line 3"),
        ("evil.pth", "out.npy", "leads out of"),
        ("complex.pth", "c.txt", "complex numbers have no form"),
    ]:
        with pytest.raises(op_tools.Error, match=message):
            convert(tmp_path / source, tmp_path / target)
    assert not (tmp_path.parent / "evil.npy").exists()
