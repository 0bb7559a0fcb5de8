"""Names that would drive a terminal, forge a line, or turn the direction of a text: what is printed of them is their numbers."""

import pytest
from conftest import launched

from op_tools.__main__ import main
from op_tools._base.error_text import printable

FORGED = "op_tools error: forged"
PROGRAM = f"""
import torch
import op_tools.sim_device as sim
HOSTILE = "a\\x1b[2J\\x9b31m\\u202e\\u2066\\r\\n{FORGED}\\x07\\u2028\\u00fc"
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module(HOSTILE, torch.nn.Linear(4, 4))
    def forward(self, x):
        return torch.log(getattr(self, HOSTILE)(x) - 100)
Net.__name__ = Net.__qualname__ = "Net" + HOSTILE
torch.manual_seed(0)
net = Net().to("sim")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for _ in range(5):
    kept.append(net(torch.ones(2, 4).to("sim")))
    kept[-1].sum().backward()
    optimizer.step()
"""
FAULT = "scale:ops=addmm,scale=1.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("hostile")
    (place / "train.py").write_text(PROGRAM)
    return place


def is_safe(text):
    hidden = {character for character in text if not character.isprintable() and character not in "\n\t"}
    return hidden == set() and not any(line.startswith(FORGED) for line in text.splitlines())


def printed(folder, *words, fault=FAULT, **environment):
    done = launched("-m", "op_tools", *words, cwd=folder, check=False, OP_TOOLS_SIM_FAULTS=fault, **environment)
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done.stderr
    text = done.stdout + done.stderr
    assert is_safe(text), text
    return text


TOOLS = ("autocompare", "overflow", "invariance", "memory", "time", "observe", "blackbox")


def shown(capsys, *words):
    """Of a command that needs no process of its own."""
    assert main([*map(str, words)]) in (0, 1, 2)
    text = capsys.readouterr().out
    assert is_safe(text), text
    return text


def test_a_run_and_its_results_print_names_as_texts(folder, capsys):
    flags = [f"--{tool}" for tool in TOOLS]
    text = printed(folder, "run", *flags, "--time-with-modules", "--output-dir", "results", "-v", "train.py")
    assert "made 8 nan" in text and "\\n" + FORGED in text
    folders = sorted((folder / "results").iterdir())
    assert len(folders) == len(TOOLS)
    texts = [shown(capsys, "show", place) for place in folders]
    assert sum("2028ü" in text for text in texts) >= 3
    assert "2028ü" in shown(capsys, "report", "--text", "--lines", "-1", folder / "results")
    for command in ("blackbox", "show"):
        shown(capsys, command, next((folder / "results").glob("*blackbox*")))


def test_two_runs_print_names_as_texts(folder, capsys):
    printed(folder, "run", "--record", "a", "--level", "aten", "train.py", fault="")
    printed(folder, "run", "--record", "b", "--level", "aten", "train.py")
    assert "\\n" + FORGED in shown(capsys, "compare", folder / "a", folder / "b")
    shown(capsys, "show", folder / "a")
    printed(folder, "one-iter", "save", "iteration", "train.py", fault="")
    assert "forged" in printed(folder, "one-iter", "compare", "iteration", "train.py")


def test_a_terminal_of_ascii_gets_numbers(folder):
    (folder / "ü").mkdir()
    text = printed(folder, "report", "--text", "ü", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "\\xfc: no tool of op_tools wrote anything here" in text


def test_what_is_printable_stays():
    assert printable("torch.nn.функция 数 🙂") == "torch.nn.функция 数 🙂"
    assert printable("\x1b\n\u202e\x9b\u2066\ud800", keep="\n") == "\\x1b\n\\u202e\\x9b\\u2066\\ud800"
