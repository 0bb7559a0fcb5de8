"""Twelve programs with a planted cause (a wrong kernel, a slow kernel, NaN, a leak, a hang, a wrong rank, a wrong compiler, wrong data, a
wrong seed, a missing operator, two culprits, none): op-tools diagnose names at least eleven causes, and never a wrong cause.

    stories.py [--story NAME] [--keep FOLDER]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tests" / "proofs"), str(ROOT)]

from _program import parser  # noqa: E402
from diagnose_stories import STORIES, Story, answer_in, command_of, environment_of, faults_of  # noqa: E402

from op_tools._diagnose.answer import Cause  # noqa: E402

LEAST = 11
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def told(story: Story, folder: Path) -> tuple[bool, bool, str]:
    """Is the cause of a story named, is a wrong cause named, and a line about it."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "op_tools", *command_of(story, folder, LAUNCHER)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment_of(story)}
    began = time.monotonic()
    with (folder / "diagnose.txt").open("w") as output:
        status = subprocess.run(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    seconds = time.monotonic() - began
    if not (folder / "op_diagnose_result" / "diagnosis.json").is_file():
        return False, False, f"no answer, status {status}"
    answer = answer_in(folder)
    faults = faults_of(story, answer)
    wrong = bool(faults) and answer["cause"] != Cause.NOT_KNOWN.value
    return not faults, wrong, f"{seconds:.0f} s, {answer['sentence']}{'; NOT: ' + '; '.join(faults) if faults else ''}"


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--story", default="", metavar="NAME", help="this alone")
    options.add_argument("--keep", metavar="FOLDER", help="leave all files there")
    chosen = options.parse_args()
    stories = [story for story in STORIES if not chosen.story or story.name == chosen.story]
    named = wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        for story in stories:
            folder = Path(chosen.keep or temporary) / story.name.replace(" ", "_")
            is_named, is_wrong, text = told(story, folder)
            named, wrong = named + is_named, wrong + is_wrong
            print(f"{'named' if is_named else 'WRONG' if is_wrong else 'not named'}  {story.name}: {text}", flush=True)
    print(f"{named} of {len(stories)} causes named, {wrong} wrong")
    needed = LEAST if len(stories) == len(STORIES) else len(stories)
    return 0 if named >= needed and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
