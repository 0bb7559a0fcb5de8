"""The package op_tools_compat: op_tools finds its parts where it is installed, and says how to install it where it is not."""

import re
import subprocess
import zipfile
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import torch
from conftest import PYTHON, launched

import op_tools
from op_tools import formats
from op_tools.__main__ import main
from op_tools._base import optional_parts
from op_tools._base.optional_parts import Group, load_part, part_names

COMPAT = Path(__file__).resolve().parents[2] / "compat"
tomllib = pytest.importorskip("tomllib", reason="Python 3.11 is the first that reads TOML")
DECLARED = tomllib.loads((COMPAT / "pyproject.toml").read_text())["project"]
HOW = "in the package op_tools_compat, which is not installed: pip install ./compat"


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr(optional_parts, "entry_points", lambda group: ())


@pytest.mark.parametrize("group", Group)
def test_op_tools_knows_the_parts_that_the_package_has(group):
    """Those that the package declares, those that an installed package has, and those that messages name."""
    declared = DECLARED["entry-points"][group.value]
    entries = [entry for entry in entry_points(group=group.value) if entry.module.startswith("op_tools_compat.")]
    assert {entry.name: entry.value for entry in entries} == declared
    assert set(optional_parts._OF_COMPAT[group]) == set(declared)
    assert all(load_part(group, name) is not None for name in declared)


def test_a_command_that_is_not_installed_says_how_to_install_it(not_installed, capsys):
    assert main(["convert", "a.npy", "b.txt"]) == 2
    assert capsys.readouterr().err.startswith(f"op-tools: convert: {HOW}")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert HOW in " ".join(capsys.readouterr().out.split())


def test_a_form_that_is_not_installed_says_how_to_install_it(not_installed, tmp_path, capsys):
    with op_tools.OpRecord(output_dir=tmp_path / "run") as tool:
        torch.ones(1)
    run = tool.result().path
    for form in ("msprobe", "troubleshooter"):
        assert main(["compare", run, run, "--csv", str(tmp_path / "table"), "--format", form]) == 2
        assert f"{form}: {HOW}" in capsys.readouterr().err
    (tmp_path / "dump.h5").write_bytes(b"no matter")
    for name in (None, "h5"):
        with pytest.raises(op_tools.Error, match=f"h5: {HOW}"):
            formats.read_dump(tmp_path / "dump.h5", name)
    captures = Path(__file__).resolve().parents[1] / "data" / "ditorch_captures"
    with pytest.raises(op_tools.Error, match=f"h5: {HOW}"):
        formats.export_captures(captures, tmp_path / "h5", "h5")


def test_a_part_that_cannot_be_loaded_says_why(monkeypatch, capsys):
    entry = EntryPoint("convert", "no_such_module_of_a_package:add", "op_tools.commands")
    monkeypatch.setattr(optional_parts, "entry_points", lambda group: (entry,))
    assert main(["convert"]) == 2
    assert (
        "convert: the package no_such_module_of_a_package cannot be loaded: No module named" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "cannot be loaded" in " ".join(capsys.readouterr().out.split())


def test_a_package_of_somebody_else_brings_parts(monkeypatch, tmp_path):
    """As an installed package: a folder in the path with the module, and its metadata."""
    info = tmp_path / "op_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: op_others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[op_tools.readers]\nlines = op_others:FORMAT\n")
    (tmp_path / "op_others.py").write_text(
        "from op_tools.formats import Dump, ForeignCall\n"
        "def files(path):\n    return [path] if path.suffix == '.lines' else []\n"
        "def read(path):\n"
        "    calls = [ForeignCall(n, n, i, 'forward') for i, n in enumerate(path.read_text().split())]\n"
        "    return Dump(path, 'lines', tuple(calls))\n"
        "FORMAT = files, read\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dump.lines").write_text("torch.neg\n")
    assert part_names(Group.READERS) == ("h5", "lines")
    assert [call.name for call in formats.read_dump(tmp_path / "dump.lines").calls] == ["torch.neg"]


def test_nothing_is_looked_up_before_a_part_is_asked_for():
    code = (
        "import sys, importlib.metadata as m\n"
        "m.entry_points = lambda **_: sys.exit('looked up')\n"
        "import op_tools, op_tools.formats\n"
        "from op_tools._commands.command_line import parser_of\n"
        "parser_of('ops'), parser_of('run')\n"
        "print([name for name in sys.modules if name.startswith(('op_tools_compat', 'h5py'))])"
    )
    assert launched("-c", code).stdout == "[]\n"


def test_the_wheel_has_the_package_alone_and_needs_no_name_of_ours(tmp_path):
    command = [PYTHON, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", tmp_path, COMPAT]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
    in_sources = {path.relative_to(COMPAT).as_posix() for path in (COMPAT / "op_tools_compat").rglob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == {*in_sources, "op_tools_compat/py.typed"}
    # Neither package is on an index: under its name pip would take the package of somebody else.
    assert re.findall(r"^Requires-Dist: (\w+)", metadata, re.MULTILINE) == ["h5py", "numpy"]
    assert DECLARED["version"] == op_tools.__version__.partition("+")[0]


def test_no_requirement_of_op_tools_names_it():
    project = tomllib.loads((COMPAT.parent / "pyproject.toml").read_text())["project"]
    assert "optional-dependencies" not in project
    for file in COMPAT.parent.glob("requirements*.txt"):
        assert not re.search(r"^op_tools", file.read_text(), re.MULTILINE)
