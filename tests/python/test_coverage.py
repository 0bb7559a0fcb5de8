"""Calls that were not looked at are never all right: each tool and command, each kind of not looking."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from conftest import launched
from unseen_work import in_fork, in_unfollowed_thread, joined

import op_tools
import op_tools.sim_device
from op_tools import _C
from op_tools.__main__ import main
from op_tools._base.verdict import Coverage, Verdict, status_of, verdict_of, worst
from op_tools._tools.launch import status_of_tools
from op_tools._tools.tool_classes import tool_classes

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

LEVELS = ["torch", "aten"]
TOOLS = [op_tools.OpAutoCompare, op_tools.OpInvariance, op_tools.OpOverflowCheck, op_tools.OpMemoryCheck]
WITHOUT_VERDICT = [one for one in tool_classes().values() if one not in TOOLS]
WITH_FOLDER = [*TOOLS, op_tools.OpCapture, op_tools.OpTimeMeasure, op_tools.OpObserve]


def work(device="sim"):
    x = torch.randn(4, 4).to(device)
    for _ in range(3):
        x = torch.relu(x + x)


def in_thread(run=work):
    in_unfollowed_thread(run)


def in_process(run=lambda: torch.ones(3) + 1):
    in_fork(run)


def nothing(*_):
    pass


def on_the_host():
    work("cpu")


def with_a_rank():
    work()
    in_process()


def compiled():
    work()
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2 + 1, backend=opaque, fullgraph=True)(torch.ones(3))


def opaque(graph, _):
    """A compiler into which no tool looks."""
    return lambda *inputs: graph(*inputs)


KINDS = {"empty": nothing, "thread": in_thread, "host": on_the_host, "rank": with_a_rank, "compiled": compiled}


def test_the_three_verdicts_have_three_statuses():
    assert [status_of(one) for one in (Verdict.AGREES, Verdict.DIFFERS, Verdict.NOT_JUDGED)] == [0, 1, 2]
    assert status_of(Verdict.NOT_JUDGED, allow_unseen=True) == 0
    assert status_of(Verdict.DIFFERS, allow_unseen=True) == 1
    assert verdict_of(wrong=True, unseen=True) is Verdict.DIFFERS
    assert worst([Verdict.AGREES, Verdict.NOT_JUDGED]) is Verdict.NOT_JUDGED
    assert worst([Verdict.NOT_JUDGED, Verdict.DIFFERS]) is Verdict.DIFFERS
    assert worst([]) is Verdict.AGREES


@pytest.mark.parametrize(
    "unseen",
    [
        {"seen": 0},
        {"off": True},
        {"processes": 2},
        {"compiled": 1},
        {"threads": 1, "thread_calls": 1, "thread_calls_on_device": 1},
        {"threads": 1, "thread_calls": 100},
        {"native_calls": 1, "native_calls_on_device": 1},
        {"native_calls": 100},
        {"judged": 3, "not_judged": {"random": 4}},
        {"accelerator": "sim", "devices": {"cpu": 9}},
        {"accelerator": "sim", "on_device": False},
        {"judged": 3, "lost": {"no_room": 4}},
    ],
)
def test_each_kind_of_not_looking_turns_a_verdict(unseen):
    account = Coverage(**{"seen": 10, **unseen})
    assert verdict_of(wrong=False, unseen=account.reasons()) is Verdict.NOT_JUDGED
    assert all(len(line) <= 80 for line in account.lines())
    assert "NOT JUDGED" in "".join(account.lines())


@pytest.mark.parametrize(
    "seen", [{"loaders": 4}, {"threads": 1, "thread_calls": 5}, {"accelerator": "sim", "devices": {"sim": 1, "cpu": 9}}]
)
def test_work_that_cannot_matter_is_counted_and_turns_no_verdict(seen):
    account = Coverage(**{"seen": 10, **seen})
    assert verdict_of(wrong=False, unseen=account.reasons()) is Verdict.AGREES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_did_not_look_has_no_all_clear(tool, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_COMPILED", "as-is")
    with tool(output_dir=tmp_path, level="aten") as running:
        KINDS[kind]()
    result = running.result()
    assert result.verdict is Verdict.NOT_JUDGED and not result.ok, result.coverage
    assert status_of_tools([running]) == 2
    assert status_of_tools([running], allow_unseen=True) == 0


class Fails(op_tools.Hook):
    def before(self, call):
        raise ValueError("a tool's own fault")


def test_a_tool_that_failed_is_off():
    with op_tools.HookScope(Fails()) as tool:
        work()
    assert tool.coverage().off and tool.coverage().gaps() == ["tool_off"]
    assert tool.result().coverage == tool.coverage()


@pytest.mark.parametrize("tool", WITHOUT_VERDICT)
def test_a_tool_that_gives_no_verdict_has_an_account(tool, tmp_path):
    with tool(output_dir=tmp_path) as running:
        work()
    account = running.result().coverage
    assert account.seen > 0 and account.on_device and account.accelerator == "sim"
    assert account.gaps() == [] and account.lines_of_unseen() == []
    with tool(output_dir=tmp_path) as running:
        work()
        in_process()
    assert running.result().coverage.gaps() == ["processes"]


@pytest.mark.parametrize("tool", [op_tools.OpTimeMeasure, op_tools.OpFallback, op_tools.OpCapture, op_tools.OpRecord])
def test_the_table_of_a_tool_without_verdict_says_what_was_unseen_and_nothing_else(tool, tmp_path):
    with tool(output_dir=tmp_path, ops=".*relu") as running:
        work()
    assert "Looked at" not in running.result().table()
    with tool(output_dir=tmp_path, ops=".*relu") as running:
        work()
        in_thread()
    first, *rest = running.result().table().splitlines()
    assert first.startswith("Looked at: 3 calls seen, ") and "1 thread unseen" in first
    assert "relu" in "".join(rest) and "NOT JUDGED" not in "".join(rest)


@pytest.mark.parametrize("tool", [op_tools.OpOverflowCheck, op_tools.OpMemoryCheck])
def test_the_account_stands_above_the_rows_of_a_tool_that_judges(tool, tmp_path):
    with tool(output_dir=tmp_path) as running:
        work("cpu")
    lines = running.result().table().splitlines()
    assert lines[0].startswith("Looked at: ") and lines[1] == "NOT JUDGED: no tensor was on sim"


@pytest.mark.parametrize("tool", WITH_FOLDER)
def test_the_account_stands_beside_the_files_of_a_run(tool, tmp_path):
    with tool(output_dir=tmp_path, level="aten") as running:
        if tool is op_tools.OpOverflowCheck:
            torch.zeros(3).log()  # it writes nothing where nothing is wrong
        work("cpu")
        in_process()
    folder = Path(running.result().root)
    told = json.loads((folder / "coverage.json").read_text())
    assert told.pop("gaps") == ["not_on_accelerator", "processes"]
    assert told.pop("reasons") == ["no tensor was on sim", "1 process of the program had no tool, or told nothing"]
    assert set(told.pop("program")) == {"command", "folder"}
    assert (told.pop("tool"), told.pop("ranks")) == (tool.__name__, 1)
    rows = told.pop("rows")
    for file in folder.glob("*.jsonl"):
        assert rows[file.name] == len(file.read_text().splitlines())
    assert Coverage(**told) == running.coverage()
    assert not list(folder.glob("*.part"))


def test_an_account_that_cannot_be_written_is_a_warning(tmp_path, capfd):
    with op_tools.OpTimeMeasure(output_dir=tmp_path) as tool:
        work()
        tool.flush()
        (Path(tool.result().root) / "coverage.json").mkdir()
    assert "coverage.json: cannot be written" in capfd.readouterr().err
    assert tool.result().calls > 0


def test_reasons_of_results_without_a_verdict_are_counted(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path, golden=False) as tool:
        torch.empty(3)
        torch.ones(3, device="cpu") + 1
    account = tool.result().coverage
    assert account.not_judged == {"uninitialized": 1, "no_float64": 2}
    assert sum(account.not_judged.values()) == tool.result().not_judged
    assert "most_unjudged" in account.gaps()


def test_a_limit_that_zeros_would_pass_concludes_nothing(tmp_path):
    torch.manual_seed(3)
    terms = torch.randn(100_000)
    cancelling = torch.cat([terms, -terms, torch.tensor([1e-5])])[torch.randperm(200_001)]
    with op_tools.OpAutoCompare(output_dir=tmp_path, level="aten", ops="sum") as tool:
        cancelling.sum()
    account = tool.result().coverage
    assert account.judged == account.wide_limits == 1 and "wide_limits" in account.gaps()
    assert "1 of 1 result had limits wider than their values" in account.reasons()
    assert tool.result().failed == 0 and tool.result().verdict is Verdict.NOT_JUDGED


def test_an_account_is_a_value():
    account = Coverage(seen=3, devices={"sim": 2}, lost={"no_room": 1}, on_device=True)
    assert pickle.loads(pickle.dumps(account)) == copy.deepcopy(account) == account != Coverage(seen=3)
    assert Coverage(**account.to_dict()) == account and "no_room" in repr(account)
    with pytest.raises(op_tools.Error, match="other fields"):
        Coverage(sen=3)
    with pytest.raises(op_tools.Error, match="seen cannot be"):
        account.seen = -1


def test_the_words_of_verdicts_are_the_cores():
    assert [one.value for one in Verdict] == [token for token, _ in _C.coverage_tokens()["Verdict"]]


def test_the_device_of_one_run_is_not_that_of_the_next(tmp_path):
    with op_tools.OpOverflowCheck(output_dir=tmp_path) as outer:
        work()
        with op_tools.OpMemoryCheck(output_dir=tmp_path) as inner:
            work("cpu")
    assert outer.result().verdict is Verdict.AGREES
    assert inner.result().verdict is Verdict.NOT_JUDGED


def test_modules_that_could_not_be_judged_do_not_agree():
    assert op_tools.ModuleComparison([]).verdict is Verdict.NOT_JUDGED and not op_tools.ModuleComparison([]).ok


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_looked_gives_its_verdict(tool, tmp_path):
    with tool(output_dir=tmp_path) as running:
        work()
    assert running.result().verdict is Verdict.AGREES, running.result().coverage
    assert status_of_tools([running]) == 0


def test_threads_are_counted_where_they_run_operators(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path) as tool:
        work()
        in_thread(nothing)
        assert tool.coverage().threads == 0
        in_thread()
    assert tool.coverage().threads == 1 and tool.coverage().thread_calls_on_device > 0


def test_a_host_thread_beside_a_device_run_turns_no_verdict(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path) as tool:
        work()
        in_thread(lambda: torch.ones(3) + 1)
    assert tool.coverage().threads == 1
    assert tool.result().verdict is Verdict.AGREES


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_threads_that_a_tool_sees_are_not_counted(level, tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path, level=level) as tool:
        joined(work)
    assert tool.coverage().threads == 0
    assert tool.result().verdict is Verdict.AGREES


def test_a_run_on_the_host_beside_an_accelerator_is_not_judged(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path) as tool:
        work("cpu")
    assert "no tensor was on sim" in "".join(tool.result().coverage.reasons())
    assert status_of_tools([tool]) == 2
    assert "NOT JUDGED" in tool.result().table()


def test_ranks_without_a_tool_are_not_judged(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path) as tool:
        work()
        in_process()
    assert tool.coverage().processes == 1
    assert status_of_tools([tool]) == 2


def test_processes_that_run_no_operator_turn_no_verdict(tmp_path):
    with op_tools.OpAutoCompare(output_dir=tmp_path) as tool:
        work()
        in_process(nothing)
    assert tool.coverage().processes == 0
    assert status_of_tools([tool]) == 0


@pytest.fixture
def new_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("new_compiler")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_compiled_graph_is_not_judged(level, fullgraph, tmp_path):
    compiled = torch.compile(lambda x: x * 2 + 1, backend=opaque, fullgraph=fullgraph)
    with op_tools.OpAutoCompare(output_dir=tmp_path, level=level, compiled="as-is") as tool:
        work()
        compiled(torch.ones(3))
    account = tool.coverage()
    assert (account.graphs, account.compiled, account.compiled_nodes, account.backends) == (0, 1, 2, {"opaque": 1})
    assert status_of_tools([tool]) == 2


def wrong_compiler(graph, _):
    """Multiplies each result of the graph by 1.5, and cuts off its backward pass."""
    return lambda *inputs: tuple((result * 1.5).detach() for result in graph(*inputs))


@pytest.mark.usefixtures("new_compiler")
@pytest.mark.parametrize("is_compiled_before", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_compiler_is_never_all_right(level, is_compiled_before, tmp_path):  # pytorch/pytorch#175966
    body, head = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()), torch.nn.Linear(8, 2)
    compiled = torch.compile(body, backend=wrong_compiler)
    x = torch.randn(3, 4)

    def step(first):
        head(first(x)).square().mean().backward()

    if is_compiled_before:
        step(compiled)
    with op_tools.OpAutoCompare(output_dir=tmp_path, level=level) as tool:
        step(compiled)
    assert (tool.coverage().graphs, tool.coverage().compiled) == ((1, 0) if level == "torch" else (0, 1))
    assert not tool.result().ok
    assert status_of_tools([tool]) == (1 if level == "torch" else 2)
    with op_tools.OpRecord(output_dir=tmp_path, level=level) as eager:
        step(body)
    with op_tools.OpRecord(output_dir=tmp_path, level=level) as of_graph:
        step(compiled)
    assert op_tools.compare_runs(eager.result().path, of_graph.result().path).exit_status == 1


def test_two_empty_recordings_do_not_agree(tmp_path):
    for name in "ab":
        with op_tools.OpRecord(output_dir=tmp_path / name, ops="mm"):
            torch.nn.functional.relu(torch.ones(3))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) != 0


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--allow-unseen"], 0)])
def test_the_command_ends_with_the_status(arguments, status, tmp_path):
    script = tmp_path / "on_the_host.py"
    script.write_text("import torch, op_tools.sim_device\nx = torch.ones(4, 4)\n(x @ x).sum()\n")
    command = ("-m", "op_tools", "run", "--autocompare", "--fail-on-wrong", *arguments, script)
    ended = launched(*command, cwd=tmp_path, check=False)
    assert ended.returncode == status, ended.stderr
    assert "NOT JUDGED" in ended.stderr
