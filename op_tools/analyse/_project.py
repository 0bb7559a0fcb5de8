"""Puts the facts of all files together: the meaning of a name across files, and which functions an unsupported call reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ._file_facts import Definition, FileFacts, Use
from ._table import Support, SupportTable

_CALLS = ("__call__", "forward")
# Methods that objects of other libraries have, too: of an object of which nothing is known they say nothing.
_OTHER_OBJECTS = frozenset(
    name for kind in (list, dict, set, str, bytes, int, float, complex, tuple, memoryview) for name in dir(kind)
) | frozenset(  # numpy, pandas, pathlib, files, loggers
    "all any argmax argmin argsort astype bool backward byte ceil chunk clip close cpu cumprod cumsum detach diagonal diff "
    "div dot double dtype eq exp expand fill flatten flip float floor gather ge gt half histogram index_select int "
    "isnull item le log long lt masked_select max mean median min mod mul ndim ne nonzero norm numpy ones permute pow prod "
    "quantile random ravel read repeat requires_grad reshape resize roll round sample save select shape shift size sort "
    "split sqrt square squeeze stack std step sub sum swapaxes take tile to tolist transpose type unique unstack unsqueeze "
    "update values var view where write zeros zero_grad apply add map rename put trace choose searchsorted nanmean".split()
)


@dataclass(frozen=True)
class Finding:
    """A use whose name is known, and its support."""

    file: str
    use: Use
    symbol: str
    support: Support


class Project:
    """The files of an analysis, as a program."""

    def __init__(
        self, facts: Iterable[FileFacts], table: SupportTable, unsupported: dict[str, str] | None = None
    ) -> None:
        self.facts = list(facts)
        self.table = table
        self._modules: dict[str, FileFacts] = {}
        self._tails: dict[str, FileFacts | None] = {}
        self.definitions: dict[str, Definition] = {}
        self.methods: set[str] = set()
        packages = {one.module for one in self.facts if one.is_package}
        for of_file in self.facts:
            self._modules.setdefault(of_file.module, of_file)
            self.definitions.update(of_file.definitions)
            parts = of_file.module.split(".")
            for index in range(1, len(parts)):  # a script finds its neighbours without the folders above
                if ".".join(parts[:index]) not in packages:
                    tail = ".".join(parts[index:])
                    self._tails[tail] = None if tail in self._tails else of_file
        self.methods = {name.rsplit(".", 1)[1] for name in self.definitions}
        self._resolved: dict[str, str] = {}
        self._unsupported = _by_short_name(unsupported or {})

    # --- Names ---------------------------------------------------------------------------------------------------------

    def resolve(self, symbol: str) -> str:
        """The name of the thing itself: where it is defined, or where it enters the program."""
        known = self._resolved.get(symbol)
        if known is None:
            self._resolved[symbol] = symbol  # names that lead to each other end here
            known = self._resolved[symbol] = self._followed(symbol)
        return known

    def _followed(self, symbol: str) -> str:
        if symbol in self.definitions or (symbol.startswith(("?.", "torch.")) and "torch" not in self._modules):
            return symbol
        parts = symbol.split(".")
        for count in range(len(parts), 0, -1):
            facts = self._module(".".join(parts[:count]))
            if facts is not None:
                rest = parts[count:]
                return self._in_module(facts, rest, symbol) if rest else facts.module
        for count in range(len(parts) - 1, 0, -1):
            if ".".join(parts[:count]) in self.definitions:
                return self._in_class(".".join(parts[:count]), parts[count:], symbol)
        return symbol

    def _module(self, name: str) -> FileFacts | None:
        return self._modules.get(name) or self._tails.get(name)

    def _in_module(self, facts: FileFacts, rest: list[str], symbol: str) -> str:
        own = f"{facts.module}.{rest[0]}"
        target = facts.exports.get(rest[0], own if own in self.definitions else "")
        if target and target != own:
            return self.resolve(".".join([target, *rest[1:]]))
        if own in self.definitions:
            return self._in_class(own, rest[1:], symbol) if rest[1:] else own
        for star in facts.stars:
            target = self.resolve(".".join([star, *rest]))
            if target in self.definitions or (target.startswith("torch.") and self.table.knows(target)):
                return target
        return symbol

    def _in_class(self, name: str, rest: list[str], symbol: str) -> str:
        own = f"{name}.{rest[0]}"
        if own in self.definitions:
            return own if not rest[1:] else self._in_class(own, rest[1:], symbol)
        definition = self.definitions[name]
        target = definition.attributes.get(rest[0])
        if target is not None and target != own:
            is_object = target.endswith("()")
            parts = [target.removesuffix("()"), *(rest[1:] or (["__call__"] if is_object else []))]
            return self.resolve(".".join(parts))
        if rest[0] == "__call__":
            forward = self.resolve(".".join([name, "forward"]))
            if forward in self.definitions:
                return forward
        for base in definition.bases:
            target = self.resolve(".".join([base, *rest]))
            if target in self.definitions or target.startswith("torch."):
                return target
        return symbol

    def calls(self, symbol: str) -> str:
        """The function of this program that is run where a name is called or handed on; "" if there is none."""
        definition = self.definitions.get(symbol)
        if definition is None:
            return ""
        if not definition.is_class:
            return symbol
        target = self.resolve(f"{symbol}.__init__")
        return target if target in self.definitions else ""

    def is_module_class(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a class is a torch.nn.Module."""
        if name.startswith("torch.nn."):
            return True
        definition = self.definitions.get(name)
        if definition is None or name in seen:
            return False
        return any(self.is_module_class(self.resolve(base), seen | {name}) for base in definition.bases)

    # --- Support -------------------------------------------------------------------------------------------------------

    def findings(self, facts: FileFacts) -> Iterator[Finding]:
        """The support of each torch function that a file uses, and of functions that are known not to be supported."""
        for use in facts.uses:
            symbol = self.resolve(use.symbol)
            if symbol.startswith("?."):
                symbol = self._guessed(symbol[2:])
            if symbol.startswith("torch."):
                if symbol.endswith(".__call__"):
                    continue  # of a module: its constructor is reported
                if symbol.startswith("torch.Tensor.") and not self.table.knows(symbol):
                    continue  # the value that was taken for a tensor is none
                yield Finding(facts.file, use, symbol, self.table.support(symbol))
            elif self._unsupported and (known := self._known_unsupported(symbol)):
                yield Finding(facts.file, use, symbol, Support("unsupported", known))

    def _guessed(self, method: str) -> str:
        """A method that tensors have, and no other kind of object that programs use, as far as is known."""
        if method in _OTHER_OBJECTS or method in self.methods:
            return ""
        name = f"torch.Tensor.{method}"
        return name if name in self.table.content["functions"] or method == "cuda" else ""

    def _known_unsupported(self, symbol: str) -> str:
        top, _, rest = symbol.partition(".")
        names = rest.split(".")
        for count in (2, 1):
            known = self._unsupported.get((top, ".".join(names[-count:])))
            if known:
                return known
        return ""

    # --- Propagation ---------------------------------------------------------------------------------------------------

    def edges(self) -> dict[str, dict[str, Use]]:
        """For each function of the program the functions that it calls or hands on, with the first place."""
        edges: dict[str, dict[str, Use]] = {}
        for facts in self.facts:
            for use in facts.uses:
                target = self.calls(self.resolve(use.symbol))
                if target and target != use.scope:
                    edges.setdefault(use.scope, {}).setdefault(target, use)
        return edges


def reached(edges: dict[str, dict[str, Use]], direct: dict[str, set[str]]) -> dict[str, set[str]]:
    """The names that each function reaches, of those that functions contain: itself, or through functions that it calls.

    Args:
        edges: who calls whom.
        direct: function -> the names that it contains.

    Returns:
        function -> all that it reaches. Functions that call each other reach the same.
    """
    result: dict[str, set[str]] = {}
    for component in _components(edges, [*direct, *edges]):
        union: set[str] = set()
        for function in component:
            union |= direct.get(function, set())
            for target in edges.get(function, ()):
                union |= result.get(target, set())
        if union:
            result.update((one, union) for one in component)
    return result


def _components(edges: dict[str, dict[str, Use]], nodes: Iterable[str]) -> Iterator[list[str]]:
    """Tarjan's strongly connected components, callees first, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in nodes:
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(edges.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges.get(target, ()))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    yield component


def _by_short_name(names: dict[str, str]) -> dict[tuple[str, str], str]:
    """A library's functions by (package, last part): programs import them from other places than where they are defined. A
    class by its constructor and its forward()."""
    by_class: dict[tuple[str, str], str] = {}
    for name, told in sorted(names.items()):
        top, _, rest = name.partition(".")
        parts = rest.split(".")
        if parts[-1] in ("__init__", *_CALLS) and len(parts) > 1:
            by_class.setdefault((top, parts[-2]), told)
            by_class.setdefault((top, ".".join(parts[-2:])), told)
        elif len(parts) > 1 and parts[-2][:1].isupper():
            by_class.setdefault((top, ".".join(parts[-2:])), told)
        else:
            by_class.setdefault((top, parts[-1]), told)
    return by_class
