"""How long a developer waits after an edit of a hook: its source file, and the links up to a running test.

    ./dev bench compile_time

`./dev clean && CCACHE_DISABLE=1 ./dev build --times` shows the time of a clean build on the machine at hand.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from _measure import PROMISE, ROOT, Report, arguments, verdict

HOOKS = ("src/capture/capture_hook.cpp", "src/compare/compare_hook.cpp", "src/timing/time_hook.cpp")


def main() -> None:
    options = arguments(__doc__).parse_args()
    build = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev"))
    report = Report("compile_time")
    table = report.table("Compile time", *PROMISE)
    command = ["cmake", "--build", str(build), "--target", "op_tools", "_C", "op_tools_tests"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for hook in HOOKS[: 1 if options.quick else None]:
        file = ROOT / hook
        before = file.stat()
        try:
            file.touch()
            cpu, start = os.times(), time.perf_counter()
            environment = {**os.environ, "CCACHE_DISABLE": "1"}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            wall, now = time.perf_counter() - start, os.times()
        finally:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        used = now.children_user + now.children_system - cpu.children_user - cpu.children_system
        table.row(
            f"an edit of {hook}, to the C++ tests and the Python module",
            "",
            "under 10 s",
            f"{used:.0f} s of CPU",
            verdict(used, most=10),
            f"{wall:.0f} s wall",
        )
    report.write()


if __name__ == "__main__":
    main()
