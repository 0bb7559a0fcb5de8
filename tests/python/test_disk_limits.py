"""OpCapture and the size of the disk: max_gb, min_free_gb, the hint how to limit. A capture that stops leaves the program,
its results, and written files alone."""

import os
from pathlib import Path

import pytest
import torch

import op_tools


def size_of(root):
    return sum(file.stat().st_size for file in Path(root).rglob("*") if file.is_file())


@pytest.mark.parametrize("layout", ["folders", "container"])
def test_a_capture_stops_at_max_gb_and_the_program_goes_on(layout, capfd, captured):
    x = torch.ones(1000, 250)  # 1 MB
    with op_tools.OpCapture(ops="torch.neg", format=layout, max_gb=0.01) as tool:
        for _ in range(20):
            torch.neg(x)
            tool.flush()
    result = tool.result()
    assert 0 < size_of(result.root) <= 10_000_000
    assert "max_gb=: 10.0 MB would be exceeded" in result.limit
    assert result.skipped >= 15 and result.lost == 0 and result.failure == ""
    said = capfd.readouterr().err
    assert said.count("OpCapture stops, and the program goes on: max_gb=") == 1
    assert "max_per_signature=" in said
    if layout == "folders":
        assert all(torch.equal(call.result, -x) for call in captured(tool))


def free_gb(path):
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize / 1e9


def test_a_capture_stops_when_little_space_is_free(tmp_path, capfd):
    with op_tools.OpCapture(ops="torch.neg", min_free_gb=free_gb(tmp_path) + 1000) as tool:
        torch.neg(torch.ones(3))
        tool.flush()
        torch.neg(torch.ones(3))
    result = tool.result()
    assert "are to stay free (min_free_gb=)" in result.limit and result.skipped == 2 and not result.failure
    assert not list(Path(result.root).rglob("*.pth"))
    assert capfd.readouterr().err.count("OpCapture stops") == 1
    with op_tools.OpCapture(ops="torch.neg", min_free_gb=0) as tool:
        torch.neg(torch.ones(3))
    assert tool.result().limit == "" and tool.result().rows[0].calls == 1


def test_the_floor_is_a_default():
    with op_tools.OpCapture(ops="torch.neg") as tool:
        torch.neg(torch.ones(3))
    disk = os.statvfs(".")
    floor = min(disk.f_blocks * disk.f_frsize / 10, 5e9)
    assert (tool.result().limit == "") == (free_gb(".") * 1e9 > floor)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "much"])
def test_limits_that_are_none_are_refused(value):
    with pytest.raises(op_tools.Error, match="max_gb"):
        op_tools.OpCapture(max_gb=value).start()


def test_a_large_capture_says_once_how_to_limit_it(python):
    done = python(
        """
import torch, op_tools
x = torch.ones(4_000_000)
for _ in range(2):
    with op_tools.OpCapture(ops="torch.neg", format="container", dedupe=False, max_gb=1):
        for _ in range(5):
            torch.neg(x)
""",
        OP_TOOLS_LOG_LEVEL="notice",
    )
    hints = [line for line in done.stderr.splitlines() if line.startswith("OpCapture has written")]
    assert len(hints) == 1 and "max_calls=" in hints[0] and "op_capture_result" in hints[0]
