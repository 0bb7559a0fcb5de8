"""op-tools conformance list, record, export: which cases there are, cases of a program, cases for a device without Python."""

from __future__ import annotations

import argparse
from typing import Any

from .._conformance import CHOICES
from .command_line import positive, work

_GROUPS = ("dtype", "layout", "mutation", "op", "source", "variant")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose cases."""
    add = parser.add_argument
    several: dict[str, Any] = {"action": "extend", "nargs": "+"}
    add("--source", **several, choices=CHOICES, help="where cases come from (op_db models faults)")
    add("--list", default="", metavar="FILE", help="a list of cases that op-tools conformance list --write made")
    add("--captures", **several, default=[], metavar="PATH", help="calls of captures and recordings as cases")
    add("--mine", **several, default=[], metavar="FILE", help="cases of your own (JSON, YAML)")
    add("--fname", default="", metavar="RE", help="only functions whose name this regular expression matches")
    add("--model", **several, default=[], metavar="NAME", help="only the calls of these models")
    add("--filter-dtype", **several, default=[], metavar="DTYPE", help="leave out cases of these dtypes: float64 int64")
    add("--phase", default="", choices=("forward", "backward", "inplace", "out"), help="only this phase")
    add("--nhwc", action="store_true", help="tensors of four and five dimensions are channels-last")
    add("--four-bytes", action="store_true", help="int64 tensors are int32")
    add("--sample", type=positive, metavar="N", help="N of the cases, always the same, spread over the operators")


def add_case_commands(actions: argparse._SubParsersAction[Any]) -> None:
    """Registers list, record and export among the actions of conformance."""
    listing = actions.add_parser(
        "list",
        help="which cases there are",
        description="Counts the cases that the options choose, and prints the SHA-256 of their lines.",
    )
    add_selection(listing)
    shown = listing.add_mutually_exclusive_group()
    shown.add_argument(
        "--by",
        nargs="+",
        default=["source", "dtype"],
        choices=_GROUPS,
        help="the groups to count (source dtype)",
    )
    shown.add_argument("--ids", action="store_true", help="print the id of each case instead")
    shown.add_argument("--list-models", action="store_true", help="print the models, for --model, instead")
    listing.add_argument(
        "--write", default="", metavar="FILE", help="write the cases (JSON lines; packed if FILE ends in .gz)"
    )
    listing.set_defaults(run=work("conformance_cases", "list_cases"))
    record = actions.add_parser(
        "record",
        help="make cases of a program's calls",
        description="Runs a Python program and writes which torch functions its second training step calls, with which shapes, "
        "and how often. Values are not written: a model may be on the meta device.",
    )
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the list to write")
    record.add_argument("--name", default="", metavar="NAME", help="of the model (the script's name)")
    record.add_argument("script", help="the program")
    record.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    record.set_defaults(run=work("conformance_cases", "record"))
    export = actions.add_parser(
        "export",
        help="write cases for run_op_from_data",
        description="Runs cases on the CPU and captures inputs, outputs and gradients: run_op_from_data replays them on a device "
        "without Python. Status 1 if some could not be exported.",
    )
    add_selection(export)
    export.add_argument("-o", "--output", required=True, metavar="DIR", help="a new folder")
    export.add_argument("--format", choices=("container", "folders"), default="container", help="(container)")
    export.set_defaults(run=work("conformance_cases", "export"))
