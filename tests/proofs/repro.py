"""Scripts that op-tools repro writes show the failure in a fresh process, without op_tools.

    ./dev prove repro [--calls N] [--fresh N] [--shrink N] [--cpp N] [--kinds KIND...] [--seed S] [--results FILE]

Failing calls are made as in benchmarks/fault_trials.py: a fault of the simulated device in an operator of a model's training
step, here in all its calls, so that it is there in a new process, too. OpAutoCompare saves them; each becomes a script, which
is run in a process that finds torch and no op_tools: with the fault (exit status 1), and without it (exit status 0). A process
is a copy of a process that has imported torch and done nothing else (tests/python/forked.py); the first `--fresh` scripts run once more in Pythons
that are started for them, and have to end with the same status. The first `--shrink` of them are made smaller; the first `--cpp`
also become C++ programs, several to a translation unit, and run with and without the fault. Calls are drawn from --seed on, so that
seeds must lie apart; with --results a run is a part of a longer run.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from _program import parser, quiet

from op_tools._conformance.workers import work_through

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from forked import ForkServer  # noqa: E402

KINDS = (
    "scale",
    "element",
    "low_precision",
    "swap_rows",
    "nan",
    "inf",
    "mutate_input",
    "noncontiguous",
    "above_size",
    "lost_write",
    "missing",
    "strides",
    "exception",
    "nondeterministic",
)
PRECISIONS = ("float32", "bfloat16")
PROGRAMS = 10  # in C++, to a translation unit
LIBRARY = "libop_tools_sim_device.so"


@dataclass
class Trial:
    """The outcome of a failing call."""

    label: str
    fault: str
    reproduced: bool = False
    right_without_fault: bool = False
    differs_fresh: bool = False
    """A Python that was started for the script ended otherwise."""
    data: str = ""
    elements: int = 0
    lines: int = 0
    finding: str = ""
    output: str = ""
    cpp: str = ""
    """Folder of the C++ program; "" without it."""
    cpp_reproduces: bool = False
    cpp_trouble: str = ""
    shrunk: tuple[int, int, int] | None = None
    """Elements before and after, attempts."""
    shrunk_reproduces: bool = False
    shrunk_lines: int = 0
    shrink_trouble: str = ""
    seconds: float = 0.0


@dataclass
class Failing:
    """A saved failure and the variable that plants its fault in another process."""

    folder: str
    fault: str
    label: str
    others: list[str] = field(default_factory=list)


def library() -> str:
    return str(Path(os.environ["OP_TOOLS_BUILD_DIR"]) / LIBRARY)


def failing_calls(folder: Path, count: int, kinds: list[str], seed: int) -> list[Failing]:
    """Plants faults until `count` calls have failed."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import fault_trials
    import torch

    import op_tools
    import op_tools.sim_device as sim

    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    models = [*fault_trials.OF_DIGITS, *fault_trials._zoo.ZOO]
    places = {precision: fault_trials.operators(models, precision) for precision in PRECISIONS}
    failing: list[Failing] = []
    for number in range(seed, seed + 20 * count):
        if len(failing) >= count:
            break
        kind, level = kinds[number % len(kinds)], ("torch", "aten")[number // len(kinds) % 2]
        draw = random.Random(f"{kind} {number}")
        precision = draw.choice(PRECISIONS)
        model, optimizer, operator, _ = draw.choice(places[precision])
        more = {"size": draw.choice([4, 64])} if kind == "above_size" else {}
        tool = op_tools.OpAutoCompare(level=level, output_dir=tempfile.mkdtemp(dir=folder), max_saved=1)
        with sim.fault(kind, ops=operator, seed=number, **more), tool, contextlib.suppress(Exception):
            fault_trials.step(model, optimizer, precision)
        failures = [row for row in tool.result().failures if row.saved and "past autograd" not in row.reason]
        saved = [row.saved for row in failures if row.method != "statistical"]  # of random numbers no script is made
        sim.faults_clear()
        variable = f"{kind}:ops={operator},seed={number}" + "".join(f",{k}={v}" for k, v in more.items())
        if saved:
            failing.append(
                Failing(
                    f"{draw.choice(sorted(set(saved)))}/device",
                    variable,
                    f"{kind} {level} {operator} {model} {precision}",
                )
            )
    return failing


def outside(fault: str) -> dict[str, str]:
    """The environment of a process that does not find op_tools."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**variables, "OP_TOOLS_SIM_FAULTS": fault}


def fresh_status(path: Path, fault: str) -> int:
    """The exit status in a Python that is started for it."""
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=outside(fault), capture_output=True, timeout=300, check=False).returncode


class Copies:
    """Runs the processes of op_tools.repro: the judge, which needs op_tools, and scripts, which must not find it."""

    def __init__(self) -> None:
        from op_tools.repro._trial import package_environment

        self._inside = ForkServer(["op_tools.run_op_from_data"], package_environment())
        self._outside = ForkServer(["torch"], outside(""))

    def run(
        self,
        command: list[str],
        timeout: float = 300,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ):
        """Stands for op_tools.repro._trial.run."""
        from op_tools.repro._trial import Ended

        assert command[0] == sys.executable
        server = self._inside if command[1] == "-c" else self._outside
        return Ended(*server.run(command[1:], environment or os.environ, folder or Path.cwd(), timeout))


@functools.cache
def copies() -> Copies:
    return Copies()


CMAKE = """\
cmake_minimum_required(VERSION 3.24)
project(repro LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_FLAGS -O0)
find_package(Torch REQUIRED)
"""


def write_unit(trials: list[Trial], path: Path) -> None:
    """Their programs as a single program, in a namespace each; its first argument selects the program. Most of a compilation is torch's headers."""
    includes: dict[str, None] = {}
    text, choices = "", ""
    for number, trial in enumerate(trials):
        (source,) = Path(trial.cpp).glob("*.cpp")
        lines = source.read_text().splitlines()
        includes |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        own = "\n".join(line for line in lines if not line.startswith("#include"))
        text += f"namespace repro{number} {{\n{own}\n}}\n"
        choices += f"    case {number}: return repro{number}::main(count - 1, arguments + 1);\n"
    main = f"int main(int count, char** arguments) {{\n  switch (std::stoi(arguments[1])) {{\n{choices}  }}\n  return 2;\n}}\n"
    path.write_text("\n".join(includes) + "\n" + text + main)


def build(units: list[list[Trial]], folder: Path) -> dict[int, Path]:
    """The programs of those units that compile, by their number."""
    import torch

    folder.mkdir()
    text = CMAKE
    for number, unit in enumerate(units):
        write_unit(unit, folder / f"unit{number}.cpp")
        text += f"add_executable(unit{number} unit{number}.cpp)\ntarget_link_libraries(unit{number} PRIVATE ${{TORCH_LIBRARIES}} dl)\n"
    (folder / "CMakeLists.txt").write_text(text)
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["cmake", "-S", folder, "-B", folder / "build", prefix], check=True, **out)
    subprocess.run(["cmake", "--build", folder / "build", "-j2", "--", "-k"], check=False, **out)
    programs = {number: folder / "build" / f"unit{number}" for number in range(len(units))}
    return {number: path for number, path in programs.items() if path.exists()}


def build_and_run(trials: list[Trial], folder: Path) -> None:
    """Builds the C++ programs, several to a unit, and runs each with its fault. Those of a unit that does not compile: alone."""
    units = [trials[first : first + PROGRAMS] for first in range(0, len(trials), PROGRAMS)]
    programs = build(units, folder / "units")
    for number, unit in enumerate(units):
        if number not in programs and len(unit) > 1:
            alone = build([[one] for one in unit], folder / f"unit{number}_alone")
            for place, trial in enumerate(unit):
                run_program(trial, alone.get(place), 0)
            continue
        for place, trial in enumerate(unit):
            run_program(trial, programs.get(number), place)


def run_program(trial: Trial, program: Path | None, place: int) -> None:
    if not program:
        trial.cpp_trouble = "it does not compile"
        return
    for fault in (trial.fault, ""):
        done = subprocess.run(
            [program, str(place)],
            cwd=trial.cpp,
            env={**os.environ, "OP_TOOLS_SIM_FAULTS": fault},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        as_expected = done.returncode == 1 and "WRONG" in done.stdout if fault else done.returncode == 0
        if not as_expected:
            trial.cpp_trouble = f"{'with' if fault else 'without'} the fault: {(done.stdout + done.stderr)[-300:]}"
            return
    trial.cpp_reproduces = True


def examine(item: tuple[Failing, str, bool, bool, bool]) -> Trial:
    """Makes the script, as a command would, and runs it with and without the fault."""
    failing, into, fresh, shrinks, in_cpp = item
    began = time.monotonic()
    os.environ["OP_TOOLS_SIM_FAULTS"] = failing.fault  # the judge and the script are processes of their own
    from op_tools.repro import Plan, make, shrink, write_cpp

    trial = Trial(failing.label, failing.fault)
    plan = Plan("sim", libraries=(library(),))
    path = Path(tempfile.mkdtemp(dir=into)) / "repro.py"
    try:
        _, _, script = make(failing.folder, path, plan, 120, lambda _: None, runs=1)
    except Exception as error:
        trial.output = f"{type(error).__name__}: {error}"
        return trial
    trial.reproduced, trial.data, trial.elements = (
        script.reproduces,
        "beside" if script.side_path else "inline",
        script.script.elements,
    )
    trial.lines, trial.finding, trial.output = script.script.text.count("\n"), script.finding, script.output
    without = copies().run([sys.executable, str(path)], environment=outside(""))
    trial.right_without_fault = without.status == 0
    if fresh:
        statuses = fresh_status(path, failing.fault), fresh_status(path, "")
        trial.differs_fresh = statuses != (int(trial.reproduced), without.status)
    if in_cpp and trial.reproduced:
        try:
            trial.cpp = str(
                write_cpp(failing.folder, path.with_suffix(""), script, 120, lambda _: None, build=False).folder
            )
        except Exception as error:
            trial.cpp_trouble = f"{type(error).__name__}: {error}"
    if shrinks and trial.reproduced:
        try:
            small = tempfile.mkdtemp(dir=into)
            done = shrink(failing.folder, small, plan, attempts=200, timeout=60, say=lambda _: None)
            trial.shrunk = done.elements_before, done.elements, done.attempts
            _, _, after = make(done.folder, path.with_name("small.py"), plan, 120, lambda _: None, runs=1)
            trial.shrunk_reproduces, trial.shrunk_lines = after.reproduces, after.script.text.count("\n")
        except Exception as error:
            trial.shrink_trouble = f"{type(error).__name__}: {error}"
    trial.seconds = time.monotonic() - began
    return trial


def start() -> None:
    quiet()
    from op_tools.repro import _trial

    _trial.run = copies().run


def report(trials: list[Trial]) -> int:
    """Prints the results; the exit status."""
    count = max(1, len(trials))
    shown = [one for one in trials if one.reproduced]
    false = [one for one in shown if not one.right_without_fault]
    print(f"{len(trials)} failing calls: {len(shown)} reproduce in a fresh process ({len(shown) / count:.1%})")
    print("data:", dict(collections.Counter(one.data for one in shown)))
    different = [one.label for one in trials if one.differs_fresh]
    print(f"in Pythons started for them: {len(different)} end otherwise{': ' * bool(different)}{'; '.join(different)}")
    print(f"without the fault: {len(shown) - len(false)} right, {len(false)} still called wrong")
    small = [one for one in trials if one.shrunk]
    if small:
        sizes = [one.shrunk for one in small if one.shrunk]
        print(
            f"shrunk: {len(small)}, of which {sum(trial.shrunk_reproduces for trial in small)} reproduce; elements, median: "
            f"{statistics.median(s[0] for s in sizes):g} before, {statistics.median(s[1] for s in sizes):g} after; "
            f"attempts, median: {statistics.median(s[2] for s in sizes):g}; lines: "
            f"{statistics.median(trial.lines for trial in small):g} before, "
            f"{statistics.median(trial.shrunk_lines for trial in small):g} after"
        )
    programs = [one for one in trials if one.cpp or one.cpp_trouble]
    if programs:
        print(f"C++: {sum(trial.cpp_reproduces for trial in programs)} of {len(programs)} reproduce")
    for trial in programs:
        if not trial.cpp_reproduces:
            print(f"    not in C++: {trial.label}: {trial.cpp_trouble.strip()}")
    for trial in trials:
        if not trial.reproduced:
            print(f"    not reproduced: {trial.label}: {trial.output.strip()[-400:]}")
        elif not trial.right_without_fault:
            print(f"    wrong without its fault: {trial.label}")
        if trial.shrink_trouble or (trial.shrunk and not trial.shrunk_reproduces):
            print(f"    not shrunk: {trial.label}: {trial.shrink_trouble}")
    in_cpp = sum(one.cpp_reproduces for one in programs)
    return 1 if len(shown) < 0.99 * count or in_cpp < 0.95 * len(programs) or false or different else 0


def main() -> int:
    options_of = parser(__doc__)
    options_of.add_argument("--calls", type=int, default=300, metavar="N", help="failing calls (300)")
    options_of.add_argument("--fresh", type=int, default=20, metavar="N", help="scripts run in new Pythons, too (20)")
    options_of.add_argument("--shrink", type=int, default=100, metavar="N", help="of them are made smaller (100)")
    options_of.add_argument("--cpp", type=int, default=100, metavar="N", help="of them become C++ programs, too (100)")
    options_of.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="only these faults")
    options_of.add_argument("--seed", type=int, default=0)
    options_of.add_argument(
        "--results", type=Path, metavar="FILE", help="a line for each call; the report is of all that it has"
    )
    options_of.add_argument("--jobs", type=int, default=2, metavar="N")
    options = options_of.parse_args()
    lines = options.results.read_text().splitlines() if options.results and options.results.exists() else []
    trials = [Trial(**json.loads(line)) for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        calls = failing_calls(Path(folder), options.calls, options.kinds, options.seed)
        print(f"{len(calls)} failing calls saved", flush=True)
        items = [
            (call, folder, *(number < count for count in (options.fresh, options.shrink, options.cpp)))
            for number, call in enumerate(calls)
        ]
        finished = []
        for item, trial, trouble in work_through(items, start, examine, jobs=options.jobs, seconds=900):
            finished.append(trial or Trial(item[0].label, item[0].fault, output=str(trouble)))
            last = finished[-1]
            print(
                f"{len(finished)}: {last.label}: {last.reproduced} {last.shrunk or ''} {last.seconds:.0f} s", flush=True
            )
        build_and_run([one for one in finished if one.cpp], Path(folder))
    if options.results:
        with options.results.open("a") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in finished)
    return report(trials + finished)


if __name__ == "__main__":
    sys.exit(main())
