"""Writes our captures in the formats of other tools."""

from __future__ import annotations

import linecache
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .._base.captured_calls import CapturedCall, load_call
from .._base.checks import checked_choice
from .._base.core import Error, export_calls, find_calls
from .._base.optional_parts import Group, load_part, part_names
from ._files import extra
from ._model import leaves
from ._msprobe_writer import MsprobeWriter
from ._names import their_name
from ._statistics import array_of
from ._troubleshooter_writer import STATISTICS, ApiDumpWriter


@dataclass
class Exported:
    """The result of an export."""

    calls: int = 0
    """How many calls are in the files."""
    problems: list[str] = field(default_factory=list)
    """Calls that could not be exported, and why."""


@dataclass(frozen=True)
class Captured:
    """A captured call that is exported."""

    path: str
    """Its folder."""
    call: CapturedCall

    @property
    def rank(self) -> int:
        return int(self.call.meta.get("rank", 0))

    @property
    def step(self) -> int:
        return int(self.call.meta.get("step", 0))


def export_captures(source: str | os.PathLike[str], target: str | os.PathLike[str], format: str) -> Exported:
    """Writes captured calls in another tool's format.

    Args:
        source: a call's folder, any folder above, or a container calls.zip.
        target: the folder to write to; made where it is missing, and refused if anything is in it.
        format: "msprobe", "troubleshooter", "h5" or "npy".

    Returns:
        how many calls were written, and which could not be.

    Raises:
        op_tools.Error: the source holds no calls, or the target is not empty or cannot be written.
    """
    checked_choice("format=", format, written_formats())
    root = Path(target)
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        raise Error(f"{root}: is not empty; name a new folder")
    if Path(source).is_file():
        # A container: its calls as folders, whose files can be read apart.
        with tempfile.TemporaryDirectory() as folder:
            _, problems = export_calls(os.fsencode(source), os.fsencode(folder))
            done = export_captures(folder, target, format)
            done.problems[:0] = problems
            return done
    done = Exported()
    calls = _read_captures(source, done)
    if not calls:
        raise Error("\n".join(done.problems) or f"{os.fspath(source)}: holds no captured calls")
    try:
        root.mkdir(parents=True, exist_ok=True)
        write = _WRITERS[format] if format in _WRITERS else load_part(Group.WRITERS, format)
        write(calls, root, done)
    except OSError as error:
        raise Error(f"{error.filename or root}: {error.strerror or error}") from None
    return done


def _read_captures(source: str | os.PathLike[str], done: Exported) -> list[Captured]:
    listed, problems, _ = find_calls(os.fsencode(source))
    done.problems += problems
    calls = []
    for path, _, _, passes in listed:
        try:
            calls.append(Captured(path, load_call(path)))
        except Error as error:
            done.problems.append(str(error))
            continue
        if passes > 1:
            done.problems.append(f"{path}: {passes} backward passes, of which the first is exported")
    return sorted(calls, key=lambda one: (one.rank, one.step))


def _next_number(names: dict[str, int], name: str) -> int:
    """Counts the calls of a name from 0."""
    names[name] = names.get(name, -1) + 1
    return names[name]


def _their(captured: Captured, done: Exported, *, aten: bool) -> tuple[str, str] | None:
    kind, function = their_name(captured.call.name)
    if not kind or (kind == "Aten" and not aten) or kind == "Distributed":
        done.problems.append(f"{captured.path}: not exported: the format has no name for {captured.call.name}")
        return None
    return kind, function


def _stack(captured: Captured) -> tuple[str, ...]:
    """Lines as Python prints them, with the code where the file is here."""
    lines = []
    for text in captured.call.meta.get("stack", []):
        match = re.fullmatch(r"(.+):(\d+)\s(.+)", str(text))
        if match:
            code = linecache.getline(match[1], int(match[2])).strip()
            lines.append(f"File {match[1]}, line {match[2]}, in {match[3]}, \n {code}")
    return tuple(lines)


def _to_msprobe(calls: list[Captured], root: Path, done: Exported) -> None:
    groups: dict[tuple[int, int], list[Captured]] = defaultdict(list)
    for captured in calls:
        groups[captured.step, captured.rank].append(captured)
    for (step, rank), group in groups.items():
        writer = MsprobeWriter(root / f"step{step}" / f"rank{rank}")
        numbers: dict[str, int] = {}
        named = []
        for captured in group:
            if parts := _their(captured, done, aten=True):
                name = ".".join((*parts, str(_next_number(numbers, ".".join(parts)))))
                writer.forward(name, captured.call.args, captured.call.kwargs, captured.call.result, _stack(captured))
                named.append((name, captured.call))
                done.calls += 1
        for name, call in reversed(named):
            if call.grad_outputs is not None and call.grad_inputs is not None:
                writer.backward(name, call.grad_outputs, call.grad_inputs)
        writer.end()
        done.problems += writer.lost


def _to_troubleshooter(calls: list[Captured], root: Path, done: Exported) -> None:
    ranks: dict[int, dict[int, list[Captured]]] = defaultdict(lambda: defaultdict(list))
    for captured in calls:
        ranks[captured.rank][captured.step].append(captured)
    with_kwargs = 0
    for rank, steps in ranks.items():
        writer = ApiDumpWriter(root / f"rank{rank}", values=True, wanted=STATISTICS, filter_data=False)
        numbers: dict[str, int] = {}
        for group in steps.values():
            named = []
            for captured in group:
                if parts := _their(captured, done, aten=False):
                    number = _next_number(numbers, "_".join(parts))
                    named.append((f"{'_'.join(parts)}_{number}", captured.call))
                    writer.value(f"{named[-1][0]}_forward_input", tuple(captured.call.args))
                    writer.value(f"{named[-1][0]}_forward_output", captured.call.result)
                    writer.stack(*parts, number, _stack(captured))
                    with_kwargs += bool(captured.call.kwargs)
                    done.calls += 1
            for name, call in reversed(named):
                single = isinstance(call.result, torch.Tensor)
                for i, gradient in enumerate(call.grad_outputs or ()):
                    if gradient is not None:
                        writer.value(f"{name}_backward_input" + ("" if single else f".{i}"), gradient)
        writer.end()
    if with_kwargs:
        done.problems.append(f"{with_kwargs} calls: keyword arguments have no place in this format")


def _to_npy(calls: list[Captured], root: Path, done: Exported) -> None:
    numpy = extra("numpy", "writing .npy files")
    for captured in calls:
        call = captured.call
        folder = (
            root
            / str(captured.rank)
            / re.sub(r"::|/", ".", call.name)
            / str(call.meta.get("id", Path(captured.path).name))
        )
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"args": call.args, "result": call.result, "grad_outputs": call.grad_outputs}
        for what, tree in {**parts, "grad_inputs": call.grad_inputs, **call.kwargs}.items():
            for i, leaf in enumerate(leaves(tree)):
                if not isinstance(leaf, torch.Tensor):
                    continue
                try:
                    numpy.save(folder / f"{what}.{i}.npy", array_of(leaf))
                except Error as error:
                    done.problems.append(f"{captured.path}: {what}.{i}: not exported: {error}")
        done.calls += 1


_WRITERS: dict[str, Callable[[list[Captured], Path, Exported], None]] = {
    "msprobe": _to_msprobe,
    "troubleshooter": _to_troubleshooter,
    "npy": _to_npy,
}


def written_formats() -> tuple[str, ...]:
    """The names of the formats that are written, those of op_tools_compat among them, installed or not."""
    return (*_WRITERS, *part_names(Group.WRITERS))
