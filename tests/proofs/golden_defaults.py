"""Defaults that depend on the dtype: which operators have them, and that OpAutoCompare's float64 runs use the call's.

    ./dev prove golden_defaults [--samples N] [--ops REGEX]

First, of every operator of torch's test database (op_db), each number that a call may leave out is given explicitly, as
the numbers that describe a dtype (eps, the largest number, ...): where the result stays the same bits in float32 and in
float64, and float32's number changes the float64 result, the default depends on the dtype. op_tools must know each such
parameter (src/hooks/op_traits.cpp).

Second, the samples run in float32 under OpAutoCompare: as they are, made small, with infinities and NaN, and as matrices
of low rank. These are where hidden numbers of a dtype decide. Failures that are known have a name and a cause below.
Ends with status 1 if a parameter is unknown to op_tools, or a failure is not known.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import _program
import torch
from _op_database import operators, samples_of
from _workers import Progress
from torch.utils._pytree import tree_flatten, tree_map_only

import op_tools

CANDIDATES: dict[str, Callable[[torch.finfo, torch.Tensor], float]] = {
    "eps": lambda info, x: info.eps,
    "eps x size": lambda info, x: info.eps * max((1, *x.shape[-2:])),
    "largest": lambda info, x: info.max,
    "lowest": lambda info, x: info.min,
    "smallest normal": lambda info, x: info.tiny,
    "root of eps": lambda info, x: math.sqrt(info.eps),
}

# Reported, and why.
KNOWN = {
    "fft.fft2": "infinities of several terms become NaN in the order in which a kernel adds them",
    "fft.fftn": "infinities of several terms become NaN in the order in which a kernel adds them",
    "fft.ifft2": "infinities of several terms become NaN in the order in which a kernel adds them",
    "fft.ifftn": "infinities of several terms become NaN in the order in which a kernel adds them",
    "linalg.cholesky_ex": "a factorization that fails (info > 0) leaves old values",
    "nn.functional.tanhshrink": "rightly: torch's x - tanh(x) in float32 loses all digits of small numbers",
    "nn.functional.triplet_margin_loss": "a difference of two distances, 1.4 times its limit",
    "nn.functional.gelu": "rightly: torch's gelu(-inf) is NaN in float32",
    **{
        f"special.{name}": "rightly: its recurrence overflows in float32 and gives NaN, where float64 has a number"
        for name in (
            *(f"{kind}chebyshev_polynomial_{letter}" for kind in ("", "shifted_") for letter in "tuvw"),
            *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
        )
    },
}


# LAPACK ends the process, with and without op_tools, where these are given infinities or NaN.
NO_SPECIALS = {"linalg.eigvals"}


def with_specials(x: torch.Tensor) -> torch.Tensor:
    flat = x.detach().clone().reshape(-1)
    for place, value in enumerate((math.inf, -math.inf, math.nan)[: flat.numel()]):
        flat[place] = value
    return flat.reshape(x.shape)


def of_low_rank(x: torch.Tensor) -> torch.Tensor:
    if x.dim() < 2 or x.numel() == 0:
        return x
    return x[..., :, :1] @ x[..., :1, :]


INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as they are": lambda x: x,
    "small": lambda x: x * 1e-3,
    "with specials": with_specials,
    "of low rank": of_low_rank,
}


def float_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def parts(sample: Any, dtype: torch.dtype, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, Any, Any]:
    """Input, args and kwargs of a sample, changed (dense tensors) and then cast."""

    def cast(x: torch.Tensor) -> torch.Tensor:
        x = x.detach()
        if x.dtype != torch.float32:
            return x.clone()
        return (x if x.is_nested or x.layout is not torch.strided else change(x)).to(dtype)

    inputs = (sample.input, sample.args, sample.kwargs)
    return tree_map_only(torch.Tensor, cast, inputs)


def run(op: Any, inputs: tuple[Any, Any, Any], **more: float) -> list[torch.Tensor] | None:
    value, args, kwargs = inputs
    try:
        result = op(value, *args, **{**kwargs, **more})
    except Exception:
        return None
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def same(a: list[torch.Tensor] | None, b: list[torch.Tensor] | None) -> bool:
    return (
        a is not None
        and b is not None
        and len(a) == len(b)
        and all(
            x.shape == y.shape and torch.equal(x.nan_to_num(1.5), y.nan_to_num(1.5)) for x, y in zip(a, b, strict=True)
        )
    )


def open_parameters(op: Any, sample: Any) -> Iterator[str]:
    """Parameters of the operator that may be a number or nothing, where the sample gives none of them: a default may
    depend on the other arguments."""
    names = {op.name.replace(".", "_"), op.name.rsplit(".", 1)[-1], op.aten_name or ""}
    names_of_floats = set()
    for name in names - {""}:
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            names_of_floats |= {
                argument.name
                for argument in schema.arguments
                if str(argument.type) in ("Optional[float]", "Optional[number]")
            }
    try:
        parameters = inspect.signature(op.op).parameters.values()
        names_of_floats |= {one.name for one in parameters if one.default is None}
    except (TypeError, ValueError):
        pass  # a builtin: its schema says it
    if not names_of_floats & {name for name, value in sample.kwargs.items() if value is not None}:
        yield from sorted(names_of_floats)


class Default:
    """The possible default of a parameter, after some samples."""

    def __init__(self) -> None:
        self.possible = set(CANDIDATES)
        self.matters: set[str] = set()  # float32's number gives something else in float64

    def look(self, op: Any, sample: Any, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        tensors = [leaf for leaf in tree_flatten((sample.input, sample.args))[0] if float_tensor(leaf)]
        dtypes = (torch.float32, torch.float64)
        left_out = {dtype: run(op, parts(sample, dtype, change)) for dtype in dtypes}
        if not tensors or None in left_out.values():
            return
        for what in sorted(self.possible):
            values = {dtype: CANDIDATES[what](torch.finfo(dtype), tensors[0]) for dtype in dtypes}
            if not all(same(left_out[d], run(op, parts(sample, d, change), **{name: values[d]})) for d in dtypes):
                self.possible.discard(what)
            elif not same(
                left_out[torch.float64], run(op, parts(sample, torch.float64, change), **{name: values[torch.float32]})
            ):
                self.matters.add(what)

    def by_dtype(self) -> str:
        return " or ".join(sorted(self.possible & self.matters))


def failures(op: Any, sample: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> list[dict[str, Any]]:
    """The failures that OpAutoCompare reports of the sample in float32."""
    with tempfile.TemporaryDirectory() as folder:
        with op_tools.OpAutoCompare(output_dir=folder, max_saved=0) as tool:
            run(op, parts(sample, torch.float32, change))
        return tool.result().failures


def is_known_to_op_tools(name: str) -> bool:
    families = [names.split() for trait, _, names in op_tools._C.op_families() if trait == "has_a_default_by_dtype"]
    return any({name.replace(".", "_"), name.rsplit(".", 1)[-1]} & set(names) for names in families)


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="of each operator")
    parser.add_argument("--ops", default="", metavar="REGEX", help="only operators whose name matches")
    options = parser.parse_args()
    _program.quiet()
    warnings.simplefilter("ignore")
    chosen = {name: op for name, op in operators().items() if re.search(options.ops, name)}
    progress, known, trouble, calls = Progress(len(chosen), "golden_defaults"), Counter[str](), 0, 0
    defaults: dict[tuple[str, str], Default] = {}
    for name, op in chosen.items():
        progress.step(name)
        samples = []
        with contextlib.suppress(Exception):  # some can only be made for a GPU
            samples = samples_of(op, torch.float32, options.samples, gradients=False, number=3)
        for sample, (inputs, change) in itertools.product(samples, INPUTS.items()):
            if name in NO_SPECIALS and change is with_specials:
                continue
            for parameter in open_parameters(op, sample):
                defaults.setdefault((name, parameter), Default()).look(op, sample, parameter, change)
            calls += 1
            for row in failures(op, sample, change):
                if name in KNOWN:
                    known[name] += 1
                    continue
                trouble += 1
                print(f"{name}, {inputs}: {row['what']} {row['kind']} {row['reason']} {row['number']} > {row['limit']}")
    by_dtype = {key: default.by_dtype() for key, default in sorted(defaults.items()) if default.by_dtype()}
    for (operator, parameter), what in by_dtype.items():
        unknown = not is_known_to_op_tools(chosen[operator].name)
        trouble += unknown
        text = f"{operator}: {parameter} is {what} of the dtype"
        print(text + (", which op_tools does not know" if unknown else ""))
    for name, count in known.items():
        print(f"{name}: {count} failures, {KNOWN[name]}")
    print(f"{len(chosen)} operators, {calls} calls: {len(by_dtype)} defaults by dtype, {trouble} findings")
    return 1 if trouble else 0


if __name__ == "__main__":
    sys.exit(main())
