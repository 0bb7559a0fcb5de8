"""The wheel in a fresh virtual environment, from another folder, and a C++ program against the wheel and against the install.

Builds the wheel, installs it into a new environment that sees this environment's torch and nothing else of the project, and there:
imports it, captures a step, replays it with the installed program and with `python -m`, runs `op-tools`; then builds
tests/consumer, a libtorch program without Python that embeds OpCapture and a hook of its own, against the CMake package
inside the wheel and against that of `cmake --install`, lets it capture, and replays that. Nothing needs libpython, and
the libraries export public names alone.

    embed.py [--keep]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from _program import parser

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev"))
sys.path.append(str(ROOT / "tests" / "python"))
from test_package import strange_symbols  # noqa: E402  (a folder that is no package)

STEP = """
import sys, torch, op_tools
assert "op_tools" in op_tools.__file__ and sys.prefix in op_tools.__file__, op_tools.__file__
torch.manual_seed(0)
layer = torch.nn.Linear(4, 3)
with op_tools.OpCapture(output_dir="captured") as tool, op_tools.OpCapture(level="aten", output_dir="captured"):
    layer(torch.randn(2, 4)).relu().sum().backward()
print(tool.result().table())
"""


def run(*command: Any, **options: Any) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))}\nended with status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def use_in_cpp(package: Path, program: Path, python: Path, folder: Path, environment: dict[str, str]) -> None:
    """Builds tests/consumer, which embeds OpCapture and a hook of its own, runs it and replays its captured calls."""
    folder.mkdir()
    here = {"cwd": folder, "env": environment}
    build = folder / "build"
    options = [f"-DCMAKE_PREFIX_PATH={package}", f"-DPython_EXECUTABLE={python}"]
    run("cmake", "-G", "Ninja", "-S", ROOT / "tests" / "consumer", "-B", build, *options, env=environment)
    run("cmake", "--build", build, env=environment)
    for binary in (build / "consumer", package / "lib" / "libop_tools.so", program):
        linked = run("ldd", binary, env=environment)
        assert "libpython" not in linked and "not found" not in linked, linked
    used = run("ldd", build / "consumer", env=environment).split("libop_tools.so => ")[1].split()[0]
    assert Path(used).resolve() == (package / "lib" / "libop_tools.so").resolve(), used
    assert not (strangers := strange_symbols(package / "lib" / "libop_tools.so")), strangers
    print(
        f"{package.name}: {run(build / 'consumer', 'mm', 'captured', **here).splitlines()[-1]}, no libpython; ", end=""
    )
    print(run(program, "captured", "--acc_check", "-q", **here).splitlines()[0])


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--keep", action="store_true", help="leave the folder there")
    options = command_line.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="embed-"))
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("OP_", "PYTHON", "VIRTUAL_ENV"))
    }
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    here = {"cwd": elsewhere, "env": environment}

    run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-build-isolation", "--no-deps", "-w", folder)
    (wheel,) = folder.glob("op_tools-*.whl")
    print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")

    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    # Only now: a .pth file makes this environment's torch visible there.
    (packages / "torch-from-outside.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    beside = packages / "torch"  # the program looks for torch beside the package, as pip installs them
    beside.symlink_to(Path(torch.__file__).parent)

    print(run(python, "-c", STEP, **here), end="")
    for command in ([folder / "venv/bin/run_op_from_data"], [python, "-m", "op_tools.run_op_from_data"]):
        print(run(*command, "captured", "--acc_check", "-q", **here).splitlines()[0])
    names = run(folder / "venv/bin/op-tools", "ops", "--ops", "torch.nn.functional.linear", **here).split()
    assert names == ["torch.nn.functional.linear"], names

    # A program without Python, against the wheel's files and against those of the build.
    installed = folder / "installed"
    run("cmake", "--install", BUILD, "--prefix", installed)
    for package, program in (
        (packages / "op_tools", folder / "venv/bin/run_op_from_data"),
        (installed, installed / "bin" / "run_op_from_data"),
    ):
        use_in_cpp(package, program, python, elsewhere / package.name, environment)
    if not options.keep:
        shutil.rmtree(folder)
    print("the wheel works in a fresh environment, and a C++ program against it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
