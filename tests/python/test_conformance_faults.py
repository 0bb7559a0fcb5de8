"""The source "faults": calls that show publicly reported faults of kernels. On torch's own CPU each group finds the known faults
to be wrong there, and nothing else; on the simulated device a planted fault of the kind is found."""

import collections

import op_tools.sim_device  # isort: skip  # noqa: F401  (before the first backward pass)
import pytest
import torch

from op_tools._conformance import DEFAULT_SOURCES
from op_tools._conformance.case import Case, make_call
from op_tools._conformance.fault_cases import GROUPS, fault_cases
from op_tools._conformance.lists import Filter, load_cases
from op_tools._conformance.rows import DIFFERS, NOT_JUDGED
from op_tools._conformance.verdict import Judge

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
CASES = list(fault_cases())
# Faults of torch 2.13's CPU kernels (docs/conformance.md); by group: operator -> dtypes.
FLOATS, NARROW, EXACT = (
    frozenset(("float32", "bfloat16")),
    frozenset(("bfloat16", "float16")),
    frozenset(("float32", "int64")),
)
KNOWN = {
    "nan-lengths": dict.fromkeys(
        ("hardtanh", "relu6", "hardshrink", "softshrink", "elu", "celu", "selu", "hardswish", "logit"), FLOATS
    ),
    "equal-indices": dict.fromkeys(
        ("index_put", "index_add", "index_select", "take", "__getitem__", "embedding"), NARROW
    ),
    "large-means": {"group_norm": frozenset(("float32",))},
    "far-away": {"cdist": frozenset(("float32",))},
    "overlap": dict.fromkeys(("copy_", "add_", "sub_", "mul_"), EXACT),
    "quotients": {"floor_divide": NARROW, "div": NARROW},
}


@pytest.fixture(autouse=True)
def _quiet(log_level, quiet):
    log_level("off")


def wrong(cases, device):
    """By function: the dtypes with a wrong row. Every row has a verdict."""
    judge = Judge(torch.device(device))
    statuses = collections.defaultdict(set)
    for case in cases:
        for row in judge.rows(case):
            assert row.status != NOT_JUDGED, (case.id, row.reason)
            if row.status == DIFFERS:
                statuses[case.op.rpartition(".")[2]].add(case.dtype)
    return dict(statuses)


def test_they_are_cases_as_others_are():
    assert DEFAULT_SOURCES[-1] == "faults"
    assert [case.id for case in load_cases(sources=("faults",))] == [case.id for case in CASES]
    assert len({case.id for case in CASES}) == len(CASES) > 300
    assert {case.mutation for case in CASES} == set(GROUPS) == set(KNOWN)
    assert [Case.from_json(case.to_json()) for case in CASES] == CASES
    chosen = list(load_cases(sources=("faults",), filter=Filter(fname="group_norm")))
    assert len(chosen) == 2 and {case.layout for case in chosen} == {"contiguous", "nhwc"}


def test_the_values_are_what_a_fault_needs():
    def tensors(group, op):
        case = next(case for case in CASES if case.mutation == group and case.op.endswith(op))
        return make_call(case, torch.device("cpu")).inputs

    assert tensors("nan-lengths", "hardtanh")[0].isnan().all()
    _, index, ones = tensors("equal-indices", "index_add")
    assert index.unique().tolist() == [0] and ones.unique().tolist() == [1] and len(ones) == 4096
    assert 9990 < tensors("large-means", "group_norm")[0].mean() < 10010
    ahead, behind = tensors("overlap", "copy_")
    assert ahead.untyped_storage().data_ptr() == behind.untyped_storage().data_ptr()
    assert ahead.data_ptr() == behind.data_ptr() + 4


@pytest.mark.parametrize("group", GROUPS)
def test_known_faults_of_the_cpu_are_found_and_nothing_else(group):
    failed = wrong([case for case in CASES if case.mutation == group], "cpu")
    assert failed == KNOWN[group]


# Kernels of a device that has the fault of a group where torch's CPU is right.


def keeps_its_sum_in_16_bits(self, dim, index, source):
    return self.cpu().index_add(dim, index.cpu(), source.cpu()).to("sim")


def swallows_nan_behind_the_last_vector(gradient, x):
    result = torch.ops.aten.silu_backward(gradient.cpu(), x.cpu())
    result[len(result) // 16 * 16 :].nan_to_num_()
    return result.to("sim")


def takes_the_variance_in_one_pass(x, shape, weight, bias, eps):
    x = x.cpu()
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = x.mean(dims, keepdim=True)
    scale = ((x * x).mean(dims, keepdim=True) - mean * mean + eps).rsqrt()
    return ((x - mean) * scale).to("sim"), mean.to("sim"), scale.to("sim")


def always_takes_the_product(a, b, p, mode):
    return torch.ops.aten._cdist_forward(a.cpu(), b.cpu(), p, 1 if p == 2 else mode).to("sim")


def divides_first(a, b):
    return (a.cpu() / b.cpu()).floor().to("sim")


PLANTED = [
    ("equal-indices", "scatter_add", "scatter_add", keeps_its_sum_in_16_bits, NARROW),
    ("nan-lengths", "silu_backward", "silu", swallows_nan_behind_the_last_vector, FLOATS),
    ("large-means", "native_layer_norm", "layer_norm", takes_the_variance_in_one_pass, {"float32"}),
    ("far-away", "_cdist_forward", "cdist", always_takes_the_product, {"float32", "float64"}),
    ("quotients", "floor_divide", "floor_divide", divides_first, {"bfloat16"}),
]


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel.*")
@pytest.mark.parametrize(
    ("group", "operator", "function", "kernel", "dtypes"), PLANTED, ids=[one[0] for one in PLANTED]
)
def test_a_device_that_has_the_fault_is_found(group, operator, function, kernel, dtypes):
    cases = [case for case in CASES if case.mutation == group and case.op.rpartition(".")[2] == function]
    assert not wrong(cases, "sim") or group in ("far-away", "quotients")
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(operator, kernel, "PrivateUse1")
        assert wrong(cases, "sim") == {function: set(dtypes)}
    finally:
        library._destroy()
