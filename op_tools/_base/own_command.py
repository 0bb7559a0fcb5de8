"""The commands of the package: is this process one, how are they called here? And the package's version. Asked before torch is imported."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

WRONG_USAGE = 64
"""The exit status of a command that does not understand its options or variables: it has judged nothing."""


def own_command() -> tuple[str, list[str]] | None:
    """The module and the arguments, if this process is a command of the package: `op-tools ...` or `python -m op_tools...`.

    A process that such a command starts by multiprocessing has the command's sys.argv, but not its sys.orig_argv.
    """
    words = sys.orig_argv
    if Path(sys.argv[0]).name == "op-tools" and sys.argv[0] in words:
        return "op_tools", sys.argv[1:]
    # While the package is imported, Python has "-m" there; afterwards the module's file.
    is_module = sys.argv[0] == "-m" or Path(__file__).parents[1] in Path(sys.argv[0]).parents
    if is_module and "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        if module.partition(".")[0] == "op_tools":
            return module, sys.argv[1:]
    return None


def own_program() -> list[str] | None:
    """The arguments, if the program of this process is the package's: one of its commands, a file of it that Python runs by its path, or
    a process that multiprocessing started for these."""
    if (command := own_command()) is not None:
        return command[1]
    script = Path(sys.argv[0])
    return sys.argv[1:] if script.name == "op-tools" or Path(__file__).parents[1] in script.absolute().parents else None


def is_command_line() -> bool:
    """This process is `op-tools`, which loads torch and the core when its command needs them."""
    command = own_command()
    return command is not None and command[0] in ("op_tools", "op_tools.__main__")


def op_tools_words() -> list[str]:
    """How op-tools is called here: by Python where it is not on PATH."""
    return ["op-tools"] if shutil.which("op-tools") else [_python(), "-m", "op_tools"]


def replay_words() -> list[str]:
    """How saved calls are run again here: by Python, which loads the modules of devices."""
    return [_python(), "-m", "op_tools.run_op_from_data"]


def op_tools_line(*words: str) -> str:
    """A command of op-tools that is printed: works as it stands, in this folder and environment."""
    return shlex.join([*op_tools_words(), *words])


def replay_line(*words: str) -> str:
    """A command that runs saved calls again, for printing."""
    return shlex.join([*replay_words(), *words])


def called_here(words: Sequence[str]) -> list[str]:
    """A command that was written as `env NAME=value op-tools run ...`, where op-tools may be called in another way."""
    at = next((number for number, word in enumerate(words) if word != "env" and "=" not in word), len(words))
    return [*words[:at], *op_tools_words(), *words[at + 1 :]] if words[at:][:1] == ["op-tools"] else list(words)


def is_this_python(word: str) -> bool:
    """The word, on a command line, starts the Python of this process."""
    path = shutil.which(word)
    is_python = path is not None and Path(path).name.startswith("python")
    return is_python and Path(str(path)).resolve() == Path(sys.executable).resolve()


def _python() -> str:
    return "python" if is_this_python("python") else sys.executable


def package_version() -> str:
    """As CMake wrote it; the same in each folder of a wheel for several versions of torch."""
    package = Path(__file__).parents[1]
    file = next(iter([*package.glob("_build_info.py"), *package.glob("torch_*_*/_build_info.py")]), None)
    version = re.search(r'^VERSION\s*=\s*"(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE) if file else None
    return version[1] if version else "(not built)"
