"""op-tools graph-test: is a graph compiler right?"""

from __future__ import annotations

from .command_line import Commands, above_zero, add_allow_unseen, add_imports, positive, work

_SECONDS = 120.0


def add(commands: Commands) -> None:
    """Registers the command."""
    parser = commands.add_parser(
        "graph-test",
        help="is a graph compiler right? operators and patterns, compiled and judged",
        description="Compiles functions by a backend of torch.compile and judges results, changed inputs, aliases and gradients, as "
        "op-tools run --autocompare does: patterns of several operators with the shapes of real models, and torch's operators, each "
        "between two others. Says who ran them: compilers hand on in silence what they cannot do. Exit status: 0 all that was judged "
        "is right, 1 something is wrong, 2 not judged (docs/verdicts.md says when), 64 wrong usage.",
        epilog="op-tools graph-test --backend openvino --dynamic all --training -o result",
    )
    parser.add_argument("--backend", required=True, metavar="NAME", help="the compiler, as torch.compile names it")
    parser.add_argument(
        "--dynamic",
        choices=("false", "true", "all"),
        default="false",
        help="with sizes that are known, with any sizes, or both (false)",
    )
    parser.add_argument("--training", action="store_true", help="also the gradients")
    parser.add_argument(
        "--ops", type=int, default=200, metavar="N", help="cases of operators, besides the patterns (200)"
    )
    parser.add_argument("--fname", default="", metavar="RE", help="only patterns and operators that this matches")
    parser.add_argument(
        "--filter-dtype",
        action="extend",
        nargs="+",
        default=[],
        metavar="DTYPE",
        help="leave out cases of these dtypes: float64 int64",
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="where the graphs run (cpu)")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder of the result")
    parser.add_argument("--jobs", type=positive, metavar="N", help="worker processes (as many as cores)")
    parser.add_argument(
        "--timeout",
        type=above_zero,
        default=_SECONDS,
        metavar="S",
        help=f"a case that takes longer hangs ({_SECONDS:g})",
    )
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run was")
    add_imports(parser)
    add_allow_unseen(parser)
    parser.set_defaults(run=work("graph_test", "run_command"))
