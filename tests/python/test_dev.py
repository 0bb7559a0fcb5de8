"""./dev: two in one checkout; how many files of a folder it compiles together."""

import fcntl
import os
import shutil
import subprocess
import sys
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
    environment = {name: value for name, value in os.environ.items() if name != "_OP_TOOLS_DEV_LOCKED"} | environment
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
        for process in (started(checkout, "clean", _OP_TOOLS_DEV_LOCKED="1"), started(checkout, "help")):
            assert process.communicate(timeout=60)[1] == "" and process.returncode == 0


@pytest.fixture
def dry(checkout):
    """Runs ./dev in a folder whose cmake only writes down its arguments: what it was called with."""
    programs = checkout / "programs"
    programs.mkdir()
    (programs / "cmake").write_text(
        '#!/bin/sh\necho "$@" >>cmake.txt\nmkdir -p build/dev\ntouch build/dev/build.ninja\n'
    )
    (programs / "cmake").chmod(0o755)
    shutil.copy(ROOT / "CMakePresets.json", checkout)
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OP_TOOLS_VENV": sys.prefix,
        "OP_TOOLS_EXTRAS": "",
    }

    def run(*arguments, **environment):
        (checkout / "cmake.txt").write_text("")
        process = started(checkout, *arguments, **{"OP_TOOLS_TOGETHER": ""} | variables | environment)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
        return (checkout / "cmake.txt").read_text()

    return run


def test_a_new_folder_compiles_files_together_and_stays_as_it_is(dry, checkout):
    eight = "-DCMAKE_UNITY_BUILD_BATCH_SIZE=8"
    assert eight in dry("run", "true")
    assert "--preset" not in dry("build")  # the folder is there: it is not configured anew
    shutil.rmtree(checkout / "build")
    assert "UNITY" not in dry("build")
    assert "--preset" not in dry("run", "true")
    assert "-DCMAKE_UNITY_BUILD_BATCH_SIZE=3" in dry("build", OP_TOOLS_TOGETHER="3")


def test_a_benchmark_leaves_the_checkout_to_others(dry, checkout):
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "free.py").write_text(
        "import fcntl\nfcntl.flock(open('build/lock'), fcntl.LOCK_EX | fcntl.LOCK_NB)\nopen('free', 'w')\n"
    )
    dry("bench", "free")
    assert (checkout / "free").exists()
