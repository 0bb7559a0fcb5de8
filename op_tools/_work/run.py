"""op-tools run and op-tools env: a program with tools on, and the variables that do the same."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .._as_cuda import OTHER_ACCELERATORS
from .._as_cuda.switch import rename_from_environment as start_renaming
from .._base.config_file import Config, read_config, switched
from .._base.core import reload_log_level
from .._base.tool_declarations import CONFIG_FILE, FAIL_ON
from .._base.tool_descriptions import hook_options, kind_of, kinds
from .._commands.command_line import UsageError, check_module, check_script, visible
from .._commands.run import flag_of, kinds_by_flag
from .._runs.against import OpAgainst
from .._runs.shadow import OpShadow
from .._tools import launch
from .._tools.hard_exits import watch_hard_exits
from .._tools.tool import Hook, HookScope, Tool
from .._tools.tool_group import Together
from .._torch.backends import VARIABLE as IMPORT
from .._torch.backends import import_backends, modules_of
from .wrong_usage import wrong_usage


def _tool_flags(options: argparse.Namespace, config: Config) -> list[str]:
    flags = [flag for flag in kinds_by_flag() if getattr(options, flag.replace("-", "_"))]
    flags = flags or list(config.tools) or launch.words_of_dipu()
    if not flags and not _renames(options):
        all_tools = f"--{', --'.join(kinds_by_flag())}; or in {CONFIG_FILE}: tools = [...]"
        raise UsageError("; ".join([*_tools_of_options(options), f"name at least one tool: {all_tools}"]))
    return flags


def _tools_of_options(options: argparse.Namespace) -> list[str]:
    """Of each given option that not every tool has: which tools have it."""
    texts = []
    for dest in (dest for dest in vars(options) if ":" in dest):
        of, _, name = dest.partition(":")
        flag = flag_of(name if of == "all" else f"{of}-{name}")
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
        raise UsageError("--as-cuda and --as-accelerator: give the name that the program is written for")
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


def _refuse_early(tools: Iterable[Tool | Together]) -> None:
    """Values that a tool would refuse when it starts are refused now."""
    with wrong_usage():
        for tool in tools:
            if isinstance(tool, Tool):
                tool.check()


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
            raise UsageError("--stop needs --against")
        return None
    if options.against and options.shadow:
        raise UsageError("--against and --shadow are for a run each")
    names = {option.name for option in hook_options()}
    common = {name.removeprefix("all:"): value for name, value in vars(options).items() if name.startswith("all:")}
    shared: dict[str, Any] = {name: value for name, value in common.items() if name in names}
    with wrong_usage():
        HookScope(Hook(), **shared).check()
    if options.against:
        return OpAgainst(options.against, stop=options.stop, **shared)
    return OpShadow(options.shadow, **shared)


def run_command(options: argparse.Namespace) -> int:
    _take_folder(options)
    import_backends(_imports(options))
    with wrong_usage():
        config = read_config(options.config)
    other = _other_run(options)
    tools: list[Tool | Together] = [other] if other else []
    if not other or any(getattr(options, flag.replace("-", "_")) for flag in kinds_by_flag()):
        with wrong_usage():
            tools += chosen_tools(options, config)
    elif others := {name for name in vars(options) if ":" in name} - {f"all:{one.name}" for one in hook_options()}:
        raise UsageError(f"{', '.join(sorted(others))}: none of these tools has such an option")
    _refuse_early(tools)
    if variables := _of_device(options):
        os.environ |= launch.startup_variables() | variables  # for the processes that the program starts
    if _renames(options) or (os.environ.get("OP_TOOLS_AS_CUDA") and not switched("DITORCH_DISABLE_MOCK")):
        start_renaming()
    if in_children := [tool for tool in tools if isinstance(tool, Tool) and tool._in_children]:
        os.environ |= launch.environment(in_children)
    run = launch.run_module if options.module else launch.run_script
    (check_module if options.module else check_script)(options.program)
    if level := _log_level(options):
        os.environ["OP_TOOLS_LOG_LEVEL"] = level  # also for the processes that the program starts
        reload_log_level()
    fail_on = _fail_on(options, config, tools)

    def status() -> int:
        return launch.status_of_tools(tools, allow_unseen=options.allow_unseen, fail_on=fail_on) if fail_on else 0

    forget_exits = watch_hard_exits(status)
    try:
        with launch.running(tools):
            run(options.program, options.arguments)
    except SystemExit as ended:
        if ended.code or not fail_on:
            raise  # the program's own status
    finally:
        forget_exits()
        if isinstance(other, OpShadow) and other.was_started:
            sys.stdout.write(visible(other.result().table()) + "\n")
    return status()


def _fail_on(options: argparse.Namespace, config: Config, tools: Sequence[Any]) -> str:
    """A word of FAIL_ON whose tools are on; "": none."""
    fail_on: str = options.fail_on or config.fail_on
    if fail_on and FAIL_ON[fail_on] and not launch.tools_that_say(fail_on, tools):
        flags = ", ".join(f"--{kind_of(name).flag}" for name in FAIL_ON[fail_on])
        raise UsageError(f"--fail-on {fail_on}: add {flags}, which says it")
    return fail_on


def print_environment(options: argparse.Namespace) -> int:
    with wrong_usage():
        config = read_config(options.config)
    with wrong_usage():
        tools = chosen_tools(options, config)
    _refuse_early(tools)
    variables = launch.environment(
        tools,
        fail_on=_fail_on(options, config, tools),
        allow_unseen=options.allow_unseen,
        log_level=_log_level(options),
    )
    for name, value in (variables | _of_device(options)).items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    return 0
