"""The files of OpCapture: every kind of value, no more bytes than needed, complete files whatever happens."""

import json
import os
import re
import time
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import same_bits

import op_tools

ROOT = Path(__file__).resolve().parents[2]
FILES = ["input.pth", "output.pth", "grad_inputs.pth", "grad_outputs.pth"]
LAYOUTS = ["folders", "container"]


class Anything:
    """Takes part in torch's function protocol, so that a call with any arguments can be made."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.zeros(1)


def take(*args, **kwargs):
    """A torch function that takes whatever it is given."""
    return torch.overrides.handle_torch_function(take, (Anything(),), *args, **kwargs)


def round_trip(value):
    """The value as op_tools reads it back from the captured input of a call that got it."""
    with op_tools.OpCapture() as tool:
        take(value, key=value)
    (call,) = [p.parent for p in Path(tool.result().root).rglob("meta.json")]
    torch.load(call / "input.pth", weights_only=True)
    loaded = op_tools.load_call(call)
    return loaded.args[0], loaded.kwargs["key"], loaded.meta


Point = namedtuple("Point", "x y")

PLAIN_VALUES = [
    0,
    -(2**63),
    2**63 - 1,
    True,
    False,
    1.5,
    float("inf"),
    -0.0,
    1 + 2j,
    None,
    "text",
    "",
    "Zeichen ✓ \N{SNOWMAN} \n",
    torch.float32,
    torch.bfloat16,
    torch.complex64,
    torch.bool,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.device("cpu"),
    torch.device("cuda", 1),
    torch.device("meta"),
    torch.strided,
    torch.sparse_coo,
    torch.contiguous_format,
    torch.channels_last,
    torch.preserve_format,
    slice(None),
    slice(1, 10, 2),
    Ellipsis,
    torch.Size([]),
    torch.Size([2, 3]),
    b"bytes \x00\xff",
    {1, 2},
    (),
    [],
    {},
    [1, [2, (3, {"a": [None, slice(1)]})]],
    (slice(None), None, ..., 3),
    {"a": 1, 2: "b", "nested": {"deep": (torch.float16, torch.Size([4]))}},
    (("same", "same"), ("same",)),
]


@pytest.mark.parametrize("value", PLAIN_VALUES, ids=lambda v: repr(v)[:40])
def test_value_survives_the_file(value):
    positional, keyword, meta = round_trip(value)
    for got in (positional, keyword):
        assert type(got) is type(value)
        assert repr(got) == repr(value)
    assert not meta.get("unsupported")


def test_named_tuple_survives_as_its_items():
    positional, _, meta = round_trip(Point(1, "a"))
    assert tuple(positional) == (1, "a")
    assert not meta.get("unsupported")


def test_generator_survives_by_its_state():
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    positional, _, meta = round_trip(generator)
    assert isinstance(positional, torch.Generator)
    assert torch.equal(torch.rand(4, generator=positional), torch.rand(4, generator=generator))
    assert not meta.get("unsupported")


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_of_every_dtype_survives_in_a_file_that_torch_loads_mapped(dtype, captured):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    with op_tools.OpCapture(ops="torch.clone") as tool:
        torch.clone(tensor.t())
    (call,) = captured(tool)
    for mmap in (False, True):
        read = torch.load(call.folder / "input.pth", weights_only=True, mmap=mmap)["args"][0]
        assert (read.dtype, read.stride(), read.shape) == (dtype, (1, 3), (3, 2))
        assert same_bits(read, tensor.t())


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3.0), torch.empty(0), torch.empty(3, 0, 2), torch.ones(1).expand(4, 5), torch.arange(10)[3:8:2]],
    ids=["scalar", "empty", "empty in one dimension", "expanded", "strided"],
)
def test_shapes_and_strides_survive(tensor, captured):
    with op_tools.OpCapture(ops="torch.clone") as tool:
        torch.clone(tensor)
    (call,) = captured(tool)
    assert same_bits(call.args[0], tensor)
    assert call.meta["inputs"][0]["stride"] == list(tensor.stride())


def test_requires_grad_survives(captured):
    with op_tools.OpCapture(ops="torch.add") as tool:
        torch.add(torch.ones(2, requires_grad=True), torch.ones(2))
    (call,) = captured(tool)
    assert [a.requires_grad for a in call.args] == [True, False]
    assert [i["requires_grad"] for i in call.meta["inputs"]] == [True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse_coo().coalesce().requires_grad_(),
    ],
    ids=["coo", "csr", "coo with gradient"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensor_survives(make, captured):
    tensor = make()
    with op_tools.OpCapture(ops="torch.mul") as tool:
        expected = torch.mul(tensor, 2)
    (call,) = captured(tool)
    assert not call.meta.get("unsupported")
    read = call.args[0]
    assert read.layout == tensor.layout
    assert torch.equal(read.to_dense(), tensor.detach().to_dense())
    assert torch.equal(call.result.to_dense(), expected.detach().to_dense())


class Wrapper(torch.Tensor):
    """A subclass without a storage of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*torch.utils._pytree.tree_map_only(cls, lambda w: w.inner, args), **(kwargs or {}))


UNUSUAL = {
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.ones(3, device="meta"),
    "wrapper": lambda: Wrapper(torch.ones(3)),
}


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.filterwarnings("ignore:.*nested tensors.*", "ignore:.*quantize.*", "ignore::DeprecationWarning")
def test_tensor_without_a_form_in_a_file_is_noted_and_the_call_goes_on(kind, captured):
    tensor = UNUSUAL[kind]()
    with op_tools.OpCapture(ops="torch.clone,torch.Tensor.clone") as tool:
        result = torch.clone(tensor)
    assert tuple(result.size()) == tuple(tensor.size()) if kind != "nested" else result.is_nested
    (call,) = captured(tool)
    for path in call.folder.glob("*.pth"):
        torch.load(path, weights_only=True)
    notes = call.meta.get("unsupported", [])
    if kind == "meta":  # shape and dtype are all that a meta tensor is
        assert call.meta["inputs"][0]["device"] == "meta"
    else:
        assert notes and notes[0]["where"] == "args[0]" and notes[0]["why"]
        assert tool.result().rows[0].unsupported == len(notes)
    assert tool.result().failure == ""


def test_object_without_a_form_in_a_file_is_noted():
    positional, _, meta = round_trip(Anything)
    assert [note["where"] for note in meta["unsupported"]] == ["args[0]", "kwargs.key"]
    assert all("callable" in note["why"] for note in meta["unsupported"])
    assert positional is not Anything


def test_container_that_contains_itself_is_noted_and_ends():
    endless = [1]
    endless.append(endless)
    _, _, meta = round_trip(endless)
    assert "nested too deeply" in meta["unsupported"][0]["why"]


BIG = torch.arange(25_000_000, dtype=torch.float32)  # 100 MB
VIEWS = {
    "ten elements in the middle": lambda: BIG[1000:1010],
    "a column": lambda: BIG.view(10, -1)[:, 0],
    "every millionth": lambda: BIG[::2_500_000],
    "a corner": lambda: BIG.view(5000, 5000)[:3, -3:],
    "the last element": lambda: BIG[-1],
    "expanded": lambda: BIG[7].expand(1000, 1000),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_small_view_of_a_large_tensor_gives_a_small_file_with_its_strides(kind, captured):
    view = VIEWS[kind]()
    with op_tools.OpCapture(ops="torch.neg") as tool:
        torch.neg(view[:2] if view.dim() == 2 else view)
        torch.isnan(view)
    (call,) = captured(tool)
    assert (call.folder / "input.pth").stat().st_size < 8_000
    shown = view[:2] if view.dim() == 2 else view
    assert torch.equal(call.args[0], shown)
    noted = call.file("input.pth").get("restrided", {})
    assert tuple(noted.get(0, call.args[0].stride())) == shown.stride()
    assert call.meta["inputs"][0]["stride"] == list(shown.stride())
    assert tool.result().rows[0].bytes < 10_000_000


def test_inputs_that_share_memory_share_it_in_the_file(captured):
    base = torch.arange(12.0)
    first, second = base[:8], base[4:].view(2, 4)[0]
    with op_tools.OpCapture(ops="torch.cat") as tool:
        torch.cat([first, second, torch.ones(1)])
    (call,) = captured(tool)
    first, two, other = call.args[0]
    assert first.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    assert other.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    first[4] = 99
    assert two[0] == 99
    storages = [i["storage"] for i in call.meta["inputs"]]
    assert storages[0] == storages[1] != storages[2]


def test_same_tensor_given_twice_is_one_tensor_in_the_file(captured):
    x = torch.ones(1000)
    with op_tools.OpCapture(ops="torch.mul") as tool:
        torch.mul(x, x)
    (call,) = captured(tool)
    first, two = call.args
    assert first.data_ptr() == two.data_ptr()
    assert (call.folder / "input.pth").stat().st_size < 7_000


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_inputs_are_those_before_an_in_place_call(level, captured):
    x = torch.zeros(3)
    with op_tools.OpCapture(level=level, ops="torch.Tensor.add_,aten::add_") as tool:
        x.add_(5)
        x[1:].mul_(2)
        x.add_(x)
    first, second = captured(tool)
    assert first.args[0].tolist() == [0, 0, 0] and first.result.tolist() == [5, 5, 5]
    assert second.args[0].tolist() == [5, 10, 10] and second.result.tolist() == [10, 20, 20]


def described(value):
    """Shapes, dtypes, elements of a nested value; not where the tensors lie in memory."""
    tensors = [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    text = re.sub(r"'data': \d+", "", op_tools._C.describe(value))
    return text, [x.tolist() for x in tensors]


def test_both_layouts_hold_the_same(captured):
    def program():
        torch.manual_seed(0)
        x = torch.randn(4, 3, requires_grad=True)
        F.dropout(F.linear(x, torch.ones(2, 3)), 0.5).sum().backward()

    with op_tools.OpCapture() as folders:
        program()
    with op_tools.OpCapture(format="container") as container:
        program()
    archive = zipfile.ZipFile(Path(container.result().root) / "calls.zip")
    assert archive.testzip() is None
    calls = captured(folders)
    names = sorted(archive.namelist())
    assert len(names) == sum(len(list(call.folder.iterdir())) for call in calls)
    by_op = {name.split("/")[0]: name.rsplit("/", 1)[0] for name in names}
    for call in calls:
        inside = by_op[call.folder.parent.name]
        for name in FILES:
            if call.file(name) is None:
                assert f"{inside}/{name}" not in names
                continue
            with archive.open(f"{inside}/{name}") as file:
                other = torch.load(file, weights_only=True)
            assert described(other["args"]) == described(call.file(name)["args"])
        meta = json.loads(archive.read(f"{inside}/meta.json"))
        assert meta.keys() == call.meta.keys() and meta["state"] == call.meta["state"]
    assert container.result().rows == folders.result().rows


def test_meta_says_what_the_table_in_the_architecture_promises(captured):
    x = torch.randn(4, 3, requires_grad=True)
    tool = op_tools.OpCapture(ops="torch.nn.functional.linear,torch.nn.functional.dropout")
    with tool, torch.autocast("cpu", torch.bfloat16):
        tool.step()
        y = F.linear(x[:, 1:], torch.randn(2, 2))
        F.dropout(y, 0.5)
    linear, dropout = captured(tool)
    meta = linear.meta
    promised = "format name level id step rank pid thread inputs outputs state rng_consumed stack time torch op_tools"
    assert set(promised.split()) - meta.keys() <= {"thread"}
    assert (meta["format"], meta["name"], meta["level"], meta["step"]) == (1, "torch.nn.functional.linear", "torch", 1)
    assert (meta["rank"], meta["pid"], meta["id"]) == (0, os.getpid(), linear.id)
    assert abs(meta["time"] - time.time()) < 60
    assert (meta["torch"], meta["op_tools"]) == (torch.__version__.split("+")[0], op_tools.__version__)
    first = meta["inputs"][0]
    assert (first["shape"], first["stride"], first["offset"]) == ([4, 2], [3, 1], 1)
    assert (first["dtype"], first["device"], first["layout"]) == ("torch.float32", "cpu", "torch.strided")
    assert (first["requires_grad"], first["is_leaf"]) == (True, False)
    assert meta["outputs"][0]["dtype"] == "torch.bfloat16"
    assert meta["state"]["autocast"] == {"cpu": "torch.bfloat16"}
    assert meta["state"]["grad_enabled"] is True and meta["state"]["inference_mode"] is False
    assert meta["stack"][0].startswith(f"{__file__}:") and meta["stack"][0].endswith(
        "test_meta_says_what_the_table_in_the_architecture_promises"
    )
    assert meta["rng_consumed"] is False and dropout.meta["rng_consumed"] is True
    assert set(dropout.file("input.pth")["rng"]) == {"cpu"}


def test_aten_level_meta_has_the_schema(captured):
    with op_tools.OpCapture(level="aten", ops="add.Tensor") as tool:
        torch.add(torch.ones(2), torch.ones(2), alpha=3)
    (call,) = captured(tool)
    assert call.name == "aten::add.Tensor"
    assert call.meta["schema"].startswith("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)")
    assert call.result.tolist() == [4, 4]


def test_load_call_gives_python_values_and_gradients(captured):
    x = torch.ones(3, 4, requires_grad=True)
    with op_tools.OpCapture(ops="torch.Tensor.__getitem__") as tool:
        x[1:, ..., None].sum().backward()
    (call,) = captured(tool)
    loaded = op_tools.load_call(call.folder)
    assert loaded.name == "torch.Tensor.__getitem__"
    assert loaded.args[1] == (slice(1, None), Ellipsis, None)
    assert loaded.result.shape == (2, 4, 1)
    assert loaded.grad_outputs[0].shape == (2, 4, 1)
    assert loaded.grad_inputs[0].sum() == 8
    assert loaded.meta["id"] == call.id


def test_loading_a_damaged_or_missing_file_is_an_error_with_the_path(tmp_path, captured):
    with op_tools.OpCapture(ops="torch.neg") as tool:
        torch.neg(torch.ones(100))
    (call,) = captured(tool)
    path = call.folder / "input.pth"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(op_tools.Error, match=r"input\.pth"):
        op_tools.load(path)
    with pytest.raises(op_tools.Error, match=r"nowhere\.pth"):
        op_tools.load(tmp_path / "nowhere.pth")


def test_runs_of_the_same_minute_get_folders_of_their_own():
    roots = []
    for _ in range(3):
        with op_tools.OpCapture(ops="torch.neg") as tool:
            torch.neg(torch.ones(1))
        roots.append(tool.result().root)
    assert len(set(roots)) == 3
    assert all(Path(root).is_dir() and Path(root).parent == Path("op_capture_result/0").absolute() for root in roots)


def test_run_that_recorded_nothing_leaves_no_folder(tmp_path):
    with op_tools.OpCapture(ops="torch.neg") as tool:
        torch.add(torch.ones(1), 1)
    assert tool.result().root == "" and not list(tmp_path.glob("op_capture_result"))


def test_output_folder_and_rank_are_where_they_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("OP_TOOLS_OUTPUT_DIR", str(tmp_path / "by variable"))
    with op_tools.OpCapture() as tool:
        torch.ones(2)
    assert Path(tool.result().root).parent == tmp_path / "by variable" / "op_capture_result" / "3"
    with op_tools.OpCapture(output_dir=tmp_path / "by argument") as tool:
        torch.ones(2)
    assert Path(tool.result().root).parent == tmp_path / "by argument" / "op_capture_result" / "3"


def test_ids_rise_in_the_order_of_calls(captured):
    with op_tools.OpCapture(ops="torch.exp,torch.sin") as tool:
        for _ in range(3):
            torch.exp(torch.ones(1))
            torch.sin(torch.ones(1))
    assert [call.name for call in captured(tool)] == ["torch.exp", "torch.sin"] * 3


def test_only_the_wanted_steps_are_recorded(captured):
    tool = op_tools.OpCapture(ops="torch.exp", steps=range(1, 4, 2))
    with tool:
        for step in range(5):
            torch.exp(torch.full((1,), float(step)))
            tool.step()
    calls = captured(tool)
    assert [call.args[0].item() for call in calls] == [1, 3]
    assert [call.meta["step"] for call in calls] == [1, 3]


def test_max_calls_ends_recording_and_says_how_many_were_left_out(captured):
    with op_tools.OpCapture(ops="torch.exp", max_calls=2) as tool:
        for value in range(5):
            torch.exp(torch.full((1,), float(value)))
    assert [call.args[0].item() for call in captured(tool)] == [0, 1]
    assert tool.result().skipped == 3


def test_max_per_signature_counts_by_operator_shapes_and_dtypes(captured):
    with op_tools.OpCapture(ops="torch.exp,torch.sin", max_per_signature=2) as tool:
        for _ in range(4):
            for x in (torch.ones(2), torch.ones(3), torch.ones(2).double()):
                torch.exp(x)
                torch.sin(x)
    assert len(captured(tool, "torch.exp")) == len(captured(tool, "torch.sin")) == 6
    assert tool.result().skipped == 12


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(dict(steps=[1]), [1]), (dict(max_calls=2), [0, 1]), (dict(max_per_signature=1), [0])],
    ids=str,
)
def test_calls_that_were_left_out_leave_no_gradients_either(limit, expected, captured):
    tool = op_tools.OpCapture(ops="torch.exp", **limit)
    with tool:
        for step in range(4):
            torch.exp(torch.full((2,), float(step), requires_grad=True)).sum().backward()
            tool.step()
    calls = captured(tool)
    assert [call.args[0][0].item() for call in calls] == expected
    assert len(list(Path(tool.result().root).glob("torch.exp/*"))) == len(expected)
    assert all(call.gradients("inputs") is not None for call in calls)
    assert [(row.calls, row.backward) for row in tool.result().rows] == [(len(expected),) * 2]


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_call_that_raises_is_recorded_with_its_error_and_raises_the_same(level, captured):
    def fail():
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    with pytest.raises(RuntimeError) as without:
        fail()
    with op_tools.OpCapture(level=level, ops="torch.mm,aten::mm") as tool, pytest.raises(RuntimeError) as within:
        fail()
    assert (type(within.value), str(within.value)) == (type(without.value), str(without.value))
    (call,) = captured(tool)
    assert "mat1 and mat2 shapes cannot be multiplied" in call.meta["error"]
    assert "\n" not in call.meta["error"]  # torch's C++ stack
    assert call.args[0].shape == (2, 3)
    assert not (call.folder / "output.pth").exists()
    assert tool.result().rows[0].failed == 1


def test_exception_of_a_python_function_keeps_its_type():
    with op_tools.OpCapture(), pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        F.batch_norm(torch.ones(1, 3), None, None, training=True)
    with op_tools.OpCapture(), pytest.raises(TypeError):
        torch.add(torch.ones(1), "no tensor")


# --- Failures of the disk ---------------------------------------------------------------------------------------


def numbers():
    torch.manual_seed(0)
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(20):
        y = F.linear(x, x).relu()
        y.sum().backward()
    return x.grad


def test_unwritable_folder_is_one_error_with_the_path_and_the_program_goes_on(tmp_path, capfd):
    (tmp_path / "file").write_text("no folder")
    with op_tools.OpCapture(output_dir=tmp_path / "file") as tool:
        result = numbers()
    assert torch.equal(result, numbers())
    lines = [line for line in capfd.readouterr().err.splitlines() if "op_tools error" in line]
    assert len(lines) == 1 and str(tmp_path / "file") in lines[0] and "the program goes on" in lines[0]
    recorded = tool.result()
    assert str(tmp_path / "file") in recorded.failure and recorded.lost > 0


FULL_DISK = """
import resource, signal, sys, torch, op_tools
import torch.nn.functional as F
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))
def numbers():
    torch.manual_seed(0)
    x = torch.randn(200, 200, requires_grad=True)
    for i in range(1, 8):
        F.linear(x[: 20 * i], x).relu().sum().backward()
    return x.grad
expected = numbers()
with op_tools.OpCapture(format=FORMAT, output_dir="out") as tool:
    assert torch.equal(numbers(), expected)
result = tool.result()
assert result.lost > 0 and "out/op_capture_result" in result.failure, result
sys.stdout.write(result.root)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_disk_is_one_error_with_the_path_and_leaves_no_incomplete_file(layout, python, tmp_path):
    limit = 250_000 if layout == "folders" else 400_000
    done = python(FULL_DISK.replace("MOST", str(limit)).replace("FORMAT", repr(layout)))
    errors = [line for line in done.stderr.splitlines() if "op_tools error" in line]
    assert len(errors) == 1 and "out/op_capture_result" in errors[0]
    root = tmp_path / done.stdout
    complete = readable_entries(root, layout)
    assert complete > 3
    assert not list(root.rglob("*.tmp*"))


def readable_entries(root, layout):
    """Loads every file that has its final name; in a container every entry that is complete. Returns how many."""
    count = 0
    if layout == "folders":
        for path in root.rglob("*.pth"):
            torch.load(path, weights_only=True)
            count += 1
        for path in root.rglob("*.json"):
            json.loads(path.read_text())
        return count
    data = (root / "calls.zip").read_bytes()
    position = 0
    while data[position : position + 4] == b"PK\x03\x04":  # the central directory may never have been written
        size = int.from_bytes(data[position + 18 : position + 22], "little")
        name_size, extra_size = (int.from_bytes(data[position + at : position + at + 2], "little") for at in (26, 28))
        start = position + 30 + name_size + extra_size
        name = data[position + 30 : position + 30 + name_size].decode()
        if start + size > len(data):
            break
        assert zlib.crc32(data[start : start + size]) == int.from_bytes(data[position + 14 : position + 18], "little")
        if name.endswith(".pth"):
            piece = root / "piece.pth"
            piece.write_bytes(data[start : start + size])
            torch.load(piece, weights_only=True)
            piece.unlink()
            count += 1
        position = start + size
    return count


KILLED = """
import os, pathlib, signal, sys, time, torch, op_tools
import torch.nn.functional as F

def endless(folder):
    x = torch.randn(40, 40, requires_grad=True)
    tool = op_tools.OpCapture(format=FORMAT, output_dir=folder)
    tool.start()
    while True:
        F.linear(x, x).relu().sum().backward()

for seconds in (0.01, 0.03, 0.07, 0.1, 0.15, 0.2):
    folder = pathlib.Path(f"out/{seconds}")
    child = os.fork()
    if child == 0:
        endless(str(folder))
    while not any(folder.rglob("*.*")):  # on a busy machine the first file takes its time
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_has_its_final_name_loads_after_kill_9(layout, tmp_path, replay, python):
    python(KILLED.replace("FORMAT", repr(layout)), OP_TOOLS_LOG_LEVEL="off")
    folders = list((tmp_path / "out").iterdir())
    assert len(folders) == 6
    total = sum(readable_entries(root, layout) for root in (tmp_path / "out").glob("*/op_capture_result/0/*"))
    assert total > 50
    report = replay(*folders, "--only_run_forward", "--acc_check", "-q")
    assert report.status in (0, 2), report.err + report.out[-2000:]
    assert report.summary["differs"] == 0 and report.summary["ran"] > 0
    assert report.summary["calls"] == report.summary["ran"] + report.summary["could_not_run"]
    assert all(str(tmp_path) in problem for problem in report.json["problems"])
    if layout == "container":  # a kill may hit between two entries; this kill cuts through an entry
        largest = max(tmp_path.rglob("calls.zip"), key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)
        report = replay(largest, "--only_run_forward", "--acc_check", "-q")
        assert report.status == 2 and report.summary["agrees"] > 0 and report.summary["differs"] == 0
        assert any(str(largest) in problem for problem in report.json["problems"])


CUT = """
import ctypes, os, pathlib, torch, op_tools
import torch.nn.functional as F
cut_writes_after = ctypes.CDLL(None).cut_writes_after
cut_writes_after.argtypes = [ctypes.c_uint64]
x = torch.arange(1600.0).reshape(40, 40)  # its bytes are written before the entry's beginning
y = torch.ones(3)

def run(place):
    child = os.fork()
    if child == 0:
        cut_writes_after(place)
        with op_tools.OpCapture(format="container", output_dir=f"out/{place}"):
            F.linear(x, x)
            torch.exp(y)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

assert not run(1 << 40)
whole = next(pathlib.Path(f"out/{1 << 40}").rglob("calls.zip")).stat().st_size
for place in range(0, whole - 512, 97):
    assert run(place), place
"""


def test_a_write_that_a_kill_cut_anywhere_leaves_only_whole_entries_in_a_container(build_dir, python, tmp_path):
    library = build_dir / "tests" / "cpp" / "libop_tools_cut_writes.so"
    python(CUT, OP_TOOLS_LOG_LEVEL="off", LD_PRELOAD=str(library))
    counts = [readable_entries(path.parent, "container") for path in tmp_path.rglob("calls.zip")]
    assert len(counts) > 150 and set(counts) == {0, 1, 2, 3, 4}


def test_queue_is_bounded_and_nothing_is_dropped(captured):
    x = torch.randn(4096, 1024)  # 16 MB: the next call comes before they are written, on any disk
    count = 0
    with op_tools.OpCapture(ops="torch.neg", max_pending_mb=1) as tool:
        while tool.result().waits == 0 and count < 40:
            torch.neg(x)
            count += 1
    recorded = tool.result()
    assert recorded.lost == 0 and recorded.waits > 0
    calls = captured(tool)
    assert len(calls) == count
    assert all(torch.equal(call.args[0], x) for call in calls)


def test_gradients_that_come_after_the_tool_is_gone_are_in_the_files_at_exit(python, tmp_path):
    done = python(
        """
import torch, op_tools
x = torch.ones(3, requires_grad=True)
with op_tools.OpCapture(ops="torch.exp") as tool:
    y = torch.exp(x)
print(tool.result().root)
del tool
y.sum().backward()
""",
        fresh=True,
    )
    assert len(list((tmp_path / done.stdout.strip()).rglob("grad_inputs.pth"))) == 1
