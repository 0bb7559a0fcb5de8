"""op-tools conformance: is every operator of a device right?"""

from __future__ import annotations

import argparse

from .command_line import Commands, above_zero, add_allow_unseen, add_imports, positive, work
from .conformance_cases import add_case_commands, add_selection

_METHODS = ("relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute")
_SECONDS = 600.0


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give I/N, with I from 0 to N - 1")
    return int(number), int(count)


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
        help="the I-th (from 0) of N parts of about equal cost, into the same DIR or not; under torchrun or srun each process is a part",
    )
    add(
        "--jobs",
        type=positive,
        metavar="N",
        help="worker processes (as many as cores; under torchrun or srun, or with --time, 1)",
    )
    add(
        "--timeout",
        type=above_zero,
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
    run.set_defaults(run=work("conformance", "run_command", copies=("golden",)))
    gen = actions.add_parser(
        "gen", help="keep a device's results, to judge others by", description="Runs cases and keeps their results."
    )
    _add_work(gen)
    kinds = gen.add_mutually_exclusive_group()
    kinds.add_argument("--digests", action="store_true", help="keep hashes: only equal bits are recognised by them")
    kinds.add_argument("--float64", action="store_true", help="run the cases in float64")
    gen.set_defaults(run=work("conformance", "gen"))
    add_case_commands(actions)
    verify = actions.add_parser(
        "verify",
        help="does a summary follow from its rows?",
        description="Recomputes the summary of a result from its rows.",
    )
    verify.add_argument("result", metavar="DIR", help="a folder that run -o wrote")
    add_allow_unseen(verify)
    verify.set_defaults(run=work("conformance", "verify", copies=("result",)))
    report = actions.add_parser(
        "report",
        help="write a result's files again, or compare two results",
        description="A result: writes its files again and prints the verdict. Two: which cases became wrong or were repaired, "
        "and, where both have --time, which take longer; status 1 where something became wrong.",
    )
    report.add_argument("results", nargs="+", metavar="DIR", help="a result; or an old and a new result")
    add_allow_unseen(report)
    report.set_defaults(run=work("conformance", "report", copies=("results",)))
