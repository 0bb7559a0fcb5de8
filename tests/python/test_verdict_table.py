"""Calls that a command did not look at are never all right: each command that gives a verdict, each way not to look.

The table of docs/verdicts.md is made of TABLE: ``python tests/python/test_verdict_table.py`` writes it there.
"""

import contextlib
import copy
import json
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sample_cases import MM, case, tensor
from unseen_work import in_fork, in_unfollowed_thread

import op_tools
import op_tools.sim_device  # makes the device "sim"
from op_tools.__main__ import main
from op_tools._base.verdict import status_of
from op_tools._conformance import shard_run
from op_tools._diagnose.conclusion import finish
from op_tools._diagnose.program import Program
from op_tools._diagnose.questions import QUESTIONS
from op_tools._diagnose.runs import Ended, Run
from op_tools._diagnose.session import Plan, Session
from op_tools._tools.launch import status_of_tools

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verdicts.md"
BEGIN, END = "<!-- table: not looking -->\n", "<!-- end -->"

KINDS = {
    "thread": "operators ran on the device in a thread that no tool follows",
    "process": "the program started a process to compute, without a tool",
    "rank": "a rank has no file",
    "compiled": "a graph of torch.compile ran, with `--compiled as-is`",
    "host": "no tensor was on the accelerator that is there",
    "no values": "most results have no values that anything can judge: random, uninitialized, not read",
    "off": "the tool was off before the end, or a file is cut off or gone",
    "empty": "no operator ran, or nothing was recorded",
    "full": "calls, names or rows had no room",
}


@dataclass(frozen=True)
class Never:
    """A cell that cannot be."""

    why: str


# --- Programs that do not let a tool look -----------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        # Sums of fourths are exact in any order: the CPU's own products have other bits in other batches.
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_((torch.arange(float(parameter.numel())) % 5 - 2).view(parameter.shape) / 4)

    def forward(self, x):
        return torch.tanh(self.fc(x))


NETS = {"cpu": Net()}
NETS["sim"] = copy.deepcopy(NETS["cpu"]).to("sim")
INPUTS = {device: torch.ones(2, 4, device=device) for device in NETS}


def work(device="sim"):
    NETS[device].zero_grad()
    for _ in range(3):
        NETS[device](INPUTS[device]).sum().backward()


def nothing(*_):
    pass


def thread():
    work()
    in_unfollowed_thread(work)


def process():
    work()
    in_fork(lambda: torch.ones(3) + 1)


def compiled():
    work()
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2 + 1, backend=opaque, fullgraph=True)(torch.ones(3))


def opaque(graph, _):
    """A compiler into which no tool looks."""
    return lambda *inputs: graph(*inputs)


def host():
    work("cpu")


def no_values():
    NETS["sim"](INPUTS["sim"])
    for size in range(3, 9):
        torch.empty(size, device="sim")


PROGRAMS = dict.fromkeys([*KINDS, "all seen"], work) | {
    "thread": thread,
    "process": process,
    "compiled": compiled,
    "host": host,
    "no values": no_values,
    "empty": nothing,
}

# --- Commands: the exit status after a way not to look ------------------------------------------------------------------


def tool(make):
    """`op-tools run --TOOL --fail-on-wrong`."""

    def command(kind, patch):
        with make(PROGRAMS[kind]) as tool:
            PROGRAMS[kind]()
        if kind == "off":  # as after a failure in a hook
            for running in getattr(tool, "_tools", [tool]):
                account = running.coverage()
                account.off = True
                patch.setattr(running, "coverage", lambda account=account: account, raising=False)
        return status_of_tools([tool])

    return command


def against(run):
    record("a", work if run is nothing else run)
    return op_tools.OpAgainst("a", output_dir="live")


def shadow(run):
    ops = ".*linear,.*empty"
    with op_tools.OpCapture(output_dir="captured", ops=ops) as capture:
        (work if run is nothing else run)()
    return op_tools.OpShadow(capture.result().root, output_dir="fed", ops=ops)


def record(folder, run, rank=0, world_size=1, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world_size))
        with op_tools.OpRecord(output_dir=folder, **options):
            run()


def cut_off(folder, pattern, size):
    file = next(Path(folder).rglob(pattern))
    file.write_bytes(file.read_bytes()[:size])


def compare(*arguments, ranks=1, others=1, **options):
    """A command that compares the recording `a` with those of `others` runs of `ranks` processes."""

    def command(kind, _):
        empty = {"ops": "no_such"} if kind == "empty" else {}
        settings = {**options, **empty, "statistics": kind != "no values"}
        run = work if kind == "no values" else PROGRAMS[kind]
        folders = ["a", *(f"b{number}" for number in range(others))]
        for folder in folders:
            count = ranks if folder != "a" else 1
            lost = kind == "rank" and ranks + others > 2 and folder == folders[-1]
            for rank in range(count):
                record(folder, run, rank, world_size=count + lost, **settings)
        if kind == "rank" and ranks + others == 2:
            record("a", work, 1, **settings)
        if kind in ("off", "full"):  # a disk that is full cuts the file off, too
            cut_off(folders[-1], "*.oprec", -40)
        return main([*arguments, *folders])

    return command


def confirm(kind, _):
    for folder in ("a", "b"):
        with op_tools.OpCapture(output_dir=folder, level="aten", format="folders"):
            PROGRAMS[kind]()
        Path(folder).mkdir(exist_ok=True)
    if kind == "off":
        cut_off("b", "input.pth", 100)
    return main(["compare", "--confirm", "a", "b"])


def bisect(kind, _):
    """A program that is wrong wherever its operators run: in its data, or in calls that were not looked at."""

    def run(_):
        PROGRAMS[kind]()
        yield 1.0

    result = op_tools.bisect(run, [9.0], suspects="none")
    sys.stdout.write(result.table())
    return result.status


def capture_one(run):
    with op_tools.OpCapture(output_dir="captured", format="folders") as capture:
        run()
    return Path(capture.result().root)


def repro(kind, _):
    root = capture_one(PROGRAMS[kind])
    name = {"no values": "empty", "all seen": "linear"}.get(kind, "nothing")
    folder = next(root.glob(f"*{name}*/*"), root / name)
    return main(["repro", str(folder), "--device", "cpu"])


def replay(kind, _):
    from op_tools.run_op_from_data import main as run_op_from_data

    capture_one(PROGRAMS[kind])
    if kind == "off":
        cut_off("captured", "input.pth", 100)
    if kind == "empty":
        Path("captured").mkdir(exist_ok=True)
    if kind == "rank":
        status = run_op_from_data(["captured", "--acc_check", "--shard", "0/2", "--json", "part.json"])
        assert status == 0
        return run_op_from_data(["--merge", "part.json"])
    return run_op_from_data(["captured", "--acc_check"])


class SelfTest:
    """Of the suite, in place of the test that runs in a process of its own."""

    said = ""

    def outcome(self):
        return self.said


def conformance(stage):
    """A stage over a result, or the run that makes it."""

    def command(kind, patch):
        def work_through(items, start, work_on, **_):
            start()
            for item in items:
                yield item, work_on(item), None

        patch.setattr(shard_run, "work_through", work_through)
        patch.setattr("op_tools._work.conformance.prepare", lambda **_: None)
        patch.setattr("op_tools._work.conformance.SelfTest", SelfTest)
        patch.setattr(SelfTest, "said", "it is not finished" if kind == "off" else "")
        undefined = [case("torch.empty_like", tensor(size)) for size in (3, 4, 5)]
        cases = [MM, case("torch.neg", tensor(3)), *(undefined if kind == "no values" else [])]
        Path("cases.jsonl").write_text("".join(one.to_json() + "\n" for one in cases))
        chosen = ["--fname", "no_such"] if kind == "empty" else ["--shard", "0/2"] if kind == "rank" else []
        making = "gen" if stage == "gen" else "run"
        status = main(["conformance", making, "--device", "sim", "-o", "out", "--list", "cases.jsonl", *chosen])
        return status if stage in ("run", "gen") else main(["conformance", stage, "out"])

    return command


def report_of_two(kind, patch):
    conformance("run")(kind, patch)
    with contextlib.suppress(OSError):
        shutil.copytree("out", "old")
    return main(["conformance", "report", "old", "out"])


# In the header of the file (src/blackbox/blackbox_file.h).
_CLOSED, _LEFT_OUT = 92, 96


def blackbox(kind, _):
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as tool:
        patch.setenv("RANK", "1" if kind == "rank" else "0")
        tool.enter_context(op_tools.OpBlackBox(output_dir="box"))
        PROGRAMS[kind]()
    (file,) = Path("box").rglob("*.blackbox")
    if kind == "off":
        cut_off("box", "*.blackbox", 5000)
    if kind == "full":  # of a process that was killed, whose calls had no place
        data = bytearray(file.read_bytes())
        struct.pack_into("<I", data, _CLOSED, 0)
        struct.pack_into("<Q", data, _LEFT_OUT, 3)
        file.write_bytes(bytes(data))
    return main(["blackbox", "box"])


_TOOLS_OF_DIAGNOSE = {
    "--observe": op_tools.OpObserve,
    "--autocompare": op_tools.OpAutoCompare,
    "--overflow": op_tools.OpOverflowCheck,
    "--blackbox": op_tools.OpBlackBox,
}


def diagnose(kind, patch):
    """Its questions that need no reference and no clock; the program runs in this process, with the tools that they name."""

    def with_tools(session, name, options, _, **__):
        folder = session.folder(name)
        level = "aten" if "aten" in options else "torch"
        with contextlib.ExitStack() as tools:
            for option in [*options, "--blackbox"]:
                if option in _TOOLS_OF_DIAGNOSE:
                    tools.enter_context(_TOOLS_OF_DIAGNOSE[option](output_dir=folder, level=level))
            PROGRAMS[kind]()
        for file in folder.rglob("coverage.json") if kind == "off" else []:
            file.write_text(json.dumps({**json.loads(file.read_text()), "off": True}))
        return Run("train.py", str(folder), Ended.DONE, 0, 1.0, 1)

    patch.setattr(Session, "with_tools", with_tools)
    patch.setattr(Session, "report", lambda *_: None)
    asked = [question for question in QUESTIONS if question.name in ("run", "graphs", "operators")]
    plan = Plan(Program(("train.py",)), Path("diagnosis"), steps=3)
    answer = Session(plan, asked, resume=False, say=lambda _: None).run(finish)
    sys.stdout.write(answer.text())
    return status_of(answer.verdict)


# --- The table ----------------------------------------------------------------------------------------------------------

RANKS = Never("a rank is a process")
ONE_CALL = Never("saved calls are run again: no program runs beside them")
CHOSEN = Never("`--device` says where calls run, and a missing device is an error")
SHARD = Never("a part judges its own cases; of all, verify and report judge")
HAS_NO_LIMIT = Never("nothing in it has a limit")
LEFT_OUT = Never("calls that limits leave out are the user's choice, and are counted")

_OF_TOOLS = {
    "thread": "1 thread made",
    "process": "1 process of the program had no tool",
    "rank": RANKS,
    "compiled": "1 compiled graph of opaque, 2 operators: not looked into",
    "host": "no tensor was on sim",
    "off": "the tool failed and was off",
    "empty": "no call was seen",
    "full": LEFT_OUT,
}
_OF_RECORDINGS = {
    **_OF_TOOLS,
    "rank": "only in A",
    "no values": "have no verdict",
    "off": "incomplete",
    "empty": "a: cannot be read",
    "full": "incomplete",
}
_OF_CALLS = {"thread": ONE_CALL, "process": ONE_CALL, "rank": ONE_CALL, "compiled": ONE_CALL, "host": CHOSEN}
_OF_CASES = {
    **_OF_CALLS,
    "rank": "some cases have no row",
    "no values": "most cases have no verdict",
    "off": "the self-test of the suite did not pass",
    "empty": "no case",
    "full": HAS_NO_LIMIT,
}

COMMANDS = {
    "run --autocompare": (
        tool(lambda _: op_tools.OpAutoCompare(output_dir="out")),
        {**_OF_TOOLS, "no values": "results have no verdict"},
    ),
    "run --overflow": (
        tool(lambda _: op_tools.OpOverflowCheck(output_dir="out")),
        {**_OF_TOOLS, "no values": Never("it asks values whether they are finite, and compares none")},
    ),
    "run --invariance": (
        tool(lambda _: op_tools.OpInvariance(output_dir="out")),
        {**_OF_TOOLS, "no values": "results have no verdict"},
    ),
    "run --memory": (
        tool(lambda _: op_tools.OpMemoryCheck(output_dir="out")),
        {**_OF_TOOLS, "no values": Never("it looks at memory, not at values")},
    ),
    "run --against": (
        tool(against),
        {**_OF_TOOLS, "empty": "nothing was compared", "no values": Never("the recording is made with statistics")},
    ),
    "run --shadow": (
        tool(shadow),
        {**_OF_TOOLS, "empty": "no call had captured inputs", "no values": "results have no verdict"},
    ),
    "one-iter compare": (compare("one-iter", "compare", modules_only=True), _OF_RECORDINGS),
    "compare": (compare("compare"), _OF_RECORDINGS),
    "compare, three runs": (
        compare("compare", others=2),
        {**_OF_RECORDINGS, "rank": "rank 1: no file in b1"},
    ),
    "compare, one rank and two": (
        compare("compare", ranks=2),
        {**_OF_RECORDINGS, "rank": "rank 2: no file in b0", "no values": "have no verdict"},
    ),
    "compare --confirm": (
        confirm,
        {**_OF_CALLS, "no values": "not judged", "off": "", "empty": "no captured calls", "full": LEFT_OUT},
    ),
    "bisect": (
        bisect,
        {
            **_OF_TOOLS,
            "host": "no operator of the program can be moved",
            "empty": "no operator of the program can be moved",
            "no values": Never("the numbers that it reads are the program's own"),
            "off": Never("a run whose tool failed moves less, and is judged by its numbers like any other"),
            "full": HAS_NO_LIMIT,
        },
    ),
    "repro": (
        repro,
        {
            **_OF_CALLS,
            "no values": "NOT JUDGED",
            "off": "nothing",
            "empty": "nothing",
            "full": HAS_NO_LIMIT,
        },
    ),
    "conformance run": (conformance("run"), {**_OF_CASES, "rank": SHARD}),
    "conformance gen": (conformance("gen"), {**_OF_CASES, "rank": SHARD}),
    "conformance verify": (conformance("verify"), _OF_CASES),
    "conformance report": (conformance("report"), _OF_CASES),
    "blackbox": (
        blackbox,
        {
            "thread": Never("all threads have a place; for more than 256 see full"),
            "process": Never("it says where processes with a file are, and names them"),
            "rank": "rank 0: no file in box",
            "compiled": Never("it names the last operator before a graph"),
            "host": Never("a process ends on the host, too"),
            "no values": Never("it looks at no values"),
            "off": "cut off",
            "empty": "no call was seen",
            "full": "calls had no place in the file",
        },
    ),
    "diagnose": (
        diagnose,
        {
            **_OF_TOOLS,
            "compiled": Never("it looks into graphs: `--compiled check`, then `nodes`"),
            "no values": "results have no verdict",
            "empty": "OpAutoCompare left no result",
        },
    ),
    "run_op_from_data": (
        replay,
        {
            **_OF_CALLS,
            "rank": "part 1/2 is missing",
            "no values": "most calls have no verdict",
            "off": "could not be run or read",
            "empty": "",
            "full": HAS_NO_LIMIT,
        },
    ),
}
STATUS = {("run_op_from_data", "rank"): 64}
"""Where it is not 2."""
CELLS = [
    pytest.param(command, kind, said, id=f"{command}-{kind}")
    for command, (_, row) in COMMANDS.items()
    for kind, said in row.items()
    if not isinstance(said, Never)
]


def test_the_table_has_each_command_and_kind():
    assert all(row.keys() == KINDS.keys() for _, row in COMMANDS.values())


@pytest.mark.parametrize(("command", "kind", "said"), CELLS)
def test_what_was_not_looked_at_is_not_all_right(command, kind, said, monkeypatch, capfd):
    run, _ = COMMANDS[command]
    monkeypatch.setenv("OP_TOOLS_COMPILED", "as-is")
    status = run(kind, monkeypatch)
    shown = "".join(capfd.readouterr())
    assert status == STATUS.get((command, kind), 2), shown
    assert " ".join(said.split()) in " ".join(shown.split()), (status, shown)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_looked_at_is_judged(command, monkeypatch, capfd):
    """bisect: the operators are right, and the result is not; repro: there is no failure to be shown."""
    run, _ = COMMANDS[command]
    status = run("all seen", monkeypatch)
    assert status == (1 if command in ("bisect", "repro") else 0), "".join(capfd.readouterr())


def test_a_run_on_the_host_is_what_a_run_on_the_device_is_compared_with():
    record("a", host)
    record("b", work)
    assert main(["compare", "a", "b"]) == 0


def test_programs_read_why_runs_were_not_judged():
    for folder in ("a", "b", "c"):
        record(folder, host)
    for runs in (["a", "b"], ["a", "b", "c"]):
        assert main(["compare", *runs, "--json", "found.jsonl"]) == 2
        summary = json.loads(Path("found.jsonl").read_text().splitlines()[-1])
        assert summary["verdict"] == "not judged" and len(summary["unseen"]) == len(runs), summary


@pytest.mark.parametrize("arguments", [["compare"], ["one-iter", "compare"], ["blackbox"]])
def test_what_was_not_looked_at_may_be_allowed(arguments, monkeypatch):
    real = main
    kind = "full" if arguments == ["blackbox"] else "host"
    run = blackbox if arguments == ["blackbox"] else compare(*arguments, modules_only="one-iter" in arguments)
    monkeypatch.setattr(
        f"{__name__}.main", lambda given: real([*arguments, "--allow-unseen", *given[len(arguments) :]])
    )
    assert run(kind, monkeypatch) == 0


def table():
    """For the page: the exit status, or a number of a reason why a cell cannot be."""
    reasons = list(
        dict.fromkeys(cell.why for _, row in COMMANDS.values() for cell in row.values() if isinstance(cell, Never))
    )
    lines = [f"| command | {' | '.join(KINDS)} |", f"|{'---|' * (len(KINDS) + 1)}"]
    for command, (_, row) in COMMANDS.items():
        cells = [
            f"({reasons.index(cell.why) + 1})" if isinstance(cell, Never) else str(STATUS.get((command, kind), 2))
            for kind, cell in ((kind, row[kind]) for kind in KINDS)
        ]
        lines.append(f"| `{command}` | {' | '.join(cells)} |")
    kinds = [f"- *{kind}*: {what}" for kind, what in KINDS.items()]
    never = [f"{number}. {why}" for number, why in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *kinds, "", "Cells that cannot be:", "", *never, ""])


def test_the_table_of_the_page_is_this_one():
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "python tests/python/test_verdict_table.py writes it"


if __name__ == "__main__":
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{begin}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
