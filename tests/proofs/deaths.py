"""Processes that die in an operator, in several ways: OpBlackBox names the operator, its module and its line, and the
inputs that it kept are those of that call and run again.

Each process runs a small model and dies in a call that chance chooses.

    deaths.py [--deaths 300] [--seed 0]
"""

from __future__ import annotations

import collections
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from _program import parser, quiet

import op_tools
from op_tools._tools.black_box_file import save_kept_calls

SIZE = 5
KEPT = "deaths::.*, mm"  # operators whose inputs are kept


@torch.library.custom_op("deaths::kernel", mutates_args=())
def kernel(x: torch.Tensor, how: str) -> torch.Tensor:
    """Ends the process in the way that it is told."""
    if how:
        KILLS[how]()
    return x.clone()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def without_memory() -> None:
    """The operator asks for more memory than the process may have: it raises, and nobody catches it."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
    torch.empty(1 << 36)


class MemoryGroup:
    """A control group with little memory: the kernel kills a process in it that takes more.

    Raises:
        OSError: this user may make none here.
    """

    LIMIT = 64 << 20  # bytes beyond those of a process when it enters

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup")
        is_first_version = (root / "memory").is_dir()
        self.folder = (root / "memory" if is_first_version else root) / f"op_tools_deaths_{os.getpid()}"
        self.folder.mkdir()
        limit = self.folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")
        try:
            limit.write_text(str(self.LIMIT))
        except OSError:
            self.close()
            raise

    def enter(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        self.folder.rmdir()


group: MemoryGroup | None = None


def by_the_kernel() -> None:
    """Takes memory until the kernel ends the process."""
    assert group is not None
    group.enter()
    taken = []
    while True:
        taken.append(torch.ones(1 << 20))


KILLS: dict[str, Callable[[], None]] = {
    "SIGKILL": killed,
    "abort": os.abort,
    "_exit": lambda: os._exit(7),
    "no memory": without_memory,
    "OOM killer": by_the_kernel,
}


class Layer(torch.nn.Module):
    def __init__(self, deadly: str) -> None:
        super().__init__()
        self.deadly = deadly

    def forward(self, x: torch.Tensor, dies: bool) -> torch.Tensor:
        x = torch.relu(x)
        if self.deadly == "SIGSEGV":
            return crashing_mm(x, dies)
        if dies:
            torch.save(x, "expected.pt")
        return kernel(x, self.deadly if dies else "")  # the guilty line


def crashing_mm(x: torch.Tensor, dies: bool) -> torch.Tensor:
    import op_tools.sim_device as sim

    if dies:
        torch.save(x.cpu(), "expected.pt")
        sim.fault("crash", ops="mm").start()
    return torch.mm(x, x)  # the guilty line


def work(how: str, layers: int, step: int, layer: int) -> None:
    with op_tools.OpBlackBox(inputs=4, inputs_ops=KEPT) as box:
        train(box, how, layers, step, layer)


def train(box: op_tools.OpBlackBox, how: str, layers: int, step: int, layer: int) -> None:
    """Dies in this layer of this step."""
    model = torch.nn.ModuleList(Layer(how) for _ in range(layers))
    device = "cpu"
    if how == "SIGSEGV":
        import op_tools.sim_device as sim

        sim.set_asynchronous(False)
        device = "sim"
    for number in range(step + 1):
        x = torch.rand(SIZE, SIZE).to(device)
        for index, layer_module in enumerate(model):
            x = layer_module(x, number == step and index == layer)
        box.step()


def die(folder: Path, how: str, where: str, chance: random.Random) -> None:
    """In a process of its own."""
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    layers = chance.randrange(1, 4)
    arguments = (how, layers, chance.randrange(4), chance.randrange(layers))
    if where == "thread":
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        thread.join()
    elif where == "fork":
        with op_tools.OpBlackBox(output_dir=folder / "parent"):
            torch.relu(torch.ones(1))
            if (child := os.fork()) == 0:
                work(*arguments)
            os.waitpid(child, 0)
            torch.relu(torch.ones(1))
    elif where == "worker":  # which goes on with the tool of its parent, in a file of its own
        with op_tools.OpBlackBox(inputs=4, inputs_ops=KEPT) as box:
            torch.relu(torch.ones(1))
            if (child := os.fork()) == 0:
                train(box, *arguments)
            os.waitpid(child, 0)
            torch.relu(torch.ones(1))
    else:
        work(*arguments)


def check(folder: Path, how: str) -> list[Path]:
    """The calls that were kept, when all is named as it has to be."""
    boxes = [op_tools.read_black_box(path) for path in (folder / "op_blackbox_result").rglob("*.blackbox")]
    assert all(box.closed and len(box.rows) == 4 for box in boxes if len(boxes) > 1 and not box.parent), "the parent"
    (box,) = (box for box in boxes if box.parent or len(boxes) == 1)
    path = Path(box.path)
    assert not box.alive
    name = "aten::mm" if how == "SIGSEGV" else "deaths::kernel"
    state = "failed" if how == "no memory" else "open"
    guilty = [row for row in box.rows if row.state == state and row.op.startswith(name)]
    assert guilty, f"{state} calls: {[row.op for row in box.rows if row.state == state]}"
    assert "Layer" in guilty[0].module, guilty[0].module
    text = Path(__file__).read_text().splitlines()
    number = int(guilty[0].line.rpartition(":")[2].split()[0])
    assert Path(__file__).name in guilty[0].line and "the guilty line" in text[number - 1], guilty[0].line
    assert state == "failed" or name in box.verdict, box.verdict
    places = save_kept_calls(path, folder / "saved")
    (saved,) = (place for place in places if place.name == str(guilty[0].id))
    expected = torch.load(folder / "expected.pt")
    assert torch.equal(op_tools.load(saved / "input.pth")["args"][0].cpu(), expected), "other inputs"
    return places


def trial(folder: Path, how: str, where: str, seed: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            die(folder, how, where, random.Random(seed))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    check(folder, how)


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--deaths", type=int, default=300, metavar="N")
    command_line.add_argument("--seed", type=int, default=0, metavar="N")
    options = command_line.parse_args()
    quiet("off")
    global group
    try:
        group = MemoryGroup()
    except OSError as error:
        print(f"OOM killer: left out, no control group can be made here: {error}")
        del KILLS["OOM killer"]
    kinds = [(how, where) for how in [*KILLS, "SIGSEGV"] for where in ("main", "thread", "fork", "worker")]
    named: collections.Counter[str] = collections.Counter()
    tried: collections.Counter[str] = collections.Counter()
    failures = []
    with tempfile.TemporaryDirectory() as root:
        for number in range(options.deaths):
            how, where = kinds[number % len(kinds)]
            folder = Path(root) / str(number)
            folder.mkdir()
            tried[f"{how}, {where}"] += 1
            try:
                trial(folder, how, where, options.seed * 1_000_003 + number)
                named[f"{how}, {where}"] += 1
            except Exception:
                failures.append(f"{how}, {where}: {traceback.format_exc()}")
        saved = [str(path) for path in Path(root).glob("*/saved")]
        again = subprocess.run(
            [sys.executable, "-m", "op_tools.run_op_from_data", "--filter", ".*mm", *saved],
            capture_output=True,
            text=True,
        )
    if group:
        group.close()
    for kind, count in tried.items():
        print(f"{kind}: {named[kind]} of {count}")
    print(f"{named.total()} of {tried.total()} deaths named, with module, line and inputs")
    print(f"calls that a crash of a kernel ended, run again: {again.stdout.strip().splitlines()[-1:]}")
    for failure in failures[:5]:
        print(failure)
    return 1 if failures or again.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
