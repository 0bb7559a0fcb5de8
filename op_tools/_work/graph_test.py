"""op-tools graph-test: is a graph compiler right?"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from .._base.core import Error, log_progress
from .._base.verdict import status_of
from .._commands.command_line import UsageError, visible
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

_RUNS = {"false": (False,), "true": (True,), "all": (False, True)}
_DTYPES = frozenset({"complex64", "complex128", "float8_e4m3fn", "float8_e5m2"})  # left out: few compilers take them


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools graph-test: {visible(line)}\n")
    sys.stderr.flush()


def _compiled_cases(options: argparse.Namespace) -> list[Case]:
    """The patterns, and a sample of the operators.

    Raises:
        op_tools.Error: the options leave none.
    """
    expression, without = re.compile(options.fname), set(options.filter_dtype)
    patterns = pattern_cases(training=options.training)
    cases = [case for case in patterns if expression.search(case.op) and case.dtype not in without]
    if options.ops:
        wanted = Filter(fname=options.fname, dtypes=_DTYPES | without)
        plain = [
            case
            for case in load_cases("", sources=LISTED[:1], filter=wanted)
            if case.variant == "function" and not case.mutation
        ]
        cases += sampled(plain, options.ops)
    if not cases:
        raise Error(f"--fname {options.fname}: matches no pattern and no operator of the dtypes that are left")
    return cases


def run_command(options: argparse.Namespace) -> int:
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
