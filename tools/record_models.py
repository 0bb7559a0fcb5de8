"""Writes the suite of models: op_tools/_conformance/op_tools_cases/models/<torch minor>.jsonl.gz.

    python tools/record_models.py [--only REGEX] [-o FILE]

Makes each model at its real size on the meta device (no memory, no weights are loaded), runs a training step, forward and
loss, and writes down its calls and how often each is made. Needs transformers, timm and torchvision. A model that this machine's
libraries cannot make is named and left out. Takes some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "proofs")]

from library_models import declare_torchvision  # noqa: E402

from op_tools._conformance.lists import FOLDER, write_list  # noqa: E402
from op_tools._conformance.models import StepRecorder, merged  # noqa: E402

BATCH, TOKENS = 2, 128

# Our name of a model: its name in the library. Where DIOPI_TEST has the model, the name is that of DIOPI_TEST.
TIMM = {
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "mobilenet_v2": "mobilenetv2_100",
    "mobilenet_v3": "mobilenetv3_large_100",
    "seresnet50": "seresnet50",
    "vgg16": "vgg16",
    "efficientnet": "efficientnet_b0",
    "vit": "vit_base_patch16_224",
    "convnext": "convnext_tiny",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "densenet": "densenet121",
    "repvgg": "repvgg_a0",
    "inceptionv3": "inception_v3",
    "hrnet": "hrnet_w32",
    "resnext50": "resnext50_32x4d",
    "regnet": "regnetx_032",
    "res2net50": "res2net50_26w_4s",
    "mixer": "mixer_b16_224",
    "deit": "deit_small_patch16_224",
    "beit": "beit_base_patch16_224",
    "poolformer": "poolformer_s12",
    "mobilevit": "mobilevit_s",
    "xcit": "xcit_tiny_12_p16_224",
    "ghostnet": "ghostnet_100",
    "efficientnet_v2": "efficientnetv2_rw_s",
    "nfnet": "nfnet_l0",
    "coat": "coat_tiny",
    "maxvit": "maxvit_tiny_rw_224",
    "levit": "levit_192",
    "cspdarknet53": "cspdarknet53",
}
TORCHVISION = {
    "shufflenet_v2": "shufflenet_v2_x1_0",
    "alexnet": "alexnet",
    "squeezenet": "squeezenet1_1",
    "googlenet": "googlenet",
    "mnasnet": "mnasnet1_0",
    "deeplabv3": "deeplabv3_resnet50",
    "fcn": "fcn_resnet50",
    "lraspp": "lraspp_mobilenet_v3_large",
    "slowfast_r3d": "r3d_18",
    "s3d": "s3d",
    "raft": "raft_small",
}
# Name: model type, automatic class, differences from the type's usual configuration.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base": ("bert", "MaskedLM", {}),
    "bert-large": (
        "bert",
        "MaskedLM",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "roberta-base": ("roberta", "MaskedLM", {"vocab_size": 50265, "max_position_embeddings": 514}),
    "distilbert": ("distilbert", "MaskedLM", {}),
    "albert": ("albert", "MaskedLM", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "electra": ("electra", "MaskedLM", {}),
    "deberta-v2": ("deberta-v2", "MaskedLM", {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}),
    "mpnet": ("mpnet", "MaskedLM", {}),
    "modernbert": ("modernbert", "MaskedLM", {}),
    "gpt2": ("gpt2", "CausalLM", {}),
    "gpt_neo": ("gpt_neo", "CausalLM", {}),
    "gpt_neox-20b": ("gpt_neox", "CausalLM", {}),
    "gptj-6b": ("gptj", "CausalLM", {}),
    "opt-1.3b": (
        "opt",
        "CausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
    ),
    "bloom-1b7": ("bloom", "CausalLM", {"hidden_size": 2048, "n_layer": 24, "n_head": 16}),
    "falcon-7b": ("falcon", "CausalLM", {}),
    "llama": ("llama", "CausalLM", {}),
    "mistral-7b": ("mistral", "CausalLM", {}),
    "qwen2-7b": (
        "qwen2",
        "CausalLM",
        {
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "intermediate_size": 18944,
            "vocab_size": 152064,
        },
    ),
    "qwen3": ("qwen3", "CausalLM", {}),
    "gemma-2b": (
        "gemma",
        "CausalLM",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 16384,
        },
    ),
    "phi-1.5": ("phi", "CausalLM", {}),
    "phi3-mini": ("phi3", "CausalLM", {}),
    "stablelm": ("stablelm", "CausalLM", {}),
    "starcoder2": ("starcoder2", "CausalLM", {}),
    "olmo": ("olmo", "CausalLM", {}),
    "t5-base": ("t5", "Seq2SeqLM", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "bart-large": ("bart", "Seq2SeqLM", {}),
    "mbart": ("mbart", "Seq2SeqLM", {}),
    "pegasus": ("pegasus", "Seq2SeqLM", {}),
    "m2m_100": ("m2m_100", "Seq2SeqLM", {}),
    "dinov2": ("dinov2", "ImageClassification", {"image_size": 224}),
    "convnextv2": ("convnextv2", "ImageClassification", {}),
    "segformer": ("segformer", "SemanticSegmentation", {}),
    "upernet": ("upernet", "SemanticSegmentation", {}),
    "whisper-small": (
        "whisper",
        "SpeechSeq2Seq",
        {
            "d_model": 768,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
        },
    ),
    "wav2vec2": ("wav2vec2", "AudioClassification", {"apply_spec_augment": False, "layerdrop": 0.0}),
    "detr": (
        "detr",
        "ObjectDetection",
        {"use_timm_backbone": True, "backbone": "resnet50", "use_pretrained_backbone": False},
    ),
    "clip": ("clip", "Model", {}),
}
_HALF = ("CausalLM",)  # trained in bfloat16


class Unet(nn.Module):
    """As in the paper: four steps down and up, 64 to 1,024 channels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        self.down = nn.ModuleList(self._pair(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(self._pair(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(64, 2, 1)

    @staticmethod
    def _pair(a: int, b: int) -> nn.Sequential:
        layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True)]
        return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


class LstmLanguage(nn.Module):
    """Word language model of two layers, as in torch's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(33278, 650), nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(650, 33278)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.dropout(self.rnn(self.embed(tokens))[0], 0.5, self.training))


class Crnn(nn.Module):
    """Convolutions, then a recurrent network in both directions over the columns of a line of text."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 64, 128, 256, 256, 512, 512]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.rnn, self.head = nn.GRU(512, 256, 2, bidirectional=True), nn.Linear(512, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = nn.functional.relu(norm(conv(x)))
            if place in (0, 1, 3, 5):
                x = nn.functional.max_pool2d(x, (2, 2) if place < 2 else (2, 1))
        return nn.functional.log_softmax(self.head(self.rnn(x.mean(2).permute(2, 0, 1))[0]), 2)


class Recommender(nn.Module):
    """DLRM's kind: bags of categories, dense features, and their products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        index = torch.zeros(len(dense), 4, dtype=torch.int64)
        features = torch.stack([self.bottom(dense), *(bag(index) for bag in self.bags)], 1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)[:, :36]
        return torch.sigmoid(self.top(torch.cat([features[:, 0], products], 1)))


class Generator(nn.Module):
    """DCGAN's."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b, stride, padding in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
            layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


Made = tuple[nn.Module, Callable[[], dict[str, torch.Tensor]]]


def own(name: str) -> Made:
    """Models of torch alone."""
    if name == "transformer":
        model = nn.Transformer(batch_first=True)
        return model, lambda: {one: torch.randn(BATCH, TOKENS, 512) for one in ("src", "tgt")}
    if name == "lstm":
        return LstmLanguage(), lambda: {"tokens": torch.zeros(20, 35, dtype=torch.int64)}
    shapes = {"unet": (1, 3, 256, 256), "crnn": (8, 1, 32, 128), "dlrm": (128, 13), "dcgan": (16, 100, 1, 1)}
    kinds = {"unet": Unet, "crnn": Crnn, "dlrm": Recommender, "dcgan": Generator}
    key = {"dlrm": "dense"}.get(name, "x")
    return kinds[name](), lambda: {key: torch.randn(shapes[name])}


OWN = ("unet", "lstm", "transformer", "crnn", "dlrm", "dcgan")


def of_timm(name: str) -> Made:
    import timm

    model = timm.create_model(name)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, lambda: {"x": torch.randn(BATCH, *size)}


def of_torchvision(name: str) -> Made:
    import torchvision

    model = torchvision.models.get_model(
        name, weights=None, **({"weights_backbone": None} if "resnet50" in name or "lraspp" in name else {})
    )
    if name == "raft_small":
        return model, lambda: {one: torch.randn(1, 3, 128, 256) for one in ("image1", "image2")}
    shape = (1, 3, 16, 224, 224) if name in ("r3d_18", "s3d") else (BATCH, 3, 224, 224)
    return model, lambda: {"x": torch.randn(shape)}


def of_transformers(kind: str, task: str, changes: dict[str, Any]) -> Made:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **changes)
    make = transformers.AutoModel if task == "Model" else getattr(transformers, f"AutoModelFor{task}")
    half = {"dtype": torch.bfloat16} if task in _HALF else {}
    model = make.from_config(config, **half)
    vocabulary = torch.zeros(1 if task in _HALF else BATCH, TOKENS, dtype=torch.int64)

    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.zeros_like(vocabulary)
        if task == "Model":
            return {"input_ids": tokens[:, :77], "pixel_values": torch.randn(BATCH, 3, 224, 224)}
        if task == "SpeechSeq2Seq":
            return {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": tokens[:1]}
        if task == "AudioClassification":
            return {"input_values": torch.randn(1, 16000)}
        if task in ("ImageClassification", "SemanticSegmentation", "ObjectDetection"):
            return {"pixel_values": torch.randn(BATCH, 3, 224, 224)}
        if task == "Seq2SeqLM":
            return {"input_ids": tokens, "decoder_input_ids": tokens, "labels": tokens}
        return {"input_ids": tokens, "labels": tokens}

    return model, inputs


MODELS: dict[str, Callable[[], Made]] = {
    **{name: (lambda name=name: own(name)) for name in OWN},
    **{name: (lambda inner=inner: of_timm(inner)) for name, inner in TIMM.items()},
    **{name: (lambda inner=inner: of_torchvision(inner)) for name, inner in TORCHVISION.items()},
    **{name: (lambda facts=facts: of_transformers(*facts)) for name, facts in TRANSFORMERS.items()},
}


class MetaRecorder(StepRecorder):
    """Answers a model's questions about values, which tensors on the meta device do not have: masks are full, nothing is found."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__bool__, torch.Tensor.__contains__):
            return func is torch.Tensor.__bool__
        return super().__torch_function__(func, types, args, kwargs)


def loss_of(outputs: Any) -> torch.Tensor:
    """The loss that a model gives, else a sum over its outputs of floats."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float().sum()
    if getattr(outputs, "loss", None) is not None:
        return outputs.loss
    values = list(outputs.values()) if isinstance(outputs, dict) else list(outputs)
    return sum(loss_of(one) for one in values if isinstance(one, torch.Tensor | tuple | list) and len(one))


def record(name: str) -> list[Any]:
    with torch.device("meta"):
        model, inputs = MODELS[name]()
        model.train()
        example = inputs()
        with MetaRecorder() as recorder:
            outputs = model(**example) if "x" not in example else model(example["x"])
        loss_of(outputs).backward()
    for why, count in recorder.left_out.items():
        sys.stdout.write(f"  {name}: {count} calls are no cases: {why}\n")
    return recorder.take(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX")
    minor = ".".join(torch.__version__.split(".")[:2])
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "models" / f"{minor}.jsonl.gz")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    declare_torchvision()
    cases, failed = [], 0
    for name in MODELS:
        if not re.search(options.only, name):
            continue
        try:
            recorded = record(name)
        except Exception as error:  # of a library: this model is left out
            sys.stdout.write(f"{name}: left out: {type(error).__name__}: {error}".partition("\n")[0][:200] + "\n")
            failed += 1
            continue
        cases += recorded
        sys.stdout.write(f"{name}: {len(recorded)} cases, {sum(case.models[name] for case in recorded)} calls\n")
        sys.stdout.flush()
    count, digest = write_list(options.output, merged(cases))
    sys.stdout.write(f"{count} cases, SHA-256 {digest}, {options.output.stat().st_size / 1e6:.2f} MB\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
