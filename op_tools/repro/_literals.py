"""Python expressions for the values of a call, as text of a program.

Values come from a file that anyone may have made. Strings and names become code only through repr() or after they have been
found to be identifiers; every tensor's expression is evaluated once here and must give the same bits.
"""

from __future__ import annotations

import keyword
import math
import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch

INLINE = 400  # elements of all tensors together that stand in the script
_WIDTH = 110
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_REALS = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


def comment(text: str) -> str:
    """Text that stays inside a comment or a docstring, whatever is in it."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    return shown.replace("\\", "/").replace('"', "'")


def dotted(parts: list[str]) -> str:
    """torch.ops.aten.add.Tensor; a part that is a word of Python goes through getattr. Names that are no identifiers raise."""
    text = parts[0]
    for part in parts[1:]:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", part):
            raise ValueError(f"{part!r} is no name")
        text = f"getattr({text}, {part!r})" if keyword.iskeyword(part) else f"{text}.{part}"
    return text


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.dtype == other.dtype and tensor.shape == other.shape and bytes_of(tensor) == bytes_of(other)


def bytes_of(flat: torch.Tensor) -> bytes:
    if not flat.numel():
        return b""
    # Not contiguous(): it leaves a single element its stride, and a view as bytes wants 1.
    return bytes(flat.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy())


def real_numbers(flat: torch.Tensor) -> list[str]:
    """The shortest decimals that give these numbers again; NaN and infinities by name."""
    texts = ["nan"] * flat.numel()
    values = flat.to(torch.float64).tolist()
    open_ = [i for i, value in enumerate(values) if not math.isnan(value)]
    for digits in range(1, 18):
        tried = [f"{values[i]:.{digits}g}" for i in open_]
        restored = torch.tensor([float(text) for text in tried], dtype=torch.float64).to(flat.dtype)
        fits = restored.to(torch.float64).tolist()
        for i, text, value in zip(open_, tried, fits, strict=True):
            texts[i] = text
            if value == values[i]:
                continue
            texts[i] = repr(values[i])
        open_ = [i for i, value in zip(open_, fits, strict=True) if value != values[i]]
        if not open_:
            break
    return [text if "." in text or "e" in text or not text.lstrip("-").isdecimal() else text + "." for text in texts]


def _wrapped(items: list[str]) -> str:
    text = "[" + ", ".join(items) + "]"
    if len(text) <= _WIDTH - 30:
        return text
    lines = textwrap.wrap(", ".join(items), _WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    return "[\n        " + "\n        ".join(lines) + ",\n    ]"


def _evaluated(text: str) -> torch.Tensor | None:
    """The value of the expression: it holds numbers that this module has written, and nothing of a file."""
    try:
        value = eval(text, {"torch": torch, "inf": math.inf, "nan": math.nan})  # noqa: S307
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return None
    return value if isinstance(value, torch.Tensor) else None


def flat_tensor(flat: torch.Tensor) -> str:
    """An expression for a tensor of one dimension that has the same bits."""
    dtype, count = str(flat.dtype), flat.numel()
    for text in _candidates(flat, dtype, count):
        restored = _evaluated(text)
        if restored is not None and same_bits(restored, flat):
            return text
    raise ValueError(f"{dtype} has no form in a script")


def _candidates(flat: torch.Tensor, dtype: str, count: int) -> list[str]:
    texts = []
    real = _REALS.get(flat.dtype)
    if real is not None:
        numbers = real_numbers(flat.contiguous().view(real))
        texts.append(f"torch.tensor({_wrapped(numbers)}, dtype={real}).view({dtype})")
    elif flat.dtype.is_floating_point:
        numbers = real_numbers(flat)
        if count > 2 and len(set(numbers)) == 1:
            texts.append(f"torch.full(({count},), {numbers[0]}, dtype={dtype})")
        texts.append(f"torch.tensor({_wrapped(numbers)}, dtype={dtype})")
    else:
        numbers = [str(one) for one in flat.tolist()]
        if count > 2 and len(set(numbers)) == 1:
            texts.append(f"torch.full(({count},), {numbers[0]}, dtype={dtype})")
        texts.append(f"torch.tensor({_wrapped(numbers)}, dtype={dtype})")
    size = min(flat.element_size(), 8)
    bits = [str(one) for one in flat.contiguous().view(_INTEGERS[size]).tolist()]
    texts.append(f"torch.tensor({_wrapped(bits)}, dtype={_INTEGERS[size]}).view({dtype})")
    return texts


def elements_to_write(flat: torch.Tensor) -> int:
    """How many numbers the script would have for it."""
    if flat.numel() < 2:
        return flat.numel()
    bits = flat.contiguous().view(torch.uint8).view(flat.numel(), -1)
    return 1 if bool((bits == bits[0]).all()) else flat.numel()


def expression(value: Any, tensor: Callable[[torch.Tensor], str]) -> str:
    """An expression for an argument. `tensor` names the tensors; `device` is a name of the script."""

    def of(item: Any) -> str:
        return expression(item, tensor)

    if isinstance(value, torch.Tensor):
        return tensor(value)
    if value is None or isinstance(value, bool | int | str | bytes) or value is Ellipsis:
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({of(value.real)}, {of(value.imag)})"
    if isinstance(value, torch.device):
        return "torch.device(device)" if value.type != "meta" else repr(value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
        return str(value)
    if isinstance(value, slice):
        return f"slice({of(value.start)}, {of(value.stop)}, {of(value.step)})"
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)!r})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{of(key)}: {of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, torch.Generator):
        return "torch.Generator(device).manual_seed(0)"
    if isinstance(value, set):
        return "{" + ", ".join(map(of, value)) + "}" if value else "set()"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(of, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(of, value)) + "]"
    raise ValueError(f"{type(value).__name__} has no form in a script")
