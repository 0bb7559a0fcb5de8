"""Dumps the operators of a network, for api_dump_start and api_dump_stop."""

from __future__ import annotations

import dis
import linecache
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

import op_tools
from op_tools import Call, Error, Hook, HookScope
from op_tools._base.core import log_warn
from op_tools.formats._names import METHODS, their_name
from op_tools.formats._troubleshooter_writer import ApiDumpWriter

# Calls that the tool does not dump: reading of elements and properties, copies, new tensors.
_LEFT_OUT = frozenset(
    "__getitem__ __setitem__ to float half double bfloat16 int long bool detach detach_ clone contiguous cpu cuda item "
    "tolist numpy requires_grad_ ones_like zeros_like empty_like new_zeros new_ones new_full new_empty new_tensor tensor "
    "as_tensor zeros ones empty type copy_ zero_ retain_grad backward register_hook".split()
)
# torch's own folders, as the tool has them.
_TORCH_FOLDERS = tuple(
    f"/torch/{name}/"
    for name in "autograd backends cuda distributed distributions fft fx jit linalg nn onnx optim profiler quantization".split()
)
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList)
# The method that an operator of Python runs, by the function that torch runs for it.
_OPERATORS = {method: f"__{name}__" for name, method in reversed(METHODS.items()) if name[0] != "r" or name == "rshift"}
_OPERATOR_CODES = {
    code for name, code in dis.opmap.items() if name.startswith(("BINARY_", "INPLACE_", "UNARY_", "COMPARE_OP"))
}


@dataclass(frozen=True)
class Settings:
    """The arguments of api_dump_start."""

    mode: str
    scope: tuple[str, ...]
    values: bool
    wanted: tuple[str, ...]
    filter_data: bool
    filter_stack: bool


class _NoDropout(TorchFunctionMode):
    """Nothing is dropped: the p of every function that drops is 0."""

    # The function, the place of its p, and its name.
    _places = {  # noqa: RUF012
        **dict.fromkeys(
            [
                getattr(torch.nn.functional, name)
                for name in "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout".split()
            ]
            + [torch.dropout, torch.dropout_, torch.alpha_dropout, torch.feature_dropout],
            (1, "p"),
        ),
        torch.nn.functional.scaled_dot_product_attention: (4, "dropout_p"),
    }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._places:
            place, name = self._places[func]
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs[name] = 0.0
        return func(*args, **kwargs)


class _Busy(threading.local):
    """The state of a thread."""

    depth = 0  # inside of how many modules of torch, or steps of optimizers, whose functions are not dumped


class Dumping(Hook):
    """The dump of a network by a rank. Functions are seen by the hook, modules by hooks of the network's modules.

    Args:
        net: the network.
        output: the folder of all ranks.
        retain_backward: also dump the gradients of the results.
    """

    def __init__(self, net: torch.nn.Module, output: Path, *, retain_backward: bool) -> None:
        self._net, self._retain = net, retain_backward
        self._folder = output / f"rank{_own_rank()}"
        self._writer: ApiDumpWriter | None = None
        self._settings: Settings | None = None
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._busy = _Busy()
        self._range = "before"  # the range of mode "range"; then "in" and "after"
        self._on = ExitStack()

    def save_state(self) -> None:
        """Writes pt_net.pth."""
        path = self._folder / "pt_net.pth"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            torch.save(self._net.state_dict(), path)
            path.chmod(0o400)
        except OSError as error:
            raise Error(f"{path}: {error.strerror}") from None

    # --- On and off ---

    def start(self, settings: Settings) -> None:
        """Starts, or goes on with other settings."""
        self.stop()
        if self._writer is None:
            self._writer = ApiDumpWriter(self._folder, values=False, wanted=(), filter_data=True)
        self._writer.configure(values=settings.values, wanted=settings.wanted, filter_data=settings.filter_data)
        self._settings, self._range, self._busy = settings, "before", _Busy()
        with ExitStack() as on:
            on.enter_context(self._dropout_off())
            on.enter_context(_NoDropout())
            for handle in self._handles():
                on.callback(handle.remove)
            scope = HookScope(self, level="torch").start()
            on.callback(scope.stop)
            self._on = on.pop_all()

    def stop(self) -> None:
        """Stops; the files are complete but for gradients that are still to come."""
        self._on.close()
        self._settings = None
        if self._writer is not None:
            self._writer.close()

    def end(self) -> None:
        """Stops for good."""
        self.stop()
        if self._writer is not None:
            self._writer.end()
            self._writer = None

    @contextmanager
    def _dropout_off(self) -> Iterator[None]:
        """The p of the network's modules, too: a module may read it itself."""
        changed: list[tuple[torch.nn.Module, str, Any]] = []
        for module in self._net.modules():
            for kind, name in ((torch.nn.modules.dropout._DropoutNd, "p"), (torch.nn.RNNBase, "dropout")):
                if isinstance(module, kind):
                    changed.append((module, name, getattr(module, name)))
                    setattr(module, name, 0.0)
        try:
            yield
        finally:
            for module, name, value in changed:
                setattr(module, name, value)

    def _handles(self) -> Iterator[Any]:
        for path, module in self._net.named_modules():
            kind = _torch_class(module)
            if kind:
                yield module.register_forward_pre_hook(self._enter)
            yield module.register_forward_hook(self._module_hook(path, kind), always_call=True)
        yield register_optimizer_step_pre_hook(self._enter)
        yield register_optimizer_step_post_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._busy.depth += 1

    def _leave(self, *_: Any) -> None:
        self._busy.depth -= 1

    # --- Calls ---

    def _module_hook(self, path: str, kind: str) -> Callable[..., None]:
        def after(_: torch.nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if kind:
                self._leave()
            if result is None:  # it raised
                return
            with torch._C.DisableTorchFunction(), torch.no_grad():  # calls in here are not the program's
                try:
                    self._module_done(path, kind, args, result)
                except Exception as error:
                    log_warn(f"api_dump: {path or 'the network'} is not dumped: {error}")

        return after

    def _module_done(self, path: str, kind: str, args: tuple[Any, ...], result: Any) -> None:
        if self._writer is None:
            return
        if path and self._admits(f"LAYER_{path.replace('.', '_')}"):
            self._writer.layer(path, self._lines())
        if kind:
            name = self._name("NN", kind)
            if self._admits(name):
                self._stack(name, "NN", kind)
                self._writer.value(f"{name}_forward_input", args)
                self._output(name, result)

    def before(self, call: Call) -> str | None:
        """Counts a function of the program, and dumps its arguments."""
        kind, function = their_name(call.name)
        if self._busy.depth or call.phase != "forward" or function in _LEFT_OUT:
            return None
        if kind not in ("Functional", "Tensor", "Torch") or not function.isidentifier():
            return None
        if kind == "Tensor" and function in _OPERATORS and _is_operator(sys._getframe(1)):
            function = _OPERATORS[function]
        name = self._name(kind, function)
        if not self._admits(name) or self._writer is None:
            return None
        self._stack(name, kind, function)
        self._writer.value(f"{name}_forward_input", call.args)
        return name

    def after(self, call: Call, state: object) -> None:
        """Dumps its results."""
        if isinstance(state, str) and not call.error:
            self._output(state, call.result)

    def _output(self, name: str, result: Any) -> None:
        if self._writer is None:
            return
        dumped = self._writer.value(f"{name}_forward_output", result)
        if not self._retain:
            return
        for place, tensor in _named_tensors(result):
            if tensor.requires_grad and any(tensor is one for one in dumped):
                tensor.register_hook(self._gradient(f"{name}_backward_input{place}"))  # type: ignore[no-untyped-call]

    def _gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        writer = self._writer

        def dump(gradient: torch.Tensor) -> None:
            if writer is None or gradient is None:
                return
            with torch._C.DisableTorchFunction(), torch.no_grad():
                try:
                    writer.value(name, gradient.detach())
                    if self._settings is None:
                        writer.close()
                except Exception as error:
                    log_warn(f"api_dump: {name} is not dumped: {error}")

        return dump

    def _name(self, kind: str, function: str) -> str:
        with self._lock:
            self._numbers[f"{kind}_{function}"] += 1
            return f"{kind}_{function}_{self._numbers[f'{kind}_{function}'] - 1}"

    def _admits(self, name: str) -> bool:
        settings = self._settings
        if settings is None:
            return False
        if settings.mode == "range":
            if name == settings.scope[0]:
                self._range = "in"
            is_in = self._range == "in"
            if name == settings.scope[1]:
                self._range = "after"
            return is_in
        if settings.mode == "list":
            return name in settings.scope
        return settings.mode == "all" or any(one in name.lower() for one in settings.scope)

    def _stack(self, name: str, kind: str, function: str) -> None:
        if self._writer is not None:
            self._writer.stack(kind, function, int(name.rpartition("_")[2]), self._lines())

    def _lines(self) -> list[str]:
        """The program's stack, the innermost line first."""
        lines = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_BETWEEN):
            frame = frame.f_back
        while frame is not None:
            path = frame.f_code.co_filename
            is_torch = any(folder in path for folder in _TORCH_FOLDERS) or path.startswith(_OUR_FOLDERS)
            if not (is_torch and (self._settings is None or self._settings.filter_stack)):
                code = linecache.getline(path, frame.f_lineno).strip()
                lines.append(f"File {path}, line {frame.f_lineno}, in {frame.f_code.co_name}, \n {code}")
            frame = frame.f_back
        return lines


# Between the program's line and the hook: how torch hands a function to modes.
_BETWEEN = (__file__, "/torch/overrides.py", "/torch/nn/functional.py", "/torch/functional.py", "/torch/_tensor.py")
_OUR_FOLDERS = (str(Path(__file__).resolve().parents[1]), str(Path(op_tools.__file__).resolve().parent))


def _own_rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


def _torch_class(module: torch.nn.Module) -> str:
    """The class of torch that a module is, or derives from; "" if it is the program's own, or a container."""
    if isinstance(module, _CONTAINERS):
        return ""
    for base in type(module).__mro__:
        if base.__module__.startswith("torch.nn.modules.") and base is not torch.nn.Module:
            return base.__name__
    return ""


def _is_operator(frame: FrameType) -> bool:
    """Whether the program's line is at an operator of Python (a * b), and not at a call (a.mul(b))."""
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:  # of _NoDropout
        frame = frame.f_back
    at = frame.f_lasti
    return 0 <= at < len(frame.f_code.co_code) and frame.f_code.co_code[at] in _OPERATOR_CODES


def _named_tensors(value: Any, place: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _named_tensors(item, f"{place}.{i}")
