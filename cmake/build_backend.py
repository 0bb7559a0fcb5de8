"""The build backend that pip calls: scikit-build-core, which is told where torch is, and for which torch the wheel is.

pip builds in an environment of its own, where torch is hidden. Torch is no requirement of the build: pip would download several GB of it,
perhaps of another version than the torch that the package will run with.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "dynamic_metadata",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[1]
TORCH_ROOT = "cmake.define.OP_TOOLS_TORCH_ROOT"  # of pip's --config-settings
Settings = dict[str, Any] | None

_WHERE = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
_minor = ""  # major and minor of the torch that a wheel is for; a source distribution is for none


def _pythons() -> list[str]:
    """The Pythons that may have torch: this Python, and the active environment's, where a front end has made an environment."""
    active = os.environ.get("VIRTUAL_ENV")
    others = [str(Path(active) / "bin" / "python")] if active else []
    return [sys.executable, *(python for python in others if Path(python).exists())]


def _folders() -> Iterator[Path]:
    if (spec := find_spec("torch")) and spec.origin:
        yield Path(spec.origin).parent
    # How pip hides installed packages.
    hidden_by = ("PYTHONPATH", "PYTHONNOUSERSITE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden_by}
    for python in _pythons():
        done = subprocess.run([python, "-c", _WHERE], env=environment, capture_output=True, text=True, check=False)
        if done.stdout.strip():
            yield Path(done.stdout.strip()).parent


def find_torch() -> Path:
    """The folder of the torch that the package will run with.

    Raises:
        SystemExit: there is none.
    """
    if (folder := next(_folders(), None)) is not None:
        return folder
    raise SystemExit(
        f"op_tools: {sys.executable} has no torch, and op_tools is built for the torch that is installed. Install torch first, "
        "then op_tools:\n    pip install torch\n    pip install .\n"
        "Torch is somewhere else? Name its folder, which holds include/ and lib/:\n"
        f"    pip install . --config-settings={TORCH_ROOT}=FOLDER"
    )


def _minor_of(folder: Path) -> str:
    """Of torch's folder in Python, or of an unpacked libtorch."""
    for name in ("version.py", "build-version"):
        if (file := folder / name).exists() and (version := re.search(r"(\d+\.\d+)\.\d", file.read_text())):
            return version[1]
    raise SystemExit(f"op_tools: {folder} is no folder of torch: it has neither version.py nor build-version")


def _for_torch(config_settings: Settings) -> dict[str, Any]:
    """The settings of a build, with the torch that it is for.

    Raises:
        SystemExit: there is no torch, or this Python has no GIL.
    """
    global _minor
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(
            f"op_tools: {sys.executable} is a free-threaded Python {sys.version_info[0]}.{sys.version_info[1]}, where "
            "op_tools would read Python's objects without a lock. Install torch and op_tools for the Python of that version with the GIL."
        )
    settings = {**(config_settings or {})}
    if TORCH_ROOT not in settings:
        settings[TORCH_ROOT] = str(find_torch())
    _minor = _minor_of(Path(settings[TORCH_ROOT]))
    return settings


def dynamic_metadata(field: str, _settings: Mapping[str, Any] | None = None) -> str | list[str]:
    """The fields that pyproject.toml leaves to this file: a wheel works with one minor version of torch, and says so."""
    if field == "dependencies":
        return [f"torch=={_minor}.*" if _minor else f"torch>={_of_cmake('OP_TOOLS_TORCH_MINIMUM')}"]
    version = re.search(r"project\(op_tools VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version is not None
    told = (ROOT / "PKG-INFO").exists()  # by a source distribution: pip demands the same of the wheel made from it
    return version[1] + (f"+torch{_minor}" if _minor and not told else "")


def _of_cmake(name: str) -> str:
    match = re.search(rf"set\({name} ([\d.]+)\)", (ROOT / "cmake" / "FindOpToolsTorch.cmake").read_text())
    assert match is not None
    return match[1]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """A wheel for the torch that is installed."""
    return build.build_wheel(wheel_directory, _for_torch(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The same, with the Python files of the source tree."""
    return build.build_editable(wheel_directory, _for_torch(config_settings), metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """The metadata of such a wheel alone."""
    return build.prepare_metadata_for_build_wheel(metadata_directory, _for_torch(config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    """The metadata of an editable wheel."""
    return build.prepare_metadata_for_build_editable(metadata_directory, _for_torch(config_settings))
