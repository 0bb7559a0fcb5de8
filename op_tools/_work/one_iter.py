"""op-tools one-iter: a training iteration that is saved on a machine and compared on another."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .._base.core import Error, read_recording, shown_path
from .._base.verdict import accelerator, status_of, verdict_of, worst
from .._commands.command_line import UsageError, check_module, check_script, visible
from .._commands.one_iter import FOLDER
from .._runs.capture_commands import new_folder
from .._runs.compare_runs import compare_runs, open_run
from .._runs.one_iter import OneIteration, compare_iterations, read_tolerances
from .._tools import launch
from .._tools.record import RECORDING


def _run_iteration(options: argparse.Namespace, program: str, folder: Path) -> tuple[OneIteration, bool]:
    """Runs the program up to the end of the iteration. The second value: it failed before."""
    (check_module if options.module else check_script)(program)
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


def save(options: argparse.Namespace) -> int:
    tool, failed = _run_iteration(options, options.program, Path(options.folder))
    if not tool.path:
        raise Error(f"{options.program}: called no module of torch.nn; nothing was saved")
    sys.stdout.write(visible(f"saved: {shown_path(tool.path)}\n"))
    return status_of(verdict_of(wrong=False, unseen=failed))


def compare(options: argparse.Namespace) -> int:
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
            options, other, Path(options.output_dir) if options.output_dir else new_folder(FOLDER)
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
