"""Dumps of other tools: read, imported, replayed; our captures in their formats; hostile and cut-off files.

tests/data/formats has dumps that troubleshooter and msprobe wrote themselves.
"""

import json
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.__main__ as command_line
from op_tools import formats
from op_tools.formats._model import Missing

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "formats"


@pytest.fixture
def golden(tmp_path):
    """A dump that the tool itself wrote, unpacked."""

    def unpack(name):
        folder = tmp_path / name
        with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
            archive.extractall(folder)
        return folder

    return unpack


def by_name(dump, name, phase="forward"):
    return next(call for call in dump.calls if call.foreign_name == name and call.phase == phase)


# --- troubleshooter ----------------------------------------------------------------------------------------------------


def test_a_dump_of_troubleshooter_is_read(golden):
    dump = formats.read_dump(golden("troubleshooter"))
    assert dump.format == "troubleshooter" and not dump.problems
    # Both steps; torch.add has a row of no tensor with dimensions, and so none.
    assert sum(call.phase == "forward" for call in dump.calls) == 20
    assert {call.step for call in dump.calls} == {0, 1}
    linear = by_name(dump, "NN_Linear_0")
    assert (linear.name, linear.module, linear.step) == ("torch.nn.functional.linear", "block.lin", 0)
    assert linear.stack[0] == "model.py:11 forward"
    features, weight, bias, output = linear.tensors
    assert (features.shape, features.dtype, features.max, features.norm) == (
        (2, 3),
        "torch.float32",
        0.5,
        0.741619884967804,
    )
    assert (weight.role, weight.place, bias.place, output.role) == ("parameter", "weight", "bias", "output")
    assert torch.equal(formats.load_values(features), torch.arange(6.0).reshape(2, 3) / 10)
    split = by_name(dump, "Tensor_split_0", "backward")
    assert [(one.role, one.place) for one in split.tensors] == [("grad_output", "0"), ("grad_output", "1")]
    assert by_name(dump, "Tensor___mul___0").name == "torch.Tensor.mul"
    assert by_name(dump, "Torch_cat_1").step == 1


def test_calls_of_troubleshooter_replay_with_the_parameters_of_the_state_dict(golden, tmp_path, replay, capsys):
    assert command_line.main(["import", str(golden("troubleshooter")), str(tmp_path / "calls")]) == 1
    told = capsys.readouterr()
    assert "11 calls" in told.out
    assert "layer_norm() missing 1 required positional argument: 'normalized_shape'" in told.err
    assert "its result has the shapes [(4, 2)], in the dump [(2, 4)]" in told.err  # cat's dim is not in the dump
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.status == 0, done.out + done.err
    assert done.summary["agrees"] == 7


def test_an_unfiltered_dump_gives_scalars_and_so_more_calls(golden, tmp_path, replay):
    dump = formats.read_dump(golden("troubleshooter_unfiltered"))
    assert by_name(dump, "Tensor___mul___0").args[1] == 2.0
    done = formats.import_dump(dump, tmp_path / "calls")
    assert done.calls > 11
    again = replay(tmp_path / "calls", "--acc_check")
    assert again.status == 0, again.out + again.err
    call = min((tmp_path / "calls").rglob("torch.Tensor.mul/*"))
    assert op_tools.load_call(call).args[1] == 2.0


def older(folder, stacks):
    """The dump with the files that troubleshooter wrote before 2024: .pkl, 6 fields, other keys of stacks."""
    rank = folder / "rank0"
    lines = (rank / "torch_api_dump_info.csv").read_text().splitlines()
    (rank / "torch_api_dump_info.csv").unlink()
    text = "".join(json.dumps(json.loads(line)[:6]) + "\n" for line in lines)
    (rank / "torch_api_dump_info.pkl").write_text(text)
    if stacks:
        stacks_of_dump = json.loads((rank / "torch_api_dump_stack.json").read_text())
        lines = stacks_of_dump["torch.nn.functional.dropout(0) forward"]
        (rank / "torch_api_dump_stack.json").write_text(json.dumps({"Functional_dropout_0_forward_stack_info": lines}))
    return folder


def test_older_forms_of_troubleshooter_are_read(golden):
    new = formats.read_dump(golden("troubleshooter"))
    old = formats.read_dump(older(golden("troubleshooter"), stacks=True))
    assert [call.foreign_name for call in old.calls] == [call.foreign_name for call in new.calls]
    assert old.calls[0].tensors[0].norm is None and old.calls[0].tensors[0].max == 0.5
    assert by_name(old, "Functional_dropout_0").stack == by_name(new, "Functional_dropout_0").stack != ()


# --- msprobe -----------------------------------------------------------------------------------------------------------


def test_a_dump_of_msprobe_is_read(golden):
    dump = formats.read_dump(golden("msprobe_tensor_l1"))
    assert dump.header == {"task": "tensor", "level": "L1", "framework": "pytorch"}
    linear = by_name(dump, "Functional.linear.0")
    assert (linear.name, linear.step, linear.rank) == ("torch.nn.functional.linear", 0, 0)
    assert linear.stack[0] == "model.py:11 forward"  # torch's own lines are left out
    assert [one.shape for one in linear.tensors] == [(2, 3), (2, 3), (2,), (2, 2)]
    assert linear.tensors[0].requires_grad and linear.tensors[0].mean == 0.25
    assert by_name(dump, "Functional.relu.0").kwargs == {"inplace": False}
    assert by_name(dump, "Functional.layer_norm.0").args[1] == [3]
    backward = by_name(dump, "Functional.linear.0", "backward")
    assert backward.by_node and [one.shape for one in backward.result] == [(2,), (2, 3), (3, 2)]
    assert {call.step for call in dump.calls} == {0, 1}


def test_every_call_of_msprobe_replays_with_its_gradients(golden, tmp_path, replay, capsys):
    assert command_line.main(["import", str(golden("msprobe_tensor_l1")), str(tmp_path / "calls")]) == 0
    assert "24 calls" in capsys.readouterr().out
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.status == 0, done.out + done.err
    # Dropout draws numbers, whose state msprobe does not save.
    assert (done.summary["agrees"], done.summary["not_judged"]) == (20, 4)
    linear = op_tools.load_call(tmp_path / "calls/0/msprobe/torch.nn.functional.linear/0")
    assert [list(one.shape) for one in linear.grad_inputs] == [[2], [2, 3], [3, 2]]
    assert linear.meta["stack"][0] == "model.py:11 forward"
    assert command_line.main(["show", str(tmp_path / "calls")]) == 0


def test_a_wrong_gradient_of_msprobe_is_found(golden, tmp_path, replay):
    folder = golden("msprobe_tensor_l1")
    path = next(folder.glob("step0/*/dump_tensor_data/Functional.linear.0.backward.output.1.pt"))
    torch.save(torch.load(path) * 1.5, path)
    formats.import_dump(formats.read_dump(folder), tmp_path / "calls")
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.status == 1 and done.summary["differs"] == 1, done.out


def test_modules_of_msprobe_that_are_functions_replay(golden, tmp_path, replay):
    dump = formats.read_dump(golden("msprobe_tensor_l0"))
    assert by_name(dump, "Module.block.lin.Linear.0").module == "block.lin"
    done = formats.import_dump(dump, tmp_path / "calls")
    assert done.calls == 4  # Linear and ReLU of two steps
    assert any("Module.block.Block.0" in one and "a call of a whole module" in one for one in done.problems)
    again = replay(tmp_path / "calls", "--acc_check")
    assert (again.status, again.summary["agrees"]) == (0, 4), again.out


def test_a_dump_of_statistics_is_read_and_says_that_it_cannot_be_imported(golden, tmp_path, capsys):
    dump = formats.read_dump(golden("msprobe_statistics_mix"))
    relu = by_name(dump, "Functional.relu.0")
    assert relu.module == "block.act" and relu.tensors[0].max == pytest.approx(0.4665, abs=1e-4)
    assert not relu.has_values
    with pytest.raises(op_tools.Error, match="no values, only statistics"):
        formats.load_values(relu.tensors[0])
    assert command_line.main(["import", str(golden("msprobe_statistics_mix")), str(tmp_path / "calls")]) == 1
    assert "Functional.linear.0 (rank 0, step 0): not imported" in capsys.readouterr().err


def test_values_of_msprobe_besides_tensors(tmp_path):
    plain = [
        {"type": "slice", "value": [None, 3, 2]},
        {"type": "torch.Size", "value": [2, 3]},
        {"type": "torch.dtype", "value": "torch.bfloat16"},
        {"type": "torch.device", "value": "cuda:None"},
        {"type": "torch.memory_format", "format": "channels_last"},
        {"type": "ellipsis", "value": "..."},
        {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "1"},
        None,
        [{"type": "int", "value": 4}],
    ]
    call = {"Tensor.add.0.forward": {"input_args": plain, "input_kwargs": {}, "output": []}}
    (tmp_path / "dump.json").write_text(json.dumps({"task": "statistics", "data": call}))
    (read,) = formats.read_dump(tmp_path).calls
    assert read.args[:6] == (
        slice(None, 3, 2),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda"),
        torch.channels_last,
        Ellipsis,
    )
    assert isinstance(read.args[6], Missing) and read.args[7:] == (None, [4])


def test_the_older_stacks_of_msprobe_are_read(golden):
    folder = golden("msprobe_tensor_l1")
    (stack,) = folder.glob("step0/*/stack.json")
    new = formats.read_dump(folder)
    pairs = json.loads(stack.read_text()).values()
    stack.write_text(json.dumps({name: lines for names, lines in pairs for name in names}))
    assert formats.read_dump(folder).calls == new.calls


def test_captures_of_ditorch_are_passed_on(tmp_path, capsys):
    source = GOLDEN.parent / "ditorch_captures"
    assert command_line.main(["import", str(source), str(tmp_path / "calls")]) == 0
    assert " calls in " in capsys.readouterr().out
    inputs = list((tmp_path / "calls").rglob("input.pth"))
    assert inputs and all(op_tools.load(one)["node_gradients"] for one in inputs)


# --- Ours in their formats ----------------------------------------------------------------------------------------------


def capture(tmp_path, level="torch"):
    x = torch.randn(2, 3, requires_grad=True)
    weight, other = torch.randn(4, 3, requires_grad=True), torch.randn(2, 4)
    gradient = torch.ones(2, 4)
    with op_tools.OpCapture(output_dir=tmp_path / "captured", level=level) as tool:
        for _ in range(2):
            y = F.linear(x, weight) * 2.0
            parts = torch.cat([y, other], 1).split(4, 1)
            F.relu(parts[0]).backward(gradient)
            tool.step()
    return Path(tool.result().root)


def test_ours_as_msprobe_and_back_are_the_same_bytes(tmp_path, replay, capsys):
    source = capture(tmp_path)
    assert command_line.main(["export", str(source), str(tmp_path / "theirs"), "--format", "msprobe"]) == 0
    dump = formats.read_dump(tmp_path / "theirs")
    assert dump.header["task"] == "tensor"
    first = json.loads((tmp_path / "theirs/step0/rank0/dump.json").read_text())["data"]
    assert list(first)[:2] == ["Functional.linear.0.forward", "Tensor.mul.0.forward"]
    entry = first["Functional.linear.0.forward"]["input_args"][1]
    assert entry["requires_grad"] and entry["data_name"] == "Functional.linear.0.forward.input.1.pt"
    assert (tmp_path / "theirs/step1/rank0/stack.json").is_file()
    done = formats.import_dump(dump, tmp_path / "back")
    assert done.problems == ()
    for folder in source.glob("*/*"):
        call = op_tools.load_call(folder)
        same = [op_tools.load_call(other) for other in (tmp_path / "back").glob(f"0/msprobe/{call.name}/*")]
        other = next(other for other in same if other.meta["step"] == call.meta["step"])
        for mine, theirs in zip(tensors(call), tensors(other)):
            assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype
            assert mine.requires_grad == theirs.requires_grad
        assert call.meta["stack"] == other.meta["stack"]
    again = replay(tmp_path / "back", "--acc_check")
    assert again.status == 0 and again.summary["agrees"] == done.calls, again.out


def tensors(call):
    values = [*call.args, *call.kwargs.values(), call.result, *(call.grad_outputs or ()), *(call.grad_inputs or ())]
    flat = [leaf for one in values for leaf in (one if isinstance(one, (tuple, list)) else [one])]
    return [one for one in flat if isinstance(one, torch.Tensor)]


def test_ours_as_troubleshooter_and_back_are_the_same_bytes(tmp_path, replay):
    source = capture(tmp_path)
    done = formats.export_captures(source, tmp_path / "theirs", "troubleshooter")
    # split and relu were given keywords by torch's Python code.
    assert done.problems == ["4 calls: keyword arguments have no place in this format"]
    lines = (tmp_path / "theirs/rank0/torch_api_dump_info.csv").read_text().splitlines()
    name, always_one, empty, dtype, shape, statistics, md5, norm = json.loads(lines[0])
    array = np.load(tmp_path / f"theirs/rank0/torch_api_dump/{name}.npy")
    assert (name, always_one, empty, dtype, shape) == (
        "Functional_linear_0_forward_input.0",
        1,
        [],
        "torch.float32",
        [2, 3],
    )
    assert statistics == pytest.approx([array.max(), array.min(), array.mean()])
    assert len(md5) == 32 and norm == pytest.approx(np.linalg.norm(array))
    dump = formats.read_dump(tmp_path / "theirs")
    assert {call.step for call in dump.calls} == {0, 1}
    back = formats.import_dump(dump, tmp_path / "back")
    again = replay(tmp_path / "back", "--acc_check")
    assert again.status == 0 and again.summary["agrees"] == back.calls >= 6, again.out
    linear = op_tools.load_call(next(source.glob("torch.nn.functional.linear/*")))
    same = op_tools.load_call(next((tmp_path / "back").rglob("torch.nn.functional.linear/*")))
    assert torch.equal(linear.args[0], same.args[0]) and torch.equal(linear.result, same.result)


def test_bfloat16_survives_the_arrays_of_troubleshooter(tmp_path):
    x = torch.randn(5, 3).bfloat16()
    with op_tools.OpCapture(output_dir=tmp_path / "captured") as tool:
        torch.tanh(x)
    formats.export_captures(tool.result().root, tmp_path / "theirs", "troubleshooter")
    array = np.load(tmp_path / "theirs/rank0/torch_api_dump/Torch_tanh_0_forward_input.0.npy")
    assert array.dtype == np.float32
    tensor = formats.read_dump(tmp_path / "theirs").calls[0].tensors[0]
    assert torch.equal(formats.load_values(tensor), x)


def test_ours_as_arrays(tmp_path):
    source = capture(tmp_path)
    done = formats.export_captures(source, tmp_path / "npy", "npy")
    assert done.calls == 10 and done.problems == []
    folder = next((tmp_path / "npy/0/torch.nn.functional.linear").iterdir())
    names = {one.name for one in folder.iterdir()}
    assert names == {"args.0.npy", "args.1.npy", "result.0.npy", "grad_outputs.0.npy"} | {
        f"grad_inputs.{i}.npy" for i in range(2)
    }
    assert np.load(folder / "args.1.npy").shape == (4, 3)


def test_a_container_is_exported_as_its_folders(tmp_path):
    x = torch.ones(2, 2)
    with op_tools.OpCapture(output_dir=tmp_path, format="container") as tool:
        torch.tanh(x)
    (container,) = Path(tool.result().root).glob("calls.zip")
    assert formats.export_captures(container, tmp_path / "out", "msprobe").calls == 1
    assert formats.read_dump(tmp_path / "out").calls[0].name == "torch.tanh"


# --- Refusals -------------------------------------------------------------------------------------------------------------


def test_a_true_pickle_is_refused_and_not_run(golden, tmp_path):
    class Runs:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    folder = golden("troubleshooter")
    info = folder / "rank0/torch_api_dump_info.csv"
    info.with_suffix(".pkl").write_bytes(pickle.dumps([Runs()]))
    info.unlink()
    with pytest.raises(op_tools.Error, match=r"_info\.pkl: offset \d+: .* a pickle, which is never unpickled"):
        formats.read_dump(folder)
    other = golden("msprobe_tensor_l1")
    path = next(other.glob("step0/*/dump_tensor_data/Functional.linear.0.forward.input.0.pt"))
    path.write_bytes(pickle.dumps(Runs()))
    done = formats.import_dump(formats.read_dump(other), tmp_path / "calls")
    assert any(
        "Functional.linear.0 (rank 0, step 0): not imported" in problem and path.name in problem
        for problem in done.problems
    )
    array = next((folder / "rank0/torch_api_dump").glob("Functional_dropout_0_forward_input.0.npy"))
    array.unlink()
    np.save(array, np.array([Runs()], dtype=object), allow_pickle=True)
    from op_tools.formats._files import load_npy

    with pytest.raises(op_tools.Error, match=r"\.npy: no \.npy file that can be read"):
        load_npy(array)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a/../../b", "..", "a\\..\\b", "x\0y"])
def test_names_that_lead_out_of_the_folder_are_refused(name, golden):
    folder = golden("msprobe_tensor_l1")
    dump = next(folder.glob("step0/*/dump.json"))
    content = json.loads(dump.read_text())
    content["data"]["Functional.linear.0.forward"]["input_args"][0]["data_name"] = name
    dump.write_text(json.dumps(content))
    with pytest.raises(op_tools.Error, match=r"dump\.json: Functional\.linear\.0\.forward: 0: .* leads out of"):
        formats.read_dump(folder)


def test_a_link_out_of_the_folder_is_refused(golden, tmp_path):
    folder = golden("msprobe_tensor_l1")
    path = next(folder.glob("step0/*/dump_tensor_data/Functional.linear.0.forward.input.0.pt"))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere.pt")
    with pytest.raises(op_tools.Error, match="leads out of"):
        formats.read_dump(folder)


def test_rows_whose_names_are_paths_are_no_rows(golden):
    folder = golden("troubleshooter")
    info = folder / "rank0/torch_api_dump_info.csv"
    lines = info.read_text().splitlines()
    lines[1] = lines[1].replace("NN_Linear_0", "NN_../../x_0")
    info.write_text("\n".join(lines) + "\n")
    (problem,) = formats.read_dump(folder).problems
    assert "line 2" in problem and "is no row's name" in problem


def test_a_call_that_would_make_a_huge_tensor_is_not_run(golden, tmp_path):
    folder = golden("troubleshooter_unfiltered")
    info = folder / "rank0/torch_api_dump_info.csv"
    row = ["Torch_arange_0_forward_input.0", 1, [], "<class 'int'>", [], [10**14] * 3, [], 1.0]
    info.write_text(info.read_text() + json.dumps(row) + "\n")
    done = formats.import_dump(formats.read_dump(folder), tmp_path / "calls")
    (problem,) = [one for one in done.problems if "arange" in one]
    assert "the dump has no tensor of it" in problem


def test_the_last_line_of_a_killed_program_is_left_out(golden):
    folder = golden("troubleshooter")
    info = folder / "rank0/torch_api_dump_info.csv"
    text = info.read_text()
    info.write_text(text[: len(text) - 30])
    dump = formats.read_dump(folder)
    assert len(dump.calls) == 35
    (problem,) = dump.problems
    assert f"line {len(text.splitlines())}, column" in problem and "cut off" in problem


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "expected a list of 6 or 8 fields"),
        ("[1]", "expected a list of 6 or 8 fields"),
        ("[[[", "line 3, column"),
        ('["NN_Linear_0_forward_input.0", 1, [], "f", [-1], [0, 0, 0]]', "shape"),
        ('["NN_Linear_0_forward_input.0", 1, [], "f", "x", [0, 0, 0]]', "shape"),
        ('["NN_Linear_0_forward_input.0", 1, [], 3, [1], [0, 0, 0]]', "expected a dtype"),
        ('["NN_Linear_0_forward_input.0", 1, [], "f", [1], 3]', "expected a dtype"),
        ("[17, 1, [], 3, [1], [0, 0, 0]]", "the name is 17"),
        ("[" * 100000, "line 3"),
    ],
)
def test_damaged_lines_are_named(line, message, golden):
    folder = golden("troubleshooter")
    info = folder / "rank0/torch_api_dump_info.csv"
    lines = info.read_text().splitlines()
    lines[2] = line
    info.write_text("\n".join(lines) + "\n")
    with pytest.raises(op_tools.Error, match=r"torch_api_dump_info\.csv: line 3") as raised:
        formats.read_dump(folder)
    assert message in str(raised.value)


@pytest.mark.parametrize("seed", range(60))
def test_values_of_other_types_give_errors_only(seed, golden, tmp_path):
    """Valid JSON that holds something else than the tool writes."""
    folder = golden(("troubleshooter_unfiltered", "msprobe_tensor_l1", "msprobe_tensor_l0")[seed % 3])
    random = np.random.default_rng(seed)
    files = sorted(one for one in folder.rglob("*") if one.suffix in (".json", ".csv"))
    path = files[int(random.integers(len(files)))]
    text = path.read_text()
    for _ in range(int(random.integers(1, 3))):
        words = list(re.finditer(r'\d+\.?\d*|"[^"]*"|null|true|false', text))
        if not words:
            break
        word = words[int(random.integers(len(words)))]
        other = random.choice(
            ["null", "[]", "{}", "-1", "1e999", '"x"', "true", "[[1]]", '{"type":"slice","value":[1]}']
        )
        text = text[: word.start()] + str(other) + text[word.end() :]
    path.write_text(text)
    said = ""
    try:
        formats.import_dump(formats.read_dump(folder), tmp_path / "calls")
    except op_tools.Error as error:
        said = str(error)
    assert not said or str(folder) in said


@pytest.mark.parametrize("seed", range(40))
def test_mutated_files_give_errors_only(seed, golden, tmp_path):
    """Any damage: a dump, problems, or an op_tools.Error; never another exception."""
    name = ("troubleshooter", "msprobe_tensor_l1")[seed % 2]
    folder = golden(name)
    random = np.random.default_rng(seed)
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    for path in random.choice(np.array(files, dtype=object), 12, replace=False):
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        for _ in range(int(random.integers(1, 4))):
            if data:
                data[int(random.integers(len(data)))] = int(random.integers(256))
        if random.random() < 0.3:
            data = data[: int(random.integers(len(data) + 1))]
        path.write_bytes(bytes(data))
    said = ""
    try:
        formats.import_dump(formats.read_dump(folder), tmp_path / "calls")
    except op_tools.Error as error:
        said = str(error)
    assert not said or str(folder) in said


# --- Gaps of a format ---------------------------------------------------------------------------------------------------


def exported(work, folder, format):
    """Captured calls as another tool's files, and these as captures."""
    with op_tools.OpCapture(output_dir=folder / "ours") as tool:
        work()
    formats.export_captures(tool.result().root, folder / "theirs", format)
    return formats.import_dump(formats.read_dump(folder / "theirs"), folder / "calls")


def norm_in_training():
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), training=True).sum().backward()


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_msprobe_does_not_tell_what_became_of_the_inputs(scale, tmp_path, replay):
    """Running statistics are changed, which the dump does not have; a wrong result is wrong."""
    assert exported(norm_in_training, tmp_path, "msprobe").problems == ()
    path = next(tmp_path.glob("calls/**/torch.nn.functional.batch_norm/*/output.pth"))
    torch.save({**(saved := torch.load(path)), "args": tuple(one * scale for one in saved["args"])}, path)
    done = replay(tmp_path / "calls", "--acc_check")
    norm = [call for call in done.calls if call["name"].endswith("batch_norm")]
    assert len(norm) == 1 and not [one for one in norm[0]["checks"] if "after the call" in one["what"]]
    assert (done.status, done.summary["differs"]) == ((0, 0) if scale == 1 else (1, 1)), done.out


def other_arguments():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    torch.add(x, x, alpha=2)
    torch.addcmul(x, x, x, value=3.0)
    torch.nn.functional.leaky_relu(x, 0.5)
    torch.nn.functional.gelu(x, approximate="tanh")
    torch.std(x, correction=0)
    norm_in_training()


def test_troubleshooter_does_not_tell_numbers(tmp_path, replay):
    """`training=True` and its like are not in the files: other results are not judged."""
    exported(other_arguments, tmp_path, "troubleshooter")
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.summary["differs"] == 0, done.out
    assert done.out.count("the dump may lack arguments of the call") == 1
    for name in ("torch.add ", "torch.addcmul", "leaky_relu", "gelu", "torch.std", "batch_norm"):
        assert name in done.out


def test_a_wrong_call_of_troubleshooter_is_found_where_it_can_have_no_other_arguments(tmp_path, replay):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    exported(lambda: (torch.exp(x), torch.nn.functional.relu(x), torch.mul(x, x)), tmp_path, "troubleshooter")
    for path in tmp_path.glob("calls/**/output.pth"):
        torch.save({**(saved := torch.load(path)), "args": (saved["args"][0] * 1.5,)}, path)
    done = replay(tmp_path / "calls", "--acc_check")
    assert (done.status, done.summary["differs"]) == (1, 3), done.out


def test_inputs_of_troubleshooter_are_those_of_after_the_call(tmp_path, replay):
    """It saves them when the call has returned: where the call changed them they are not its inputs."""
    x = torch.arange(1.0, 13).reshape(3, 4)
    exported(lambda: x.mul_(x.clone()), tmp_path, "troubleshooter")
    (path,) = tmp_path.glob("calls/**/torch.Tensor.mul_/*/input.pth")
    torch.save({**(saved := torch.load(path)), "args": (x, *saved["args"][1:])}, path)
    done = replay(tmp_path / "calls", "--acc_check")
    assert done.summary["differs"] == 0 and "as the call left them" in done.out, done.out


@pytest.mark.parametrize(
    ("name", "count", "may"),
    [
        ("torch.nn.functional.linear", 3, False),
        ("torch.nn.functional.linear", 2, True),  # a bias
        ("torch.nn.functional.relu", 1, False),  # in place: the same numbers
        ("torch.nn.functional.batch_norm", 3, True),
        ("torch.exp", 1, False),
        ("torch.matmul", 2, False),
        ("torch.add", 2, True),
        ("torch.sum", 1, True),
        ("torch.Tensor.mul", 2, False),
        ("aten::tanh", 1, False),
        ("aten::mm", 2, True),  # a dtype of the result
        ("torch.no_such_function", 1, True),
    ],
)
def test_which_calls_may_have_had_more_arguments(name, count, may):
    from op_tools.formats._left_out import may_lack_arguments

    assert may_lack_arguments(name, count) is may


def test_words_of_a_newer_version_are_refused(tmp_path):
    exported(lambda: torch.exp(torch.ones(2)), tmp_path, "msprobe")
    (path,) = tmp_path.glob("calls/**/torch.exp/*/input.pth")
    saved = torch.load(path)
    assert saved["lacks"] == ("inputs after",)
    torch.save({**saved, "lacks": ("more",)}, path)
    with pytest.raises(op_tools.Error, match="'lacks' has 'more', which this version does not know"):
        op_tools.load_call(path.parent)


def test_missing_and_unknown_dumps_are_said(tmp_path, capsys):
    assert command_line.main(["import", str(tmp_path / "gone"), str(tmp_path / "calls")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(op_tools.Error, match="no dump of a known format"):
        formats.read_dump(tmp_path / "empty")
    with pytest.raises(op_tools.Error, match="format=: 'x' is not allowed; give"):
        formats.read_dump(tmp_path / "empty", "x")
    with pytest.raises(op_tools.Error, match="holds no dump of the format msprobe"):
        formats.read_dump(tmp_path / "empty", "msprobe")


def test_a_target_in_use_is_refused(golden, tmp_path):
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls/file").touch()
    with pytest.raises(op_tools.Error, match="is not empty"):
        formats.import_dump(formats.read_dump(golden("troubleshooter")), tmp_path / "calls")
    with pytest.raises(op_tools.Error, match="is not empty"):
        formats.export_captures(capture(tmp_path), tmp_path / "calls", "npy")
