"""Writes the suite of torch's samples: op_tools/_conformance/op_tools_cases/op_db/<torch minor>.jsonl.gz.

    python tools/record_op_db.py [--only REGEX] [-o FILE] [--jobs N] [--folder DIR]

Each operator's samples become cases in a process of its own: some changed calls kill torch's own kernels. An operator whose
process dies is tried again without changed calls, and named. Takes about ten minutes on two cores; with --folder, a
stopped run goes on.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from op_tools._conformance.case import Case  # noqa: E402
from op_tools._conformance.float8 import float8_cases  # noqa: E402
from op_tools._conformance.lists import FOLDER, read_list, write_list  # noqa: E402
from op_tools._conformance.op_db import Collector  # noqa: E402
from op_tools._torch.op_samples import operators  # noqa: E402


def collect(name: str, file: Path, changed: bool) -> None:
    """The cases of an operator, in a file; beside it the calls that were left out."""
    torch.set_num_threads(1)
    collector = Collector(changed=changed)
    write_list(file.with_suffix(".part"), collector.cases(f"^{re.escape(name)}$"))
    file.with_suffix(".left").write_text("".join(f"{count}\t{why}\n" for why, count in collector.left_out.items()))
    file.with_suffix(".part").rename(file)


def run_all(names: list[str], folder: Path, jobs: int) -> None:
    """Collects all operators that the folder lacks."""
    context = multiprocessing.get_context("fork")  # torch's samples are imported once
    waiting = [(name, True) for name in reversed(names) if not (folder / f"{name}.jsonl").is_file()]
    running: dict[BaseProcess, tuple[str, bool]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name, changed = waiting.pop()
            process = context.Process(target=collect, args=(name, folder / f"{name}.jsonl", changed))
            process.start()
            running[process] = (name, changed)
        time.sleep(0.01)
        for process in [one for one in running if not one.is_alive()]:
            name, changed = running.pop(process)
            process.join()
            if process.exitcode and changed:
                (folder / f"{name}.died").touch()
                waiting.append((name, False))
            elif process.exitcode:
                sys.stdout.write(f"{name}: left out: its samples end the process with {process.exitcode}\n")


def once(names: list[str], folder: Path) -> Iterator[Case]:
    """All collected cases in the order of the operators, then those of the 8-bit dtypes; each once."""
    files = [file for name in names if (file := folder / f"{name}.jsonl").is_file()]
    seen: set[str] = set()
    for case in itertools.chain(*map(read_list, files), float8_cases()):
        if case.id not in seen:
            seen.add(case.id)
            yield case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--jobs", type=int, default=2)
    minor = ".".join(torch.__version__.split(".")[:2])
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "op_db" / f"{minor}.jsonl.gz")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep finished work there, and go on with it")
    options = parser.parse_args()
    names = [name for name in operators() if re.search(options.only, name)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run_all(names, folder, options.jobs)
        for file in sorted(folder.glob("*.died")):
            sys.stdout.write(f"{file.stem}: without changed calls: a changed call ends the process\n")
        left_out: Counter[str] = Counter()
        for file in folder.glob("*.left"):
            for line in file.read_text().splitlines():
                number, _, why = line.partition("\t")
                left_out[why] += int(number)
        count, digest = write_list(options.output, once(names, folder))
    sys.stdout.writelines(f"left out: {number} {why}\n" for why, number in left_out.most_common())
    sys.stdout.write(f"{count} cases, SHA-256 {digest}, {options.output.stat().st_size / 1e6:.2f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
