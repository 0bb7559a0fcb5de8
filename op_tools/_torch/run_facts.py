"""The facts of a program in its recording: the command line, versions, the git commit, and names of the models' tensors."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shlex
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .._base.core import launched_ranks, running_tools
from .module_names import without_compiled, without_wrapper

_Named = tuple[str, str, torch.Tensor]  # name, origin, tensor

# The models that were seen running, each with the memory of its first tensor (other memory after .to(device)), the names of
# its gradients, and the recordings that know its tensors.
_Gradients = list[tuple[str, "weakref.ref[torch.nn.Module]", str]]
_models: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, _Gradients, set[int]]] = weakref.WeakKeyDictionary()


def _git_commit(folder: Path) -> str:
    """The commit that is checked out in a folder; "" where there is none. No process is started for it."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():  # a worktree
            git = Path(git.read_text(encoding="utf-8").partition("gitdir:")[2].strip())
        if not (git / "HEAD").is_file():
            continue
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = git / "commondir"
        root = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
        if (root / name).is_file():
            return (root / name).read_text(encoding="utf-8").strip()
        packed = root / "packed-refs"
        lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
        return next((line.partition(" ")[0] for line in lines if line.endswith(f" {name}")), "")
    return ""


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    # A torch that was built for a device is here without its driver.
    if accelerator is None or not torch.accelerator.is_available():
        return []
    module = getattr(torch, accelerator.type, None)
    name = getattr(module, "get_device_name", None)
    if name is None:
        return [accelerator.type]
    return [str(name(index)) for index in range(torch.accelerator.device_count())]


def _start_words() -> list[str]:
    """The words behind `python` with which the program starts again: ["-m", "package.train", "--lr", "0.1"]."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name.partition(".")[0] == "op_tools":
        return list(sys.argv)
    return ["-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]


_NOT_OF_RUNS = (
    "OP_TOOLS_BUILD_DIR",
    "OP_TOOLS_EXTRAS",
    "OP_TOOLS_JOBS",
    "OP_TOOLS_LOG_LEVEL",
    "OP_TOOLS_TOGETHER",
    "OP_TOOLS_TORCH",
    "OP_TOOLS_VENV",
)


_AT_START = dict(os.environ)  # op-tools run adds variables, for the processes that its program starts


def _command() -> str:
    """The command that starts this process again, for a shell: its words, and the variables of op_tools; "" where they are not known."""
    words = sys.orig_argv[1:]
    if not words or "-c" in words[:2]:
        return ""  # a process that multiprocessing started, or a console
    if Path(words[0]).name == "op-tools":
        words = ["op-tools", *words[1:]]
    elif words[:2] == ["-m", "op_tools"]:
        words = ["op-tools", *words[2:]]
    else:
        words = ["python", *words]
    names = [name for name in sorted(_AT_START) if name.startswith("OP_") and name not in _NOT_OF_RUNS]
    if "OP_TOOLS" in names:
        names.append("PYTHONPATH")  # has the folder that starts the tools
    variables = [f"{name}={_AT_START[name]}" for name in names if _AT_START.get(name)]
    return shlex.join(["env", *variables, *words] if variables else words)


def _capture_folder() -> str:
    """Of an OpCapture that is on beside the recording; "" where there is none."""
    tools: list[Any] = running_tools()
    for tool in tools:
        if tool._kind == "OpCapture":
            parent = tool._settings().get("output_dir") or os.environ.get("OP_TOOLS_OUTPUT_DIR") or ""
            return str(Path(parent).absolute() / "op_capture_result")
    return ""


def _as_utf8(text: str) -> str:
    """Text that has a UTF-8 form: of a path that has none, the bytes are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def working_folder() -> str:
    """Of the process; "" where it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def program_start() -> dict[str, str]:
    """The command that starts the program again, and its folder."""
    return {"folder": _as_utf8(working_folder()), "command": _as_utf8(_command())}


def gathers_collectives() -> bool:
    """Whether collectives are put together (`_coalescing_manager`), and begin when its block ends."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    try:
        return bool(getattr(world, "pg_coalesce_state", None))
    except Exception:  # of another version of torch
        return False


def packs_saved_tensors() -> bool:
    """Do functions pack the tensors that autograd saves on this thread (torch.autograd.graph.saved_tensors_hooks) that are not torch's
    own? Those of checkpoints and of save_on_cpu give the same numbers back; others may give rounded numbers. True where this torch does
    not tell."""
    functions_of = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if functions_of is None:
        return True
    functions = functions_of(True)
    return functions is not None and any(
        not str(getattr(function, "__module__", "")).startswith("torch.") for function in functions
    )


def program_facts() -> dict[str, Any]:
    """For the header of a recording."""
    facts: dict[str, Any] = {"python": platform.python_version(), **program_start()}
    facts["argv"], facts["start"] = [_as_utf8(one) for one in sys.argv], [_as_utf8(one) for one in _start_words()]
    facts["capture"] = _as_utf8(_capture_folder())
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        facts["git"] = _git_commit(Path(main).absolute().parent if main else Path(working_folder()))
    except (OSError, ValueError):  # an unreadable repository is no reason to record nothing
        facts["git"] = ""
    distributed = torch.distributed
    in_group = distributed.is_available() and distributed.is_initialized()
    facts["world_size"] = distributed.get_world_size() if in_group else launched_ranks()
    if not in_group and multiprocessing.parent_process() is not None:
        facts["child"] = True  # its rank is its number among the processes that its parent started
    facts["devices"] = _devices()
    facts["tf32"] = {
        "matmul": torch.backends.cuda.matmul.allow_tf32 if torch.cuda.is_available() else False,
        "cudnn": torch.backends.cudnn.allow_tf32 if torch.cuda.is_available() else False,
    }
    return facts


def _tensors_in(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors_in(item, f"{place}[{i}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _tensors_in(item, f"{place}.{name}")


def _tensors_of(model: torch.nn.Module) -> Iterator[_Named]:
    kind = type(model).__name__
    for name, parameter in model.named_parameters():
        yield f"{kind}.{without_wrapper(name)}", "parameter", parameter
    for name, buffer in model.named_buffers():
        yield f"{kind}.{without_wrapper(name)}", "buffer", buffer


def _parameter(module: torch.nn.Module | None, name: str) -> torch.Tensor | None:
    """By its module: torch.utils.swap_tensors refuses a tensor that weak references know."""
    return None if module is None else module._parameters.get(name)


def _place_of(model: torch.nn.Module) -> int | None:
    """Changes where the parameters are exchanged; None: they are those of a transformation of functorch, for a call."""
    first = next(model.parameters(), None)
    if first is None or isinstance(first, torch.nn.parameter.UninitializedParameter):
        return 0
    if torch._C._functorch.is_functorch_wrapped_tensor(first):
        return None
    try:
        return first.data_ptr()
    except RuntimeError:  # no memory: of a trace, for a call; or on a device whose tensors have no storage
        return id(first) if type(first) in (torch.Tensor, torch.nn.Parameter) else None


def named_tensors(model: torch.nn.Module | None, args: Any, kwargs: Any, recording: int) -> list[_Named]:
    """Names for the tensors of models: inside of a model, its parameters and buffers (where they are new, or new to this
    recording) and its arguments; outside, the gradients of all."""
    if model is None:
        return [
            (name, "gradient", parameter.grad)
            for _, gradients, _ in list(_models.values())
            for name, module, short in gradients
            if (parameter := _parameter(module(), short)) is not None and parameter.grad is not None
        ]
    model = without_compiled(model)
    place = _place_of(model)
    new: list[_Named] = []
    known = _models.get(model)
    if known is not None and known[0] == place and recording not in known[2]:
        new += _tensors_of(model)
        known[2].add(recording)
    elif place is not None and (known is None or known[0] != place):
        new += _tensors_of(model)
        kind = type(model).__name__
        gradients = [
            (".".join(filter(None, (f"grad:{kind}", without_wrapper(path), short))), weakref.ref(module), short)
            for path, module in model.named_modules()
            for short in module._parameters
        ]
        _models[model] = (place, gradients, {recording})
    name = type(model).__name__
    inputs = [*_tensors_in(list(args or ()), f"{name}.input"), *_tensors_in(dict(kwargs or {}), f"{name}.input")]
    return new + [(where, "input", tensor) for where, tensor in inputs]


def parameter_names() -> dict[torch.Tensor, str]:
    """Of the models that were seen running: "Net.fc.weight"."""
    named = [one for model in list(_models) for one in _tensors_of(model)]
    return {tensor: name for name, origin, tensor in named if origin == "parameter"}
