"""Finds the functions that C++ and CUDA sources give to Python: TORCH_LIBRARY, PYBIND11_MODULE, RegisterOperators.

A tokenizer, no parser: comments, strings and raw strings are known, so that a definition may span lines, and comments
have none. Preprocessor conditions are not evaluated: all branches count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""//(?:[^\n\\]|\\.)*|/\*.*?\*/
    |R"(?P<mark>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=mark)"
    |"(?P<text>(?:\\.|[^"\\\n])*)"
    |'(?:\\.|[^'\\\n])*'
    |(?P<name>[A-Za-z_]\w*)
    |(?P<other>[^\s\w])""",
    re.DOTALL | re.VERBOSE,
)
_LIBRARIES = frozenset(("TORCH_LIBRARY", "TORCH_LIBRARY_FRAGMENT", "TORCH_LIBRARY_IMPL"))
_BLOCKS = _LIBRARIES | {"PYBIND11_MODULE"}

Definition = tuple[str, int, int]
Token = tuple[str, str, int]


def scan_native(text: str) -> dict[str, list[Definition]]:
    """The definitions of a source: "namespace.name" of TORCH_LIBRARY, "name" of PYBIND11_MODULE, each with its schema or
    signature as far as the text has one, its first line and its last."""
    definitions: dict[str, list[Definition]] = {}
    if not any(block in text for block in (*_BLOCKS, "RegisterOperators")):
        return definitions
    tokens = list(_tokens(text))
    if ("name", "RegisterOperators") in {token[:2] for token in tokens}:
        _registered(tokens, definitions)
    index = 0
    while index < len(tokens):
        kind, word, _ = tokens[index]
        if kind == "name" and word in _BLOCKS and _follows(tokens, index + 1, "("):
            arguments, after = _group(tokens, index + 1, "(", ")")
            if _follows(tokens, after, "{"):
                body, index = _group(tokens, after, "{", "}")
                _block(word, arguments, body, definitions)
                continue
        index += 1
    return definitions


def _registered(tokens: list[Token], definitions: dict[str, list[Definition]]) -> None:
    """RegisterOperators().op("space::name(Tensor x) -> Tensor", &function)"""
    for index in range(1, len(tokens) - 2):
        if (
            tokens[index][:2] == ("name", "op")
            and _follows(tokens, index - 1, ".")
            and _follows(tokens, index + 1, "(")
        ):
            schema = "".join(one[1] for one in _first_string(tokens[index + 2 : index + 12]))
            space, _, rest = schema.partition("::")
            name = re.split(r"[.(\s]", rest, maxsplit=1)[0]
            if name:
                definitions.setdefault(f"{space}.{name}", []).append((schema, tokens[index][2], tokens[index + 2][2]))


def _tokens(text: str) -> Iterator[Token]:
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        for kind in ("raw", "text", "name", "other"):
            if match[kind] is not None:
                yield "text" if kind == "raw" else kind, match[kind], line
                break


def _follows(tokens: list[Token], index: int, mark: str) -> bool:
    return index < len(tokens) and tokens[index][:2] == ("other", mark)


def _group(tokens: list[Token], index: int, opening: str, closing: str) -> tuple[list[Token], int]:
    """The text between a bracket and its counterpart, and the place after it. The rest of the file where there is none."""
    depth = 0
    for end in range(index, len(tokens)):
        if tokens[end][0] == "other":
            depth += (tokens[end][1] == opening) - (tokens[end][1] == closing)
            if depth == 0:
                return tokens[index + 1 : end], end + 1
    return tokens[index + 1 :], len(tokens)


def _block(word: str, arguments: list[Token], body: list[Token], definitions: dict[str, list[Definition]]) -> None:
    names = [one[1] for one in arguments if one[0] == "name"]
    if not names:
        return
    space = names[0] + "." if word in _LIBRARIES else ""
    variable = names[1] if word == "PYBIND11_MODULE" and len(names) > 1 else names[-1]
    classes = {variable}
    for index, (kind, text, line) in enumerate(body):
        if kind == "name" and text in ("def", "impl", "class_", "def_static") and _call_begins(body, index):
            inner, after = _group(body, _open(body, index), "(", ")")
            strings = [one for one in inner if one[0] == "text"]
            if not strings:
                continue
            is_method = text in ("def", "def_static") and not _called_on(body, index, classes)
            last = body[after - 1][2] if after <= len(body) and after else line
            schema = "".join(one[1] for one in _first_string(inner))
            name = re.split(r"[(\s]", schema.split("::")[-1], maxsplit=1)[0]
            if name and not is_method:
                definitions.setdefault(space + name.split(".")[0], []).append((schema, line, last))


def _call_begins(body: list[Token], index: int) -> bool:
    return _open(body, index) < len(body)


def _open(body: list[Token], index: int) -> int:
    """The bracket of a call, after template arguments if there are some."""
    at = index + 1
    if _follows(body, at, "<"):
        depth = 0
        while at < len(body):
            depth += _follows(body, at, "<") - _follows(body, at, ">")
            at += 1
            if depth == 0:
                break
    if at < len(body) and body[at][0] == "name":  # py::class_<T> name(m, "T")
        at += 1
    return at if _follows(body, at, "(") else len(body)


def _called_on(body: list[Token], index: int, variables: set[str]) -> bool:
    """m.def(...), or m.def(...).def(...): of the module, not of a class that stands before in the chain."""
    at = index - 1
    while at > 0 and _follows(body, at, "."):
        at -= 1
        if _follows(body, at, ")"):
            depth = 0
            while at >= 0:
                depth += _follows(body, at, ")") - _follows(body, at, "(")
                at -= 1
                if depth == 0:
                    break
            if at >= 0 and body[at][1] in ("def", "impl"):
                at -= 1
                continue
            return False
        return at >= 0 and body[at][1] in variables
    return False


def _first_string(tokens: list[Token]) -> Iterator[Token]:
    """The first string with those that directly follow it: "a" "b" is a single string."""
    for index, token in enumerate(tokens):
        if token[0] == "text":
            yield token
            for other in tokens[index + 1 :]:
                if other[0] != "text":
                    return
                yield other
            return
