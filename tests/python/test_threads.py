"""Threads that a program starts while a tool is on: the tool sees their operators, and changes nothing else in them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import op_tools
import op_tools.sim_device as sim

LEVELS = ["torch", "aten"]


def in_thread(work, **options):
    """The result or the exception of `work` in a thread of its own."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:  # handed to the test
            outcome.append(error)

    thread = threading.Thread(target=run, **options)
    thread.start()
    thread.join()
    return outcome[0]


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_operator_in_a_thread_is_named(level, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2)).to("sim")
    x = torch.randn(8, 8).to("sim")
    with sim.fault("scale", ops="gelu", scale=1.2), op_tools.OpAutoCompare(level=level, output_dir=tmp_path) as tool:
        in_thread(lambda: net(x)).sum().backward()
    result = tool.result()
    assert {row.op.split("::")[-1].split(".")[-1] for row in result.failures} == {"gelu"}
    assert result.failed >= 1


@pytest.mark.parametrize("level", LEVELS)
def test_backward_in_a_thread_is_seen(level, tmp_path):
    x = torch.ones(4, device="sim", requires_grad=True)
    with op_tools.OpRecord(level=level, output_dir=tmp_path) as tool:
        in_thread(lambda: x.tanh().sum().backward())
    calls = op_tools.read_recording(tool.result().path).calls
    assert any("tanh" in call.op and call.phase == "backward" for call in calls)


@pytest.mark.parametrize("level", LEVELS)
def test_threads_of_threads_and_pools_are_seen(level, tmp_path):
    x = torch.ones(4)
    with op_tools.OpObserve(level=level, output_dir=tmp_path) as tool:
        in_thread(lambda: in_thread(lambda: x.cosh()))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: x.sinh(), range(10)))
    calls = {row.op.split("::")[-1].split(".")[-1]: row.calls for row in tool.result().rows}
    assert calls == {"cosh": 1, "sinh": 10}


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_seen_after_the_tool_and_before_it(level, tmp_path):
    x, begun, ended = torch.ones(4), threading.Event(), threading.Event()

    def run():
        begun.wait()
        x.cosh()
        ended.wait()
        x.sinh()

    before = threading.Thread(target=run)
    before.start()
    with op_tools.OpObserve(level=level, output_dir=tmp_path) as tool:
        inside = threading.Thread(target=run)
        inside.start()
        begun.set()
        while not any("cosh" in row.op for row in tool.result().rows):
            pass
    ended.set()
    before.join(), inside.join()
    assert {row.op.split("::")[-1].split(".")[-1]: row.calls for row in tool.result().rows} == {"cosh": 1}
    assert in_thread(torch.overrides._get_current_function_mode_stack) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_thread_is_the_programs_own(level, tmp_path):
    class Own(threading.Thread):
        def start(self):
            self.was_started = True
            super().start()

        def run(self):
            self.value = torch.ones(3).exp()

    def boom():
        raise KeyError("boom")

    hooked, told = threading.excepthook, []
    threading.excepthook = lambda given: told.append(given.exc_type)
    try:
        with op_tools.OpCapture(level=level, output_dir=tmp_path):
            own = Own(name="mine", daemon=True)
            own.start()
            own.join()
            with pytest.raises(RuntimeError, match="threads can only be started once"):
                own.start()
            failing = threading.Thread(target=boom)
            failing.start()
            failing.join()
            assert isinstance(in_thread(lambda: torch.ones(2).view(3)), RuntimeError)
    finally:
        threading.excepthook = hooked
    assert own.was_started and own.name == "mine" and torch.equal(own.value, torch.ones(3).exp())
    assert told == [KeyError]


def test_a_mode_of_the_thread_stands_above_ours(tmp_path):
    with op_tools.OpObserve(output_dir=tmp_path) as tool:

        def work():
            with torch.device("meta"):
                return torch.ones(3)

        assert in_thread(work).is_meta
    assert any("ones" in row.op for row in tool.result().rows)
