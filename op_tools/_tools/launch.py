"""Runs a program with tools, without a change of it: op-tools run, and OP_TOOLS in the environment."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from .._as_cuda.switch import rename_from_environment as start_renaming
from .._base import core
from .._base.account import write_account
from .._base.config_file import Config, checked_switch, switched, without_variables
from .._base.core import Error, log_warn, want_exit_status, watch_exit_status
from .._base.error_text import one_line
from .._base.tool_declarations import FAIL_ON
from .._base.tool_descriptions import kind_of, kinds
from .._base.verdict import Coverage, Verdict, status_of, worst
from .._torch.backends import import_from_environment
from .hard_exits import watch_hard_exits
from .tool import Tool, stop_all
from .tool_classes import tool_classes
from .tool_group import Together
from .training_steps import mark_steps

_VARIABLE = "OP_TOOLS"
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_ALLOW_UNSEEN = "OP_TOOLS_ALLOW_UNSEEN"
ACCOUNT_VARIABLE = "OP_TOOLS_ACCOUNT"
"""Where each process that imports torch makes a file (with its number behind), for who started the program with tools."""


def tools_by_flag() -> dict[str, type[Tool]]:
    """The tools by their words on the command line ("capture"), in the order in which they were made."""
    known = kinds()
    return {known[name].flag: tool for name, tool in tool_classes().items()}


def make_tools(
    words: Iterable[str],
    arguments: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    config: Config | None = None,
) -> list[Tool]:
    """Tools from words such as "capture" or "time:aten" (a level of its own).

    Args:
        words: as on the command line, without dashes in front.
        arguments: for each tool that has such an option; a level in the word wins.
        own: for single tools, by their words: they win over those for all.
        config: values of a file; everything else wins over them.

    Raises:
        op_tools.Error: when a word names no tool (the text lists those there are), or an argument is for none of them.
    """
    known = tools_by_flag()
    arguments_by_word = arguments or {}
    unused = set(arguments_by_word)
    tools = []
    for word in words:
        flag, _, level = word.strip().partition(":")
        kind = known.get(flag.replace("_", "-"))
        if kind is None:
            raise Error(f"{_VARIABLE}: there is no tool '{flag}'; there are {', '.join(known)}")
        described = kind_of(kind._kind)
        shared = {
            option.name: arguments_by_word[option.name]
            for option in described.options
            # The same name may have other words with another tool: --format of OpCapture and of OpRecord.
            if option.name in arguments_by_word
            and (not option.choices or arguments_by_word[option.name] in option.choices)
        }
        unused -= set(shared)
        of_file = (
            {**without_variables(config.shared, described), **config.own.get(described.flag, {})} if config else {}
        )
        of_word = {"level": level} if level else {}
        tools.append(kind(**{**of_file, **of_word, **shared, **(own or {}).get(flag, {}), **of_word}))
    if unused:
        raise Error(f"{', '.join(sorted(unused))}: none of these tools has such an option, or takes this value")
    return tools


@contextlib.contextmanager
def running(tools: Sequence[Tool | Together]) -> Iterator[None]:
    """All tools on."""
    steps = mark_steps(tools)
    try:
        with contextlib.ExitStack() as stack:
            for tool in tools:
                stack.enter_context(tool)
            yield
    finally:
        steps.remove()


def _from_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The frames after the last frame of this file."""
    at = trace
    while at is not None:
        if at.tb_frame.f_code.co_filename == __file__:
            trace = at.tb_next
        at = at.tb_next
    return trace


@contextlib.contextmanager
def _shown_as_its_own() -> Iterator[None]:
    """An error of the program is shown as without op-tools, from the program's own frames on."""
    try:
        yield
    except BaseException:
        show = sys.excepthook  # maybe the program's

        def show_from_program(
            kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
        ) -> None:
            own = _from_program(trace)
            show(kind, error.with_traceback(own), own)

        sys.excepthook = show_from_program
        raise


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a script as ``python path arguments`` does: __main__, sys.argv, sys.path, exit by SystemExit."""
    sys.argv = [path, *arguments]
    if pkgutil.get_importer(path):  # a folder or an archive with a __main__.py
        with _shown_as_its_own():
            runpy.run_path(path, run_name="__main__")
        return
    file = str(Path(path).absolute())
    sys.path.insert(0, str(Path(path).resolve().parent))
    # In place of this module for good: code that outlives the script (atexit, pickles, workers) looks it up there.
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__loader__ = SourceFileLoader("__main__", file)
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
    sys.modules["__main__"] = main
    with _shown_as_its_own():
        code = compile(Path(path).read_bytes(), file, "exec")
        exec(code, main.__dict__)  # noqa: S102  (the user's own script)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module as ``python -m name arguments`` does."""
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    with _shown_as_its_own():
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def words_of_dipu() -> list[str]:
    """Tools that variables of DIPU start. There any value does; here 0 means off, as for every variable."""
    value = os.environ.get("DIPU_MEM_CHECK", "").lower()
    return [] if value in ("", "0", "false", "off") else ["memory"]


def words_of_environment() -> list[str]:
    """The tools that OP_TOOLS names."""
    return [word for word in os.environ.get(_VARIABLE, "").split(",") if word.strip()]


def refused_variables() -> list[str]:
    """A sentence for each variable of the environment with a value that a tool, or start_from_environment(), refuses."""
    refused: dict[str, None] = {}
    hidden: dict[str, str] = {}  # a tool refuses a variable at a time
    try:
        while new := [text for text in _refused_now() if text not in refused]:
            refused |= dict.fromkeys(new)
            names = {text.partition(": ")[0] for text in new} & os.environ.keys()
            hidden |= {name: os.environ.pop(name) for name in names}
    finally:
        os.environ |= hidden
    return list(refused)


def _refused_now() -> list[str]:
    refused = list(core.refused_variables())
    reads: list[Callable[[], object]] = [lambda: make_tools(words_of_environment())]
    reads += [partial(checked_switch, name) for name in (*map(_fail_variable, FAIL_ON), _ALLOW_UNSEEN)]
    for read in reads:
        try:
            read()
        except Error as error:
            refused.append(str(error))
    return refused


def _is_launcher() -> bool:
    """The program of this process starts the ranks, and computes nothing. A tool would call it rank 0, and its status is that of the
    ranks. A process that it starts by multiprocessing has its sys.argv, but not its sys.orig_argv."""
    words, program = sys.orig_argv, Path(sys.argv[0])
    if sys.argv[0] == "-m":  # so while Python imports the package of the module
        return words[words.index("-m") + 1] in _LAUNCHERS if "-m" in words[:-1] else False
    if sys.argv[0] not in words:
        return False
    is_module = program.suffix == ".py" and ".".join(program.absolute().with_suffix("").parts[-3:]) in _LAUNCHERS
    return is_module or program.name == "torchrun" or (program.name == "accelerate" and sys.argv[1:2] == ["launch"])


def start_from_environment() -> None:
    """Starts the tools that OP_TOOLS names, for the rest of the process; not in a launcher, whose processes have them. A mistake in it
    is reported, and nothing starts: the program belongs to a user who may not know of op_tools."""
    words = [] if _is_launcher() else words_of_environment() or words_of_dipu()
    try:
        import_from_environment()
        if os.environ.get("OP_TOOLS_AS_CUDA") and not switched("DITORCH_DISABLE_MOCK"):
            start_renaming()
        tools = make_tools(words)
        failing = [word for word in FAIL_ON if checked_switch(_fail_variable(word))]
        checked_switch(_ALLOW_UNSEEN)
        if failing:
            watch_exit_status()
        for tool in tools:
            tool.start()  # stopped at exit, as every tool that is on then
        mark_steps(tools)
        if tools:
            watch_hard_exits(partial(_status_of_all, tools, failing))
        if account := os.environ.get(ACCOUNT_VARIABLE):
            atexit.register(_tell_account, f"{account}.{os.getpid()}", tools)
        if failing:
            atexit.register(_fail_if_wrong, tools, failing)
    except Error as error:
        log_warn(f"no tool was started: {error}")
        # A wrong value was to switch it on, too.
        if words and any(
            os.environ.get(name, "").strip() and switched(name) is not False for name in map(_fail_variable, FAIL_ON)
        ):
            watch_exit_status()
            atexit.register(want_exit_status, status_of(Verdict.NOT_JUDGED))


def _fail_variable(word: str) -> str:
    return f"OP_TOOLS_FAIL_ON_{word.upper()}"


def _tell_account(path: str, tools: Sequence[Tool]) -> None:
    """At exit."""
    stop_all()
    with contextlib.suppress(OSError):
        write_account(path, (tool.coverage() for tool in tools))


def startup_variables() -> dict[str, str]:
    """With these a Python that others start reads our variables as soon as it imports torch."""
    startup = str(Path(__file__).parents[1] / "startup")
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != startup]
    return {"PYTHONPATH": os.pathsep.join([startup, *others])}


def environment(
    tools: Sequence[Tool], *, fail_on: str = "", allow_unseen: bool = False, log_level: str = ""
) -> dict[str, str]:
    """The variables with which a Python that others start has the tools on as soon as it imports torch, with the options
    that these tools were made with."""
    variables = startup_variables()
    words = []
    for tool in tools:
        kind = kind_of(tool._kind)
        changed = dict(tool._arguments)
        usual = tool._defaults["level"]
        level = changed.pop("level", usual)
        words.append(kind.flag if level == usual else f"{kind.flag}:{level}")
        by_name = {option.name: option for option in kind.options}
        variables |= {by_name[name].variable: _variable_text(value) for name, value in changed.items()}
    variables[_VARIABLE] = ",".join(words)
    if fail_on:
        variables[_fail_variable(fail_on)] = "1"
    if allow_unseen:
        variables[_ALLOW_UNSEEN] = "1"
    if log_level:
        variables["OP_TOOLS_LOG_LEVEL"] = log_level
    return variables


def _variable_text(value: Any) -> str:
    """A value of an option as its variable takes it."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def tools_that_say(fail_on: str, tools: Iterable[Any]) -> list[Any]:
    """Those of the tools by whose verdicts a run fails: a word of FAIL_ON."""
    return [tool for tool in tools if not FAIL_ON[fail_on] or type(tool).__name__ in FAIL_ON[fail_on]]


_NO_PLACE = ("no_room", "not_written")
"""Of the calls that a tool left out: those that the disk, or a table, did not take. Limits are the user's wish."""


def _is_mostly_lost(coverage: Any) -> bool:
    """Fewer calls were recorded than found no place: such a record answers no question about the run."""
    if not isinstance(coverage, Coverage):
        return False
    return 2 * sum(coverage.lost.get(reason, 0) for reason in _NO_PLACE) > coverage.seen


def status_of_tools(tools: Iterable[Any], *, allow_unseen: bool = False, fail_on: str = "wrong") -> int:
    """The exit status that the tools' verdicts give; tools that judge nothing have none, unless most of what they were to record has
    no place. Says why something is not judged."""
    verdicts = []
    for tool, result in [(tool, tool.result()) for tool in tools_that_say(fail_on, tools)]:
        verdict = getattr(result, "verdict", None)
        if not isinstance(verdict, Verdict):
            if not _is_mostly_lost(getattr(result, "coverage", None)):
                continue
            verdict = Verdict.NOT_JUDGED
        verdicts.append(verdict)
        if verdict is Verdict.NOT_JUDGED:
            why = "; ".join(result.unseen if hasattr(result, "unseen") else result.coverage.reasons())
            log_warn(f"{type(tool).__name__}: NOT JUDGED: {why or 'most was not looked at'}")
    return status_of(worst(verdicts), allow_unseen=allow_unseen)


def _status_of_all(tools: Sequence[Tool], failing: Sequence[str]) -> int:
    """Of stopped tools, by all words of FAIL_ON that are asked for."""
    allow_unseen = bool(switched(_ALLOW_UNSEEN))
    statuses = [status_of_tools(tools, allow_unseen=allow_unseen, fail_on=word) for word in failing]
    return min(filter(None, statuses), default=0)  # 1: something is wrong


def _fail_if_wrong(tools: Sequence[Tool], failing: Sequence[str]) -> None:
    """At exit, where the program's own status, which comes first, is not known yet."""
    try:
        stop_all()
        status = _status_of_all(tools, failing)
    except Exception as error:  # Python would print it, and end with status 0
        log_warn(f"NOT JUDGED: {one_line(error)}")
        status = status_of(Verdict.NOT_JUDGED)
    want_exit_status(status)
