"""Python decides by tokens: no comparison with a sentence that people read, which the next wording would break."""

import ast
from collections.abc import Iterator
from pathlib import Path

import op_tools

PACKAGE = Path(op_tools.__file__).parent
COMPARING = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("find", "index", "count", "match", "fullmatch", "search"),
}


def literals(node: ast.AST) -> Iterator[ast.Constant]:
    """The texts that an expression is, or consists of."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from literals(item)
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from literals(part)


def compared(tree: ast.AST) -> Iterator[ast.Constant]:
    """The texts that anything is compared with: ==, !=, in, methods and functions that look for a text, match statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from literals(side)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMPARING:
            for argument in node.args:
                yield from literals(argument)
        elif isinstance(node, ast.MatchValue):
            yield from literals(node.value)


def sentences(text: str) -> list[tuple[int, str]]:
    """By line: the texts with a blank between words that the code is decided by."""
    return [(one.lineno, one.value) for one in compared(ast.parse(text)) if " " in one.value.strip()]


def test_nothing_is_decided_by_a_sentence():
    decided = [
        f"{path.relative_to(PACKAGE)}:{line}: {text!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in sentences(path.read_text())
    ]
    assert decided == [], "the core has tokens for decisions; give the row a token"


def test_each_way_to_compare_is_seen():
    text = """
a == "x y"
"x y" in a
a in ("b", "x y")
a.startswith(("b", "x y"))
a.partition(f"{b}: x y")
re.fullmatch("x y", a)
match a:
    case "x y":
        pass
a == "x"
print("x y")
"""
    assert [line for line, _ in sentences(text)] == [2, 3, 4, 5, 6, 7, 9]
