"""The same call as a C++ program that needs libtorch alone, with its CMakeLists.txt."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error, operator_of_call
from ._cpp_body import BODY, CMAKE, DECLARED, INCLUDES
from ._cpp_steps import Reference, steps_of
from ._literals import _INTEGERS, _REALS, INLINE, comment, real_numbers, same_bits
from ._make import RUNS, Made
from ._saved import Saved, View, read_saved
from ._script import Plan, _changes_inputs, _contiguous, autocast_dtype, is_inline
from ._trial import run

_DTYPES = {torch.float32: "kFloat", torch.float64: "kDouble", torch.float16: "kHalf", torch.bfloat16: "kBFloat16"}
_DTYPES |= {torch.int64: "kLong", torch.int32: "kInt", torch.int16: "kShort", torch.int8: "kChar", torch.uint8: "kByte"}
_DTYPES |= {torch.bool: "kBool", torch.complex64: "kComplexFloat", torch.complex128: "kComplexDouble"}
_DTYPES |= {torch.float8_e4m3fn: "kFloat8_e4m3fn", torch.float8_e5m2: "kFloat8_e5m2", torch.complex32: "kComplexHalf"}


@dataclass
class MadeCpp:
    """A C++ program as it was written to a folder."""

    folder: Path
    reproduced: int = 0
    trouble: str = ""
    """Why it was not built; "" if it was."""
    lacks_cmake: bool = False
    """That is why."""
    output: str = ""
    """Of its last run."""

    @property
    def reproduces(self) -> bool:
        return self.reproduced == RUNS


def quoted(text: str) -> str:
    """A string literal: each byte that is no letter, digit or plain mark as three octal digits."""
    plain = re.compile(rb"[A-Za-z0-9 _.,:/()=+-]")
    return '"' + "".join(chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in text.encode()) + '"'


def _dtype(dtype: torch.dtype) -> str:
    if dtype not in _DTYPES:
        raise Error(f"{dtype} has no form in a C++ program here")
    return f"at::{_DTYPES[dtype]}"


def _real(text: str) -> str:
    return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text, text)


def _numbers(items: list[str]) -> str:
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) > 100:
            lines.append(line)
            line = ""
        line += item + ", "
    return "{" + "\n      ".join([*lines, line.rstrip(", ")]) + "}"


def _flat(flat: torch.Tensor) -> str:
    real = _REALS.get(flat.dtype)
    if real is not None or flat.dtype.is_floating_point:
        plain = flat.contiguous().view(real) if real is not None else flat
        numbers = real_numbers(plain)
        restored = torch.tensor([float(one) for one in numbers], dtype=torch.float64).to(plain.dtype)
        if same_bits(restored, plain):
            text = f"reals({_numbers([_real(one) for one in numbers])}, {_dtype(plain.dtype)})"
            return text if real is None else f"{text}.view({_dtype(flat.dtype)})"
        bits = _INTEGERS[flat.element_size()]
        return f"integers({_numbers([_integer(one) for one in flat.view(bits).tolist()])}, {_dtype(bits)}).view({_dtype(flat.dtype)})"
    return f"integers({_numbers([_integer(int(one)) for one in flat.tolist()])}, {_dtype(flat.dtype)})"


def _integer(number: int) -> str:
    return "INT64_MIN" if number == -(2**63) else str(number)


class _Arguments:
    """The dispatcher's operator behind a call, or the several that a function in Python calls, with arguments as IValues."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        try:
            target, values = operator_of_call(saved.call.name, saved.call.args, saved.call.kwargs, saved.aten)
        except Error:
            self.lines = [f"x[{number}]" for number in range(len(saved.inputs))]
            self.calls = self.steps()
            return
        name, _, overload = target.partition(".")
        self.lines = self.values(tuple(values), torch._C._get_schema(name, overload))
        self.calls = [f"{_found(name, overload)}.callBoxed(stack);"]

    def steps(self) -> list[str]:
        """The lines that call them in order."""
        steps, results = steps_of(self.saved)
        lines = [
            "Tensors x;",
            "for (const c10::IValue& value : *stack) x.push_back(value.toTensor());",
            "const auto step = [](const c10::OperatorHandle& op, std::vector<c10::IValue> values) {",
            "  op.callBoxed(&values);",
            "  return values;",
            "};",
        ]
        for number, step in enumerate(steps):
            schema = step.target._schema
            values = ", ".join(self.values(step.values, schema))
            lines.append(f"const auto v{number} = step({_found(schema.name, schema.overload_name)}, {{{values}}});")
        return [*lines, f"*stack = {{{', '.join(step.text for step in results)}}};"]

    def values(self, values: tuple[Any, ...], schema: torch._C.FunctionSchema) -> list[str]:
        return [self.value(value, str(argument.type)) for value, argument in zip(values, schema.arguments, strict=True)]

    def tensor(self, argument: torch.Tensor | Reference) -> str:
        if isinstance(argument, Reference):
            return argument.tensor
        number = self.saved.index.get(id(argument))
        if number is not None:
            return f"x[{number}]"
        if argument.dim() == 0:
            item = argument.item()
            if isinstance(item, complex):
                return f"wrapped(c10::complex<double>({item.real!r}, {item.imag!r}))"
            return f"wrapped({_scalar(item)})"
        raise Error("an argument is a tensor that the call does not have")

    def value(self, value: Any, kind: str) -> str:
        if value is None:
            return "c10::IValue()"
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, Reference):
            return value.tensor if "Tensor" in kind else value.text
        if isinstance(value, bool | int | float):
            if "Tensor" in kind:
                return f"wrapped({_scalar(value)})"
            value = float(value) if "float" in kind else value
            return f"c10::IValue({_scalar(value)})"
        if isinstance(value, complex):
            return f"c10::IValue(c10::complex<double>({_scalar(value.real)}, {_scalar(value.imag)}))"
        if isinstance(value, str):
            return f"c10::IValue(std::string({quoted(value)}))"
        if isinstance(value, torch.dtype):
            return f"c10::IValue(static_cast<int64_t>({_dtype(value)}))"
        if isinstance(value, torch.device):
            return "c10::IValue(device)"
        if isinstance(value, torch.layout):
            if value != torch.strided:
                raise Error(f"{value} has no form in a C++ program here")
            return "c10::IValue(static_cast<int64_t>(at::kStrided))"
        if isinstance(value, torch.memory_format):
            name = str(value).removeprefix("torch.")
            words = "".join(word.capitalize() for word in name.split("_"))
            known = {"ChannelsLast3d": "ChannelsLast3d", "ContiguousFormat": "Contiguous", "PreserveFormat": "Preserve"}
            return f"c10::IValue(static_cast<int64_t>(at::MemoryFormat::{known.get(words, words)}))"
        if isinstance(value, list | tuple):
            return self.list(list(value), kind)
        if isinstance(value, torch.Generator):
            return "c10::IValue()"
        raise Error(f"{type(value).__name__} has no form in a C++ program here")

    def list(self, items: list[Any], kind: str) -> str:
        of = kind.removeprefix("Optional[").removeprefix("List[").rstrip("]")
        if "Tensor" in kind:
            optional = "List[Optional[Tensor]" in kind
            element = "std::optional<at::Tensor>" if optional else "at::Tensor"
            texts = ["std::nullopt" if one is None else self.tensor(one) for one in items]
            written = ", ".join(f"{element}({one})" for one in texts)
            return (
                f"c10::IValue(c10::List<{element}>({{{written}}}))"
                if written
                else f"c10::IValue(c10::List<{element}>())"
            )
        if any(isinstance(one, Reference) for one in items):
            raise Error("a list of numbers that an operator computes has no form in a C++ program here")
        element = {"float": "double", "bool": "bool", "number": "at::Scalar"}.get(of, "int64_t")
        numbers = [_scalar(float(one) if element == "double" else one) for one in items]
        written = ", ".join(f"at::Scalar({one})" if of == "number" else one for one in numbers)
        return (
            f"c10::IValue(c10::List<{element}>({{{written}}}))" if written else f"c10::IValue(c10::List<{element}>())"
        )


def _found(name: str, overload: str) -> str:
    return f"c10::Dispatcher::singleton().findSchemaOrThrow({quoted(name)}, {quoted(overload)})"


def _scalar(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"int64_t{{{_integer(value)}}}"
    if not math.isfinite(value):
        return _real(repr(value))
    return value.hex()


def _braced(numbers: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def _view(saved: Saved, view: View) -> str:
    flat, count = f"m{view.memory}", len(saved.memories[view.memory])
    numel = math.prod(view.shape)
    if view.spread:
        text = f"at::empty_strided({_braced(view.shape)}, {_braced(view.spread)}, {flat}.options())"
        text += f".copy_({flat}.as_strided({_braced(view.shape)}, {_braced(view.strides)}))"
    elif view.offset == 0 and numel == count and _contiguous(view):
        text = f"{flat}.reshape({_braced(view.shape)})"  # view({}) would be a view in another dtype
    else:
        text = f"{flat}.as_strided({_braced(view.shape)}, {_braced(view.strides)}, {view.offset})"
    text = f"{text}.conj()" if view.conj else text
    return f"at::_neg_view({text})" if view.neg else text


def _numbers_of(name: str, flat: torch.Tensor, inline: bool, side: dict[str, torch.Tensor]) -> str:
    """A tensor of one dimension; `side` gets tensors that are too large for the text."""
    if inline or len(flat) <= INLINE // 8:
        return _flat(flat)
    side[name] = flat
    return f"saved({quoted(name)})"


def _expected(plan: Plan, inline: bool, side: dict[str, torch.Tensor]) -> str:
    """The judge's expectations of each result."""
    lines = []
    for expected in plan.expected:

        def shaped(name: str, tensor: torch.Tensor, of: str = expected.name) -> str:
            flat = _numbers_of(f"{of}: {name}", tensor.reshape(-1), inline, side)
            return f"{flat}.reshape({_braced(tuple(tensor.shape))})"

        values = [shaped(f"value {i}", value) for i, value in enumerate(expected.values)]
        limit = "{}" if expected.limit is None else shaped("limit", expected.limit)
        strides = ", ".join(f"std::vector<int64_t>{_braced(strides)}" for strides in expected.strides)
        aliases = "std::nullopt" if expected.aliases is None else f"std::vector<int64_t>{_braced(expected.aliases)}"
        dtype = _dtype(expected.dtype) if expected.dtype else "std::nullopt"
        rest = f"{expected.rmse.hex()}, {dtype}, {{{strides}}}, {aliases}, {str(expected.only_sizes).lower()}"
        lines.append(f"      {{{quoted(expected.name)}, {{{{{', '.join(values)}}}, {limit}, {rest}}}}},\n")
    return "std::map<std::string, Expected> expected() {\n  return {\n" + "".join(lines) + "  };\n}\n"


def _inputs(saved: Saved, plan: Plan, inline: bool, side: dict[str, torch.Tensor]) -> str:
    backward = plan.backward
    used = {view.memory: view for view in [*filter(None, saved.gradients if backward else []), *saved.inputs]}
    lines = []
    for number, view in sorted(used.items()):
        data = _numbers_of(f"memory {number}", saved.memories[number], inline, side)
        lines.append(f"const at::Tensor m{number} = " + (data if view.on_cpu else f"put({data})") + ";")
    names = []
    changes = _changes_inputs(saved)
    for number, view in enumerate(saved.inputs):
        wants = view.requires_grad and backward
        text = _view(saved, view) + (".detach().requires_grad_()" if wants else "")
        lines.append(f"const at::Tensor x{number} = {text};")
        lines.append(f"leaves->push_back({f'x{number}' if wants else 'at::Tensor()'});")
        # An operator that changes it must not be given a leaf.
        names.append(f"x{number}.clone()" if wants and changes else f"x{number}")
    for gradient in saved.gradients if backward else []:
        lines.append(f"gradients->push_back({'at::Tensor()' if gradient is None else _view(saved, gradient)});")
    lines.append(f"return {{{', '.join(names)}}};")
    head = "Tensors inputs(const Put& put, Tensors* leaves, Tensors* gradients) {\n"
    return head + "".join(f"  {line}\n" for line in lines) + "}\n"


def _call(saved: Saved, arguments: _Arguments) -> str:
    state = saved.state
    lines = ["c10::AutoGradMode grad(" + ("true" if any(v.requires_grad for v in saved.inputs) else "false") + ");"]
    if saved.call.meta.get("level", "torch") == "torch" and state.get("inference_mode"):
        lines.append("c10::InferenceMode mode;")
    if saved.call.meta.get("rng_consumed"):
        lines.append("at::manual_seed(0);")
    dtype = autocast_dtype(saved, saved.device)
    if dtype:
        lines += [
            f"at::autocast::set_autocast_dtype(device.type(), {_dtype(dtype)});",
            "at::autocast::set_autocast_enabled(device.type(), true);",
            "const std::shared_ptr<void> off(nullptr, [device](void*) {",
            "  at::autocast::clear_cache();",
            "  at::autocast::set_autocast_enabled(device.type(), false);",
            "});",
        ]
    lines += arguments.calls
    return (
        "void call(std::vector<c10::IValue>* stack, at::Device device) {\n  (void)device;\n"
        + "".join(f"  {line}\n" for line in lines)
        + "}\n"
    )


def _load(libraries: tuple[str, ...]) -> str:
    lines = []
    for path in libraries:
        lines += [
            f"  void* library = dlopen({quoted(path)}, RTLD_NOW | RTLD_GLOBAL);",
            '  if (!library) std::fprintf(stderr, "%s\\n", dlerror());',
            '  if (void* load = library ? dlsym(library, "op_tools_load_device") : nullptr) reinterpret_cast<void (*)()>(load)();',
        ]
    return "// Registers the device.\nvoid load() {\n" + "\n".join(lines) + ("\n" if lines else "") + "}\n"


_SAVED = """\
at::Tensor saved(const std::string& name) {{
  std::ifstream file({path}, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return torch::jit::pickle_load(bytes).toGenericDict().at(name).toTensor();
}}
"""


def cpp_text(saved: Saved, repro: Made, side: dict[str, torch.Tensor], side_name: str) -> str:
    """The program's text; `side` gets the tensors of its side file."""
    plan = repro.script.plan
    if plan.imports:
        raise Error("a C++ program cannot import a Python module; give the device's library with --load")
    arguments = _Arguments(saved)
    inline = is_inline(saved, plan)
    inputs, expected = _inputs(saved, plan, inline, side), _expected(plan, inline, side)
    head = f"// {comment(saved.call.name)} on {comment(plan.device)}: {comment(repro.finding)}\n"
    head += f"// ./{side_name.removesuffix('.pth')} [DEVICE]    exit status 1: wrong, 0: right\n"
    includes = INCLUDES + ("#include <fstream>\n#include <torch/csrc/jit/serialization/pickle.h>\n" if side else "")
    constants = (
        f"const char* const kDevice = {quoted(plan.device)};\nconstexpr int kCalls = {plan.calls};\n"
        f"constexpr bool kRaises = {str(plan.raises).lower()};\n"
    )
    listed = "".join(f"      {line},\n" for line in arguments.lines)
    call = (
        "std::vector<c10::IValue> arguments(const Tensors& x, at::Device device) {\n"
        f"  (void)x, (void)device;\n  return {{\n{listed}  }};\n}}\n"
    )
    reader = _SAVED.format(path=quoted(side_name)) + "\n" if side else ""
    parts = [
        head + includes,
        DECLARED,
        constants,
        reader + inputs,
        expected,
        call,
        _call(saved, arguments),
        _load(plan.libraries),
    ]
    return "\n".join(parts) + BODY


def write_cpp(
    folder: str, into: Path, repro: Made, timeout: float, say: Callable[[str], None], *, build: bool = True
) -> MadeCpp:
    """Writes the C++ program for the call of a script, and builds and runs it where a compiler is there.

    Args:
        folder: the saved call.
        into: the folder for the program.
        made: the script.
        timeout: seconds for a run.
        say: gets the progress.
        build: False: it is written only.

    Raises:
        op_tools.Error: the call has no form in C++, or the folder cannot be written.
    """
    saved = read_saved(folder)
    side: dict[str, torch.Tensor] = {}
    text = cpp_text(saved, repro, side, f"{into.name}.pth")
    name = re.sub(r"[^A-Za-z0-9_]", "_", into.name)
    try:
        into.mkdir(parents=True, exist_ok=True)
        (into / f"{name}.cpp").write_text(text)
        (into / "CMakeLists.txt").write_text(CMAKE.format(name=name))
        if side:
            torch.save(side, into / f"{into.name}.pth")
    except OSError as error:
        raise Error(f"{into}: cannot be written: {error.strerror}") from None
    result = MadeCpp(into)
    if build:
        _build_and_run(result, name, timeout)
        say(f"{into}: " + (result.trouble or f"reproduces: {result.reproduced} of {RUNS}"))
    return result


def _build_and_run(program: MadeCpp, name: str, timeout: float) -> None:
    if not shutil.which("cmake"):
        program.trouble, program.lacks_cmake = "not built: there is no cmake", True
        return
    with tempfile.TemporaryDirectory() as build:
        prefix = torch.utils.cmake_prefix_path
        for command in (
            ["cmake", "-S", str(program.folder), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"],
            ["cmake", "--build", build],
        ):
            done = run(command, 600)
            if done.status != 0:
                lines = [line for line in (done.out + done.err).splitlines() if "rror" in line]
                program.trouble = f"not built: {comment(lines[0] if lines else 'no reason')}"
                return
        for _ in range(RUNS):
            done = run([str(Path(build) / name)], timeout, folder=program.folder)
            program.output = done.out + done.err
            program.reproduced += done.status == 1 and "WRONG" in done.out
