"""Processes that the program starts by multiprocessing have the tools that are on, and send their results."""

import json
from pathlib import Path

import pytest
from conftest import launched

import op_tools
from op_tools._base.verdict import Verdict

PROGRAM = """
import json, multiprocessing, os, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
import torch, torch.multiprocessing as mp
import op_tools

def work(index, end=""):
    x = torch.ones(4).relu()
    if end == "wrong" and index == 1:
        x = (x - 2).log()
    if end == "raises":
        raise ValueError("of the program")
    if end == "killed":
        os._exit(3)
    if end == "terminated":
        open(f"working-{index}", "w").close()
        time.sleep(60)
    return x.tolist()

def idle(index, end):
    pass

def parent_of_another(index, end):
    child = multiprocessing.get_context("fork").Process(target=work, args=(1, end))
    child.start()
    child.join()

def started(way, function, end):
    if way == "mp.spawn":
        mp.spawn(function, args=(end,), nprocs=2)
    elif way == "Pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.starmap(function, [(0, end), (1, end)])
            pool.close()
            pool.join()
    elif way == "Executor":
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(function, 1, end).result()
    elif way == "os.fork":
        if (child := os.fork()) == 0:
            function(1, end)
            os._exit(0)
        os.waitpid(child, 0)
    elif way == "manager":
        with multiprocessing.get_context("spawn").Manager() as manager:
            manager.list([1])
    else:
        context = multiprocessing.get_context(way)
        children = [context.Process(target=function, args=(index, end)) for index in range(2)]
        for child in children:
            child.start()
        if end == "terminated":
            while not all(os.path.exists(f"working-{index}") for index in range(2)):
                time.sleep(0.05)
            for child in children:
                child.terminate()
        for child in children:
            child.join()

if __name__ == "__main__":
    way, function, end = sys.argv[1:4]
    before = dict(os.environ)
    if "--alone" in sys.argv:
        with op_tools.OpOverflowCheck() as tool:
            torch.ones(2).exp()
            started(way, globals()[function], end)
        account = tool.result().coverage
        told = {name: getattr(account, name) for name in ("seen", "children", "children_wrong", "processes", "loaders")}
        print(json.dumps({**told, "verdict": tool.result().verdict.value}))
    else:
        torch.ones(2).exp()
        started(way, globals()[function], end)
    assert dict(os.environ) == before
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(way, function="work", end="right"):
        done = launched("program.py", way, function, end, "--alone", cwd=tmp_path, timeout=120)
        assert "in process" not in done.stderr and "does not get" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver", "mp.spawn", "Pool"])
def test_children_have_the_tool_and_their_findings_count(way, program, tmp_path):
    told = program(way, end="wrong")
    assert (told["children"], told["processes"]) == (2, 0)
    assert told["children_wrong"] == 1 and told["verdict"] == Verdict.DIFFERS.value
    assert told["seen"] >= 1 + 2 + 2
    (file,) = [file for file in tmp_path.rglob("overflow.jsonl") if file.stat().st_size]
    ranks = {"mp.spawn": "1", "Pool": "12"}.get(way, "2")  # a pool's processes take any task
    assert file.relative_to(tmp_path).parts[1] in ranks
    assert "log" in file.read_text()


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_children_whose_tool_the_environment_starts_have_ranks(way, tmp_path):
    """It is on before a child knows its rank."""
    (tmp_path / "program.py").write_text(PROGRAM)
    startup = Path(op_tools.__file__).parent / "startup"
    environment = {
        "OP_TOOLS": "record",
        "OP_TOOLS_OUTPUT_DIR": "recordings",
        "PYTHONPATH": f"{startup}:{startup.parents[1]}",
    }
    launched("program.py", way, "work", "right", cwd=tmp_path, timeout=120, **environment)
    paths = sorted((tmp_path / "recordings").glob("*.oprec"))
    calls = [[call.op for call in op_tools.read_recording(path).calls] for path in paths]
    assert [path.name.partition("-")[0] for path in paths] == ["rank0", "rank1", "rank2"]
    assert "torch.Tensor.exp" in calls[0] and all("torch.Tensor.relu" in of_child for of_child in calls[1:])


@pytest.mark.parametrize("way", ["fork", "Executor"])
def test_children_in_which_all_is_right_leave_the_verdict(way, program):
    told = program(way)
    assert told["children"] == (1 if way == "Executor" else 2)
    assert told["verdict"] == Verdict.AGREES.value


@pytest.mark.parametrize("end", ["raises", "terminated"])
def test_children_that_raise_or_are_terminated_tell_what_was_seen(end, program):
    told = program("fork", end=end)
    assert (told["children"], told["processes"], told["verdict"]) == (2, 0, Verdict.AGREES.value)


def test_children_that_tell_nothing_are_unseen(program):
    told = program("fork", end="killed")
    assert (told["children"], told["processes"], told["verdict"]) == (0, 2, Verdict.NOT_JUDGED.value)


def test_children_that_compute_nothing_leave_the_verdict(program):
    told = program("fork", "idle")
    assert (told["children"], told["processes"], told["verdict"]) == (2, 0, Verdict.AGREES.value)


def test_servers_have_no_tool(program):
    told = program("manager")
    assert (told["children"], told["processes"], told["verdict"]) == (0, 0, Verdict.AGREES.value)


def test_children_of_children_count(program):
    told = program("fork", "parent_of_another", "wrong")
    assert (told["children"], told["children_wrong"], told["verdict"]) == (4, 2, Verdict.DIFFERS.value)


@pytest.mark.parametrize(("end", "status"), [("wrong", 1), ("right", 0)])
def test_the_command_ends_with_the_status_of_the_ranks(end, status, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ["run", "--overflow", "--record", "--fail-on-wrong", "program.py", "mp.spawn", "work", end]
    done = launched("-m", "op_tools", *arguments, cwd=tmp_path, check=False, timeout=120)
    assert done.returncode == status, done.stderr
    recorded = {
        path.name.partition("-")[0]
        for path in tmp_path.rglob("*.oprec")
        if any("relu" in row.op for row in op_tools.read_recording(path).rows)
    }
    assert recorded == {"rank0", "rank1"}
