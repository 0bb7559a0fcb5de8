"""./dev: two in one checkout; which tests its arguments choose."""

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with ./dev, in which nothing is built."""
    for name in ("dev", "cmake/FindOpToolsTorch.cmake"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "build" / "dev").mkdir(parents=True)
    return tmp_path


def started(checkout, *arguments, **environment):
    environment = {name: value for name, value in os.environ.items() if name != "OP_TOOLS_DEV_LOCKED"} | environment
    return subprocess.Popen(["./dev", *arguments], cwd=checkout, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_second_of_two_waits_and_says_for_whom(checkout):
    with (checkout / "build" / "lock").open("w") as lock:
        lock.write("./dev build (process 1)\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = started(checkout, "clean")
        assert second.stderr.readline() == "dev: waiting for ./dev build (process 1)\n"
        time.sleep(0.2)
        assert second.poll() is None and (checkout / "build" / "dev").exists()
    assert second.wait(60) == 0 and not (checkout / "build" / "dev").exists()
    assert second.stderr.read() == ""
    second.stderr.close()


def test_a_dev_that_a_dev_runs_and_its_help_do_not_wait(checkout):
    with (checkout / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for process in (started(checkout, "clean", OP_TOOLS_DEV_LOCKED="1"), started(checkout, "help")):
            assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
