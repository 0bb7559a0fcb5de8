"""Two recordings of a million calls: the time and the memory to align and judge them on one core.

./dev bench align_runs [--quick]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    build = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev"))
    sizes = [(100_000, 100)] if "--quick" in sys.argv else [(1_000_000, 0), (1_000_000, 1_000), (1_000_000, 10_000)]
    for calls, edits in sizes:
        subprocess.run([str(build / "tests" / "cpp" / "bench_align_runs"), str(calls), str(edits)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
