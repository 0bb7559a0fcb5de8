"""The recipes of CONTRIBUTING.md, followed: a command, and a format of another tool. test_add_a_tool.py follows that for a tool."""

import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import launched

import op_tools
from op_tools.formats import read_dump

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


class Package:
    """A copy of the package, in which files are added and lines inserted."""

    def __init__(self, folder):
        self._folder = folder
        shutil.copytree(ROOT / "op_tools", folder / "op_tools", copy_function=os.symlink)

    def add(self, recipe):
        """The file that a recipe names before its text."""
        folder, name, text = re.search(
            rf"A file in `(\S+)`[^:]*as `(\w+\.py)`:\n\n<!-- recipe: {recipe} -->\n```text\n(.*?)```", PAGE, re.DOTALL
        ).groups()
        path = f"{folder}/{name}"
        assert not (ROOT / path).exists()
        (self._folder / path).write_text(text)

    def insert(self, name, path):
        """The line that a recipe gives for a dict."""
        (line,) = re.findall(rf"line in `{name}` of\s`{path}`: `(.*?)`", PAGE)
        text, count = re.subn(
            rf"^({name}\b.* = {{)$", rf"\1\n    {line}", (ROOT / path).read_text(), flags=re.MULTILINE
        )
        assert count == 1
        self.write(path, text)

    def write(self, path, text):
        (self._folder / path).unlink()
        (self._folder / path).write_text(text)

    def run(self, *arguments):
        return launched(*arguments, PYTHONPATH=str(self._folder)).stdout


@pytest.fixture
def package(tmp_path):
    return Package(tmp_path)


def test_a_command(package, tmp_path):
    package.add("command")
    package.insert("COMMANDS", "op_tools/_commands/command_line.py")
    captures = tmp_path / "captures"
    for name in ("torch.neg", "torch.relu"):
        (captures / name / "0").mkdir(parents=True)
        (captures / name / "0" / "meta.json").write_text("{}")
        os.utime(captures / name / "0" / "meta.json", (len(name), len(name)))
    assert package.run("-m", "op_tools", "newest", captures) == f"{captures / 'torch.relu' / '0'}\n"


def test_a_foreign_format(package, tmp_path):
    package.add("format")
    package.insert("_FORMATS", "op_tools/formats/__init__.py")
    path = "op_tools/formats/__init__.py"
    text = (tmp_path / path).read_text()
    package.write(path, text.replace("from . import _msprobe,", "from . import _lines, _msprobe,"))
    (tmp_path / "calls.lines").write_text("torch.neg\ntorch.relu\n")
    with pytest.raises(op_tools.Error, match="no dump of a known format"):
        read_dump(tmp_path / "calls.lines")
    code = "import sys; from op_tools.formats import read_dump; print([call.name for call in read_dump(sys.argv[1]).calls])"
    assert package.run("-c", code, tmp_path / "calls.lines") == "['torch.neg', 'torch.relu']\n"
