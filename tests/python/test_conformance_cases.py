"""Cases of the conformance suite: the same bits everywhere, a line of JSON each, from four sources, for machines without
torch's tests and without Python."""

import copy
import dataclasses
import gzip
import hashlib
import importlib.util
import json
import math
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import launched

import op_tools
import op_tools.sim_device  # makes the device "sim"
from op_tools import __main__ as command
from op_tools._conformance import values
from op_tools._conformance.case import Case, TensorSpec, leaves_of, make_call, make_tensors
from op_tools._conformance.float8 import DTYPES, float8_cases
from op_tools._conformance.lists import Filter, list_of, load_cases, read_list, read_mine, write_list
from op_tools._conformance.mutations import MUTATIONS, mutated
from op_tools._conformance.op_db import Collector
from op_tools._conformance.verdict import Judge

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")

# Of 1,000 elements with the key 7. Another machine, process or version of torch and numpy gives the same ones.
DIGESTS = {
    ("normal", "float16"): "5764f4e95c302733",
    ("normal", "bfloat16"): "8df8cf6790976d65",
    ("normal", "float32"): "a0cc94faba4b52a4",
    ("normal", "float64"): "42edec296f398d5e",
    ("normal", "float8_e4m3fn"): "ac0b3199ca0bc951",
    ("normal", "complex64"): "57fcb94bbcd59976",
    ("uniform -3 8.5", "float32"): "e8ff0629d763885f",
    ("uniform 0 1", "float64"): "563a682f5f9d4c9a",
    ("integers -9 9", "int64"): "962bee34100b37d5",
    ("integers 0 255", "uint8"): "e7246ec3b252e86b",
    ("integers 0 1", "bool"): "7cd4885caeb335ef",
    ("permutation", "int64"): "7f05a8d169f7e0cb",
    ("adversarial:cancellation", "float32"): "74271ec945c3e06a",
    ("adversarial:large-sum", "float32"): "34a4e576d280d3ec",
    ("adversarial:denormal", "float32"): "a470e246c003490e",
    ("adversarial:nan", "float32"): "d0cc308de189cfbf",
    ("adversarial:inf", "float32"): "e3c1b31e4114f3a1",
    ("adversarial:boundary", "float32"): "18668a32e8b7aecb",
    ("adversarial:boundary", "int32"): "b28a48b907eaa8f8",
}


def digest(recipe, dtype, count=1000):
    drawn = values.make_values(recipe, getattr(torch, dtype), count, 7)
    return hashlib.sha256(drawn.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def conv():
    """A case that every mutation but those of whole numbers and aliases changes."""
    image, weight = (TensorSpec(shape, "float32", requires_grad=True) for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
    return Case.make("mine", "torch.nn.functional.conv2d", "function", (image, weight), {"padding": 1}, gradient=True)


def outputs(case):
    return make_call(case, CPU).run()


# --- Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "dtype"), DIGESTS)
def test_values_have_the_same_bits_everywhere(recipe, dtype):
    assert digest(recipe, dtype) == DIGESTS[recipe, dtype]


def test_another_process_makes_the_same_inputs():
    line = conv().to_json()
    code = (
        "import sys, hashlib, torch\n"
        "from op_tools._conformance.case import Case, make_call\n"
        "call = make_call(Case.from_json(sys.argv[1]), torch.device('cpu'))\n"
        "print(hashlib.sha256(b''.join(one.detach().numpy().tobytes() for one in call.inputs)).hexdigest())\n"
    )
    done = launched("-c", code, line)
    mine = b"".join(one.detach().numpy().tobytes() for one in make_call(conv(), CPU).inputs)
    assert done.stdout.strip() == hashlib.sha256(mine).hexdigest()


def test_values_depend_on_the_case_and_on_the_argument():
    square = TensorSpec((4, 4), "float32")
    first, two = make_tensors("a", [square, square], CPU)
    (other,) = make_tensors("b", [square], CPU)
    assert not torch.equal(first, two) and not torch.equal(first, other)
    assert torch.equal(make_tensors("a", [square], CPU)[0], first)


def test_distributions_are_what_they_are_called():
    normal = values.make_values("normal", torch.float64, 100_000, 1)
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1.1547) < 0.02 and normal.abs().max() < 4
    # All digits of float64 are used: a kernel that computes in float32 is found.
    assert (normal != normal.float().double()).float().mean() > 0.99
    uniform = values.make_values("uniform -2 6", torch.float32, 100_000, 1)
    assert uniform.min() >= -2 and uniform.max() <= 6 and abs(uniform.mean() - 2) < 0.05
    whole = values.make_values("integers -3 3", torch.int8, 100_000, 1)
    assert whole.unique().tolist() == list(range(-3, 4))
    assert min(whole.double().histc(7)) > 0.9 * 100_000 / 7
    order = values.make_values("permutation", torch.int64, 1000, 1)
    assert order.sort().values.tolist() == list(range(1000)) and order.tolist() != list(range(1000))


def test_adversarial_values():
    def drawn(kind, dtype=torch.float32):
        return values.make_values(f"adversarial:{kind}", dtype, 1000, 3)

    pairs = drawn("cancellation", torch.float64).reshape(-1, 2)
    assert pairs.sum(1).abs().max() < 4.1 and pairs.abs().mean() > 100
    assert drawn("large-sum", torch.float16).sum(dtype=torch.float64) > torch.finfo(torch.float16).max
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        small = drawn("denormal", dtype)
        assert small.double().abs().max() < torch.finfo(dtype).tiny and small.double().count_nonzero() > 900
    assert drawn("nan").isnan().any() and drawn("inf").isinf().any() and not drawn("nan").isnan().all()
    assert torch.iinfo(torch.int64).min in drawn("boundary", torch.int64).tolist()
    assert torch.finfo(torch.float32).max in drawn("boundary").tolist()


def test_long_tensors_repeat_a_prime_period():
    count = values.PERIOD + 5
    drawn = values.make_values("normal", torch.float32, count, 3)
    assert torch.equal(drawn[:5], drawn[-5:])
    assert all(values.PERIOD % divisor for divisor in range(2, math.isqrt(values.PERIOD) + 1))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0),
        torch.tensor([0.0, -0.0, math.inf, math.nan]),
        torch.randn(5, 7).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor(2**64 - 1, dtype=torch.uint64),
        torch.randn(3, 4, dtype=torch.complex64),
        torch.empty(0),
        torch.randn(40).to(torch.float8_e5m2),
    ],
    ids=lambda tensor: str(tensor.dtype)[6:],
)
def test_packed_values_are_exact(tensor):
    unpacked = values.make_values(values.packed(tensor), tensor.dtype, tensor.numel(), 0)
    assert torch.equal(unpacked.view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "recipe",
    [
        "zlib:!",
        "zlib:AAAA",
        values.packed(torch.zeros(100_000)),
        "gaussian",
        "uniform 2 1",
        "uniform 0 inf",
        "normal 3",
        (1.0, 2.0),
    ],
)
def test_wrong_values_are_refused(recipe):
    with pytest.raises(op_tools.Error, match="values: "):
        values.make_values(recipe, torch.float32, 3, 0)


# --- Cases -------------------------------------------------------------------------------------------------------------


def test_a_case_is_a_line():
    tensor = TensorSpec((2, 3), "bfloat16", (1, 2), 5, "uniform -1 1", True, 0)
    tree = (
        [tensor, None, True, 3, 2.5, -math.inf, 1 + 2j, "sum", torch.float16, torch.channels_last, torch.strided, ...],
        slice(0, None, 2),
        torch.Size([2, 3]),
        torch.device("meta"),
    )
    case = Case.make("mine", "torch.add", "function", tree, {"dim": (0, 1)}, gradient=True, models={"resnet50": 3})
    line = case.to_json()
    assert "\n" not in line and Case.from_json(line) == case
    assert re.fullmatch(r"mine/torch\.add/[0-9a-f]{16}", case.id)
    assert case.dtype == "bfloat16" and case.layout == "strided" and case.bytes == 2 * (5 + 6)


def test_ids_follow_the_content():
    case = conv()
    assert case.with_changes(models={"a": 1}).id == case.id
    assert case.with_changes(kwargs={"padding": 2}).id != case.id
    changed = case.to_json().replace('"padding",1', '"padding",2')
    with pytest.raises(op_tools.Error, match="was changed"):
        Case.from_json(changed)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "no JSON"),
        ("[1]", "is no object with id, "),
        ('{"args": []}', "op is missing"),
        ('{"op": "torch.add", "colour": 1}', "unknown 'colour'"),
        ('{"op": "torch.add", "variant": "sideways"}', "sideways"),
        ('{"op": "torch.add", "source": "mars"}', "mars"),
        ('{"op": "torch.add", "args": [{"tensor": {"shape": [-1], "dtype": "float32"}}]}', "shape"),
        ('{"op": "torch.add", "args": [{"tensor": {"shape": [2], "dtype": "float32", "stride": [1, 1]}}]}', "stride"),
        ('{"op": "torch.add", "args": [{"pickle": "x"}]}', "no argument"),
        ('{"op": "torch.add", "args": [{"dtype": "load"}]}', "no argument"),
        ('{"op": "torch.add", "models": {"a": 0}}', "models"),
        ('{"op": "torch.add", "gradient": 1}', "gradient"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_lines_that_are_no_case(line, why):
    with pytest.raises(op_tools.Error, match=re.escape(why)):
        Case.from_json(line)


@pytest.mark.parametrize(
    "op", ["torch.load", "torch.hub.load", "os.system", "torch.from_file", "torch.ops.aten.__class__", "aten::nothing"]
)
def test_cases_call_operators_only(op):
    with pytest.raises(op_tools.Error, match="is no operator"):
        make_call(Case.make("mine", op, "function", ("x",), {}), CPU)


def test_a_tensor_beyond_all_memory_is_an_error():
    case = Case.make("mine", "torch.relu", "function", (TensorSpec((2**50,), "float32"),), {})
    with pytest.raises(op_tools.Error, match=r"case mine/torch\.relu"):
        make_call(case, CPU)


# --- Calls -------------------------------------------------------------------------------------------------------------


def test_tensors_are_as_they_are_specified():
    plain = TensorSpec((2, 3), "float32", (6, 2), 5, tuple(range(6)))
    (tensor,) = make_tensors("x", [plain], CPU)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (
        tensor.stride() == (6, 2)
        and tensor.storage_offset() == 5
        and tensor.untyped_storage().nbytes() == 4 * plain.storage_size
    )
    (drawn,) = make_tensors("x", [dataclasses.replace(plain, values="normal")], CPU)
    gaps = torch.empty(0).set_(drawn.untyped_storage())
    assert gaps.count_nonzero() == len(gaps)  # they are filled, too
    (spread,) = make_tensors("x", [TensorSpec((3, 2), "float32", (0, 1), values=(1, 2, 1, 2, 1, 2))], CPU)
    assert spread.tolist() == [[1, 2]] * 3
    first, two = make_tensors(
        "x",
        [TensorSpec((4,), "int32", alias=1, values=(1, 2, 3, 4)), TensorSpec((2,), "int32", offset=2, alias=1)],
        CPU,
    )
    assert two.tolist() == [3, 4] and first.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def test_an_alias_has_one_dtype():
    pair = TensorSpec((2,), "float32", alias=0), TensorSpec((2,), "int32", alias=0)
    with pytest.raises(op_tools.Error, match="several dtypes"):
        make_call(Case.make("mine", "torch.add", "function", pair, {}), CPU)


def test_gradients_have_random_cotangents_and_are_repeatable():
    call = make_call(conv(), CPU)
    first, second = (call.backward(call.run()) for _ in range(2))
    assert [one.shape for one in first] == [(2, 3, 8, 8), (4, 3, 3, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    whole = make_call(conv(), CPU)
    ones = torch.autograd.grad(whole.run().sum(), whole.inputs)
    assert not torch.allclose(ones[0], first[0])


def test_gradients_that_arrive_with_gaps():
    seen = []
    case = mutated(conv(), "strided-gradient")
    call = make_call(case, CPU)
    result = call.run()
    result.register_hook(lambda gradient: seen.append(gradient.stride()))
    assert all(one is not None for one in call.backward(result))
    assert seen == [tuple(2 * step for step in result.stride())]


def test_in_place_calls_with_a_gradient():
    first, second = (TensorSpec((3, 4), "float32", requires_grad=True) for _ in range(2))
    call = make_call(Case.make("mine", "torch.Tensor.mul_", "inplace", (first, second), {}, gradient=True), CPU)
    before = call.inputs[0].detach().clone()
    gradients = call.backward(call.run())
    assert all(one is not None for one in gradients) and torch.equal(call.inputs[0], before)


def test_random_calls_are_repeatable():
    call = make_call(Case.make("mine", "torch.rand_like", "function", (TensorSpec((9,), "float32"),), {}), CPU)
    assert torch.equal(call.run(), call.run())


def test_cases_without_memory():
    result = make_call(conv(), torch.device("meta")).run()
    assert result.is_meta and result.shape == (2, 4, 8, 8)


# --- Mutations ---------------------------------------------------------------------------------------------------------


def test_every_mutation_changes_what_it_says():
    numbers = TensorSpec((3, 4), "int64", values="integers 0 3")
    pair = Case.make("mine", "torch.add", "function", (numbers, numbers), {})
    facts = {
        "nhwc": lambda case: case.layout == "nhwc" and case.tensors[0].strides == (192, 1, 24, 3),
        "strided": lambda case: case.layout == "strided",
        "offset": lambda case: case.layout == "offset",
        "expanded": lambda case: case.layout == "expanded" and case.bytes < conv().bytes,
        "empty": lambda case: case.tensors[0].numel == 0,
        "scalar": lambda case: case.tensors[0].shape == (),
        "four-bytes": lambda case: case.dtype == "int32" and outputs(case).dtype is torch.int32,
        "alias": lambda case: len({one.data_ptr() for one in make_call(case, CPU).inputs}) == 1,
        "strided-gradient": lambda case: case.gradient,
    }
    facts |= {
        kind: lambda case, kind=kind: case.tensors[0].values == f"adversarial:{kind}" for kind in values.ADVERSARIAL
    }
    assert set(facts) == set(MUTATIONS)
    for name, holds in facts.items():
        origin = pair if name in ("four-bytes", "alias") else conv()
        case = mutated(origin, name)
        assert holds(case), name
        assert case.mutation == name and case.id != origin.id and Case.from_json(case.to_json()) == case
        if name not in ("empty", "scalar"):
            outputs(case)
    assert mutated(conv(), "four-bytes") is None and mutated(pair, "nhwc") is None


def test_operators_that_read_gaps_get_none():
    reads = Case.make("mine", "torch.as_strided", "function", (TensorSpec((3, 3), "float32"), (2, 2), (1, 2)), {})
    assert mutated(reads, "strided") is None and mutated(reads, "offset") is not None
    listed = (json.loads(line) for line in gzip.decompress(list_of("op_db").read_bytes()).splitlines())
    assert {case.get("mutation") for case in listed if "as_strided" in case["op"]}.isdisjoint({"strided"})


# --- Sources -----------------------------------------------------------------------------------------------------------


def test_samples_of_torch_become_cases():
    collector = Collector()
    cases = list(collector.cases("^(index_add|nn.functional.embedding|T)$"))
    assert len({case.id for case in cases}) == len(cases) > 100
    kinds = Counter((case.variant, case.mutation) for case in cases)
    for kind in [
        ("function", ""),
        ("method", ""),
        ("inplace", ""),
        ("out", ""),
        ("error", ""),
        ("function", "strided"),
    ]:
        assert kinds[kind], kind
    assert {
        "torch.index_add",
        "torch.Tensor.index_add_",
        "torch.nn.functional.embedding",
        "torch.Tensor.T.__get__",
    } <= {case.op for case in cases}
    assert {"float32", "bfloat16", "complex64", "int64", "bool"} <= {case.dtype for case in cases}
    for case in cases[::7]:
        call = make_call(case, CPU)
        if case.variant == "error":
            with pytest.raises((RuntimeError, TypeError, IndexError, ValueError)):
                call.run()
        else:
            assert leaves_of(call.run())


def test_the_package_has_lists_of_cases():
    ids, models, functions, count = set(), Counter(), set(), 0
    for suite in ("op_db", "models"):
        for line in gzip.decompress(list_of(suite).read_bytes()).splitlines():
            case = json.loads(line)
            ids.add(case["id"])
            taken = vars(Case.from_line(line.decode()))
            assert [taken[key] for key in ("id", "source", "op")] == [case[key] for key in ("id", "source", "op")]
            if count % 100 == 0:
                assert Case.from_json(line.decode()).to_json() == line.decode()  # its id is that of its content
            functions.add(case["op"])
            models.update(case.get("models", {}))
            count += 1
    assert len(ids) == count >= 30_000
    assert len(models) >= 60 and len(functions) > 600
    diopi = (
        "resnet50 resnet101 mobilenet_v2 vgg16 vit convnext swin_transformer densenet unet deeplabv3 fcn hrnet llama"
    )
    assert set(diopi.split()) <= set(models)
    assert sum(list_of(suite).stat().st_size for suite in ("op_db", "models")) < 3e6


@pytest.mark.parametrize("first", [*Case.__annotations__, "dtype", "tensors", "bytes"])
def test_a_case_of_a_line_is_decoded_when_it_is_asked(first):
    full = Case.make(
        "op_db",
        "torch.add",
        "method",
        (TensorSpec((2, 3), "float32", requires_grad=True), '","id":"', {"models": 1}),
        {"alpha": ',"source":"'},
        gradient=True,
        mutation="strided",
        overload="Tensor",
        data="folder",
        models={"resnet50": 3},
    )
    for case in (full, Case.make("op_db", "torch.neg", "function", (), {"models": 2})):
        taken = Case.from_line(case.to_json())
        assert "args" not in vars(taken)
        assert getattr(taken, first) == getattr(case, first)
        assert taken == case and hash(taken) == hash(case) and taken.to_json() == case.to_json()
        assert dataclasses.replace(taken, gradient=False) == dataclasses.replace(case, gradient=False)
        assert copy.copy(taken) == case and pickle.loads(pickle.dumps(taken)) == case
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = taken.nothing


def test_the_list_has_the_cases_of_8_bit_floats():
    cases = list(float8_cases())
    listed = {json.loads(line)["id"] for line in gzip.decompress(list_of("op_db").read_bytes()).splitlines()}
    assert {one.id for one in cases} <= listed and len(cases) > 400
    for dtype in DTYPES:
        ops = {one.op for one in cases if dtype in one.to_json()}
        assert {"torch.Tensor.to", "torch.Tensor.copy_", "torch.cat", "torch.eq"} <= ops, dtype


def test_wrong_conversions_to_8_bits_are_found():
    to = [one for one in float8_cases() if one.op == "torch.Tensor.to" and one.args[1] is torch.float8_e4m3fn]
    (plain,) = [one for one in to if one.tensors[0] == TensorSpec((8, 9), "float32")]
    (beyond,) = [one for one in to if one.tensors[0] == TensorSpec((8, 9), "float32", values="adversarial:inf")]
    for case in (plain, beyond):  # no infinity in this dtype: larger values become NaN
        assert [row.status for device in ("cpu", "sim:0") for row in Judge(torch.device(device)).rows(case)] == [
            "agrees"
        ] * 2
    with op_tools.sim_device.fault("scale", ops="_copy_from", scale=2.0):
        (row,) = Judge(torch.device("sim:0")).rows(plain)
    assert row.status == "differs" and "values of output" in row.reason


def test_cases_of_the_lists_run_without_the_tests_of_torch():
    """In a process that has no torch.testing."""
    code = (
        "import sys, itertools, torch, warnings\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.startswith('torch.testing._internal'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "warnings.simplefilter('ignore')\n"
        "from op_tools._conformance.case import make_call\n"
        "from op_tools._conformance.lists import Filter, load_cases\n"
        "ran = 0\n"
        "for case in itertools.islice(load_cases(filter=Filter(max_bytes=100_000)), 0, None, 150):\n"
        "    call = make_call(case, torch.device('cpu'))\n"
        "    try: outputs = call.run()\n"
        "    except Exception as error:\n"
        "        assert case.variant == 'error', (case.id, error)\n"
        "        continue\n"
        "    assert case.variant != 'error', case.id\n"
        "    itself = any(outputs is one for one in call.inputs)  # dropout with p=0\n"
        "    if case.gradient and not itself: assert any(one is not None for one in call.backward(outputs)), case.id\n"
        "    ran += 1\n"
        "print(ran)\n"
    )
    done = launched("-c", code)
    assert int(done.stdout) > 150


TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU())
method = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    method.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    method.step()
"""


def test_record_counts_the_calls_of_one_step(tmp_path, capsys):
    (tmp_path / "train.py").write_text(TRAIN)
    target = tmp_path / "cases.jsonl"
    assert command.main(["conformance", "record", "--name", "mlp", "-o", str(target), str(tmp_path / "train.py")]) == 0
    assert "the second training step" in capsys.readouterr().out
    calls = Counter()
    cases = list(read_list(target))
    for case in cases:
        calls[case.op] += case.models["mlp"]
    assert (
        calls["torch.nn.functional.linear"] == 2
        and calls["torch.nn.functional.relu"] == 2
        and calls["torch.Tensor.mean"] == 1
    )
    relu = next(case for case in cases if case.op == "torch.nn.functional.relu")
    assert relu.models == {"mlp": 2} and relu.gradient and relu.tensors[0].shape == (4, 16)
    assert not any("kaiming" in case.op or "uniform" in case.op for case in cases)  # calls that are made once
    for case in cases:
        outputs(case)


def test_record_needs_a_program_with_operators(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("print(1)\n")
    arguments = ["conformance", "record", "-o", str(tmp_path / "x.jsonl")]
    assert command.main([*arguments, str(tmp_path / "empty.py")]) != 0
    assert "called no torch function" in capsys.readouterr().err
    assert command.main([*arguments, str(tmp_path / "nothing.py")]) != 0
    assert "no such file" in capsys.readouterr().err


def test_captured_calls_of_a_device_stay_where_the_program_had_them(tmp_path, capfd):
    weight = torch.randn(5, 4, requires_grad=True)
    with op_tools.OpCapture(output_dir=str(tmp_path)):
        torch.randn(3)  # the CPU's own
        table = weight.to("sim")
        torch.nn.functional.embedding(torch.tensor([1, 2]).to("sim"), table).sum().backward()
        table.detach()[torch.tensor([0, 3])]  # an index on the CPU
    cases = {one.op: one for one in load_cases(sources=("captures",), captures=(tmp_path,))}
    assert {"torch.Tensor.to", "torch.nn.functional.embedding", "torch.Tensor.__getitem__"} <= set(cases)
    assert "torch.randn" not in cases
    assert "calls on the CPU are no cases" in capfd.readouterr().err
    call = make_call(cases["torch.nn.functional.embedding"], torch.device("sim"))
    assert [(one.device.type, one.requires_grad) for one in call.inputs] == [("sim", False), ("sim", True)]
    index = make_call(cases["torch.Tensor.__getitem__"], torch.device("sim"))
    assert [one.device.type for one in index.inputs] == ["sim", "cpu"]
    assert torch.equal(index.run().cpu(), weight[[0, 3]])


def test_captured_calls_are_cases(tmp_path):
    torch.manual_seed(1)
    weight, data = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4).t().contiguous().t()
    with op_tools.OpCapture(output_dir=str(tmp_path)):
        expected = torch.nn.functional.linear(data, weight)
        expected.sum().backward()
    cases = list(load_cases(sources=("captures",), captures=(tmp_path,)))
    (case,) = [one for one in cases if one.op == "torch.nn.functional.linear"]
    assert case.gradient and case.source == "captures" and case.tensors[0].strides == (1, 3)
    case = Case.from_json(case.to_json())
    call = make_call(case, CPU)
    assert torch.equal(call.run(), expected) and call.inputs[1].requires_grad and not call.inputs[0].requires_grad
    (tmp_path / "nothing").mkdir()
    for folder, why in (("nothing", "no captured call"), ("nowhere", "cannot be read")):
        with pytest.raises(op_tools.Error, match=why):
            list(load_cases(sources=("captures",), captures=(tmp_path / folder,)))


def test_a_captured_call_that_is_missing_or_damaged_is_not_judged(tmp_path, capfd):
    captures = tmp_path / "captures"
    with op_tools.OpCapture(output_dir=str(captures)):
        torch.relu(torch.exp(torch.tensor([1.0, 2.0])))

    def status(name):
        arguments = ["--captures", str(captures), "--device", "cpu", "--jobs", "1", "-o", str(tmp_path / name)]
        return command.main(["conformance", "run", *arguments])

    assert status("whole") == 0
    (call,) = captures.glob("op_capture_result/*/*/torch.exp")
    call.rename(tmp_path / "elsewhere")
    assert status("missing") == 2
    assert "some captured calls are damaged or missing" in capfd.readouterr().err
    assert command.main(["conformance", "verify", str(tmp_path / "missing")]) == 2
    (tmp_path / "elsewhere").rename(call)
    (saved,) = call.glob("*/input.pth")
    saved.write_bytes(saved.read_bytes()[:100])
    assert status("damaged") == 2


MINE = [
    {
        "op": "torch.nn.functional.conv2d",
        "args": [
            {"tensor": {"shape": [1, 3, 8, 8], "dtype": "float32", "requires_grad": True}},
            {"tensor": {"shape": [4, 3, 3, 3], "dtype": "float32", "values": "uniform -1 1"}},
        ],
        "kwargs": {"padding": 1},
        "gradient": True,
    },
    {
        "op": "aten::add",
        "overload": "Tensor",
        "args": [{"tensor": {"shape": [2], "dtype": "int64", "values": [1, 2]}}, 3],
    },
]


def test_cases_of_ones_own(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(MINE))
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in MINE))
    cases = list(read_mine(tmp_path / "mine.json"))
    assert cases == list(read_mine(tmp_path / "mine.jsonl"))
    assert outputs(cases[0]).shape == (1, 4, 8, 8) and outputs(cases[1]).tolist() == [4, 5]
    assert cases[1].id.startswith("mine/aten.add.Tensor/")
    (tmp_path / "wrong.json").write_text(json.dumps([MINE[0], {**MINE[1], "opp": 1}]))
    with pytest.raises(op_tools.Error, match=r"wrong\.json: case 2: .*unknown 'opp'"):
        list(read_mine(tmp_path / "wrong.json"))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"shape": [2], "dtype": "float32"}, r'is no argument; .* as in \{"tensor": \{"shape"'),
        ({"tensor": {"shape": [2], "dtype": "float32"}}, 'no tensor has "requires_grad": true'),
    ],
)
def test_what_is_wrong_with_a_case_of_ones_own_is_said(tmp_path, tensor, message):
    (tmp_path / "wrong.json").write_text(json.dumps([{"op": "torch.relu", "args": [tensor], "gradient": True}]))
    with pytest.raises(op_tools.Error, match=rf"wrong\.json: case 1: a case: .*{message}"):
        list(read_mine(tmp_path / "wrong.json"))


YAML = """
- op: torch.nn.functional.conv2d
  args:
  - tensor: {shape: [1, 3, 8, 8], dtype: float32, requires_grad: true}
  - tensor: {shape: [4, 3, 3, 3], dtype: float32, values: uniform -1 1}
  kwargs: {padding: 1}
  gradient: true
- op: aten::add
  overload: Tensor
  args:
  - tensor: {shape: [2], dtype: int64, values: [1, 2]}
  - 3
"""


def test_cases_of_ones_own_in_yaml(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(YAML)
    if importlib.util.find_spec("yaml") is None:
        with pytest.raises(op_tools.Error, match=r"mine\.yaml: YAML needs a library: pip install pyyaml"):
            list(read_mine(path))
        return
    (tmp_path / "mine.json").write_text(json.dumps(MINE))
    assert list(read_mine(path)) == list(read_mine(tmp_path / "mine.json"))
    for content, why in (("a: [1", "cannot be read"), ("a: 1", "is no list of cases"), ("- 3", "case 1: ")):
        path.write_text(content)
        with pytest.raises(op_tools.Error, match=rf"mine\.yaml: {why}"):
            list(read_mine(path))


def test_a_name_chooses_the_same_cases_before_lines_are_looked_into_and_after():
    everything = list(load_cases())
    for name in ("relu", "torch.nn.functional.*", "add_?", "no_such"):
        wanted = [
            case
            for case in everything
            if re.fullmatch(name, case.op) or re.fullmatch(name, re.split("[.:]+", case.op)[-1])
        ]
        assert [one.id for one in load_cases(filter=Filter(fname=name))] == [one.id for one in wanted]


def test_filters(tmp_path):
    image = conv()
    numbers = TensorSpec((3,), "int64", values="integers 0 3")
    cases = [
        image.with_changes(models={"resnet50": 2, "vgg16": 1}),
        Case.make("mine", "torch.add", "function", (numbers, numbers), {}),
        Case.make("mine", "torch.Tensor.add_", "inplace", (numbers, 1), {}),
        Case.make("mine", "torch.abs", "out", (numbers,), {"out": numbers}),
    ]
    file = tmp_path / "list.jsonl.gz"
    write_list(file, cases)

    def chosen(**wanted):
        return list(load_cases(str(file), sources=("mine",), filter=Filter(**wanted)))

    assert chosen() == cases
    assert [one.op for one in chosen(fname="add_?")] == ["torch.add", "torch.Tensor.add_"]
    assert chosen(dtypes=frozenset({"int64"})) == cases[:1]
    assert [one.models for one in chosen(models=frozenset({"vgg16"}))] == [{"vgg16": 1}]
    assert [len(chosen(phase=one)) for one in ("forward", "backward", "inplace", "out")] == [2, 1, 1, 1]
    assert chosen(nhwc=True)[0].layout == "nhwc" and chosen(nhwc=True)[1:] == cases[1:]
    assert {one.dtype for one in chosen(four_bytes=True)} == {"float32", "int32"}
    assert chosen(max_bytes=100) == cases[1:]
    for wrong in (
        {"fname": "("},
        {"dtypes": frozenset({"float31"})},
        {"phase": "sideways"},
        {"models": frozenset({"vgg61"})},
    ):
        with pytest.raises(op_tools.Error):
            chosen(**wrong)
    with pytest.raises(op_tools.Error, match="did you mean vgg16"):
        chosen(models=frozenset({"vgg61"}))


def test_damaged_lists_are_named(tmp_path):
    file = tmp_path / "list.jsonl.gz"
    write_list(file, [conv()] * 3)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(op_tools.Error, match=re.escape(str(file))):
        list(read_list(file))
    (tmp_path / "list.jsonl").write_text(conv().to_json() + "\n{}\n")
    with pytest.raises(op_tools.Error, match=r"list\.jsonl:2: "):
        list(read_list(tmp_path / "list.jsonl"))


# --- Commands ----------------------------------------------------------------------------------------------------------


def test_list_counts_and_writes_the_same_bytes(tmp_path, capsys):
    arguments = ["conformance", "list", "--source", "models", "--model", "lstm", "unet"]
    digests = set()
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        assert command.main([*arguments, "--by", "op", "dtype", "--write", str(tmp_path / name)]) == 0
        text = capsys.readouterr().out
        digests.add(re.search(r"SHA-256 (\w{64})", text)[1])
        assert "torch.nn.functional.conv2d" in text and "float32" in text
    assert len(digests) == 1 and (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert digests == {hashlib.sha256(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())).hexdigest()}
    assert command.main(["conformance", "list", "--list-models"]) == 0
    assert {"resnet50", "llama", "bert-base"} <= set(capsys.readouterr().out.split())
    assert command.main([*arguments, "--ids"]) == 0
    assert all(line.startswith("models/") for line in capsys.readouterr().out.splitlines()[:-1])
    assert command.main(["conformance", "list", "--model", "no_such_model"]) != 0
    assert "--list-models" in capsys.readouterr().err


def test_exported_cases_run_in_a_program_without_python(tmp_path, replay):
    """Bit for bit as here, with their gradients."""
    folder = tmp_path / "export"
    arguments = ["conformance", "export", "--source", "op_db", "--fname", "add|conv1d|embedding|sort", "--sample", "60"]
    assert command.main([*arguments, "-o", str(folder)]) == 0
    written = list(read_list(folder / "cases.jsonl"))
    assert len(written) >= 50 and any(case.gradient for case in written)
    done = replay(folder, "--acc_check")
    assert done.status == 0, done.out[-2000:]
    assert f"{len(written)} ran, {len(written)} agree" in done.out


def test_export_wants_an_empty_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.main(["conformance", "export", "--source", "models", "--model", "lstm", "-o", str(tmp_path)]) != 0
    assert "is not empty" in capsys.readouterr().err
