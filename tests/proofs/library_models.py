"""Models that people use train the same with every tool on: tiny ones of transformers and timm, from random weights.

Each trains for two steps and is evaluated once, in a variant that its number picks (eager attention, checkpointed
activations, autocast, plain), without a tool and under each tool, at both levels. Losses, gradients, parameters, buffers,
the evaluation's output and the random state must be the same bits; no tool may go off. Files of OpCapture are replayed:
no call may disagree. Reports of OpAutoCompare and OpOverflowCheck are shown, each operator once, and counted as found.

    library_models.py [--names REGEX] [--tool NAME ...] [--level torch aten] [--variant plain ...] [--jobs 2]
    library_models.py --seed 1 --models 12     # further models: drawn from all others that the libraries have

The libraries are not among the project's requirements; a model whose library is missing counts as skipped. Of drawn models
those are left out that have more than 12 million parameters in spite of small widths; for a skipped model the next is
drawn.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _program import parser, quiet
from _workers import Progress
from op_db import make_tools, tool_names, trouble_of

import op_tools
from op_tools._conformance.workers import work_through

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "python"))

from models import same_bits  # noqa: E402

REPLAY = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "run_op_from_data"
VARIANTS = ("plain", "eager", "checkpoint", "autocast")
STEPS = 2
MOST_PARAMETERS = 12e6  # of a drawn model
SECONDS = 600  # for a model, under all tools

# Widths that most of transformers' configurations know under these names; each takes those that it has.
TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dim": 64,
    "d_ff": 64,
    "d_kv": 8,
    "ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 32,
    "patch_size": 8,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "rotary_dim": 4,
    "moe_intermediate_size": 32,
    "sliding_window": 8,
}
# The libraries' tables of models by task; a kind that is in several takes the first. The automatic class of each.
TASKS = {
    "IMAGE_CLASSIFICATION": "AutoModelForImageClassification",
    "SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MASKED_LM": "AutoModelForMaskedLM",
    "CAUSAL_LM": "AutoModelForCausalLM",
}
LANGUAGE = (  # causal
    "gpt2 gpt_neo gpt_neox gptj llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi phi3 "
    "opt bloom falcon mpt mamba mamba2 olmo olmo2 olmoe stablelm starcoder2 cohere granite granitemoe codegen biogpt "
    "xglm persimmon nemotron rwkv recurrent_gemma jamba glm helium smollm3"
).split()
MASKED = (
    "bert roberta distilbert albert electra deberta deberta-v2 camembert mpnet nystromformer roformer squeezebert "
    "xlm-roberta convbert fnet funnel big_bird ernie layoutlm megatron-bert mobilebert modernbert yoso"
).split()
PAIRS = "t5 mt5 bart mbart pegasus marian blenderbot m2m_100 led longt5 umt5 switch_transformers prophetnet".split()
IMAGES = "vit deit beit swin swinv2 convnext convnextv2 resnet regnet poolformer pvt levit mobilevit dinov2 cvt focalnet".split()
TIMM = (
    "resnet18 resnet26d efficientnet_b0 mobilenetv3_small_050 regnetx_002 convnext_atto vit_tiny_patch16_224 "
    "mixer_s32_224 densenet121 ghostnet_050 levit_128s poolformer_s12 repvgg_a0 res2net50_26w_4s seresnet18 "
    "dpn48b hardcorenas_a lcnet_035 mobilevit_xxs nfnet_l0 rexnet_100 semnasnet_075 skresnet18 tinynet_e xcit_nano_12_p16_224"
).split()
NAMES = [
    *(f"transformers/{kind}" for kind in (*LANGUAGE, *MASKED, *PAIRS, *IMAGES)),
    *(f"timm/{name}" for name in TIMM),
]


class NotHereError(Exception):
    """Of a library that is missing or does not know the model."""


@dataclass
class Case:
    model: torch.nn.Module
    inputs: Callable[[], dict[str, torch.Tensor]]  # draws from torch's generator


def tiny_config(kind: str, **more: Any) -> Any:
    import transformers

    try:
        usual = transformers.AutoConfig.for_model(kind).to_dict()
    except (ValueError, KeyError, ImportError) as error:
        raise NotHereError(str(error)) from error
    return transformers.AutoConfig.for_model(
        kind, **{name: value for name, value in (TINY | more).items() if name in usual}
    )


def kinds_of(task: str) -> list[str]:
    from transformers.models.auto import modeling_auto

    return list(getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES"))


def of_transformers(kind: str, variant: str) -> Case:
    import transformers

    task = next((task for task in TASKS if kind in kinds_of(task)), None)
    if task is None:
        raise NotHereError(f"transformers has no model {kind} of these tasks")
    is_image = task == "IMAGE_CLASSIFICATION"
    config = tiny_config(kind, num_labels=5) if is_image else tiny_config(kind)
    if task == "SEQ_TO_SEQ_CAUSAL_LM":
        config.decoder_start_token_id = 0
    attention = {"attn_implementation": "eager"} if variant == "eager" else {}
    model = getattr(transformers, TASKS[task]).from_config(config, **attention)
    side = getattr(config, "image_size", 64)
    side = side if isinstance(side, int) and side >= 32 else 64

    def images() -> dict[str, torch.Tensor]:
        return {
            "pixel_values": torch.randn(2, 3, side, side),
            "labels": torch.randint(getattr(config, "num_labels", 2), (2,)),
        }

    def text() -> dict[str, torch.Tensor]:
        return {"input_ids": torch.randint(3, 99, (2, 12)), "labels": torch.randint(3, 99, (2, 12))}

    return Case(model, images if is_image else text)


class Classifier(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.inner(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


@functools.cache
def declare_torchvision() -> None:
    """Both libraries import torchvision, whose wheel may be for another torch (CUDA's): then it cannot load its own
    library and fails on import, for want of two operators. They are declared then; no model here calls them."""
    spec = importlib.util.find_spec("torchvision")
    for place in spec.submodule_search_locations or () if spec else ():
        try:
            torch.ops.load_library(str(Path(place) / "_C.so"))
        except OSError:
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", "(Tensor a, Tensor b, float c) -> Tensor")


def of_timm(name: str, variant: str) -> Case:
    import timm

    try:
        try:
            inner = timm.create_model(name, num_classes=5, img_size=64)
        except TypeError:  # it takes images of all sizes
            inner = timm.create_model(name, num_classes=5)
    except RuntimeError as error:
        if "Unknown model" in str(error):
            raise NotHereError(str(error)) from error
        raise
    model = Classifier(inner)
    if variant == "checkpoint" and hasattr(model.inner, "set_grad_checkpointing"):
        model.inner.set_grad_checkpointing()
    return Case(model, lambda: {"images": torch.randn(2, 3, 64, 64), "labels": torch.randint(5, (2,))})


def build(name: str, variant: str) -> Case:
    library, _, kind = name.partition("/")
    if importlib.util.find_spec(library) is None:
        raise NotHereError(f"{library} is not installed")
    declare_torchvision()
    torch.manual_seed(1)
    case = of_transformers(kind, variant) if library == "transformers" else of_timm(kind, variant)
    if variant == "checkpoint" and getattr(case.model, "supports_gradient_checkpointing", False):
        case.model.gradient_checkpointing_enable()
    return case


def drawn(seed: int) -> Iterator[str]:
    """All small models that NAMES does not have, in an order of this seed, of both libraries in turn."""
    declare_torchvision()
    import timm

    chance = random.Random(seed)
    kinds = sorted({f"transformers/{kind}" for task in TASKS for kind in kinds_of(task)} - set(NAMES))
    names = sorted({f"timm/{name}" for name in timm.list_models()} - set(NAMES))
    for pair in zip(chance.sample(kinds, len(kinds)), chance.sample(names, len(kinds)), strict=True):
        for name in pair:
            try:
                with torch.device("meta"):  # without memory
                    parameters = sum(one.numel() for one in build(name, "plain").model.parameters())
            except Exception as error:  # of the library, on such a configuration
                print(f"left out {name}: {type(error).__name__}: {error}".splitlines()[0][:150], flush=True)
                continue
            if parameters > MOST_PARAMETERS:
                print(f"left out {name}: {parameters / 1e6:.0f} million parameters", flush=True)
            else:
                yield name


def train(name: str, variant: str, tools: list[Any]) -> dict[str, torch.Tensor]:
    """Everything that a program could look at after two steps and an evaluation; the tools are on meanwhile."""
    case = build(name, variant)
    model = case.model.train()
    method = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen: dict[str, torch.Tensor] = {}
    torch.manual_seed(5)
    for tool in tools:
        tool.start()
    try:
        for step in range(STEPS):
            inputs = case.inputs()
            method.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=variant == "autocast"):
                loss = model(**inputs)["loss"]
            loss.backward()
            method.step()
            seen[f"loss {step}"] = loss.detach().clone()
            for tool in tools:
                tool.step()
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                seen[f"gradient of {key}"] = parameter.grad.clone()
        model.eval()
        with torch.no_grad():
            seen["evaluation"] = model(**case.inputs())["logits"].clone()
    finally:
        for tool in reversed(tools):
            tool.stop()
    seen |= {f"state {key}": value.clone() for key, value in model.state_dict().items()}
    seen["random state"] = torch.get_rng_state()
    return seen


def different(tensors: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    return [
        key for key in tensors | two if key not in tensors or key not in two or not same_bits(tensors[key], two[key])
    ]


@dataclass
class Row:
    model: str
    variant: str
    tool: str = ""
    level: str = ""
    skipped: str = ""
    findings: list[str] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0


def replayed(folder: str, *options: str) -> tuple[int, list[str]]:
    """Runs the captured calls of the folder again: how many calls, and those that disagreed."""
    summary = Path(folder) / "replay.json"
    roots = [str(path) for path in Path(folder).glob("op_capture_result/*/*")]
    if not roots:
        return 0, []
    command = [str(REPLAY), *roots, "--acc_check", *options, "-q", "--json", str(summary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not summary.exists():
        return 0, [f"replay ended with {done.returncode}: {done.stderr[-300:]}"]
    report = json.loads(summary.read_text())
    wrong = [
        f"replay of {call['name']} disagrees: {json.dumps(call.get('checks', ''))[:300]}"
        for call in report["calls"]
        if call["status"] == "differs"
    ]
    return report["summary"]["ran"], wrong


def alarms_of(tool: Any) -> list[str]:
    """Its reports of operators that are right."""
    if isinstance(tool, op_tools.OpAutoCompare):
        alarms = {(one.op, one.phase, one.what, one.reason) for one in tool.result().failures}
    elif isinstance(tool, op_tools.OpOverflowCheck):
        rows = [row for row in tool.result().rows if row.kind == "producer"]
        alarms = {
            (row.op, row.phase, f"{row.nan} nan, {row.pos_inf} inf, {row.neg_inf} -inf", row.line) for row in rows
        }
    else:
        return []
    return [f"{type(tool).__name__} reports {' '.join(map(str, alarm))}" for alarm in sorted(alarms, key=str)]


def look_at(name: str, variant: str, tools: list[tuple[str, str]]) -> list[Row]:
    try:
        plain = train(name, variant, [])
        again = train(name, variant, [])
    except NotHereError as error:
        return [Row(name, variant, skipped=str(error).splitlines()[0][:100])]
    except Exception as error:  # of the library on such a small model
        return [Row(name, variant, skipped=f"{type(error).__name__}: {error}".splitlines()[0][:100])]
    if changed := different(plain, again):
        return [Row(name, variant, skipped=f"without a tool two runs differ: {changed[0]}")]
    rows = []
    for tool_name, level in tools:
        began = time.monotonic()
        row = Row(name, variant, tool_name, level)
        folder = tempfile.mkdtemp()
        try:
            entered = make_tools(tool_name, level, folder)
            try:
                row.findings += [f"{key} changed" for key in different(plain, train(name, variant, entered))[:3]]
            except Exception as error:
                row.findings.append(f"raised {type(error).__name__}: {error}".splitlines()[0][:200])
            row.findings += [trouble for tool in entered if (trouble := trouble_of(tool))]
            row.findings += [alarm for tool in entered for alarm in alarms_of(tool)]
            if tool_name == "OpCapture":
                row.calls, wrong = replayed(folder, "--only_run_forward")
                row.findings += wrong[:3]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        row.seconds = time.monotonic() - began
        rows.append(row)
    return rows


def start() -> None:
    warnings.simplefilter("ignore")
    os.environ["OP_CAPTURE_FORMAT"] = "container"
    quiet("error")
    if importlib.util.find_spec("transformers") is not None:
        import transformers

        transformers.logging.set_verbosity_error()


def work(item: tuple[str, str, list[tuple[str, str]]]) -> list[Row]:
    return look_at(*item)


def looked_at(items: list[tuple[str, str, list[tuple[str, str]]]], jobs: int) -> list[Row]:
    """The rows of these models, shown as they come."""
    progress = Progress(len(items), "models")
    rows: list[Row] = []
    for (name, variant, _), rows_of_model, trouble in work_through(items, start, work, jobs=jobs, seconds=SECONDS):
        for row in rows_of_model or [Row(name, variant, findings=[trouble])]:
            rows.append(row)
            if row.skipped:
                print(f"skipped {row.model} ({row.variant}): {row.skipped}", flush=True)
            for finding in row.findings:
                print(f"{row.model} ({row.variant}), {row.tool}, {row.level}: {finding}", flush=True)
        progress.step(name)
    return rows


def looked_at_drawn(seed: int, count: int, tools: list[tuple[str, str]], variants: list[str], jobs: int) -> list[Row]:
    """The rows of that many models that ran."""
    start()
    names, number = drawn(seed), 0
    rows: list[Row] = []
    while (wanted := count - len({row.model for row in rows if not row.skipped})) > 0:
        items = []
        for name in itertools.islice(names, wanted):
            items.append((name, variants[number % len(variants)], tools))
            number += 1
        if not items:
            break
        rows += looked_at(items, jobs)
    return rows


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--names", default="", metavar="REGEX")
    command_line.add_argument("--seed", type=int, default=1, metavar="N", help="of the models that are drawn")
    command_line.add_argument("--models", type=int, metavar="N", help="draw so many; without it: the usual ones")
    command_line.add_argument("--tool", nargs="+", default=tool_names(), choices=tool_names(), metavar="NAME")
    command_line.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    command_line.add_argument("--variant", nargs="+", choices=VARIANTS, help="all of these, for each model")
    command_line.add_argument("--jobs", type=int, default=2, metavar="N")
    options = command_line.parse_args()
    tools = [(tool, level) for tool in options.tool for level in options.level]
    if options.models:
        rows = looked_at_drawn(options.seed, options.models, tools, list(options.variant or VARIANTS), options.jobs)
    else:
        items = [
            (name, variant, tools)
            for number, name in enumerate(NAMES)
            if re.search(options.names, name)
            for variant in (options.variant or [VARIANTS[number % len(VARIANTS)]])
        ]
        rows = looked_at(items, options.jobs)
    skipped = [row for row in rows if row.skipped]
    wrong = [row for row in rows if row.findings]
    ran = {(row.model, row.variant) for row in rows} - {(row.model, row.variant) for row in skipped}
    print(
        f"{len(ran)} models, {len(rows) - len(skipped)} runs under a tool, {sum(row.calls for row in rows)} calls replayed; "
        f"{len(wrong)} runs with something found; {len(skipped)} models skipped"
    )
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
