"""op-tools run and op-tools env: a program with tools on, and the variables that do the same."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from .._as_cuda.names import OTHER_ACCELERATORS
from .._as_cuda.switch import rename_from_environment as start_renaming
from .._base.config_file import NAME, Config, read_config
from .._base.core import Error, reload_log_level
from .._base.tool_descriptions import Option, hook_options, kinds
from .._runs.against import OpAgainst
from .._runs.shadow import OpShadow
from .._tools import launch
from .._tools.tool import Tool
from .._tools.tool_group import Together
from .._torch.backends import VARIABLE as IMPORT
from .._torch.backends import import_backends, modules_of
from .command_line import Commands, Parser, add_imports, visible


def _tool_flags(options: argparse.Namespace, config: Config) -> list[str]:
    flags = [flag for flag in launch.tools_by_flag() if getattr(options, flag.replace("-", "_"))]
    flags = flags or list(config.tools) or launch.words_of_dipu()
    if not flags and not _renames(options):
        all_tools = f"--{', --'.join(launch.tools_by_flag())}; or in {NAME}: tools = [...]"
        raise Error("; ".join([*_tools_of_options(options), f"name at least one tool: {all_tools}"]))
    return flags


def _tools_of_options(options: argparse.Namespace) -> list[str]:
    """Of each given option that not every tool has: which tools have it."""
    texts = []
    for dest in (dest for dest in vars(options) if ":" in dest):
        of, _, name = dest.partition(":")
        flag = _flag_of(name if of == "all" else f"{of}-{name}")
        owners = [
            f"--{kind.flag}"
            for kind in kinds().values()
            if of in ("all", kind.flag) and name in (option.name for option in kind.own_options)
        ]
        if owners:
            texts.append(f"--{flag} is an option of {', '.join(owners)}")
    return texts


def _renames(options: argparse.Namespace) -> bool:
    """The program's device has another name here: --as-cuda, --as-accelerator."""
    return bool(options.as_cuda or options.as_accelerator)


def _imports(options: argparse.Namespace) -> list[str]:
    """The modules that bring the program's device."""
    return modules_of(options.as_cuda or options.as_accelerator or "", options.imports)


def _of_device(options: argparse.Namespace) -> dict[str, str]:
    """The variables that say the same of the device to the program's own processes."""
    imports = _imports(options)
    variables = {IMPORT: ",".join(imports)} if imports else {}
    return variables | (_rename_device(options) if _renames(options) else {})


def _rename_device(options: argparse.Namespace) -> dict[str, str]:
    if options.as_cuda and options.as_accelerator:
        raise Error("--as-cuda and --as-accelerator: give the name that the program is written for")
    variables = {"OP_TOOLS_AS_CUDA": options.as_cuda or options.as_accelerator}
    if options.as_accelerator:
        variables["OP_TOOLS_AS_CUDA_NAMES"] = ",".join(OTHER_ACCELERATORS)
    return variables


def chosen_tools(options: argparse.Namespace, config: Config | None = None) -> list[Tool]:
    """Tools and their options as the flags of op-tools run name them, and the file for the rest."""
    flags = vars(options)
    config = config or Config()
    chosen = _tool_flags(options, config)
    return launch.make_tools(
        chosen,
        {name.removeprefix("all:"): value for name, value in flags.items() if name.startswith("all:")},
        {
            flag: {name.removeprefix(f"{flag}:"): value for name, value in flags.items() if name.startswith(f"{flag}:")}
            for flag in (word.partition(":")[0] for word in chosen)
        },
        config,
    )


def _log_level(options: argparse.Namespace) -> str:
    """The log level of -v and -q; "" without them."""
    return "info" if options.verbose else "warn" if options.quiet else ""


def _take_folder(options: argparse.Namespace) -> None:
    """--record DIR --level aten script.py: the word between the flag and the rest is the folder of the recording."""
    if not options.record or options.module or not options.arguments or Path(options.program).is_file():
        return
    first = options.arguments[0]
    if first.startswith("-") or Path(first).is_file():
        vars(options)["record:output_dir"] = options.program
        options.parser.parse_args(options.arguments, namespace=options)


def _other_run(options: argparse.Namespace) -> Together | None:
    """The tool that looks at another run beside this run, with the options for every tool."""
    if not options.against and not options.shadow:
        if options.stop:
            raise Error("--stop needs --against")
        return None
    if options.against and options.shadow:
        raise Error("--against and --shadow are for a run each")
    names = {option.name for option in hook_options()}
    common = {name.removeprefix("all:"): value for name, value in vars(options).items() if name.startswith("all:")}
    shared: dict[str, Any] = {name: value for name, value in common.items() if name in names}
    if options.against:
        return OpAgainst(options.against, stop=options.stop, **shared)
    return OpShadow(options.shadow, **shared)


def _run_program(options: argparse.Namespace) -> int:
    _take_folder(options)
    import_backends(_imports(options))
    config = read_config(options.config)
    other = _other_run(options)
    tools: list[Tool | Together] = [other] if other else []
    if not other or any(getattr(options, flag.replace("-", "_")) for flag in launch.tools_by_flag()):
        tools += chosen_tools(options, config)
    elif others := {name for name in vars(options) if ":" in name} - {f"all:{one.name}" for one in hook_options()}:
        raise Error(f"{', '.join(sorted(others))}: none of these tools has such an option")
    if variables := _of_device(options):
        os.environ |= launch.startup_variables() | variables  # for the processes that the program starts
    if _renames(options):
        start_renaming()
    if in_children := [tool for tool in tools if isinstance(tool, Tool) and tool._in_children]:
        os.environ |= launch.environment(in_children)
    run = launch.run_module if options.module else launch.run_script
    if not options.module and not Path(options.program).is_file():
        raise Error(f"{options.program}: there is no such script; a module is run with -m")
    if level := _log_level(options):
        os.environ["OP_TOOLS_LOG_LEVEL"] = level  # also for the processes that the program starts
        reload_log_level()
    fails = options.fail_on_wrong or config.fail_on_wrong
    try:
        with launch.running(tools):
            run(options.program, options.arguments)
    except SystemExit as ended:
        if ended.code or not fails:
            raise  # the program's own status
    finally:
        if isinstance(other, OpShadow) and other.was_started:
            sys.stdout.write(visible(other.result().table()) + "\n")
    return launch.status_of_tools(tools, allow_unseen=options.allow_unseen) if fails else 0


def _print_environment(options: argparse.Namespace) -> int:
    config = read_config(options.config)
    variables = launch.environment(
        chosen_tools(options, config),
        fail_on_wrong=options.fail_on_wrong or config.fail_on_wrong,
        allow_unseen=options.allow_unseen,
        log_level=_log_level(options),
    )
    for name, value in (variables | _of_device(options)).items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    return 0


def _add_option(group: Any, flag: str, dest: str, option: Option, *, hidden: bool = False) -> None:
    """An option of a tool as a flag, made from its declaration. It is in the result only where it was given."""
    of_type: dict[str, dict[str, Any]] = {
        "bool": {"action": argparse.BooleanOptionalAction},
        "int": {"type": int, "metavar": "N"},
        "float": {"type": float, "metavar": "X"},
        "choice": {"choices": option.choices},
        "ints": {"type": _integers, "metavar": "N,N|N:N|first:N"},
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


def _flag_of(name: str) -> str:
    """Of an option's name, as in Python: the flag without its dashes."""
    return name.strip("_").replace("_", "-")


def _integers(text: str) -> list[int]:
    """Numbers: 0,5; a range without its end: 3:6; the first of all: first:3."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        begin, colon, end = part.partition(":")
        if not colon:
            numbers[int(part)] = None
            continue
        first = 0 if begin.strip() == "first" else int(begin)
        if not 0 < int(end) - first <= _MOST_STEPS:
            raise ValueError(part)
        numbers |= dict.fromkeys(range(first, int(end)))
    return list(numbers)


_MOST_STEPS = 1_000_000  # in a range


def _add_shared_options(command: argparse.ArgumentParser) -> None:
    """The options that every tool has."""
    shared = command.add_argument_group("options of every tool")
    for option in hook_options():
        _add_option(shared, f"--{_flag_of(option.name)}", f"all:{option.name}", option)


def _add_own_options(command: argparse.ArgumentParser) -> None:
    """The options of the tools: --max-calls for every chosen tool that has it, --capture-max-calls for a single tool."""
    taken = {flag.replace("-", "_") for flag in launch.tools_by_flag()}
    words: dict[str, list[str]] = {}  # of choices: those of all tools that have an option of this name
    for option in (option for kind in kinds().values() for option in kind.own_options):
        words[option.name] = list(dict.fromkeys([*words.get(option.name, []), *option.choices]))
    for kind in kinds().values():
        for option in kind.options:
            flag, dest = f"--{kind.flag}-{_flag_of(option.name)}", f"{kind.flag}:{option.name}"
            _add_option(command, flag, dest, option, hidden=True)
            if option in kind.own_options and option.name not in taken:
                taken.add(option.name)
                of_all = replace(option, choices=tuple(words[option.name]))
                _add_option(command, f"--{_flag_of(option.name)}", f"all:{option.name}", of_all, hidden=True)


class _Help(argparse.Action):
    """--help: the tools and the options of all; behind --autocompare or another tool, the options of that tool."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        text = "show this text; --autocompare --help (or op-tools help autocompare): the options of that tool"
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=text)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> NoReturn:
        flags = [flag for flag in launch.tools_by_flag() if getattr(namespace, flag.replace("-", "_"))]
        sys.stdout.write("\n".join(map(tool_help, flags)) if flags else parser.format_help())
        raise SystemExit(0)


def tool_help(flag: str) -> str:
    """The options of a tool, as text for a terminal."""
    tool = launch.tools_by_flag()[flag]
    kind = kinds()[tool._kind]
    parser = Parser(
        prog="op-tools run",
        usage=f"op-tools run --{flag} [options] program ...",
        description=(tool.__doc__ or "").partition("\n")[0],
        epilog=f"The word {flag} may be left out of an option. Options of every tool: op-tools run --help",
        add_help=False,
    )
    group = parser.add_argument_group(f"options of {kind.name}")
    for option in kind.own_options:
        _add_option(group, f"--{kind.flag}-{_flag_of(option.name)}", option.name, option)
    return parser.format_help()


def _add_launch(command: argparse.ArgumentParser) -> None:
    """The options of op-tools run and of op-tools env."""
    command.add_argument("-h", "--help", action=_Help)
    _add_tools(command)
    add_imports(command)
    command.add_argument(
        "--as-cuda", metavar="DEVICE", help='the program\'s "cuda" is this device (npu, sim, ...); needs no tool'
    )
    command.add_argument(
        "--as-accelerator",
        metavar="DEVICE",
        help=f"the same for a program that names {', '.join(OTHER_ACCELERATORS)}",
    )
    command.add_argument(
        "--fail-on-wrong",
        action="store_true",
        help="exit status 1 when a tool found something wrong, 2 when most was not looked at (autocompare, invariance, overflow, memory, "
        "against, shadow)",
    )
    command.add_argument(
        "--allow-unseen", action="store_true", help="with --fail-on-wrong: status 0 although most was not looked at"
    )
    command.add_argument("--config", metavar="FILE", help=f"tools and options; without it {NAME}, if it exists")
    loudness = command.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="a line for each call")
    loudness.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
    _add_shared_options(command)
    _add_own_options(command)


def _add_tools(command: argparse.ArgumentParser) -> None:
    for flag, kind in launch.tools_by_flag().items():
        summary = (kind.__doc__ or "").partition("\n")[0]
        command.add_argument(f"--{flag}", action="store_true", help=f"{kind.__name__}: {summary}")


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        add_help=False,
        usage="op-tools run --TOOL [--TOOL ...] [options] [-m] program ...",
        help="run an unchanged script or module with tools on",
        description="Runs a program as python does, with tools on for its main thread. An optimizer's step is a training "
        "step. The tool's word in front of an option may be left out (--max-calls): then each chosen tool that has the "
        "option takes it.",
        epilog="op-tools run --capture --time --ops 'torch.nn.functional.*' train.py --lr 0.1",
    )
    _add_launch(run)
    run.add_argument(
        "--against",
        metavar="A",
        help="compare with this recording as the program runs, and save the first call that differs",
    )
    run.add_argument("--stop", action="store_true", help="with --against: end the program there, with status 1")
    run.add_argument(
        "--shadow", metavar="CAPTURE", help="give each operator the captured inputs: which are wrong by themselves?"
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    run.add_argument("program", help="the script, or the module")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    run.set_defaults(run=_run_program, parser=run)


def _add_env(commands: Commands) -> None:
    environment = commands.add_parser(
        "env",
        add_help=False,
        usage="op-tools env --TOOL [--TOOL ...] [options]",
        help="print the variables that put tools on programs which others start",
        description="Prints shell lines. A Python that is started with them has the tools on as soon as it imports torch; "
        "OP_TOOLS can be changed by hand: OP_TOOLS=capture,time:aten. Options are those of op-tools run.",
        epilog='eval "$(op-tools env --capture)"; torchrun --nproc-per-node 8 train.py',
    )
    _add_launch(environment)
    environment.set_defaults(run=_print_environment)


def add(commands: Commands) -> None:
    _add_run(commands)
    _add_env(commands)
