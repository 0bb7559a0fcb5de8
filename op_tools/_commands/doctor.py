"""op-tools doctor: versions, devices, variables, filters."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from .._as_cuda._switch import rules
from .._backends import import_backends, import_from_environment, modules_of
from .._doctor import examine
from ._command_line import Commands, add_imports


def _print_cuda_rules(device: str) -> int:
    found = rules(device)
    for rule in found:
        sys.stdout.write(f"{rule.name:<38} {rule.kind:<10} {rule.reason}".rstrip() + "\n")
    counts = Counter(rule.kind for rule in found)
    sys.stdout.write(
        f"{len(found)} names of torch.cuda: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}\n"
    )
    return 0


def _doctor(options: argparse.Namespace) -> int:
    import_from_environment()
    import_backends(modules_of(options.as_cuda or "", options.imports))
    if options.as_cuda:
        return _print_cuda_rules(options.as_cuda)
    findings = examine()
    sys.stdout.write("\n".join(findings.lines) + "\n")
    return 1 if findings.problems else 0


def add(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="why is my result empty: versions, devices, variables, what the filters match",
        description="Looks at this machine and this environment. Exit status 1 when something is wrong.",
    )
    doctor.add_argument(
        "--as-cuda", metavar="DEVICE", help="print what each name of torch.cuda is under op-tools run --as-cuda DEVICE"
    )
    add_imports(doctor)
    doctor.set_defaults(run=_doctor)
