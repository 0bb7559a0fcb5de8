"""op-tools conformance: is every operator of a device right?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .._base.core import log_progress
from .._base.verdict import Verdict, status_of, verdict_of
from .._conformance.exceptions import read_exceptions
from .._conformance.golden import Golden
from .._conformance.reports import model_text, verdict_text, write_reports
from .._conformance.rows import rows_below
from .._conformance.run import Settings, run_cases
from .._conformance.self_test import SelfTest
from .._conformance.shard_run import WorkerPlan
from .._conformance.summary import differences, read_part, read_run_facts, verdict_in
from .._conformance.trend import trend_of
from .._conformance.workers import prepare, usable_cores
from .._torch.backends import import_backends, modules_of, usable_device
from .._torch.rank_shares import is_shared
from .command_line import Commands, UsageError, add_allow_unseen, add_imports, visible
from .conformance_cases import add_case_commands, add_selection, positive, selected_cases

_METHODS = ("relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute")
_SECONDS = 600.0


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools conformance: {visible(line)}\n")
    sys.stderr.flush()


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{number:g} is not allowed; give a number above 0")
    return number


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give I/N, with I from 0 to N - 1")
    return int(number), int(count)


def _work(options: argparse.Namespace, *, writes: str) -> int:
    under_torchrun = is_shared(())
    if under_torchrun and options.shard:
        raise UsageError("--shard: the ranks of torchrun are the shards")
    exceptions_file = "" if writes else options.device_config
    exceptions = read_exceptions(exceptions_file or None)
    golden = str(Path(options.output).absolute()) if writes else options.golden
    if golden and not writes:
        golden = str(Path(golden).absolute())
        Golden(Path(golden))  # names its fault before a worker does
    prepare(is_new=options.is_program)
    self_test = SelfTest()  # works while this process finds its cases
    imports = modules_of(options.device, options.imports)
    import_backends(imports)
    cases = selected_cases(options)
    usable_device(options.device)
    plan = WorkerPlan(
        device=options.device,
        imports=tuple(imports),
        method=None if writes else options.method,
        phase="" if writes else options.phase,
        timed=not writes and options.time,
        golden=golden,
        writes=writes,
    )
    jobs = options.jobs or (1 if under_torchrun or options.time_alone else usable_cores())
    settings = Settings(
        Path(options.output), jobs, options.timeout, options.shard or (0, 1), options.resume, exceptions_file
    )
    verdict = run_cases(cases, plan, settings, exceptions, self_test, _say)
    if not writes:
        for place in exceptions.not_met():
            _say(f"{place} is about no case of this run")
    _say(f"files in {options.output}")
    return status_of(verdict, allow_unseen=options.allow_unseen)


def _run(options: argparse.Namespace) -> int:
    options.time_alone = options.time  # cases that run beside each other would measure each other
    return _work(options, writes="")


def _gen(options: argparse.Namespace) -> int:
    options.time_alone = False
    return _work(options, writes="float64" if options.float64 else "digests" if options.digests else "values")


def _verify(options: argparse.Namespace) -> int:
    changes = differences(Path(options.result))
    for text in changes:
        sys.stdout.write(visible(f"{text}\n"))
    if changes:
        return status_of(Verdict.DIFFERS)
    summary = read_part(Path(options.result) / "summary.json")
    sys.stdout.write(visible(f"the summary follows from the rows. {verdict_text(summary)}\n"))
    verdict = verdict_of(wrong=False, unseen=verdict_in(summary) is Verdict.NOT_JUDGED)
    return status_of(verdict, allow_unseen=options.allow_unseen)


def _report(options: argparse.Namespace) -> int:
    folders = [Path(one) for one in options.results]
    if len(folders) > 2:
        raise UsageError("give a result, or an old and a new result")
    if len(folders) == 2:
        old, new = (read_run_facts(one) for one in folders)
        if old["list"] != new["list"]:
            _say("the results are of different lists: cases in only one of them are counted apart")
        trend = trend_of(*(rows_below(one) for one in folders))
        sys.stdout.write(visible(trend.table()) + "\n")
        return status_of(trend.verdict, allow_unseen=options.allow_unseen)
    summary = write_reports(folders[0], rows_below(folders[0]), read_run_facts(folders[0]))
    lines = [verdict_text(summary), *(model_text(name, model) for name, model in summary["models"].items())]
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    return status_of(verdict_in(summary), allow_unseen=options.allow_unseen)


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--device",
        required=True,
        metavar="D",
        help="a device of this machine: cpu, npu, npu:1; without an index the workers use all of them",
    )
    add("-o", "--output", required=True, metavar="DIR", help="the folder of the result")
    add_imports(parser)
    add_selection(parser)
    add(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="the I-th (from 0) of N parts of about equal cost, into the same DIR or not; under torchrun each rank is a part",
    )
    add(
        "--jobs",
        type=positive,
        metavar="N",
        help="worker processes (as many as cores; under torchrun, or with --time, 1)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=_SECONDS,
        metavar="S",
        help=f"a case that takes longer hangs ({_SECONDS:g} seconds)",
    )
    add("--resume", action="store_true", help="go on where an interrupted run was")
    add_allow_unseen(parser)


def add(commands: Commands) -> None:
    """Registers the command."""
    conformance = commands.add_parser(
        "conformance",
        help="is every operator of a device right? a suite of cases with verdicts, reports and golden data",
        description="Runs calls of torch's operators on a device and judges its results. run judges, gen keeps the results of "
        "another device to judge by, verify recomputes a summary from its rows, report compares two results. Exit status: 0 "
        "all that was judged is right, 1 something is wrong, 2 not judged (docs/verdicts.md says when), 64 wrong usage.",
        epilog="op-tools conformance run --device npu --import torch_npu -o result; op-tools conformance report before result",
    )
    actions = conformance.add_subparsers(dest="action", required=True)
    run = actions.add_parser(
        "run", help="judge a device: is every operator right?", description="Runs cases on a device and judges each."
    )
    _add_work(run)
    run.add_argument("--golden", default="", metavar="DIR", help="judge by the results that gen saved there")
    run.add_argument(
        "--device-config", default="", metavar="FILE", help="known failures of the device (TOML, YAML, JSON)"
    )
    run.add_argument("--method", choices=_METHODS, help="how results are judged (relative)")
    run.add_argument("--time", action="store_true", help="also the median time of up to 20 calls of each case")
    run.set_defaults(run=_run)
    gen = actions.add_parser(
        "gen", help="keep a device's results, to judge others by", description="Runs cases and keeps their results."
    )
    _add_work(gen)
    kinds = gen.add_mutually_exclusive_group()
    kinds.add_argument("--digests", action="store_true", help="keep hashes: only equal bits are recognised by them")
    kinds.add_argument("--float64", action="store_true", help="run the cases in float64")
    gen.set_defaults(run=_gen)
    add_case_commands(actions)
    verify = actions.add_parser(
        "verify",
        help="does a summary follow from its rows?",
        description="Recomputes the summary of a result from its rows.",
    )
    verify.add_argument("result", metavar="DIR", help="a folder that run -o wrote")
    add_allow_unseen(verify)
    verify.set_defaults(run=_verify)
    report = actions.add_parser(
        "report",
        help="write a result's files again, or compare two results",
        description="A result: writes its files again and prints the verdict. Two: which cases became wrong or were repaired, "
        "and, where both have --time, which take longer; status 1 where something became wrong.",
    )
    report.add_argument("results", nargs="+", metavar="DIR", help="a result; or an old and a new result")
    add_allow_unseen(report)
    report.set_defaults(run=_report)
