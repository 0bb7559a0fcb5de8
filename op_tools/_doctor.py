"""Why is my result empty? What a tool would meet in this environment: op-tools doctor."""

from __future__ import annotations

import difflib
import os
import platform
import re
from dataclasses import dataclass, field

import torch

from . import _C
from ._launch import tools_by_flag
from ._names import aten_names, torch_names

# Variables whose names begin like ours and are not filters: exact names, or with an operator's name in front.
_SETTINGS = re.compile(
    r"OP_TOOLS(_(LOG_LEVEL|OUTPUT_DIR|SKIP_CPU|MAX_PENDING_MB|COMPAT|SIM_FAULTS|SIM_LATENCY|VENV|JOBS|BUILD_DIR))?"
    r"|OP_CAPTURE_(FORMAT|MAX_CALLS|MAX_PER_SIGNATURE)|OP_TIME_MEASURE_(MODE|MAX_CALLS)"
    r"|OP_FALLBACK_ON_MISSING|DIPU_FORCE_FALLBACK_OPS_LIST|OP_AUTOCOMPARE_METHOD"
    r"|(.+_)?AUTOCOMPARE_ERROR_TOLERANCE(_(FLOAT16|BFLOAT16|FLOAT32|FLOAT64))?|(.+_)?OP_DTYPE_CAST_DICT"
)
_FILTER = re.compile(r"(OP_[A-Z_]+?)((_DISABLE)?_LIST|_MODULES?)")


@dataclass
class Findings:
    """What was found, line by line."""

    lines: list[str] = field(default_factory=list)
    problems: int = 0

    def say(self, what: str, text: str) -> None:
        self.lines.append(f"{what:<12} {text}")

    def problem(self, what: str, text: str) -> None:
        self.problems += 1
        self.say(what, f"PROBLEM: {text}")


def _filter_prefixes() -> list[str]:
    """OP_CAPTURE and so on: the beginnings of the tools' filter variables, as the core reads them."""
    return sorted({kind._variables for kind in tools_by_flag().values()} | {"OP_HOOK"})


def _examine_filter(findings: Findings, name: str, text: str, names: dict[str, list[str]]) -> None:
    for level, known in names.items():
        try:
            matched = _C.admitted(known, text, "")
        except _C.Error as error:
            findings.problem(name, str(error).replace("--ops", name, 1))
            return
        findings.say(name, f"matches {len(matched)} of {len(known)} operators at level {level}")
    for item in (item.strip() for item in text.split(",")):
        try:
            if item and not any(_C.admitted(known, item, "") for known in names.values()):
                findings.problem(name, f"'{item}' matches no operator known here, at neither level")
        except _C.Error:
            return  # a comma inside brackets: the whole list was judged above


def _examine_modules(findings: Findings, name: str, text: str) -> None:
    try:
        _C.admits_module("Model", text)
        findings.say(name, f"only calls made in modules {text}: which there are is known when the program runs")
    except _C.Error as error:
        findings.problem(name, str(error).replace("modules=", name, 1))


def _examine_variables(findings: Findings, names: dict[str, list[str]]) -> None:
    filters = [prefix + end for prefix in _filter_prefixes() for end in ("_LIST", "_DISABLE_LIST")]
    in_modules = [prefix + "_MODULES" for prefix in _filter_prefixes()]
    ours = [name for name in os.environ if name.startswith("OP_") or _SETTINGS.fullmatch(name)]
    for name in sorted(ours):
        value = os.environ[name]
        if name in filters:
            _examine_filter(findings, name, value, names)
        elif name in in_modules:
            _examine_modules(findings, name, value)
        elif _SETTINGS.fullmatch(name):
            findings.say(name, value)
        elif _FILTER.fullmatch(name) or name.startswith("OP_TOOLS"):
            near = difflib.get_close_matches(name, [*filters, *in_modules], n=1)
            findings.problem(name, "no tool reads it" + (f"; did you mean {near[0]}?" if near else ""))
    if not ours:
        findings.say("variables", "none is set: the tools see every operator of their level")


def examine() -> Findings:
    """Looks at versions, devices, the interceptor, and the variables that the tools read."""
    findings = Findings()
    findings.say("op_tools", f"{_C.__version__}, built with torch {_C.built_with_torch}")
    findings.say("torch", f"{torch.__version__}, Python {platform.python_version()}")
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        findings.say("device", "no accelerator: everything runs on the CPU")
    else:
        findings.say("device", f"{torch.accelerator.device_count()} x {accelerator.type}")
    names = {"torch": torch_names()}
    findings.say("level torch", f"{len(names['torch'])} functions, called by Python: not autograd, TorchScript, C++")
    try:
        names["aten"] = aten_names(composite=True)
        findings.say("level aten", f"{len(names['aten'])} operators, whoever calls them")
    except _C.Error as error:
        findings.problem("level aten", str(error))
    _examine_variables(findings, names)
    if os.environ.get("OP_TOOLS_SKIP_CPU", "0").lower() in ("1", "true", "on") and accelerator is None:
        findings.problem("OP_TOOLS_SKIP_CPU", "calls on the CPU are passed over, and there is no other device here")
    findings.say("threads", "a tool sees the thread that started it and autograd's work for it;")
    findings.say("", "for other threads: level aten with all_threads=True, or a scope in each")
    findings.say("steps", "steps= counts calls of step(); under op-tools run the optimizer's steps")
    return findings
