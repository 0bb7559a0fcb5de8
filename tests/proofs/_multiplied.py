"""Recordings of as many ranks and steps as are asked for, made of the recording of a single rank and a few steps.

A rank of a large training repeats itself: each step has the calls of the step before, on new values. Here the last step of a real
recording is written again with the next numbers. Hashes follow from the step and the rank's place, so that ranks agree where those of a real
training do: replicas in parameters and reduced gradients, tensor-parallel ranks in the activations that they reduce. Sizes of tensors
are those of a configuration, in the metadata alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

# As src/record/recording_blocks.h and recording.h have them.
_MAGIC = b"OPREC03\n"
_MARK = 0x4B434C42
_HEADER, _ROWS, _END = 1, 2, 3
_VALUE = np.dtype(
    "u1,i1,u1,u1,<u4,<u4,<u4,<u4,<u4,<u4,<u4,<u8,(7,)<f8,(4,)<f8",
)
_VALUE.names = (
    *("origin", "dtype", "known", "by_device", "producer", "output", "name", "device", "shape", "stride", "pad"),
    *("hash", "statistics", "projections"),
)
_USE = np.dtype([("place", "<u4"), ("value", "<u4")])
_CALL = np.dtype("<u8,<u8,<i8," + "<u4," * 12 + "u1,u1,u1,V5")
_CALL.names = (
    *("id", "forward_id", "step", "op", "module", "line", "error", "scalars", "random", "thread", "module_call"),
    *("pass", "first_use", "inputs", "outputs", "level", "phase", "grad_enabled", "pad"),
)
_PARAMETER = 2  # an origin

Key = tuple[int, ...]


class Owner(IntEnum):
    """The ranks that have the same bits."""

    RANK = 0
    GROUP = 1
    """Of tensor parallelism."""
    REPLICAS = 2


@dataclass(frozen=True)
class Role:
    """How a rank differs from the template's."""

    rank: int
    world: int
    keys: dict[Owner, Key]
    """What the bits of its values follow from."""
    groups: dict[str, str]
    """The texts of its process groups, by those of the template."""


@dataclass(frozen=True)
class Change:
    """How a run differs from another run of the same program."""

    rounds: bool = False
    """All values have other bits, and numbers that are equal but for rounding."""
    sick: tuple[int, int] | None = None
    """Rank and step in which an operator has a wrong result."""
    sick_op: str = "gelu"


def _block(kind: int, payload: bytes) -> bytes:
    head = struct.pack("<IIQ", kind, _MARK, len(payload))
    checksum = xxhash.xxh3_64_intdigest(payload, seed=xxhash.xxh3_64_intdigest(head))
    return head + struct.pack("<Q", checksum) + payload


def _rows_block(tables: _Tables, strings: list[str], lists: list[list[int]]) -> bytes:
    texts = [text.encode() for text in strings]
    counts = [len(texts), len(lists), len(tables.values), len(tables.uses), len(tables.calls), 0]
    parts = [
        struct.pack("<6I", *counts),
        np.array([*map(len, texts), *map(len, lists)], "<u4").tobytes(),
        tables.values.tobytes(),
        tables.uses.tobytes(),
        tables.calls.tobytes(),
        np.array([size for sizes in lists for size in sizes], "<i8").tobytes(),
        *texts,
    ]
    return _block(_ROWS, b"".join(parts))


@dataclass
class _Tables:
    values: np.ndarray
    uses: np.ndarray
    calls: np.ndarray

    def copy(self, value: int = 0, use: int = 0, call: int = 0) -> _Tables:
        return _Tables(self.values[value:].copy(), self.uses[use:].copy(), self.calls[call:].copy())


class Template:
    """A real recording, whose last step is repeated.

    Args:
        path: of a recording without hashes of rows, whose last two steps have the same calls.
        sizes: sizes of its tensors, and those that stand in their place.
    """

    def __init__(self, path: Path, sizes: dict[int, int]) -> None:
        self.header: dict[str, Any] = {}
        self.strings, self.lists = [""], [[]]  # type: list[str], list[list[int]]
        self._tables = self._read(path)
        self.lists = [[sizes.get(size, size) for size in some] for some in self.lists]
        calls, uses = self._tables.calls, self._tables.uses["value"]
        self.steps = int(calls["step"].max()) + 1
        before, last = (int(np.argmax(calls["step"] == step)) for step in (self.steps - 2, self.steps - 1))
        self.calls_of_step = len(calls) - last
        first_uses = [int(calls["first_use"][call]) for call in (before, last)]
        values = [int(uses[:use].max()) + 1 for use in first_uses]
        self._begin = (values[1], first_uses[1], last)  # of the last step
        self._moves = (len(self._tables.values) - values[1], len(uses) - first_uses[1], self.calls_of_step)
        if last - before != self.calls_of_step or values[1] - values[0] != self._moves[0]:
            raise ValueError(f"{path}: the last two steps differ")
        # What moves on with the steps: values and makers of this step and the last. The others are those of the beginning.
        self._use_moves = uses[first_uses[1] :] != uses[first_uses[0] : first_uses[1]]
        producers = self._tables.values["producer"]
        self._producer_moves = producers[values[1] :] != producers[values[0] : values[1]]
        self._owners = self._give_owners()
        self._step_of_value = np.full(len(self._tables.values), -1, "i8")
        for step in range(self.steps):
            some = calls[calls["step"] == step]
            begin, end = int(some["first_use"][0]), int((some["first_use"] + some["inputs"] + some["outputs"])[-1])
            fresh = uses[begin:end][self._step_of_value[uses[begin:end]] < 0]
            self._step_of_value[fresh] = step

    def _read(self, path: Path) -> _Tables:
        content, at = path.read_bytes(), len(_MAGIC)
        parts = []
        while at < len(content):
            kind, _, size, _ = struct.unpack_from("<IIQQ", content, at)
            payload = content[at + 24 : at + 24 + size]
            at += 24 + size
            if kind == _HEADER:
                self.header = json.loads(payload)
            elif kind == _ROWS:
                parts.append(self._read_rows(payload))
        return _Tables(*(np.concatenate(tables) for tables in zip(*parts, strict=True)))

    def _read_rows(self, payload: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        texts, lists, *counts, _ = struct.unpack_from("<6I", payload)
        at = 24
        tables = []
        for dtype, count in zip(("<u4", "<u4", _VALUE, _USE, _CALL), (texts, lists, *counts), strict=True):
            tables.append(np.frombuffer(payload, dtype, count, at))
            at += tables[-1].nbytes
        for length in map(int, tables[1]):
            self.lists.append(np.frombuffer(payload, "<i8", length, at).tolist())
            at += 8 * length
        for length in map(int, tables[0]):
            self.strings.append(payload[at : at + length].decode())
            at += length
        return tables[2], tables[3], tables[4]

    def _give_owners(self) -> np.ndarray:
        """By value its owner. Results of collectives become those that ranks with equal inputs get."""
        values, uses = self._tables.values, self._tables.uses["value"]
        owners = np.full(len(values), Owner.GROUP, "u1")
        owners[values["origin"] == _PARAMETER] = Owner.REPLICAS
        # Parameters are made before the first data.
        data = next(call for call in self._tables.calls if self.strings[call["op"]] == "torch.randn")
        owners[: uses[int(data["first_use"])]] = Owner.REPLICAS
        for call in self._tables.calls:
            first, inputs, outputs = (int(call[name]) for name in ("first_use", "inputs", "outputs"))
            read, written = uses[first : first + inputs], uses[first + inputs : first + inputs + outputs]
            group = json.loads(self.strings[call["scalars"]] or "{}").get("kwargs.group", "")[:1]
            if group == "2":  # as Place.groups() makes them: tensor, experts, data
                for name in ("known", "hash", "statistics", "projections"):
                    values[name][written[0]] = values[name][read[-1]]
            of_inputs = set(owners[read].tolist())
            if self.strings[call["op"]] == "torch.randn":  # data
                of_inputs = {Owner.GROUP}
            owner = of_inputs.pop() if len(of_inputs) == 1 else Owner.RANK
            owners[written] = {"1": Owner.GROUP, "2": Owner.RANK, "3": Owner.REPLICAS}.get(group, owner)
        return owners

    def _mixed(self, tables: _Tables, keys: np.ndarray, change: Change) -> None:
        known = tables.values["hash"] != 0
        tables.values["hash"][known] ^= keys[known]
        if change.rounds:
            tables.values["projections"] *= 1 + 2.0**-23

    def _blocks(self, role: Role, steps: int, change: Change) -> Iterator[bytes]:
        def keys(step: int) -> list[int]:
            words = ((*role.keys[owner], step, int(owner), int(change.rounds)) for owner in Owner)
            return [xxhash.xxh3_64_intdigest(repr(word).encode()) for word in words]

        strings = [role.groups.get(text, text) for text in self.strings]
        tables = self._tables.copy()
        by_step = np.array([keys(step) for step in range(self.steps)], "u8")
        self._mixed(tables, by_step[self._step_of_value, self._owners], change)
        yield _rows_block(tables, strings[1:], self.lists[1:])
        tables = self._tables.copy(*self._begin)
        original = tables.values.copy()
        forward = tables.calls["forward_id"] != 0
        ids = int(tables.calls["id"][-1]) - int(self._tables.calls["id"][self._begin[2] - 1])
        values, uses, calls = self._moves
        for step in range(self.steps, steps):
            for name in ("known", "hash", "statistics", "projections"):
                tables.values[name] = original[name]
            tables.values["producer"][self._producer_moves] += np.uint32(calls)
            tables.uses["value"][self._use_moves] += np.uint32(values)
            tables.calls["first_use"] += np.uint32(uses)
            tables.calls["step"] += 1
            tables.calls["id"] += np.uint64(ids)
            tables.calls["forward_id"][forward] += np.uint64(ids)
            self._mixed(tables, np.array(keys(step), "u8")[self._owners[self._begin[0] :]], change)
            if (role.rank, step) == change.sick:
                self._make_sick(tables, change.sick_op)
            yield _rows_block(tables, [], [])

    def _make_sick(self, tables: _Tables, op: str) -> None:
        call = self._tables.calls[self._begin[2] :][
            [self.strings[name].endswith(f".{op}") for name in tables.calls["op"]].index(True)
        ]
        result = int(self._tables.uses["value"][int(call["first_use"]) + int(call["inputs"])]) - self._begin[0]
        tables.values["hash"][result] ^= np.uint64(1 << 40)
        tables.values["statistics"][result] *= 2
        tables.values["projections"][result] *= 2

    def write(self, path: Path, role: Role, steps: int, change: Change) -> int:
        """Writes the recording of a rank; returns its calls."""
        header = {**self.header, "rank": role.rank, "world_size": role.world, "pid": 100_000 + role.rank}
        with path.open("wb") as file:
            file.write(_MAGIC + _block(_HEADER, json.dumps(header).encode()))
            file.writelines(self._blocks(role, steps, change))
            file.write(_block(_END, b""))
        return len(self._tables.calls) + (steps - self.steps) * self.calls_of_step


def write_run(
    folder: Path, template: Template, roles: Callable[[int], Role], world: int, steps: int, change: Change | None = None
) -> int:
    """The recordings of all ranks of a run; returns their calls."""
    folder.mkdir(parents=True)
    ranks = range(world)
    return sum(
        template.write(folder / f"rank{rank}-{100_000 + rank}.oprec", roles(rank), steps, change or Change())
        for rank in ranks
    )
