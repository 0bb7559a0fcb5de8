"""Which calls a tool sees, where its settings come from, its errors about wrong settings, and its lines."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import op_tools
from op_tools.__main__ import main


class Names(op_tools.Hook):
    """Remembers the questions that it was asked."""

    def __init__(self):
        self.seen = []

    def before(self, call):
        self.seen.append(call.name)


def program():
    x = torch.ones(2, 3)
    y = F.linear(x, x).relu()
    torch.add(y, 1)
    y.add_(1).add(y)
    y.size(), y.shape, y.dim(), y.is_contiguous(), y.requires_grad, y.dtype
    F.layer_norm(y, (2,))
    return torch.sum(y)


def seen(function=program, **options):
    hook = Names()
    with op_tools.HookScope(hook, **options):
        function()
    return hook.seen


TORCH_CALLS = [
    "torch.ones",
    "torch.nn.functional.linear",
    "torch.Tensor.relu",
    "torch.add",
    "torch.Tensor.add_",
    "torch.Tensor.add",
    "torch.nn.functional.layer_norm",
    "torch.sum",
]


def test_without_a_filter_every_call_is_seen_but_those_that_only_read_metadata():
    assert seen() == TORCH_CALLS


FILTERS = [
    ("torch.Tensor.add", ["torch.Tensor.add"]),
    ("torch.Tensor.add_", ["torch.Tensor.add_"]),
    ("torch.nn.functional.*", ["torch.nn.functional.linear", "torch.nn.functional.layer_norm"]),
    (".*norm", ["torch.nn.functional.layer_norm"]),
    (" torch.sum ,, torch.add,", ["torch.add", "torch.sum"]),
    (["torch.sum", "torch.add"], ["torch.add", "torch.sum"]),
    (r"torch\.(sum|add)", ["torch.add", "torch.sum"]),
    (r"torch.[a-s]{3}", ["torch.add"]),
    (r"torch.\w{3,4}", ["torch.ones", "torch.add", "torch.sum"]),
    ("", TORCH_CALLS),
    ("torch.Tensor.size", ["torch.Tensor.size"]),
    ("torch.Tensor.shape.*", ["torch.Tensor.shape.__get__"]),
]


@pytest.mark.parametrize(("ops", "expected"), FILTERS, ids=[str(f[0]) for f in FILTERS])
def test_filter_matches_whole_names_of_torch_functions(ops, expected):
    assert seen(ops=ops) == expected


@pytest.mark.parametrize("ops", ["torch.Tensor.add", "torch.Tensor.add_", " torch.sum ,, torch.add,", "torch.[a-s]{3}"])
def test_skip_is_the_rest(ops):
    assert seen(skip=ops) == [name for name in TORCH_CALLS if name not in seen(ops=ops)]


def test_skip_is_taken_off_ops_when_both_are_given():
    assert seen(ops="torch.Tensor.(relu|add.*)", skip=".*_") == ["torch.Tensor.relu", "torch.Tensor.add"]


@pytest.mark.parametrize("ops", ["aten::add.Tensor", "add.Tensor", "add", "aten::add", r"aten::add\..*"])
def test_aten_names_match_with_and_without_namespace_and_overload(ops):
    names = seen(level="aten", ops=ops)
    assert names and set(names) == {"aten::add.Tensor"}


def test_aten_overloads_match_by_expression():
    names = set(seen(lambda: torch.ones(2).pow(2).mul_(3), level="aten", ops=".*.Tensor_Scalar,.*_.Tensor"))
    assert names == {"aten::pow.Tensor_Scalar", "aten::mul_.Tensor"}


def test_aten_level_shows_parts_of_composite_ops_unless_they_are_named():
    x = torch.ones(2, 3)
    parts = seen(lambda: F.linear(x[None], x, torch.ones(2)), level="aten")
    assert "aten::linear" not in parts and len(parts) > 1
    assert seen(lambda: F.linear(x[None], x, torch.ones(2)), level="aten", ops="linear,addmm") == ["aten::linear"]


def test_both_levels_see_the_same_operator_under_their_own_names():
    torch_names, aten_names = Names(), Names()
    with op_tools.HookScope(torch_names), op_tools.HookScope(aten_names, level="aten"):
        torch.exp(torch.ones(2))
    assert torch_names.seen == ["torch.ones", "torch.exp"]
    assert aten_names.seen[-1] == "aten::exp"


def test_torch_names_are_those_that_users_write():
    x = torch.ones(3, 3)

    def body():
        nonlocal x
        torch.mm(x, x)
        x.T, x @ x, x[0]
        x += 1
        torch.fft.fft(x)
        torch.linalg.det(x)
        torch.special.erf(x)
        torch.ops.aten.exp(x)

    assert seen(body) == [
        "torch.mm",
        "torch.Tensor.T.__get__",
        "torch.Tensor.matmul",
        "torch.Tensor.__getitem__",
        "torch.Tensor.add_",
        "torch.fft.fft",
        "torch.linalg.det",
        "torch.special.erf",
        "torch.ops.aten.exp",
    ]


def test_left_out_python_function_shows_the_admitted_calls_inside_it():
    x = torch.ones(4)
    assert seen(lambda: torch.split(x, 2)) == ["torch.functional.split"]
    assert seen(lambda: torch.split(x, 2), skip="torch.functional.split") == ["torch.Tensor.split"]
    assert seen(lambda: F.cross_entropy(x, x), ops="torch.Tensor.*|torch.functional.*") == []
    inside = seen(lambda: F.multi_head_attention_forward(
        *[torch.ones(2, 4)] * 3, 4, 2, torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4), None
    ), ops="torch.nn.functional.linear")  # fmt: skip
    assert len(inside) >= 2


def test_calls_inside_a_seen_call_are_not_reported_again():
    names = seen(lambda: F.multi_head_attention_forward(
        *[torch.ones(2, 4)] * 3, 4, 2, torch.ones(12, 4), None, None, None, False, 0.0, torch.ones(4, 4), None
    ), skip="torch.ones")  # fmt: skip
    assert names == ["torch.nn.functional.multi_head_attention_forward"]


def test_left_out_function_with_a_subclass_still_reaches_the_subclass():
    asked = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append(function.__name__)
            return super().__torch_function__(function, types, args, kwargs)

    x = torch.ones(4).as_subclass(Logged)
    with op_tools.HookScope(Names(), ops="torch.exp"):
        torch.split(x, 2)
        torch.sin(x)
    within = list(asked)
    asked.clear()
    torch.split(x, 2)
    torch.sin(x)
    assert within == asked


# --- Where settings come from -----------------------------------------------------------------------------------


def captured_ops(**options):
    with op_tools.OpCapture(format="container", **options) as tool:
        program()
    return sorted(row.op for row in tool.result().rows)


def test_lists_come_from_the_environment_when_the_scope_is_entered(monkeypatch):
    tool = op_tools.OpCapture(format="container")
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.sum, torch.add")
    with tool:
        program()
    assert sorted(row.op for row in tool.result().rows) == ["torch.add", "torch.sum"]
    monkeypatch.setenv("OP_CAPTURE_DISABLE_LIST", "torch.add")
    assert captured_ops() == ["torch.sum"]
    monkeypatch.delenv("OP_CAPTURE_LIST")
    assert captured_ops() == sorted(set(TORCH_CALLS) - {"torch.add"})


def test_argument_wins_over_its_variable_an_empty_one_too(monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.sum")
    monkeypatch.setenv("OP_CAPTURE_MAX_CALLS", "1")
    assert captured_ops(ops="torch.add") == ["torch.add"]
    assert captured_ops(ops="", max_calls=100) == sorted(TORCH_CALLS)


def test_empty_variable_counts_as_unset(monkeypatch):
    for name in ("OP_CAPTURE_LIST", "OP_CAPTURE_MAX_CALLS", "OP_CAPTURE_FORMAT", "OP_TOOLS_SKIP_CPU", "RANK"):
        monkeypatch.setenv(name, "")
    assert captured_ops() == sorted(TORCH_CALLS)


def test_hook_scopes_have_variables_of_their_own(monkeypatch):
    monkeypatch.setenv("OP_HOOK_LIST", "torch.sum")
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.add")
    assert seen() == ["torch.sum"]


def test_skip_cpu_passes_over_calls_whose_tensors_are_all_on_the_cpu(monkeypatch):
    def body():
        torch.exp(torch.ones(2))
        torch.exp(torch.ones(2, device="meta"))

    assert "torch.exp" in seen(body)
    assert seen(body, skip_cpu=True, ops="torch.exp") == ["torch.exp"]
    monkeypatch.setenv("OP_TOOLS_SKIP_CPU", "on")
    assert seen(body, ops="torch.exp") == ["torch.exp"]
    assert seen(body, ops="torch.exp", skip_cpu=False) == ["torch.exp"] * 2


def test_limits_and_format_come_from_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("OP_CAPTURE_MAX_CALLS", " 3 ")
    monkeypatch.setenv("OP_CAPTURE_MAX_PER_SIGNATURE", "1")
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "container")
    monkeypatch.setenv("OP_TOOLS_MAX_PENDING_MB", "1")
    monkeypatch.setenv("OP_TOOLS_OUTPUT_DIR", str(tmp_path / "there"))
    with op_tools.OpCapture() as tool:
        program()
        program()
    assert sum(row.calls for row in tool.result().rows) == 3
    assert len(list(tmp_path.glob("there/op_capture_result/0/*/calls.zip"))) == 1


@pytest.mark.parametrize(
    ("ranks", "layout", "containers"), [("15", "", 0), ("16", "", 1), ("1024", "folders", 0), ("2", "container", 1)]
)
def test_each_of_many_ranks_captures_into_a_single_file(monkeypatch, tmp_path, ranks, layout, containers):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with op_tools.OpCapture(output_dir=str(tmp_path), **({"format": layout} if layout else {})) as tool:
        program()
    assert len(list(tmp_path.rglob("calls.zip"))) == containers
    assert (len(list(tmp_path.rglob("meta.json"))) > 0) == (containers == 0)
    assert tool.result().rows


BAD_ARGUMENTS = [
    (dict(ops="torch.add,*bad"), "ops=: '*bad' is no valid regular expression"),
    (dict(skip="(open"), "skip=: '(open' is no valid regular expression"),
    (dict(ops="[a-"), "ops=: '[a-'"),
    (dict(ops="(a|b){50}"), "ops=: '(a|b){50}' repeats a part more than 32 times"),
    (dict(ops="(" + "a" * 300 + ")"), "is longer than 256 characters"),
    (dict(level="both"), "level=: 'both' is not allowed; give aten or torch"),
    (dict(format="tar"), "format=: 'tar' is not allowed; give folders or container"),
    (dict(max_calls=0), "max_calls=: '0' is not allowed; give an integer of at least 1"),
    (dict(max_per_signature=-1), "max_per_signature=: '-1' is not allowed; give an integer of at least 1"),
    (dict(max_pending_mb=0), "max_pending_mb=: '0' is not allowed; give an integer from 1 to"),
    (dict(steps=[]), "steps=: '' is not allowed; name at least one"),
    (dict(steps=[1, -2]), "steps=: '-2' is not allowed"),
    (dict(output_dir=""), "output_dir=: '' is not allowed; give the path of a folder"),
]


@pytest.mark.parametrize(("options", "message"), BAD_ARGUMENTS, ids=[str(b[0])[:30] for b in BAD_ARGUMENTS])
def test_wrong_argument_is_an_error_that_names_it_when_the_tool_starts(options, message):
    tool = op_tools.OpCapture(**options)
    with pytest.raises(op_tools.Error, match=re.escape(message)):
        tool.start()
    assert seen(lambda: torch.ones(1)) == ["torch.ones"]  # nothing half-started is in the way


BAD_VARIABLES = [
    ("OP_CAPTURE_LIST", "torch.add,*bad", "OP_CAPTURE_LIST: '*bad' is no valid regular expression"),
    ("OP_CAPTURE_DISABLE_LIST", ")(", "OP_CAPTURE_DISABLE_LIST: ')('"),
    ("OP_CAPTURE_FORMAT", "zip", "OP_CAPTURE_FORMAT: 'zip' is not allowed; give folders or container"),
    ("OP_CAPTURE_MAX_CALLS", "many", "OP_CAPTURE_MAX_CALLS: 'many' is not allowed; give an integer of at least 1"),
    ("OP_CAPTURE_MAX_CALLS", "1.5", "OP_CAPTURE_MAX_CALLS: '1.5' is not allowed"),
    ("OP_CAPTURE_MAX_PER_SIGNATURE", "0", "OP_CAPTURE_MAX_PER_SIGNATURE: '0' is not allowed"),
    ("OP_TOOLS_MAX_PENDING_MB", "99999999999999999999", "OP_TOOLS_MAX_PENDING_MB: '99999999999999999999' is not"),
    ("OP_TOOLS_SKIP_CPU", "maybe", "OP_TOOLS_SKIP_CPU: 'maybe' is not allowed; give 0, 1, true, false, on or off"),
    ("OP_TOOLS_COMPAT", "ditorhc", "OP_TOOLS_COMPAT: 'ditorhc' is not allowed; give ditorch, or leave it unset"),
    ("OP_CAPTURE_STEPS", "abc", "OP_CAPTURE_STEPS: 'abc' is not allowed; give integers of at least 0, as 0,5; a range"),
    ("OP_CAPTURE_STEPS", "1,5:2", "OP_CAPTURE_STEPS: '1,5:2' is not allowed; give integers"),
    ("OP_TOOLS_MAX_ROWS_GB", "abc", "OP_TOOLS_MAX_ROWS_GB: 'abc' is not allowed; give a number"),
    ("OP_TOOLS_WRITE_TIMEOUT", "0", "OP_TOOLS_WRITE_TIMEOUT: '0' is not allowed; give a number above 0"),
    ("RANK", "first", "RANK: 'first' is not allowed; give an integer of at least 0"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_VARIABLES, ids=[f"{b[0]}={b[1]}" for b in BAD_VARIABLES])
def test_wrong_variable_is_an_error_that_names_it_when_the_tool_starts(name, value, message, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(op_tools.Error, match=re.escape(message)):
        op_tools.OpCapture().start()


def test_a_variable_names_steps_as_the_flag_does(monkeypatch):
    monkeypatch.setenv("OP_HOOK_STEPS", "first:1, 3:5,7")
    hook = Names()
    with op_tools.HookScope(hook) as scope:
        for _ in range(9):
            torch.ones(1)
            scope.step()
    assert hook.seen == ["torch.ones"] * 4


def test_argument_of_a_wrong_type_is_an_error():
    with pytest.raises((TypeError, RuntimeError)):
        op_tools.OpCapture(max_calls="three").start()
    with pytest.raises(TypeError):
        op_tools.OpCapture("torch.add")
    with pytest.raises(TypeError, match="no_such_option"):
        op_tools.OpCapture(no_such_option=1)


# --- Lines ------------------------------------------------------------------------------------------------------


def test_item_that_matched_nothing_is_one_warning(capfd):
    for _ in range(3):
        seen(ops="torch.sum,torch.never_called_anywhere")
    warnings = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    (warning,) = warnings
    assert warning.startswith(
        "op_tools warning: ops=: 'torch.never_called_anywhere' matched no operator that was called; "
    )


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (3, "steps=5,6: no call was in them; 3 steps ended, the last of them is step 2"),
        (0, "steps=5,7: no call was in them; no step ended"),
    ],
)
def test_steps_that_did_not_come_are_one_warning(capfd, ended, told):
    wanted = [5, 6] if ended else [7, 5]
    for _ in range(2):
        with op_tools.OpCapture(steps=wanted) as tool:
            for _ in range(ended):
                torch.add(torch.ones(2), 1)
                tool.step()
    (warning,) = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert warning.startswith(f"op_tools warning: {told}")


def test_steps_that_came_are_no_warning(capfd):
    with op_tools.OpCapture(steps=[1, 4]) as tool:
        tool.step()
        torch.add(torch.ones(2), 1)
    assert "steps=" not in capfd.readouterr().err


def test_capture_says_what_it_applies_saves_and_skips(capfd, log_level):
    log_level("info")
    with op_tools.OpCapture(skip="torch.add") as tool:
        x = torch.ones(2, requires_grad=True)
        torch.add(x, 1)
        x.mul(2).sum().backward()
    lines = capfd.readouterr().err.splitlines()
    assert "skip OpCaptureHook on torch.add" in lines
    assert "apply OpCaptureHook on torch.Tensor.mul" in lines
    root = tool.result().root
    (mul,) = [line for line in lines if "torch.Tensor.mul/" in line and "grad_inputs" in line]
    assert re.fullmatch(rf"{re.escape(root)}/torch\.Tensor\.mul/\d+/grad_inputs\.pth saved", mul)
    shown = str(Path(root).relative_to(Path.cwd()))
    assert re.fullmatch(r"op_capture_result/0/\d{4}-\d\d-\d\d--\d\d-\d\d(-\d+)?", shown)
    assert lines[-1].startswith("OpCapture: 3 calls of 3 ops") or lines[-1].startswith("OpCapture: 4 calls of 4 ops")
    assert lines[-1].endswith(f"in {shown}")


@pytest.mark.parametrize(
    ("level", "has"),
    [
        ("trace", True),
        ("debug", True),
        ("info", True),
        ("INFO", True),
        ("warn", False),
        ("error", False),
        ("off", False),
    ],
)
def test_log_level_comes_from_the_process_environment(level, has, python):
    done = python("import torch, op_tools\nwith op_tools.OpCapture(): torch.ones(2)", OP_TOOLS_LOG_LEVEL=level)
    assert ("apply OpCaptureHook on torch.ones" in done.stderr) == has
    assert level != "off" or done.stderr == ""


def test_log_level_that_is_none_is_said_once_and_summaries_are_shown(python):
    done = python("import torch, op_tools\nwith op_tools.OpCapture(): torch.ones(2)", OP_TOOLS_LOG_LEVEL="loud")
    assert done.stderr.count("OP_TOOLS_LOG_LEVEL: 'loud' is no level") == 1
    assert "trace, debug, info, notice, warn, error, critical, off" in done.stderr
    assert "using notice" in done.stderr and "OpCapture: 1 calls of 1 ops" in done.stderr


def test_nothing_goes_to_standard_output(python):
    assert python("import torch, op_tools\nwith op_tools.OpCapture(): torch.ones(2)").stdout == ""


def test_operators_that_only_read_metadata_are_listed_by_level(capsys):
    listed = {}
    for level in ("torch", "aten"):
        assert main(["ops", "--excluded", "--level", level]) == 0
        listed[level] = capsys.readouterr().out.splitlines()
        assert listed[level] == sorted(set(listed[level]))
    assert {"torch.Tensor.size", "torch.Tensor.shape.__get__", "torch.Tensor.data_ptr"} <= set(listed["torch"])
    assert not {"torch.Tensor.item", "torch.Tensor.tolist", "torch.Tensor.view", "torch.add"} & set(listed["torch"])
    assert {"aten::size.int", "aten::is_same_size"} <= set(listed["aten"])
    assert main(["ops", "--excluded", "--ops", "torch.Tensor.s.*"]) == 0
    some = capsys.readouterr().out.splitlines()
    assert "torch.Tensor.size" in some and "torch.Tensor.dim" not in some


def test_result_table_is_for_people():
    with op_tools.OpCapture(ops="torch.exp,torch.sin") as tool:
        torch.exp(torch.ones(1000))
        torch.sin(torch.ones(10))
    table = tool.result().table().splitlines()
    assert table[0].split() == ["op", "calls", "backward", "MB"]
    assert [line.split()[0] for line in table[1:]] == ["torch.exp", "torch.sin", "total"]
