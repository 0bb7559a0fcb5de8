"""op_tools.toml: tools and their options in a file, for op-tools run and op-tools env.

tools = ["capture", "time:aten"]     # where the command line names none
steps = [0, 1]                       # an option of each tool that has it
[capture]                            # options of a tool
max_calls = 3
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core import Error
from .data_file import read_toml
from .tool_declarations import CONFIG_FILE, FAIL_ON, Kind, Option
from .tool_descriptions import kinds


@dataclass(frozen=True)
class Config:
    """The settings of a file."""

    tools: tuple[str, ...] = ()
    """Words as on the command line: "time:aten"."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Options of each tool that has them, by name."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of single tools, by their words on the command line."""
    fail_on: str = ""
    """A word of verdict.FAIL_ON; "": the program's own status."""


def switched(variable: str) -> bool | None:
    """The value of a variable of the environment: 1, true, on or 0, false, off. None: nothing, or something else."""
    word = os.environ.get(variable, "").strip().lower()
    return True if word in ("1", "true", "on") else False if word in ("0", "false", "off") else None


def checked_switch(variable: str) -> bool:
    """The same where nothing else is allowed; without the variable it is off.

    Raises:
        op_tools.Error: it has another value.
    """
    text = os.environ.get(variable, "")
    if text.strip() and switched(variable) is None:
        raise Error(f"{variable}: '{text}' is not allowed; give 0, 1, true, false, on or off")
    return bool(switched(variable))


def read_config(path: str | None) -> Config:
    """The file that is named, else op_tools.toml in the working directory, else nothing. Options that a variable of
    the environment sets are left out: it wins over the file.

    Raises:
        op_tools.Error: the named file is missing, or says something that no tool has; the text names it.
    """
    if path is None and not Path(CONFIG_FILE).is_file():
        return Config()
    where = path or CONFIG_FILE
    content = read_toml(where)
    by_flag = {kind.flag: kind for kind in kinds().values()}
    tools, fail_on_wrong = content.pop("tools", []), content.pop("fail_on_wrong", False)
    fail_on = content.pop("fail_on", "")
    if not isinstance(tools, list) or not all(isinstance(word, str) for word in tools):
        raise Error(f'{where}: tools: give a list of words, as ["capture", "time:aten"]')
    if not isinstance(fail_on_wrong, bool):
        raise Error(f"{where}: fail_on_wrong: give true or false")
    if fail_on and fail_on not in FAIL_ON:
        raise Error(f"{where}: fail_on: give one of {', '.join(FAIL_ON)}")
    all_options = {option.name.strip("_"): option for kind in by_flag.values() for option in kind.options}
    own: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            kind = _known(where, f"[{key}]", key, by_flag)
            options = {option.name.strip("_"): option for option in kind.options}
            settings = {name: (_known(where, f"[{key}] {name}", name, options), item) for name, item in value.items()}
            own[kind.flag] = {option.name: item for option, item in settings.values() if _is_free(option)}
        else:
            option = _known(where, key, key, all_options)
            shared[option.name] = value
    return Config(tuple(tools), shared, own, fail_on or ("wrong" if fail_on_wrong else ""))


def without_variables(shared: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Of the options that a file has for all tools, those that `kind` has and no variable sets."""
    by_name = {option.name: option for option in kind.options}
    return {name: value for name, value in shared.items() if name in by_name and _is_free(by_name[name])}


def _is_free(option: Option) -> bool:
    return not os.environ.get(option.variable)


def _known(where: str, shown: str, name: str, known: Mapping[str, Any]) -> Any:
    option = known.get(name.replace("-", "_").strip("_")) or known.get(name.replace("_", "-"))
    if option is not None:
        return option
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {_listed(known)}"
    raise Error(f"{where}: {shown}: no tool or option has this name; {hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
