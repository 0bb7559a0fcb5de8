"""torch.load reads the files of our writer: values from tests/cpp/write_sample_pth.cpp. And the other way round."""

import collections
import shutil
import struct
import subprocess
import zipfile

import pytest
import torch

NAMES = [
    "none",
    "ints",
    "scalars",
    "odd_texts",
    "enums",
    "tagged",
    "size",
    "bytes",
    "set",
    "containers",
    "named",
    "strides",
    "aliases",
    "dtype_aliases",
    "dtypes",
    "requires_grad",
    "small_view",
    "conj_neg",
    "sparse",
    "many",
    "large",
]
# torch says so once per process of these kinds; pytest would make errors of it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
A = torch.arange(16.0)


@pytest.fixture(scope="module")
def samples(build_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    subprocess.run([build_dir / "tests/cpp/write_sample_pth", folder], check=True)
    assert sorted(p.stem for p in folder.iterdir()) == sorted(NAMES)
    return folder


@pytest.fixture(params=[False, True], ids=["read", "mmap"])
def load(request, samples):
    return lambda name: torch.load(samples / f"{name}.pth", weights_only=True, mmap=request.param)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_a_sound_zip_with_aligned_payloads(samples, name):
    path = samples / f"{name}.pth"
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            name_size, extra_size = struct.unpack_from("<HH", data, info.header_offset + 26)
            assert (info.header_offset + 30 + name_size + extra_size) % 64 == 0


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_unzip_finds_no_fault(samples):
    subprocess.run(["unzip", "-tqq", samples / "many.pth"], check=True)


def test_numbers_and_texts(load):
    assert load("none") is None
    assert load("ints") == [*(0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, -(2**33), 2**40, -(2**63), 2**63 - 1)]
    scalars = load("scalars")
    assert scalars == (True, False, 1.5, float("-inf"), 1 - 2j, "hé", "")
    assert [type(x) for x in scalars] == [bool, bool, float, float, complex, str, str]


def test_texts_that_are_no_utf8_arrive_as_bytes(load):
    assert load("odd_texts") == {"bad": b"a\xff\xfe", "surrogate": "\udc80", b"\xc3": "a\0b"}


def test_enums(load):
    assert load("enums") == (
        *(torch.float32, torch.bfloat16, torch.complex32, torch.float8_e4m3fn, torch.uint16),
        *(torch.device("cuda:1"), torch.device("cpu"), torch.device("privateuseone:0")),
        *(torch.strided, torch.sparse_bsr, torch.per_tensor_affine),
    )


def test_kinds_that_weights_only_refuses_are_tagged_dicts(load):
    memory_format, slice_, ellipsis, generator, unsupported = load("tagged")
    assert memory_format == {"__memory_format__": "torch.channels_last"}
    assert slice_ == {"__slice__": (1, None, 2)}
    assert ellipsis == {"__ellipsis__": True}
    device, state = generator["__generator__"]
    assert device == torch.device("cpu") and state.tolist() == [0, 1, 2] and state.dtype == torch.uint8
    assert unsupported == {"__unsupported__": ("function", "has no form")}


def test_containers(load):
    sizes = load("size")
    assert sizes == [torch.Size([2, 3]), torch.Size([])] and type(sizes[0]) is torch.Size
    assert load("bytes") == [b"a\0\xff", b""]
    assert load("set") == {1, 2}
    assert load("containers") == {"l": [], "t": (), "d": {}, 7: "seven", "nest": ([(1,), {3: "x"}],)}
    named = load("named")
    assert type(named) is tuple and named[1].tolist() == [0, 1]


def test_strides(load):
    transposed, stepped, zero_dim, expanded, empty, scalar = load("strides")
    assert torch.equal(transposed, A.view(4, 4).t()) and transposed.stride() == (1, 4)
    assert torch.equal(stepped, A[2:10:3]) and stepped.stride() == (3,)
    assert zero_dim.shape == () and zero_dim == 5
    assert torch.equal(expanded, torch.ones(3, 4)) and expanded.stride() == (1, 0)
    assert empty.shape == (0, 3)
    assert scalar.dtype == torch.float64 and scalar == 2.5


def test_tensors_that_shared_memory_share_it_again(load):
    whole, part, same, other = load("aliases")
    assert same is whole and other is not whole
    assert other.data_ptr() == whole.data_ptr() == part.data_ptr() - 16
    assert torch.equal(whole, A) and torch.equal(part, A[4:8])


def test_one_storage_seen_through_several_dtypes(load):
    tensors = load("dtype_aliases")
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == 1
    views = (A, A.view(torch.int32), A.view(torch.uint8), A[4:8].view(torch.float64))
    assert all(torch.equal(t, v) and t.dtype == v.dtype for t, v in zip(tensors, views, strict=True))


def test_dtypes(load):
    pairs = load("dtypes")
    two_numbers = getattr(torch, "float4_e2m1fn_x2", None)  # since torch 2.8
    assert len(pairs) == 21 + (two_numbers is not None)
    for dtype, tensor in pairs:
        assert tensor.dtype == dtype
        if dtype == two_numbers:
            assert tensor.view(torch.uint8).tolist() == [0x21] * 3
        else:
            assert torch.equal(tensor.to(torch.complex128), torch.ones(3, dtype=torch.complex128))


def test_requires_grad(load):
    leaf, computed, plain = load("requires_grad")
    assert leaf.requires_grad and computed.requires_grad and not plain.requires_grad
    assert computed.is_leaf and computed.tolist() == [2, 2]


def test_a_view_of_a_large_storage_is_a_small_file(samples, load):
    first, second = load("small_view")
    assert (samples / "small_view.pth").stat().st_size < 2000
    assert first.tolist() == [3] * 10 and second.tolist() == [3] * 8 and second.stride() == (2,)
    assert second.data_ptr() - first.data_ptr() == 5 * 4


def test_conjugate_and_negative_bits(load):
    conjugate, negative = load("conj_neg")
    assert conjugate.is_conj() and conjugate.tolist() == [1 - 2j] * 3
    assert negative.is_neg() and negative.tolist() == [-2] * 3


def test_sparse(load):
    sparse = load("sparse")
    layouts = {k: v.layout for k, v in sparse.items()}
    assert layouts == {
        "coo": torch.sparse_coo, "uncoalesced": torch.sparse_coo, "csr": torch.sparse_csr, "csc": torch.sparse_csc,
        "bsr": torch.sparse_bsr, "bsc": torch.sparse_bsc, "leaf": torch.sparse_coo, "same": torch.sparse_coo,
    }  # fmt: skip
    for name, size in {"coo": 3, "csr": 3, "csc": 3, "bsr": 4, "bsc": 4, "leaf": 3}.items():
        assert torch.equal(sparse[name].detach().to_dense(), torch.eye(size)), name
    assert sparse["coo"].is_coalesced() and not sparse["uncoalesced"].is_coalesced()
    assert sparse["uncoalesced"].to_dense().tolist() == [[2] * 3, [0] * 3, [0] * 3]
    assert sparse["leaf"].requires_grad and sparse["same"] is sparse["leaf"] and not sparse["coo"].requires_grad


def test_many_and_large(load):
    assert all(t.tolist() == [i, i] for i, t in enumerate(load("many")))
    large, small = load("large")
    assert torch.equal(large, torch.arange(1 << 20, dtype=torch.float32)) and small.tolist() == [0, 1, 2, 3, 4]


def test_our_offsets_are_those_that_torch_computes(samples):
    from torch.utils.serialization import config

    with config.patch({"load.calculate_storage_offsets": True}):
        many = torch.load(samples / "many.pth", weights_only=True, mmap=True)
    assert all(t.tolist() == [i, i] for i, t in enumerate(many))


Pair = collections.namedtuple("Pair", "first second")


def _python_values():
    whole = torch.arange(9.0)
    parameter = torch.nn.Parameter(torch.ones(2))
    tagged = torch.nn.Parameter(torch.ones(3))
    tagged.tag = 5  # attributes make Python pickle a tensor another way
    return {
        "plain": {"n": None, "b": [True, False], "f": [0.5, float("inf")], "s": "hé", "c": 1 - 2j, "e": [[], (), {}]},
        "ints": [s * 2**p + d for s in (1, -1) for p in (7, 8, 15, 16, 31, 32, 39, 40, 55, 62) for d in (-1, 0, 1)],
        "ordered": collections.OrderedDict(a=1, b=2),
        "state_dict": torch.nn.Linear(2, 3).state_dict(),
        "parameters": [parameter, tagged, parameter],
        "enums": [torch.float8_e4m3fn, torch.bool, torch.device("cuda:1"), torch.sparse_csr, torch.Size([2, 3])],
        "bytes": [b"\0\xff" * 200, b""],
        "sets": [{1, 2}, set()],
        "sparse": [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(4).to_sparse_bsc((2, 2))],
        "dtypes": [torch.ones(2).to(t) for t in (torch.float8_e5m2, torch.uint16, torch.complex64, torch.bfloat16)],
        "aliases": (whole, whole[2:], whole, whole[2:7:2]),
        "bits": [torch.full((2,), 1 + 2j).conj(), torch.empty(0, 3), torch.tensor(2.5)],
        "large": torch.arange(1 << 20),
    }


def _equal(a, b):
    if isinstance(a, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and a.layout == b.layout and a.requires_grad == b.requires_grad
        if a.layout == torch.strided:
            same = same and a.stride() == b.stride() and a.is_conj() == b.is_conj()
        wide = torch.complex128
        return same and torch.equal(a.detach().to_dense().to(wide), b.detach().to_dense().to(wide))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and isinstance(b, type(a)) and all(map(_equal, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_save_wrote_comes_back_from_our_reader(build_dir, tmp_path, protocol):
    values = _python_values()
    for name, value in values.items():
        torch.save(value, tmp_path / f"{name}.pth", pickle_protocol=protocol)
    # Kinds that come back as their substitutes.
    stand_ins = {
        "slices": ((slice(1, None, 2), ...), ({"__slice__": (1, None, 2)}, {"__ellipsis__": True})),
        "returned": (torch.return_types.max((torch.ones(1), torch.zeros(1))), (torch.ones(1), torch.zeros(1))),
        "named": (Pair(1, 2), {"__namedtuple__": ("test_pth_format.Pair", (1, 2))}),
        "frozen": (frozenset([1]), {1}),
        "bytearray": (bytearray(b"a\xff"), b"a\xff"),
        "long": (2**64, {"__unsupported__": ("int", "does not fit into 64 bits")}),
    }
    for name, (value, _) in stand_ins.items():
        torch.save(value, tmp_path / f"{name}.pth", pickle_protocol=protocol)
    refused = {
        "module": (torch.nn.Linear(1, 1), "'torch.nn.modules.linear.Linear'"),
        "function": (torch.nn.init.normal_, "'torch.nn.init.normal_'"),
        "storage": (torch.ones(1).untyped_storage(), "bare storage"),
        "meta": (torch.ones(1, device="meta"), "_rebuild_meta_tensor_no_storage"),
    }
    for name, (value, _) in refused.items():
        torch.save(value, tmp_path / f"{name}.pth", pickle_protocol=protocol)
    torch.save(1, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    refused["old"] = (1, "old format")

    subprocess.run([build_dir / "tests/cpp/write_sample_pth", tmp_path, "--rewrite"], check=True)

    again = {p.name.removesuffix(".pth.again"): torch.load(p, weights_only=True) for p in tmp_path.glob("*.again")}
    reasons = {p.name.removesuffix(".pth.error"): p.read_text() for p in tmp_path.glob("*.error")}
    assert set(again) == set(values) | set(stand_ins), reasons
    for name, value in values.items():
        expected = dict(value) if isinstance(value, dict) else value
        assert _equal(expected, again[name]), (name, again[name])
    for name, (_, expected) in stand_ins.items():
        assert _equal(expected, again[name]), (name, again[name])
    whole, part, same, _ = again["aliases"]
    assert same is whole and part.data_ptr() == whole.data_ptr() + 8
    assert again["parameters"][0] is again["parameters"][2]
    assert set(reasons) == set(refused)
    for name, (_, reason) in refused.items():
        assert str(tmp_path / name) in reasons[name] and reason in reasons[name]
