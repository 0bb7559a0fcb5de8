"""The command line: python -m op_tools, installed as op-tools."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _C, _launch
from ._blackbox import find_black_boxes, read_black_box, show_black_boxes
from ._config import NAME, Config, read_config
from ._doctor import examine
from ._kinds import Option, hook_options, kinds
from ._names import aten_names, near_names, tell_core, torch_names
from ._show import show
from ._tools import Tool

if TYPE_CHECKING:  # generic for type checkers only
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def _list_ops(options: argparse.Namespace) -> int:
    tell_core()
    if options.excluded:
        names = _C.metadata_ops()
    elif options.level == "torch":
        names = torch_names()
    else:
        # Composite operators are seen only when a filter names them; their parts are always seen.
        names = aten_names(composite=options.ops is not None)
    admitted = names if options.excluded else _C.admitted(names, options.ops or "", options.skip or "")
    for name in admitted:
        sys.stdout.write(name + "\n")
    if admitted:
        return 0
    other = "aten" if options.level == "torch" else "torch"
    there = aten_names(composite=True) if other == "aten" else torch_names()
    matched = len(_C.admitted(there, options.ops or "", options.skip or ""))
    near = near_names(options.ops or "", names)
    sys.stderr.write(
        f"op-tools: no operator of level {options.level} is matched"
        + (f"; of level {other} {matched} (--level {other})" if matched else "")
        + (f"; did you mean {' or '.join(near)}?" if near else "")
        + "\n"
    )
    return 1


def _flags(options: argparse.Namespace, config: Config) -> list[str]:
    flags = [flag for flag in _launch.tools_by_flag() if getattr(options, flag.replace("-", "_"))]
    flags = flags or list(config.tools)
    if not flags:
        raise _C.Error(f"name at least one tool: --{', --'.join(_launch.tools_by_flag())}; or in {NAME}: tools = [...]")
    return flags


def _chosen_tools(options: argparse.Namespace, config: Config | None = None) -> list[Tool]:
    """Tools and their options as the flags of op-tools run name them, and the file for the rest."""
    given = vars(options)
    config = config or Config()
    chosen = _flags(options, config)
    return _launch.make_tools(
        chosen,
        {name.removeprefix("all:"): value for name, value in given.items() if name.startswith("all:")},
        {
            flag: {name.removeprefix(f"{flag}:"): value for name, value in given.items() if name.startswith(f"{flag}:")}
            for flag in (word.partition(":")[0] for word in chosen)
        },
        config,
    )


def _log_level(options: argparse.Namespace) -> str:
    """What -v and -q ask for; "" without them."""
    return "info" if options.verbose else "warn" if options.quiet else ""


def _run_program(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    tools = _chosen_tools(options, config)
    run = _launch.run_module if options.module else _launch.run_script
    if not options.module and not Path(options.program).is_file():
        raise _C.Error(f"{options.program}: there is no such script; a module is run with -m")
    if level := _log_level(options):
        os.environ["OP_TOOLS_LOG_LEVEL"] = level  # also for the processes that the program starts
        _C.reload_log_level()
    fails = options.fail_on_wrong or config.fail_on_wrong
    try:
        with _launch.running(tools):
            run(options.program, options.arguments)
    except SystemExit as ended:
        if ended.code or not (fails and _launch.is_wrong(tools)):
            raise  # the program's own status
    return int(fails and _launch.is_wrong(tools))


def _print_environment(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    variables = _launch.environment(
        _chosen_tools(options, config),
        fail_on_wrong=options.fail_on_wrong or config.fail_on_wrong,
        log_level=_log_level(options),
    )
    for name, value in variables.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    return 0


def _visible(text: str) -> str:
    """Text for a terminal: names and strings in files come from outside, and control characters would drive it."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def _show(options: argparse.Namespace) -> int:
    sys.stdout.write(_visible(show(options.folder)) + "\n")
    return 0


def _export(options: argparse.Namespace) -> int:
    exported, problems = _C.export_calls(os.fsencode(options.source), os.fsencode(options.target))
    sys.stderr.write("".join(f"op-tools: {_visible(problem)}\n" for problem in problems))
    sys.stdout.write(f"{exported} calls in {options.target}\n")
    return 1 if problems else 0


def _black_box(options: argparse.Namespace) -> int:
    while True:
        if options.json:
            lines = [read_black_box(one).to_json() for one in find_black_boxes(options.path)]
            text = "\n".join(lines)
        else:
            text = show_black_boxes(options.path, options.last)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if not options.follow or not any(read_black_box(one).alive for one in find_black_boxes(options.path)):
            return 0
        time.sleep(1)
        sys.stdout.write("\n")


def _doctor(_: argparse.Namespace) -> int:
    findings = examine()
    sys.stdout.write("\n".join(findings.lines) + "\n")
    return 1 if findings.problems else 0


def _add_option(group: Any, flag: str, dest: str, option: Option, *, hidden: bool = False) -> None:
    """One option of a tool as a flag, made from its declaration. It is in the result only where it was given."""
    of_type: dict[str, dict[str, Any]] = {
        "bool": {"action": argparse.BooleanOptionalAction},
        "int": {"type": int, "metavar": "N"},
        "float": {"type": float, "metavar": "X"},
        "choice": {"choices": option.choices},
        "ints": {"type": _integers, "metavar": "N,N"},
        "names": {"metavar": "LIST"},
        "path": {"metavar": "DIR"},
    }
    text = f"{option.help} ({option.variable + ', else ' if option.variable else ''}{option.default})".replace(
        "%", "%%"
    )
    help_text = argparse.SUPPRESS if hidden else text
    group.add_argument(
        flag, dest=dest, default=argparse.SUPPRESS, help=help_text, **of_type.get(option.type, {"metavar": "TEXT"})
    )


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _add_tool_options(command: argparse.ArgumentParser) -> None:
    """All options of all tools: --max-calls for every chosen tool that has it, --capture-max-calls for one tool."""

    def flag_of(name: str) -> str:
        return name.strip("_").replace("_", "-")

    shared = command.add_argument_group("options of every tool")
    for option in hook_options():
        _add_option(shared, f"--{flag_of(option.name)}", f"all:{option.name}", option)
    short = set()
    for kind in kinds().values():
        group = command.add_argument_group(f"options of {kind.name} (--{kind.flag})")
        for option in kind.options:
            is_own = option in kind.own_options
            _add_option(
                group, f"--{kind.flag}-{flag_of(option.name)}", f"{kind.flag}:{option.name}", option, hidden=not is_own
            )
            if is_own and option.name not in short:
                short.add(option.name)
                _add_option(group, f"--{flag_of(option.name)}", f"all:{option.name}", option, hidden=True)


def _add_launch(command: argparse.ArgumentParser) -> None:
    """What op-tools run and op-tools env have in common."""
    _add_tools(command)
    command.add_argument(
        "--fail-on-wrong",
        action="store_true",
        help="exit status 1 when a tool found something wrong (autocompare, overflow)",
    )
    command.add_argument("--config", metavar="FILE", help=f"tools and options; without it {NAME}, where there is one")
    loudness = command.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="a line for each call")
    loudness.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
    _add_tool_options(command)


def _add_level(command: argparse.ArgumentParser) -> None:
    command.add_argument("--level", choices=("torch", "aten"), default="torch", help="names as Python's or torch's own")


def _add_tools(command: argparse.ArgumentParser) -> None:
    for flag, kind in _launch.tools_by_flag().items():
        summary = (kind.__doc__ or "").partition("\n")[0]
        command.add_argument(f"--{flag}", action="store_true", help=f"{kind.__name__}: {summary}")


def _add_ops(commands: Commands) -> None:
    ops = commands.add_parser("ops", help="list the operators that a filter would match")
    _add_level(ops)
    ops.add_argument("--ops", metavar="LIST", help="only these: regular expressions, comma-separated")
    ops.add_argument("--skip", metavar="LIST", help="all but these")
    ops.add_argument(
        "--excluded", action="store_true", help="the metadata calls that are left out unless a filter names them"
    )
    ops.set_defaults(run=_list_ops)


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run an unchanged script or module with tools on",
        description="Runs a program as python does, with tools on for its main thread. An optimizer's step is a training "
        "step. The tool's word in front of an option may be left out (--max-calls): then each chosen tool that has the "
        "option takes it.",
        allow_abbrev=False,
        epilog="op-tools run --capture --time --ops 'torch.nn.functional.*' train.py --lr 0.1",
    )
    _add_launch(run)
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    run.add_argument("program", help="the script, or the module")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    run.set_defaults(run=_run_program)


def _add_env(commands: Commands) -> None:
    environment = commands.add_parser(
        "env",
        help="print the variables that put tools on programs which others start",
        description="Prints shell lines. A Python that is started with them has the tools on as soon as it imports torch; "
        "OP_TOOLS can be changed by hand: OP_TOOLS=capture,time:aten. Options are those of op-tools run.",
        allow_abbrev=False,
        epilog='eval "$(op-tools env --capture)"; torchrun --nproc-per-node 8 train.py',
    )
    _add_launch(environment)
    environment.set_defaults(run=_print_environment)


def _add_files(commands: Commands) -> None:
    showing = commands.add_parser("show", help="what is in a folder of captured calls, or one call in full")
    showing.add_argument(
        "folder", help="op_capture_result, any folder in it, a container calls.zip, or one call in it: calls.zip!OP/ID"
    )
    showing.set_defaults(run=_show)
    export = commands.add_parser(
        "export",
        help="captured calls as folders that stand alone",
        description="Writes calls to folders, each with all its bytes in its own files: out of a container, or of a run "
        "whose calls share the bytes of tensors (dedupe). Exit status 1 when some could not be exported.",
    )
    export.add_argument("source", help="a call's folder, any folder above, or a container calls.zip")
    export.add_argument("target", help="the folder to write to; made where it is missing")
    export.set_defaults(run=_export)


def _add_black_box(commands: Commands) -> None:
    box = commands.add_parser(
        "blackbox",
        help="which call killed a process, or hangs: what OpBlackBox left",
        description="Shows the last calls of each process, and first the one that had begun and not ended. Works while the "
        "program runs, too.",
        epilog="op-tools run --blackbox train.py; op-tools blackbox op_blackbox_result",
    )
    box.add_argument("path", help="a file *.blackbox, or a folder in which such files are")
    box.add_argument("--last", type=int, default=10, metavar="N", help="the last N calls of each process; 0: all (10)")
    box.add_argument("--json", action="store_true", help="a line of JSON per process")
    box.add_argument("--follow", action="store_true", help="again every second, while one of the processes lives")
    box.set_defaults(run=_black_box)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="op-tools",
        description="Look at every operator that a PyTorch program runs.",
        epilog="Replay what was captured: run_op_from_data FOLDER --acc_check",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_ops(commands)
    _add_run(commands)
    _add_env(commands)
    _add_files(commands)
    _add_black_box(commands)
    doctor = commands.add_parser(
        "doctor",
        help="why is my result empty: versions, devices, variables, what the filters match",
        description="Looks at this machine and this environment. Exit status 1 when something is wrong.",
    )
    doctor.set_defaults(run=_doctor)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (0 success, 1 nothing found or something wrong, 2 wrong usage or an op_tools.Error)."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except _C.Error as error:
        sys.stderr.write(f"op-tools: {_visible(str(error))}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
