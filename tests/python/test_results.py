"""Results of all tools: rows are dataclasses, tables are sorted, limited and end with totals, objects show themselves."""

import dataclasses
import sys
import types

import pytest
import torch

import op_tools

TOOLS = [
    op_tools.OpCapture,
    op_tools.OpAutoCompare,
    op_tools.OpTimeMeasure,
    op_tools.OpObserve,
    op_tools.OpOverflowCheck,
    op_tools.OpInvariance,
    op_tools.OpRecord,
    op_tools.OpFallback,
    op_tools.OpDtypeCast,
]


def result_of(kind):
    with kind(**({"ops": "torch.mm"} if "Fallback" in kind.__name__ else {})) as tool:
        a = torch.ones(3, 3, dtype=torch.float16 if "Cast" in kind.__name__ else torch.float32)
        for size in (1, 2, 3):
            torch.mm(a[:size], a)
            torch.log(a[:size] - 1)
    return tool, tool.result()


@pytest.mark.parametrize("kind", [*TOOLS, op_tools.OpBlackBox])
def test_every_result_has_rows_a_table_and_shows_itself(kind, monkeypatch):
    tool, result = result_of(kind)
    assert type(result).__name__ in repr(result) and f"{len(result.rows)} row" in repr(result)
    assert "<table>" in result._repr_html_()
    assert repr(tool).startswith(f"<op_tools.{kind.__name__}(") and repr(tool).endswith("off>")
    assert repr(tool)[1:20] in tool._repr_html_().replace("&lt;", "<") or "&lt;op_tools" in tool._repr_html_()
    frames = []
    fake = types.ModuleType("pandas")
    fake.DataFrame = frames.append
    monkeypatch.setitem(sys.modules, "pandas", fake)
    result.to_pandas()
    assert len(frames[0]) == len(result.rows)
    assert all(dataclasses.is_dataclass(row) for row in result.rows)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(op_tools.Error, match="pandas is not installed"):
        result.to_pandas()


@pytest.mark.parametrize("kind", [one for one in TOOLS if one not in (op_tools.OpFallback, op_tools.OpDtypeCast)])
def test_tables_are_sorted_limited_and_say_what_is_left(kind):
    _, result = result_of(kind)
    rows = getattr(result, "ops", None) or result.rows
    assert len(rows) > 1
    limited = result.table(row_limit=1).splitlines()
    assert f"... and {len(rows) - 1} more rows" in "\n".join(limited)
    ops = [line.split() for line in result.table(sort_by="op", row_limit=-1).splitlines()]
    titles = next(words for words in ops if "op" in words)  # a table may begin with the account
    place = titles.index("op")
    named = [
        words[place]
        for words in ops[ops.index(titles) + 1 :]
        if words[place : place + 1] and words[place].startswith("torch.")
    ]
    assert named == sorted(row.op for row in rows)
    with pytest.raises(op_tools.Error, match=r"sort_by=: 'speed' is not allowed; give .*op"):
        result.table(sort_by="speed")
    with pytest.raises(op_tools.Error, match="row_limit=-3"):
        result.table(row_limit=-3)


def test_a_table_ends_with_the_total_of_all_rows():
    with op_tools.OpCapture() as tool:
        for _ in range(3):
            torch.neg(torch.ones(2))
            torch.exp(torch.ones(2))
    result = tool.result()
    last = result.table(row_limit=1).splitlines()[-1].split()
    assert last[:5] == ["total", "of", "3", "12", "0"]
    assert sum(row.calls for row in result.rows) == 12


def test_texts_in_html_are_texts():
    result = op_tools.ToolResult(rows=[op_tools.CaptureRow("<script>", 1, 0, 0, 0, 0)])
    assert "<script>" not in result._repr_html_() and "&lt;script&gt;" in result._repr_html_()


def test_rows_of_comparisons_are_read_by_field_and_by_name():
    with op_tools.OpAutoCompare() as tool:
        torch.neg(torch.ones(3))
    row = next(row for row in tool.result().rows if row.op == "torch.neg")
    assert row.verdict == row["verdict"] == row.get("verdict") == "agrees"
    assert "saved" not in row and row.saved is None and row.get("saved", "no") == "no"
    assert {**row}["op"] == "torch.neg"
    with pytest.raises(KeyError):
        row["colour"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ops": 3}, "ops="),
        ({"output_dir": 3}, "output_dir="),
        ({"modules": 3}, "modules="),
        ({"steps": 3}, "steps="),
        ({"level": 3}, "level="),
        ({"ops": [3]}, "ops="),
        ({"ops": b"torch.add"}, "ops="),
    ],
)
def test_an_argument_of_a_wrong_type_is_an_error_that_says_so(options, text):
    with pytest.raises(op_tools.Error, match=f"^{text}.* is not "):
        op_tools.OpCapture(**options).start()


def test_the_table_of_a_black_box_ends_with_the_last_calls_unless_it_is_sorted(tmp_path):
    with op_tools.OpBlackBox(output_dir=tmp_path) as tool:
        for size in (2, 3, 4):
            torch.exp(torch.ones(size))
    result = tool.result()
    assert result.table(row_limit=1).splitlines()[-1].split()[1:3] == ["exp", "float32[4]"]
    assert len(result.table(row_limit=-1).splitlines()) == len(result.rows) + 1
    by_op = result.table(sort_by="op", row_limit=2)
    assert f"... and {len(result.rows) - 2} more rows" in by_op
    with pytest.raises(op_tools.Error, match="sort_by=: 'nothing'"):
        result.table(sort_by="nothing")


def test_memory_in_use_and_stacks_are_rows_that_read_as_dicts_too(tmp_path):
    with op_tools.OpTimeMeasure(memory=True, with_stack=True, output_dir=tmp_path) as tool:
        kept = torch.exp(torch.ones(1000))
    result = tool.result()
    assert kept.sum() > 0
    assert any(one.bytes == one["bytes"] == 4000 and "test_results.py" in one.where for one in result.alive)
    assert all(dataclasses.is_dataclass(one) for one in (*result.alive, *result.stacks))
    assert any(one.frames[0] == "torch.exp" and one["self_ms"] >= 0 for one in result.stacks)
    with pytest.raises(KeyError):
        result.alive[0]["nothing"]
