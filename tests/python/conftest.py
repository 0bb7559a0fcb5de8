import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The build folder: OP_TOOLS_BUILD_DIR, else the newest one under build/."""
    named = os.environ.get("OP_TOOLS_BUILD_DIR")
    if named:
        return Path(named)
    found = [*ROOT.glob("build/CMakeCache.txt"), *ROOT.glob("build/*/CMakeCache.txt")]
    assert found, "nothing is built: run ./dev build, or set OP_TOOLS_BUILD_DIR"
    return max(found, key=lambda cache: cache.stat().st_mtime).parent
