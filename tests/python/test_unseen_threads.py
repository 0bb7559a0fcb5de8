"""Work that no tool can see is counted: threads that were there before, other processes, graphs, TorchScript's functions."""

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from unseen_work import EARLIER

import op_tools
import op_tools.sim_device
from op_tools._base.verdict import Verdict

OPERATORS = 2000


def work(device="cpu", operators=OPERATORS):
    x = torch.ones(4, device=device)
    for _ in range(operators):
        x = x.relu()


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_threads_that_were_there_before_are_counted(level, device, tmp_path):
    with op_tools.OpOverflowCheck(output_dir=tmp_path, level=level) as tool:
        work("sim", 3)
        EARLIER.submit(work, device).result()
    account = tool.coverage()
    assert account.threads == 1
    assert OPERATORS / 4 < account.thread_calls < OPERATORS * 4  # torch draws the samples
    assert (account.thread_calls_on_device > 0) == (device == "sim")
    assert tool.result().verdict is Verdict.NOT_JUDGED


def test_their_calls_beside_a_run_that_made_more_turn_no_verdict(tmp_path):
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as tool:
        work("sim", 10 * OPERATORS)
        EARLIER.submit(work).result()
    assert tool.coverage().threads == 1
    assert tool.result().verdict is Verdict.AGREES


def test_what_they_call_while_no_tool_is_on_is_not_counted(tmp_path):
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as tool:
        work("sim", 3)
    EARLIER.submit(work).result()
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as later:
        work("sim", 3)
    assert tool.coverage().threads == later.coverage().threads == 0


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_tool_that_sees_all_threads_counts_none(by, tmp_path, monkeypatch):
    if by == "variable":
        monkeypatch.setenv("OP_OVERFLOW_CHECK_ALL_THREADS", "1")
    options = {"all_threads": True} if by == "argument" else {}
    with op_tools.OpOverflowCheck(output_dir=tmp_path, level="aten", **options) as tool:
        EARLIER.submit(work).result()
    assert tool.coverage().threads == 0 and tool.coverage().seen > OPERATORS / 2


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_threads_that_work_for_a_tool_or_are_a_tools_own_are_not_counted(level, tmp_path):
    weight = torch.ones(4, 4, device="sim", requires_grad=True)
    with op_tools.OpAutoCompare(output_dir=tmp_path, level=level) as tool:
        for _ in range(200):  # backward runs in the device's own thread
            (weight @ weight).relu().sum().backward()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert tool.coverage().threads == 0
    assert tool.coverage().seen > OPERATORS


@pytest.mark.parametrize("format", ["folders", "container"])
@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("tool", [op_tools.OpOverflowCheck, op_tools.OpMemoryCheck])
def test_the_thread_that_writes_a_capture_is_none_of_the_programs(tool, level, format, tmp_path):
    with (
        tool(output_dir=tmp_path, level=level) as asked,
        op_tools.OpCapture(output_dir=tmp_path, level=level, format=format),
    ):
        wide = torch.ones(8, 8, device="sim")
        for _ in range(OPERATORS // 4):
            wide[:, 2:4].exp()  # of a tensor with gaps in memory the thread makes a plain one
    account = asked.coverage()
    assert (account.threads, account.thread_calls) == (0, 0)
    assert asked.result().verdict is Verdict.AGREES


def test_threads_that_work_for_an_unseen_one_are_that_one(tmp_path):
    def train():
        weight = torch.ones(4, 4, device="sim", requires_grad=True)
        (weight @ weight).relu().sum().backward()

    def start_a_thread():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    with op_tools.OpOverflowCheck(output_dir=tmp_path) as tool:
        work("sim", 3)
        EARLIER.submit(start_a_thread).result()
    assert tool.coverage().threads == 1
    assert tool.result().verdict is Verdict.NOT_JUDGED


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_operators_past_the_torch_level_are_counted(device, tmp_path):
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as tool:
        work("sim", 3)
        with torch.overrides._pop_mode_temporarily():  # as in a function of C++ code
            work(device)
    account = tool.coverage()
    assert OPERATORS / 4 < account.native_calls < OPERATORS * 4
    assert (account.native_calls_on_device > 0) == (device == "sim")
    assert tool.result().verdict is Verdict.NOT_JUDGED
    assert "level aten sees them" in " ".join(account.lines())


def test_level_aten_sees_the_operators_that_level_torch_does_not(tmp_path):
    with (
        op_tools.OpOverflowCheck(output_dir=tmp_path, level="aten") as tool,
        op_tools.OpOverflowCheck(output_dir=tmp_path) as beside,
    ):
        work("sim", 3)
        with torch.overrides._pop_mode_temporarily():
            work("sim")
    assert tool.coverage().native_calls == 0 and tool.coverage().seen > OPERATORS
    assert tool.result().verdict is Verdict.AGREES
    assert beside.coverage().native_calls > 0


def test_operators_of_a_training_are_none_of_cpp_code(tmp_path):
    torch.manual_seed(0)
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as tool:
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to("sim")
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(100):
            torch.autograd.backward(model(torch.randn(3, 4, device="sim")).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        torch.save(model.state_dict(), tmp_path / "model.pt")
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert tool.coverage().native_calls == 0 and tool.coverage().seen > OPERATORS
    assert tool.result().verdict is Verdict.AGREES


def opaque(graph, _):
    """A compiler into which no tool looks."""
    return lambda *inputs: graph(*inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules that Inductor imports
def test_a_graph_that_inductor_compiled_by_itself_is_a_compiled_graph(tmp_path):
    def function(x):
        return torch.sigmoid(x) * 2 + x

    x = torch.ones(4)
    compiled = torch._inductor.compile(torch.fx.symbolic_trace(function), [x])
    for level in ("torch", "aten"):
        with op_tools.OpOverflowCheck(output_dir=tmp_path, level=level) as tool:
            work(operators=20)
            assert tool.coverage().compiled == 0
            for _ in range(3):
                compiled(x)
        assert tool.coverage().compiled == 1
        assert tool.result().verdict is Verdict.NOT_JUDGED


def test_a_function_that_was_compiled_before_counts_once(tmp_path):
    torch._dynamo.reset()
    weight = torch.ones(3, requires_grad=True)

    @torch.compile(backend=opaque, fullgraph=True)
    def step(x):
        return (x * weight).sin().sum()

    step(torch.ones(3)).backward()
    with op_tools.OpOverflowCheck(output_dir=tmp_path, level="aten") as tool:
        work("sim", 3)
        assert tool.coverage().compiled == 0
        for _ in range(3):
            step(torch.ones(3)).backward()
    assert tool.coverage().compiled == 1
    assert tool.result().verdict is Verdict.NOT_JUDGED
    step(torch.ones(3))
    assert tool.coverage().compiled == 1


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_training_step_that_is_compiled_while_the_tool_is_on_counts_once(level, tmp_path):
    torch._dynamo.reset()
    weight = torch.ones(3, requires_grad=True)

    @torch.compile(backend=opaque, fullgraph=True)
    def step(x):
        return (x * weight).sin().sum()

    with op_tools.OpOverflowCheck(output_dir=tmp_path, level=level) as tool:
        for _ in range(3):
            step(torch.ones(3)).backward()
    assert (tool.coverage().graphs, tool.coverage().compiled) == ((1, 0) if level == "torch" else (0, 1))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_functions_of_torchscript_are_counted_where_their_operators_are_not_seen(tmp_path):
    @torch.jit.script
    def scripted(x):
        return torch.relu(x * 2).sum()

    for level, count in (("torch", 1), ("aten", 0)):
        with op_tools.OpOverflowCheck(output_dir=tmp_path, level=level) as tool:
            work("sim", 3)
            for _ in range(5):
                scripted(torch.ones(3))
        assert tool.coverage().compiled == count


LISTING = [
    op_tools.OpAutoCompare,
    op_tools.OpCapture,
    op_tools.OpDtypeCast,
    op_tools.OpFallback,
    op_tools.OpMemoryCheck,
    op_tools.OpObserve,
    op_tools.OpOverflowCheck,
    op_tools.OpRecord,
    op_tools.OpTimeMeasure,
]


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x @ x).sum() + torch.ones(3).sum()


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("kind", LISTING)
def test_calls_on_tensors_without_numbers_are_no_calls_of_any_tool(kind, level, tmp_path):
    with FakeTensorMode() as mode:
        fake = torch.ones(4, 4)
    with kind(output_dir=tmp_path, level=level) as tool:
        with mode:
            Model()(fake)
        fake.relu()
    assert tool.coverage().seen == 0
    assert not getattr(tool.result(), "rows", None)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_an_export_gives_no_rows(level, tmp_path):
    x = torch.ones(4, 4)
    with op_tools.OpRecord(output_dir=tmp_path, level=level) as tool:
        torch.export.export(Model(), (x,))
    assert not any("gelu" in row.op or "ones" in row.op or "matmul" in row.op for row in tool.result().rows)
