"""OpInvariance names the operator and the relation that a planted fault breaks, and nothing else.

    ./dev prove invariance_faults [--trials 200] [--clean 60] [--seed 0] [--kinds ...] [--cpu] [--peers 10]

Trials: small models run on the simulated device, forward (inference) or for a training step, with a fault in a single operator:
its result depends on the size of the batch, on the position in it, on the row before, on alignment, on gaps in memory, on the length
of the sequence, on the place in it, on the number of keys that are left out, on the number of queries, on the stream, comes out otherwise in every second call, has a bit flipped in a
single call, or in each call with a probability of 1e-4 (the program then runs until it has happened). `--kinds` takes some of them. Model,
operator and kind are drawn by the trial's seed. The operator must be named with the relation that the fault breaks. A trial whose fault
changed nothing is drawn again.

Some operators of torch really are variant: a product of matrices takes another path for another number of rows. Those of each model
are found beforehand, without a fault, and each is confirmed by torch alone: the same call by hand, on rows of its inputs. Another
operator that is named in a trial, and is none of these, is a false alarm; so is a finding without a fault that torch alone does
not confirm.

Clean runs: the same models on the simulated device, with its other rounding, and on the CPU with one thread, against two.

With `--peers`: what people do otherwise says of the same programs: the test by hand of each operator, hashes of torch's DebugMode, the output.

With `--cpu`: torch's own kernels on this machine's CPU, by shape and dtype, and which of them are variant.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
import torch.nn.functional as F
from _workers import Progress
from torch import nn
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import op_tools
import op_tools.sim_device as sim

Finding = tuple[str, str]
"""(operator, relation)"""

ATTENTION = "aten::scaled_dot_product_attention"


@dataclass(frozen=True)
class Kind:
    """Of fault, and how it is planted."""

    relation: str  # which it breaks
    fault: str = ""  # of the simulated device; empty: the kind's own name
    options: Mapping[str, Any] = field(default_factory=dict)
    # The kernel in which it is planted, of torch's attention: the simulated device has none of attention. Empty: that of the operator.
    in_attention: str = ""
    is_transient: bool = False
    is_rare: bool = False  # the program runs until it has happened


KINDS = {
    "batch_size": Kind("batch"),
    "batch_position": Kind("position"),
    "misaligned": Kind("memory"),
    "every_second": Kind("repeat"),
    "bit_flip": Kind("repeat", options={"call": 0}, is_transient=True),
    "bit_flip_rate": Kind("repeat", fault="bit_flip", options={"probability": 1e-4}, is_transient=True, is_rare=True),
    "neighbour": Kind("neighbour"),
    "other_stream": Kind("stream"),
    "gaps": Kind("strides"),
    "sequence_length": Kind("sequence"),
    "row_length": Kind("padding", in_attention="aten::_softmax"),
    "token_position": Kind("shift"),
    "attention_position": Kind("shift", fault="token_position", in_attention="aten::bmm"),
    # Three sequences in a row: more weights than those of any other relation of "long attention" has.
    "packed_size": Kind(
        "packed", fault="above_size", options={"size": 2 * 3 * 3 * 32 * 32}, in_attention="aten::_softmax"
    ),
    "query_count": Kind("pieces", fault="sequence_length", in_attention="aten::bmm"),
}
MOST_DRAWS = 300
MOST_RUNS = 3000  # of a program, until a rare fault has happened
# They move values, and a fault in them would be one of every operator.
PASSED_OVER = ("aten::_copy_from", "aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense", "aten::empty")


class Decoder(nn.Module):
    """A block of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
        return self.out(x + (scores @ v).transpose(1, 2).flatten(2)).log_softmax(-1)


class Attention(nn.Module):
    """The same with torch's own attention."""

    def __init__(self, causal: bool = False, mask: torch.dtype | None = None, size: int = 4) -> None:
        super().__init__()
        self.qkv, self.causal, self.mask, self.size = nn.Linear(12, 9 * size), causal, mask, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (3, self.size)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        below = None
        if self.mask:
            below = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            if self.mask != torch.bool:
                below = torch.zeros_like(below, dtype=self.mask).masked_fill(~below, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=below, is_causal=self.causal)


class Gates(nn.Module):
    """Elementwise arithmetic, reductions along the last dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x) * torch.tanh(x) + x.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
        return torch.where(y > 0, F.gelu(y), F.silu(y)) - y.amax(-1, keepdim=True) + y.exp().sum(-1, keepdim=True).log()


def image() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5), nn.Softmax(-1)),
        lambda: torch.randn(8, 12),
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)),
        image,
    ),
    "pooling": (lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.AvgPool2d(2), nn.SiLU(), nn.GroupNorm(2, 6)), image),
    "decoder": (Decoder, lambda: torch.randint(32, (5, 7))),
    "attention": (Attention, lambda: torch.randn(4, 6, 12)),
    "causal attention": (lambda: Attention(causal=True), lambda: torch.randn(4, 6, 12)),
    "masked attention": (lambda: Attention(mask=torch.bool), lambda: torch.randn(3, 8, 12)),
    "long attention": (lambda: Attention(mask=torch.bool, size=16), lambda: torch.randn(3, 32, 12)),
    "biased attention": (lambda: Attention(mask=torch.float32), lambda: torch.randn(4, 5, 12)),
    "gates": (Gates, lambda: torch.randn(9, 11)),
    "norms": (
        lambda: nn.Sequential(nn.LayerNorm(10), nn.Hardswish(), nn.RMSNorm(10), nn.LogSoftmax(-1)),
        lambda: torch.randn(7, 10),
    ),
    "recurrent": (
        lambda: nn.Sequential(
            nn.RNN(6, 8, batch_first=True),
        ),
        lambda: torch.randn(5, 4, 6),
    ),
}


def run(model: str, seed: int, device: str, trains: bool) -> None:
    """A forward, or a training step."""
    torch.manual_seed(seed)
    make, data = MODELS[model]
    network, x = make().to(device), data().to(device)
    if not trains:
        with torch.no_grad():
            network(x)
        return
    result = network(x.requires_grad_(x.is_floating_point()))
    (result[0] if isinstance(result, tuple) else result).float().square().mean().backward()


class CallsHit(op_tools.Hook):
    """The operators in whose calls the fault changed something: an operator may run another inside (mul.Scalar runs mul.Tensor)."""

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.names: set[str] = set()

    def before(self, call: op_tools.Call) -> int:
        return self.fault.hits

    def after(self, call: op_tools.Call, state: int) -> None:
        if self.fault.hits > state:
            self.names.add(call.name)


def findings(
    model: str,
    seed: int,
    device: str,
    trains: bool,
    ops: Iterable[str] = (),
    until: Callable[[], bool] = lambda: True,
) -> op_tools.InvarianceResult:
    """Of runs until that is so. `ops`: those that are watched; none: all that torch does not make of others."""
    with tempfile.TemporaryDirectory() as folder:
        with op_tools.OpInvariance(
            level="aten",
            ops=",".join(ops),
            output_dir=folder,
            first_n_per_signature=1_000_000,
            threads=device == "cpu",
        ) as tool:
            for _ in range(MOST_RUNS):
                run(model, seed, device, trains)
                if until():
                    break
        return tool.result()


def named(result: op_tools.InvarianceResult) -> set[Finding]:
    return {(row.op, row.relation) for row in result.rows}


# --- Torch alone

# Positions of the arguments with the batch as their first dimension.
BATCH = {
    "aten::mm": (0,),
    "aten::addmm": (1,),
    "aten::bmm": (0, 1),
    "aten::convolution": (0,),
    "aten::convolution_backward": (0, 1),
    "aten::_softmax": (0,),
    "aten::_log_softmax": (0,),
    "aten::native_layer_norm": (0,),
    "aten::sum": (0,),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "aten::_scaled_dot_product_fused_attention_overrideable": (0, 1, 2),
}


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements and strides, at another alignment."""
    dense = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(dense.shape, dense.stride(), strict=True))
    memory = torch.empty(span + 1, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), 1).copy_(tensor)


def memory_order(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    """The dimensions, the outermost in memory first; how to permute them back."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    return order, [order.index(dim) for dim in range(tensor.dim())]


def dense(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Without gaps, in the memory order of the whole, as in a program."""
    order, back = memory_order(whole)
    return part.permute(order).contiguous().permute(back)


def rows_of(tensor: torch.Tensor, index: list[int]) -> torch.Tensor:
    return dense(tensor[torch.tensor(index, device=tensor.device)], tensor)


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements with room behind each row, in the memory order of the tensor; without gaps where it has some."""
    order, back = memory_order(tensor)
    inner = tensor.permute(order).contiguous()
    gaps = (
        sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        != tensor.numel()
    )
    if tensor.dim() < 2 or gaps:
        return inner.permute(back)
    place = 1 if tensor.dim() == 2 else tensor.dim() - 2
    return torch.cat([inner, inner], place).narrow(place, 0, inner.shape[place]).permute(back)


def has_sequence(function: Any, args: tuple[Any, ...], places: list[int]) -> bool:
    """The second dimension of the arguments with the batch has rows, too."""
    name = function.name().split(".")[0]
    dims = {args[place].dim() for place in places}
    if name in ("aten::_softmax", "aten::_log_softmax", "aten::sum"):
        along = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        return min(dims) > 2 and 1 not in [dim % args[0].dim() for dim in along]
    if name == "aten::native_layer_norm":
        return args[0].dim() > max(2, len(args[1]) + 1)
    if torch.Tag.pointwise not in function.tags:
        return False
    others = [value for place, value in enumerate(args) if isinstance(value, torch.Tensor) and place not in places]
    most = max(dims)
    return most > 2 and all(value.dim() < most - 1 or value.shape[value.dim() - most + 1] == 1 for value in others)


def batch_of(function: Any, args: tuple[Any, ...]) -> list[int]:
    """Positions of the arguments with the batch; of pointwise operators all of the result's shape."""
    places = BATCH.get(function.name().split(".")[0])
    if places is not None:
        return list(places)
    if torch.Tag.pointwise not in function.tags:
        return []
    dims = max((value.dim() for value in args if isinstance(value, torch.Tensor)), default=0)
    counts = [value.shape[0] for value in args if isinstance(value, torch.Tensor) and 0 < value.dim() == dims]
    return [
        place
        for place, value in enumerate(args)
        if isinstance(value, torch.Tensor) and 0 < value.dim() == dims and value.shape[0] == max(counts)
    ]


class ByHand(TorchDispatchMode):
    """Runs calls again on rows of their inputs, as a person would."""

    def __init__(self) -> None:
        super().__init__()
        self.confirmed: set[Finding] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = batch_of(function, args)
        self.run_by_threads(function, args, kwargs)
        if not places or any(isinstance(value, torch.Tensor) and value.numel() == 0 for value in args):
            return function(*args, **kwargs)
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
        result = function(*args, **kwargs)
        all_whole = [tensor.clone() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        whole, count = all_whole[0], before[places[0]].shape[0]
        if whole.dim() == 0 or whole.shape[0] != count:
            return result  # reduced along the batch

        def run_on(change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
            values = [
                change(value) if place in places else value.clone() if isinstance(value, torch.Tensor) else value
                for place, value in enumerate(before)
            ]
            again = function(*values, **kwargs)
            return [tensor for tensor in tree_leaves(again) if isinstance(tensor, torch.Tensor)]

        def differ(index: list[int], compared: int | list[int]) -> bool:
            at = torch.tensor([*range(compared)] if isinstance(compared, int) else compared, device=whole.device)
            part = run_on(lambda tensor: rows_of(tensor, index))[0][at]
            return not torch.equal(part, whole[torch.tensor(index, device=whole.device)[at]])

        name, every = function.name(), [*range(count)]
        if differ([*every[1:], 0], count):
            self.confirmed.add((name, "position"))
        for first in (0, 1):
            beside = [row if row % 2 == first else row - 1 if row else 1 for row in every]
            if count > 1 and differ(beside, every[first::2]):
                self.confirmed.add((name, "neighbour"))
        half = count // 2
        halves = count > 3 and (differ(every[:half], half) or differ(every[half:], count - half))
        if differ([0], 1) or differ(every * 2, count) or halves:
            self.confirmed.add((name, "batch"))
        if not all(map(torch.equal, run_on(apart), all_whole)):
            self.confirmed.add((name, "strides"))
        if has_sequence(function, args, places):
            length = before[places[0]].shape[1]
            half = length // 2
            pieces = [
                run_on(lambda tensor: dense(tensor[:, :half], tensor)),
                run_on(lambda tensor: dense(tensor[:, half:], tensor)),
            ]
            turned = [*range(1, length), 0]
            if not torch.equal(run_on(lambda tensor: dense(tensor[:, turned], tensor))[0], whole[:, turned]):
                self.confirmed.add((name, "shift"))
            packed = run_on(lambda tensor: tensor.reshape(1, count * length, *tensor.shape[2:]))
            same = torch.equal(torch.cat([piece[0] for piece in pieces], 1), whole) if half else True
            if not same or not torch.equal(packed[0].flatten(), whole.flatten()):
                self.confirmed.add((name, "sequence"))
        if "scaled_dot_product" in name and "backward" not in name:
            self.run_with_more_keys(function, before, kwargs, whole)
            self.run_in_pieces(function, before, kwargs, whole)
            self.run_with_padding(function, before, kwargs)
            self.run_packed(function, before, kwargs, whole)
        elsewhere = run_on(moved)
        if differ(every, count) or not all(map(torch.equal, elsewhere, all_whole)):
            self.confirmed.add((name, "memory"))
        return result

    def run_with_more_keys(self, function: Any, args: list[Any], kwargs: Any, whole: torch.Tensor) -> None:
        """Attention in causal order or with a mask, with keys that no query reads."""
        for extra in (1, args[1].shape[-2]):
            more = [torch.cat([tensor, tensor[..., :extra, :]], -2) for tensor in args[1:3]]
            options = dict(kwargs)
            if (mask := kwargs.get("attn_mask")) is not None:
                left_out = torch.zeros_like(mask) if mask.dtype == torch.bool else torch.full_like(mask, -torch.inf)
                options["attn_mask"] = torch.cat([mask, left_out[..., :extra]], -1)
            if not torch.equal(tree_leaves(function(args[0], *more, *args[3:], **options))[0], whole):
                self.confirmed.add((function.name(), "padding"))

    def run_with_padding(self, function: Any, args: list[Any], kwargs: Any) -> None:
        """Attention with padding on the left against padding on the right: the same numbers of queries and keys."""
        query, mask = args[0], kwargs.get("attn_mask")
        dropout, is_causal = [*args[3:5], 0.0, False][:2] if len(args) > 4 else (0.0, False)
        count, keys = query.shape[-2], args[1].shape[-2]
        reads = torch.ones(count, keys, dtype=torch.bool, device=query.device)
        if is_causal:
            reads = reads.tril()
        leaves_out = is_causal or mask is not None
        for extra in (1, keys):
            results = []
            for front, behind in ((0, extra), (extra, 0)):
                queries = [0] * front + [*range(count)] + [count - 1] * behind
                columns = (
                    [*range(extra)] * (front > 0) + [*range(keys)] + [i % keys for i in range(extra)] * (behind > 0)
                )
                more = [dense(query[..., queries, :], query)]
                more += [dense(tensor[..., columns, :], tensor) if leaves_out else tensor for tensor in args[1:3]]
                used = mask
                if is_causal:
                    used = torch.zeros(count, keys, dtype=query.dtype, device=query.device).masked_fill(
                        ~reads, -torch.inf
                    )
                if used is not None:
                    fill = 0 if used.dtype == torch.bool else -torch.inf
                    used = F.pad(used[..., queries, :] if used.shape[-2] > 1 else used, (front, behind), value=fill)
                    if is_causal and behind:
                        order = torch.ones(count + extra, keys + extra, dtype=torch.bool, device=query.device).tril()
                        used = torch.zeros_like(used).masked_fill(~order, -torch.inf)
                options = {**kwargs, "attn_mask": used}
                result = tree_leaves(function(*more, dropout, False, **options))[0]
                results.append(result[..., front : front + count, :])
            if not torch.equal(*results):
                self.confirmed.add((function.name(), "shift"))

    def run_packed(self, function: Any, args: list[Any], kwargs: Any, whole: torch.Tensor) -> None:
        """Attention with sequences behind each other, which a mask keeps apart."""
        query, mask = args[0], kwargs.get("attn_mask")
        dropout, is_causal = [*args[3:5], 0.0, False][:2] if len(args) > 4 else (0.0, False)
        count = min(3, len(query))
        if count < 2:
            return

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            return dense(tensor[:count].movedim(0, -3).flatten(-3, -2).unsqueeze(0), tensor)

        own = mask
        if own is None:
            own = torch.zeros(query.shape[-2], args[1].shape[-2], dtype=query.dtype, device=query.device)
            own = own.masked_fill(torch.ones_like(own, dtype=torch.bool).triu(1), -torch.inf) if is_causal else own
        nothing = 0 if own.dtype == torch.bool else -torch.inf
        rows, columns = query.shape[-2], args[1].shape[-2]
        each = [own[min(i, len(own) - 1)][None] if own.dim() == query.dim() else own for i in range(count)]
        padded = [
            F.pad(part, (i * columns, (count - 1 - i) * columns), value=nothing).expand(*part.shape[:-2], rows, -1)
            for i, part in enumerate(each)
        ]
        options = {**kwargs, "attn_mask": torch.cat(padded, -2)}
        result = tree_leaves(function(*map(pack, args[:3]), dropout, False, **options))[0]
        if not torch.equal(result, pack(whole)):
            self.confirmed.add((function.name(), "packed"))

    def run_in_pieces(self, function: Any, args: list[Any], kwargs: Any, whole: torch.Tensor) -> None:
        """Attention with the first half of its queries, with the others, and with a mask in place of the causal order."""
        query, keys = args[0], args[1].shape[-2]
        count, mask = query.shape[-2], kwargs.get("attn_mask")
        dropout, is_causal = [*args[3:5], 0.0, False][:2] if len(args) > 4 else (0.0, False)
        half = count // 2
        if half == 0:
            return
        order = torch.full((count, keys), -torch.inf, dtype=query.dtype, device=query.device).triu(1)

        def same(first: int, last: int, with_keys: int, by_mask: bool) -> bool:
            part = dense(query[..., first:last, :], query)
            rest = [dense(tensor[..., :with_keys, :], tensor) for tensor in args[1:3]]
            used = order if by_mask else mask
            if used is not None and used.shape[-2] == count:
                used = used[..., first:last, :]
            if used is not None:
                used = used[..., :with_keys].contiguous()
            options = {**kwargs, "attn_mask": used}
            result = tree_leaves(function(part, *rest, dropout, is_causal and not by_mask, **options))[0]
            return torch.equal(result, whole[..., first:last, :])

        runs = [(0, half, keys, False), (half, count, keys, is_causal)]
        if is_causal:
            runs += [(0, half, half, False), (0, count, keys, True)]
        elif mask is not None:
            read = (mask[..., :half, :] if mask.dtype == torch.bool else mask[..., :half, :] > -torch.inf).reshape(
                -1, keys
            )
            runs.append((0, half, int(read.any(0).nonzero().max()) + 1, False))
        if not all(same(*run) for run in runs):
            self.confirmed.add((function.name(), "pieces"))

    def run_by_threads(self, function: Any, args: Any, kwargs: Any) -> None:
        """A call on the CPU that writes none of its inputs and draws nothing."""
        schema = function._schema
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        if schema.is_mutable or torch.Tag.nondeterministic_seeded in function.tags or not tensors:
            return
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return
        results, before = [], torch.get_num_threads()
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append([x for x in tree_leaves(function(*args, **kwargs)) if isinstance(x, torch.Tensor)])
        # --cpu asks about two: left at a single one, no later call would be about them.
        torch.set_num_threads(before)
        if not all(map(torch.equal, *results)):
            self.confirmed.add((function.name(), "threads"))


def by_hand(model: str, seed: int, device: str, trains: bool) -> set[Finding]:
    with ByHand() as mode:
        run(model, seed, device, trains)
    return mode.confirmed


# --- Clean runs


def clean(seed: int) -> tuple[str, set[Finding], set[Finding], int]:
    """(where, findings, those that torch alone does not confirm, kept relations) of a run without a fault."""
    draw = random.Random(seed)
    model, trains = draw.choice(list(MODELS)), draw.random() < 0.5
    where = draw.choice(["sim", "sim, other rounding", "cpu"])
    device = where.split(",")[0]
    with sim.rounding(where.endswith("rounding")):
        result = findings(model, seed, device, trains)
        known = by_hand(model, seed, device, trains)
    return where, named(result), named(result) - known, sum(result.kept.values())


# --- Trials


@dataclass
class Planted:
    """A fault in an operator of a model."""

    name: str
    kind: Kind
    operator: str
    model: str
    trains: bool
    input_seed: int
    fault: sim.Fault
    hit: set[str]  # the operators in whose calls the kernel runs
    varying: set[Finding]  # without the fault
    watched: list[str]  # by the tool; empty: all that torch does not make of others

    def run(self) -> Any:
        return run(self.model, self.input_seed, "sim", self.trains)


def draws(seed: int, kinds: tuple[str, ...]) -> Iterator[Planted]:
    """Ends with an error where there is no operator in which the fault could act."""
    draw = random.Random(seed)
    for _ in range(MOST_DRAWS):
        name = draw.choice(kinds)
        kind = KINDS[name]
        models = [model for model in MODELS if not kind.in_attention or "attention" in model]
        model, trains, input_seed = draw.choice(models), draw.random() < 0.5, draw.randrange(1000)
        natural = findings(model, input_seed, "sim", trains)
        watched: list[str] = []
        if kind.in_attention:
            # Made of others on this device: without its name its parts are judged in its place, and no padding of theirs.
            watched = [ATTENTION, *(op.op for op in natural.ops)]
            natural = findings(model, input_seed, "sim", trains, watched)
        varying = named(natural)
        wanted = [
            op.op
            for op in natural.ops
            if not op.op.startswith(PASSED_OVER)
            and (op.op, kind.relation) not in varying
            and kind.relation in op.keeps.split()
            and (not kind.in_attention or op.op == ATTENTION)
        ]
        if not wanted:
            continue
        operator = draw.choice(wanted)
        planted = kind.in_attention or operator
        try:
            fault = sim.fault(kind.fault or name, ops=planted, seed=seed, **kind.options)
        except op_tools.Error:
            continue  # it never reaches the device under this name
        with sim.fault("latency", ops=planted, microseconds=0) as nothing:  # hits every call
            hit = CallsHit(nothing)
            with op_tools.HookScope(hit, level="aten", ops=",".join(watched)):
                run(model, input_seed, "sim", trains)
        if nothing.hits == 0:
            continue  # a view
        if kind.is_rare:
            watched = sorted(hit.names)  # ten thousand calls of it are soon made
        yield Planted(name, kind, operator, model, trains, input_seed, fault, hit.names, varying, watched)
    raise RuntimeError(
        f"seed {seed}: none of {MOST_DRAWS} draws of {', '.join(kinds)} has an operator in which it acts"
    )


def trial(seed: int, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[str, bool, set[Finding], str]:
    """(kind, operator and relation named, false alarms, in words) of a planted fault."""
    for drawn in draws(seed, kinds):
        kind, fault, varying = drawn.kind, drawn.fault, set(drawn.varying)
        with fault:
            until = (lambda fault=fault: fault.hits > 0) if kind.is_rare else lambda: True
            result = findings(drawn.model, drawn.input_seed, "sim", drawn.trains, drawn.watched, until)
            if {finding for finding in named(result) if finding[0] not in drawn.hit} - varying:
                # Other values came to the other operators.
                varying |= by_hand(drawn.model, drawn.input_seed, "sim", drawn.trains)
        if fault.hits == 0:
            continue
        rows = [row for row in result.rows if row.op in drawn.hit and row.relation == kind.relation]
        right = bool(rows) and all(row.transient for row in rows if kind.is_transient)
        others = {finding for finding in named(result) if finding[0] not in drawn.hit} - varying
        where = f"{drawn.name} in {drawn.operator}, {drawn.model}, {'training' if drawn.trains else 'inference'}"
        return drawn.name, right, others, f"{where}, seed {seed}: {named(result)}"
    raise AssertionError("draws() ends with an error")


# --- What others say of the same programs


class FirstRow(TorchDispatchMode):
    """The test that people write for a kernel, `op(x[:1]) == op(x)[:1]`, of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, places = kwargs or {}, batch_of(function, args)
        first = [value[:1].clone() if place in places else value for place, value in enumerate(args)]
        result = function(*args, **kwargs)
        whole = next((value for value in tree_leaves(result) if isinstance(value, torch.Tensor)), None)
        if not places or function._schema.is_mutable or whole is None or whole.dim() == 0:
            return result
        if whole.shape[0] == args[places[0]].shape[0] and whole.numel():
            alone = next(value for value in tree_leaves(function(*first, **kwargs)) if isinstance(value, torch.Tensor))
            if not torch.equal(alone, whole[:1]):
                self.names.add(function.name())
        return result


def by_first_row(planted: Planted) -> set[str]:
    with FirstRow() as mode:
        planted.run()
    return mode.names


def bits_hash(tensor: torch.Tensor) -> int:
    return hash(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def by_debug_mode(planted: Planted) -> set[str]:
    """Torch's own: the hashes of two runs of the program."""
    logs = []
    for _ in range(2):
        with DebugMode() as mode, DebugMode.log_tensor_hashes(bits_hash):
            planted.run()
        logs.append(mode.logs)
    return {str(mismatch["call"]) for mismatch in DebugMode.check_hash_mismatches(*logs)}


def by_output(planted: Planted) -> bool:
    """Does the model's first row depend on the others of its batch? It names no operator."""
    torch.manual_seed(planted.input_seed)
    make, data = MODELS[planted.model]
    network, x = make().to("sim"), data().to("sim")
    with torch.no_grad():
        whole, alone = (tree_leaves(network(part))[0] for part in (x, x[:1].clone()))
    return not torch.equal(whole[:1], alone)


def peers(trials: int, seed: int) -> list[str]:
    """The lines of a table: in how many trials of each kind each of them sees the fault, and does not without it."""
    lines = [
        "| fault | trials | OpInvariance names operator and relation | `op(x[:1]) == op(x)[:1]` names the operator "
        "| two runs of `DebugMode` with hashes name it first | the model's output depends on the batch |",
        "|---|---|---|---|---|---|",
    ]
    for name, kind in KINDS.items():
        if kind.is_rare:
            continue
        count: collections.Counter[str] = collections.Counter()
        for number in range(seed, seed + trials):
            for planted in draws(number, (name,)):
                rows_before, output_before = by_first_row(planted), by_output(planted)
                with planted.fault:
                    result = findings(planted.model, planted.input_seed, "sim", planted.trains, planted.watched)
                if planted.fault.hits == 0:
                    continue
                count["tool"] += any(row.op in planted.hit and row.relation == kind.relation for row in result.rows)
                # A fault in a single call, or in every second one, begins anew for each.
                for way, ask in (("rows", by_first_row), ("hashes", by_debug_mode)):
                    anew = sim.fault(
                        kind.fault or name, ops=kind.in_attention or planted.operator, seed=number, **kind.options
                    )
                    with anew:
                        says = ask(planted)
                    known = rows_before if way == "rows" else set()
                    # A name has its overload for DebugMode alone: aten::mul.Tensor.
                    hit = {operator.split(".")[0] for operator in planted.hit} | {str(kind.in_attention)}
                    count[way] += any(operator.split(".")[0] in hit for operator in says - known)
                with planted.fault:
                    count["output"] += by_output(planted) and not output_before
                break
        cells = [f"{count[way]}" for way in ("tool", "rows", "hashes", "output")]
        lines.append(f"| `{name}` | {trials} | {' | '.join(cells)} |")
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    return lines


# --- Torch's kernels on the CPU


def calls_of_cpu() -> dict[str, Callable[[torch.dtype], Any]]:
    """Single calls, by a name for people."""

    def random_of(*shape: int) -> Callable[[torch.dtype], torch.Tensor]:
        return lambda dtype: torch.randn(*shape).to(dtype)

    def attention(rows: int, length: int) -> Callable[[torch.dtype], Any]:
        return lambda dtype: F.scaled_dot_product_attention(*(random_of(rows, 4, length, 32)(dtype) for _ in range(3)))

    calls: dict[str, Callable[[torch.dtype], Any]] = {}
    for rows in (2, 8, 64):
        for inner, outer in ((64, 64), (1024, 256)):
            calls[f"mm {rows}x{inner} @ {inner}x{outer}"] = lambda dtype, r=rows, i=inner, o=outer: torch.mm(
                random_of(r, i)(dtype), random_of(i, o)(dtype)
            )
            calls[f"linear {rows}x{inner} to {outer}"] = lambda dtype, r=rows, i=inner, o=outer: F.linear(
                random_of(r, i)(dtype), random_of(o, i)(dtype), random_of(o)(dtype)
            )
        calls[f"bmm {rows}x16x64 @ {rows}x64x16"] = lambda dtype, r=rows: torch.bmm(
            random_of(r, 16, 64)(dtype), random_of(r, 64, 16)(dtype)
        )
        calls[f"conv2d {rows}x8x16x16"] = lambda dtype, r=rows: F.conv2d(
            random_of(r, 8, 16, 16)(dtype), random_of(16, 8, 3, 3)(dtype)
        )
        calls[f"attention {rows}x4x33x32"] = attention(rows, 33)
        calls[f"softmax {rows}x1000"] = lambda dtype, r=rows: torch.softmax(random_of(r, 1000)(dtype), -1)
        calls[f"layer_norm {rows}x1000"] = lambda dtype, r=rows: F.layer_norm(random_of(r, 1000)(dtype), (1000,))
        calls[f"sum {rows}x100000"] = lambda dtype, r=rows: random_of(r, 100_000)(dtype).sum(-1)
        calls[f"tanh {rows}x100"] = lambda dtype, r=rows: torch.tanh(random_of(r, 100)(dtype))
    return calls


def table_of_cpu() -> int:
    """Prints which calls are variant; the exit status: 1 if torch alone does not confirm one."""
    sys.stdout.write(
        "| call | dtype | threads | operator | relation | from rows | ULP | right | torch alone |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    unconfirmed = invariant = 0
    for threads in (1, os.cpu_count() or 1):
        torch.set_num_threads(threads)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for name, call in calls_of_cpu().items():
                torch.manual_seed(0)
                with (
                    tempfile.TemporaryDirectory() as folder,
                    op_tools.OpInvariance(level="aten", output_dir=folder) as tool,
                ):
                    call(dtype)
                torch.manual_seed(0)
                with ByHand() as mode:
                    call(dtype)
                rows = tool.result().rows
                invariant += not rows
                for row in rows:
                    confirmed = (row.op, row.relation) in mode.confirmed
                    unconfirmed += not confirmed
                    cells = [
                        name,
                        str(dtype)[6:],
                        threads,
                        row.op,
                        row.relation,
                        row.begins or "",
                        f"{row.max_ulp:.3g}",
                        row.right,
                    ]
                    sys.stdout.write(
                        f"| {' | '.join(map(str, cells))} | {'confirmed' if confirmed else 'NOT CONFIRMED'} |\n"
                    )
    sys.stdout.write(f"{invariant} calls keep their bits; {unconfirmed} findings that torch alone does not confirm\n")
    return int(unconfirmed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--clean", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument(
        "--peers", type=int, metavar="N", help="what others say: N trials of each kind, and nothing else"
    )
    parser.add_argument("--cpu", action="store_true", help="the table of torch's kernels on the CPU, and nothing else")
    options = parser.parse_args()
    if options.cpu:
        return table_of_cpu()
    torch.set_num_threads(1)
    if options.peers:
        lines = peers(options.peers, options.seed)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    trouble: list[str] = []
    count: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    progress = Progress(options.trials + options.clean, "invariance_faults")
    for seed in range(options.seed, options.seed + options.trials):
        kind, right, others, text = trial(seed, tuple(options.kinds))
        count[kind].update(trials=1, named=int(right), others=int(bool(others)))
        if not right or others:
            trouble.append(text)
        progress.step()
    where_count: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for seed in range(options.seed, options.seed + options.clean):
        where, variant, alarms, kept = clean(seed)
        where_count[where].update(runs=1, kept=kept, confirmed=len(variant - alarms), alarms=len(alarms))
        if alarms:
            trouble.append(f"clean, {where}, seed {seed}: torch alone does not confirm {alarms}")
        progress.step()
    lines = ["| fault | trials | named | trials with another operator named |", "|---|---|---|---|"]
    lines += [f"| `{kind}` | {c['trials']} | {c['named']} | {c['others']} |" for kind, c in sorted(count.items())]
    lines += [
        "",
        "| without a fault | runs | relations kept | variant, confirmed by torch alone | false alarms |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {where} | {c['runs']} | {c['kept']} | {c['confirmed']} | {c['alarms']} |"
        for where, c in sorted(where_count.items())
    ]
    sys.stdout.write("\n".join([*trouble, *lines]) + "\n")
    missed = sum(c["trials"] - c["named"] for c in count.values())
    alarms = sum(c["others"] for c in count.values()) + sum(c["alarms"] for c in where_count.values())
    return int(missed > 0.02 * options.trials or alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
