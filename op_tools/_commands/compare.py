"""op-tools compare: where two runs part."""

from __future__ import annotations

from .._base.optional_parts import Group, part_names
from .command_line import Commands, add_allow_unseen, positive, work


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
    compare.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="processes that share the ranks, or the steps (1)"
    )
    add_allow_unseen(compare)
    compare.add_argument("--json", metavar="FILE", help="a record for each pair, and a summary, as lines of JSON")
    compare.add_argument("--csv", metavar="FILE", help="a row for each pair")
    compare.add_argument(
        "--format",
        choices=part_names(Group.TABLES),
        help="of --csv: the columns of that tool; troubleshooter: FILE is the folder of its tables",
    )
    compare.set_defaults(run=work("compare", "run_command", reads=("runs", "noise", "captures", "confirm")))
