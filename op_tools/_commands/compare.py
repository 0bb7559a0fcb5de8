"""op-tools compare: where two runs part."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shlex
import sys
from pathlib import Path

from .. import _C
from .._compare_many import compare_many
from .._compare_runs import RankComparison, RunsComparison, compare_runs, open_run, read_fusions
from .._confirm import confirm
from .._declared import RunRow
from ._command_line import Commands, visible


def _filter_of(names: list[str]) -> str:
    """A list for --ops and --modules: the names as they are, each once."""
    escaped = (one.replace(".", r"\.") for one in dict.fromkeys(names) if one)
    return ",".join(f"^{one}$" for one in escaped)


def next_commands(rank: RankComparison) -> list[str]:
    """For both sides the command that captures the calls around the first divergence."""
    first = rank.first
    if first is None:
        return []
    around = [*rank.rows[max(0, first.row - 3) : first.row], first]
    around = [row for row in around if row.step == first.step]
    commands = []
    for side, path in (("a", rank.a), ("b", rank.b)):
        ops = [op for row in around for op in (row.op if side == "a" else row.op_b or row.op).split(" + ")]
        header = _C.read_recording(path).header if path else {}
        argv = [str(one) for one in header.get("argv") or ["train.py"]]
        words = ["op-tools", "run", "--capture", "--level", first.level, "--steps", str(first.step)]
        words += ["--ops", _filter_of(ops), "--output-dir", f"capture_{side}"]
        commands.append(shlex.join([*words, *argv]))
    return [*commands, "op-tools compare --confirm capture_a capture_b"]


def _write_csv(path: str, found: RunsComparison) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in dataclasses.fields(RunRow))
        for row in found.rows:
            writer.writerow(dataclasses.astuple(row))


def _show(found: RunsComparison) -> None:
    text = found.table()
    for rank in found.ranks:
        if commands := next_commands(rank):
            text += "\n\nWhat to do next: capture these calls on both sides, and judge them one by one:\n"
            text += "\n".join(f"  {one}" for one in commands)
            break
    sys.stdout.write(visible(text) + "\n")


def _compare(options: argparse.Namespace) -> int:
    if options.confirm:
        if options.runs:
            return _usage("--confirm takes the two captures, and no recordings")
        report = confirm(*options.confirm)
        sys.stdout.write(visible(report.table()) + "\n")
        return report.exit_status
    if len(options.runs) == 1 and len(open_run(options.runs[0])) > 1:
        many = compare_many([options.runs[0]])
    elif len(options.runs) > 2:
        many = compare_many(options.runs)
    elif len(options.runs) == 2:
        fusions = read_fusions(options.fusions) if options.fusions else ()
        found = compare_runs(*options.runs, noise=options.noise, fusions=fusions, captures=options.captures)
        _show(found)
        if options.json:
            Path(options.json).write_text(found.to_json(), encoding="utf-8")
        if options.csv:
            _write_csv(options.csv, found)
        return found.exit_status
    else:
        return _usage("give two recordings, or the folder of a run with several ranks")
    sys.stdout.write(visible(many.table()) + "\n")
    if options.json:
        Path(options.json).write_text(many.to_json(), encoding="utf-8")
    return many.exit_status


def _usage(text: str) -> int:
    sys.stderr.write(f"op-tools compare: {text}\n")
    return 64


def add(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="where two runs part: the first call whose results differ though its inputs agree",
        description="Compares recordings of OpRecord call by call. Two runs: A is the one to compare with. Three and more: "
        "runs of one program, of which the odd one is looked for. One folder with several ranks: replicas, which must "
        "agree. Exit status: 0 they agree, 1 they diverge, 2 some could not be compared, 64 wrong usage.",
        epilog="op-tools run --record a train.py; op-tools run --record b train.py; op-tools compare a b",
    )
    compare.add_argument("runs", nargs="*", metavar="RUN", help="a folder of OpRecord, or one of its files *.oprec")
    compare.add_argument("--noise", metavar="RUN", help="a recording of A's program with its rounding changed")
    compare.add_argument(
        "--next", action="store_true", help="print the commands that capture the calls around it: always done"
    )
    compare.add_argument(
        "--confirm", nargs=2, metavar=("CAPTURE_A", "CAPTURE_B"), help="judge two captures: operator or input?"
    )
    compare.add_argument(
        "--captures", nargs=2, metavar=("A", "B"), help="captures that were made beside the recordings: judge by values"
    )
    compare.add_argument("--fusions", metavar="FILE", help="known fusions of operators (JSON or YAML)")
    compare.add_argument("--json", metavar="FILE", help="a record for each pair, and a summary, as lines of JSON")
    compare.add_argument("--csv", metavar="FILE", help="a row for each pair")
    compare.set_defaults(run=_compare)
