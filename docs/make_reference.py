"""Makes the reference of the Python package from its docstrings, as HTML, and the man page of op-tools from its parser.

./dev docs                                       (build/docs/index.html, build/docs/op-tools.1)
python docs/make_reference.py [FOLDER]           (needs pdoc and argparse-manpage; op_tools must be importable)
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pdoc
import pdoc.render
from argparse_manpage.manpage import Manpage

from op_tools._commands.command_line import parser_of

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["op_tools", "op_tools.sim_device", "op_tools.run_op_from_data", "op_tools.integrations", "op_tools.formats"]
# Frameworks that the callbacks derive from, and the names that they take from them.
FRAMEWORKS = {
    "lightning.pytorch": ["Callback", "Trainer"],
    "transformers": ["TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments"],
}


def stand_in_for_frameworks() -> None:
    """Gives a framework that is not installed empty classes, so that the pages do not depend on installed packages."""
    for name, classes in FRAMEWORKS.items():
        package = name.partition(".")[0]
        if importlib.util.find_spec(package):
            continue
        module = types.ModuleType(name)
        for class_name in classes:
            setattr(module, class_name, type(class_name, (), {"__module__": name}))
        parent = sys.modules.setdefault(package, module if package == name else types.ModuleType(package))
        sys.modules[name] = module
        if parent is not module:
            setattr(parent, name.partition(".")[2], module)


def man_page() -> str:
    """The page of all commands, in section 1."""
    parser = parser_of()
    parser.man_short_description = "look at every operator that a PyTorch program runs"
    page = Manpage(parser, format="single-commands-section")
    page.manual = "op_tools"
    return str(page)


def main() -> int:
    stand_in_for_frameworks()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    pdoc.render.configure(docformat="google", show_source=False, footer_text="op_tools")
    pdoc.pdoc(*MODULES, output_directory=folder)
    (folder / "op-tools.1").write_text(man_page(), encoding="utf-8")
    sys.stdout.write(f"{folder / 'index.html'}\n{folder / 'op-tools.1'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
