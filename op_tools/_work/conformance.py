"""op-tools conformance: is every operator of a device right?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.core import log_progress
from .._base.verdict import Verdict, status_of, verdict_of
from .._commands.command_line import UsageError, visible
from .._conformance.exceptions import read_exceptions
from .._conformance.golden import Golden
from .._conformance.reports import model_text, verdict_text, write_reports
from .._conformance.run import Settings, run_cases
from .._conformance.self_test import SelfTest
from .._conformance.shard_run import WorkerPlan
from .._conformance.summary import SUMMARY_FILE, differences, read_result, summary_of, verdict_in
from .._conformance.trend import trend_of
from .._conformance.workers import prepare, usable_cores
from .._tools.autocompare import OpAutoCompare
from .._torch.backends import import_backends, modules_of, usable_device
from .._torch.rank_shares import is_shared
from .conformance_cases import selected_cases
from .wrong_usage import wrong_usage


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools conformance: {visible(line)}\n")
    sys.stderr.flush()


def _work(options: argparse.Namespace, *, writes: str) -> int:
    in_launch = is_shared(())
    if in_launch and options.shard:
        raise UsageError("--shard: the processes of the launch are the shards")
    with wrong_usage():  # each worker would tell it of each case
        OpAutoCompare(level="aten").check()
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
    lost: list[str] = []
    cases = selected_cases(options, lost)
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
    jobs = options.jobs or (1 if in_launch or options.time_alone else usable_cores())
    settings = Settings(
        Path(options.output),
        jobs,
        options.timeout,
        options.shard or (0, 1),
        options.resume,
        exceptions_file,
        len(lost),
    )
    verdict = run_cases(cases, plan, settings, exceptions, self_test, _say)
    if not writes:
        for place in exceptions.not_met():
            _say(f"{place} is about no case of this run")
    _say(f"files in {options.output}")
    return status_of(verdict, allow_unseen=options.allow_unseen)


def run_command(options: argparse.Namespace) -> int:
    options.time_alone = options.time  # cases that run beside each other would measure each other
    return _work(options, writes="")


def gen(options: argparse.Namespace) -> int:
    options.time_alone = False
    return _work(options, writes="float64" if options.float64 else "digests" if options.digests else "values")


def _is_of_rows(folder: Path, summary: Mapping[str, Any]) -> bool:
    """The folder's summary is the summary by its rows; says where it is not."""
    changes = differences(folder, summary)
    for text in changes:
        sys.stdout.write(visible(f"{text}\n"))
    return not changes


def verify(options: argparse.Namespace) -> int:
    folder = Path(options.result)
    summary = summary_of(read_result(folder))
    if not _is_of_rows(folder, summary):
        return status_of(Verdict.DIFFERS)
    sys.stdout.write(visible(f"the summary follows from the rows. {verdict_text(summary)}\n"))
    verdict = verdict_of(wrong=False, unseen=verdict_in(summary) is Verdict.NOT_JUDGED)
    return status_of(verdict, allow_unseen=options.allow_unseen)


def report(options: argparse.Namespace) -> int:
    folders = [Path(one) for one in options.results]
    if len(folders) > 2:
        raise UsageError("give a result, or an old and a new result")
    if len(folders) == 2:
        old, new = map(read_result, folders)
        if old.facts["list"] != new.facts["list"]:
            _say("the results are of different lists: cases in only one of them are counted apart")
        trend = trend_of(old, new)
        sys.stdout.write(visible(trend.table()) + "\n")
        return status_of(trend.verdict, allow_unseen=options.allow_unseen)
    result = read_result(folders[0])
    # A summary of the rows as they are would make changed rows the result of the run.
    if (file := folders[0] / SUMMARY_FILE).exists() and not _is_of_rows(folders[0], summary_of(result)):
        _say(
            f"{file} is of other rows, and nothing was written; move it away for the reports of the rows that are there"
        )
        return status_of(Verdict.DIFFERS)
    summary = write_reports(folders[0], result)
    lines = [verdict_text(summary), *(model_text(name, model) for name, model in summary["models"].items())]
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    return status_of(verdict_in(summary), allow_unseen=options.allow_unseen)
