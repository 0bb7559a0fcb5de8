"""Commands and tools in the steps of a real Slurm: the ranks' results are theirs, and work that tasks share has the answer of a single process.

    slurm.py [--ranks 4] [--calls 2e5]

Starts munged, slurmctld and slurmd with a cluster of this machine alone (apt-get install slurm-wlm; root), on ports of its own, and ends
them. Tools: `srun op-tools run`. Shared work: `compare` of two runs of 16 ranks and of the ranks of a run, `run_op_from_data`, `conformance
run`, in steps, in steps of a batch script, and in the batch script itself, which works alone. A task that is killed is named, and the answer is never "all
right".
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _program import parser, quiet
from many_ranks import long_runs

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
WORLD = 16
START_SECONDS, STEP_SECONDS = 30.0, 600.0
OP_TOOLS = (sys.executable, "-m", "op_tools")
REPLAY = (sys.executable, "-m", "op_tools.run_op_from_data")
TRAINING = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
"""
# A task that dies early, as one whose node fails.
KILLED = 'if [ "$SLURM_PROCID" = 1 ]; then timeout --signal KILL 1 "$@"; else exec "$@"; fi'
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def cluster(folder: Path, cpus: int) -> Iterator[None]:
    """A Slurm of this machine, with its files in a folder."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            controller=free_port(),
            daemon=free_port(),
            folder=folder,
            cpus=cpus,
        )
    )
    os.environ["SLURM_CONF"] = str(configuration)
    files = {"key-file": key.name, "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    daemons = (
        ["munged", "--foreground", "--force", *(f"--{option}={folder / name}" for option, name in files.items())],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )
    with contextlib.ExitStack() as running:
        log = running.enter_context((folder / "log").open("w"))
        for command in daemons:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            running.callback(process.wait)
            running.callback(process.terminate)
        begin = time.monotonic()
        while subprocess.run(["srun", "-n", "1", "true"], capture_output=True, check=False).returncode:
            if time.monotonic() - begin > START_SECONDS:
                raise SystemExit(f"Slurm did not start:\n{(folder / 'log').read_text()}")
            time.sleep(0.5)
        yield


@dataclass
class Ended:
    """A command's status and text, without the lines of srun itself."""

    status: int
    text: str


def without_times(content: bytes) -> Any:
    """The content of a file of JSON; times differ from run to run."""

    def kept(facts: dict[str, Any]) -> dict[str, Any]:
        return {name: fact for name, fact in facts.items() if not re.search(r"_ms|seconds|times", name)}

    return json.loads(content, object_hook=kept)


class Trial:
    """Commands in a folder, and the faults of their answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults = 0

    def run(self, command: tuple[str, ...], tasks: int = 0, variables: dict[str, str] | None = None) -> Ended:
        """tasks: of a step; 0: without srun."""
        step = ("srun", "-n", str(tasks), "--kill-on-bad-exit=0") if tasks else ()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OP_TOOLS_LOG_LEVEL": "error",
            **(variables or {}),
        }
        done = subprocess.run(
            [*step, *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        lines = [line for line in done.stderr.splitlines() if not line.startswith("srun: ")]
        return Ended(done.returncode, "\n".join([done.stdout, *lines]).strip())

    def note(self, name: str, faults: list[str]) -> None:
        print(f"{name:<44} {'WRONG: ' + '; '.join(faults) if faults else 'right'}", flush=True)
        self.faults += len(faults)

    def shared(self, name: str, command: tuple[str, ...], tasks: int, *, status: int, file: str) -> None:
        """A step has the status, text and file of a single process. `file`: the name behind the command's last option."""
        alone = self.run((*command, f"alone_{file}"))
        step = self.run((*command, f"step_{file}"), tasks)
        faults = [f"status {ended.status}" for ended in (alone, step) if ended.status != status]
        texts = [re.sub(r" in [0-9.]+ s:|alone_|step_", "", ended.text) for ended in (alone, step)]
        faults += ["another text"] if texts[0] != texts[1] else []
        contents = [(self.folder / f"{prefix}_{file}").read_bytes() for prefix in ("alone", "step")]
        is_same = contents[0] == contents[1] or without_times(contents[0]) == without_times(contents[1])
        faults += [] if is_same else ["another file"]
        self.note(f"{name}, {tasks} tasks", faults)


def tools_of_ranks(trial: Trial, tasks: int) -> None:
    """Tools that op-tools run starts write into the folders of their ranks."""
    (trial.folder / "train.py").write_text(TRAINING)
    command = (*OP_TOOLS, "run", "--capture", "--record", "--steps", "0:2", "train.py")
    ended = trial.run(command, tasks)
    ranks = [str(rank) for rank in range(tasks)]
    captures = sorted(path.name for path in (trial.folder / "op_capture_result").iterdir())
    recordings = sorted({path.name.split("-")[0] for path in trial.folder.rglob("*.oprec")})
    faults = [f"status {ended.status}"] if ended.status else []
    faults += [f"captures of {captures}"] if captures != ranks else []
    faults += [f"recordings of {recordings}"] if recordings != [f"rank{rank}" for rank in ranks] else []
    trial.note(f"op-tools run, {tasks} tasks", faults)


def conformance(trial: Trial, tasks: int) -> None:
    """Of the captured calls."""
    command = (
        *OP_TOOLS,
        "conformance",
        "run",
        "--captures",
        "op_capture_result",
        "--device",
        "cpu",
        "--jobs",
        "1",
        "-o",
    )
    ended = [trial.run((*command, "cases_alone")), trial.run((*command, "cases_step"), tasks)]
    alone, step = (
        without_times((trial.folder / f"cases_{n}" / "summary.json").read_bytes()) for n in ("alone", "step")
    )
    faults = [f"status {one.status}" for one in ended if one.status]
    faults += ["another summary"] if alone != step else []
    trial.note(f"conformance run, {tasks} tasks", faults)


def killed_task(trial: Trial, tasks: int) -> None:
    command = ("bash", "-c", KILLED, "bash", *OP_TOOLS, "compare", "a", "a", "--json", "killed.json")
    ended = trial.run(command, tasks, {"OP_TOOLS_SHARE_TIMEOUT": "10"})
    faults = [] if "NOT JUDGED" in ended.text and "process 1 of" in ended.text else ["the task is not named"]
    faults += ["agrees"] if ended.status == 0 or "all right" in ended.text else []
    trial.note(f"a task is killed, {tasks} tasks", faults)


def batch(trial: Trial, tasks: int) -> None:
    """In a batch script a command works alone; its steps share the work."""
    command = " ".join([*OP_TOOLS, "compare", "a", "b", "--json"])
    lines = ["#!/bin/bash", f"{command} script.json > script.txt", f"srun {command} of_step.json > of_step.txt"]
    (trial.folder / "job.sh").write_text("\n".join(lines) + "\n")
    ended = trial.run(("sbatch", "--wait", "-n", str(tasks), "-o", "job.txt", "job.sh"))
    contents = [(trial.folder / name).read_bytes() for name in ("script.json", "of_step.json", "alone_two.json")]
    faults = [f"status {ended.status}"] if ended.status != 1 else []
    faults += ["another file"] if len(set(contents)) > 1 else []
    trial.note(f"a batch script and its step, {tasks} tasks", faults)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, default=4, metavar="N", help="tasks of a step")
    options.add_argument("--calls", type=float, default=2e5, metavar="N", help="of the runs that are compared")
    chosen = options.parse_args()
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        print(f"NOT RUN: there is no {', '.join(missing)}: apt-get install slurm-wlm")
        return 1
    if os.geteuid():
        print("NOT RUN: slurmd wants root")
        return 1
    quiet()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the daemons end, too
    tasks = chosen.ranks
    with tempfile.TemporaryDirectory() as temporary, cluster(Path(temporary), max(2, tasks)):
        folder = Path(temporary) / "runs"
        folder.mkdir()
        trial = Trial(folder)
        tools_of_ranks(trial, tasks)
        count, _, _ = long_runs(folder, WORLD, int(chosen.calls))
        print(f"{count:,} calls of {WORLD} ranks")
        compare = (*OP_TOOLS, "compare", "a")
        trial.shared("compare a b", (*compare, "b", "--json"), tasks, status=1, file="two.json")
        trial.shared("compare a", (*compare, "--json"), tasks, status=0, file="ranks.json")
        replay = (*REPLAY, "op_capture_result", "--acc_check", "--json")
        trial.shared("run_op_from_data", replay, tasks, status=0, file="replay.json")
        conformance(trial, tasks)
        batch(trial, tasks)
        killed_task(trial, tasks)
    print(f"{trial.faults} faults")
    return int(trial.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
