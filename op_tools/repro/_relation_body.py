"""The part that all scripts of findings of OpInvariance have in common: the two runs, and how their bits are compared.

The text below the mark is pasted into each script, behind that of _run_body.py, so it uses torch and the standard library alone,
and has no types. _relation.py writes the part that differs: the tensors, the call, what the other run changes, and which results
must have the same bits.
"""

# mypy: allow-untyped-defs, allow-untyped-calls
from __future__ import annotations

import contextlib
import platform

import torch

from ._run_body import run

# --- From here on: pasted.


def dense(elements, like):
    """The elements without gaps, the dimensions in the order of the strides of `like`."""
    order = sorted(range(like.dim()), key=lambda dim: -like.stride(dim))
    return elements.permute(order).contiguous().permute([order.index(dim) for dim in range(like.dim())])


def places(tensor, dim, numbers):
    """These places of the dimension, in this order."""
    return tensor.index_select(dim, torch.tensor(numbers))


def filled(tensor, dim, count, number, in_front):
    """With as many more places of the dimension."""
    shape = list(tensor.shape)
    shape[dim] = count
    more = torch.full(shape, number, dtype=tensor.dtype)
    return torch.cat([more, tensor] if in_front else [tensor, more], dim)


def in_a_row(tensor):
    """All sequences behind each other."""
    return tensor.reshape(1, tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])


def packed_sequences(tensor):
    """[B, ..., T, size] as [1, ..., B T, size]: all sequences behind each other."""
    return tensor.movedim(0, -3).flatten(-3, -2).unsqueeze(0)


def apart(tensor):
    """The same elements with room behind each row in memory; without where there is some."""
    inner = dense(tensor, tensor)
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if span != tensor.numel():
        return inner
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    dim = order[1 if tensor.dim() == 2 else -2]
    return dense(torch.cat([inner, inner], dim), tensor).narrow(dim, 0, tensor.shape[dim])


def moved(tensor):
    """The same elements and strides, an element further from an address that 64 divides."""
    offset = (tensor.storage_offset() + 1) % max(1, 64 // tensor.element_size())
    memory = torch.empty(tensor.numel() + offset, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)


def order(queries, keys, first, left_out, like):
    """A mask in place of the causal order: query i reads the keys from `left_out` up to first + i."""
    mask = torch.full((queries, keys), -torch.inf)
    for query in range(queries):
        mask[query, left_out : max(query + first, left_out) + 1] = 0
    return mask.to(like.device, like.dtype)


def packing(sequences, query, key, own, is_causal):
    """A mask that keeps packed sequences apart. `own`: that of the program; None: each has the causal order, or reads all its keys."""
    rows, columns = query.shape[-2] // sequences, key.shape[-2] // sequences
    if own is None:
        own = order(rows, columns, 0 if is_causal else columns, 0, query)
    own, has_batch = own.cpu(), own.dim() == query.dim()
    lead = (1, *own.shape[1:-2]) if has_batch else own.shape[:-2]
    nothing = False if own.dtype == torch.bool else -torch.inf
    mask = torch.full((*lead, query.shape[-2], key.shape[-2]), nothing, dtype=own.dtype)
    for i in range(sequences):
        block = own[min(i, len(own) - 1)][None] if has_batch else own
        mask[..., i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] = block
    return mask.to(query.device)


def placed(tensor, like, no_leaf):
    """On the device of `like`, in the tensor's own strides, at its place in its memory."""
    flat = tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    copy = flat.to(like.device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if not like.requires_grad:
        return copy
    return copy.requires_grad_() if like.is_leaf else no_leaf.apply(torch.ones(1, requires_grad=True), copy)


@contextlib.contextmanager
def other_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def other_stream():
    torch.accelerator.synchronize()
    with torch.Stream(device=torch.accelerator.current_accelerator()):
        yield
    torch.accelerator.synchronize()


def difference(value, other):
    """In words; "": the same bits."""
    if value is None or other is None:
        return "" if value is other else "there is none in one of the runs"
    if value.shape != other.shape or value.dtype != other.dtype:
        return f"{list(other.shape)} {other.dtype} instead of {list(value.shape)} {value.dtype}"
    a, b = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (value, other))
    bits = [tensor.view(-1).view(torch.uint8).view(tensor.numel(), -1) for tensor in (a, b)] if a.numel() else None
    if bits is None or torch.equal(*bits):
        return ""
    differs = (bits[0] != bits[1]).any(-1)
    first = int(differs.nonzero()[0])
    where = [int(i) for i in torch.unravel_index(torch.tensor(first), a.shape)]
    was, now = (tensor.reshape(-1)[first].item() for tensor in (a, b))
    return f"{int(differs.sum())} of {a.numel()} elements; at {where}: {now!r} instead of {was!r}"


def main(inputs, call, device, pairs, changed=None, other_call=None, way=None, runs=8, no_leaf=None):
    """Prints the differences. Returns 1 if there are any, 2 if nothing could be compared, else 0."""
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}, device {device}")

    def first():
        return run(inputs, call, device)

    def other_inputs(put):
        (x, g), (x_host, g_host) = inputs(put), inputs(lambda memory, here="cpu": memory.clone())
        of_x, of_g = changed(x_host, g_host)
        for tensors, changes in ((x, of_x), (g, of_g)):
            for number, tensor in changes.items():
                tensors[number] = placed(tensor, tensors[number], no_leaf)
        return x, g

    def other():
        with way() if way else contextlib.nullcontext():
            return run(other_inputs if changed else inputs, other_call or call, device)

    program = first()
    others = [other() for _ in range(1 if changed or way else runs)]
    raised = [one["raised"] for one in (program, *others) if "raised" in one]
    if raised:
        print(f"NOT JUDGED: it raises {raised[0]}")
        return 2
    if changed or way:
        for name, results, again in (("the call", program, first()), ("the other run", others[0], other())):
            if any(difference(results[key], again[key]) for key in results):
                print(f"{name} does not repeat its own bits")
    count = 0
    for number, results in enumerate(others):
        for name, value, of_other in pairs(program, results):
            count += 1
            text = difference(value, of_other)
            if text:
                print(f"OTHER BITS: {name}{f' of run {number + 2}' if len(others) > 1 else ''}: {text}")
                return 1
    print("the same bits" if count else "NOT JUDGED: no result could be compared")
    return 0 if count else 2
