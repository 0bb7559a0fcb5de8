"""Values of a case's tensors: the same bits on every machine, device, process and version of torch and numpy.

A hash in counter mode (SplitMix64) gives a 64-bit word per element: word i of a tensor depends on its key and on i, on
nothing else. Words become numbers by integer arithmetic and by single additions, multiplications and conversions, each of
which IEEE 754 defines to the last bit. Logarithms and cosines (as in Box-Muller) differ between libraries and are not used:
"normal" is a sum of four uniform numbers, with the standard deviation 1.15 and no value beyond 4.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from .._base.core import Error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.uint64]

# Longer tensors repeat themselves with this period: a prime, so that no tile, row or block of a kernel begins where an earlier
# block began. Making the words of the largest weights of models would take seconds each.
PERIOD = 1_048_583

ADVERSARIAL = ("cancellation", "large-sum", "denormal", "nan", "inf", "boundary")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
_PACKED = "zlib:"


def key_of(case_id: str, index: int | str) -> int:
    """The key of a tensor of a case, by its index among the tensors of the call."""
    return int.from_bytes(hashlib.blake2b(f"{case_id}#{index}".encode(), digest_size=8).digest(), "little")


def words(key: int, count: int) -> Words:
    """The first words of a key. Beyond PERIOD they repeat."""
    numbers = np.arange(1, min(count, PERIOD) + 1, dtype=np.uint64)
    numbers *= np.uint64(0x9E3779B97F4A7C15)
    numbers += np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def make_values(recipe: str | tuple[Any, ...], dtype: torch.dtype, count: int, key: int) -> torch.Tensor:
    """The elements of a tensor in a row, on the CPU.

    Args:
        recipe: "normal", "uniform A B", "integers A B" (both included), "permutation", "adversarial:KIND", or the data
            itself: numbers, or "zlib:" and base64 of the packed bytes.
        dtype: of the tensor.
        count: number of elements.
        key: of :func:`key_of`.

    Raises:
        op_tools.Error: there is no such recipe, it does not fit the dtype, or the data has another size.
    """
    if not isinstance(recipe, str):
        return _inline(recipe, dtype, count)
    if recipe.startswith(_PACKED):
        return _unpacked(recipe, dtype, count)
    if count == 0:
        return torch.empty(0, dtype=dtype)
    name, *numbers = recipe.split()
    if name == "permutation":
        return torch.from_numpy(_permutation(key, count)).to(dtype)
    if dtype.is_complex:
        part = torch.float32 if dtype in (torch.complex32, torch.complex64) else torch.float64
        parts = [make_values(recipe, part, count, key ^ salt) for salt in (0, 0x5851F42D4C957F2D)]
        return torch.complex(parts[0], parts[1]).to(dtype)
    block = _block_of_values(recipe, name, numbers, dtype, words(key, count))
    return block if count == block.numel() else _repeated(block, count)


def _repeated(block: torch.Tensor, count: int) -> torch.Tensor:
    """The row again and again, up to a number of elements."""
    whole = torch.empty(count, dtype=block.dtype)
    for at in range(0, count, block.numel()):
        part = whole[at : at + block.numel()]
        part.copy_(block[: part.numel()])
    return whole


def fills_gaps(recipe: str) -> bool:
    """Whether the elements do not depend on one another, so that any number of them can be made."""
    return recipe.startswith(("normal", "uniform", "integers", "adversarial:"))


def packed(tensor: torch.Tensor) -> str | tuple[Any, ...]:
    """The elements of a tensor as a recipe that gives exactly these."""
    if tensor.is_meta:
        raise Error("tensors without values")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    whole = flat.dtype in _INTEGERS or flat.dtype is torch.bool
    if flat.numel() <= 16 and (whole or flat.dtype in (torch.float32, torch.float64)):
        numbers = flat.to(torch.int64 if whole and flat.dtype is not torch.uint64 else flat.dtype).tolist()
        if all(math.isfinite(one) and not (one == 0 and math.copysign(1, one) < 0) for one in numbers):
            return tuple(int(one) if whole else one for one in numbers)
    content = bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
    return _PACKED + base64.b64encode(zlib.compress(content, 9)).decode()


def _unpacked(recipe: str, dtype: torch.dtype, count: int) -> torch.Tensor:
    size = count * dtype.itemsize
    try:
        # Data that unpacks to more than its tensor is refused before it fills the memory.
        unpack = zlib.decompressobj()
        content = unpack.decompress(base64.b64decode(recipe[len(_PACKED) :], validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise Error(f"values: the packed data is damaged: {error}") from None
    if len(content) != size:
        raise Error(f"values: the packed data has another size than the {count} elements of {dtype}")
    if dtype is torch.bool and any(one > 1 for one in content):
        raise Error("values: the packed data holds values that are no bools")
    return torch.frombuffer(bytearray(content), dtype=dtype) if count else torch.empty(0, dtype=dtype)


def _inline(numbers: tuple[Any, ...], dtype: torch.dtype, count: int) -> torch.Tensor:
    if len(numbers) != count:
        raise Error(f"values: {len(numbers)} numbers for {count} elements")
    try:
        return torch.tensor(numbers, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Error(f"values: {error}") from None


def _permutation(key: int, count: int) -> NDArray[np.int64]:
    if count <= PERIOD:
        return np.argsort(words(key, count), kind="stable")
    order = np.argsort(words(key, PERIOD), kind="stable")
    whole = np.arange(count, dtype=np.int64)
    whole[:PERIOD] = order  # the others stay where they are
    return whole


def _block_of_values(recipe: str, name: str, numbers: list[str], dtype: torch.dtype, drawn: Words) -> torch.Tensor:
    adversary = name.removeprefix("adversarial:")
    floating = dtype.is_floating_point
    try:
        if name == "integers" or dtype is torch.bool:
            low, high = (int(one) for one in numbers) if numbers else (0, 1)
            return _drawn_integers(drawn, low, high, dtype)
        if name == "uniform" and floating:
            return _rounded(_uniform(drawn, *(float(one) for one in numbers)), dtype)
        if name == "normal" and floating and not numbers:
            return _rounded(_normal(drawn), dtype)
        if name.startswith("adversarial:") and (floating or adversary == "boundary"):
            return _KINDS[adversary](drawn, dtype)
    except (ValueError, TypeError, KeyError, OverflowError):
        pass
    raise Error(
        f"values: {recipe!r} is no recipe for {dtype}: normal, uniform A B (floats), integers A B, permutation, "
        f"adversarial:{'|'.join(ADVERSARIAL)}"
    )


def _rounded(values: NDArray[np.float64], dtype: torch.dtype) -> torch.Tensor:
    """To the nearest number of a floating dtype. The conversions to bfloat16 and to the 8-bit types go by way of float32."""
    tensor = torch.from_numpy(values)
    if dtype is torch.float64:
        return tensor
    if dtype is torch.float16:
        return torch.from_numpy(values.astype(np.float16))
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def _normal(drawn: Words) -> NDArray[np.float64]:
    """50-bit integers, so that float64 is filled to its last digits, times a power of two."""
    sixteen = drawn.view(np.uint16)
    total = sixteen.reshape(-1, 4).sum(axis=1, dtype=np.int64)  # a sum: the same for either order of bytes
    total -= 2 * 65535
    total <<= 32
    total += ((drawn * np.uint64(0xDA942042E4DD58B5)) >> np.uint64(32)).astype(np.int64)
    values: NDArray[np.float64] = total.astype(np.float64)
    values *= 2.0**-47
    return values


def _uniform(drawn: Words, low: float, high: float) -> NDArray[np.float64]:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError
    values: NDArray[np.float64] = (drawn >> np.uint64(11)).astype(np.float64)
    values *= 2.0**-53
    values *= high - low
    values += low
    return values


def _drawn_integers(drawn: Words, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    if high < low:
        raise ValueError
    span = high - low + 1
    if span <= 2**32:
        integers = ((drawn >> np.uint64(32)) * np.uint64(span)) >> np.uint64(32)
    elif span < 2**64:
        integers = drawn % np.uint64(span)
    else:
        integers = drawn
    integers = integers + np.uint64(low % 2**64)  # wraps: two's complement
    if dtype is torch.uint64:
        return torch.from_numpy(integers)
    return torch.from_numpy(integers.view(np.int64)).to(dtype)


# --- Adversarial distributions ------------------------------------------------------------------------------------------


def _cancellation(drawn: Words, dtype: torch.dtype) -> torch.Tensor:
    """Large numbers in pairs that nearly cancel."""
    values = _normal(drawn)
    large = values[0::2] * 256.0
    values[0::2] = large
    small = values[1::2]
    values[1::2] = small - large[: small.size]
    return _rounded(np.ascontiguousarray(values), dtype)


def _large_sum(drawn: Words, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of the same sign that lie close together: a sum outgrows narrow types, a variance cancels."""
    low = 1000.0 if dtype.itemsize > 1 else 16.0
    return _rounded(_uniform(drawn, low, low + 16.0), dtype)


def _denormal(drawn: Words, dtype: torch.dtype) -> torch.Tensor:
    fraction = round(-math.log2(torch.finfo(dtype).eps))
    bits = drawn >> np.uint64(64 - fraction)
    bits |= (drawn & np.uint64(1)) << np.uint64(8 * dtype.itemsize - 1)
    carrier = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
    return torch.from_numpy(bits.astype(carrier)).view(dtype)


def _strewn(special: float) -> Callable[[Words, torch.dtype], torch.Tensor]:
    def make(drawn: Words, dtype: torch.dtype) -> torch.Tensor:
        values = _normal(drawn)
        values[drawn % np.uint64(7) == 0] = special
        if special == math.inf:
            values[drawn % np.uint64(11) == 0] = -special
        return _rounded(values, dtype)

    return make


def _boundary(drawn: Words, dtype: torch.dtype) -> torch.Tensor:
    place = ((drawn >> np.uint64(32)) * np.uint64(8)) >> np.uint64(32)
    index = torch.from_numpy(place.astype(np.int64))
    if dtype.is_floating_point:
        facts = torch.finfo(dtype)
        floats = [0.0, -0.0, 1.0, -1.0, facts.max, facts.min, facts.tiny, 1 + facts.eps]
        return torch.tensor(floats, dtype=torch.float64).to(dtype)[index]
    limits = torch.iinfo(dtype)
    wanted = [0, 1, limits.max, limits.min, limits.max - 1, limits.min + 1, 2, limits.max // 2]
    content = b"".join(struct.pack("<Q", one % 2**64)[: dtype.itemsize] for one in wanted)
    table = np.frombuffer(content, dtype=f"<u{dtype.itemsize}")[place]
    return torch.from_numpy(table.copy()).view(dtype)


_KINDS: dict[str, Callable[[Words, torch.dtype], torch.Tensor]] = {
    "cancellation": _cancellation,
    "large-sum": _large_sum,
    "denormal": _denormal,
    "nan": _strewn(math.nan),
    "inf": _strewn(math.inf),
    "boundary": _boundary,
}
