"""op-tools analyse: which operators of a program's source will work on a device."""

from __future__ import annotations

import argparse
import shlex
import sys

from .._base.core import Error, log_progress
from .._torch.backends import import_backends, modules_of
from ..analyse._analyse import MODES, Outcome, Request, analyse
from ..analyse._detector_copy import COPY
from ..analyse._support import make_table, names_only  # imports torch's tests
from ..analyse._table import SupportTable, read_table
from .command_line import Commands, UsageError, add_imports, visible

_QUICK = 3  # sample calls per function when the table is made in passing


def _support_table(options: argparse.Namespace) -> SupportTable:
    if options.support:
        return read_table(options.support)
    if options.mode in ("affinity_apis", "dynamic_shape"):
        return names_only()
    if options.device is None:
        raise Error(
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
        return (
            f"op-tools analyse -i YOUR_SCRIPT -o {shlex.quote(options.output)} --support TABLE -api {shlex.quote(full)}"
        )
    if options.detector:
        return f"run the program in {outcome.folder / COPY}; the report is written when it ends"
    if options.mode == "torch_apis" and outcome.report.unsupported:
        return (
            "op-tools run --fallback --fallback-on-missing train.py   # runs operators that the device lacks on the CPU"
        )
    if options.mode == "torch_apis":
        return "op-tools run --autocompare train.py   # are the results right, too?"
    return ""


def _analyse(options: argparse.Namespace) -> int:
    if options.detector and options.mode != "dynamic_shape":
        raise UsageError("--detector is for -m dynamic_shape")
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
    failed = options.fail_on == "unsupported" and any(one.report.unsupported for one in outcomes)
    return 1 if failed else 0


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "analyse",
        help="before the first run: which operators of a program's source will work on a device",
        description="Reads Python, notebooks, C++ and CUDA sources; runs none of them. Modes: torch_apis: functions of torch "
        "that the device does not run, and advice; third_party: the functions of a library that reach such ones; "
        "affinity_apis: code that a device's library has a faster form of; dynamic_shape: calls whose shapes changed in a run "
        "with OpObserve. The results are CSV files in OUTPUT/<input>_analysis. Files that cannot be read are listed in "
        "unreadable.csv. Exit status: 0; 1 with --fail-on unsupported when something is; 64 wrong usage.",
        epilog="op-tools support --device npu --import torch_npu -o npu.json; op-tools analyse -i train -o out --support "
        "npu.json; op-tools analyse -i mmcv -o out -m third_party --support npu.json; op-tools run --observe "
        "--observe-detail 2 train.py; "
        "op-tools analyse -i op_observe_result -o out -m dynamic_shape",
    )
    command.add_argument(
        "-i", "--input", nargs="+", required=True, metavar="PATH", help="folders or files; a folder of results for each"
    )
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="where <input>_analysis is made")
    command.add_argument(
        "-v", "--version", metavar="VERSION", help="the torch that the code is for: noted if it is another"
    )
    command.add_argument("-m", "--mode", choices=MODES, default="torch_apis", help="the names to look for (torch_apis)")
    command.add_argument(
        "-env",
        "--env-path",
        dest="env",
        nargs="+",
        default=[],
        metavar="PATH",
        help="sources of libraries: names are followed through them",
    )
    command.add_argument(
        "-api",
        "--api-files",
        dest="api",
        nargs="+",
        default=[],
        metavar="CSV",
        help="full_unsupported_results.csv or framework_unsupported_op.csv of libraries: their functions count as unsupported",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument("--device", metavar="D", help="a device of this machine: cpu, cuda, sim")
    add_imports(command)
    source.add_argument("--support", metavar="TABLE", help="a table of op-tools support, of this or another machine")
    command.add_argument(
        "--rules", nargs="+", default=[], metavar="FILE", help="more rules for advice and affinity (JSON)"
    )
    command.add_argument(
        "--fix",
        action="store_true",
        help="also fixes.diff: rewrites that rules mark as safe, for patch -p1; no file is changed",
    )
    command.add_argument(
        "--detector",
        action="store_true",
        help="of dynamic_shape: copy the program to <input>_analysis/detector, with DETECTOR.start(...) around its training "
        "loops; the copy writes the report as it runs",
    )
    command.add_argument("--fail-on", choices=("unsupported",), help="exit status 1 when something is not supported")
    command.add_argument("--json", action="store_true", help="also analysis.json")
    command.add_argument("--sarif", action="store_true", help="also analysis.sarif, for code hosts and editors")
    command.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="processes that read files (as many as cores)"
    )
    command.set_defaults(run=_analyse)
