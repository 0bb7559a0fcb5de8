"""Where a tool begins and ends, in any order: threads that end, ids that are used again, generators, coroutines, fork.

Each round draws a story below and a level; in each, tools have to see exactly the calls that are theirs, and to
leave nothing on.

    lifecycle.py [--rounds 2000] [--seed 0]
"""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import torch
from _program import parser, quiet

import op_tools

X = torch.ones(2)
CALLS = {"exp": torch.exp, "sin": torch.sin, "cos": torch.cos, "neg": torch.neg}


class Names(op_tools.Hook):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def before(self, call: Any) -> None:
        self.seen.append(call.name.replace("::", ".").split(".")[1])


def scope(level: str) -> tuple[op_tools.HookScope, list[str]]:
    hook = Names()
    return op_tools.HookScope(hook, level=level, ops="torch.(exp|sin|cos|neg),aten::(exp|sin|cos|neg)"), hook.seen


def call(name: str) -> None:
    CALLS[name](X)


def in_thread(function: Callable[[], Any]) -> int:
    """In a thread of its own, which has ended on return. Its number for the system, which the next thread may have, too."""
    number: list[int] = []
    failed: list[BaseException] = []

    def body() -> None:
        number.append(threading.get_ident())
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return number[0]


def stopped_after_its_thread(level: str, chance: random.Random) -> None:
    tool, seen = scope(level)
    in_thread(lambda: (tool.start(), call("exp")))
    call("sin")
    in_thread(lambda: call("cos"))  # often under the number of the thread that is gone
    if chance.random() < 0.5:
        in_thread(tool.stop)
    else:
        tool.stop()
    in_thread(lambda: call("neg"))
    assert seen == ["exp"], seen
    assert tool._depth == 0


def number_used_again(level: str, chance: random.Random) -> None:
    """Another thread under the same number has scopes of its own."""
    old, seen = scope(level)
    in_thread(old.start)
    new, seen_by_new = scope(chance.choice(["torch", "aten"]))

    def body() -> None:
        with new:
            call("exp")
            old.stop()
            call("sin")
        call("cos")

    in_thread(body)
    assert (seen, seen_by_new) == ([], ["exp", "sin"]), (seen, seen_by_new)


def stopped_beside_its_thread(level: str, chance: random.Random) -> None:
    """Its thread is there: that is an error, and it stays on."""
    tool, seen = scope(level)
    with tool:
        try:
            in_thread(tool.stop)
        except op_tools.Error:
            pass
        else:
            raise AssertionError("it was stopped in another thread")
        call("exp")
    call("sin")
    assert seen == ["exp"], seen


def generators(level: str, chance: random.Random) -> None:
    tool, seen = scope(level)

    @tool
    def values() -> Generator[int, int, None]:
        call("exp")
        answer = yield 1
        call("sin")
        try:
            yield answer
        except ValueError:
            call("cos")
        yield 3

    run = values()
    assert next(run) == 1
    call("neg")
    advance: Callable[[Callable[[], Any]], Any] = in_thread if chance.random() < 0.5 else lambda step: step()
    got: list[int] = []

    def send(to: Any = run) -> None:
        got.append(to.send(2))

    advance(send)
    del send
    call("neg")
    how = chance.choice(["throw", "close", "drop"])
    if how == "throw":
        assert run.throw(ValueError()) == 3
        call("neg")
        assert next(run, "end") == "end"
    elif how == "close":
        run.close()
    del run
    assert got == [2] and tool._depth == 0
    assert seen == ["exp", "sin"] + ["cos"] * (how == "throw"), seen


def generators_at_once(level: str, chance: random.Random) -> None:
    tool, seen = scope(level)

    @tool
    def values(name: str) -> Generator[None, None, None]:
        for _ in range(3):
            call(name)
            yield

    runs = [values("exp"), values("sin")]
    steps = [0, 1] * 4
    chance.shuffle(steps)
    for which in steps:
        next(runs[which], None)
        call("neg")
    assert tool._depth == 0 and sorted(seen) == ["exp"] * 3 + ["sin"] * 3, seen


def coroutines(level: str, chance: random.Random) -> None:
    tool, seen = scope(level)

    @tool
    async def work() -> str:
        call("exp")
        await asyncio.sleep(0)
        call("sin")
        return "done"

    @tool
    async def values() -> AsyncGenerator[int, None]:
        for i in range(2):
            call("cos")
            await asyncio.sleep(0)
            yield i

    async def others() -> None:
        for _ in range(5):
            call("neg")
            await asyncio.sleep(0)

    async def main() -> None:
        other = asyncio.create_task(others())
        assert await work() == "done"
        assert [value async for value in values()] == [0, 1]
        cancelled = asyncio.create_task(work())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, other, return_exceptions=True)

    asyncio.run(main())
    assert tool._depth == 0 and seen == ["exp", "sin", "cos", "cos", "exp"], seen


def forks(level: str, chance: random.Random) -> None:
    tool, seen = scope(level)
    gone, _ = scope(level)
    in_thread(gone.start)
    with tool:
        call("exp")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(20)  # it hangs
                call("sin")
                own, seen_by_own = scope(chance.choice(["torch", "aten"]))
                with own:
                    call("cos")
                tool.stop()
                gone.stop()
                call("sin")
                status = 0 if (seen, seen_by_own) == (["exp"], ["cos"]) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"
        call("neg")
    gone.stop()
    assert seen == ["exp", "neg"], seen


def nested(level: str, chance: random.Random) -> None:
    """Scopes of both levels, entered again while they are on, left in any order."""
    scopes = [scope(chance.choice(["torch", "aten"])) for _ in range(3)]
    depth = [0, 0, 0]
    expected: list[list[str]] = [[], [], []]
    for _ in range(12):
        which = chance.randrange(3)
        if depth[which] and chance.random() < 0.5:
            scopes[which][0].stop()
            depth[which] -= 1
        else:
            scopes[which][0].start()
            depth[which] += 1
        name = chance.choice(sorted(CALLS))
        call(name)
        for i in range(3):
            expected[i] += [name] * bool(depth[i])
    for i in range(3):
        for _ in range(depth[i]):
            scopes[i][0].stop()
    assert [seen for _, seen in scopes] == expected


STORIES = [
    stopped_after_its_thread,
    number_used_again,
    stopped_beside_its_thread,
    generators,
    generators_at_once,
    coroutines,
    forks,
    nested,
]


def lived(rounds: int, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """How often each story was told, and the failures."""
    chance = random.Random(seed)
    told: collections.Counter[str] = collections.Counter()
    failures = []
    for number in range(rounds):
        story = STORIES[number] if number < len(STORIES) else chance.choice(STORIES)
        level = chance.choice(["torch", "aten"])
        told[story.__name__] += 1
        try:
            story(level, chance)
            assert torch.overrides._len_torch_function_stack() == 0, "a function mode was left"
            assert not op_tools._C.running_tools(), "a tool is still held"
            entries = op_tools._C.kernel_entries()
            call("exp")
            assert op_tools._C.kernel_entries() == entries, "operators are still intercepted"
        except Exception:
            failures.append(f"{story.__name__}, level {level}: {traceback.format_exc()}")
    return told, failures


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--rounds", type=int, default=2000, metavar="N")
    command_line.add_argument("--seed", type=int, default=0, metavar="N")
    options = command_line.parse_args()
    quiet("off")
    told, failures = lived(options.rounds, options.seed)
    print(f"{options.rounds} rounds: {', '.join(f'{count} {name}' for name, count in told.items())}")
    print(f"{len(failures)} failures")
    for failure in failures[:10]:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
