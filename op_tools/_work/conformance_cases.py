"""op-tools conformance list, record, export: which cases there are, cases of a program, cases for a device without Python."""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from .._base.core import Error, text_table
from .._base.own_command import op_tools_line, replay_line
from .._commands.command_line import UsageError, visible
from .._conformance import CHOICES, DEFAULT_SOURCES
from .._conformance.case import Case
from .._conformance.export import export_cases
from .._conformance.lists import Filter, FilterError, digest_of, load_cases, write_list
from .._conformance.models import record_program
from .._conformance.shard_run import sampled

_GROUPS: dict[str, Callable[[Case], str]] = {
    "source": lambda case: case.source,
    "op": lambda case: case.op,
    "dtype": lambda case: case.dtype or "(none)",
    "variant": lambda case: case.variant,
    "mutation": lambda case: case.mutation or "(none)",
    "layout": lambda case: case.layout,
}


def _say(text: str) -> None:
    sys.stdout.write(visible(text) + "\n")


def _sources(options: argparse.Namespace) -> tuple[str, ...]:
    """Where cases come from. An option that would have no effect is an error."""
    files = {name: getattr(options, name) for name in ("captures", "mine")}
    named = [name for name, given in files.items() if given]
    if options.list:
        if named:
            raise UsageError(f"--{named[0]}: is no source beside --list, which has its cases")
        return tuple(options.source or CHOICES)
    for name in options.source or ():
        if files.get(name) == []:
            raise UsageError(f"--source {name}: say which files: --{name}")
    if left_out := [name for name in named if options.source and name not in options.source]:
        raise UsageError(f"--{left_out[0]}: is left out by --source {' '.join(options.source)}")
    return tuple(options.source or named or DEFAULT_SOURCES)


def selected_cases(options: argparse.Namespace, lost: list[str] | None = None) -> list[Case]:
    """The cases that the options of add_selection() choose; `lost` as that of load_cases().

    Raises:
        op_tools.Error: there is none, or a file is damaged.
        UsageError: an option is wrong, or options do not go together.
    """
    sources = _sources(options)
    captures, mine = tuple(map(Path, options.captures)), tuple(map(Path, options.mine))
    wanted = Filter(
        fname=options.fname,
        dtypes=frozenset(options.filter_dtype),
        models=frozenset(options.model),
        phase=options.phase,
        nhwc=options.nhwc,
        four_bytes=options.four_bytes,
    )
    was_enabled = gc.isenabled()
    gc.disable()  # it would go through all cases again and again, for as long as it takes to make them
    try:
        cases = list(load_cases(options.list, sources=sources, filter=wanted, captures=captures, mine=mine, lost=lost))
        gc.freeze()
    except FilterError as error:
        raise UsageError(str(error)) from None
    finally:
        if was_enabled:
            gc.enable()
    if not cases:
        raise Error("no case is left by these options: op-tools conformance list shows all cases")
    return sampled(cases, options.sample) if options.sample else cases


def _counts(cases: Iterable[Case], by: str) -> str:
    counts = Counter(_GROUPS[by](case) for case in cases)
    rows = [[name, str(count)] for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return text_table([(by, False), ("cases", True)], rows, 120)


def list_cases(options: argparse.Namespace) -> int:
    if options.list_models and not (options.list or options.source or options.captures or options.mine):
        options.source = ["models"]
    cases = selected_cases(options)
    if options.list_models:
        counts = Counter(name for case in cases for name in case.models)
        rows = [[name, str(count)] for name, count in sorted(counts.items())]
        _say(text_table([("model", False), ("cases", True)], rows, 120) + f"\n{len(rows)} models")
    elif options.ids:
        _say("\n".join(case.id for case in cases))
    else:
        _say("\n\n".join(_counts(cases, by) for by in options.by))
    if options.write:
        count, digest = write_list(Path(options.write), cases)
    else:
        count, digest = len(cases), digest_of(cases)
    where = f" in {options.write}" if options.write else ""
    _say(f"{count} cases, {len({case.op for case in cases})} functions{where}, SHA-256 {digest}")
    return 0


def record(options: argparse.Namespace) -> int:
    model = options.name or Path(options.script).stem
    cases, which = record_program([options.script, *options.arguments], model)
    calls = sum(case.models[model] for case in cases)
    count, digest = write_list(Path(options.output), cases)
    _say(f"{model}: {count} cases, {calls} calls of {which}, in {options.output}, SHA-256 {digest}")
    _say(f"Next: {op_tools_line('conformance', 'run', '--list', options.output, '--device', 'cpu', '-o', 'result')}")
    return 0


def export(options: argparse.Namespace) -> int:
    done = export_cases(selected_cases(options), Path(options.output), options.format, phase=options.phase)
    sys.stderr.write("".join(f"op-tools: {visible(problem)}\n" for problem in done.problems))
    _say(f"{done.calls} calls in {options.output}")
    _say(f"Next: {replay_line(options.output, '--acc_check')}")
    return 1 if done.problems or not done.calls else 0
