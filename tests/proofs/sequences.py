"""Training against inference, confirmed by hand: `op-tools compare --as-sequence` of a decoder of ours and of transformers' Llama (random
weights, `generate` against a forward pass over what it generated), and the same by torch's own hooks alone.

    ./dev prove sequences [--write]

By hand: the outputs of every module and of every call of attention, matmul and softmax, kept by a hook or a wrapper, are put together
along the tokens and compared bit for bit. The first of them with other bits must be that which the tool names, with as many tokens, and
the log-probabilities must differ by as much. --write: the table of docs/sequences.md.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
from torch.nn import functional as F

import op_tools

_spec = importlib.util.spec_from_file_location("decoder", ROOT / "examples" / "decoder.py")
assert _spec is not None and _spec.loader is not None
decoder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decoder)

BEGIN, END = "<!-- sequences: written by ./dev prove sequences --write -->", "<!-- sequences: end -->"
FUNCTIONS = {"scaled_dot_product_attention": F, "softmax": torch, "matmul": torch}
Run = Callable[[], torch.Tensor]


@dataclass
class Program:
    name: str
    model: torch.nn.Module
    train: Run
    serve: Run


def ours(dtype: torch.dtype, *, eager: bool) -> Program:
    torch.manual_seed(0)
    model = decoder.Decoder(64, eager=eager).to(dtype)
    tokens = torch.randint(64, (4, 17))
    return Program(
        "examples/decoder.py", model, lambda: decoder.train(model, tokens), lambda: decoder.serve(model, tokens, 5)
    )


def of_transformers(dtype: torch.dtype, *, eager: bool) -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM  # an extra

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager" if eager else "sdpa",
        pad_token_id=0,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    prompt = torch.randint(2, 128, (3, 6))
    count = prompt.shape[1]
    generated: list[torch.Tensor] = []

    def log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), -1).gather(-1, tokens[..., None])

    def serve() -> torch.Tensor:
        done = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=10,
            output_logits=True,
            return_dict_in_generate=True,
        )
        generated[:] = [done.sequences]
        return log_probs(torch.stack(done.logits, 1), done.sequences[:, count:])

    def train() -> torch.Tensor:
        tokens = generated[0]
        return log_probs(model(tokens).logits[:, count - 1 : -1], tokens[:, count:])

    return Program("transformers' Llama", model, train, serve)


# --- By hand ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kept(model: torch.nn.Module) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Name and output of each module and of each call of the functions, in the order of the program."""
    outputs: list[tuple[str, torch.Tensor]] = []
    inside: list[str] = [""]
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))

        def leave(_: Any, __: Any, output: Any, name: str = name) -> None:
            inside.pop()
            if isinstance(output, torch.Tensor) and output.dim() == 3:
                outputs.append((name, output))

        handles.append(module.register_forward_hook(leave))
    originals = {name: getattr(owner, name) for name, owner in FUNCTIONS.items()}
    softmax = F.softmax

    def wrapper(name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if output.dim() == 4:
                outputs.append((f"{inside[-1]} {name}", output.transpose(1, 2)))
            return output

        return call

    for name, owner in FUNCTIONS.items():
        setattr(owner, name, wrapper(name, originals[name]))
    F.softmax = wrapper("softmax", softmax)
    try:
        yield outputs
    finally:
        for name, owner in FUNCTIONS.items():
            setattr(owner, name, originals[name])
        F.softmax = softmax
        for handle in handles:
            handle.remove()


def by_hand(program: Program) -> tuple[str, int, float]:
    """The first output of which tokens have other bits, of how many tokens, and the mean difference of the log-probabilities."""
    sides: list[dict[tuple[str, int], list[torch.Tensor]]] = []
    ends = []
    for run in (program.serve, program.train):
        with torch.no_grad(), kept(program.model) as outputs:
            ends.append(run())
        of_side: dict[tuple[str, int], list[torch.Tensor]] = {}
        forwards = Counter(name for name, _ in outputs)
        count = forwards[min(forwards, key=lambda name: forwards[name])]
        seen: Counter[str] = Counter()
        for name, output in outputs:
            times = forwards[name] // count  # in a forward pass
            of_side.setdefault((name, seen[name] % times), []).append(output)
            seen[name] += 1
        sides.append(of_side)
    serve, train = sides
    fed = max(sum(part.shape[1] for part in parts) for parts in serve.values())
    for key, (whole,) in train.items():
        parts = serve.get(key, [])
        begin = fed - sum(part.shape[1] for part in parts)  # the last layer may compute the last tokens alone
        differ = 0
        for part in parts:
            end = begin + part.shape[1]
            # Attention weights have as many columns as there are tokens so far.
            if part.shape[2:] == whole.shape[2:]:
                differ += int((part != whole[:, begin:end]).flatten(2).any(-1).sum())
            begin = end
        if differ:
            return key[0], differ, float((ends[0] - ends[1]).abs().mean())
    return "", 0, float((ends[0] - ends[1]).abs().mean())


# --- By the tool --------------------------------------------------------------------------------------------------------


def by_tool(program: Program) -> op_tools.SequenceComparison:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("serve", "train"):
            with torch.no_grad(), op_tools.OpRecord(output_dir=f"{folder}/{name}", row_hashes=True):
                getattr(program, name)()
        return op_tools.compare_sequences(f"{folder}/train", f"{folder}/serve")


def agree(first: str, differ: int, mean: float, comparison: op_tools.SequenceComparison) -> bool:
    row, end = comparison.first, comparison.log_probabilities
    if row is None or not first:
        return row is None and not first
    # By hand a function stands behind its module, a module is the operator in it.
    module, _, function = first.partition(" ")
    is_same = row.module.endswith(module) and (not function or row.op.endswith(function))
    return is_same and row.differ == differ and end is not None and abs(end.mean - mean) <= 1e-9 + 1e-6 * mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the table of docs/sequences.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| program | dtype | attention | first operator with other bits | tokens | log-probabilities, mean and largest | by hand |",
        "|---|---|---|---|---|---|---|",
    ]
    wrong = 0
    for make, dtype, eager in itertools.product(
        (ours, of_transformers), (torch.float32, torch.bfloat16), (False, True)
    ):
        program = make(dtype, eager=eager)
        comparison = by_tool(program)
        first, differ, mean = by_hand(program)
        is_same = agree(first, differ, mean, comparison)
        wrong += not is_same
        row, end = comparison.first, comparison.log_probabilities
        named = f"`{row.op}` in `{row.module}`" if row else "none"
        numbers = f"{end.mean:.2g}, {end.largest:.2g}" if end else "-"
        of_tokens = f"{row.differ} of {row.tokens}" if row else "-"
        attention = "eager" if eager else "sdpa"
        confirmed = "the same" if is_same else f"{first}, {differ}, {mean:.3g}"
        lines.append(
            f"| {program.name} | {str(dtype).removeprefix('torch.')} | {attention} | {named} | {of_tokens} | {numbers} | {confirmed} |"
        )
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    if options.write:
        page = ROOT / "docs" / "sequences.md"
        before, rest = page.read_text().split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
