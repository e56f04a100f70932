"""Who may import whom, read from the source: the layers of ARCHITECTURE.md, and no cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "edgepeer"
FILES = sorted(ROOT.rglob("*.py"))

EVERYONE = {
    *("ids", "errors", "version", "processes", "sockets", "cancelling", "complaints", "printable", "notify"),
    *("given", "elapsed", "readable", "lasting"),
}
ALLOWED: dict[str, set[str]] = {
    "ids": {"errors", "processes", "readable"},
    "errors": set(),
    "version": set(),
    "processes": set(),
    "sockets": {"processes"},
    "cancelling": set(),
    "complaints": set(),
    "printable": set(),
    "notify": set(),
    "given": set(),
    "elapsed": set(),
    "readable": set(),
    "lasting": set(),
    "wire": set(),
    "topology": set(),
    "coding": set(),
    "protocol": {"wire", "topology"},
    "trust": {"wire"},
    "enrol": {"trust", "wire", "fabric"},
    "transport": {"wire", "trust"},
    "fabric": {"wire", "topology", "trust", "transport"},
    "training": {"wire", "coding"},
    "baselines": {"protocol", "wire", "topology"},
    "simulation": {"protocol", "baselines", "wire", "topology", "coding", "training"},
    "peer": {
        *("protocol", "transport", "fabric", "training", "wire", "topology", "settings", "coding"),
        *("trust", "enrol"),
    },
    "settings": {"wire", "topology", "protocol", "fabric", "training", "coding", "trust"},
}
ALLOWED["following"] = {"peer", "transport", "fabric", "training", "coding", "wire", "topology", "settings", "trust"}
ALLOWED["emulation"] = set(ALLOWED) - {"simulation"}
ALLOWED["cli"] = set(ALLOWED)
ALLOWED[""] = {*ALLOWED, "cli"}  # edgepeer/__init__.py and __main__.py

ONLY = {
    ("simulation", "training"): "edgepeer.training.split.",
    ("fabric", "transport"): "edgepeer.transport.door",
    ("enrol", "fabric"): "edgepeer.fabric.rights",
}
"""Of that layer the other may import nothing else: split training is NumPy without I/O, and the simulator runs it; the
embedded broker lets strangers wait as peers do; who founds a fleet writes down for a mosquitto who may do what."""

BARRED = {
    "protocol": {"asyncio", "time", "socket", "random", "threading", "secrets", "datetime"},
    "baselines": {"asyncio", "time", "socket", "random", "threading", "secrets", "datetime"},
    "simulation": {"asyncio", "time", "socket", "threading", "secrets", "datetime"},
    "wire": {"asyncio", "time", "socket", "random"},
    "topology": {"asyncio", "time", "socket", "random"},
    "coding": {"asyncio", "time", "socket", "random", "threading", "secrets", "datetime"},
}
HEAVY = {"tensorflow", "keras", "sklearn", "matplotlib", "amqtt", "prometheus_client", "pyroute2", "cryptography"}
LOADED_LATE = {
    "edgepeer.enrol.client",
    "edgepeer.enrol.household",
    "edgepeer.enrol.joining",
    "edgepeer.enrol.registrar",
    "edgepeer.enrol.renewal",
    "edgepeer.enrol.service",
    "edgepeer.fabric.amqtt_parts",
    "edgepeer.following.plot",
    "edgepeer.simulation.isolation_plot",
    "edgepeer.trust.ciphers",
    "edgepeer.transport.handshake",
    "edgepeer.transport.news",
    "edgepeer.transport.records",
    "edgepeer.transport.secure",
    "edgepeer.trust.certificates",
    "edgepeer.trust.evictions",
    "edgepeer.trust.founding",
    "edgepeer.trust.identity",
    "edgepeer.trust.sealing",
    "edgepeer.trust.shown",
}
"""Modules that are about one heavy library, and that nobody but each other imports before it is needed."""


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    eager: bool
    """Whether it happens when the file is imported."""
    typing_only: bool


def name_of(path: Path) -> str:
    parts = ["edgepeer", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """The layer that a module of edgepeer belongs to; '' for edgepeer itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def imports(path: Path) -> Iterator[Import]:
    def walk(node: ast.AST, eager: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, eager, typing_only)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: import by full name"
                module = child.module or ""
                yield Import(module, child.lineno, eager, typing_only)
                for alias in child.names:
                    if f"{module}.{alias.name}" in MODULES:
                        yield Import(f"{module}.{alias.name}", child.lineno, eager, typing_only)
            inner_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from walk(child, eager and not inner_function, typing_only or guarded)

    yield from walk(ast.parse(path.read_text(), str(path)), True, False)


MODULES = {name_of(path): path for path in FILES}


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 30
    assert {package_of(name) for name in MODULES} >= {"wire", "topology", "protocol", "transport", "simulation", "peer"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_layers(path: Path) -> None:
    layer = package_of(name_of(path))
    assert layer in ALLOWED, f"{layer} has no place in the layers"
    wrong = []
    for found in imports(path):
        top, _, _ = found.module.partition(".")
        if top == "edgepeer":
            other = package_of(found.module)
            if other not in {layer, *ALLOWED[layer], *EVERYONE} and found.module != "edgepeer":
                wrong.append(f"{path}:{found.line}: {layer or 'edgepeer'} may not import {found.module}")
            if not found.module.startswith(ONLY.get((layer, other), "")):
                wrong.append(f"{path}:{found.line}: {layer} may not import {found.module}")
        elif top in BARRED.get(layer, ()):
            wrong.append(f"{path}:{found.line}: {layer} may not import {top}")
        elif top in HEAVY and found.eager and not found.typing_only and name_of(path) not in LOADED_LATE:
            wrong.append(f"{path}:{found.line}: {top} must be imported where it is used")
        late = found.module in LOADED_LATE and name_of(path) not in LOADED_LATE
        if late and found.eager and not found.typing_only:
            wrong.append(f"{path}:{found.line}: {found.module} must be imported where it is used")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_says_what_it_promises(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


def importing(*, typing_too: bool) -> dict[str, set[str]]:
    """Which modules each imports as it is imported; `typing_too`: or names for its annotations."""
    return {
        name: {i.module for i in imports(path) if i.eager and (typing_too or not i.typing_only)} & {*MODULES} - {name}
        for name, path in MODULES.items()
    }


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules of which each leads to each other."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        reached[name], ahead = set(), [name]
        while ahead:
            for other in graph[ahead.pop()] - reached[name]:
                reached[name].add(other)
                ahead.append(other)
    return {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }


def test_no_circular_imports() -> None:
    assert circles(importing(typing_too=False)) == set()


def test_nor_circles_that_only_annotations_close() -> None:
    """Where two files can only be understood together, TYPE_CHECKING hides it from Python, not from readers."""
    assert circles(importing(typing_too=True)) == set()


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, ["ab"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d", "a"}}, ["abc", "de"]),
        ({"a": {"b", "c"}, "b": {"a", "d"}, "c": {"a"}, "d": set()}, ["abc"]),
    ],
)
def test_circles_are_found(graph: dict[str, set[str]], found: list[str]) -> None:
    assert circles(graph) == {frozenset(each) for each in found}


def test_the_layers_themselves_have_no_cycle() -> None:
    done: set[str] = set()

    def visit(layer: str, path: tuple[str, ...]) -> None:
        assert layer not in path, " -> ".join((*path, layer))
        if layer not in done:
            for other in ALLOWED.get(layer, set()) - {layer}:
                visit(other, (*path, layer))
            done.add(layer)

    for layer in ALLOWED:
        visit(layer, ())
