"""Where tools begin and end: threads that are gone, decorated generators and coroutines, imports of stop().
tests/proofs/lifecycle.py does more of it, in any order."""

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools._base.tool_descriptions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))

LEVELS = ["torch", "aten"]
X = torch.ones(2)


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("stop_in_thread", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_tool_whose_thread_has_ended_is_stopped_anywhere_with_a_warning(level, stop_in_thread, capfd):
    for _ in range(10):  # every second time the new thread had the number of the old thread
        tool = op_tools.OpCapture(level=level)
        in_thread(lambda tool=tool: (tool.start(), torch.exp(X)))
        in_thread(tool.stop) if stop_in_thread else tool.stop()
        assert tool._depth == 0
        assert [row.calls for row in tool.result().rows] == [1]
    warnings = [line for line in capfd.readouterr().err.splitlines() if "which has ended" in line]
    assert len(warnings) == 10 and "OpCapture was started in thread" in warnings[0]


def test_thread_with_the_number_of_one_that_has_ended_has_its_own_scopes():
    for _ in range(10):
        old, new = (op_tools.HookScope(op_tools.Hook(), level="aten", ops="aten::exp") for _ in range(2))
        in_thread(old.start)

        def body(old=old, new=new):
            with new:
                old.stop()
                torch.exp(X)

        in_thread(body)
        assert (old.calls_seen, new.calls_seen) == (0, 1)


def test_kind_of_a_decorated_function_is_what_it_was():
    tool = op_tools.OpObserve()

    def function():
        pass

    def generator():
        yield

    async def coroutine():
        pass

    async def async_generator():
        yield

    assert inspect.isfunction(tool(function)) and not inspect.isgeneratorfunction(tool(function))
    assert inspect.isgeneratorfunction(tool(generator))
    assert inspect.iscoroutinefunction(tool(coroutine))
    assert inspect.isasyncgenfunction(tool(async_generator))
    assert tool(generator).__name__ == "generator"


def test_decorated_generator_is_one_run_and_sees_only_its_own_calls():
    tool = op_tools.OpCapture(ops="torch.(exp|sin|cos)")

    @tool
    def work():
        torch.exp(X)
        got = yield 1
        torch.sin(X)
        return got

    run = work()
    assert next(run) == 1
    torch.cos(X)
    with pytest.raises(StopIteration) as end:
        run.send(7)
    assert end.value.value == 7
    assert sorted(row.op for row in tool.result().rows) == ["torch.exp", "torch.sin"]
    assert len(list(Path("op_capture_result/0").iterdir())) == 1


def test_decorated_coroutine_sees_only_its_own_calls():
    tool = op_tools.OpObserve(ops="torch.(exp|sin|cos)")

    async def other():
        torch.cos(X)

    @tool
    async def work():
        torch.exp(X)
        await asyncio.gather(other(), other())
        torch.sin(X)
        return "done"

    assert asyncio.run(work()) == "done"
    assert sorted(row.op for row in tool.result().rows) == ["torch.exp", "torch.sin"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_all_stories():
    import lifecycle

    told, failures = lifecycle.lived(rounds=60, seed=1)
    assert failures == []
    assert len(told) == len(lifecycle.STORIES)


@pytest.mark.parametrize("tool", sorted(op_tools._base.tool_descriptions.kinds()))
def test_tool_imports_nothing_of_torch_that_the_program_has_not_imported(tool, python):
    done = python(f"""
import sys, torch, op_tools
def work():
    x = torch.ones(4, 4, requires_grad=True)
    conv = torch.nn.Conv2d(1, 2, 3)
    for _ in range(2):
        (torch.nn.functional.linear(x, x) @ x).relu().sum().backward()
        conv(torch.ones(1, 1, 5, 5)).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 3, 4)] * 3)
        torch.nn.functional.softmax(x, -1)
work()
before = set(sys.modules)
for level in ("torch", "aten"):
    with op_tools.{tool}(level=level) as tool:
        work()
    tool.result()
known = {{"op_tools", *sys.stdlib_module_names}}
print(*sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in known))
""")
    assert done.stdout.split() == []


def test_flops_are_torchs():
    from torch.utils.flop_counter import FlopCounterMode

    from op_tools._torch import flops

    def meta(*shape):
        return torch.empty(*shape, device="meta")

    heads = [meta(2, 3, 5, 4), meta(2, 3, 7, 4), meta(2, 3, 7, 6)]
    calls = [
        ("torch.nn.functional.linear", (meta(3, 5), meta(7, 5), meta(7))),
        ("torch.matmul", (meta(2, 3, 5), meta(2, 5, 4))),
        ("torch.baddbmm", (meta(2, 3, 4), meta(2, 3, 5), meta(2, 5, 4))),
        ("torch.conv2d", (meta(2, 4, 9, 8), meta(6, 4, 3, 3), meta(6), 2, 1, 1)),
        ("torch.conv_transpose2d", (meta(2, 4, 9, 8), meta(4, 6, 3, 3))),
        ("torch.nn.functional.scaled_dot_product_attention", tuple(heads)),
    ]
    for name, args in calls:
        for backward in (False, True):
            counted = flops.count_flops(name, backward, args, {})
            counter = FlopCounterMode(display=False)
            with counter:
                leaves = [one.clone().requires_grad_() if isinstance(one, torch.Tensor) else one for one in args]
                result = flops.find(name)(*leaves)
                forward = counter.get_total_flops()
                result.sum().backward()
            assert counted == (counter.get_total_flops() - forward if backward else forward), (name, backward)
    for own in (flops._attention, flops._attention_backward):
        packet = torch.ops.aten._scaled_dot_product_flash_attention
        args = tuple(heads)
        if own is flops._attention_backward:
            packet, args = torch.ops.aten._scaled_dot_product_flash_attention_backward, (meta(2, 3, 5, 6), *heads)
        assert own(args, None) == sys.modules["torch.utils.flop_counter"].flop_registry[packet](*args)


def test_error_of_the_program_has_no_frame_of_ours():
    def fails(x):
        return torch.mm(x, torch.ones(3, 3))

    for level in LEVELS:
        tools = [
            op_tools.OpAutoCompare(level=level),
            op_tools.OpCapture(level=level),
            op_tools.OpTimeMeasure(level=level),
        ]
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as error, tools[0], tools[1], tools[2]:
            fails(torch.ones(2, 2))
        files = [frame.filename for frame in traceback.extract_tb(error.tb)]
        assert {Path(file).name for file in files} == {Path(__file__).name}


class Failing:
    """Functions of each kind that raise an error of the program, and how they are run."""

    def fails(self):
        return torch.mm(torch.ones(2, 2), torch.ones(3, 3))

    def function(self, tool):
        tool(lambda: self.fails())()

    def generator(self, tool):
        @tool
        def generator():
            yield 1
            self.fails()

        list(generator())

    def throw_into_generator(self, tool):
        @tool
        def generator():
            yield 1

        run = generator()
        next(run)
        run.throw(RuntimeError("shapes cannot be multiplied"))

    def coroutine(self, tool):
        @tool
        async def coroutine():
            await asyncio.sleep(0)
            self.fails()

        asyncio.run(coroutine())

    def async_generator(self, tool):
        @tool
        async def generator():
            yield 1
            self.fails()

        async def use():
            async for _ in generator():
                pass

        asyncio.run(use())

    def throw_into_async_generator(self, tool):
        @tool
        async def generator():
            yield 1

        async def use():
            run = generator()
            await anext(run)
            await run.athrow(RuntimeError("shapes cannot be multiplied"))

        asyncio.run(use())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts a frame back that was taken off")
@pytest.mark.parametrize("kind", [name for name in vars(Failing) if not name.startswith("_") and name != "fails"])
def test_error_of_a_decorated_function_has_no_frame_of_ours(kind):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as error:
        getattr(Failing(), kind)(op_tools.OpObserve())
    files = {Path(frame.filename) for frame in traceback.extract_tb(error.tb)}
    assert Path(__file__) in files
    assert [file for file in files if file.is_relative_to(Path(op_tools.__file__).parent)] == []


def test_error_of_a_program_that_op_tools_runs_is_shown_as_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def f():\n    raise ValueError('mine')\n\n\nf()\n")
    path = os.pathsep.join([str(Path(op_tools.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    shown = [
        subprocess.run(
            [sys.executable, *arguments, script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        for arguments in ([], ["-m", "op_tools", "run", "--observe"])
    ]
    assert [one.returncode for one in shown] == [1, 1]
    assert shown[1].stderr == shown[0].stderr


def test_importing_the_package_imports_no_library_that_few_programs_need(python):
    done = python("""
import sys, torch
before = set(sys.modules)
import op_tools
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - {"op_tools"}))
""")
    assert set(done.stdout.split()) <= {"html"}


def test_a_tool_that_cannot_be_stopped_does_not_keep_the_program_from_its_end():
    program = """
import op_tools

class Stubborn(op_tools.OpCapture):
    def stop(self):
        raise KeyError("stubborn")

Stubborn().start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert "stubborn" in done.stderr
