"""op-tools analyse: which operators of a program's source will work on a device."""

from __future__ import annotations

from ..analyse import MODES
from .command_line import Commands, add_imports, work


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "analyse",
        help="before the first run: which operators of a program's source will work on a device",
        description="Reads Python, notebooks, C++ and CUDA sources; runs none of them. Modes: torch_apis: functions of torch "
        "that the device does not run, and advice; third_party: the functions of a library that reach such ones; "
        "affinity_apis: code that a device's library has a faster form of; dynamic_shape: calls whose shapes changed in a run "
        "with OpObserve. The results are CSV files in OUTPUT/<input>_analysis. Files that cannot be read are listed in "
        "unreadable.csv. Exit status: 0; with --fail-on unsupported 1 when something is, 2 when not all was read; 64 wrong usage.",
        epilog="op-tools support --device npu --import torch_npu -o npu.json; op-tools analyse -i train -o out --support "
        "npu.json; op-tools analyse -i mmcv -o out -m third_party --support npu.json; op-tools run --observe "
        "--observe-detail 2 train.py; "
        "op-tools analyse -i op_observe_result -o out -m dynamic_shape",
    )
    command.add_argument(
        "-i", "--input", nargs="+", required=True, metavar="PATH", help="folders or files; a folder of results for each"
    )
    command.add_argument("-o", "--output", required=True, metavar="DIR", help="where <input>_analysis is made")
    command.add_argument(
        "-v", "--version", metavar="VERSION", help="the torch that the code is for: noted if it is another"
    )
    command.add_argument("-m", "--mode", choices=MODES, default="torch_apis", help="the names to look for (torch_apis)")
    command.add_argument(
        "-env",
        "--env-path",
        dest="env",
        nargs="+",
        default=[],
        metavar="PATH",
        help="sources of libraries: names are followed through them",
    )
    command.add_argument(
        "-api",
        "--api-files",
        dest="api",
        nargs="+",
        default=[],
        metavar="CSV",
        help="full_unsupported_results.csv or framework_unsupported_op.csv of libraries: their functions count as unsupported",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument("--device", metavar="D", help="a device of this machine: cpu, cuda, sim")
    add_imports(command)
    source.add_argument("--support", metavar="TABLE", help="a table of op-tools support, of this or another machine")
    command.add_argument(
        "--rules", nargs="+", default=[], metavar="FILE", help="more rules for advice and affinity (JSON)"
    )
    command.add_argument(
        "--fix",
        action="store_true",
        help="also fixes.diff: rewrites that rules mark as safe, for patch -p1; no file is changed",
    )
    command.add_argument(
        "--detector",
        action="store_true",
        help="of dynamic_shape: copy the program to <input>_analysis/detector, with DETECTOR.start(...) around its training "
        "loops; the copy writes the report as it runs",
    )
    command.add_argument(
        "--fail-on",
        choices=("unsupported",),
        help="exit status 1 when something is not supported, 2 when a file was not read, or none was there",
    )
    command.add_argument("--json", action="store_true", help="also analysis.json")
    command.add_argument("--sarif", action="store_true", help="also analysis.sarif, for code hosts and editors")
    command.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="processes that read files (as many as cores)"
    )
    command.set_defaults(run=work("analyse", "run_command"))
