"""Ctrl-C and other exceptions from outside reach the program, whatever code of a tool they arrive in; tests/proofs/interrupts.py
does it at many random moments."""

import ctypes
import opcode
import os
import signal
import sys
import threading
from pathlib import Path
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device  # at the top: before the first backward() of the process
from op_tools import run_op_from_data

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))

LEVELS = ["torch", "aten"]
X = torch.ones(2, 2)


class SentError(Exception):
    pass


def send(kind):
    """From another thread: it arrives at the next place where Python looks."""
    thread = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(kind))


def on_alarm(*_):
    raise TimeoutError("the handler's")


@pytest.fixture
def alarm():
    before = signal.signal(signal.SIGUSR1, on_alarm)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def raised(kind):
    def do():
        raise kind

    return do


class Interrupted(op_tools.Hook):
    """Something arrives in it, once."""

    def __init__(self, where, arrive):
        self.where, self.arrive = where, arrive
        self.seen = []

    def before(self, call):
        self.seen.append("before")
        self.look("before")

    def after(self, call, state):
        self.seen.append("after")
        self.look("after")

    def look(self, where):
        if where == self.where:
            self.where = None
            self.arrive()
            for _ in range(10):
                pass


KINDS = [KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_in_a_hook_reaches_the_program_after_the_call_and_the_hook_stays_on(level, where, kind):
    hook = Interrupted(where, raised(kind))
    x = torch.zeros(2)
    with op_tools.HookScope(hook, level=level, ops=".*add_.*") as tool:
        with pytest.raises(kind):
            x.add_(1)
        x.add_(1)
        assert x.tolist() == [2, 2]  # it arrived in the hook: the operator ran
        assert hook.seen == (["before"] if where == "before" else ["before", "after"]) + ["before", "after"]
        assert tool._scope.hook_failures == 0
    assert torch.overrides._len_torch_function_stack() == 0


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("level", LEVELS)
def test_exception_that_a_thread_sends_into_a_hook_is_the_programs(level, where):
    with op_tools.HookScope(Interrupted(where, lambda: send(SentError)), level=level, ops=".*exp") as tool:
        with pytest.raises(SentError):
            torch.exp(X)
        torch.exp(X)
    assert tool._scope.hook_failures == 0


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("level", LEVELS)
def test_exception_of_a_signals_handler_in_a_hook_is_the_programs(level, where, alarm):
    tool = op_tools.HookScope(Interrupted(where, alarm), level=level, ops=".*exp")
    with tool, pytest.raises(TimeoutError, match="the handler's"):
        torch.exp(X)
    assert tool._scope.hook_failures == 0


@pytest.mark.parametrize(
    "mistake", [raised(ValueError), raised(TimeoutError("own")), lambda: {}["no"], lambda: next(iter(()))]
)
def test_mistake_of_a_hook_is_none_of_the_programs(mistake, capfd):
    with op_tools.HookScope(Interrupted("after", mistake), ops="torch.exp") as tool:
        torch.exp(X)
    assert tool._scope.hook_failures == 1
    assert "failed in after() and is off now" in capfd.readouterr().err


def test_interrupt_in_the_backward_of_a_call_reaches_the_program():
    class Hook(Interrupted):
        gradients = True

        def before(self, call):
            if call.phase == "backward":
                self.look("backward")

    x = torch.ones(2, requires_grad=True)
    with op_tools.HookScope(Hook("backward", raised(KeyboardInterrupt)), ops="torch.exp") as tool:
        y = torch.exp(x).sum()
        with pytest.raises(KeyboardInterrupt):
            y.backward()
        torch.exp(x).sum().backward()
    assert tool._scope.hook_failures == 0


def test_interrupt_wins_over_the_error_of_the_call():
    with op_tools.HookScope(Interrupted("after", raised(KeyboardInterrupt)), ops="torch.mm"):
        with pytest.raises(KeyboardInterrupt):
            torch.mm(X, torch.ones(3, 3))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(X, torch.ones(3, 3))


def test_interrupt_in_a_condition_reaches_the_program():
    arrived = []

    def condition(call):
        if not arrived:
            arrived.append(call.name)
            raise KeyboardInterrupt
        return True

    with op_tools.apply_feature("torch.exp", "dump_op_args", condition) as feature:
        with pytest.raises(KeyboardInterrupt):
            torch.exp(X)
        torch.exp(X)
    assert [row.calls for row in feature.result().rows] == [1]


def test_interrupt_while_autocompare_runs_a_call_again_reaches_the_program_and_is_no_finding(monkeypatch):
    times = []

    def slow_softmax(x, dim):
        times.append(x.device.type)
        if len(times) == 2:
            raise KeyboardInterrupt
        return torch.softmax(x, dim)

    monkeypatch.setattr(F, "softmax", torch.overrides.wrap_torch_function(lambda x, dim: (x,))(slow_softmax))
    x = torch.ones(2, 2, device="sim")
    with op_tools.OpAutoCompare() as tool:
        with pytest.raises(KeyboardInterrupt):
            F.softmax(x, -1)
        F.softmax(x, -1)
    assert times[:2] == ["sim", "cpu"]
    assert (tool.result().failed, tool._scope.hook_failures) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_that_ends_the_programs_own_call_is_no_finding(kind, monkeypatch):
    def interrupted(x):
        if x.device.type == "sim":
            raise kind
        return torch.exp(x)

    call = torch.overrides.wrap_torch_function(lambda x: (x,))(interrupted)
    x = torch.ones(2, device="sim")
    with op_tools.OpAutoCompare() as tool, pytest.raises(kind):
        call(x)
    assert tool.result().failed == 0


def test_name_that_was_asked_for_during_an_interrupt_is_right(monkeypatch):
    resolve = torch.overrides.resolve_name.__wrapped__  # the core has the function itself: its code is exchanged
    arrived = []

    def look():
        arrived.append(1)
        if len(arrived) == 1:
            raise KeyboardInterrupt

    monkeypatch.setitem(resolve.__globals__, "_look", look)
    monkeypatch.setitem(resolve.__globals__, "_plain", FunctionType(resolve.__code__, resolve.__globals__))
    monkeypatch.setattr(resolve, "__code__", (lambda f: (_look(), _plain(f))[1]).__code__)  # noqa: F821

    def fresh(x):
        return torch.exp(x)

    class Names(op_tools.Hook):
        seen = []  # noqa: RUF012

        def before(self, call):
            self.seen.append(call.name)

    call = torch.overrides.wrap_torch_function(lambda x: (x,))(fresh)
    with op_tools.HookScope(Names(), ops=".*fresh"):
        with pytest.raises(KeyboardInterrupt):
            call(X)
        call(X)
    assert len(Names.seen) == 2 and all(name.endswith("fresh") for name in Names.seen)
    assert len(arrived) >= 2


@pytest.mark.parametrize("level", LEVELS)
def test_interrupt_in_stop_leaves_the_tool_off(level):
    tool = op_tools.HookScope(op_tools.Hook(), level=level)

    class Early(op_tools.HookScope):
        """Something arrives before stop() does anything, as at the begin of every function in Python."""

        arrived = False

        def stop(self):
            if not self.arrived:
                self.arrived = True
                raise KeyboardInterrupt
            super().stop()

    early = Early(op_tools.Hook(), level=level)
    with pytest.raises(KeyboardInterrupt), early:
        pass
    assert (early._depth, early._is_running) == (0, False)

    class Late(op_tools.HookScope):
        """Something arrives after start() has done everything."""

        def start(self):
            super().start()
            raise KeyboardInterrupt

    late = Late(op_tools.Hook(), level=level)
    with pytest.raises(KeyboardInterrupt), late:
        pytest.fail("it was not entered")
    assert (late._depth, late._is_running) == (0, False)
    assert torch.overrides._len_torch_function_stack() == 0
    with tool:
        torch.exp(X)
    assert tool.calls_seen == 1


def test_mode_that_the_program_leaves_inside_a_call_does_not_keep_ours_on_the_stack():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def leaves_one(x):
        Mode().__enter__()
        raise KeyboardInterrupt

    call = torch.overrides.wrap_torch_function(lambda x: (x,))(leaves_one)
    with op_tools.HookScope(op_tools.Hook(), ops="torch.sin"), pytest.raises(KeyboardInterrupt):
        call(X)
    assert torch.overrides._len_torch_function_stack() == 1  # the program's own
    torch.overrides._pop_mode()


class Arrives:
    """A trace function: raises at the n-th place where Python looks for arrived signals. These are the begin of a function,
    the end of a call, and a jump backward."""

    LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD")

    def __init__(self, place):
        self.left = place
        self.last = {}  # instruction of each frame

    def __call__(self, frame, event, arg):
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self.last.get(frame, "")
            self.last[frame] = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
            self.left -= before.startswith(self.LOOKS)
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.skipif(sys.version_info < (3, 11), reason="co_code shows these instructions from Python 3.11 on")
def test_interrupt_anywhere_in_torchs_code_around_a_call_leaves_the_tool_on():
    places = 0
    with op_tools.HookScope(op_tools.Hook(), ops="torch.nn.functional.softmax, torch.sin") as tool:
        while True:
            arrives = Arrives(places)
            sys.settrace(arrives)
            try:
                F.softmax(X, -1)
            except KeyboardInterrupt:
                pass
            else:
                break
            finally:
                sys.settrace(None)
            seen = tool.calls_seen
            torch.sin(X)
            assert tool.calls_seen == seen + 1, f"off after an interrupt at place {places}"
            places += 1
    assert places > 10
    assert torch.overrides._len_torch_function_stack() == 0


def test_random_moments():
    import interrupts

    run = interrupts.interrupted(moments=40, seed=1, folder=".")
    assert run.failures == []
    assert sum(run.arrived.values()) + run.dropped == 40


def test_ctrl_c_while_a_replay_looks_for_a_function_ends_it(capfd):
    with op_tools.OpCapture(ops="torch.ones") as tool:
        torch.ones(3)
    looked_for = []

    def find(name):
        looked_for.append(name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        op_tools._C.run_op_from_data([tool.result().root, "--acc_check"], find)
    assert looked_for == ["torch.ones"]
    assert "interrupted" in capfd.readouterr().err


def test_ctrl_c_ends_a_replay_between_two_calls(tmp_path, capfd):
    with op_tools.OpCapture(output_dir=tmp_path, format="container") as tool:
        for _ in range(2000):
            torch.exp(torch.ones(3))
    root = tool.result().root
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_op_from_data.main([str(root), "--acc_check", "--run_times", "300"])
    printed = capfd.readouterr()
    assert "interrupted" in printed.err
    assert "bit for bit" not in printed.out
