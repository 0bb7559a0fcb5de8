"""op-tools blackbox: the files of OpBlackBox."""

from __future__ import annotations

from .command_line import Commands, add_allow_unseen, work


def add(commands: Commands) -> None:
    box = commands.add_parser(
        "blackbox",
        help="which call killed a process, or hangs: the files of OpBlackBox",
        description="Shows the last calls of each process, and first the call that had begun and not ended. Works while the "
        "program runs, too. Exit status: 0 it is known where each process is, or ended; 2 not judged (docs/verdicts.md says "
        "when); 64 wrong usage.",
        epilog="op-tools run --blackbox train.py; op-tools blackbox op_blackbox_result",
    )
    box.add_argument("path", help="a file *.blackbox, or a folder in which such files are")
    box.add_argument("--last", type=int, default=10, metavar="N", help="the last N calls of each process; 0: all (10)")
    add_allow_unseen(box)
    box.add_argument("--json", action="store_true", help="a line of JSON per process")
    box.add_argument("--follow", action="store_true", help="again every second, while any of the processes lives")
    box.add_argument(
        "--save", metavar="FOLDER", help="write the calls whose inputs are in the file there, for run_op_from_data"
    )
    box.add_argument(
        "--stacks", action="store_true", help="ask the processes for copies of their files and their stacks"
    )
    box.set_defaults(run=work("blackbox", "run_command", reads=("path",)))
