"""op-tools graph-test: is a graph compiler right?"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from .._base.core import Error, log_progress
from .._base.verdict import status_of
from .._conformance import LISTED
from .._conformance.case import Case
from .._conformance.exceptions import read_exceptions
from .._conformance.graph_judge import GraphPlan
from .._conformance.lists import Filter, load_cases
from .._conformance.patterns import pattern_cases
from .._conformance.run import Settings, run_cases
from .._conformance.self_test import SelfTest
from .._conformance.shard_run import WorkerPlan, sampled
from .._conformance.workers import prepare, usable_cores
from .._torch.backends import import_backends, modules_of, usable_device
from .command_line import Commands, UsageError, add_allow_unseen, add_imports, visible
from .conformance_cases import positive

_RUNS = {"false": (False,), "true": (True,), "all": (False, True)}
_DTYPES = frozenset({"complex64", "complex128", "float8_e4m3fn", "float8_e5m2"})  # left out: few compilers take them
_SECONDS = 120.0


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools graph-test: {visible(line)}\n")
    sys.stderr.flush()


def _compiled_cases(options: argparse.Namespace) -> list[Case]:
    """The patterns, and a sample of the operators.

    Raises:
        op_tools.Error: the options leave none.
    """
    expression = re.compile(options.fname)
    cases = [case for case in pattern_cases(training=options.training) if expression.search(case.op)]
    if options.ops:
        wanted = Filter(fname=options.fname, dtypes=_DTYPES)
        plain = [
            case
            for case in load_cases("", sources=LISTED[:1], filter=wanted)
            if case.variant == "function" and not case.mutation
        ]
        cases += sampled(plain, options.ops)
    if not cases:
        raise Error(f"--fname {options.fname}: matches no pattern and no operator")
    return cases


def _graph_test(options: argparse.Namespace) -> int:
    prepare(is_new=options.is_program)
    self_test = SelfTest()  # works while this process finds its cases
    imports = modules_of(options.device, options.imports)
    import_backends(imports)
    usable_device(options.device)
    _known_backend(options.backend)
    graphs = GraphPlan(options.backend, _RUNS[options.dynamic], options.training)
    plan = WorkerPlan(device=options.device, imports=tuple(imports), graphs=graphs)
    settings = Settings(Path(options.output), options.jobs or usable_cores(), options.timeout, resume=options.resume)
    verdict = run_cases(_compiled_cases(options), plan, settings, read_exceptions(None), self_test, _say)
    _say(f"files in {options.output}")
    return status_of(verdict, allow_unseen=options.allow_unseen)


def _known_backend(name: str) -> None:
    from torch._dynamo import list_backends
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.exc import InvalidBackend

    try:
        lookup_backend(name)
    except InvalidBackend:
        known = ", ".join(list_backends(exclude_tags=()))
        raise UsageError(
            f"--backend {name}: no such backend; there are {known}; --import MODULE imports another"
        ) from None


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
        "--dynamic", choices=_RUNS, default="false", help="with sizes that are known, with any sizes, or both (false)"
    )
    parser.add_argument("--training", action="store_true", help="also the gradients")
    parser.add_argument(
        "--ops", type=int, default=200, metavar="N", help="cases of operators, besides the patterns (200)"
    )
    parser.add_argument("--fname", default="", metavar="RE", help="only patterns and operators that this matches")
    parser.add_argument("--device", default="cpu", metavar="D", help="where the graphs run (cpu)")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder of the result")
    parser.add_argument("--jobs", type=positive, metavar="N", help="worker processes (as many as cores)")
    parser.add_argument(
        "--timeout", type=float, default=_SECONDS, metavar="S", help=f"a case that takes longer hangs ({_SECONDS:g})"
    )
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run was")
    add_imports(parser)
    add_allow_unseen(parser)
    parser.set_defaults(run=_graph_test)
