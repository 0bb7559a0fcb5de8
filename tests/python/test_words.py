"""Docs, comments and messages use the field's words: tests/data/unclear_words.txt lists words that are not used."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "data" / "unclear_words.txt"
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
# Folders of code whose comments and messages have none of the words.
CLEAN_FOLDERS = ["benchmarks", "bindings", "docs", "examples", "op_tools", "src", "tools"]
# What a program of ours writes into a page: its words are the program's.
WRITTEN = re.compile(r"<!-- (?:op_db|bench|fault trials|tolerances)\b.*?<!-- (?:op_db: end|end)\b.*?-->", re.DOTALL)


def rules():
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.rsplit(" -> ", 1) for line in lines]
    return [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in pairs]


RULES = rules()


def words_of_page(text):
    """Sentences without code, links and tables that a program writes, in their lines."""
    text = WRITTEN.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "", text)


def words_of_cpp(text):
    """Comments and strings, in their lines."""
    code = re.compile(r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    kept, at = [], 0
    for found in code.finditer(text):
        kept += [re.sub(r"[^\n]", "", text[at : found.start()]), found[0]]
        at = found.end()
    return "".join(kept)


def words_of_python(text):
    """Comments, strings and docstrings, in their lines."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            string = token.string
            if token.type == tokenize.STRING and "f" in string[: string.index(string[-1])].lower():
                string = re.sub(r"\{[^{}\n]*\}", "", string)  # expressions, up to Python 3.11
            for number, line in enumerate(string.splitlines(), token.start[0] - 1):
                lines[number] += line
    return "\n".join(lines)


READERS = {".md": words_of_page, ".cpp": words_of_cpp, ".h": words_of_cpp, ".py": words_of_python}


def unclear(path):
    """Lines with an unclear word, and what to write instead. Names in backticks and paths are no words."""
    text = READERS[path.suffix](path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{number}: '{found[0]}' -> {instead}: {line.strip()}"
        for number, line in enumerate(re.sub(r"`[^`\n]*`", "", text).splitlines(), 1)
        for rule, instead in RULES
        for found in rule.finditer(line)
    ]


def files_of(folder):
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".cpp", ".h", ".py")]


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_unclear_words(page):
    assert unclear(ROOT / page) == []


@pytest.mark.parametrize("folder", CLEAN_FOLDERS)
def test_code_has_no_unclear_words(folder):
    assert files_of(folder), f"{folder} has no code: take it out of CLEAN_FOLDERS"
    assert [line for path in files_of(folder) for line in unclear(path)] == []


def test_rules_find_words_in_comments_and_messages_and_leave_names_alone():
    find = [pattern for pattern, _ in RULES]
    assert len(find) > 20 and all(instead.strip() for _, instead in RULES)

    def hits(text):
        return [found[0] for rule in find for found in rule.finditer(text)]

    assert hits(words_of_cpp('int strike = 1;  // a strike\nfail("two whole numbers");')) == ["whole numbers", "strike"]
    assert hits(words_of_python('texts = 1\nprint("texts")  # texts\n')) == ["texts", "texts"]
    assert hits(words_of_page("`fault.strikes`\n```\nstrikes\n```\n")) == []


if __name__ == "__main__":  # counts for every folder: ./dev run python tests/python/test_words.py
    for room in ["src", "bindings", "tools", "op_tools"]:
        for folder in sorted({path.parent for path in files_of(room)}):
            count = sum(len(unclear(path)) for path in folder.iterdir() if path.suffix in READERS)
            print(f"{count:4} {folder.relative_to(ROOT)}")  # noqa: T201
