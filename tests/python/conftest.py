import contextlib
import functools
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import ForkServer
from stand_in import REFERENCE, read_at_start

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The build folder: OP_TOOLS_BUILD_DIR, else the newest under build/."""
    named = os.environ.get("OP_TOOLS_BUILD_DIR")
    if named:
        return Path(named)
    caches = [*ROOT.glob("build/CMakeCache.txt"), *ROOT.glob("build/*/CMakeCache.txt")]
    assert caches, "nothing is built: run ./dev build, or set OP_TOOLS_BUILD_DIR"
    return max(caches, key=lambda cache: cache.stat().st_mtime).parent


STARTED = pytest.StashKey[float]()
_costs: dict[str, float] = {}  # seconds of CPU time, by test


def pytest_addoption(parser):
    parser.addoption(
        "--costs", metavar="FILE", help="write there, as JSON, the seconds of CPU time that each test took"
    )


# Files with few tests that take long. Under pytest-xdist each process takes a file at a time: a file of these, begun last, would
# keep a process busy while the others have nothing to do.
LONG_FILES = (
    "memory_check",
    "bisect",
    "diagnose",
    "repro",
    "live_runs",
    "examples",
    "integrations",
    "package",
    "children",
    "compare_ranks",
    "as_cuda",
    "compiled",
    "lines",
)


def pytest_collection_modifyitems(items):
    names = [f"test_{name}.py" for name in LONG_FILES]
    items.sort(key=lambda item: names.index(item.path.name) if item.path.name in names else len(names))


def pytest_collection_finish():
    """The objects of the imported test files stay to the end of the process. Python's garbage collector, and a tool that searches its
    objects (OpMemoryCheck), pass over frozen objects: test_memory_check then takes a tenth of the time."""
    gc.collect()
    gc.freeze()


def _cpu_seconds():
    return sum(os.times()[:4]) + (copies().cpu_seconds() if copies.cache_info().currsize else 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """The CPU time of a test, with its fixtures and the processes that it waited for; a shared machine changes it less
    than the time on the clock."""
    item.stash[STARTED] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", _cpu_seconds() - item.stash[STARTED]))
    return report


def pytest_runtest_logreport(report):
    """In the process that reports, which runs no test under pytest-xdist."""
    if report.when == "teardown":
        _costs[report.nodeid] = round(dict(report.user_properties)["cpu"], 2)


def pytest_sessionfinish(session):
    if copies.cache_info().currsize:
        copies().end()
    file = session.config.getoption("costs")
    if file and not hasattr(session.config, "workerinput"):
        Path(file).write_text(json.dumps(_costs, indent=0))


# A shell lets background processes ignore Ctrl-C, and Python then makes no KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["OP_TOOLS_LOG_LEVEL"] = "warn"  # for fixtures that run before _own_world: a line for each file is slow
OURS = ("OP_", "AUTOCOMPARE_", "RANK")


@pytest.fixture(scope="session", autouse=True)
def _threads_of_autograd():
    """Autograd's thread for a device takes the number of threads that is set when it first asks, and keeps it: not that
    of a test which sets another mode, whose successors would sum in another order on the device than on the CPU."""
    if "op_tools.sim_device" in sys.modules:
        result = torch.ones(1, device="sim", requires_grad=True) * 1

        def ask(_):
            torch.get_num_threads()

        result.register_hook(ask)
        result.backward()


def pytest_collectstart(collector):
    """The random numbers that a module draws when it is imported are the same in each process."""
    if isinstance(collector, pytest.Module):
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_world(monkeypatch, tmp_path, request):
    """Every test has a folder of its own, an environment without our variables, and leaves torch's state as it was."""
    for name in [name for name in os.environ if name.startswith(OURS) and name != "OP_TOOLS_BUILD_DIR"]:
        monkeypatch.delenv(name)
    if "op_tools" in sys.modules:
        monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "warn")
        sys.modules["op_tools"]._C.reload_log_level()
    # Libraries set some when they are first used here, which a copy does not see.
    monkeypatch.setenv(REFERENCE, json.dumps(read_at_start(os.environ)))
    monkeypatch.setattr(sys, "executable", copies().python)
    monkeypatch.chdir(tmp_path)
    rng, numpy_rng, python_rng = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(0)
    modes = torch.overrides._len_torch_function_stack()
    yield
    torch.set_rng_state(rng)
    np.random.set_state(numpy_rng)
    random.setstate(python_rng)
    assert torch.overrides._len_torch_function_stack() == modes, f"{request.node.name} left a function mode behind"


@pytest.fixture
def quiet(monkeypatch):
    """For torch's sample calls: a file per capture, a single thread, as their tensors have a few elements."""
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "container")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def log_level(monkeypatch):
    """Sets the level at which this process logs, until the test ends."""

    def set_level(level):
        monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", level)
        sys.modules["op_tools"]._C.reload_log_level()

    return set_level


@dataclass
class Replayed:
    """The results of a run of the replay program."""

    status: int
    out: str
    err: str
    json: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self):
        return self.json["calls"]

    @property
    def summary(self):
        return self.json["summary"]


@pytest.fixture
def replay(build_dir, tmp_path):
    """Runs the C++ replay program, or Python with these arguments; the JSON report is read where it is there."""

    def run(*arguments, python=None, **options):
        report = tmp_path / f"replay-{len(list(tmp_path.glob('replay-*')))}.json"
        done = subprocess.run(
            [
                *([sys.executable, *python] if python else [build_dir / "run_op_from_data"]),
                *map(str, arguments),
                "--json",
                str(report),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OP_TOOLS_LOG_LEVEL": "info"},
            **options,
        )
        return Replayed(
            done.returncode, done.stdout, done.stderr, json.loads(report.read_text()) if report.exists() else {}
        )

    return run


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
os.environ[REFERENCE] = json.dumps(read_at_start(ENVIRONMENT))
PYTHON = sys.executable
"""The interpreter. In tests sys.executable is its stand-in (stand_in.py): a copy, where that makes no difference."""


@functools.cache
def copies() -> ForkServer:
    return ForkServer(["torch"], {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"})


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _launched_ranks(command, ranks, folder, environment, timeout):
    """As torchrun does on a single node: the first rank that fails ends the others."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0"}
    shared |= {"MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "none"}
    with Path(os.devnull).open() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        processes = [
            copies().start(
                command, environment | shared | {"RANK": rank, "LOCAL_RANK": rank}, folder, (nothing, out, err)
            )
            for rank in map(str, range(ranks))
        ]
        end = time.monotonic() + timeout
        try:
            running = processes
            while running and not any(process.returncode for process in processes):
                for process in running:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.02)
                running = [process for process in running if process.returncode is None]
                if time.monotonic() > end:
                    raise subprocess.TimeoutExpired(command, timeout)
        finally:
            for process in processes:
                process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    status = next((process.returncode for process in processes if process.returncode), 0)
    return subprocess.CompletedProcess(command, status, *texts)


def launched(*command, ranks=1, check=True, cwd=None, standard_input=None, timeout=300, fresh=False, **environment):
    """Runs this Python with these arguments. `ranks`: as so many processes. `standard_input`: its text.

    In a copy of a process that has imported torch, where that makes no difference; `fresh`: in any case in a process that is started
    for it, and ranks under torchrun."""
    command = [*map(str, command)]
    if ranks > 1:
        environment = {"OMP_NUM_THREADS": "1", **environment}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    if fresh:
        environment.pop(REFERENCE)  # nor are the programs that it starts
    if fresh or read_at_start(environment) != json.loads(os.environ[REFERENCE]):
        if ranks > 1:
            command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
        done = subprocess.run(
            [PYTHON, *command],
            input=standard_input,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=environment,
        )
    elif ranks > 1:
        done = _launched_ranks(command, ranks, cwd or Path.cwd(), environment, timeout)
    else:
        done = subprocess.CompletedProcess(
            command, *copies().run(command, environment, cwd or Path.cwd(), timeout, standard_input)
        )
        if done.returncode is None:
            raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def python(tmp_path):
    """Runs a program text in a Python of its own: for matters of a whole process."""

    def run(text, check=True, timeout=120, fresh=False, **environment):
        program = tmp_path / f"program-{len(list(tmp_path.glob('program-*')))}.py"
        program.write_text(text)
        environment = {"OP_TOOLS_LOG_LEVEL": "info", **environment}
        return launched(
            "-X", "faulthandler", program, check=check, cwd=tmp_path, timeout=timeout, fresh=fresh, **environment
        )

    return run


@dataclass
class Captured:
    """A captured call in the folder layout, its files read by torch.load only."""

    folder: Path

    def file(self, name):
        path = self.folder / name
        return torch.load(path, weights_only=True) if path.exists() else None

    @property
    def meta(self):
        return json.loads((self.folder / "meta.json").read_text())

    @property
    def id(self):
        return int(self.folder.name)

    @property
    def name(self):
        return self.file("input.pth")["name"]

    @property
    def args(self):
        return self.file("input.pth")["args"]

    @property
    def kwargs(self):
        return self.file("input.pth")["kwargs"]

    @property
    def result(self):
        return self.file("output.pth")["args"][0]

    def gradients(self, which, number=1):
        """The list of gradients in grad_inputs.pth or grad_outputs.pth of the numbered backward pass; None without."""
        read = self.file(f"grad_{which}.pth" if number == 1 else f"grad_{which}.{number}.pth")
        return None if read is None else list(read["args"])


@pytest.fixture
def captured():
    """All calls of a finished OpCapture, of a single operator if named, in the order in which they were made."""

    def calls(tool, op=None):
        tool.flush()
        root = Path(tool.result().root)
        calls_of_tool = [Captured(meta.parent) for meta in root.glob("*/*/meta.json")]
        return sorted(
            (call for call in calls_of_tool if op in (None, call.folder.parent.name)), key=lambda call: call.id
        )

    return calls


@pytest.fixture(autouse=True)
def no_accelerator(request, monkeypatch):
    """The simulated device is there in the processes of many tests that train on the CPU: that is no run that missed its
    accelerator. test_coverage.py and test_verdict_table.py ask for that."""
    if "op_tools" in sys.modules and request.module.__name__ not in ("test_coverage", "test_verdict_table"):
        watch = importlib.import_module("op_tools._torch.unseen_work").Watch
        add_to = watch.add_to

        def without_accelerator(self, account, **how):
            add_to(self, account, **how)
            account.accelerator = ""

        monkeypatch.setattr(watch, "add_to", without_accelerator)


@pytest.fixture
def op_tools_on_path(tmp_path, monkeypatch):
    """op-tools is a command, as where the package is installed."""
    command = tmp_path / "commands" / "op-tools"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m op_tools "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
