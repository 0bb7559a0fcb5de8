"""op-tools compare: where two runs part."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from pathlib import Path

from .._base.core import Error
from .._base.declared_rows import RunRow
from .._base.optional_parts import Group, load_part, part_names
from .._base.verdict import status_of
from .._runs.capture_commands import next_commands
from .._runs.compare_many import ManyRuns, compare_many
from .._runs.compare_ranks import RanksComparison, compare_ranks, read_plan_rules
from .._runs.compare_runs import compare_runs, open_run, rank_count, read_fusions
from .._runs.compare_sequences import compare_sequences
from .._runs.comparison import RunsComparison
from .._runs.judged_captures import confirm
from .._runs.sequence_parts import sequence_parts
from .command_line import Commands, UsageError, add_allow_unseen, visible

# Options of two runs, rank by rank; and those of one rank against several.
_OF_PAIRS, _OF_RANKS = ("noise", "next", "fusions", "csv"), ("rules",)


def _write_table(comparison: RunsComparison, path: Path, form: str | None) -> None:
    try:
        (_write_csv if form is None else load_part(Group.TABLES, form))(comparison, path)
    except OSError as error:
        raise Error(f"{error.filename}: {error.strerror}") from None


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
    text = "Next: capture these calls on both sides, and judge each of them:"
    if not commands:
        text = "--next: a recording does not name its program"
    elif (count := (diverged._found.a.header or {}).get("world_size", 1)) > 1:
        text += f"\n(rank {diverged.rank} of {count}: with your launcher, as in torchrun --no-python op-tools run ...)"
    sys.stdout.write(visible("\n".join(["", text, *(f"  {one}" for one in commands)])) + "\n")


def _compare(options: argparse.Namespace) -> int:
    if options.format and not options.csv:
        raise UsageError("--format is the form of --csv FILE")
    if options.confirm:
        if options.runs:
            raise UsageError("--confirm takes the two captures, and no recordings")
        report = confirm(*options.confirm)
        sys.stdout.write(visible(report.table()) + "\n")
        return status_of(report.verdict, allow_unseen=options.allow_unseen)
    if options.as_sequence:
        return _compare_sequences(options)
    if options.parts:
        raise UsageError("--parts needs --as-sequence")
    many: ManyRuns | RanksComparison
    counts = [rank_count(run) for run in options.runs]
    is_pair = len(counts) == 2 and not (counts[0] == 1 < counts[1])
    if others := [f"--{name}" for name in (_OF_RANKS if is_pair else _OF_PAIRS) if getattr(options, name)]:
        raise UsageError(f"{', '.join(others)}: not for these recordings; see --help")
    if len(counts) == 1 and counts[0] > 1:
        many = compare_many([options.runs[0]])
    elif len(counts) > 2:
        many = compare_many(options.runs)
    elif len(counts) == 2 and not is_pair:
        rules = read_plan_rules(options.rules) if options.rules else ()
        many = compare_ranks(*options.runs, rules=rules, captures=options.captures)
    elif is_pair:
        fusions = read_fusions(options.fusions) if options.fusions else ()
        comparison = compare_runs(*options.runs, noise=options.noise, fusions=fusions, captures=options.captures)
        _show(comparison, with_next=options.next)
        if options.json:
            Path(options.json).write_text(comparison.to_json(), encoding="utf-8")
        if options.csv:
            _write_table(comparison, Path(options.csv), options.format)
        return status_of(comparison.verdict, allow_unseen=options.allow_unseen)
    else:
        raise UsageError("give two recordings, or the folder of a run with several ranks")
    sys.stdout.write(visible(many.table()) + "\n")
    if options.json:
        Path(options.json).write_text(many.to_json(), encoding="utf-8")
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
        Path(options.json).write_text(comparison.to_json(), encoding="utf-8")
    return status_of(comparison.verdict, allow_unseen=options.allow_unseen)


def add(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="where two runs part: the first call whose results differ though its inputs agree",
        description="Compares recordings of OpRecord call by call. Two runs: A is the reference. Three and more: "
        "runs of a program, of which the odd run is looked for. A folder with several ranks: replicas, which must "
        "agree. One rank and a folder with several: how the tensors are spread over them. Exit status: 0 they agree, "
        "1 they diverge, 2 not judged (docs/verdicts.md says when), 64 wrong usage.",
        epilog="op-tools run --record a train.py; op-tools run --record b train.py; op-tools compare a b",
    )
    compare.add_argument("runs", nargs="*", metavar="RUN", help="a folder of OpRecord, or a file *.oprec in it")
    compare.add_argument("--noise", metavar="RUN", help="a recording of A's program with its rounding changed")
    compare.add_argument(
        "--next",
        action="store_true",
        help="write the lists of the calls around the divergence, and print the commands that capture them on both sides",
    )
    compare.add_argument(
        "--confirm", nargs=2, metavar=("CAPTURE_A", "CAPTURE_B"), help="judge two captures: operator or input?"
    )
    compare.add_argument(
        "--captures", nargs=2, metavar=("A", "B"), help="captures that were made beside the recordings: judge by values"
    )
    compare.add_argument(
        "--as-sequence",
        action="store_true",
        help="A computes whole sequences, B the same tokens piece by piece (prefill, decode): which operator gives a token other bits? "
        "Of recordings with --row-hashes",
    )
    compare.add_argument(
        "--parts",
        type=int,
        default=0,
        metavar="N",
        help="with --as-sequence: run both programs again with each of N operators in float64, and say what part of the difference it has",
    )
    compare.add_argument("--fusions", metavar="FILE", help="known fusions of operators (JSON or YAML)")
    compare.add_argument(
        "--rules",
        metavar="FILE",
        help="of one rank against several: how tensors are split, REGEX = b s h[tp] in each line",
    )
    add_allow_unseen(compare)
    compare.add_argument("--json", metavar="FILE", help="a record for each pair, and a summary, as lines of JSON")
    compare.add_argument("--csv", metavar="FILE", help="a row for each pair")
    compare.add_argument(
        "--format",
        choices=part_names(Group.TABLES),
        help="of --csv: the columns of that tool; troubleshooter: FILE is the folder of its tables",
    )
    compare.set_defaults(run=_compare)
