"""Recordings and black boxes of a training with many ranks, read by our commands: is the planted rank named, and at what cost?

    many_ranks.py [--ranks 64 256 1024] [--steps 3] [--keep FOLDER]
    many_ranks.py --calls 1e6 1e7 [--ranks 64 256 1024] [--jobs 1 2]      the cost of long runs, whose steps are written without a training

The training is tensor-, pipeline-, expert- and data-parallel: a rank holds its pieces of its stage's layers, and calls the collectives of
its groups. Torch's fake process group takes part in them, so a process plays many ranks, one after the other, on the simulated device. Of two
runs the second has a rank with a wrong kernel in a single step, a rank whose recording is missing, a rank whose recording is cut off, a
rank that gives another size to a collective than its group, and a rank that stops in front of a collective. Cost: CPU time and the largest resident memory of each command's process.

A long run has the ranks of a decoder of 32 layers, hidden size 4,096, a stage of 8 layers each, with a sick rank in its middle; a million
calls take 0.3 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from _multiplied import Change, Owner, Role, Template, write_run
from _program import parser, quiet
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
TENSOR, PIPELINE, EXPERTS = 4, 4, 4  # ranks of a group; the rest is data-parallel
HIDDEN, TOKENS, LAYERS = 32, 16, 2
LARGE = {HIDDEN: 4096, TOKENS: 8192}  # of a long run
LARGE_LAYERS, RECORDED_STEPS = 8, 5
OPTIMIZER = "_foreach_add_"  # of a step, that writes the parameters
WORKERS = 2
MOST_MEMORY = 4e9  # bytes
REPLAY = "op_tools.run_op_from_data"


@dataclass(frozen=True)
class Place:
    """Of a rank in the parallel layout."""

    rank: int
    world: int

    @property
    def tensor(self) -> int:
        return self.rank % TENSOR

    @property
    def stage(self) -> int:
        return self.rank // TENSOR % PIPELINE

    @property
    def replica(self) -> int:
        return self.rank // (TENSOR * PIPELINE)

    def groups(self) -> dict[str, dist.ProcessGroup]:
        """Those that this rank is in. The fake group asks no other rank to make them."""
        beside = TENSOR * PIPELINE
        replicas = range(self.rank % beside, self.world, beside)
        first = self.replica // EXPERTS * EXPERTS
        ranks = {
            "tensor": range(self.rank - self.tensor, self.rank - self.tensor + TENSOR),
            "experts": list(replicas)[first : first + EXPERTS],
            "data": replicas,
        }
        return {name: dist.new_group(list(members)) for name, members in ranks.items()}


class Layer(torch.nn.Module):
    """A rank's piece of a layer: columns of the first weight, rows of the second, and an expert."""

    def __init__(self, groups: dict[str, dist.ProcessGroup], hidden: int) -> None:
        super().__init__()
        self.groups = groups
        self.norm = torch.nn.LayerNorm(hidden)
        self.columns = torch.nn.Linear(hidden, 4 * hidden // TENSOR)
        self.rows = torch.nn.Linear(4 * hidden // TENSOR, hidden, bias=False)
        self.expert = torch.nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        partial = self.rows(torch.nn.functional.gelu(self.columns(self.norm(x))))
        dist.all_reduce(partial.detach(), group=self.groups["tensor"])
        x = x + partial
        sent = x.detach().clone()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.groups["experts"])
        return x + self.expert(sent)


def train(
    place: Place,
    steps: int,
    stops_in: int | None,
    end_step: Callable[[], None],
    layers: int = LAYERS,
    halves_in: int | None = None,
    *,
    hidden: int = HIDDEN,
    tokens: int = TOKENS,
    device: str = "sim",
) -> None:
    """A rank's training. `stops_in`: the step in which it does not reach the gradients' collective; `halves_in`: in which it gives half of
    a gradient to it."""
    groups = place.groups()
    torch.manual_seed(place.stage * TENSOR + place.tensor)
    model = torch.nn.Sequential(*(Layer(groups, hidden) for _ in range(layers))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1_000 + place.replica)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(tokens, hidden, device=device)
        model(x).square().mean().backward()
        if step == stops_in:
            break
        for number, parameter in enumerate(model.parameters()):
            gradient = parameter.grad
            is_half = step == halves_in and number == 0
            dist.all_reduce(gradient[: len(gradient) // 2] if is_half else gradient, group=groups["data"])
        optimizer.step()
        end_step()


def write_ranks(options: argparse.Namespace) -> None:
    """The recordings and the black boxes of some ranks of a run."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import op_tools
    import op_tools.sim_device as sim

    quiet()
    for rank in range(options.first, options.world, WORKERS):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.world), "LOCAL_RANK": "0"}
        dist.init_process_group("fake", rank=rank, world_size=options.world, store=FakeStore())
        with tempfile.TemporaryDirectory() as temporary:
            record = op_tools.OpRecord(output_dir=str(options.write / "record"))
            box = op_tools.OpBlackBox(output_dir=temporary, calls=64)
            fault = sim.fault("scale", ops="aten::gelu", call=LAYERS)  # in the second step
            with record, box:
                if rank == options.sick:
                    fault.start()
                train(
                    Place(rank, options.world),
                    options.steps,
                    1 if rank == options.stopped else None,
                    lambda record=record, box=box: (record.step(), box.step()),
                    halves_in=options.steps - 1 if rank == options.mismatched else None,
                )
                # As a process leaves it that is killed now.
                (file,) = Path(temporary).rglob("*.blackbox")
                kept = options.write / "boxes" / str(rank)
                kept.mkdir(parents=True)
                copy = kept / f"{100_000 + rank}.blackbox"
                subprocess.run(["cp", "--sparse=always", file, copy], check=True)  # most of a box is empty
                if rank == options.sick:
                    fault.stop()
        dist.destroy_process_group()
        write_capture(options.write / "captures", rank == options.sick)


def write_capture(folder: Path, is_sick: bool) -> None:
    """A rank's captured calls, in a container as a launch of so many ranks has it."""
    import op_tools
    import op_tools.sim_device as sim

    torch.manual_seed(0)
    x, weight = torch.randn(TOKENS, HIDDEN, device="sim"), torch.randn(HIDDEN, HIDDEN, device="sim")
    fault = sim.fault("scale", ops="aten::gelu") if is_sick else contextlib.nullcontext()
    with op_tools.OpCapture(output_dir=str(folder), format="container"), fault:
        torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))


def written(folder: Path, world: int, steps: int, planted: dict[str, int]) -> None:
    """A run's files, made by several processes."""
    command = [sys.executable, __file__, "--write", folder, "--world", world, "--steps", steps]
    command += [part for name, rank in planted.items() for part in (f"--{name}", rank)]
    processes = [subprocess.Popen([*map(str, command), "--first", str(first)]) for first in range(WORKERS)]
    statuses = [process.wait() for process in processes]  # all of them end
    if any(statuses):
        raise SystemExit("the ranks could not be written")


# --- Long runs ----------------------------------------------------------------------------------------------------------


def write_template(folder: Path) -> None:
    """The recording of a rank whose last step is repeated for all."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import op_tools
    import op_tools.sim_device

    quiet()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "64", "LOCAL_RANK": "0"}
    dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
    with op_tools.OpRecord(output_dir=str(folder)) as record:
        train(Place(0, 64), RECORDED_STEPS, None, record.step, LARGE_LAYERS)
    dist.destroy_process_group()


def role_of(template: Template, place: Place) -> Role:
    """A rank's place in the layout, as its recording has it. Sums become means: ranks with equal numbers then have them in the results, too."""
    ranks = {
        "1": (f"tensor {place.replica} {place.stage}", TENSOR),
        "2": (f"experts {place.replica // EXPERTS} {place.stage} {place.tensor}", EXPERTS),
        "3": (f"data {place.stage} {place.tensor}", place.world // (TENSOR * PIPELINE)),
    }
    texts = {}
    for text in template.strings:
        name = text.partition('"kwargs.group":"')[2][:1]
        if name:
            new, count = ranks[name]
            texts[text] = text.replace(f'"{name}, 4 ranks"', f'"{new}, {count} ranks"').replace('"sum"', '"avg"')
    keys = {
        Owner.RANK: (place.rank,),
        Owner.GROUP: (place.replica, place.stage),
        Owner.REPLICAS: (place.stage, place.tensor),
    }
    return Role(place.rank, place.world, keys, texts)


def long_runs(folder: Path, world: int, calls: int) -> tuple[int, int, int]:
    """Runs "a", "b" and "c", which have a sick rank in b (an activation) and in c (a parameter), and else the same files; the calls of a
    run, the sick rank and its step."""
    subprocess.run([sys.executable, __file__, "--template", folder / "template"], check=True)
    (file,) = (folder / "template").iterdir()
    template = Template(file, LARGE)
    steps = max(RECORDED_STEPS + 1, round(calls / world / template.calls_of_step))
    sick, step = world * 5 // 16 + 1, (RECORDED_STEPS + steps) // 2

    def role(rank: int) -> Role:
        return role_of(template, Place(rank, world))

    written_calls = write_run(folder / "a", template, role, world, steps)
    for name, op in (("b", "gelu"), ("c", OPTIMIZER)):
        (folder / name).mkdir()
        for path in (folder / "a").iterdir():
            if path.name.startswith(f"rank{sick}-"):
                template.write(folder / name / path.name, role(sick), steps, Change(sick=(sick, step), sick_op=op))
            else:
                (folder / name / path.name).hardlink_to(path)
    return written_calls, sick, step


def long_questions(sick: int, step: int) -> tuple[Question, ...]:
    """Asked of long runs. The steps' number stands in front of the operator."""
    return (
        Question("compare A A", ("compare", "a", "a"), 0),
        Question("compare A B", ("compare", "a", "b"), 1, (f"rank {sick}", f"gelu (forward, step {step})")),
        # Each replica has its own data: their activations cannot be compared, their parameters can.
        Question("compare A", ("compare", "a"), 2, ("NOT JUDGED: most calls cannot be compared",)),
        Question("compare C", ("compare", "c"), 1, ("1 of ", f"\n{sick:>4} ", f"{step} ", OPTIMIZER)),
        Question("show", ("show", "a"), 0),
        Question("report --text", ("report", "a", "--text"), 0),
        Question("report", ("report", "a", "-o", "report.html"), 0),
    )


def measure_long_runs(options: argparse.Namespace) -> int:
    """A line for each command; returns how many gave a wrong answer."""
    print(f"{'ranks':>6} {'calls':>11} {'command':<16} {'jobs':>4} {'CPU s':>8} {'s':>7} {'MB':>6} {'CPU min/1e8':>11}")
    wrong = 0
    for world in options.ranks:
        for calls in map(int, options.calls):
            with tempfile.TemporaryDirectory(dir=options.keep) as temporary:
                folder = Path(temporary)
                count, sick, step = long_runs(folder, world, calls)
                start = asked(("show", str(folder / "template")), folder).seconds
                for question in long_questions(sick, step):
                    if options.only and question.name not in options.only:
                        continue
                    for jobs in options.jobs if question.name.startswith("compare") else [1]:
                        command = (*question.command, *(("--jobs", str(jobs)) if jobs > 1 else ()))
                        answer = asked(command, folder)
                        faults = question.faults_of(answer)
                        wrong += bool(faults)
                        share = max(0.0, answer.seconds - jobs * start) / 60 * 1e8 / count
                        print(
                            f"{world:>6} {count:>11} {question.name:<16} {jobs:>4} {answer.seconds:>8.1f} {answer.wall:>7.1f}"
                            f" {answer.memory / 1e6:>6.0f} {share:>11.2f}{'  WRONG: ' + ', '.join(faults) if faults else ''}",
                            flush=True,
                        )
    return wrong


@dataclass(frozen=True)
class Question:
    """A command of ours, and the answer that it must give."""

    name: str
    command: tuple[str, ...]
    status: int
    first: tuple[str, ...] = ()
    """Texts in the first 25 lines."""
    anywhere: tuple[str, ...] = ()

    def faults_of(self, answer: Answer) -> list[str]:
        """Of an answer: texts that are missing, another status, too much memory."""
        screen = "\n".join(answer.text.splitlines()[:25])
        faults = [f"status {answer.status}"] if answer.status != self.status else []
        faults += [f"no {text!r}" for text in self.first if text not in screen]
        faults += [f"no {text!r}" for text in self.anywhere if text not in answer.text]
        return faults + ([f"{answer.memory / 1e9:.1f} GB"] if answer.memory > MOST_MEMORY else [])


@dataclass
class Answer:
    """A command's output and cost."""

    text: str
    status: int
    seconds: float
    """Of the CPU."""
    wall: float
    """Seconds from begin to end."""
    memory: int
    """Bytes, the largest of a process."""


def asked(command: tuple[str, ...], folder: Path) -> Answer:
    """Runs a command of ours."""
    with (folder / "answer.txt").open("w+") as file:
        begin = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OP_TOOLS_LOG_LEVEL": "error"}
        process = subprocess.Popen(
            [sys.executable, "-m", *(command if command[0] == REPLAY else ("op_tools", *command))],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        # ru_maxrss counts in kB.
        seconds = usage.ru_utime + usage.ru_stime
        return Answer(file.read(), process.returncode, seconds, time.monotonic() - begin, usage.ru_maxrss * 1024)


def tried(world: int, steps: int, folder: Path) -> list[tuple[str, Answer, list[str]]]:
    """Each command over a training of so many ranks: its answer, and its faults."""
    sick, mismatched, stopped, missing, cut = (world * share // 16 + 1 for share in (5, 7, 9, 11, 13))
    written(folder / "a", world, steps, {})
    written(folder / "b", world, steps, {"sick": sick, "stopped": stopped, "mismatched": mismatched})
    (file,) = (folder / "b" / "record").glob(f"rank{missing}-*")
    file.unlink()
    (file,) = (folder / "b" / "record").glob(f"rank{cut}-*")
    os.truncate(file, file.stat().st_size * 2 // 3)
    questions = (
        Question("compare, the same run", ("compare", "a/record", "a/record"), 0),
        Question(
            "compare, planted faults",
            ("compare", "a/record", "b/record"),
            1,
            (f"rank {sick}", "gelu"),
            (f"rank {cut}: incomplete", f"rank {missing}: only in A", str(mismatched)),
        ),
        Question("show", ("show", "b/record"), 0),
        Question("report --text", ("report", "b/record", "--text"), 0),
        Question("report", ("report", "a/record", "b/record", "-o", "report.html"), 0),
        Question(
            "blackbox",
            ("blackbox", "b/boxes"),
            0,
            (f"behind is rank {stopped}", f"rank {mismatched}: c10d::allreduce_ (sum) on float32[{HIDDEN // 2}]"),
        ),
        Question("show captures", ("show", "b/captures"), 0),
        Question("replay", (REPLAY, "b/captures", "--acc_check"), 1, (), ("1 differ", f"/{sick}/")),
        Question(
            "conformance",
            (
                "conformance",
                "run",
                "--source",
                "captures",
                "--captures",
                "b/captures",
                "--device",
                "cpu",
                "-o",
                "cases",
            ),
            0,
        ),
    )
    rows = []
    for question in questions:
        answer = asked(question.command, folder)
        (folder / f"{question.name.replace(' ', '_').replace(',', '')}.txt").write_text(answer.text)
        rows.append((question.name, answer, question.faults_of(answer)))
    return rows


def calls_of(folder: Path) -> int:
    """Of all ranks of a run, as its recordings count them."""
    import op_tools

    return sum(len(op_tools.read_recording(str(path)).calls) for path in (folder / "record").iterdir())


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024], metavar="N")
    options.add_argument("--steps", type=int, default=3, metavar="N")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="leave all files there")
    options.add_argument("--calls", type=float, nargs="+", metavar="N", help="of all ranks of a long run")
    options.add_argument("--jobs", type=int, nargs="+", default=[1, 2], metavar="N", help="of compare, over long runs")
    options.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options.add_argument(
        "--only", nargs="+", default=[], metavar="COMMAND", help='with --calls, "compare A": these alone'
    )
    options.add_argument("--template", type=Path, help=argparse.SUPPRESS)
    for name in ("first", "world", "sick", "stopped", "mismatched"):
        options.add_argument(f"--{name}", type=int, default=-1, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.write:
        write_ranks(chosen)
        return 0
    if chosen.template:
        write_template(chosen.template)
        return 0
    if chosen.calls:
        return measure_long_runs(chosen) > 0
    count = 0
    print(f"{'ranks':>6} {'calls':>9} {'command':<24} {'CPU s':>7} {'MB':>6} {'lines':>6} {'status':>6}")
    with tempfile.TemporaryDirectory() as temporary:
        for world in tqdm(chosen.ranks, file=sys.stderr):
            folder = Path(chosen.keep or temporary) / str(world)
            folder.mkdir(parents=True)
            rows = tried(world, chosen.steps, folder)
            calls = calls_of(folder / "a")
            for name, answer, faults in rows:
                lines = answer.text.count("\n")
                print(
                    f"{world:>6} {calls:>9} {name:<24} {answer.seconds:>7.1f} {answer.memory / 1e6:>6.0f} {lines:>6}"
                    f" {answer.status:>6}{'  WRONG: ' + ', '.join(faults) if faults else ''}",
                    flush=True,
                )
                count += bool(faults)
            if not chosen.keep:
                shutil.rmtree(folder)
    return count > 0


if __name__ == "__main__":
    sys.exit(main())
