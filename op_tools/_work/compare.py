"""op-tools compare: where two runs part."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from pathlib import Path

from .._base.core import GRAPH_CALLS
from .._base.declared_rows import RunRow
from .._base.optional_parts import Group, load_part
from .._base.verdict import status_of
from .._base.written_file import cannot_be_written, folder_of, write_text
from .._commands.command_line import UsageError, visible
from .._runs.capture_commands import missing_folders, next_commands
from .._runs.compare_many import ManyRuns, compare_many_share
from .._runs.compare_ranks import RanksComparison, compare_ranks, read_plan_rules
from .._runs.compare_runs import compare_share, has_several_ranks, open_run, rank_count, read_fusions
from .._runs.compare_sequences import compare_sequences
from .._runs.comparison import RunsComparison
from .._runs.judged_captures import confirm
from .._runs.sequence_parts import sequence_parts
from .._torch.rank_shares import Ranks, ranks

# Options of two runs, rank by rank; and those of one rank against several.
_OF_PAIRS, _OF_RANKS = ("noise", "next", "fusions", "csv"), ("rules",)


def _write_table(comparison: RunsComparison, path: Path, form: str | None) -> None:
    try:
        (_write_csv if form is None else load_part(Group.TABLES, form))(comparison, path)
    except OSError as error:
        raise cannot_be_written(path, error) from None


def _write_csv(comparison: RunsComparison, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(RunRow))
        for row in comparison.rows:
            writer.writerow(dataclasses.astuple(row))


def _show(comparison: RunsComparison, *, with_next: bool) -> None:
    sys.stdout.write(visible(comparison.table()) + "\n")
    diverged = next((rank for rank in comparison.ranks if rank.first is not None), None)
    if diverged is None:
        return
    if not with_next:
        sys.stdout.write("\nNext: --next prints the commands that capture these calls on both sides.\n")
        return
    commands = next_commands(diverged)
    of_graph = diverged.first is not None and diverged.first.op.startswith(GRAPH_CALLS)
    text = f"Next: {'run the graph beside its operators' if of_graph else 'capture these calls'} on both sides"
    text += ":" if of_graph else ", and judge each of them:"
    if not commands:
        text = "--next: a recording does not name its program"
    elif (count := (diverged._found.a.header or {}).get("world_size", 1)) > 1:
        text += f"\n(rank {diverged.rank} of {count}: with your launcher, as in torchrun --no-python op-tools run ...)"
    if commands and (folders := missing_folders(diverged)):
        text += f"\n(start the programs as in {' and '.join(folders)}, which this machine does not have)"
    sys.stdout.write(visible("\n".join(["", text, *(f"  {one}" for one in commands)])) + "\n")


def run_command(options: argparse.Namespace) -> int:
    if options.format and not options.csv:
        raise UsageError("--format is the form of --csv FILE")
    if options.confirm:
        if options.runs:
            raise UsageError("--confirm takes the two captures, and no recordings")
        report = confirm(*options.confirm)
        sys.stdout.write(visible(report.table()) + "\n")
        if options.json:
            write_text(options.json, report.to_json())
        return status_of(report.verdict, allow_unseen=options.allow_unseen)
    if options.as_sequence:
        return _compare_sequences(options)
    if options.parts:
        raise UsageError("--parts needs --as-sequence")
    with ranks(folder_of(options.json or ""), options.jobs, options.words) as group:
        return group.agreed(_compare(group, options))


def _compare(group: Ranks, options: argparse.Namespace) -> int:
    """Recordings against each other; shows the result on the first process of a launch."""
    many: ManyRuns | RanksComparison | None
    counts = [rank_count(run) for run in options.runs]
    is_pair = len(counts) == 2 and (has_several_ranks(options.runs[0]) or not has_several_ranks(options.runs[1]))
    if others := [f"--{name}" for name in (_OF_RANKS if is_pair else _OF_PAIRS) if getattr(options, name)]:
        raise UsageError(f"{', '.join(others)}: not for these recordings; see --help")
    if len(counts) == 1 and counts[0] > 1:
        many = compare_many_share(group, [options.runs[0]])
    elif len(counts) > 2:
        many = compare_many_share(group, options.runs)
    elif len(counts) == 2 and not is_pair:
        rules = read_plan_rules(options.rules) if options.rules else ()
        # Not shared: a plan is of all ranks.
        many = compare_ranks(*options.runs, rules=rules, captures=options.captures) if group.number == 0 else None
    elif is_pair:
        fusions = read_fusions(options.fusions) if options.fusions else ()
        a, b = options.runs
        comparison = compare_share(group, a, b, options.noise, fusions, options.captures)
        if comparison is None:
            return 0  # the first process tells
        _show(comparison, with_next=options.next)
        if options.json:
            write_text(options.json, comparison.to_json())
        if options.csv:
            _write_table(comparison, Path(options.csv), options.format)
        return status_of(comparison.verdict, allow_unseen=options.allow_unseen)
    else:
        raise UsageError("give two recordings, or the folder of a run with several ranks")
    if many is None:
        return 0
    sys.stdout.write(visible(many.table()) + "\n")
    if options.json:
        write_text(options.json, many.to_json())
    return status_of(many.verdict, allow_unseen=options.allow_unseen)


def _say(text: str) -> None:
    sys.stderr.write(visible(text) + "\n")
    sys.stderr.flush()


def _compare_sequences(options: argparse.Namespace) -> int:
    if len(options.runs) != 2:
        raise UsageError("--as-sequence takes two recordings: TRAIN SERVE")
    if others := [f"--{name}" for name in (*_OF_RANKS, *_OF_PAIRS) if getattr(options, name)]:
        raise UsageError(f"{', '.join(others)}: not with --as-sequence; see --help")
    comparison = compare_sequences(*options.runs, captures=options.captures)
    sys.stdout.write(visible(comparison.table()) + "\n")
    if options.parts and comparison.first is not None:
        train, serve = (next(iter(open_run(run).values())) for run in options.runs)
        parts = sequence_parts(comparison, (train, serve), options.parts, _say)
        sys.stdout.write("\n" + visible(parts.table()) + "\n")
    if options.json:
        write_text(options.json, comparison.to_json())
    return status_of(comparison.verdict, allow_unseen=options.allow_unseen)
