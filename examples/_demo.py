"""The common part of the demos: titles, the replay of captured calls, and lines that fit into 80 columns."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

WIDTH = 80


def parser_with_output(text: str) -> argparse.ArgumentParser:
    """For the options of a demo; the help begins with the first line of the demo's own text."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for the result (a new temporary folder)")
    return parser


def output_folder(options: argparse.Namespace, name: str) -> Path:
    """The folder for the result, made."""
    output = options.output or Path(tempfile.mkdtemp(prefix=f"op_tools_{name}_"))
    output.mkdir(parents=True, exist_ok=True)
    return output


def coloured(text: str, code: int) -> str:
    """On a terminal; elsewhere as it is."""
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def story(number: int, text: str) -> None:
    print(coloured("\n".join(["=" * WIDTH, *textwrap.wrap(f"Story {number}: {text}", WIDTH), "=" * WIDTH]), 1))


def title(text: str) -> None:
    lines = textwrap.wrap(text, WIDTH)
    print(coloured("\n".join(["", *lines, "-" * max(map(len, lines))]), 36))


def wrapped(text: str) -> str:
    """Each line in at most 80 columns; those that are too long with runs of spaces as two."""

    def fitted(line: str) -> str:
        if len(line) <= WIDTH:
            return line
        line = re.sub(r"(?<=\S) {3,}", "  ", line)
        return textwrap.fill(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

    return "\n".join(fitted(line) for line in text.splitlines())


def command_text(command: list[str], environment: dict[str, str] | None = None) -> str:
    """A command that can be pasted into a shell: an argument to a line where a single line is too long."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    words += [shlex.quote(word) for word in command]
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) + 3 > WIDTH:
            lines.append("  ")
        lines[-1] += word if not lines[-1].strip() else " " + word
    return " \\\n".join(lines)


def replay_command() -> list[str]:
    """The stand-alone program where it is built or installed, else the Python module that does the same."""
    program = shutil.which("run_op_from_data")
    return [program] if program else [sys.executable, "-m", "op_tools.run_op_from_data"]


def replay(arguments: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs captured calls again on the simulated device, in a process of its own; prints the command."""
    command = [*replay_command(), *arguments, "--load", "libop_tools_sim_device.so", "--device", "sim"]
    print(coloured(command_text(command, environment), 32) + "\n", flush=True)
    return subprocess.run(
        command,
        env={**os.environ, "OP_TOOLS_LOG_LEVEL": "info", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def curve(losses: list[float]) -> str:
    shown = losses[:: max(1, len(losses) // 8)] + losses[-1:]
    return "  ".join(f"{loss:.3f}" for loss in shown)


def run(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command that a reader can paste; prints its output and its exit status."""
    print(coloured(command_text(command, environment), 32) + "\n", flush=True)
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    print(wrapped(done.stdout + done.stderr))
    print(f"exit status {done.returncode}\n")
    return done.returncode


def hand_out(folder: str, script: Path, fault: str) -> list[int]:
    """A script of a saved call, run on the device, whose kernel is wrong there, too, and on the CPU: the three exit statuses."""
    environment = {"OP_TOOLS_SIM_FAULTS": fault}
    command = [sys.executable, "-m", "op_tools", "repro", folder, "--shrink", "-o", str(script)]
    return [
        run(command, environment),
        run([sys.executable, str(script)], environment),
        run([sys.executable, str(script), "cpu"], environment),
    ]
