"""Transparency over all of torch's operators: a call gives the same with a tool on as without it.

For every operator of torch's test database: float32 samples with gradients, a sample of bfloat16, complex64, int64
and bool, as a function, as a method, in place, with out= (fitting, strided, empty), and the operator's error inputs.
Compared are results, gradients, strides, aliasing, versions, the random state and the errors' texts, bit for bit.

    op_db.py [--tool NAME ...] [--level torch aten] [--samples 3] [--ops REGEX] [--jobs 2] [--resume] [--under-mode]

A tool is noop (a hook that does nothing), narrow (a hook whose filter leaves nearly everything out), looking (a hook that reads
everything, gradients too), any tool of op_tools, or
together: all of them at once, nested. OpDtypeCast is given a cast that fits no sample. `asked` counts the
calls that the tools were handed. --under-mode makes each call under a dispatch mode (torch's FlopCounterMode).
Exit status 1 when a tool changed something.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from _op_database import Builder, different, operators
from _program import parser_over_operators
from _workers import Progress
from torch.utils.flop_counter import FlopCounterMode

import op_tools
from op_tools._conformance.workers import work_through
from op_tools._tools.tool_classes import tool_classes

RESULTS = Path(__file__).resolve().parents[2] / "build" / "proofs"
REPEATS = 8  # of a call without a tool, to find out whether torch itself gives the same each time


class Looking(op_tools.Hook):
    """Reads all that there is."""

    gradients = True

    def before(self, call: Any) -> object:
        return call.args, call.kwargs

    def after(self, call: Any, state: object) -> None:
        assert state is not None or call.phase == "backward"
        call.result  # noqa: B018


# No sample is of float8: a cast that fits nothing has to leave the program as it is.
ARGUMENTS = {"OpDtypeCast": {"cast": {torch.float8_e5m2: torch.float32}}}


def tool_names() -> list[str]:
    """The hooks, and every tool of op_tools."""
    return ["noop", "narrow", "looking", *tool_classes(), "together"]


def make_tools(name: str, level: str, folder: str) -> list[Any]:
    """The tools that a name means."""
    if name == "together":
        return [tool for one in tool_names() if one != name for tool in make_tools(one, level, folder)]
    if name == "narrow":
        only = "torch.nn.functional.linear, aten::addmm"
        return [op_tools.HookScope(op_tools.Hook(), level=level, ops=only, output_dir=folder)]
    if name in ("noop", "looking"):
        hook = Looking() if name == "looking" else op_tools.Hook()
        return [op_tools.HookScope(hook, level=level, output_dir=folder)]
    return [getattr(op_tools, name)(level=level, output_dir=folder, **ARGUMENTS.get(name, {}))]


class DoesNothing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        # A test of torch's whose setUp() does not call torch's takes all modes off the stack in tearDown(), as leaked.
        if self in torch.overrides._get_current_function_mode_stack():
            super().__exit__(*error)


class Calls(Protocol):
    """The calls of check(): calls that can be made again and again from the same inputs."""

    name: str
    left_out: dict[str, str]  # samples that could not be made, and why

    def build(self) -> list[Any]:
        """Fresh calls; each has a `name` and a method `run`."""

    def seen(self, call: Any) -> dict[str, Any]:
        """All that a program could see of a call that ran."""


def observe(builder: Calls, *scopes: Any) -> dict[str, dict[str, Any]]:
    """Makes all calls inside the scopes; their results, by call."""
    calls = builder.build()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for scope in scopes:
            stack.enter_context(scope)
        for call in calls:
            call.run()
    return {call.name: builder.seen(call) for call in calls}


def trouble_of(tool: Any) -> str:
    """Failures inside a tool although the program went on."""
    if tool._scope is not None and tool._scope.hook_failures:
        return f"{type(tool).__name__} failed and went off"
    result = tool.result() if hasattr(tool, "result") else None
    return getattr(result, "failure", "") or ""


def check(
    builder: Calls, tools: list[tuple[str, str]], look: Callable[[Any, str], str] = lambda tool, folder: ""
) -> list[dict[str, Any]]:
    """An operator under each of the tools (name, level). `look` names the faults of a tool's result in its folder."""
    plain = observe(builder)
    unstable: dict[str, set[str]] = {}  # differences from run to run in torch alone, by call

    def learn_unstable(times: int) -> None:
        for _ in range(times):
            again = observe(builder)
            for call, facts in plain.items():
                unstable.setdefault(call, set()).update(different(facts, again[call]))

    rows = []
    for tool_name, level in tools:
        folder = tempfile.mkdtemp(prefix="op_db-")
        began = time.process_time()
        try:
            entered = make_tools(tool_name, level, folder)
            with_tool = observe(builder, *entered)
            failed = "; ".join(
                filter(None, (text for tool in entered for text in (trouble_of(tool), look(tool, folder))))
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        changed = {call: different(facts, with_tool[call]) for call, facts in plain.items()}
        changed = {call: change for call, change in changed.items() if change}
        if changed and not unstable:
            learn_unstable(REPEATS)
        row: dict[str, Any] = {
            "op": builder.name,
            "tool": tool_name,
            "level": level,
            "calls": len(plain),
            "asked": sum(tool._scope.calls_seen for tool in entered),
            "seconds": round(time.process_time() - began, 3),
            "changed": {},
            "unstable": 0,
            "as under any mode": 0,
            "failed": failed,
            "left out": builder.left_out,
        }
        under_mode: dict[str, dict[str, Any]] = {}
        for call, change in changed.items():
            change = {key: text for key, text in change.items() if key not in unstable[call]}
            if not change:
                row["unstable"] += 1
                continue
            if level == "torch":
                under_mode = under_mode or observe(builder, DoesNothing())
                if not different(under_mode[call], with_tool[call]):
                    row["as under any mode"] += 1
                    continue
            row["changed"][call] = change
        rows.append(row)
    return rows


def start(threads: int = 1) -> None:
    """A worker's first work."""
    os.environ.update(OP_TOOLS_LOG_LEVEL="error", OP_CAPTURE_FORMAT="container")
    op_tools._C.reload_log_level()
    torch.set_num_threads(threads)
    operators()


class UnderMode:
    """Calls that are made under a dispatch mode."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.name, self.left_out, self.seen = calls.name, calls.left_out, calls.seen

    def build(self) -> list[Any]:
        calls = self._calls.build()
        for call in calls:
            call.run = functools.partial(self._run, call.run)
        return calls

    @staticmethod
    def _run(run: Callable[[], None]) -> None:
        with FlopCounterMode(display=False):
            run()


def work(item: tuple[str, list[tuple[str, str]], int], *, under_mode: bool = False) -> list[dict[str, Any]]:
    name, tools, samples = item
    builder = Builder(name, samples)
    return check(UnderMode(builder) if under_mode else builder, tools)


def arguments(text: str | None, *, has_modes: bool = False) -> Namespace:
    command_line = parser_over_operators(text)
    command_line.add_argument("--tool", nargs="+", default=tool_names(), choices=tool_names(), metavar="NAME")
    if has_modes:
        command_line.add_argument("--under-mode", action="store_true", help="make the calls under a FlopCounterMode")
    return command_line.parse_args()


def prove(
    what: str,
    names: list[str],
    options: Namespace,
    work: Callable[[Any], list[dict[str, Any]]],
    start: Callable[[], None],
) -> int:
    """Runs work((name, tools, samples)) for all names that the options ask for, and reports."""
    names = [name for name in names if re.search(options.ops, name)]
    tools = [(tool, level) for tool in options.tool for level in options.level]
    RESULTS.mkdir(parents=True, exist_ok=True)
    log = RESULTS / f"{what}.jsonl"
    rows: list[dict[str, Any]] = []
    if options.resume and log.exists():
        rows = [row for line in log.read_text().splitlines() if "crashed" not in (row := json.loads(line))]
    done = {(row["op"], row["tool"], row["level"]) for row in rows}
    items = []
    for name in names:
        left = [pair for pair in tools if (name, *pair) not in done]
        if left:
            items.append((name, left, options.samples))

    progress = Progress(len(items), what)
    with log.open("w") as file:
        file.writelines(json.dumps(row, default=str) + "\n" for row in rows)
        for item, result, trouble in work_through(items, start, work, jobs=options.jobs, seconds=1200):
            for row in result or [{"op": item[0], "tool": "?", "level": "?", "calls": 0, "crashed": trouble}]:
                rows.append(row)
                file.write(json.dumps(row, default=str) + "\n")
            file.flush()
            progress.step(item[0])
    return report([row for row in rows if row["op"] in names], log)


def report(rows: list[dict[str, Any]], log: Path) -> int:
    print(
        f"{'tool':<16} {'level':<6} {'ops':>5} {'calls':>7} {'asked':>8} {'changed':>8} {'unstable':>9} {'as any mode':>12} {'failed':>7}"
    )
    for tool, level in dict.fromkeys((row["tool"], row["level"]) for row in rows):
        mine = [row for row in rows if (row["tool"], row["level"]) == (tool, level)]
        numbers = [
            sum(row["calls"] for row in mine),
            sum(row.get("asked", 0) for row in mine),
            sum(len(row.get("changed", {})) for row in mine),
            sum(row.get("unstable", 0) for row in mine),
            sum(row.get("as under any mode", 0) for row in mine),
            sum(bool(row.get("failed") or row.get("crashed")) for row in mine),
        ]
        print(
            f"{tool:<16} {level:<6} {len(mine):>5} "
            + " ".join(f"{n:>{w}}" for n, w in zip(numbers, (7, 8, 8, 9, 12, 7), strict=True))
        )
    bad = [row for row in rows if row.get("changed") or row.get("failed") or row.get("crashed")]
    for row in bad:
        where = f"{row['op']} ({row['tool']}, {row['level']})"
        for trouble in filter(None, [row.get("failed"), row.get("crashed")]):
            print(f"{where}: {trouble}")
        for call, change in row.get("changed", {}).items():
            print(f"{where} {call}: " + "; ".join(f"{key}: {text}" for key, text in list(change.items())[:3])[:400])
    print(f"{log}: {'no difference' if not bad else f'{len(bad)} operators with findings'}")
    return 1 if bad or not rows else 0


def main() -> int:
    options = arguments(__doc__, has_modes=True)
    what = "op_db_under_mode" if options.under_mode else "op_db"
    return prove(what, list(operators()), options, functools.partial(work, under_mode=options.under_mode), start)


if __name__ == "__main__":
    sys.exit(main())
