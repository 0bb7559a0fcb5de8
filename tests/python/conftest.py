import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The build folder: OP_TOOLS_BUILD_DIR (./dev sets it), else build/dev, else build."""
    named = os.environ.get("OP_TOOLS_BUILD_DIR")
    candidates = [Path(named)] if named else [ROOT / "build" / "dev", ROOT / "build"]
    for folder in candidates:
        if (folder / "CMakeCache.txt").exists():
            return folder
    pytest.fail(f"nothing is built in {candidates[0]}: run ./dev build, or set OP_TOOLS_BUILD_DIR")
