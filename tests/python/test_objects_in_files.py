"""Dataclasses, named tuples, arrays and numbers of numpy in captured files: they come back as they were, and a file
makes nothing but objects of imported classes, without running their code."""

import dataclasses
import sys
import types
from collections import namedtuple

import numpy
import pytest
import torch
from test_capture_files import round_trip, take

import op_tools
from op_tools import run_op_from_data
from op_tools._torch import object_forms

Point = namedtuple("Point", "x y")
ORIGIN = Point(1, 2)


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: torch.Tensor
    name: str = "a"
    shape: Point = ORIGIN


@dataclasses.dataclass(slots=True)
class Slots:
    sizes: list[int]


@dataclasses.dataclass
class Stateful:
    size: int = 0

    def __init__(self, size=0):
        raise AssertionError("code of a class ran because of a file")


ARRAYS = [
    numpy.arange(6).reshape(2, 3).astype(dtype)
    for dtype in (
        "bool",
        "int8",
        "uint16",
        "int32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
]
ARRAYS += [numpy.zeros((0, 3)), numpy.array(2), numpy.arange(12).reshape(3, 4)[::2, ::-1]]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}")
def test_arrays_of_numpy_survive_the_file(value):
    for got in round_trip(value)[:2]:
        assert type(got) is numpy.ndarray and got.dtype == value.dtype and got.shape == value.shape
        assert got.tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [numpy.complex64(1 + 2j), numpy.bool_(True)], ids=repr)
def test_numbers_of_numpy_that_are_no_python_numbers_survive_the_file(value):
    for got in round_trip(value)[:2]:
        assert type(got) is type(value) and got == value


@pytest.mark.parametrize(
    "value", [numpy.array(["text"]), numpy.array([object()]), numpy.zeros(2, ">f4")], ids=["text", "objects", ">f4"]
)
def test_arrays_that_torch_has_no_dtype_for_are_left_out_with_a_note(value):
    got, _, meta = round_trip(value)
    assert got is None
    assert "torch has no dtype" in str(meta["unsupported"])


def test_dataclasses_and_named_tuples_survive_the_file_as_what_they_are():
    value = Settings(torch.arange(3.0))
    for got in round_trip(value)[:2]:
        assert type(got) is Settings and type(got.shape) is Point
        assert got.scale.equal(value.scale) and (got.name, got.shape) == ("a", Point(1, 2))
    for got in round_trip(Slots([1, 2]))[:2]:
        assert got == Slots([1, 2])
    got = round_trip(torch.nn.utils.rnn.pack_sequence([torch.ones(2)]))[0]
    assert type(got) is torch.nn.utils.rnn.PackedSequence and got.data.equal(torch.ones(2))


def test_dataclasses_that_cannot_be_made_again_are_left_out_with_a_note():
    @dataclasses.dataclass
    class Local:
        size: int = 1

    extra = Slots.__new__(Slots)
    more = Settings(torch.ones(1))
    object.__setattr__(more, "_cache", 1)
    for value, why in [(Local(), "found again"), (extra, "without the value"), (more, "more than its fields")]:
        got, _, meta = round_trip(value)
        assert got is None
        assert why in str(meta["unsupported"])


def test_a_class_of_a_file_is_neither_imported_nor_run(monkeypatch, capfd):
    name = "test_objects_in_files.Stateful"
    instance = object_forms.from_form(object_forms.DATACLASS, (name, {"size": 3}))
    assert type(instance) is Stateful and instance.size == 3
    fields = {"size": 3}
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was looked up")
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)

    @dataclasses.dataclass
    class Freed:
        size: int

        def __del__(self):
            pytest.fail("code of a class ran because of a file")

    @dataclasses.dataclass
    class Property:
        size: int

    Property.size = property(lambda self: 1, lambda self, value: pytest.fail("a setter ran"))
    monkeypatch.setattr(sys.modules[__name__], "Freed", Freed, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "Property", Property, raising=False)
    module = __name__
    hostile = [
        "antigravity.Flying",
        "lazy_module.Wanted",
        "os.system",
        "builtins.dict",
        "subprocess.Popen",
        "",
        "..",
        f"{module}.Freed",
        f"{module}.Property",
        f"{module}.Settings",
        f"{module}.Settings.__class__",
        f"{module}.Stateful.__init__",
    ]
    for name in hostile:
        assert object_forms.from_form(object_forms.DATACLASS, (name, dict(fields))) == fields, name
        assert type(object_forms.named_tuple(name, (1, 2))) is tuple, name
    assert "antigravity" not in sys.modules
    assert "there is no such dataclass in an imported module" in capfd.readouterr().err
    for content in [(1, {}), ("a",), None, ("a", {1: 2})]:
        assert object_forms.from_form(object_forms.DATACLASS, content) is NotImplemented
    for content in [
        (torch.float32, torch.Size([2]), b"abc"),
        (torch.bfloat16, torch.Size([1]), b"ab"),
        (torch.float32, torch.Size([-1, -4]), b"a" * 16),
    ]:
        assert object_forms.from_form(object_forms.ARRAY, content) is NotImplemented
    assert object_forms.named_tuple("torch.return_types.max", (1,)) == (1,)
    assert type(object_forms.named_tuple("os.stat_result", tuple(range(10)))) is tuple


def test_tensors_of_a_dataclass_have_the_places_that_gradients_name(tmp_path):
    """The walk over objects and the walk over values count the same tensors."""
    scale = torch.ones(2, requires_grad=True)
    seen = []

    class Look(op_tools.Hook):
        def before(self, call):
            seen.append((call.name, call.args))

    with op_tools.HookScope(Look()), op_tools.OpTimeMeasure(output_dir=tmp_path) as times:
        take(Settings(scale), torch.ones(3))
    (args,) = [args for name, args in seen if name.endswith("take")]
    assert args[0].scale is scale
    assert [row.calls for row in times.result().rows if row.op.endswith("take")] == [1]


def test_calls_with_such_values_replay(tmp_path):
    options = torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions()
    inputs = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(5, 8)
    with op_tools.OpCapture(output_dir=tmp_path) as tool:
        loss = torch.nn.functional.linear_cross_entropy(inputs, weight, torch.arange(4), options=options)
        loss.backward()
        torch.as_tensor(numpy.arange(4.0))
        torch.tensor(numpy.arange(4, dtype="int16"), dtype=torch.float32)
        torch.ones(5)[numpy.array([0, 3])]
        torch.stack(Point(torch.ones(2), torch.zeros(2)))
    root = tool.result().root
    report = tmp_path / "report.json"
    assert run_op_from_data.main([str(root), "--acc_check", "--json", str(report)]) == 0
    text = report.read_text()
    for name in ("linear_cross_entropy", "as_tensor", "torch.tensor", "__getitem__", "torch.stack"):
        assert name in text
