"""OpBlackBox with several ranks: who is behind, and where they disagree."""

import contextlib
import json
import os
import subprocess
import time

import pytest
from conftest import PYTHON

import op_tools
from op_tools.__main__ import main
from op_tools._base.declared_rows import BlackBoxRow
from op_tools._base.rank_text import ranks_text
from op_tools._tools.black_box_file import BlackBox
from op_tools._tools.black_boxes import collective_progress, find_black_boxes, show_black_boxes

RANKS = 4
STALL = 0.5
PROGRAM = f"""
import os, sys, time
import torch
import torch.distributed as dist
import op_tools

folder, what = sys.argv[1:]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size={RANKS})
pair = dist.new_group([0, 3])
op_tools.OpBlackBox(output_dir=folder, stall={STALL}).start()
x = torch.ones(4)
for _ in range(3):
    dist.all_reduce(x)
if rank in (0, 3):
    dist.all_reduce(torch.ones(2), group=pair)
if what == "hang" and rank == 1:
    torch.relu(x)
    print("here", flush=True)
    time.sleep(1000)
if what == "operator" and rank == 2:
    dist.broadcast(torch.ones(4), 2)
if what == "shape" and rank == 2:
    dist.all_reduce(torch.ones(8))  # the guilty line
if what == "reduction":
    dist.all_reduce(x, dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)
if what == "root":
    dist.broadcast(x, 1 if rank == 2 else 0)
dist.all_reduce(x)
if what == "end" and rank in (0, 1):
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
dist.barrier()
"""


@contextlib.contextmanager
def ranks(folder, what):
    processes = [
        subprocess.Popen(
            [PYTHON, "-c", PROGRAM, str(folder), what],
            env={**os.environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def findings(folder, *wanted):
    """The lines about the ranks once lines have each of `wanted` in them."""
    ends = time.monotonic() + 120
    lines = []
    while time.monotonic() < ends and not all(any(one in line for line in lines) for one in wanted):
        time.sleep(0.1)
        with contextlib.suppress(op_tools.Error):
            lines = collective_progress([op_tools.read_black_box(path) for path in find_black_boxes(folder)])
    return lines


def test_a_rank_that_hangs_is_named(tmp_path, capsys):
    with ranks(tmp_path, "hang") as processes:
        while "may wait for c10d::allreduce_" not in (line := processes[0].stdout.readline()):
            assert line, "the process ended"
        assert "number 4 of process group 0, 4 ranks" in line
        assert processes[1].stdout.readline() == "here\n"
        lines = findings(tmp_path, "behind is rank 1:")
        assert any(
            "behind is rank 1: others have begun number 4, c10d::allreduce_ on float32[4]" in line for line in lines
        )
        assert any("all ranks have begun is number 3, c10d::allreduce_ on float32[4]" in line for line in lines)
        assert not any("disagree" in line for line in lines)
        assert main(["blackbox", str(tmp_path)]) == 0
        text = capsys.readouterr().out
    assert "behind is rank 1" in text
    assert "is in no operator; the last was aten::relu" in text


def box_of(rank, started, collectives, program="train.py", parent=0, group="0"):
    rows = [
        BlackBoxRow(
            "ended",
            "c10d::allreduce_",
            "forward",
            "",
            "",
            "float32[4]",
            0,
            n,
            1,
            0.0,
            0.1,
            "",
            "",
            True,
            group,
            n,
            "sum",
        )
        for n in collectives
    ]
    return BlackBox("", 1000 + int(started), rank, "", program, started, False, False, parent, rows)


def test_workers_of_a_rank_hide_nothing_and_a_later_run_counts():
    worker = box_of(1, 5.0, [], parent=1001)
    helper = box_of(1, 6.0, [], program="compile_worker.py")
    (_, line) = collective_progress([box_of(0, 1.0, [1, 2, 3]), box_of(1, 1.0, [1, 2]), worker, helper])
    assert "behind is rank 1" in line
    # The second run has ended before its first collective.
    assert (
        collective_progress([box_of(0, 1.0, [1, 2]), box_of(1, 1.0, [1, 2]), box_of(0, 9.0, []), box_of(1, 9.0, [])])
        == []
    )


@pytest.mark.parametrize(
    ("earlier", "last", "expected"),
    [  # ranks, their starts and collectives
        pytest.param(
            {0: (0.0, 10), 1: (0.1, 10), 2: (0.2, 10)}, {0: (60.0, 9)}, "of 1 of its 3 ranks", id="others have no file"
        ),
        pytest.param(
            {0: (0.0, 10)}, {1: (60.0, 9), 0: (60.1, 9), 2: (60.2, 9)}, "all ranks", id="another starts first"
        ),
        pytest.param(
            {0: (0.0, 9), 1: (4.0, 9), 2: (0.1, 9)},
            {2: (60.0, 4), 1: (60.1, 3), 0: (66.0, 4)},
            "behind is rank 1: others have begun number 4,",
            id="all start again",
        ),
    ],
)
def test_the_last_run_of_a_folder_is_looked_at_alone(earlier, last, expected):
    boxes = [
        box_of(rank, started, range(1, count + 1), group="0, 3 ranks")
        for run in (earlier, last)
        for rank, (started, count) in run.items()
    ]
    lines = collective_progress(boxes[::-1])
    assert any(expected in line for line in lines), lines
    assert all("disagree" not in line for line in lines)
    assert any("behind" in line for line in lines) == ("behind" in expected), lines
    text = show_black_boxes(boxes)
    assert f"2 runs are in these files; of process groups the last counts, {ranks_text(last)} from " in text


def test_a_run_on_fewer_ranks_by_another_program_is_a_run_of_its_own():
    trained = [box_of(rank, 1.0, [1, 2, 3], group="0, 4 ranks") for rank in range(4)]
    served = [box_of(rank, 100.0, [1, 2], program="serve.py", group="0, 2 ranks") for rank in range(2)]
    (line,) = collective_progress([*trained, *served])
    assert line.startswith("process group 0, 2 ranks: the last collective that all ranks have begun is number 2")


@pytest.fixture
def recorded_ranks(tmp_path):
    """The folder of a run of which each rank has a file."""
    with ranks(tmp_path, "end") as processes:
        for process in processes:
            assert process.wait(120) == 0, process.stdout.read()
    return tmp_path


def of_rank(folder, rank):
    (file,) = folder.glob(f"*/{rank}/*/*.blackbox")
    return file


def test_a_rank_without_a_file_has_begun_nothing_that_is_known(recorded_ranks, capsys):
    whole = of_rank(recorded_ranks, 1).read_bytes()
    for damage in (lambda file: file.write_bytes(whole[:5000]), lambda file: file.unlink()):
        damage(of_rank(recorded_ranks, 1))
        assert main(["blackbox", str(recorded_ranks)]) == 2
        shown = capsys.readouterr()
        assert "files of 3 of its 4 ranks have its collectives; the last that ranks 0, 2, 3 have begun is" in shown.out
        assert f"rank 1: no file in {recorded_ranks} that can be read, of 4 ranks" in shown.err
        # The group of ranks 0 and 3 is whole.
        assert "2 ranks: the last collective that all ranks have begun is number 1" in shown.out
        assert main(["show", str(recorded_ranks)]) == 0
        assert "rank 1: no results here, of 4 ranks" in capsys.readouterr().out
    assert main(["blackbox", str(recorded_ranks), "--allow-unseen"]) == 0
    file = of_rank(recorded_ranks, 0)
    for place in (file, file.parent, file.parents[1]):  # asks for no other
        assert main(["blackbox", str(place)]) == 0
    assert main(["show", str(file.parents[1])]) == 0 and "no results here" not in capsys.readouterr().out
    for rank in (2, 3):
        of_rank(recorded_ranks, rank).unlink()
    capsys.readouterr()
    assert main(["blackbox", str(recorded_ranks)]) == 2
    assert f"ranks 1 to 3: no file in {recorded_ranks}" in capsys.readouterr().err


def test_a_file_without_collectives_of_a_group_is_told():
    boxes = [box_of(rank, 1.0, [] if rank == 1 else [1, 2], group="0, 3 ranks") for rank in range(3)]
    (line,) = collective_progress(boxes)
    assert "none of its collectives is in the file of rank 1; the last that ranks 0, 2 have begun is number 2" in line


def test_a_thousand_ranks_fit_on_a_page_and_the_sick_rank_comes_first():
    sick = 612
    boxes = [box_of(rank, 1.0, [1, 2] if rank == sick else [1, 2, 3]) for rank in range(1024)]
    text = show_black_boxes(boxes)
    lines = text.splitlines()
    assert lines[0].startswith(f"rank {sick}, process 1001 ended outside of any operator") and "number 2" in lines[0]
    assert lines[1].startswith("ranks 0 to 611, 613 to 1023 ended outside of any operator") and "number 3" in lines[1]
    assert f"behind is rank {sick}" in text and "1022 more processes in the same call" in text
    assert len(lines) < 40


def test_ranks_in_a_text():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([1, 0]) == "ranks 0, 1"
    assert ranks_text([0, 1, 2, 7, 5, 4, 7]) == "ranks 0 to 2, 4, 5, 7"
    assert ranks_text([]) == ""
    assert ranks_text(range(1, 1024, 8)) == "ranks 1 to 1017 in steps of 8"
    assert ranks_text(rank for rank in range(60) if rank % 3 or rank % 7 == 0).endswith("25, 26, ... (43 ranks)")


@pytest.mark.parametrize(
    ("what", "guilty"),
    [
        ("operator", "rank 2: c10d::broadcast_ (root 2) on float32[4]"),
        ("shape", "rank 2: c10d::allreduce_ (sum) on float32[8]"),
        ("reduction", "rank 2: c10d::allreduce_ (max) on float32[4]"),
        ("root", "rank 2: c10d::broadcast_ (root 1) on float32[4]"),
    ],
)
def test_collectives_that_differ_are_named(tmp_path, what, guilty):
    others = f"ranks 0, 1, 3: c10d::{'broadcast_ (root 0)' if what == 'root' else 'allreduce_ (sum)'} on float32[4]"
    with ranks(tmp_path, what):
        lines = findings(tmp_path, guilty, others)
        (line,) = [line for line in lines if "disagree" in line]
    assert "the ranks disagree in collective 4" in line
    assert others in line
    assert guilty in line and "<string>:" in line.partition(guilty)[2]


def test_ranks_that_agree_are_told_so(tmp_path, capsys):
    with ranks(tmp_path, "end") as processes:
        for process in processes:
            assert process.wait(120) == 0, process.stdout.read()
    assert main(["blackbox", str(tmp_path), "--json"]) == 0
    boxes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(boxes) == RANKS
    sent = [row for box in boxes for row in box["rows"] if row["op"] in ("c10d::send", "c10d::recv_")]
    assert len(sent) == 2 and not any(row["number"] for row in sent), "they are no collectives"
    lines = collective_progress([op_tools.read_black_box(path) for path in find_black_boxes(tmp_path)])
    assert [line.partition(": ")[2] for line in lines] == [
        "the last collective that all ranks have begun is number 5, c10d::barrier on float32[0]",
        "the last collective that all ranks have begun is number 1, c10d::allreduce_ on float32[2]",
    ] or all("the last collective that all ranks have begun" in line for line in lines)
    assert len({line.partition(":")[0] for line in lines}) == 2, "the pair's group differs"
