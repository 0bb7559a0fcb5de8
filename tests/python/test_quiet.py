"""Calls of a tool give no warnings: the program has those of its own calls, once."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device  # at the top: before the first backward() of the process

X = torch.ones(2, 3)
TOOLS = ["OpAutoCompare", "OpCapture", "OpObserve", "OpOverflowCheck", "OpTimeMeasure"]
CALLS = {
    "in Python": lambda: F.softmax(X),
    "in Python, of sizes": lambda: F.mse_loss(X, torch.ones(1, 3)),
    "in C++": lambda: torch.ones(2, 3, 4).T,
    "of a cast": lambda: torch.ones(2, dtype=torch.cfloat).to(torch.float),
    "of out=": lambda: torch.add(torch.ones(3), torch.ones(3), out=torch.ones(2)),
    "of a copy of the result": lambda: torch.eye(3).to_sparse_csr(),
    "of no elements": lambda: torch.ones(1).std(),
}


@pytest.fixture
def always():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(one.category, str(one.message)) for one in caught]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("tool", TOOLS)
def test_program_gets_each_warning_as_often_as_without_a_tool(tool, level, always):
    for what, call in CALLS.items():
        expected = warnings_of(call)
        assert expected

        def with_tool(call=call):
            with getattr(op_tools, tool)(level=level):
                call()

        assert warnings_of(with_tool) == expected, what


@torch.library.custom_op("op_tools_test::warns", mutates_args=())
def warns(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("of a kernel in Python", stacklevel=1)
    return x + 1


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_kernel_in_python_warns_once(level):
    x = torch.ones(2, device="sim")

    def with_tool():
        with op_tools.OpAutoCompare(level=level):
            warns(x)

    assert len(warnings_of(with_tool)) == len(warnings_of(lambda: warns(x))) == 1


def test_what_python_has_warned_of_once_stays_noted():
    def warn():
        warnings.warn("once", stacklevel=1)

    def call(x):
        warn()
        return torch.exp(x)

    function = torch.overrides.wrap_torch_function(lambda x: (x,))(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        filters = list(warnings.filters)
        for _ in range(3):
            with op_tools.OpAutoCompare():
                function(X)
        assert warnings.filters == filters
    assert len(caught) == 1


def test_what_torch_warns_of_once_is_still_to_come_after_a_run_of_a_tool(python):
    done = python("""
import warnings, torch, op_tools, op_tools.sim_device

def only_on_the_cpu(x):
    if x.device.type == "cpu":
        torch.ones(2, 3, 4).T
    return x + 1

function = torch.overrides.wrap_torch_function(lambda x: (x,))(only_on_the_cpu)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with op_tools.OpAutoCompare():
        function(torch.ones(2, device="sim"))
    print(len(caught))
    torch.ones(2, 3, 4).T
    torch.ones(2, 3, 4).T
    print(len(caught))
""")
    assert done.stdout.split() == ["0", "1"]


def test_another_threads_warnings_are_given_while_a_run_is_quiet():
    caught = []

    def other():
        caught.extend(warnings_of(lambda: warnings.warn("the other's", stacklevel=1)))

    def call(x):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return torch.exp(x)

    function = torch.overrides.wrap_torch_function(lambda x: (x,))(call)
    with op_tools.OpAutoCompare():
        function(X)
    assert len(caught) >= 1 and {text for _, text in caught} == {"the other's"}


def test_warning_that_a_filter_makes_an_error_is_no_finding():
    x = torch.ones(2, 2, device="sim")
    with op_tools.OpAutoCompare() as tool, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Implicit dimension"):
            F.softmax(x)
    assert tool.result().failed == 0
