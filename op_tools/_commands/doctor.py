"""op-tools doctor: why is my result empty? Versions, devices, variables and filters of this environment."""

from __future__ import annotations

from .command_line import Commands, add_imports, work


def add(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="why is my result empty: versions, devices, variables, matches of the filters",
        description="Looks at this machine and this environment. Exit status 1 when something is wrong.",
    )
    doctor.add_argument(
        "--as-cuda",
        metavar="DEVICE",
        help="print the meaning of each name of torch.cuda under op-tools run --as-cuda DEVICE",
    )
    add_imports(doctor)
    doctor.set_defaults(run=work("doctor", "run_command"))
