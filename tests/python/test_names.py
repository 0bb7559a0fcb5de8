"""Names in captured files come from outside: they lead nowhere; tests/proofs/names.py does it at length."""

import random
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools import __main__ as command_line
from op_tools._torch.python_functions import find

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
import names


def container_with(path, *entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as container:
        for name in entries:
            container.writestr(names._entry(name), names.call_file("torch.add"))


def test_an_export_stays_in_its_folder(tmp_path, capsys):
    source = tmp_path / "in"
    source.mkdir()
    container_with(
        source / "calls.zip",
        "torch.add/1/input.pth",
        "../../../../escape/torch.add/2/input.pth",
        "torch.add/../../../../escape/3/input.pth",
        "/escape/4/input.pth",
        "torch.add/5/../input.pth",
    )
    out = tmp_path / "jail" / "deep" / "out"
    assert command_line.main(["export", str(source), str(out)]) == 1
    said = capsys.readouterr().err
    assert "4 entries are refused" in said and "calls.zip" in said
    assert [*tmp_path.joinpath("jail").rglob("*.pth")] == [out / "torch.add/1/input.pth"]
    assert not list(tmp_path.rglob("escape"))


def test_two_calls_that_would_be_one_folder_are_said(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    container_with(tmp_path / "in" / "calls.zip", "torch.add/1/input.pth", "other/1/input.pth")
    assert command_line.main(["export", str(tmp_path / "in"), str(tmp_path / "out")]) == 1
    assert "is the same call of the same run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch.\x1b[2Jadd", "torch.add\n", "\x00"])
def test_a_name_that_upsets_a_terminal_is_refused(name, tmp_path):
    (tmp_path / "input.pth").write_bytes(names.call_file(name))
    with pytest.raises(op_tools.Error, match=r"input\.pth: .*which is no operator's"):
        op_tools.load_call(tmp_path)


def test_a_name_calls_nothing_but_operators():
    assert find("torch.ops.aten.add") is torch.ops.aten.add
    assert find("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor
    for name in [
        *names.OPERATORS,
        "torch.ops.aten.add.__class__",
        "torch.ops.aten._dir",
        "torch.ops.aten.add.overloads",
    ]:
        assert find(name) is None, name


def test_names_from_outside_at_random(tmp_path, log_level, monkeypatch):
    log_level("info")
    monkeypatch.chdir(tmp_path)
    for seed in range(4):
        here = tmp_path / str(seed)
        here.mkdir()
        assert names.one_round(here, random.Random(seed), with_program=seed == 0) == []
