"""op-tools doctor: why is my result empty? Versions, devices, variables and filters of this environment."""

from __future__ import annotations

import argparse
import difflib
import os
import platform
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, field

import torch

from .._as_cuda.switch import rules
from .._base import core
from .._base.core import Error, __version__, admits_module, admitted, built_with_torch, reports_memory
from .._tools.launch import refused_variables
from .._torch.backends import VARIABLE, import_backends, modules_of, not_imported
from .._torch.operator_names import aten_names, near_names, tell_core, torch_names
from .._torch.torch_limits import limits_of


@dataclass
class Findings:
    """The findings, line by line."""

    lines: list[str] = field(default_factory=list)
    problems: int = 0
    with_problem: set[str] = field(default_factory=set)

    def say(self, what: str, text: str) -> None:
        self.lines.append(f"{what:<12} {text}")

    def problem(self, what: str, text: str) -> None:
        self.problems += 1
        self.with_problem.add(what)
        self.say(what, f"PROBLEM: {text}")


@dataclass(frozen=True)
class Variables:
    """The variables that something of ours reads, as the core lists them."""

    known: frozenset[str]
    per_operator: tuple[str, ...]  # also with an operator's name in front

    @classmethod
    def of_core(cls) -> Variables:
        """Asks the core."""
        listed = core.variables()
        return cls(
            frozenset(one["name"] for one in listed), tuple(one["name"] for one in listed if one["per_operator"])
        )

    def has(self, name: str) -> bool:
        """Something reads it."""
        return name in self.known or any(name.endswith(f"_{one}") for one in self.per_operator)

    def near(self, name: str) -> str | None:
        """The variable that was probably meant."""
        near = difflib.get_close_matches(name, sorted(self.known), n=1, cutoff=0.85)
        return near[0] if near else None


def _examine_filter(findings: Findings, name: str, text: str, names: dict[str, list[str]]) -> None:
    for level, known in names.items():
        try:
            matched = admitted(known, text, "")
        except Error as error:
            findings.problem(name, str(error).replace("--ops", name, 1))
            return
        findings.say(name, f"matches {len(matched)} of {len(known)} operators at level {level}")
    for item in (item.strip() for item in text.split(",")):
        try:
            if item and not any(admitted(known, item, "") for known in names.values()):
                near = near_names(item, [one for known in names.values() for one in known])
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                findings.problem(name, f"'{item}' matches no operator known here, at neither level{hint}")
        except Error:
            return  # a comma inside brackets: the whole list was judged above


def _examine_modules(findings: Findings, name: str, text: str) -> None:
    try:
        admits_module("Model", text)
        findings.say(name, f"only calls made in modules {text}: which there are is known when the program runs")
    except Error as error:
        findings.problem(name, str(error).replace("modules=", name, 1))


def _examine_variables(findings: Findings, names: dict[str, list[str]]) -> None:
    variables = Variables.of_core()
    unread = core.unread_variables()
    ours = False
    for name in sorted(os.environ):
        value = os.environ[name]
        if not variables.has(name):
            near = variables.near(name)
            if near or name in unread:
                ours = True
                findings.problem(name, "no tool reads it" + (f"; did you mean {near}?" if near else ""))
            continue
        ours = True
        if name.endswith("_LIST") and name.startswith("OP_"):
            _examine_filter(findings, name, value, names)
        elif name.endswith("_MODULES") and not name.endswith("_WITH_MODULES"):
            _examine_modules(findings, name, value)
        else:
            findings.say(name, value)
    for name, _, why in (text.partition(": ") for text in refused_variables()):
        if name not in findings.with_problem:  # of a filter, which was said with the names near
            findings.problem(name, why)
    if not ours:
        findings.say("variables", "none is set: the tools see every operator of their level")


def _examine_memory(findings: Findings, device: str) -> None:
    """How OpMemoryCheck knows the device's memory."""
    try:
        told = reports_memory(device)
    except RuntimeError as error:
        findings.problem("memory", f"nothing can be allocated on {device}: {error}")
        return
    if told:
        findings.say("memory", f"the allocator of {device} reports its allocations: OpMemoryCheck sees them")
    else:
        findings.say(
            "memory", f"the allocator of {device} reports nothing: OpMemoryCheck sees tensors only that operators"
        )
        findings.say("", "are given or return, not a kernel's own memory")


def examine() -> Findings:
    """Looks at versions, devices, the interceptor, and the variables that the tools read."""
    tell_core()
    findings = Findings()
    findings.say("op_tools", f"{__version__}, built with torch {built_with_torch}")
    findings.say("torch", f"{torch.__version__}, Python {platform.python_version()}")
    for limit in limits_of(str(torch.__version__)):
        since = ".".join(map(str, limit.since))
        first, *others = textwrap.wrap(f"before {since}: {limit.of} {limit.text}", 65)
        findings.say("", first)
        for line in others:
            findings.say("", f"  {line}")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        findings.say("device", "no accelerator: everything runs on the CPU")
        for package in not_imported():
            findings.say("", f"{package} is installed and not imported: --import {package}, {VARIABLE}={package}")
    else:
        findings.say("device", f"{torch.accelerator.device_count()} x {accelerator.type}")
        _examine_memory(findings, accelerator.type)
    names = {"torch": torch_names()}
    findings.say("level torch", f"{len(names['torch'])} functions, called by Python: not autograd, TorchScript, C++")
    try:
        names["aten"] = aten_names(composite=True)
        findings.say("level aten", f"{len(names['aten'])} operators, from any caller")
    except Error as error:
        findings.problem("level aten", str(error))
    _examine_variables(findings, names)
    if os.environ.get("OP_TOOLS_SKIP_CPU", "0").lower() in ("1", "true", "on") and accelerator is None:
        findings.problem("OP_TOOLS_SKIP_CPU", "calls on the CPU are passed over, and there is no other device here")
    findings.say("threads", "a tool sees the thread that started it and autograd's work for it;")
    findings.say("", "for other threads: level aten with all_threads=True, or a scope in each")
    findings.say("steps", "steps= counts calls of step(); under op-tools run the optimizer's steps")
    return findings


def _print_cuda_rules(device: str) -> int:
    listed = rules(device)
    for rule in listed:
        sys.stdout.write(f"{rule.name:<38} {rule.kind:<10} {rule.reason}".rstrip() + "\n")
    counts = Counter(rule.kind for rule in listed)
    sys.stdout.write(
        f"{len(listed)} names of torch.cuda: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}\n"
    )
    return 0


def run_command(options: argparse.Namespace) -> int:
    import_backends(modules_of(options.as_cuda or "", options.imports))
    if options.as_cuda:
        return _print_cuda_rules(options.as_cuda)
    findings = examine()
    sys.stdout.write("\n".join(findings.lines) + "\n")
    return 1 if findings.problems else 0
