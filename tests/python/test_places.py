"""The line and the module that tools say of a call, where they are easily those of another call: frames that are entered
again, code that several modules run, modules that come and go, more of both than a thread remembers."""

import contextlib
import inspect
import sys
import threading

import pytest
import torch
from torch import nn

import op_tools

ONES = torch.ones(2)


class Calls(nn.Module):
    """Calls its function, and the modules in it."""

    def __init__(self, work=None, **inner):
        super().__init__()
        self.work = work or (lambda: None)
        for name, module in inner.items():
            self.add_module(name, module)

    def forward(self):
        self.work()
        for module in self.children():
            module()


@pytest.fixture
def black_box(tmp_path):
    return op_tools.OpBlackBox(output_dir=str(tmp_path), ops="neg", calls=20000)


def places(tool, function=None):
    """(module, number of the line) of each call; `function`: in which all of them were."""
    places_of_calls = []
    for row in tool.result().rows:
        where, name = row.line.rsplit(" ", 1)
        assert function is None or name == function
        places_of_calls.append((row.module, int(where.rsplit(":", 1)[1])))
    return places_of_calls


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_generator_is_where_it_is_resumed(black_box):
    def values():
        for _ in range(3):
            yield torch.neg(ONES)
            yield -ONES

    generator = values()
    model = Calls(a=Calls(lambda: next(generator)), b=Calls(lambda: next(generator)))
    with black_box:
        next(generator)
        model()
        next(generator)
        model()
    first, other = line_of(values, "torch.neg"), line_of(values, "-ONES")
    assert places(black_box, "values") == [
        ("", first),
        ("Calls.a", other),
        ("Calls.b", first),
        ("", other),
        ("Calls.a", first),
        ("Calls.b", other),
    ]


def test_a_coroutine_is_where_it_goes_on(black_box):
    class Turn:
        def __await__(self):
            torch.neg(ONES)
            yield

    async def work():
        await Turn()
        torch.neg(ONES)
        await Turn()

    def resume():
        with contextlib.suppress(StopIteration):
            running.send(None)

    running = work()
    model = Calls(a=Calls(resume), b=Calls(resume))
    with black_box:
        model()
    inside, outside = line_of(Turn, "torch.neg"), line_of(work, "torch.neg")
    assert places(black_box) == [("Calls.a", inside), ("Calls.b", outside), ("Calls.b", inside)]


def test_after_an_exception_calls_belong_to_who_caught_it(black_box):
    def fail():
        torch.neg(ONES)
        raise ValueError("mine")

    def catch():
        for _ in range(2):
            try:
                inner()
            except ValueError:
                torch.neg(ONES)
            finally:
                _ = -ONES

    inner = Calls(fail)
    model = Calls(catch)
    with black_box:
        model()
    failed, caught, last = line_of(fail, "torch.neg"), line_of(catch, "torch.neg"), line_of(catch, "-ONES")
    assert places(black_box) == [("Calls.Calls", failed), ("Calls", caught), ("Calls", last)] * 2


def test_recursion(black_box):
    class Deep(nn.Module):
        def __init__(self, depth):
            super().__init__()
            if depth:
                self.inner = Deep(depth - 1)

        def forward(self, times):
            torch.neg(ONES)
            if times:
                self.forward(times - 1)
            elif hasattr(self, "inner"):
                self.inner(1)
            torch.neg(ONES)

    with black_box:
        Deep(2)(1)
    first, last = line_of(Deep, "torch.neg"), line_of(Deep, "self.inner(1)") + 1
    names = ["Deep", "Deep.inner", "Deep.inner.inner"]
    down = [(name, first) for name in names for _ in range(2)]
    assert places(black_box, "forward") == down + [(name, last) for name, _ in reversed(down)]


def test_more_frames_than_a_thread_remembers(black_box):
    def deep(depth):
        if depth:
            deep(depth - 1)
            return
        torch.neg(ONES)
        torch.neg(ONES)

    model = Calls(a=Calls(lambda: deep(300)), b=Calls(lambda: deep(300)))
    with black_box:
        model()
    first = line_of(deep, "torch.neg")
    assert places(black_box, "deep") == [(f"Calls.{name}", first + line) for name in "ab" for line in range(2)]


def test_one_function_called_in_other_modules_at_the_same_depth(black_box):
    """The same code in frames at the same addresses: only the modules around it differ, the innermost or the outermost."""

    class Leaf(nn.Module):
        def forward(self):
            return torch.neg(ONES)

    shared = Leaf()
    models = [Calls(a=Calls(inner=shared)), Calls(b=Calls(inner=shared)), Calls(a=Calls(other=Leaf(), last=Leaf()))]
    with black_box:
        for _ in range(3):
            for model in models:
                model()
    names = ["Calls.a.inner", "Calls.b.inner", "Calls.a.other", "Calls.a.last"]
    assert places(black_box, "forward") == [(name, line_of(Leaf, "torch.neg")) for name in names] * 3


def test_one_line_that_two_modules_run(black_box):
    def shared():
        return torch.neg(ONES)

    model = Calls(a=Calls(shared), b=Calls(shared))
    with black_box:
        for _ in range(3):
            model()
            shared()
    line = line_of(shared, "torch.neg")
    assert places(black_box) == [("Calls.a", line), ("Calls.b", line), ("", line)] * 3


def test_modules_that_take_turns_on_one_line(black_box):
    """The new generator has often the address of the old one, and always its frames."""

    class Leaf(nn.Module):
        def forward(self):
            return torch.neg(ONES)

    class Swaps(nn.Module):
        def forward(self, names):
            for name in names:
                self._modules.clear()
                self.add_module(name, Leaf())
                self._modules[name]()

    names = [f"leaf{number % 7}" for number in range(50)]
    with black_box:
        Swaps()(names)
    line = line_of(Leaf, "torch.neg")
    assert places(black_box) == [(f"Swaps.{name}", line) for name in names]


def test_threads_have_places_of_their_own(tmp_path, black_box):
    def first():
        torch.neg(ONES)

    def other():
        torch.neg(ONES)

    expected = {}

    def work(number):
        models = [Calls(**{f"{name}{number}": Calls(run)}) for name, run in (("a", first), ("b", other))]
        for turn in range(200):
            models[turn % 2]()
        lines = line_of(first, "torch.neg"), line_of(other, "torch.neg")
        expected[threading.get_native_id()] = [
            (f"Calls.{'ab'[turn % 2]}{number}", lines[turn % 2]) for turn in range(200)
        ]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with black_box:
            torch.neg(ONES)
            started = [threading.Thread(target=work, args=(number,)) for number in range(3)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    by_thread = {}
    for row, place in zip(black_box.result().rows, places(black_box), strict=True):
        by_thread.setdefault(row.thread, []).append(place)
    for thread, calls in expected.items():
        # The first operator of a thread that entered no scope is missed: it is running already.
        assert by_thread[thread] == calls[len(calls) - len(by_thread[thread]) :]
        assert len(by_thread[thread]) >= 199


def test_more_code_and_modules_than_a_thread_remembers(black_box):
    functions = {}
    for number in range(700):
        exec(compile("\n" * number + f"def f{number}(): neg(x)", f"/made/{number}.py", "exec"), functions)  # noqa: S102
    functions.update(neg=torch.neg, x=ONES)
    layers = nn.Sequential(*(Calls(functions[f"f{number}"]) for number in range(700)))
    outer = Calls(lambda: [layer() for layer in layers])
    outer.layers = layers
    outer.forward = outer.work
    with black_box:
        outer()
        for number in range(700):
            functions[f"f{number}"]()
    lines = [row.line for row in black_box.result().rows]
    expected = [f"/made/{number}.py:{number + 1} f{number}" for number in range(700)]
    modules = [row.module for row in black_box.result().rows]
    assert lines == expected * 2
    assert modules == [f"Calls.layers.{number}" for number in range(700)] + [""] * 700


def test_backward_says_the_places_of_forward(black_box):
    """In another order than the calls were made in, and beside calls of the program's between two backward passes."""

    class Twice(nn.Module):
        def forward(self, x):
            x = torch.neg(x)
            return torch.neg(x)

    model = nn.Sequential(Twice(), Twice())
    with black_box:
        for _ in range(2):
            out = model(torch.ones(2, requires_grad=True)).sum()
            out.backward()
            torch.neg(ONES)
    first = line_of(Twice, "torch.neg")
    forward = [(f"Sequential.{number}", first + line) for number in range(2) for line in range(2)]
    own = ("", line_of(test_backward_says_the_places_of_forward, "torch.neg(ONES)"))
    rows = [(row.phase, place) for row, place in zip(black_box.result().rows, places(black_box), strict=True)]
    steps = [("forward", place) for place in forward] + [("backward", place) for place in reversed(forward)]
    assert rows == [*steps, ("forward", own)] * 2
