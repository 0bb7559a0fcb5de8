"""The second pass: commands that capture the calls around a divergence in both programs, and those calls only."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._base.core import GRAPH_CALLS, Error, recorded_items
from .._base.declared_rows import RunRow
from .._base.own_command import op_tools_line, op_tools_words
from .comparison import RankComparison

_AROUND = 3  # rows before the divergence
_FOLDER = "op_compare_next"


def list_of_calls(capture: Path) -> Path:
    """The file with the calls that a capture of a second pass is to have, a line each: beside the capture's folder."""
    return capture.with_name(f"calls_{capture.name}.txt")


def new_folder(name: str, parent: Path = Path()) -> Path:
    """A new folder: files of an earlier run are not mixed with those of this run.

    Raises:
        op_tools.Error: it cannot be made.
    """
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    for name in names:
        try:
            (parent / name).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise Error(f"{parent / name}: cannot be made: {error}") from None
        return parent / name
    raise AssertionError  # the names do not end


def _differing_environment(header: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """`env` with the differing variables of the other run; variables of op_tools itself are in the command."""
    own, others = header.get("environment") or {}, other.get("environment") or {}
    differing = [
        name
        for name in sorted({*own, *others})
        if own.get(name) != others.get(name) and (not name.startswith("OP_") or name.startswith("OP_TOOLS_SIM"))
    ]
    unset = [f"--unset={name}" for name in differing if name not in own]
    words = [*unset, *(f"{name}={own[name]}" for name in differing if name in own)]
    return ["env", *words] if words else []


def _elsewhere(header: dict[str, Any]) -> str:
    """The folder in which a run was started, where it is another than this; its command may name files in it."""
    folder = str(header.get("folder") or "")
    return folder if folder and folder != str(Path.cwd()) else ""


def missing_folders(rank: RankComparison) -> list[str]:
    """The folders in which the runs were started, where they are not on this machine: the commands are for these folders."""
    headers = [side.header for side in (rank._found.a, rank._found.b) if isinstance(side.header, dict)]
    folders = dict.fromkeys(_elsewhere(header) for header in headers)
    return [folder for folder in folders if folder and not Path(folder).is_dir()]


def _run_command(headers: Sequence[dict[str, Any]], place: int, options: Sequence[str | Path]) -> str:
    """A program of the two again, as it was started, and where.

    Args:
        headers: of both recordings.
        place: of the program.
        options: of op-tools run; paths of this folder.
    """
    own = headers[place]
    start = map(str, own.get("start") or own["argv"])
    folder = _elsewhere(own)
    words = [str(word.absolute()) if folder and isinstance(word, Path) else str(word) for word in options]
    command = shlex.join([*_differing_environment(own, headers[1 - place]), *op_tools_words(), "run", *words, *start])
    # In a shell of its own: the next command is for this folder.
    return f"(cd {shlex.quote(folder)} && {command})" if folder and Path(folder).is_dir() else command


def _commands_of_module(first: RunRow, headers: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """A module is known: its operators are recorded, on both sides."""
    commands = []
    for place, side in enumerate("ab"):
        module = (first.module_b if place else first.module) or first.module
        options: list[str | Path] = ["--record", "--level", "aten", "--steps", str(first.step)]
        options += ["--modules", module] if module else []
        commands.append(_run_command(headers, place, [*options, "--output-dir", folder / side]))
    return [*commands, op_tools_line("compare", str(folder / "a"), str(folder / "b"), "--next")]


def _commands_of_graph(first: RunRow, headers: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """A compiled graph has no form in a capture: it is run again beside its operators, in both programs."""
    options: list[str | Path] = ["--autocompare", "--level", "torch", "--compiled", "check", "--steps", str(first.step)]
    return [_run_command(headers, place, [*options, "--output-dir", folder / side]) for place, side in enumerate("ab")]


def next_commands(rank: RankComparison, parent: Path = Path()) -> list[str]:
    """Writes the lists of calls, and makes the commands for them.

    Args:
        rank: the comparison of a rank.
        parent: where the folder with the lists is made; the captures go there, too.

    Returns:
        for both sides the command that captures the calls around the first divergence, and the command that judges them; of
        a compiled graph those that run it beside its operators; of recordings of modules those that record the operators of the module, and compare them;
        nothing where the runs agree, or where a recording does not name its program.

    Raises:
        op_tools.Error: the lists cannot be written.
    """
    first, core = rank.first, rank._found
    if first is None:
        return []
    rows = [row for row in rank.rows[max(0, first.row - _AROUND) : first.row + 1] if row.step == first.step]
    headers = [side.header if isinstance(side.header, dict) else {} for side in (core.a, core.b)]
    if not all(header.get("argv") for header in headers):
        return []
    folder = new_folder(_FOLDER, parent)
    if headers[0].get("modules_only"):
        return _commands_of_module(first, headers, folder)
    if first.op.startswith(GRAPH_CALLS):
        return _commands_of_graph(first, headers, folder)
    commands = []
    for place, (side, recording) in enumerate((("a", core.a), ("b", core.b))):
        of_calls = recorded_items(recording)
        items = dict.fromkeys(of_calls[call] for row in rows for call in core.calls_of(row.row)[place])
        listed = list_of_calls(folder / side)
        listed.write_text("".join(f"{item}\n" for item in items if item), encoding="utf-8")
        options: list[str | Path] = [
            "--capture",
            "--level",
            first.level,
            "--steps",
            str(first.step),
            "--only-calls",
            listed,
        ]
        commands.append(_run_command(headers, place, [*options, "--output-dir", folder / side]))
    return [*commands, op_tools_line("compare", "--confirm", str(folder / "a"), str(folder / "b"))]
