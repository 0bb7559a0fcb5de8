"""A build for another torch than the one that is loaded: one sentence, a status that is not 0, no signal."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import PYTHON

import op_tools
from op_tools._base import torch_version

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def torch_of_9_8(tmp_path_factory):
    """A library of torch that says that it is 9.8.1."""
    library = tmp_path_factory.mktemp("torch") / "lib" / "libtorch_cpu.so"
    library.parent.mkdir()
    code = "unsigned long aoti_torch_abi_version(void) { return 9ul << 56 | 8ul << 48 | 1ul << 40; }"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=code, text=True, check=True)
    return library


@pytest.fixture(scope="module")
def package_for_9_9(tmp_path_factory):
    """A folder with a package that was built with torch 9.9."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "op_tools", folder / "op_tools", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (folder / "op_tools" / "_build_info.py").write_text('VERSION = "0"\nTORCH_VERSION = "9.9.1"\n')
    return folder


def ended(*command, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_of_the_core_ends_with_one_sentence(build_dir, torch_of_9_8):
    # Preloaded, its function comes before that of the torch that the program was linked with.
    program = build_dir / "run_op_from_data"
    status, out, err = ended(program, "--jobs", "2", "nowhere", LD_PRELOAD=str(torch_of_9_8))
    assert (status, out) == (2, "")
    wanted = ".".join(torch_version.minor(torch.__version__))
    assert err.startswith(
        f"op_tools: this build is for torch {wanted}, and the torch loaded here is 9.8.1 ({torch_of_9_8}): "
    )
    assert f"install torch {wanted}.*" in err and err.count("\n") == 1


def test_the_program_needs_no_function_of_the_wrong_torch(build_dir, torch_of_9_8):
    """That torch lacks every class: bound to one, the program would end in the system's loader, with status 127."""
    program = build_dir / "run_op_from_data"
    status, out, err = ended(program, "nowhere", LD_LIBRARY_PATH=str(torch_of_9_8.parent))
    assert (status, out) == (2, "")
    assert err.startswith("op_tools: this build is for torch ") and "is 9.8.1" in err and err.count("\n") == 1


def test_import_raises_with_both_versions(package_for_9_9):
    status, _, err = ended(PYTHON, "-c", "import op_tools", PYTHONPATH=str(package_for_9_9))
    last = err.splitlines()[-1]
    assert status == 1
    assert last.startswith(
        f"ImportError: op_tools was built with torch 9.9.1, but torch {torch.__version__} is installed"
    )
    assert "pip install 'torch==9.9.*'" in last
    assert "install op_tools" not in last  # that name on an index is not ours


def test_a_command_ends_with_one_sentence(package_for_9_9):
    status, out, err = ended(PYTHON, "-m", "op_tools.run_op_from_data", PYTHONPATH=str(package_for_9_9))
    assert (status, out) == (2, "")
    assert err.startswith("op-tools: op_tools was built with torch 9.9.1, but ") and err.count("\n") == 1


def test_doctor_answers(package_for_9_9):
    status, out, err = ended(PYTHON, "-m", "op_tools", "doctor", PYTHONPATH=str(package_for_9_9))
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("op_tools     0, built with torch 9.9.1, in ")
    assert lines[1].startswith("torch        PROBLEM: op_tools was built with torch 9.9.1")


def test_a_library_of_another_torch_is_found_whatever_the_version_file_says(torch_of_9_8, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(torch_of_9_8.parents[1] / "__init__.py"))
    with pytest.raises(ImportError, match=r"whose library is of torch 9\.8\.1"):
        torch_version.check_torch(op_tools.__path__)
    monkeypatch.setattr(torch, "__file__", str(torch_of_9_8.parent / "no such folder" / "__init__.py"))
    torch_version.check_torch(op_tools.__path__)


def test_the_library_and_the_package_agree_on_the_version_of_torch():
    told = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).aoti_torch_abi_version
    told.restype = ctypes.c_uint64
    assert (told() >> 56, told() >> 48 & 255) == tuple(map(int, torch_version.minor(torch.__version__)))
