"""Damaged and hostile files under the address and undefined-behaviour sanitizers: refused, or read as they were.

Builds the sanitizer preset, runs the hand-made hostile files (the C++ tests tagged [pth], [store] and [dedupe]) and then
`fuzz_pth`, several seeds of it. Without sanitizers in the compiler nothing is proven, so that is an error.

    fuzz.py [--mutants 100000] [--seeds 4] [--first-seed 1]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from _program import parser

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build" / "asan" / "tests" / "cpp"


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--mutants", type=int, default=100_000, metavar="N")
    command_line.add_argument("--seeds", type=int, default=4, metavar="N", help="the mutants are shared among so many")
    command_line.add_argument("--first-seed", type=int, default=1, metavar="N")
    options = command_line.parse_args()

    jobs = os.environ.get("OP_TOOLS_JOBS", str(os.cpu_count()))
    build = ["cmake", "--build", "--preset", "asan", "-j", jobs, "--target", "op_tools_tests", "fuzz_pth"]
    subprocess.run(["cmake", "--preset", "asan", f"-DPython_EXECUTABLE={sys.executable}"], check=True, cwd=ROOT)
    subprocess.run(build, check=True, cwd=ROOT)
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "LSAN_OPTIONS": f"suppressions={ROOT}/tests/cpp/lsan.supp:print_suppressions=0",
    }
    done = subprocess.run([PROGRAMS / "op_tools_tests", "[pth],[store],[dedupe]"], check=False, env=environment)
    if done.returncode:
        print(f"the hand-made hostile files failed with status {done.returncode}")
        return 1
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        command = [PROGRAMS / "fuzz_pth", str(seed), str(options.mutants // options.seeds)]
        done = subprocess.run(command, check=False, env=environment)
        if done.returncode:
            print(f"seed {seed} failed with status {done.returncode}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
