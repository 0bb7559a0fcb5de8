"""Capture and replay over all of torch's operators: captured calls are exact, and run again without Python.

Captures the calls of torch's test database (samples as in op_db.py) at both levels, replays them with the C++ program
and compares bit for bit; captured gradients are compared with those of torch.autograd.grad in a run without op_tools.
Writes docs/coverage.md: every operator that is not replayed bit for bit, with the reason.

    replay_op_db.py [--level torch aten] [--samples 3] [--ops REGEX] [--jobs 2] [--resume]

Exit status 1 when a gradient differs, a replay disagrees without a known reason, or less than 95% replay bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _op_database import Builder, Call, facts, operators, tensors
from _program import parser_over_operators
from _workers import Progress
from op_db import RESULTS, start

import op_tools
from op_tools._conformance.workers import work_through

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "run_op_from_data"
GROUP = 8  # operators that a run of the program replays: its start costs more than their calls
NOT_SAVED = "an input could not be saved when the call was captured"  # a module, an options object: meta.json says so
OUTCOMES = ("bit for bit", "within tolerance", "not judged", "Python only", "could not run", "differs")
# Does not give the same twice in torch itself; found by op_db.py, which runs everything several times without a tool.
UNSTABLE = {"linalg.lstsq": "torch's own result differs from run to run (driver gelsy)"}


def calls_of(builder: Builder) -> list[Call]:
    return [call for call in builder.build() if not call.name.startswith("error") and "empty_out" not in call.name]


def run_all(calls: list[Call], between: Any = lambda: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls:
            call.run()
            between()


def read_container(path: Path) -> dict[str, dict[str, Any]]:
    """meta.json by the folder of the call, as the replay program names it, and the gradients that were captured."""
    facts_by_folder = {}
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        for name in names:
            if name.endswith("/meta.json"):
                meta = json.loads(archive.read(name))
                folder = name.removesuffix("/meta.json")
                if f"{folder}/grad_inputs.pth" in names:
                    with archive.open(f"{folder}/grad_inputs.pth") as file:
                        meta["gradients"] = torch.load(file, weights_only=True)["args"]
                facts_by_folder[f"{path}!{folder}"] = meta
    return facts_by_folder


def gradient_outcome(call: Call, metas: list[dict[str, Any]]) -> str:
    """Compares the gradients of a call made without op_tools with those captured of the same call."""
    if not any(gradient is not None for gradient in call.gradients):
        return "none"
    recorded = [meta for meta in metas if meta["gradients"] is not None]
    inputs = tensors(call.inputs)
    if len(recorded) != 1 or len(recorded[0]["gradients"]) != len(inputs):
        return "several calls"
    captured_gradients = iter(call.gradients)
    expected = [next(captured_gradients) if tensor.requires_grad else None for tensor in inputs]
    bits = [
        [None if gradient is None else str(facts(gradient)["bits"]) for gradient in gradients]
        for gradients in (expected, recorded[0]["gradients"])
    ]
    # A sample may name the function's arguments in another order: where, embedding.
    if bits[0] != bits[1] and sorted(map(str, bits[0])) != sorted(map(str, bits[1])):
        return "differs"
    return "equal"


def outcome(calls: list[dict[str, Any]]) -> tuple[str, str]:
    """The outcome of the captured calls of a sample, and why."""
    if any(call["status"] == "differs" for call in calls):
        bad = next(call for call in calls if call["status"] == "differs")
        return "differs", f"{bad['name']}: {json.dumps(bad.get('checks', ''))[:200]}"
    for call in calls:
        if call["status"] == "could not run":
            only = "Python" in call["reason"] or "there is no operator" in call["reason"]  # registered by Python code
            kind = "Python only" if only else "could not run"
            return kind, f"{call['name']}: {call['reason']}"
    agreed = [call for call in calls if call["status"] == "agrees"]
    if not agreed:
        notes = {check.get("reason", "") for call in calls for check in call.get("checks", [])}
        return "not judged", "; ".join(sorted(filter(None, notes))) or "nothing is returned"
    if all(call["bit_equal"] for call in agreed):
        return "bit for bit", ""
    return "within tolerance", next(call["name"] for call in agreed if not call["bit_equal"])


@dataclass
class Captured:
    """An operator's calls at a level: as they were made without op_tools, under it, and the written files."""

    op: str
    level: str
    plain: list[Call]
    calls: list[Call]
    container: Path


def capture(name: str, levels: list[str], samples: int, folder: Path) -> list[Captured]:
    builder = Builder(name, samples)
    plain = calls_of(builder)
    run_all(plain)
    captured_levels = []
    for level in levels:
        tool = op_tools.OpCapture(level=level, output_dir=str(folder / level / name), format="container")
        calls = calls_of(builder)
        with tool:
            run_all(calls, tool.step)
        if tool.result().root:
            captured_levels.append(Captured(name, level, plain, calls, Path(tool.result().root) / "calls.zip"))
    return captured_levels


def replay(containers: list[Path], report: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """The program's report on each call, by path; else why there is no report."""
    command = [PROGRAM, *containers, "--acc_check", "-q", "--json", report]
    report.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if not report.exists():
        return {}, f"the replay program ended with status {done.returncode}: {done.stderr[-200:]}"
    return {call["path"]: call for call in json.loads(report.read_text())["calls"]}, ""


def work(item: tuple[list[str], list[str], int]) -> list[dict[str, Any]]:
    """A few operators: {"op", "level", "sample", "outcome", "why", "gradients"} for each sample that was captured."""
    names, levels, samples = item
    folder = Path(tempfile.mkdtemp(prefix="replay_op_db-"))
    try:
        captured = [one for name in names for one in capture(name, levels, samples, folder)]
        if not captured:
            return []
        report = folder / "report.json"
        replayed, trouble = replay([one.container for one in captured], report)
        rows = []
        for of_level in captured:
            if trouble:  # each alone: the others are not to suffer
                replayed, alone = replay([of_level.container], report)
                if alone:
                    rows.append(
                        {
                            "op": of_level.op,
                            "level": of_level.level,
                            "sample": "all",
                            "outcome": "could not run",
                            "why": alone,
                        }
                    )
                    continue
            rows += judge(of_level, replayed)
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge(captured: Captured, replayed: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    by_step = defaultdict(list)
    for path, meta in read_container(captured.container).items():
        by_step[meta["step"]].append({"gradients": None, **meta, **replayed[path]})
    rows = []
    for step, (before, call) in enumerate(zip(captured.plain, captured.calls, strict=True)):
        # The weights of the backward pass are ours, not the sample's.
        parts = [one for one in by_step[step] if one["name"] not in ("torch.randn_like", "aten::randn_like")]
        if call.error is not None or not parts:
            continue
        what, why = outcome(parts)
        gradients = gradient_outcome(before, parts) if captured.level == "torch" else "none"
        rows.append(
            {
                "op": captured.op,
                "level": captured.level,
                "sample": call.name,
                "outcome": what,
                "why": why,
                "gradients": gradients,
            }
        )
    return rows


def coverage(rows: list[dict[str, Any]], without: dict[str, str], samples: int) -> str:
    """The text of docs/coverage.md."""
    lines = [
        "# Coverage",
        "",
        f"Written by `./dev prove replay_op_db --samples {samples}` with torch {torch.__version__.split('+')[0]}:",
        f"{len({row['op'] for row in rows} | set(without))} of the {len(operators())} operators of torch's own test database",
        "(op_db), captured at both levels and replayed by the C++ program. A sample is a call (or the few calls that its Python",
        "function makes) with its backward pass: as a function, as a method, in place, with `out=`.",
        "",
        f"| level | operators | samples | {' | '.join(OUTCOMES)} | gradients equal to torch.autograd.grad's |",
        f"|{'---|' * (4 + len(OUTCOMES))}",
    ]
    for level in dict.fromkeys(row["level"] for row in rows):
        mine = [row for row in rows if row["level"] == level]
        counts = Counter(row["outcome"] for row in mine)
        gradients = Counter(row.get("gradients") for row in mine)
        share = 100 * counts["bit for bit"] / len(mine)
        cells = [f"{counts[what]} ({share:.1f}%)" if what == "bit for bit" else str(counts[what]) for what in OUTCOMES]
        compared = gradients["equal"] + gradients["differs"]
        equal = f"{gradients['equal']} of {compared}" if compared else "seen as calls of their own"
        lines.append(f"| {level} | {len({row['op'] for row in mine})} | {len(mine)} | {' | '.join(cells)} | {equal} |")
    lines += [
        "",
        "*Not judged*: the result is uninitialized memory or scratch. *Python only*: no operator of torch's stands behind the",
        "function; `python -m op_tools.run_op_from_data` runs it.",
        "",
        "## Operators with samples that are not replayed bit for bit",
        "",
        "| operator | level | samples | reason |",
        "|---|---|---|---|",
    ]
    left_out: dict[tuple[str, str, str, str], int] = Counter()
    totals = Counter((row["op"], row["level"]) for row in rows)
    for row in rows:
        if row["outcome"] != "bit for bit":
            why = UNSTABLE.get(row["op"], row["why"]) if row["outcome"] != "Python only" else row["why"]
            why = re.sub(r"\s+", " ", why).replace("|", "/")[:160]
            left_out[row["op"], row["level"], row["outcome"], why] += 1
    for (name, level, what, why), count in sorted(left_out.items()):
        lines.append(f"| `{name}` | {level} | {count} of {totals[name, level]} | {what}: {why} |")
    if without:
        lines += ["", "## Operators of which nothing was captured", "", "| operator | reason |", "|---|---|"]
        lines += [f"| `{name}` | {why} |" for name, why in sorted(without.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    command_line = parser_over_operators(__doc__)
    options = command_line.parse_args()

    names = [name for name in operators() if re.search(options.ops, name)]
    log = RESULTS / "replay_op_db.jsonl"
    RESULTS.mkdir(parents=True, exist_ok=True)
    # A row without "sample" says that nothing of the operator was captured.
    rows = [json.loads(line) for line in log.read_text().splitlines()] if options.resume and log.exists() else []
    left = sorted(set(names) - {row["op"] for row in rows}, key=names.index)
    items = [(left[at : at + GROUP], options.level, options.samples) for at in range(0, len(left), GROUP)]
    progress = Progress(len(items), "replay_op_db")
    with log.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        for item, result, trouble in work_through(items, start, work, jobs=options.jobs, seconds=1200):
            rows_of_item = result or []
            if trouble:
                rows_of_item = [
                    {"op": name, "level": "torch", "sample": "all", "outcome": "could not run", "why": trouble}
                    for name in item[0]
                ]
            rows_of_item += [{"op": name} for name in set(item[0]) - {row["op"] for row in rows_of_item}]
            rows += rows_of_item
            file.writelines(json.dumps(row) + "\n" for row in rows_of_item)
            file.flush()
            progress.step(item[0][-1])
    without = {row["op"]: "no sample of these dtypes runs on the CPU" for row in rows if "sample" not in row}
    rows = sorted((row for row in rows if "sample" in row), key=lambda row: (row["op"], row["level"]))

    text = coverage(rows, without, options.samples)
    (RESULTS / "coverage.md").write_text(text)
    if not options.ops and len(options.level) == 2:
        (ROOT / "docs" / "coverage.md").write_text(text)
    print(text)
    same = sum(row["outcome"] == "bit for bit" for row in rows)
    bad = [
        row
        for row in rows
        if row.get("gradients") == "differs"
        or (
            row["outcome"] in ("differs", "could not run") and row["op"] not in UNSTABLE and NOT_SAVED not in row["why"]
        )
    ]
    for row in bad:
        print(
            f"{row['op']} {row['level']} {row['sample']}: {row['outcome']}, gradients {row.get('gradients')}: {row['why']}"
        )
    print(f"{same} of {len(rows)} samples replayed bit for bit")
    return 1 if bad or same < 0.95 * len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
