"""Plain nouns: comments, docstrings, messages and docs name the thing, so "what" and "one" are rare; so do identifiers."""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A program of ours writes these parts of a page: their words are the program's.
WRITTEN = re.compile(r"<!-- (?:op_db|bench|fault trials|tolerances)\b.*?<!-- (?:op_db: end|end)\b.*?-->", re.DOTALL)

PRONOUNS = ("what", "one")
PER_THOUSAND = 3  # words, at most, of each pronoun, in each folder
PUBLIC_NAMES = {("op_tools/_runs/compare_ranks.py", "one")}  # a public argument: compare_ranks(one, many)
ALLOWED_HELPERS = {"main"}  # the function of a module that is started as a program
# Identifiers that name nothing. A comprehension, a generator or a lambda of a single line may have them.
FORBIDDEN_NAMES = {"one", "found", "made", "given", "there"}
FORBIDDEN_CPP_NAMES = FORBIDDEN_NAMES | {"what", "it", "thing", "things", "those", "these"}
CPP_WORDS = r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"'  # comments and strings


def words_of_page(text):
    """Sentences without code, links and tables that a program writes, in their lines."""
    text = WRITTEN.sub(lambda found: "\n" * found[0].count("\n"), text)
    text = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "", text)


def words_of_cpp(text):
    """Comments and strings, in their lines."""
    kept, at = [], 0
    for text_part in re.finditer(CPP_WORDS, text, re.DOTALL):
        kept += [re.sub(r"[^\n]", "", text[at : text_part.start()]), text_part[0]]
        at = text_part.end()
    return "".join(kept)


def words_of_python(text):
    """Comments, strings and docstrings, in their lines."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            string = token.string
            if token.type == tokenize.STRING:
                prefix = string[: string.index(string[-1])]
                string = string[len(prefix) :]
                if "f" in prefix.lower():
                    string = re.sub(r"\{[^{}\n]*\}", "", string)  # expressions, up to Python 3.11
            for number, line in enumerate(string.splitlines(), token.start[0] - 1):
                lines[number] += line + " "
    return "\n".join(lines)


READERS = {".md": words_of_page, ".cpp": words_of_cpp, ".h": words_of_cpp, ".py": words_of_python}


def without_names(path):
    """The words of a file, by line; names in backticks are no words."""
    return re.sub(r"`[^`\n]*`", "", READERS[path.suffix](path.read_text()))


def files_of(folder, root=ROOT):
    return [path for path in sorted((root / folder).rglob("*")) if path.suffix in READERS and path.suffix != ".md"]


def measured_folders(root=ROOT):
    """The files of each folder that has a bar of its own; "pages" are docs and the pages beside the folders."""
    folders = {
        folder: files_of(folder, root)
        for folder in ("src", "bindings", "tools", "compat", "tests/python", "tests/cpp", "tests/fuzz", "tests/proofs")
    }
    of_package = files_of("op_tools", root)
    folders["op_tools"] = [path for path in of_package if path.parent == root / "op_tools"]
    for folder in sorted(path for path in (root / "op_tools").iterdir() if path.is_dir()):
        folders[folder.relative_to(root).as_posix()] = [path for path in of_package if folder in path.parents]
    folders |= {folder: files_of(folder, root) for folder in ("benchmarks", "cmake", "docs", "examples")}
    folders["pages"] = [*sorted((root / "docs").rglob("*.md")), *sorted(root.glob("*.md"))]
    return {folder: files for folder, files in folders.items() if files}


FOLDERS = measured_folders()


def counted(files):
    """How many words the files have, and how many times each pronoun."""
    count = Counter(word.lower() for path in files for word in re.findall(r"[A-Za-z]+", without_names(path)))
    return count.total(), *(count[pronoun] for pronoun in PRONOUNS)


def per_thousand(files):
    words, *pronouns = counted(files)
    return [1000 * count / max(words, 1) for count in pronouns]


def bound_names(node):
    """The names that a node of a syntax tree introduces."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.MatchAs | ast.ExceptHandler):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname


def forbidden_names(text):
    """Lines and names that a text of Python introduces and that name nothing."""
    short = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)

    def below(node):
        if isinstance(node, short) and node.lineno == node.end_lineno:
            return
        for name in bound_names(node):
            if name in FORBIDDEN_NAMES:
                yield node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from below(child)

    return list(below(ast.parse(text)))


def without_cpp_words(text):
    """C++ with blanks in the place of characters, comments and strings."""
    words = re.compile(rf"'(?:\\.|[^'\\\n])'|{CPP_WORDS}", re.DOTALL)
    return words.sub(lambda word: re.sub(r"[^\n]", " ", word[0]), text)


# A name behind its type, alone or in a list of declarators; in a structured binding; in the captures of a lambda.
CPP_DECLARATION = re.compile(
    r"(?:(?P<type>\w+|\S>)[&*]*\s+(?:\w+(?:\s*=\s*[^;,(){}]*|\{[^{}]*\})?,\s*)*"
    r"|auto[&*]*\s*\[[^]]*?|\[[^][]*?(?=\w+\s*=[^=]))"
    rf"\b(?P<name>(?:{'|'.join(sorted(FORBIDDEN_CPP_NAMES))})_?)\b(?=\s*(?:[;:,)}}{{\][]|=[^=]|\((?!\))))"
)
NO_TYPES = {"return", "co_return", "co_yield", "else", "case", "throw", "delete", "new", "goto", "using", "namespace"}
LAMBDA_OF_A_LINE = re.compile(r"\[[^][\n]*\]\([^\n]*?\)[^\n(){};=]*\{(?:[^{}\n]|\{[^{}\n]*\})*\}")


def forbidden_cpp_names(text):
    """Lines and names that a text of C++ declares and that name nothing."""
    code = without_cpp_words(text)
    allowed = [short.span() for short in LAMBDA_OF_A_LINE.finditer(code)]
    for declared in CPP_DECLARATION.finditer(code):
        at = declared.start("name")
        if declared["type"] not in NO_TYPES and not any(begin < at < end for begin, end in allowed):
            yield code.count("\n", 0, at) + 1, declared["name"]


def names_of(files, root=ROOT):
    readers = {".py": forbidden_names, ".cpp": forbidden_cpp_names, ".h": forbidden_cpp_names}
    return [
        f"{path.relative_to(root)}:{line}: {name}"
        for path in files
        if path.suffix in readers
        for line, name in readers[path.suffix](path.read_text())
        if (path.relative_to(root).as_posix(), name) not in PUBLIC_NAMES
    ]


def helpers_of_many_folders(root=ROOT):
    """Functions of modules of op_tools, by name, that several folders define."""
    folders = {}
    for path in files_of("op_tools", root):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                folders.setdefault(node.name, set()).add(path.parent.relative_to(root).as_posix())
    return {name: sorted(where) for name, where in sorted(folders.items()) if len(where) > 1}


@pytest.mark.parametrize("folder", FOLDERS)
def test_pronouns_are_rare(folder):
    for pronoun, figure in zip(PRONOUNS, per_thousand(FOLDERS[folder]), strict=True):
        assert figure <= PER_THOUSAND, f"{folder}: '{pronoun}' {figure:.2f} times in 1,000 words; write the noun"


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_name_a_thing(folder):
    assert names_of(FOLDERS[folder]) == []


def test_a_helper_of_one_name_stands_in_one_folder():
    assert set(helpers_of_many_folders()) <= ALLOWED_HELPERS


def test_pronouns_of_comments_and_messages_are_counted(tmp_path):
    for name, text in {
        "a.py": 'one = 1  # what it is\nprint(f"the one {one}")\n',
        "a.h": 'int what;  // One thing\nfail("what");\n',
        "a.md": "What is `one`?\n```\nwhat\n```\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert counted(sorted(tmp_path.iterdir())) == (10, 3, 2)


def test_identifiers_that_name_nothing_are_seen():
    forbidden = [
        *("one = 1", "self.found = 1", "for made in []: pass", "with a as given: pass", "import a as there"),
        *("def one(): pass", "def f(*, given=1): pass", "class C:\n  found: int", "a = [\n  one\n  for one in b]"),
        "match a:\n  case [made]: pass",
    ]
    assert [text for text in forbidden if not forbidden_names(text)] == []
    allowed = [
        "a = [one for one in b]",
        "sorted(a, key=lambda one: one.x)",
        "f(given for given in a)",
        "found.x",
        "one()",
    ]
    assert [text for text in allowed if forbidden_names(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "auto found = f();",
        "T found;",
        "const std::vector<T>& found_;",
        "for (const T& given : all) {",
        "if (T* made = f()) {",
        "while (const auto* const made{f()}) {",
        "void f(T given);",
        "void f(int a, const char* what, T b) {",
        "auto [a, there] = x;",
        "for (const auto& [one, other] : x) {",
        "std::vector<T> read, made, others;",
        "int64_t a = 0, made_ = 0;",
        "std::map<T, U>\n    found = f();",
        "const T found(a, b);",
        "T made[2];",
        "T made(int a) {",
        "f([&](const T& one) {\n  return one.x;\n});",
        "f([found = g()](int a) {\n  return found;\n});",
        "f([](T a) { return a; }, [&](T one) {\n});",
        r"""f("\\", '"'); auto given = "";""",
        "struct S { std::string what; };",
        "const auto it = all.find(x);",
    ],
)
def test_identifiers_of_cpp_that_name_nothing_are_seen(text):
    assert len(list(forbidden_cpp_names(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "return given;",
        "return *given;",
        "return found(x);",
        "x.found = 1;",
        "found = 1;",
        "f(a, made, b);",
        "f(&made, 1);",
        "a & given;",
        "a && given;",
        "if (a > given) {",
        "x[made] = 1;",
        "std::sort(a, [](T given, T other) { return given < other; });",
        "f([&](const T& one) -> bool { return g({one}); });",
        "const char* what() const noexcept override;",
        "int n;  // T given;",
        "/* T given;\n */ int n;",
        'f("T given;");',
        "int made_calls, found2;",
    ],
)
def test_other_uses_of_such_words_in_cpp_are_allowed(text):
    assert list(forbidden_cpp_names(text)) == []


def table_of(root):
    """A checkout in figures: the bar is 3 of each pronoun in 1,000 words, and no forbidden identifier."""
    lines = [f"{'folder':<22} {'words':>6} {'what':>5} {'one':>5} {'names':>5}"]
    for folder, files in measured_folders(root).items():
        of_what, of_one = (f"{figure:.1f}" for figure in per_thousand(files))
        lines.append(f"{folder:<22} {counted(files)[0]:>6} {of_what:>5} {of_one:>5} {len(names_of(files, root)):>5}")
    shared = set(helpers_of_many_folders(root)) - ALLOWED_HELPERS
    return [*lines, f"helpers of one name in several folders of op_tools: {len(shared)} {' '.join(sorted(shared))}"]


if __name__ == "__main__":  # the table of a checkout: ./dev run python tests/python/test_words.py [CHECKOUT]
    print("\n".join(table_of(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)))  # noqa: T201
