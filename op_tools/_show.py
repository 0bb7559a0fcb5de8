"""What is in a capture folder, for people: op-tools show."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import _C
from ._files import load_call

_INPUT = "input.pth"
_CONTAINER = "calls.zip"
_SHARED = "tensors"


@dataclass
class _Op:
    """What was found of one operator."""

    calls: int = 0
    backward: int = 0
    failed: int = 0
    bytes: int = 0
    signatures: set[str] = field(default_factory=set)


# The files by which results of other tools are known.
_OTHERS = {
    "summary.csv": "OpTimeMeasure: open summary.csv, calls.csv, or trace.json in chrome://tracing",
    "autocompare.csv": "OpAutoCompare: open autocompare.csv; the failed calls are in folders beside it",
    "overflow.jsonl": "OpOverflowCheck: open overflow.jsonl",
}


def _meta(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise _C.Error(f"{where}: is damaged ({error}); move the call's folder away to see the others") from None
    return meta if isinstance(meta, dict) else {}


def _stored(root: Path) -> Iterator[tuple[str, dict[str, int], dict[str, Any]]]:
    """Of each call: its folder, its files with their sizes, its meta.json (empty when there is none)."""
    containers = [root] if root.is_file() else []
    for folder, _, names in os.walk(root):  # of many calls, not all in memory at once
        if _INPUT in names:
            files = {name: Path(folder, name).stat().st_size for name in names}
            meta = Path(folder, "meta.json")
            yield folder, files, _meta(meta.read_bytes(), str(meta)) if "meta.json" in files else {}
        if _CONTAINER in names:
            containers.append(Path(folder, _CONTAINER))
    for container in sorted(containers):
        with _opened(container) as entries:
            folders: dict[str, dict[str, int]] = {}
            for entry in entries.infolist():
                folder, _, name = entry.filename.rpartition("/")
                folders.setdefault(folder, {})[name] = entry.file_size
            folders.pop(_SHARED, None)
            for folder, files in folders.items():
                text = entries.read(f"{folder}/meta.json") if "meta.json" in files else b"{}"
                yield f"{container}!{folder}", files, _meta(text, f"{container}!{folder}/meta.json")


@contextlib.contextmanager
def _opened(container: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(container) as entries:
            # The files inside are zip files, too: the last directory of one that was cut off may be theirs.
            if entries.infolist() and min(entry.header_offset for entry in entries.infolist()) > 0:
                raise zipfile.BadZipFile("it has no directory of its own at its end")
            yield entries
    except zipfile.BadZipFile as error:
        raise _C.Error(
            f"{container}: {error}: the run that wrote it was cut off; run_op_from_data reads what is whole in it"
        ) from None


def _nothing(path: Path) -> str:
    if path.is_dir():
        for name, tool in _OTHERS.items():
            for found in path.rglob(name):
                return f"{path}: holds no captured calls; {found.parent} is a result of {tool}"
        if not any(path.iterdir()):
            return f"{path}: is empty, there are no captured calls here; op-tools doctor says why that may be"
    return f"{path}: there are no captured calls here; a call's folder has a file {_INPUT}"


def _tensor(facts: dict[str, Any]) -> str:
    dtype = str(facts["dtype"]).removeprefix("torch.")
    return f"{dtype}[{', '.join(str(size) for size in facts['shape'])}]"


def _signature(meta: dict[str, Any]) -> str:
    return " ".join(_tensor(facts) for facts in meta.get("inputs", []))


def table(path: Path) -> str:
    """The calls below a folder, or in a container, by operator; most bytes first.

    Raises:
        op_tools.Error: when there is none, or a container cannot be read.
    """
    ops: dict[str, _Op] = {}
    for folder, files, meta in _stored(path):
        op = ops.setdefault(meta.get("name") or Path(folder.replace("!", "/")).parent.name, _Op())
        op.calls += 1
        op.backward += sum(name.startswith("grad_outputs") for name in files)
        op.failed += bool(meta.get("error"))
        op.bytes += sum(files.values())
        op.signatures.add(_signature(meta))
    if not ops:
        raise _C.Error(_nothing(path))
    rows = sorted(ops.items(), key=lambda item: -item[1].bytes)
    text = _C.text_table(
        [("op", False), ("calls", True), ("backward", True), ("failed", True), ("signatures", True), ("MB", True)],
        [
            [name, str(op.calls), str(op.backward), str(op.failed), str(len(op.signatures)), f"{op.bytes / 1e6:.3f}"]
            for name, op in rows
        ],
        120,
    )
    total = sum(op.bytes for op in ops.values())
    shared = _shared_bytes(path)
    beside = f" and {shared / 1e6:.1f} MB of tensors that they share" if shared else ""
    return f"{text}\n{sum(op.calls for op in ops.values())} calls of {len(ops)} ops, {total / 1e6:.1f} MB{beside}"


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 100 else text[:97] + "..."
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} stride {list(value.stride())}"
    if value.numel() and (value.dtype.is_floating_point or value.dtype in (torch.int32, torch.int64)):
        wide = value.detach().double()
        text += f"  min {wide.min():.6g}  max {wide.max():.6g}  mean {wide.mean():.6g}"
        odd = value.numel() - int(torch.isfinite(wide).sum())
        text += f"  not finite: {odd}" if odd else ""
    return text


def call(folder: Path) -> str:
    """One captured call in full.

    Raises:
        op_tools.Error: when a file of it is damaged.
    """
    one = load_call(folder)
    meta = one.meta
    lines = [one.name]

    def say(what: str, text: object) -> None:
        lines.append(f"  {what:<12} {text}")

    for key in ("schema", "aten", "error", "level", "id", "step", "rank", "torch"):
        if meta.get(key) not in (None, ""):
            say(key, meta[key])
    if "model" in meta:
        say("module", f"{meta['module'] or '(the model itself)'} of {meta['model']}")
    state = meta.get("state", {})
    if state:
        say("grad mode", "on" if state.get("grad_enabled") else "off")
    for device, dtype in state.get("autocast", {}).items():
        say("autocast", f"{device}: {dtype}")
    if meta.get("rng_consumed"):
        say("random", "the call drew random numbers; the state is saved")
    for line in meta.get("stack", []):
        say("called from", line)
    for note in meta.get("unsupported", []):
        say("not saved", f"{note['where']}: {note['type']}: {note['why']}")
    groups: list[tuple[str, Any]] = [(f"args[{i}]", value) for i, value in enumerate(one.args)]
    groups += list(one.kwargs.items())
    results = one.result if isinstance(one.result, (tuple, list)) else (one.result,)
    groups += [("result" if len(results) == 1 else f"result[{i}]", value) for i, value in enumerate(results)]
    groups += [(f"grad of output {i}", value) for i, value in enumerate(one.grad_outputs or ())]
    groups += [(f"grad of input {i}", value) for i, value in enumerate(one.grad_inputs or ())]
    lines += [f"  {name:<18} {_value(value)}" for name, value in groups]
    lines.append(f"run it again: run_op_from_data {folder} --acc_check")
    return "\n".join(lines)


def _shared_bytes(root: Path) -> int:
    """Bytes of tensors that the calls below share (dedupe)."""
    if root.is_file():
        containers, total = [root], 0
    else:
        containers = list(root.rglob(_CONTAINER))
        total = sum(file.stat().st_size for folder in root.rglob(_SHARED) for file in folder.glob("*.pth"))
    for container in containers:
        with _opened(container) as entries:
            total += sum(entry.file_size for entry in entries.infolist() if entry.filename.startswith(_SHARED + "/"))
    return total


def show(path: str) -> str:
    """One call when the path is a call's (or a file of it), else the table of what is below.

    Args:
        path: a folder, a container calls.zip, or a call in a container: calls.zip!OP/ID.

    Raises:
        op_tools.Error: when the path does not exist, or holds no captured calls.
    """
    container, bang, inside = path.partition("!")
    if bang and Path(container).is_file():
        with tempfile.TemporaryDirectory() as folder, _opened(Path(container)) as entries:
            names = [name for name in entries.namelist() if name.startswith(inside.rstrip("/") + "/")]
            if not names:
                raise _C.Error(
                    f"{path}: there is no such call in {container}; op-tools show {container} lists operators"
                )
            for name in names:
                Path(folder, name.rpartition("/")[2]).write_bytes(entries.read(name))
            return call(Path(folder)).replace(folder, path)
    found = Path(path)
    if not found.exists():
        raise _C.Error(f"{path}: there is no such folder")
    if found.suffix == ".pth":
        found = found.parent
    return call(found) if (found / _INPUT).exists() else table(found)
