"""op-tools repro: a file that shows the failure of a saved call, for who has neither op_tools nor the model."""

from __future__ import annotations

from .command_line import Commands, above_zero, add_allow_unseen, add_imports, positive, work


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "repro",
        help="a script with torch alone that shows the failure of a saved call",
        description="Writes a script that runs a saved call on the device, on the CPU and in float64, and ends with status 1 if "
        "the device is wrong; of a finding of OpInvariance one that runs it twice and compares the bits. It needs torch alone. It is run in three fresh processes before it is handed out. Exit status: "
        "0 it reproduces in all of them; 1 it does not (its first lines say so); 2 not judged (docs/verdicts.md says when), or "
        "the call has no form in a script; "
        "64 wrong usage.",
        epilog="op-tools repro op_autocompare_result/0/.../torch.nn.functional.linear/93/device --shrink",
    )
    parser.add_argument(
        "folder",
        help="a saved call: a capture, a failure of OpAutoCompare, a producer of OpOverflowCheck, a finding of OpInvariance",
    )
    parser.add_argument("--device", metavar="D", help="where it is wrong (the device on which it was saved)")
    parser.add_argument("--shrink", action="store_true", help="first look for the smallest call that still fails")
    parser.add_argument(
        "--cpp",
        action="store_true",
        help="also the same as a C++ program with its CMakeLists.txt, built and run if there is a compiler",
    )
    parser.add_argument("--issue", action="store_true", help="also a bug report in PyTorch's form, FILE.md")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the script (repro.py, or repro_2.py, ... where it exists)"
    )
    parser.add_argument(
        "--backend",
        default="",
        metavar="NAME",
        help="of a compiled graph with --shrink: another compiler than that of its program",
    )
    add_imports(parser)
    add_allow_unseen(parser)
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="LIB",
        help="a library of operators or of a device that the script loads",
    )
    parser.add_argument("--attempts", type=positive, default=200, metavar="N", help="of --shrink, at most (200)")
    parser.add_argument("--timeout", type=above_zero, default=60, metavar="S", help="seconds for a run (60)")
    parser.set_defaults(run=work("repro", "run_command", copies=("folder",)))
