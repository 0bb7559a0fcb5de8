"""op-tools repro: a file that shows the failure of a saved call, for who has neither op_tools nor the model."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from .._base.captured_calls import call_folder
from .._base.core import Error
from .._base.verdict import Verdict, status_of
from .._commands.command_line import UsageError, visible
from .._reduce import reduce_graph
from .._runs.judged_captures import calls_below
from .._torch.backends import is_simulated, modules_of
from .._torch.saved_graphs import graph_folder, read_graph
from ..repro import Made, Plan, device_of, is_variation, make, shrink, write_cpp, write_issue

_NO_REPRO = 1
_LAST = 3  # lines of output


def _say(line: str) -> None:
    sys.stderr.write(f"op-tools: {visible(line)}\n")
    sys.stderr.flush()


def _shrunk(options: argparse.Namespace, plan: Plan, into: str) -> tuple[str, list[str]]:
    """The folder of the smallest call that fails, and notes about sizes; of a compiled graph: of its smallest part."""
    if graph_folder(Path(options.folder)):
        reduced = reduce_graph(
            options.folder,
            into,
            backend=options.backend,
            imports=plan.imports,
            attempts=options.attempts,
            timeout=options.timeout,
            say=_say,
        )
        for note in reduced.notes:
            _say(note)
        return reduced.folder, reduced.notes
    done = shrink(options.folder, into, plan, attempts=options.attempts, timeout=options.timeout, say=_say)
    for note in done.notes:
        _say(note)
    return done.folder, done.notes


def _print_result(script: Made) -> None:
    side = f"; it needs {script.side_path}" if script.side_path else ""
    _say(f"{script.path}: reproduces: {script.reproduced} of 3{side}")
    if script.finding:
        sys.stdout.write(visible(f"{script.finding}\n"))
    sys.stdout.write(visible(f"{script.path}\n"))


def _status(script: Made, *, allow_unseen: bool) -> int:
    if script.verdict is Verdict.NOT_JUDGED:
        _say("NOT JUDGED: the script compared nothing, or could not be run; its last output:")
        _say("\n".join(script.output.strip().splitlines()[-_LAST:]) or "none")
        return status_of(script.verdict, allow_unseen=allow_unseen)
    return 0 if script.reproduces else _NO_REPRO


def _unused_script() -> Path:
    """repro.py, or a name like it that no file has: a script may be of another call."""
    names = itertools.chain(["repro.py"], (f"repro_{number}.py" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def _refuse_folder_above(folder: str) -> None:
    if graph_folder(Path(folder)) or not Path(folder).is_dir() or (Path(folder) / "input.pth").exists():
        return
    calls, _ = calls_below(folder)
    if calls and Path(calls[0].path) != Path(folder):
        raise UsageError(
            f"{folder} has {len(calls)} calls below it; name the folder of a call, such as {calls[0].path}"
        )


def run_command(options: argparse.Namespace) -> int:
    options.folder = call_folder(options.folder)
    _refuse_folder_above(options.folder)
    graph = graph_folder(Path(options.folder))
    device = options.device or (read_graph(graph).device if graph else device_of(options.folder))
    if is_simulated(device) and not (options.imports or options.load):
        from ..sim_device import library

        options.load = [library()]  # a script needs torch alone
    elif not options.load:
        options.imports = modules_of(device, options.imports)
    plan = Plan(device, tuple(options.imports), tuple(options.load))
    path = Path(options.output) if options.output else _unused_script()
    if path.suffix != ".py":
        raise Error(f"-o {path}: the name of a script ends with .py")
    folder: str = options.folder
    notes: list[str] = []
    if (options.shrink or options.cpp) and is_variation(folder):
        raise UsageError("--shrink and --cpp are for wrong results; this call was saved by OpInvariance, for its bits")
    with tempfile.TemporaryDirectory() as into:
        if options.shrink:
            folder, notes = _shrunk(options, plan, into)
        saved, _, script = make(folder, path, plan, options.timeout, _say, notes)
        _print_result(script)
        status = _status(script, allow_unseen=options.allow_unseen)
        if options.cpp:
            built = write_cpp(folder, path.with_suffix(""), script, options.timeout, _say)
            status = max(status, 0 if built.reproduces or built.lacks_cmake else _NO_REPRO)
        if options.issue:
            _say(f"{write_issue(saved, script)}: a bug report in PyTorch's form")
    return status
