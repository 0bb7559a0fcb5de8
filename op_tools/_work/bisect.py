"""op-tools bisect: the smallest set of operators that heals a program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .._base.core import Error, log_progress
from .._base.verdict import Verdict, status_of
from .._bisect.bisection import Session, suspects_of
from .._bisect.outcome import LOSS, BisectJudge, Metric, read_reference
from .._bisect.processes import Plan, Processes, State, command_line
from .._commands.command_line import UsageError, check_program, visible
from .._diagnose.program import Program
from .wrong_usage import wrong_usage


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools bisect: {visible(line)}\n")
    sys.stderr.flush()


def run_command(options: argparse.Namespace) -> int:
    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not command:
        raise UsageError("which program? op-tools bisect [options] -- train.py ...")
    if script := Program(tuple(command)).script:
        check_program(script)
    if options.check and options.reference:
        raise UsageError("give --check or --reference: the one or the other judges")
    options.metric = options.metric or LOSS
    with wrong_usage():
        metric = Metric(options.metric)
    reference = read_reference(options.reference, metric) if options.reference else [] if options.check else None
    judge = BisectJudge(reference, options.band)
    suspects = suspects_of(options.suspects)
    folder = Path(options.output).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = ("remedy", "check", "metric", "suspects")
        facts = {"command": command, **{name: getattr(options, name) for name in names}}
        state = State(folder / "state.jsonl", facts, resume=options.resume)
    except OSError as error:
        raise Error(f"--output {options.output}: {error.strerror}") from None
    plan = Plan(command_line(command), folder, metric, options.timeout, options.check, options.jobs)
    session = Session(Processes(plan, state), judge, options.remedy, suspects, options.jobs, _say, log_progress)
    result = session.run()
    sys.stdout.write(visible(result.table()) + "\n")
    (folder / "result.json").write_text(result.to_json() + "\n", encoding="utf-8")  # for op-tools report
    if options.json:
        try:
            Path(options.json).write_text(result.to_json() + "\n")
        except OSError as error:
            raise Error(f"--json {options.json}: {error.strerror}") from None
    if result.verdict == Verdict.NOT_JUDGED.value:
        return status_of(Verdict.NOT_JUDGED, allow_unseen=options.allow_unseen)
    return result.status
