"""op-tools completion: completion of this command line by a shell."""

from __future__ import annotations

import argparse
import importlib
import sys

from .command_line import Commands, UsageError, parser_of

_SHELLS = ("bash", "zsh", "fish")
_LIBRARY = "shtab"


def _print_completion(options: argparse.Namespace) -> int:
    try:
        shtab = importlib.import_module(_LIBRARY)
    except ImportError:
        raise UsageError(f"needs a library: pip install {_LIBRARY}") from None
    sys.stdout.write(shtab.complete(parser_of(), options.shell))
    return 0


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "completion",
        help="a script by which a shell completes commands and options",
        description=f"Prints a script for a shell. It needs {_LIBRARY} (pip install {_LIBRARY}) when it is made, and nothing afterwards.",
        epilog="bash: op-tools completion bash > ~/.local/share/bash-completion/completions/op-tools; "
        'zsh: op-tools completion zsh > "${fpath[1]}/_op-tools"; '
        "fish: op-tools completion fish > ~/.config/fish/completions/op-tools.fish",
    )
    command.add_argument("shell", choices=_SHELLS, help="the shell")
    command.set_defaults(run=_print_completion)
