"""op-tools analyse: which operators of a program's source will work on a device."""

from __future__ import annotations

import argparse
import sys

from .._base.core import log_progress
from .._base.own_command import op_tools_line
from .._base.verdict import status_of, verdict_of
from .._commands.command_line import UsageError, visible
from .._torch.backends import import_backends, modules_of
from ..analyse._analyse import Outcome, Request, analyse
from ..analyse._detector_copy import COPY
from ..analyse._support import make_table, names_only  # imports torch's tests
from ..analyse._table import SupportTable, read_table

_COUNTED = ("torch_apis", "third_party")  # modes that say what is unsupported
_QUICK = 3  # sample calls per function when the table is made in passing


def _support_table(options: argparse.Namespace) -> SupportTable:
    if options.support:
        return read_table(options.support)
    if options.mode in ("affinity_apis", "dynamic_shape"):
        return names_only()
    if options.device is None:
        raise UsageError(
            "which device? --device D for a device of this machine, or --support TABLE (op-tools support) for another's"
        )
    sys.stderr.write(
        f"op-tools: trying torch's sample calls on {options.device}; op-tools support stores the results\n"
    )
    import_backends(modules_of(options.device, options.imports))
    return make_table(options.device, _QUICK)


def _progress(done: int, every: int) -> None:
    share = done / every if every else 1
    bar = "#" * int(30 * share)
    log_progress(f"[{bar:<30}] {100 * share:3.0f} % {done} of {every} files" if done < every else "")


def _closing(outcome: Outcome) -> str:
    counts = {**outcome.report.counts()}
    width = max(map(len, counts))
    line = f"+{'-' * (width + 2)}+{'-' * 12}+"
    rows = [f"| {name:<{width}} | {count:>10} |" for name, count in counts.items()]
    return "\n".join([line, f"| {'files':<{width}} | statistics |", line, *rows, line])


def _next(options: argparse.Namespace, outcome: Outcome) -> str:
    """The next command for the result."""
    if options.mode == "third_party":
        full = str(outcome.folder / "full_unsupported_results.csv")
        words = ["-i", "YOUR_SCRIPT", "-o", options.output, "--support", "TABLE", "-api", full]
        return op_tools_line("analyse", *words)
    if options.detector:
        return f"run the program in {outcome.folder / COPY}; the report is written when it ends"
    if options.mode == "torch_apis" and outcome.report.unsupported:
        command = op_tools_line("run", "--fallback", "--fallback-on-missing", "train.py")
        return f"{command}   # runs operators that the device lacks on the CPU"
    if options.mode == "torch_apis":
        return f"{op_tools_line('run', '--autocompare', 'train.py')}   # are the results right, too?"
    return ""


def run_command(options: argparse.Namespace) -> int:
    if options.detector and options.mode != "dynamic_shape":
        raise UsageError("--detector is for -m dynamic_shape")
    if options.fail_on and options.mode not in _COUNTED:
        raise UsageError(f"--fail-on {options.fail_on}: is for -m {' and '.join(_COUNTED)}")
    request = Request(
        inputs=options.input,
        output=options.output,
        table=_support_table(options),
        mode=options.mode,
        environment=options.env,
        api_files=options.api,
        rules=options.rules,
        version=options.version or "",
        jobs=options.jobs,
        json=options.json,
        sarif=options.sarif,
        fix=options.fix,
        detector=options.detector,
    )
    outcomes = analyse(request, _progress)
    for outcome in outcomes:
        text = [f"{outcome.input}: {'; '.join(outcome.log[: -len(outcome.report.counts())])}", _closing(outcome)]
        text.append(f"Results: {outcome.folder}")
        if options.fix:
            text.append(f"Rewrites: cd {outcome.input} && patch -p1 < {(outcome.folder / 'fixes.diff').resolve()}")
        if after := _next(options, outcome):
            text.append(f"Next: {after}")
        sys.stdout.write(visible("\n".join(text)) + "\n")
    if not options.fail_on:
        return 0
    unsupported = any(outcome.report.unsupported for outcome in outcomes)
    unread = any(outcome.report.problems or not outcome.report.files for outcome in outcomes)
    return status_of(verdict_of(wrong=unsupported, unseen=unread))
