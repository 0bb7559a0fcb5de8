"""op-tools one-iter: a training iteration that is saved on a machine and compared on another."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .._base.core import Error, read_recording
from .._base.verdict import accelerator, status_of, verdict_of, worst
from .._runs.capture_commands import new_folder
from .._runs.compare_runs import compare_runs, open_run
from .._runs.one_iter import SEED, OneIteration, compare_iterations, read_tolerances
from .._tools import launch
from .._tools.record import RECORDING
from .command_line import Commands, UsageError, add_allow_unseen, visible

_FOLDER = "op_one_iter_result"


def _run_iteration(options: argparse.Namespace, program: str, folder: Path) -> tuple[OneIteration, bool]:
    """Runs the program up to the end of the iteration. The second value: it failed before."""
    if not options.module and not Path(program).is_file():
        raise UsageError(f"{program}: there is no such script; a module is run with -m")
    if options.iterations < 1:
        raise UsageError("--iterations: give a number from 1 on")
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # compiled code has no modules
    run = launch.run_module if options.module else launch.run_script
    tool = OneIteration(folder, seed=options.seed, iterations=options.iterations)
    try:
        with launch.running([tool]):
            run(program, options.arguments)
    except SystemExit as ended:
        return tool, bool(ended.code)
    except Exception:  # earlier results are compared
        if not tool.was_started:
            raise
        sys.excepthook(*sys.exc_info())
        return tool, True
    return tool, False


def _save(options: argparse.Namespace) -> int:
    tool, failed = _run_iteration(options, options.program, Path(options.folder))
    if not tool.path:
        raise Error(f"{options.program}: called no module of torch.nn; nothing was saved")
    sys.stdout.write(visible(f"saved: {tool.path}\n"))
    return status_of(verdict_of(wrong=False, unseen=failed))


def _compare_iteration(options: argparse.Namespace) -> int:
    tolerances = read_tolerances(options.tolerance) if options.tolerance else None
    other, failed = options.program, False
    is_recording = not options.module and (Path(other).is_dir() or Path(other).suffix == RECORDING)
    if is_recording:
        if options.arguments:
            raise UsageError(f"{' '.join(options.arguments)}: two recordings have no arguments")
        comparison = compare_runs(options.folder, other)
    else:
        saved = open_run(options.folder)  # before the program runs
        tool, failed = _run_iteration(
            options, other, Path(options.output_dir) if options.output_dir else new_folder(_FOLDER)
        )
        if not tool.path:
            raise Error(f"{other}: called no module of torch.nn; there is nothing to compare")
        header = read_recording(tool.path).header
        rank = header.get("rank", 0) if isinstance(header, dict) else 0
        if rank not in saved:
            raise Error(f"{options.folder}: has no rank {rank}")
        comparison = compare_runs(saved[rank].path, tool.path)
    report = compare_iterations(comparison, tolerances, "" if is_recording else accelerator())
    sys.stdout.write(visible(report.table()) + "\n")
    if options.json:
        try:
            Path(options.json).write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            raise Error(f"--json {options.json}: {error.strerror}") from None
    of_program = verdict_of(wrong=False, unseen=failed)
    return status_of(worst([report.verdict, of_program]), allow_unseen=options.allow_unseen)


def _add_program(command: argparse.ArgumentParser, program: str) -> None:
    command.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of all random numbers ({SEED})")
    command.add_argument(
        "--iterations", type=int, default=1, metavar="N", help="steps of an optimizer, then the program is ended (1)"
    )
    command.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    command.add_argument("folder", metavar="DIR", help="where the iteration is saved")
    command.add_argument("program", help=program)
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def add(commands: Commands) -> None:
    one_iter = commands.add_parser(
        "one-iter",
        help="a training iteration, saved on a machine and compared on another, module by module",
        description="Runs an unchanged training program up to the first step of its optimizer, with the inputs, outputs, "
        "weights and gradients of all modules and the loss recorded, and the random numbers of the CPU on every device. "
        "Exit status of compare: 0 nothing is wrong, 1 something is, 2 not judged (docs/verdicts.md says when), 64 wrong usage.",
        epilog="op-tools one-iter save right train.py; op-tools one-iter compare right train.py --device npu",
    )
    works = one_iter.add_subparsers(dest="work_name", required=True)
    save = works.add_parser(
        "save", help="save a training iteration, module by module, where it is right", allow_abbrev=False
    )
    _add_program(save, "the script, or the module")
    save.set_defaults(run=_save)
    compare = works.add_parser(
        "compare", help="run it where it is tested, and name the first module that differs", allow_abbrev=False
    )
    compare.add_argument(
        "--tolerance", metavar="FILE", help="by model (YAML or JSON); without: by the effect of rounding"
    )
    compare.add_argument("--json", metavar="FILE", help="a record for each result, and a summary, as lines of JSON")
    add_allow_unseen(compare)
    compare.add_argument("--output-dir", metavar="DIR", help=f"for this run's recording ({_FOLDER})")
    _add_program(compare, "the script or the module; or the folder of another saved iteration")
    compare.set_defaults(run=_compare_iteration)
