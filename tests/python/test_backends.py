"""Packages that bring a device: --import, OP_TOOLS_IMPORT, and those that are installed and not imported."""

import os
import sys
from pathlib import Path

import pytest
import torch
from conftest import launched

import op_tools
from op_tools import __main__ as command_line
from op_tools._torch import backends
from op_tools._work.doctor import examine


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a device of ours, which torch does not import by itself."""
    folder = tmp_path / "site" / "torch_toy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import op_tools.sim_device\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    return "torch_toy"


PROGRAM = """
import subprocess, sys, torch
torch.exp(torch.ones(3, device="sim"))
if len(sys.argv) == 1:
    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
print("ran", len(sys.argv))
"""


def test_run_imports_it_for_the_program_and_for_what_it_starts(package, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = launched("-m", "op_tools", "run", "--import", package, "--time", tmp_path / "program.py", cwd=tmp_path)
    assert done.stdout.split() == ["ran", "2", "ran", "1"]
    assert any("torch.exp" in table.read_text() for table in tmp_path.glob("op_time_measure_result/**/*.csv"))


def test_the_environment_names_it(package, capsys):
    assert command_line.main(["env", "--import", package, "--time"]) == 0
    assert f"export OP_TOOLS_IMPORT={package}\n" in capsys.readouterr().out
    assert command_line.main(["env", "--as-cuda", "toy", "--time"]) == 0  # found by the name of the device
    assert f"export OP_TOOLS_IMPORT={package}\n" in capsys.readouterr().out


def test_a_package_that_cannot_be_imported_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch_broken.py").write_text("raise OSError('libdriver.so.1: is not there')")
    (tmp_path / "program.py").write_text("print('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, why in (("torch_broken", "libdriver.so.1: is not there"), ("no_such_module", "No module named")):
        assert command_line.main(["run", "--import", name, "--time", str(tmp_path / "program.py")]) == 2
        said = capsys.readouterr()
        assert f"--import {name}: " in said.err and why in said.err and "ran" not in said.out


def test_a_mistake_in_the_variable_leaves_the_program_alone(package, tmp_path):
    (tmp_path / "program.py").write_text("import torch\nprint('ran')")
    root = Path(op_tools.__file__).parent
    path = f"{root / 'startup'}{os.pathsep}{root.parent}"
    done = launched(tmp_path / "program.py", PYTHONPATH=path, OP_TOOLS="time", OP_TOOLS_IMPORT="no_such_module")
    assert done.stdout.split() == ["ran"] and "no tool was started: OP_TOOLS_IMPORT no_such_module" in done.stderr


def test_the_package_of_a_device_that_torch_does_not_have(package):
    assert backends.modules_of("toy:1", []) == [package]
    assert backends.modules_of("toy", ["mine"]) == ["mine"]
    assert backends.modules_of("sim", []) == ["op_tools.sim_device"]
    for device in ("cpu", "cuda", "xpu", "meta", "no_such_device", ""):
        assert backends.modules_of(device, []) == []


def test_doctor_names_what_is_installed_and_not_imported(package, monkeypatch):
    monkeypatch.setattr(backends, "_VENDORS", (package,))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.delitem(sys.modules, package, raising=False)
    text = "\n".join(examine().lines)
    assert "no accelerator: everything runs on the CPU" in text
    assert f"{package} is installed and not imported: --import {package}, OP_TOOLS_IMPORT={package}" in text
    with pytest.raises(op_tools.Error, match=f"import its backend first: --import {package}"):
        backends.usable_device("npu")
    monkeypatch.setitem(sys.modules, package, sys)
    assert package not in "\n".join(examine().lines)


def test_doctor_imports_what_the_variable_names(package, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_IMPORT", package)
    monkeypatch.delitem(sys.modules, package, raising=False)
    assert command_line.main(["doctor"]) in (0, 1)
    assert package in sys.modules


def test_run_imports_what_the_variable_names(package, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("-m", "op_tools", "run", "--time", tmp_path / "program.py")
    done = launched(*words, cwd=tmp_path, OP_TOOLS_IMPORT=package)
    assert done.stdout.split() == ["ran", "2", "ran", "1"]
    done = launched(*words, cwd=tmp_path, check=False, OP_TOOLS_IMPORT="no_such_module")
    assert done.returncode == 2 and "OP_TOOLS_IMPORT no_such_module: No module named" in done.stderr and not done.stdout


def test_no_package_of_a_device_is_imported_by_itself():
    program = "import sys, op_tools; print([one for one in sys.modules if one.startswith('torch_')])"
    done = launched("-c", program)
    assert done.stdout.strip() == "[]"
