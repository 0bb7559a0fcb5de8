"""Torch and usual programs work with the simulated device: memory, streams, events, random numbers, files."""

import copy
import io
import threading
import time

import pytest
import torch
import torch.nn.functional as F

import op_tools.sim_device as sim

MILLISECOND = 1000  # in microseconds


@pytest.fixture(autouse=True)
def _idle_device():
    yield
    torch.accelerator.synchronize("sim:0")
    torch.accelerator.synchronize("sim:1")


# --- Loading


def test_importing_op_tools_loads_nothing(python):
    done = python("""
import sys, torch
before = torch.accelerator.current_accelerator()
import op_tools
print("op_tools.sim_device" in sys.modules, hasattr(torch, "sim"), torch.accelerator.current_accelerator() == before)
print([line for line in open("/proc/self/maps") if "sim_device" in line])
""")
    assert done.stdout.split("\n")[:2] == ["False False True", "[]"]


def test_a_taken_privateuse1_is_named(python):
    done = python(
        """
import torch
torch.utils.rename_privateuse1_backend("npu")
import op_tools
try:
    import op_tools.sim_device
except op_tools.Error as error:
    print(error)
""",
    )
    assert "PrivateUse1 is taken by 'npu' in this process" in done.stdout


def test_it_is_the_accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.device_count() == torch.sim.device_count() == 2
    assert torch.sim.is_available() and torch.sim.is_initialized()
    assert torch.sim.get_device_name(1) == "simulated accelerator 1"


# --- Tensors


def test_tensors_come_go_and_print():
    host = torch.arange(6.0).view(2, 3)
    x = host.to("sim")
    assert x.device == torch.device("sim:0") and x.is_sim and x.get_device() == 0
    assert torch.equal(x.cpu(), host) and x.tolist() == host.tolist() and x[1, 2].item() == 5
    assert torch.equal(host.sim().cpu(), host)
    assert "device='sim:0'" in repr(x) and "4." in repr(x)
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        x.numpy()


def test_views_and_in_place_changes_share_memory():
    x = torch.zeros(4, 4, device="sim")
    x.t()[1].fill_(3)
    x.unfold(0, 2, 2)[0, 0] += 1
    torch.view_as_real(torch.view_as_complex(x.view(2, 4, 2)))[0, 0, 0] = 9
    host = torch.zeros(4, 4)
    host.t()[1].fill_(3)
    host.unfold(0, 2, 2)[0, 0] += 1
    torch.view_as_real(torch.view_as_complex(host.view(2, 4, 2)))[0, 0, 0] = 9
    assert torch.equal(x.cpu(), host)
    assert x.t().data_ptr() == x.data_ptr() and x[2:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_out_and_resize_change_the_tensor_itself():
    x = torch.arange(4.0, device="sim")
    out = torch.empty(0, device="sim")
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4]
    out.resize_(2)
    assert out.tolist() == [1, 2]
    out.set_(x)
    assert out.data_ptr() == x.data_ptr()
    y = torch.zeros(2, device="sim")
    y.untyped_storage().resize_(16)
    assert y.untyped_storage().nbytes() == 16 and y.tolist() == [0, 0]


def test_what_an_operator_changes_beside_its_result_may_be_saved_for_backward():
    def versions_and_gradient(device):
        x = torch.linspace(-1, 1, 12, device=device).reshape(4, 3).requires_grad_()
        mean, variance, noise = (
            torch.zeros(3, device=device),
            torch.ones(3, device=device),
            torch.zeros(4, 3).to(device),
        )
        y = torch.ops.aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5)[0]
        y = torch.ops.aten.rrelu_with_noise(y, noise, 0.2, 0.2, True)
        y.square().sum().backward()
        lists = [torch.ones(2, device=device)]
        torch._foreach_add_(lists, 1)
        return [t._version for t in (mean, variance, noise, *lists)], x.grad.cpu()

    versions, gradient = versions_and_gradient("sim")
    expected_versions, expected = versions_and_gradient("cpu")
    assert versions == expected_versions
    torch.testing.assert_close(gradient, expected)


def test_tensors_of_two_devices_do_not_mix():
    x, y, host = torch.ones(2, device="sim:0"), torch.ones(2, device="sim:1"), torch.ones(2)
    with pytest.raises(RuntimeError, match=r"two devices, sim:0 and sim:1! \(when running aten::add\.Tensor\)"):
        x + y
    with pytest.raises(RuntimeError, match="at least two devices, sim:0 and cpu!"):
        x + host
    assert (x + torch.tensor(2.0)).tolist() == [3, 3], "a CPU number is welcome"
    assert x[torch.tensor([1])].tolist() == [1], "and so are CPU indices"


def test_sparse_tensors_are_refused():
    with pytest.raises(NotImplementedError, match=r"(?i)sparse"):
        torch.ones(2, 2, device="sim").to_sparse()


def test_complex_numbers_conjugates_and_fft():
    host = torch.randn(8, 8, dtype=torch.complex64)
    x = host.to("sim")
    assert torch.equal((x.conj() * x).cpu(), host.conj() * host)
    assert torch.equal(torch.fft.ifft(x.conj()).cpu(), torch.fft.ifft(host.conj()))
    assert torch.equal(x.conj().imag.clone().cpu(), host.conj().imag)


# --- Devices, memory


def test_two_devices_have_memory_streams_and_numbers_of_their_own():
    before = [sim.statistics(i)["allocated_bytes"] for i in range(2)]
    with torch.sim.device(1):
        assert torch.sim.current_device() == 1 == torch.accelerator.current_device_index()
        x = torch.ones(256, device="sim")
    assert torch.sim.current_device() == 0 and x.device.index == 1
    assert [sim.statistics(i)["allocated_bytes"] - before[i] for i in range(2)] == [0, 1024]
    y = x.to("sim:0")
    assert y.device.index == 0 and torch.equal(y.cpu(), x.cpu())
    assert (x + 1).device.index == 1
    with pytest.raises(RuntimeError, match="sim has devices 0 to 1, not 2"):
        torch.ones(1, device="sim:2")


def test_a_copy_between_devices_waits_for_both():
    x, y = torch.ones(4, device="sim:0"), torch.zeros(4, device="sim:1")
    for _ in range(2):  # the first time teaches shapes
        x.fill_(1)
        y.fill_(0)
        with sim.latency({"fill_.Scalar": 20 * MILLISECOND}):
            x.fill_(5)
        y.copy_(x)
        x.fill_(7)
    assert y.tolist() == [5] * 4 and x.tolist() == [7] * 4


def test_memory_statistics():
    # torch.accelerator has functions of memory since torch 2.9, and get_memory_info() since 2.10.
    accelerator = torch.accelerator if hasattr(torch.accelerator, "memory_allocated") else torch.sim
    torch.sim.synchronize()
    before, allocations = torch.sim.memory_allocated(), sim.statistics()["live_allocations"]
    torch.sim.reset_peak_memory_stats()
    tensors = [torch.empty(1000, device="sim") for _ in range(10)]
    result = tensors[0] + 1
    assert torch.sim.memory_allocated() - before == 11 * 4000 == accelerator.memory_allocated() - before
    assert sim.statistics()["live_allocations"] - allocations == 11
    del tensors, result
    torch.sim.synchronize()
    assert torch.sim.memory_allocated() == before
    assert torch.sim.max_memory_allocated() - before == 11 * 4000 == accelerator.max_memory_allocated() - before
    if hasattr(torch.accelerator, "get_memory_info"):
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total


@pytest.mark.filterwarnings("ignore:The argument 'device' of Tensor:DeprecationWarning")  # the DataLoader of torch 2.9
def test_pinned_memory():
    host = torch.ones(4).pin_memory()
    assert host.is_pinned() and not torch.ones(4).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    loader = torch.utils.data.DataLoader(torch.arange(8.0), 4, pin_memory=True)
    assert [batch.is_pinned() for batch in loader] == [True, True]


# --- Random numbers


def test_random_numbers_are_those_of_the_cpu_for_the_same_seed():
    for draw in (
        lambda device: torch.randn(50, device=device),
        lambda device: torch.rand(7, device=device),
        lambda device: torch.randperm(20, device=device),
        lambda device: torch.empty(9, device=device).bernoulli_(0.3),
        lambda device: F.dropout(torch.ones(64, device=device)),
        lambda device: torch.multinomial(torch.ones(9, device=device), 4),
    ):
        torch.manual_seed(11)
        right = draw("cpu")
        torch.manual_seed(11)
        assert torch.equal(draw("sim").cpu(), right)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.native_dropout(x, 0.3, True),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        torch.bernoulli,
    ],
    ids=["dropout", "native_dropout", "attention", "bernoulli"],
)
def test_what_draws_on_the_device_draws_from_the_devices_generator(draw):
    x = torch.full((1, 2, 4, 4), 0.5, device="sim")
    host, device = torch.get_rng_state(), torch.sim.get_rng_state()
    draw(x)
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(torch.sim.get_rng_state(), device)


def test_generators_and_random_state():
    def numbers(seed):
        return torch.rand(4, device="sim", generator=torch.Generator("sim").manual_seed(seed)).tolist()

    assert numbers(3) == numbers(3) != numbers(4)
    torch.manual_seed(1)
    assert torch.sim.initial_seed() == 1
    state = torch.sim.get_rng_state()
    first = torch.rand(3, device="sim").tolist()
    torch.sim.set_rng_state(state)
    assert torch.rand(3, device="sim").tolist() == first
    with torch.random.fork_rng(devices=range(2), device_type="sim"):
        torch.rand(3, device="sim")
    after = torch.rand(3, device="sim").tolist()
    torch.sim.set_rng_state(state)
    torch.rand(3, device="sim")
    assert torch.rand(3, device="sim").tolist() == after


# --- The asynchronous queue


def warm(work):
    """Once, so that the shapes of its results are known; then all is idle."""
    work()
    torch.sim.synchronize()


def test_an_unsynchronised_stopwatch_is_wrong_by_the_latency_and_a_synchronised_one_is_right():
    x = torch.randn(16, 16, device="sim")
    warm(lambda: torch.mm(x, x))
    calls, each = 5, 40  # milliseconds
    with sim.latency({"mm": each * MILLISECOND}):
        begin = time.perf_counter()
        for _ in range(calls):
            torch.mm(x, x)
        unsynchronised = (time.perf_counter() - begin) * 1000
        still_at_work = not torch.sim.current_stream().query()
        torch.sim.synchronize()
        synchronised = (time.perf_counter() - begin) * 1000
    assert still_at_work and unsynchronised < calls * each <= synchronised


def test_results_come_right_however_they_are_asked_for():
    x = torch.full((3,), 2.0, device="sim")
    asked = {
        "cpu": lambda y: y.cpu().tolist(),
        "item": lambda y: [y[i].item() for i in range(3)],
        "tolist": lambda y: y.tolist(),
        "copy": lambda y: torch.empty(3).copy_(y).tolist(),
        "equal": lambda y: [4.0] * 3 if torch.equal(y, torch.full((3,), 4.0, device="sim")) else [],
        "save": lambda y: saved(y).tolist(),
        "print": lambda y: [4.0] * 3 if "[4., 4., 4.]" in repr(y) else [],
        "nonzero": lambda y: [4.0] * y.nonzero().numel(),
    }
    warm(lambda: x * 2)
    with sim.latency({"mul.Tensor": 10 * MILLISECOND}):
        assert {how: ask(x * 2) for how, ask in asked.items()} == dict.fromkeys(asked, [4.0] * 3)


def test_work_runs_in_order_and_in_place_changes_too():
    x, host = torch.ones(5, device="sim"), torch.ones(5)
    for step in range(6):
        for tensor in (x, host):
            tensor.mul_(1.5)
            tensor += step
            tensor[1:].sub_(tensor[0])
    assert torch.equal(x.cpu(), host)


def test_a_host_number_that_changes_after_the_call_has_no_effect():
    x, number = torch.ones(3, device="sim"), torch.tensor(2.0)
    warm(lambda: x * number)
    with sim.latency({"mul.Tensor": 10 * MILLISECOND}):
        y, z = x * number, x * number
        number.fill_(100)
    assert y.tolist() == z.tolist() == [2] * 3


def test_copies_wait_unless_they_are_told_not_to():
    pageable, pinned = torch.zeros(4), torch.zeros(4).pin_memory()
    x = torch.zeros(4, device="sim")
    warm(lambda: x.fill_(0))
    with sim.latency({"fill_.Scalar": 30 * MILLISECOND}):
        x.fill_(3)
        pinned.copy_(x, non_blocking=True)
        stale = pinned.tolist()
        pageable.copy_(x, non_blocking=True)
    assert stale == [0] * 4 and pageable.tolist() == [3] * 4, "only pinned memory is written later"
    torch.sim.synchronize()
    assert pinned.tolist() == [3] * 4
    source = torch.ones(4)
    x.copy_(source, non_blocking=True)
    source.fill_(9)
    assert x.tolist() == [1] * 4, "memory that the device reads later was set aside"


def test_events_measure_the_device():
    x = torch.randn(8, device="sim")
    warm(lambda: x + 1)
    start, end = (torch.Event(device="sim", enable_timing=True) for _ in range(2))
    with sim.latency({"add.Tensor": 10 * MILLISECOND}):
        start.record()
        for _ in range(5):
            x + 1
        end.record()
        assert not end.query()
        end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 50
    with pytest.raises((ValueError, RuntimeError), match=r"enable_timing=True|was not marked for recording"):
        torch.Event(device="sim").elapsed_time(end)


def test_streams_run_beside_each_other_and_wait_for_events():
    x = torch.ones(4, device="sim")
    warm(lambda: x + 1)
    side = torch.Stream(device="sim")
    with sim.latency({"add.Tensor": 30 * MILLISECOND}):
        with side:
            assert torch.accelerator.current_stream() == side == torch.sim.current_stream()
            y = x + 1
        assert torch.accelerator.current_stream() != side and not side.query()
        z = x * 2  # does not wait for the other stream
        torch.accelerator.current_stream().synchronize()
        assert z.tolist() == [2] * 4 and not side.query()
        torch.accelerator.current_stream().wait_stream(side)
    assert (y * 3).tolist() == [6] * 4


def test_an_error_of_a_kernel_comes_with_the_next_wait():
    x, index = torch.ones(4, 4, device="sim"), torch.zeros(2, dtype=torch.int64, device="sim")
    warm(lambda: torch.index_select(x, 0, index))
    torch.index_select(x, 0, index + 100)
    with pytest.raises(IndexError, match="index out of range"):
        torch.sim.synchronize()
    assert (x + 1).sum().item() == 32, "and the device goes on"


def test_synchronous_mode_runs_in_the_calling_thread():
    x, index = torch.ones(4, 4, device="sim"), torch.full((2,), 100, device="sim")
    sim.set_asynchronous(False)
    try:
        assert not sim.is_asynchronous()
        calls = sim.statistics()["asynchronous"]
        for _ in range(3):
            with pytest.raises(IndexError):
                torch.index_select(x, 0, index)
        assert sim.statistics()["asynchronous"] == calls
    finally:
        sim.set_asynchronous(True)


def test_many_threads_use_the_device():
    host = torch.randn(40, 40)
    right, wrong = torch.mm(host, host) + 1, []

    def work(device):
        with torch.sim.device(device):
            for _ in range(30):
                x = host.to("sim")
                if not torch.equal((torch.mm(x, x) + 1).cpu(), right):
                    wrong.append(device)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_is_told_that_it_has_no_device(python):
    done = python("""
import os, torch, op_tools.sim_device as sim
x = torch.ones(3, device="sim"); x + 1; x + 1
if os.fork() == 0:
    try:
        torch.sim.synchronize()
        print(torch.sim.is_available(), flush=True)
        w = torch.ones(2, requires_grad=True)
        (w * 2).sum().backward()
        print(w.grad.tolist(), flush=True)
        x / 3
    except RuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
    os._exit(0)
os.wait()
print((x + 1).tolist())
""")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["False", "[2.0, 2.0]"], "the child may use the CPU"
    assert "cannot be used in a forked child process" in lines[2] and lines[3] == "[2.0, 2.0, 2.0]"


def test_a_program_that_ends_with_work_in_the_queue_ends_well(python):
    for _ in range(2):
        python("""
import torch, op_tools.sim_device as sim
x = torch.ones(9, device="sim", requires_grad=True)
with sim.latency({"mul.Tensor": 20000}):
    for _ in range(3): (x * 2).sum().backward()
""")


# --- Programs


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_save_load_pickle_and_deep_copy():
    x = torch.randn(3, 4, device="sim:1").t()
    again = saved(x)
    assert again.device == x.device and again.stride() == x.stride() and torch.equal(again, x)
    assert torch.load(io.BytesIO(_bytes(x)), map_location="cpu").device.type == "cpu"
    model = torch.nn.Linear(2, 2).to("sim")
    twin = copy.deepcopy(model)
    assert torch.equal(twin.weight, model.weight) and twin.weight.data_ptr() != model.weight.data_ptr()


def _bytes(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts(dtype):
    a, b = torch.randn(4, 4, device="sim"), torch.randn(4, 4, device="sim")
    assert not torch.is_autocast_enabled("sim")
    with torch.autocast("sim", dtype):
        assert torch.is_autocast_enabled("sim")
        product = a @ b
        assert product.dtype == F.linear(a, b).dtype == dtype
        assert F.softmax(product, -1).dtype == product.exp().dtype == torch.float32
        assert product.sum().dtype == torch.float32
        assert torch.cat([product, a]).dtype == torch.float32, "the widest"
        with pytest.raises(RuntimeError, match="binary_cross_entropy and BCELoss are unsafe under autocast"):
            F.binary_cross_entropy(product.sigmoid(), product.sigmoid())
        with torch.autocast("sim", enabled=False):
            assert (a @ b).dtype == torch.float32
    torch.testing.assert_close(product.cpu(), a.cpu().to(dtype) @ b.cpu().to(dtype))


def test_autocast_training_matches_that_of_the_cpu_in_bfloat16():
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(
                model(torch.linspace(-1, 1, 24).view(4, 6).to(device)), torch.arange(4).to(device) % 3
            )
        loss.backward()
        return [loss.cpu().detach(), *(p.grad.cpu() for p in model.parameters())]

    torch.testing.assert_close(run("sim"), run("cpu"), rtol=2e-2, atol=2e-3)


def test_functional_transforms_checkpoint_and_default_device():
    x = torch.randn(5, device="sim")
    assert torch.equal(torch.func.grad(lambda v: (v * v).sum())(x), 2 * x)
    assert torch.equal(torch.func.vmap(lambda v: v * 2)(x), x * 2)
    weight = torch.randn(5, device="sim", requires_grad=True)
    torch.utils.checkpoint.checkpoint(lambda w: (w * x).sum(), weight, use_reentrant=False).backward()
    assert torch.equal(weight.grad, x)
    with torch.device("sim"):
        assert torch.zeros(2).device.type == torch.nn.Linear(1, 1).weight.device.type == "sim"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_the_same_numbers_again(reentrant):
    x = torch.ones(64, device="sim", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.5) * 1, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_a_custom_operator_with_a_cpu_kernel_runs_on_the_device():
    library = torch.library.Library("sim_device_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    x = torch.ones(3, device="sim")
    result = torch.ops.sim_device_test.twice(x)
    assert result.device.type == "sim" and result.tolist() == [2] * 3
    with sim.fault("scale", ops="sim_device_test::twice", scale=2) as fault:
        assert torch.ops.sim_device_test.twice(x).tolist() == [4] * 3
    assert fault.hits == 1


def test_profiler_and_dispatch_modes_see_the_operators_of_the_device_only():
    x, weight = torch.randn(1, 1, 8, 8, device="sim"), torch.randn(2, 1, 3, 3, device="sim")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        F.conv2d(x, weight)
        x + 1
        torch._foreach_add_([x], 1)
    names = [event.name for event in profile.events()]
    assert [n for n in names if n.startswith("aten::")] == [
        "aten::conv2d",
        "aten::convolution",
        "aten::add",
        "aten::_foreach_add_",
    ]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_operators_that_torch_leaves_counting_to_move_version_counters(asynchronous):
    sim.set_asynchronous(asynchronous)
    try:
        for _ in range(3):
            x = [torch.ones(3, device="sim"), torch.ones(2, device="sim")]
            torch._foreach_div_(x, [2.0, 4.0])
            assert [tensor._version for tensor in x] == [1, 1]
            x[0].add_(1)
            assert x[0]._version == 2
    finally:
        sim.set_asynchronous(True)
