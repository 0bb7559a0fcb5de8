"""Makes a single wheel of the wheels for several minor versions of torch: nothing is compiled.

    python cmake/combine_wheels.py A.whl B.whl ... dist

The Python files are the same in all of them. The extension, the libraries, the headers and the program are in a folder for each
version, op_tools/torch_2_13; the package takes its own when it is imported (op_tools/_base/torch_version.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from make_wheel import run

PARTS = ("_C.*.so", "_sim.*.so", "_build_info.py", "bin", "include", "lib")  # of a build, in the package


def unpack(wheel: Path, folder: Path) -> tuple[int, int]:
    """The version of torch that the wheel is for. The files lie in the folder, those of the build in the package's torch_X_Y."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        for entry in archive.infolist():
            (folder / entry.filename).chmod(entry.external_attr >> 16 or 0o644)
    package = folder / "op_tools"
    info = re.search(r'^TORCH_VERSION = "(\d+)\.(\d+)', (package / "_build_info.py").read_text(), re.MULTILINE)
    if info is None:
        raise SystemExit(f"{wheel}: op_tools/_build_info.py names no version of torch")
    version = int(info[1]), int(info[2])
    build = package / "torch_{}_{}".format(*version)
    build.mkdir()
    for pattern in PARTS:
        for part in package.glob(pattern):
            part.rename(build / part.name)
    # Torch's libraries are in the process before the extension is; the program is started with their folder in LD_LIBRARY_PATH.
    run("patchelf", "--set-rpath", "$ORIGIN/lib:$ORIGIN/../../torch/lib", *build.glob("*.so"))
    run("patchelf", "--set-rpath", "$ORIGIN:$ORIGIN/../../../torch/lib", *(build / "lib").glob("*.so"))
    run("patchelf", "--set-rpath", "$ORIGIN/../lib:$ORIGIN/../../../torch/lib", *(build / "bin").iterdir())
    return version


def common_files(folder: Path) -> dict[str, bytes]:
    """Of all builds: the package's Python files, and the scripts."""
    files = (file for file in folder.rglob("*") if file.is_file() and ".dist-info/" not in file.as_posix())
    named = {re.sub(r"^op_tools-[^/]*\.data/", "", file.relative_to(folder).as_posix()): file for file in files}
    return {name: file.read_bytes() for name, file in named.items() if not name.startswith("op_tools/torch_")}


def needs(versions: list[tuple[int, int]]) -> str:
    """What pip has to know of the torch that fits."""
    (major, first), (_, last) = versions[0], versions[-1]
    between = [f"!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in versions]
    return ",".join([f">={major}.{first}", f"<{major}.{last + 1}", *between])


def combine(wheels: list[Path], target: Path) -> Path:
    """Writes the wheel, and returns its path.

    Raises:
        SystemExit: two are for the same torch, or their Python files differ.
    """
    with tempfile.TemporaryDirectory() as name:
        trees = {}
        for number, wheel in enumerate(wheels):
            folder = Path(name) / str(number)
            version = unpack(wheel, folder)
            if version in trees:
                raise SystemExit(f"{wheel}: a second wheel for torch {version[0]}.{version[1]}")
            trees[version] = folder
        versions = sorted(trees)
        tree = trees[versions[-1]]
        files = common_files(tree)
        for version in versions[:-1]:
            others = common_files(trees[version])
            different = sorted(file for file in {*files, *others} if files.get(file) != others.get(file))
            if different:
                raise SystemExit(
                    f"the wheel for torch {version[0]}.{version[1]} was made of other sources than that for "
                    f"{versions[-1][0]}.{versions[-1][1]}: {', '.join(different[:5])}"
                )
            build = "op_tools/torch_{}_{}".format(*version)
            (trees[version] / build).rename(tree / build)
        for folder in sorted(tree.glob("op_tools-*+torch*")):  # .dist-info and .data
            folder.rename(re.sub(r"\+torch[\d.]+(?=\.(?:dist-info|data)$)", "", str(folder)))
        (metadata,) = tree.glob("op_tools-*.dist-info/METADATA")
        text = re.sub(r"^(Version: .*)\+torch.*$", r"\1", metadata.read_text(), flags=re.MULTILINE)
        text = re.sub(r"^Requires-Dist: torch\b.*$", f"Requires-Dist: torch{needs(versions)}", text, flags=re.MULTILINE)
        metadata.write_text(text)
        target.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "wheel", "pack", str(tree), "--dest-dir", str(target)]
        packed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    written = re.search(r"Repacking wheel as (.*\.whl)", packed)
    assert written is not None, packed
    return Path(written[1])


if __name__ == "__main__":
    *paths, folder = map(Path, sys.argv[1:])
    print(combine(paths, folder))
