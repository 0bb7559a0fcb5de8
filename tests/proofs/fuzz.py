"""Damaged and hostile files under the address and undefined-behaviour sanitizers: refused, or read as what they were.

Builds the sanitizer preset, runs the hand-made hostile files (the C++ tests tagged [pth]) and then `fuzz_pth`, several
seeds of it. Without sanitizers in the compiler nothing is proven, so that is an error.

    fuzz.py [--mutants 100000] [--seeds 4] [--first-seed 1]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "asan"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=100_000, metavar="N")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="the mutants are shared among so many")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N")
    options = parser.parse_args()

    status = subprocess.run([ROOT / "dev", "asan", "[pth]"], check=False).returncode
    if status:
        print(f"the hand-made hostile files failed with status {status}")
        return 1
    subprocess.run(["cmake", "--build", BUILD, "--target", "fuzz_pth"], check=True, stdout=subprocess.DEVNULL)
    environment = {
        **os.environ,
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "LSAN_OPTIONS": f"suppressions={ROOT}/tests/cpp/lsan.supp:print_suppressions=0",
    }
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        command = [BUILD / "tests" / "cpp" / "fuzz_pth", str(seed), str(options.mutants // options.seeds)]
        done = subprocess.run(command, check=False, env=environment)
        if done.returncode:
            print(f"seed {seed} failed with status {done.returncode}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
