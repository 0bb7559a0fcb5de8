"""Every kind of fault acts as its name says, on the calls that were asked for, and counts how often."""

import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim

KINDS = (
    "scale element low_precision swap_rows nan inf mutate_input noncontiguous above_size lost_write missing strides "
    "latency leak exception nondeterministic crash hang out_of_bounds late_write wrong_generator "
    "batch_size batch_position misaligned every_second bit_flip neighbour other_stream "
    "gaps sequence_length row_length token_position"
)


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


def pair(*shape, dtype=torch.float32):
    """The same numbers on the CPU and on the device."""
    host = torch.randn(*shape).to(dtype) if dtype.is_floating_point or dtype.is_complex else torch.randint(1, 9, shape)
    host = host.to(dtype)
    return host, host.to("sim")


def different(result, right):
    """How many elements are not the same."""
    result = result.cpu()
    return (~((result == right) | (result.isnan() & right.isnan()))).sum().item()


def test_the_kinds_are_those_of_the_documents():
    assert " ".join(sim.FAULT_KINDS) == KINDS


def test_scale_multiplies_the_result():
    host, x = pair(8, 8)
    with sim.fault("scale", ops="mm", scale=1.5) as fault:
        result = torch.mm(x, x)
        untouched = x + x
    torch.testing.assert_close(result.cpu(), torch.mm(host, host) * 1.5)
    assert different(untouched, host + host) == 0
    assert fault.hits == 1 and fault.log == [("aten::mm", 0)]
    assert different(torch.mm(x, x), torch.mm(host, host)) == 0, "after the block all is right again"


def test_faults_of_invariance_depend_on_rows_places_and_calls():
    host, x = pair(4, 6)
    with sim.fault("batch_size", ops="aten::sqrt", scale=1.5):
        assert different(torch.sqrt(x[:1]), host[:1].sqrt()) == 0
        torch.testing.assert_close(torch.sqrt(x * x).cpu(), host.abs() * 2)  # 1 + 0.5 log2(4)
    with sim.fault("batch_position", ops="aten::sqrt", scale=1.5):
        result = torch.sqrt(x * x).cpu() / host.abs()
    torch.testing.assert_close(result, torch.tensor([[1.0], [1.5], [1.0], [1.5]]).expand(4, 6))
    with sim.fault("misaligned", ops="aten::neg", scale=1.5) as fault:
        torch.neg(x)
        assert fault.hits == 0
        torch.neg(x.flatten()[1:])
        assert fault.hits == 1
    with sim.fault("every_second", ops="aten::neg", scale=1.5):
        assert [different(torch.neg(x), -host) > 0 for _ in range(4)] == [False, True, False, True]
    with sim.fault("bit_flip", ops="aten::neg", seed=2):
        flipped = torch.neg(x).cpu().view(torch.int32) ^ (-host).view(torch.int32)
    assert flipped.count_nonzero() == 1
    with sim.fault("neighbour", ops="aten::neg", scale=1.5) as fault:
        torch.testing.assert_close(torch.neg(x).cpu(), -host - 0.5 * torch.cat([torch.zeros(1, 6), host[:-1]]))
        assert different(torch.neg(x[:1]), -host[:1]) == 0
        assert fault.hits == 1
    with sim.fault("other_stream", ops="aten::neg", scale=1.5) as fault:
        assert different(torch.neg(x), -host) == 0
        torch.accelerator.synchronize()
        with torch.Stream(device="sim"):
            torch.testing.assert_close(torch.neg(x).cpu(), host * -1.5)
        assert fault.hits == 1
    with sim.fault("gaps", ops="aten::neg", scale=1.5) as fault:
        assert different(torch.neg(x.t()), -host.t()) == 0
        torch.testing.assert_close(torch.neg(x[:, :3]).cpu(), host[:, :3] * -1.5)
        assert fault.hits == 1
    with sim.fault("sequence_length", ops="aten::neg", scale=1.5):
        assert different(torch.neg(x[:, :1]), -host[:, :1]) == 0
        torch.testing.assert_close(torch.neg(x[:, :4]).cpu(), host[:, :4] * -2)  # 1 + 0.5 log2(4)
    tokens, on_device = pair(2, 3, 4)
    with sim.fault("token_position", ops="aten::neg", scale=1.5) as fault:
        expected = -tokens
        expected[:, 1] *= 1.5
        torch.testing.assert_close(torch.neg(on_device).cpu(), expected)
        assert different(torch.neg(x), -host) == 0  # of two dimensions
        assert fault.hits == 1
    with sim.fault("row_length", ops="aten::neg", scale=1.5):
        torch.testing.assert_close(torch.neg(x[:, :4]).cpu(), host[:, :4] * -2)
        assert different(torch.neg(x[:, :1]), -host[:, :1]) == 0
    assert int(flipped.abs().max()).bit_count() == 1 or flipped.min() == -(2**31)


def test_element_makes_one_element_wrong():
    host, x = pair(100, 7)
    with sim.fault("element", ops="sigmoid", seed=5) as fault:
        first, second = torch.sigmoid(x), torch.sigmoid(x)
    assert different(first, host.sigmoid()) == different(second, host.sigmoid()) == 1
    assert different(first, second.cpu()) == 2, "another element each time"
    with sim.fault("element", ops="sigmoid", seed=5):
        assert different(torch.sigmoid(x), first.cpu()) == 0, "the same seed, the same element"
    assert fault.hits == 2


def test_an_element_that_is_zero_becomes_another_number():
    with sim.fault("element", ops="relu", scale=1.25) as fault:
        assert torch.relu(torch.full((3,), -1.0, device="sim")).cpu().sort().values.tolist() == [0, 0, 0.25]
    assert fault.hits == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_low_precision_rounds(dtype):
    host, x = pair(64, dtype=dtype)
    with sim.fault("low_precision", ops="mul.Tensor") as fault:
        result = (x * x).cpu()
    right = host * host
    error = ((result - right).abs() / right.abs()).to(torch.float64).max().item()
    bits = {torch.float64: 24, torch.float16: 3, torch.bfloat16: 3}.get(dtype, 8)
    assert 0 < error <= 2.0**-bits and fault.hits == 1


def test_swap_rows_exchanges_two_neighbours():
    host, x = pair(6, 4)
    with sim.fault("swap_rows", ops="neg") as fault:
        result = torch.neg(x).cpu()
    wrong = (result != -host).any(1).nonzero().flatten().tolist()
    assert len(wrong) == 2 and wrong[1] == wrong[0] + 1
    assert torch.equal(result[wrong], -host[wrong[::-1]])
    assert fault.hits == 1


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_nan_and_inf_stand_in_one_element(kind):
    host, x = pair(5, 5)
    with sim.fault(kind, ops="add.Tensor") as fault:
        result = (x + x).cpu()
    assert getattr(result, f"is{kind}")().sum() == 1 and different(result, host + host) == 1
    with sim.fault(kind, ops="add.Tensor") as none:
        torch.ones(3, dtype=torch.int64, device="sim") + 1
    assert fault.hits == 1 and none.hits == 0 and none.matched == 1, "whole numbers have no NaN"


def test_mutate_input_changes_what_must_not_be_and_no_version_counter():
    host, x = pair(4, 4)
    version = x._version
    with sim.fault("mutate_input", ops="sigmoid") as fault:
        result = torch.sigmoid(x)
    assert different(result, host.sigmoid()) == 0
    assert different(x, host) == 1 and x._version == version
    with sim.fault("mutate_input", ops="add_.Tensor") as none:
        x.add_(1)
    assert fault.hits == 1 and none.hits == 0, "the output of an operator is not its input"


def test_mutate_input_changes_an_expanded_input():
    x = torch.ones(4, device="sim")
    with sim.fault("mutate_input", ops="sum") as fault:
        total = x.expand(3, 4).sum()
    assert fault.hits == 1
    assert total.item() == 12
    assert different(x, torch.ones(4)) == 1


def test_noncontiguous_is_wrong_for_those_inputs_only():
    host, x = pair(6, 6)
    with sim.fault("noncontiguous", ops="mm") as fault:
        assert different(torch.mm(x, x), torch.mm(host, host)) == 0 and fault.hits == 0
        assert different(torch.mm(x.t(), x), torch.mm(host.t(), host)) == 36
    assert fault.hits == 1 and fault.matched == 2


def test_above_size_is_wrong_behind_so_many_elements():
    host, x = pair(10, 10)
    with sim.fault("above_size", ops="exp", size=64) as fault:
        assert different(torch.exp(x[:6]), host[:6].exp()) == 0
        result = torch.exp(x)
    wrong = (result.cpu() != host.exp()).flatten()
    assert not wrong[:64].any() and wrong[64:].all() and fault.hits == 1


def test_lost_write_leaves_the_old_values():
    host, x = pair(3, 3)
    out = torch.zeros(3, 3, device="sim")
    parameters = [torch.ones(2, device="sim"), torch.ones(3, device="sim")]
    with sim.fault("lost_write", ops="add_.Tensor, mm.out, _foreach_add_.Scalar") as fault:
        x.add_(1)
        torch.mm(x, x, out=out)
        torch._foreach_add_(parameters, 1)
        right = torch.mm(x, x)
    assert different(x, host) == 0 and different(out, torch.zeros(3, 3)) == 0
    assert [p.sum().item() for p in parameters] == [2, 3]
    assert different(right, torch.mm(host, host)) == 0
    assert [op for op, _ in fault.log] == ["aten::add_.Tensor", "aten::mm.out", "aten::_foreach_add_.Scalar"]
    assert fault.hits == 3


def test_missing_raises_as_a_vendors_backend_does():
    _, x = pair(2)
    text = r"Could not run 'aten::gelu' with arguments from the 'sim' backend"
    with sim.fault("missing", ops="gelu") as fault, pytest.raises(NotImplementedError, match=text):
        F.gelu(x)
    assert fault.hits == 1
    F.gelu(x)


def test_exception_raises_and_the_device_goes_on():
    host, x = pair(2)
    with sim.fault("exception", ops="aten::add.Tensor", call=1) as fault:
        x + 1
        with pytest.raises(RuntimeError, match=r"aten::add\.Tensor failed on the device"):
            x + 1
        assert different(x + 1, host + 1) == 0
    assert fault.log == [("aten::add.Tensor", 1)]


def test_strides_gives_the_values_in_another_layout():
    host, x = pair(4, 6)
    with sim.fault("strides", ops="mul.Tensor") as fault:
        result = x * x
        row = x[0] * x[0]
    assert result.stride() == (1, 4) and different(result, host * host) == 0
    assert row.stride() == (1,) and fault.hits == 1, "a single dimension has a single layout"


def test_late_write_arrives_when_the_device_is_waited_for():
    host, x = pair(8, 8)
    y = x.clone()
    with sim.fault("late_write", ops="tanh, add_.Tensor") as fault:
        late = torch.tanh(x)
        read_too_early = late + 1
        y.add_(1)
        before = y.cpu()
    assert fault.hits == 2
    assert different(before, host) == 0, "a tensor that is written in place is unchanged"
    assert different(late, torch.zeros(8, 8)) == 0
    torch.sim.synchronize()
    assert different(late, host.tanh()) == different(y, host + 1) == 0
    assert different(read_too_early, torch.ones(8, 8)) == 0, "it was read before"


def test_leak_keeps_memory_until_faults_are_cleared():
    _, x = pair(16, 16)
    before = sim.statistics()["allocated_bytes"]
    with sim.fault("leak", ops="mm") as fault:
        for _ in range(10):
            torch.mm(x, x)
    assert fault.hits == 10 and sim.statistics()["allocated_bytes"] - before == 10 * 16 * 16 * 4
    sim.faults_clear()
    assert sim.statistics()["allocated_bytes"] == before


@pytest.mark.parametrize(
    ("ops", "draw"),
    [
        ("normal_", lambda: torch.empty(9, device="sim").normal_()),
        ("native_dropout", lambda: torch.dropout(torch.ones(9, device="sim"), 0.5, True)),
    ],
)
def test_wrong_generator_draws_from_the_cpu(ops, draw):
    def moved():
        own, cpu = torch.sim.get_rng_state(), torch.get_rng_state()
        draw()
        return not torch.equal(own, torch.sim.get_rng_state()), not torch.equal(cpu, torch.get_rng_state())

    assert moved() == (True, False)
    with sim.fault("wrong_generator", ops=ops) as fault:
        assert moved() == (False, True)
    assert fault.hits == 1
    with sim.fault("wrong_generator", ops="add.*") as fault:
        torch.ones(3, device="sim") + 1
    assert (fault.matched, fault.hits) == (1, 0)


def test_nondeterministic_gives_other_results_for_the_same_arguments():
    host, x = pair(32, 32)
    with sim.fault("nondeterministic", ops="mm") as fault:
        product, other = torch.mm(x, x), torch.mm(x, x)
    assert different(product, other.cpu()) > 0 and fault.hits == 2
    torch.testing.assert_close(product.cpu(), torch.mm(host, host), rtol=2e-3, atol=0)


def test_latency_is_spent_on_the_device():
    _, x = pair(2, 2)
    start, end = (torch.Event(device="sim", enable_timing=True) for _ in range(2))
    with sim.fault("latency", ops="add.Tensor", microseconds=30_000) as fault:
        start.record()
        for _ in range(2):
            x + 1
        end.record()
        end.synchronize()
    assert start.elapsed_time(end) >= 60 and fault.hits == 2


def test_bools_and_whole_numbers_become_wrong_too():
    host, x = pair(4, dtype=torch.int64)
    with sim.fault("scale", ops="add.Tensor, gt.Scalar") as fault:
        assert torch.equal((x + 1).cpu(), host + 2)
        assert torch.equal((x > 3).cpu(), ~(host > 3))
    assert fault.hits == 2


def test_an_empty_result_is_no_strike():
    with sim.fault("scale", ops="mul.Tensor") as fault:
        torch.ones(0, device="sim") * 2
        torch.zeros(3, device="sim") * 2  # and nothing is a scaled zero
    assert fault.hits == 0 and fault.matched == 2


def test_call_numbers_choose():
    _, x = pair(3)
    for call, expected in [(2, [2]), (range(1, 6, 2), [1, 3, 5]), (range(4, 4), [])]:
        with sim.fault("scale", ops="sigmoid", call=call) as fault:
            for _ in range(7):
                torch.sigmoid(x)
        assert [number for _, number in fault.log] == expected and fault.matched == 7


def test_probability_draws_with_the_seed():
    _, x = pair(3)

    def calls_hit(seed, probability=0.3):
        with sim.fault("scale", ops="sigmoid", probability=probability, seed=seed) as fault:
            for _ in range(200):
                torch.sigmoid(x)
        return [number for _, number in fault.log]

    assert calls_hit(1) == calls_hit(1) != calls_hit(2)
    assert 30 < len(calls_hit(1)) < 90 and calls_hit(1, 0) == [] and len(calls_hit(1, 1)) == 200


def test_start_and_stop_go_on_counting():
    _, x = pair(3)
    fault = sim.fault("scale", ops="sigmoid", call=range(2))
    torch.sigmoid(x)
    assert fault.matched == 0, "not planted before start()"
    for _ in range(3):
        fault.start()
        torch.sigmoid(x)
        fault.stop()
    assert fault.matched == 3 and fault.hits == 2
    assert repr(fault) == "<fault scale of sigmoid: 2 hits in 3 calls>"


def test_a_started_fault_stays_without_a_name_until_all_are_cleared():
    host, x = pair(3)
    sim.fault("scale", ops="sigmoid").start()
    assert different(torch.sigmoid(x), host.sigmoid()) == 3
    sim.faults_clear()
    assert different(torch.sigmoid(x), host.sigmoid()) == 0


def test_several_faults_hit_one_call():
    host, x = pair(3, 3)
    with sim.fault("scale", ops="mm", scale=2), sim.fault("nan", ops="m+") as nan:
        result = torch.mm(x, x).cpu()
    assert result.isnan().sum() == 1 and nan.hits == 1
    right = ~result.isnan()
    torch.testing.assert_close(result[right], (torch.mm(host, host) * 2)[right])


def test_backward_and_optimizers_are_hit_like_everything():
    model = torch.nn.Linear(3, 3).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    before = model.weight.detach().clone()
    model(torch.ones(2, 3, device="sim")).sum().backward()
    with sim.fault("lost_write", ops="add_.Tensor") as fault:
        optimizer.step()
    assert torch.equal(before, model.weight) and fault.hits == 2
    with sim.fault("scale", ops="threshold_backward") as backward:
        x = torch.ones(3, device="sim", requires_grad=True)
        torch.relu(x).sum().backward()
    assert backward.hits == 1 and x.grad.tolist() == pytest.approx([1.01] * 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (dict(kind="skale"), "'skale' is no kind; give one of scale, element"),
        (dict(kind="scale", ops="("), "'\\(' is no valid regular expression"),
        (dict(kind="scale", ops="linear"), "aten::linear: torch makes them of others"),
        (dict(kind="scale", probability=1.5), "probability=1.5 is not allowed; give a number from 0 to 1"),
        (dict(kind="scale", call=-1), "call=-1 is not allowed; calls are counted from 0"),
        (dict(kind="scale", scale=1), "scale=1 is not allowed"),
        (dict(kind="nan", scale=2), "scale=2 is not allowed; the kind has no scale"),
        (dict(kind="above_size"), r"size=\(none\) is not allowed; give the number of elements"),
        (dict(kind="scale", size=3), "only above_size has a size"),
        (dict(kind="latency"), "say how much longer"),
        (dict(kind="scale", microseconds=3), "only latency has a time"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, text):
    with pytest.raises(op_tools.Error, match=text):
        sim.fault(**arguments)


def test_a_fault_that_matched_nothing_says_so(capfd):
    with sim.fault("scale", ops="cholesky"):
        torch.ones(2, device="sim") + 1
    assert "fault scale: ops='cholesky' matched no operator that ran on the device" in capfd.readouterr().err


def test_the_environment_plants_faults_and_latencies(python):
    program = """
import torch, time
import op_tools.sim_device as sim
x = torch.ones(2, 2, device="sim")
print(torch.mm(x, x).tolist(), torch.addmm(x, x, x).tolist(), (x * 3).tolist())
start, end = (torch.Event(device="sim", enable_timing=True) for _ in range(2))
start.record(); torch.neg(x); end.record(); end.synchronize()
print(start.elapsed_time(end) >= 20)
sim.faults_clear()
print(torch.mm(x, x).tolist())
"""
    done = python(
        program,
        OP_TOOLS_SIM_FAULTS="scale: ops=mm,addmm, scale=1.5; nan:ops=mul.Tensor,call=0-3,probability=1,seed=4",
        OP_TOOLS_SIM_LATENCY="neg=20000; mm = 5",
    )
    first, second, third = done.stdout.splitlines()
    assert first.startswith("[[3.0, 3.0], [3.0, 3.0]] [[4.5, 4.5], [4.5, 4.5]]") and first.count("nan") == 1
    assert second == "True" and third == "[[2.0, 2.0], [2.0, 2.0]]"


WRONG_VARIABLES = [
    ("FAULTS", "skale:ops=mm", "OP_TOOLS_SIM_FAULTS: 'skale:ops=mm'"),
    ("FAULTS", "nan;scale:size", "'scale:size': it: 'size' is no option"),
    ("FAULTS", "scale:opz=mm", "'opz' is no option; give ops, call"),
    ("FAULTS", "scale:seed=x", "'x' is no number"),
    ("FAULTS", "scale:ops=a(", "is no valid regular expression"),
    ("LATENCY", "mm", "OP_TOOLS_SIM_LATENCY: 'mm': give operator=microseconds"),
    ("LATENCY", "mm=fast", "'fast' is no number"),
    ("LATENCY", "mm=-1", "give an operator expression and microseconds"),
]


def test_a_wrong_variable_is_named_with_its_item_each_time(python):
    done = python(f"""
import os, op_tools, torch
for variable, value, _ in {WRONG_VARIABLES!r}:
    os.environ["OP_TOOLS_SIM_" + variable] = value
    try:
        import op_tools.sim_device
    except op_tools.Error as error:
        print(error)
    del os.environ["OP_TOOLS_SIM_" + variable]
import op_tools.sim_device
x = torch.ones(2, 2, device="sim")
print(torch.mm(x, x).tolist())
""")
    lines = done.stdout.splitlines()
    assert [text for (_, _, text), line in zip(WRONG_VARIABLES, lines, strict=False) if text not in line] == []
    assert lines[-1] == "[[2.0, 2.0], [2.0, 2.0]]", "a refused fault planted nothing"


@pytest.mark.parametrize("asynchronous", [True, False])
def test_crash_ends_the_process_with_sigsegv(asynchronous):
    program = f"""
import torch
import op_tools.sim_device as sim
sim.set_asynchronous({asynchronous})
x = torch.ones(3, device="sim")
x.sigmoid()
sim.fault("crash", ops="sigmoid", call=1).start()
x.sigmoid()
torch.accelerator.synchronize()
x.sigmoid()
torch.accelerator.synchronize()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def test_hang_ends_when_the_fault_is_taken_out():
    host, x = pair(4)
    torch.sigmoid(x).cpu()
    with sim.fault("hang", ops="sigmoid") as fault:
        result = torch.sigmoid(x)
        event = torch.Event("sim")
        event.record()
        time.sleep(0.05)
        assert not event.query() and fault.hits == 1
    torch.accelerator.synchronize()
    assert event.query() and different(result, host.sigmoid()) == 0


def test_out_of_bounds_writes_one_element_behind_the_result():
    host, x = pair(2, 3)
    whole = torch.zeros(4, 3, device="sim")
    with sim.fault("out_of_bounds", ops="add.out, add_.Tensor, sigmoid") as fault:
        torch.add(x, x, out=whole[:2])
        new = torch.sigmoid(x)
        assert fault.hits == 2
        x.add_(1)
        assert fault.hits == 2 and fault.matched == 3, "nothing of the program's lies behind it"
    assert different(new, host.sigmoid()) == 0 and different(x, host + 1) == 0
    assert different(whole[:2], host + host) == 0
    behind = whole[2:].cpu().flatten()
    assert behind[0].isnan() and not behind[1:].any(), "the bits of a zero, inverted"


def test_out_of_bounds_writes_behind_an_argument_of_a_call_without_results():
    memory = torch.ones(6, device="sim")
    with sim.fault("out_of_bounds", ops="_foreach_add_.Scalar") as fault:
        torch._foreach_add_([memory[:2], memory[3:5]], 1)
    assert fault.hits == 1
    assert memory.cpu()[[0, 1, 3, 4, 5]].tolist() == [2, 2, 2, 2, 1]
    assert memory.cpu()[2] != 1


def test_a_number_that_the_program_reads_is_wrong_and_the_tensor_stays_right():
    _, x = pair(1)
    right = x.item()
    with sim.fault("scale", ops="_local_scalar_dense", scale=2, call=1) as fault:
        assert [x.item(), x.item(), x.item()] == [right, 2 * right, right]
    assert fault.hits == 1 and x.item() == right


@pytest.mark.parametrize("kind", ["scale", "element", "nan", "above_size", "leak", "out_of_bounds", "mutate_input"])
def test_zeros_without_memory_have_nothing_that_a_fault_could_change(kind):
    options = {"size": 3} if kind == "above_size" else {}
    with sim.fault(kind, ops="_efficientzerotensor, add", **options):
        zeros = torch._efficientzerotensor(4, device="sim")
        result = zeros + zeros
    assert zeros.cpu().tolist() == [0] * 4
    assert result.cpu().tolist() == [0] * 4
