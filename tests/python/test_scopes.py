"""Scopes: any order, any thread, any company; a tool's failure is not the program's."""

import os
import re
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import op_tools

LEVELS = ["torch", "aten"]


class Names(op_tools.Hook):
    """Remembers the operators it was asked about, without namespace and overload: the same word on both levels."""

    def __init__(self):
        self.seen = []

    def before(self, call):
        self.seen.append(re.split(r"::|torch\.(?:Tensor\.)?", call.name)[1].split(".")[0])


def scope(hook, level="torch"):
    return op_tools.HookScope(hook, level=level, ops="torch.(exp|sin|cos|neg),aten::(exp|sin|cos|neg)")


X = torch.ones(2)


@pytest.mark.parametrize("inner", LEVELS)
@pytest.mark.parametrize("outer", LEVELS)
def test_nested_scopes_each_see_what_happens_inside_them(outer, inner):
    a, b = Names(), Names()
    with scope(a, outer):
        torch.exp(X)
        with scope(b, inner):
            torch.sin(X)
        torch.cos(X)
    torch.neg(X)
    assert a.seen == ["exp", "sin", "cos"]
    assert b.seen == ["sin"]


@pytest.mark.parametrize("second", LEVELS)
@pytest.mark.parametrize("first", LEVELS)
def test_overlapping_scopes_may_be_left_in_the_order_of_entering(first, second):
    a, b = Names(), Names()
    first_scope, two = scope(a, first), scope(b, second)
    first_scope.start()
    torch.exp(X)
    two.start()
    torch.sin(X)
    first_scope.stop()
    torch.cos(X)
    two.stop()
    torch.neg(X)
    assert a.seen == ["exp", "sin"]
    assert b.seen == ["sin", "cos"]


@pytest.mark.parametrize("level", LEVELS)
def test_tool_entered_again_while_it_is_on_is_left_by_the_outermost_exit(level):
    hook = Names()
    tool = scope(hook, level)
    with tool:
        with tool:
            torch.exp(X)
        torch.sin(X)
    torch.cos(X)
    assert hook.seen == ["exp", "sin"]


@pytest.mark.parametrize("level", LEVELS)
def test_tool_can_be_started_again(level):
    hook = Names()
    tool = scope(hook, level)
    for _ in range(3):
        tool.start()
        torch.exp(X)
        tool.end()
        torch.sin(X)
    tool.stop()  # once too often does nothing
    assert hook.seen == ["exp"] * 3


def test_capture_started_again_writes_to_a_folder_of_its_own():
    tool = op_tools.OpCapture(ops="torch.exp")
    roots = []
    for _ in range(2):
        with tool:
            torch.exp(X)
        roots.append(tool.result().root)
        assert [row.calls for row in tool.result().rows] == [1]
    assert roots[0] != roots[1] and all(Path(root).is_dir() for root in roots)


def test_tool_is_a_decorator_that_keeps_name_and_result():
    hook = Names()

    @scope(hook)
    def work(value, *, factor=1):
        """Its purpose."""
        return torch.exp(X) * value * factor

    assert torch.equal(work(2, factor=3), torch.exp(X) * 6)
    assert (work.__name__, work.__doc__) == ("work", "Its purpose.")
    assert hook.seen == ["exp"]


@pytest.mark.parametrize("level", LEVELS)
def test_exception_passes_through_a_scope_and_switches_it_off(level):
    hook = Names()

    def fail():
        with scope(hook, level):
            torch.exp(X)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    torch.sin(X)
    assert hook.seen == ["exp"]


@pytest.mark.parametrize("level", LEVELS)
def test_generator_that_holds_a_scope_may_end_after_another_scope_began(level):
    a, b = Names(), Names()

    def steps():
        with scope(a, level):
            yield torch.exp(X)
            yield torch.sin(X)

    run = steps()
    next(run)
    with scope(b, level):
        next(run)
        run.close()
        torch.cos(X)
    assert (a.seen, b.seen) == (["exp", "sin"], ["sin", "cos"])


# --- Threads and processes --------------------------------------------------------------------------------------


def in_thread(function):
    """Runs it in a thread of its own; its exception is raised here."""
    result = []

    def body():
        try:
            result.append(function())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


@pytest.mark.parametrize("level", LEVELS)
def test_stop_in_another_thread_is_an_error_that_says_what_to_do(level):
    hook = Names()
    tool = scope(hook, level).start()
    with pytest.raises(op_tools.Error, match=r"cannot be stopped in thread .*: stop it in the thread that started it"):
        in_thread(tool.stop)
    torch.exp(X)
    tool.stop()
    torch.sin(X)
    assert hook.seen == ["exp"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_thread_is_in_the_scopes_of_its_starter_until_it_enters_its_own(level):
    mine, theirs = Names(), Names()

    def other():
        torch.sin(X)
        with scope(theirs, level):
            torch.cos(X)

    with scope(mine, level):
        torch.exp(X)
        in_thread(other)
    assert (mine.seen, theirs.seen) == (["exp", "sin"], ["cos"])


def test_many_threads_enter_and_leave_while_others_run_operators():
    stop = threading.Event()
    failures = []
    rounds = [0] * 16

    def work(number):
        try:
            x = torch.full((4,), 0.5, requires_grad=True)
            expected = torch.exp(torch.sin(x)).detach()
            while not stop.is_set():
                hook = Names()
                level = LEVELS[number % 2]
                if number < 12:
                    with scope(hook, level):
                        result = torch.exp(torch.sin(x))
                    if hook.seen != ["sin", "exp"]:
                        failures.append((number, hook.seen))
                else:
                    result = torch.exp(torch.sin(x))
                if not torch.equal(result.detach(), expected):
                    failures.append((number, result))
                result.sum().backward()
                rounds[number] += 1
        except Exception as error:
            failures.append((number, repr(error)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert min(rounds) >= 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_the_tools_off_runs_operators_and_exits_cleanly(level):
    with op_tools.OpCapture(level=level) as tool:
        torch.exp(X)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.sin(X)
                with op_tools.OpCapture(level=level, output_dir="child") as own:
                    torch.cos(X)
                tool.stop()
                calls = sum(row.calls for row in own.result().rows)
                status = 0 if calls == 1 and list(Path("child").rglob("output.pth")) else 2
            finally:
                os._exit(status)
        for _ in range(300):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            pytest.fail("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 0
        torch.neg(X)
    names = {row.op.split(".")[-1].split("::")[-1] for row in tool.result().rows}
    assert {"exp", "neg"} <= names and not {"sin", "cos"} & names


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index)).square()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_data_loader_workers_run_beside_an_open_scope(level, method):
    with op_tools.OpCapture(level=level, format="container") as tool:
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
        batches = [torch.exp(batch[:, 0].sqrt().log1p()) for batch in loader]
    assert [x for batch in batches for x in batch.round().int().tolist()] == list(range(1, 9))
    assert tool.result().failure == ""
    assert any("exp" in row.op for row in tool.result().rows)


def test_autograd_threads_and_interop_threads_belong_to_the_scope():
    hook = Names()
    x = torch.ones(2, requires_grad=True)
    with op_tools.HookScope(hook, level="aten", ops="neg,exp,mul.Tensor"):
        y = torch.neg(torch.exp(x))
        y.sum().backward()
    assert hook.seen[:2] == ["exp", "neg"]
    assert hook.seen.count("neg") == 2  # NegBackward calls it


# --- Other modes ------------------------------------------------------------------------------------------------


class Function(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Function, Dispatch])
@pytest.mark.parametrize("level", LEVELS)
def test_users_own_mode_inside_and_around_a_scope_sees_what_it_always_sees(level, kind):
    plain = kind()
    with plain:
        expected = torch.exp(X)
    hook, inside, around = Names(), kind(), kind()
    with scope(hook, level), inside:
        result = torch.exp(X)
    assert torch.equal(result, expected)
    assert inside.count == plain.count
    with around, scope(hook, level):
        result = torch.exp(X)
    assert torch.equal(result, expected)
    assert around.count == plain.count


@pytest.mark.parametrize("split", [torch.split, torch.functional.split])
def test_users_own_mode_sees_the_function_that_a_filter_leaves_out(split):
    mode = Function()
    with mode, scope(Names()):
        split(X, 1)
    assert mode.count == 1


@pytest.mark.parametrize("kind", [Function, Dispatch])
@pytest.mark.parametrize("level", LEVELS)
def test_mode_is_left_while_a_scope_that_was_entered_later_stays_on(level, kind):
    hook, mode = Names(), kind()
    tool = scope(hook, level)
    with mode:
        tool.start()
    torch.exp(X)
    tool.stop()
    torch.sin(X)
    assert (hook.seen, mode.count) == (["exp"], 0)


@pytest.mark.parametrize("kind", [Function, Dispatch])
@pytest.mark.parametrize("level", LEVELS)
def test_scope_is_left_while_a_mode_that_was_entered_later_stays_on(level, kind):
    hook, mode = Names(), kind()
    tool = scope(hook, level).start()
    with mode:
        tool.stop()
        before = mode.count
        torch.exp(X)
        assert mode.count == before + 1
    torch.sin(X)
    assert hook.seen == []
    assert torch.overrides._len_torch_function_stack() == 0


def test_default_device_set_inside_a_scope_stays_and_can_be_taken_back_outside():
    hook = Names()
    try:
        with scope(hook):
            torch.set_default_device("meta")
            assert torch.ones(1).device.type == "meta"
        assert torch.ones(1).device.type == "meta"
        with scope(hook):
            torch.set_default_device("cpu")
            assert torch.exp(torch.ones(1)).device.type == "cpu"
        assert torch.ones(1).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert hook.seen == ["exp"]


def test_default_device_may_be_changed_and_reset_inside_a_scope_that_began_under_another():
    hook = Names()
    try:
        torch.set_default_device("meta")
        with scope(hook):
            assert torch.exp(torch.ones(1)).device.type == "meta"
            torch.set_default_device("cpu")
            assert torch.exp(torch.ones(1)).device.type == "cpu"
            torch.set_default_device(None)
            torch.exp(X)
    finally:
        torch.set_default_device(None)
    assert hook.seen == ["exp"] * 3


def test_scope_and_device_context_may_be_interleaved():
    hook = Names()
    tool = scope(hook).start()
    with torch.device("meta"):
        tool.stop()
        assert torch.zeros(1).device.type == "meta"
        tool.start()
        assert torch.exp(torch.zeros(1)).device.type == "meta"
    assert torch.zeros(1).device.type == "cpu"
    torch.sin(X)
    tool.stop()
    assert hook.seen == ["exp", "sin"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("order", ["profiler first", "scope first"])
@pytest.mark.parametrize("leave", ["first out", "last out"])
def test_profiler_and_scope_may_be_interleaved(level, order, leave):
    hook = Names()
    tool, profiler = scope(hook, level), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    both = [(profiler.start, profiler.stop), (tool.start, tool.stop)]
    if order == "scope first":
        both.reverse()
    for start, _ in both:
        start()
    torch.exp(X)
    for _, stop in both if leave == "first out" else reversed(both):
        stop()
    torch.sin(X)
    assert hook.seen == ["exp"]
    assert "aten::exp" in {event.key for event in profiler.key_averages()}


# --- All threads ------------------------------------------------------------------------------------------------


def test_a_thread_that_begins_while_all_threads_are_watched_is_seen_from_its_first_operator():
    lines = []

    def work():
        lines.extend(frame.name for frame in traceback.extract_stack())
        torch.exp(X)
        torch.sin(X)

    hook = Names()
    with op_tools.HookScope(hook, level="aten", ops="aten::(exp|sin|cos|neg)", all_threads=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.cos, X).result()
    assert hook.seen == ["exp", "sin", "cos"]
    assert lines == ["_bootstrap", "_bootstrap_inner", "run", "work"]  # as without a tool
    thread = threading.Thread(target=torch.neg, args=(X,))
    thread.start()
    thread.join()
    assert hook.seen == ["exp", "sin", "cos"]


def test_a_thread_that_ran_before_is_seen_after_a_few_operators_and_let_go_at_the_end():
    begin, ended = threading.Barrier(2), threading.Barrier(2)

    def work():
        begin.wait()
        for _ in range(2000):
            torch.exp(X)
        ended.wait()
        begin.wait()
        torch.sin(X)
        torch.cos(X)

    thread = threading.Thread(target=work)
    thread.start()
    hook = Names()
    with op_tools.HookScope(hook, level="aten", ops="aten::(exp|sin|cos|neg)", all_threads=True):
        begin.wait()
        ended.wait()
    begin.wait()
    thread.join()
    assert set(hook.seen) == {"exp"} and len(hook.seen) > 1000


# --- Hooks ------------------------------------------------------------------------------------------------------


class Failing(op_tools.Hook):
    def __init__(self, where):
        self.where = where
        self.asked = 0

    def before(self, call):
        self.asked += 1
        if self.where == "before":
            raise ValueError("the hook's own mistake")

    def after(self, call, state):
        if self.where == "after":
            raise ValueError("the hook's own mistake")


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("level", LEVELS)
def test_hook_that_raises_goes_off_with_one_error_line_and_the_program_goes_on(level, where, capfd):
    failing, other = Failing(where), Names()
    with scope(failing, level) as tool, scope(other, level):
        for _ in range(3):
            assert torch.equal(torch.exp(X), torch.full((2,), torch.e))
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("op_tools error")]
    assert len(errors) == 1 and "the hook's own mistake" in errors[0] and "Failing" in errors[0]
    assert failing.asked == 1 and tool._scope.hook_failures == 1
    assert other.seen == ["exp"] * 3


class Everything(op_tools.Hook):
    gradients = True

    def __init__(self):
        self.calls = []
        self.kept = None

    def before(self, call):
        self.kept = call
        return ("state", len(call.args))

    def after(self, call, state):
        self.calls.append((call.name, call.level, call.phase, call.args, call.kwargs, call.result, call.error, state))


def test_hook_sees_arguments_results_state_and_backward():
    hook = Everything()
    x = torch.ones(2, 3, requires_grad=True)
    with op_tools.HookScope(hook, ops="torch.sum"):
        torch.sum(x, dim=1, keepdim=True).sum().backward()
    forward, backward = hook.calls
    name, level, phase, args, kwargs, result, error, state = forward
    assert (name, level, phase, error, state) == ("torch.sum", "torch", "forward", "", ("state", 1))
    assert args[0] is x and kwargs == {"dim": 1, "keepdim": True}
    assert result.shape == (2, 1) and result.requires_grad
    assert backward[:3] == ("torch.sum", "torch", "backward")
    assert torch.equal(backward[5][0], torch.ones(2, 3))


def test_hook_sees_the_error_of_a_call_that_raised():
    hook = Everything()
    with op_tools.HookScope(hook, ops="torch.mm"), pytest.raises(RuntimeError):
        torch.mm(X, X)
    assert hook.calls[0][5] is None and "self must be a matrix" in hook.calls[0][6]


def test_call_that_is_kept_by_a_hook_says_that_it_is_over():
    hook = Everything()
    with op_tools.HookScope(hook, ops="torch.exp"):
        torch.exp(X)
    with pytest.raises(op_tools.Error, match="this call is over"):
        hook.kept.args  # noqa: B018


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_hook_calls_is_nobodys_business(level):
    class Curious(Names):
        def before(self, call):
            super().before(call)
            torch.sin(torch.exp(call.args[0]))

        def after(self, call, state):
            torch.cos(call.result)

    curious, other = Curious(), Names()
    with scope(other, "torch"), scope(curious, level), scope(other, "aten"):
        torch.exp(X)
    assert curious.seen == ["exp"] and other.seen == ["exp"] * 2


def test_one_hook_serves_both_levels():
    hook = Names()
    with scope(hook, "torch"), scope(hook, "aten"):
        torch.exp(X)
    assert hook.seen == ["exp", "exp"]


def test_left_out_operators_never_reach_the_kernel(python):
    done = python("""
import torch, op_tools
x = torch.ones(2, 2, requires_grad=True)
with op_tools.HookScope(op_tools.Hook(), level="aten", ops="aten::digamma") as scope:
    torch.nn.functional.linear(x, x).relu().sum().backward()
    assert op_tools._C.kernel_entries() == 0, op_tools._C.kernel_entries()
    torch.digamma(x)
    assert op_tools._C.kernel_entries() == 1
assert scope.calls_seen == 1
torch.digamma(x)
assert op_tools._C.kernel_entries() == 1  # no scope: nothing of ours runs
print("ok")
""")
    assert done.stdout == "ok\n"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["folders", "container"])
def test_interpreter_that_exits_with_an_open_scope_writes_its_files(level, layout, python, tmp_path):
    python(
        f"""
import torch, op_tools
tool = op_tools.OpCapture(level={level!r}, format={layout!r})
tool.start()
for i in range(50):
    torch.exp(torch.ones(100))
""",
        fresh=True,
    )
    (root,) = tmp_path.glob("op_capture_result/0/*")
    if layout == "folders":
        assert len(list(root.rglob("output.pth"))) >= 50
    else:
        import zipfile

        assert sum("output.pth" in name for name in zipfile.ZipFile(root / "calls.zip").namelist()) >= 50


def test_interpreter_that_ends_by_an_exception_inside_a_scope_writes_its_files(python, tmp_path):
    done = python(
        "import torch, op_tools\nop_tools.OpCapture().start()\ntorch.exp(torch.ones(2))\nraise SystemExit(5)",
        check=False,
        fresh=True,
    )
    assert done.returncode == 5
    assert len(list(tmp_path.rglob("torch.exp/*/output.pth"))) == 1


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_hook_that_has_only_after_sees_the_arguments(level):
    class Look(op_tools.Hook):
        def __init__(self):
            self.calls = []

        def after(self, call, state):
            self.calls.append((call.args[0], call.result, call.step))

    look = Look()
    x = torch.ones(3)
    scope = op_tools.HookScope(look, level=level, ops="torch.neg|neg")
    with scope:
        torch.neg(x)
        scope.step()
        torch.neg(x)
    assert [step for _, _, step in look.calls] == [0, 1]
    for argument, result, _ in look.calls:
        assert torch.equal(argument, x)
        assert torch.equal(result, -x)
