"""Copies of a process that has imported torch end as programs of Python do."""

import pytest


@pytest.mark.parametrize(
    ("text", "status", "written"),
    [
        ("file = open('out.txt', 'w')\nfile.write('all')", 0, "all"),
        ("file = open('out.txt', 'wb')\nfile.write(b'all')\nraise SystemExit(3)", 3, "all"),
        ("import atexit\nfile = open('out.txt', 'w')\natexit.register(file.write, 'late')", 0, "late"),
    ],
)
def test_files_that_a_program_left_open_are_written(text, status, written, python, tmp_path):
    done = python("import torch\n" + text, check=False)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "out.txt").read_text() == written


def test_a_copy_has_the_program_for_its_main_module(python):
    done = python(
        "import sys, torch\nprint(__name__, sys.argv[0] == __file__, sys.modules['__main__'].__file__ == __file__)"
    )
    assert done.stdout == "__main__ True True\n"


def test_a_copy_says_the_exit_status_of_an_error(python):
    done = python("raise ValueError('wrong')", check=False)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: wrong\n")
