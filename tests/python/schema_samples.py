"""Calls of torch's operators with arguments that are made from their schemas alone: the first that the CPU accepts."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

SHAPES = [(4, 4), (3,), (2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4), ()]
DTYPES = [torch.float32, torch.int64, torch.bool, torch.complex64]
INDEX_NAMES = ("index", "ind", "indices", "target", "positions", "batch1_indices", "offsets", "size")
"""Parameters that are integers where the others are floats."""


class NoArgumentError(Exception):
    """There is no argument of such a type."""


def writing_operators() -> Iterator[Any]:
    """Every overload that writes a tensor."""
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is None or not any(is_written(argument) for argument in schema.arguments):
            continue
        overload = getattr(packet, schema.overload_name or "default", None)
        if isinstance(overload, torch._ops.OpOverload):
            yield overload


def is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write and "Tensor" in str(argument.type)


def small_numbers(dtype: torch.dtype, shape: tuple[int, ...], salt: int) -> torch.Tensor:
    """Small numbers, valid as places, and other ones for each `salt`."""
    count = math.prod(shape)
    numbers = torch.arange(salt, salt + count).reshape(shape) % 3
    return (numbers + 0.25 if dtype.is_floating_point or dtype.is_complex else numbers).to(dtype)


def argument_of(argument: Any, kind: str, dtype: torch.dtype, shape: tuple[int, ...], number: int, salt: int) -> Any:
    if kind.startswith("Optional["):
        return argument_of(argument, kind[9:-1], dtype, shape, number, salt) if is_written(argument) else None
    if kind == "Tensor":
        if argument.name in ("found_inf", "grad_scale", "inv_scale", "growth_tracker", "scale", "zero_point"):
            return torch.ones(1)
        if argument.name in INDEX_NAMES or argument.name.endswith("indices"):
            dtype = torch.int64
        if "mask" in argument.name or argument.name == "condition":
            dtype = torch.bool
        return small_numbers(dtype, shape, salt)
    if kind == "List[Tensor]":
        if argument.name.startswith("max_exp"):
            return []  # of amsgrad, which is off
        if "steps" in argument.name:
            return [torch.ones(()), torch.ones(())]
        return [small_numbers(dtype, shape, salt), small_numbers(dtype, shape, salt + 1)]
    if kind == "List[Optional[Tensor]]":
        return [small_numbers(torch.int64, (2,), salt)]
    simple = {"int": number, "number": number, "float": 0.5, "bool": False, "str": "mean", "complex": 1j}
    if kind in simple:
        return simple[kind]
    if kind == "List[int]":
        return [number] * (argument.N or max(len(shape), 1)) if number == 1 else list(shape)
    if kind in ("List[number]", "List[float]"):
        return [0.5, 0.5]
    if kind == "List[bool]":
        return [True] * (argument.N or 3)
    raise NoArgumentError(kind)


def candidates(overload: Any) -> Iterator[Callable[[], tuple[list[Any], dict[str, Any]]]]:
    """Ways to make arguments."""
    arguments = overload._schema.arguments

    def make(
        dtype: torch.dtype, shape: tuple[int, ...], number: int, target: torch.dtype
    ) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for place, argument in enumerate(arguments):
            written = is_written(argument)
            if argument.has_default_value() and not written and argument.kwarg_only:
                continue
            if argument.has_default_value() and not written:
                value = argument.default_value
            else:
                own = target if argument.is_out else dtype
                value = argument_of(argument, str(argument.type), own, shape, number, 5 * place)
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs

    for shape, dtype, number in itertools.product(SHAPES, DTYPES, (1, 0)):
        targets = (
            [dtype]
            if not any(argument.is_out for argument in arguments)
            else [dtype, *(one for one in DTYPES if one != dtype)]
        )
        for target in targets:
            yield lambda dtype=dtype, shape=shape, number=number, target=target: make(dtype, shape, number, target)


def tensors_of(overload: Any, args: list[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Those that the call writes."""
    written = []
    for place, argument in enumerate(overload._schema.arguments):
        if not is_written(argument):
            continue
        value = kwargs.get(argument.name) if argument.kwarg_only else args[place]
        written += [
            item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, torch.Tensor)
        ]
    return written


def sample_of(overload: Any, most: int = 300) -> int | None:
    """The number of the first of `candidates` that the CPU accepts, of those that change the written tensors if there are any."""
    accepted = None
    for number, make in enumerate(itertools.islice(candidates(overload), most)):
        try:
            args, kwargs = make()
            before = [one.clone() for one in tensors_of(overload, args, kwargs)]
            overload(*args, **kwargs)
        except NoArgumentError:
            return None
        except Exception:  # noqa: S112 - refused: the next candidate
            continue
        after = tensors_of(overload, args, kwargs)
        if not after:
            return None
        if any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, after, strict=True)):
            return number
        accepted = number if accepted is None else accepted
    return accepted


UNCHECKED = re.compile(
    "backward|pool|mkldnn|nested|embedding|sparse|csr|coo|sobol|upsample|pad|conv|rnn|cudnn|norm|fft|as_strided|set_|lstm|gru|quant|"
    "segment|_thnn|searchsorted|bucketize|histogram|bincount|prims|inductor|resize|attention|jagged|_pack|scatter|gather|index|take|"
    "put|ormqr|geqrf|lu_|ldl|solve|triangular|transform|cdist|pdist|grid|affine|trilinear|batch"
)
"""Operators of which some do not check their arguments, and write to memory that is not theirs."""


def found_samples() -> dict[str, int]:
    """Of every operator that is called so. Each is tried in a process of its own: some of them do not check their arguments,
    and write where they should not. Those that end their process are left out."""
    writing_wrongly = {}
    for overload in writing_operators():
        if UNCHECKED.search(str(overload)):
            continue
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os.write(writer, json.dumps(sample_of(overload)).encode())
            os._exit(0)
        os.close(writer)
        answer = os.read(reader, 100)
        os.close(reader)
        if os.waitpid(child, 0)[1] == 0 and answer not in (b"", b"null"):
            writing_wrongly[str(overload)] = int(answer)
    return writing_wrongly


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Path(sys.argv[1]).open("w") as file:
        json.dump(dict(sorted(found_samples().items())), file, indent=0)
        file.write("\n")
