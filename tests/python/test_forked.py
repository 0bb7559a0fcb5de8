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


# --- Programs that start others (stand_in.py)


STARTER = """
import os, subprocess, sys
def said(*words, **more):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env={**os.environ, **more})
    return done.returncode, done.stdout.strip()
"""


def is_copy(python, words, more=""):
    """Is a process that a program starts so a copy? A copy has the server's command line."""
    text = "print(open('/proc/self/cmdline').read().split('\\0')[0:3])"
    done = python(f"{STARTER}status, out = said({words} '-c', {text!r}{more})\nprint(status, 'forked' in out)")
    return done.stdout.split()


def test_a_program_that_a_program_starts_is_a_copy_too(python):
    assert is_copy(python, "") == ["0", "True"]
    assert is_copy(python, "'-u',") == ["0", "True"]


@pytest.mark.parametrize(
    ("words", "more"),
    [("'-O',", ""), ("", ", PYTHONHASHSEED='3'"), ("", ", MKL_NUM_THREADS='7'"), ("'-X', 'utf8',", "")],
)
def test_where_a_copy_would_do_otherwise_a_python_is_started(words, more, python):
    assert is_copy(python, words, more) == ["0", "False"]


def test_a_program_with_a_torch_of_its_own_finds_it(python, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "torch.py").write_text("version = 'another'")
    text = f"print(said('-c', 'import torch; print(torch.version)', PYTHONPATH={str(tmp_path / 'own')!r}))"
    assert python(STARTER + text).stdout == "(0, 'another')\n"


def test_files_that_a_program_hands_on_are_there(python):
    text = """
import os, subprocess, sys
read, write = os.pipe()
subprocess.run([sys.executable, "-c", f"import os; os.write({write}, b'through')"], pass_fds=[write], check=True)
print(os.read(read, 100))
"""
    assert python(text).stdout == "b'through'\n"


def test_the_end_of_a_copy_is_the_end_of_what_stands_for_it(python):
    text = """
for line in ("raise SystemExit(3)", "import os; os.kill(os.getpid(), 11)", "import os; os.kill(os.getpid(), 9)"):
    print(said("-c", line)[0])
"""
    assert python(STARTER + text).stdout.split() == ["3", "-11", "-9"]


def test_signals_reach_the_copy(python):
    text = """
import signal, subprocess, sys
loop = "import time\\ntry:\\n    print('on', flush=True)\\n    time.sleep(100)\\nexcept KeyboardInterrupt:\\n    print('asked')"
for number in (signal.SIGINT, signal.SIGTERM):
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "on\\n"
        program.send_signal(number)
        print(program.stdout.read().strip(), program.wait())
"""
    assert python(text).stdout == "asked 0\n -15\n"


def test_a_program_finds_torch_when_it_imports_it_and_not_before(python):
    done = python(
        "import sys\nprint('torch' in sys.modules)\nimport torch.nn\nprint(torch.ones(1), 'torch' in sys.modules)"
    )
    assert done.stdout == "False\ntensor([1.]) True\n"


def test_tools_of_the_environment_start_when_a_copy_imports_torch(python, tmp_path):
    text = """
from op_tools._tools.launch import startup_variables
print(said("-c", "import torch; torch.ones(2) + 1", **startup_variables(), OP_TOOLS="record"))
print(said("-c", "print('no torch')", **startup_variables(), OP_TOOLS="captrue"))
"""
    assert python(STARTER + text).stdout == "(0, '')\n(0, 'no torch')\n"
    assert len(list(tmp_path.rglob("*.oprec"))) == 1
