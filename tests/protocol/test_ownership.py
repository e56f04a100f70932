"""State has one owner: whoever assigns a field of another class's object is the only one who does."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import edgepeer.protocol

PACKAGE = Path(edgepeer.protocol.__file__).parent

OWNERS = {
    "course": {
        "here",
        "run",
        "committed",
        "restored",
        "missing",
        "carried",
        "loading",
        "taking",
        "over",
        "proven",
        "at",
    },  # where it stands
    "waking": {"waking"},
    "closing": {"spoke"},  # what it has promised in a view: inview.py
    "lane": {"weight", "added"},  # of its streams: streams.py
}
"""Modules that write what others only read, and what that is."""


def assigned(path: Path) -> Iterator[ast.Attribute]:
    """Attributes that a module assigns, or puts something into, of anything but self."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Assign(targets):
                found = targets
            case ast.AugAssign(target) | ast.AnnAssign(target):
                found = [target]
            case _:
                continue
        for target in found:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                each = part.value if isinstance(part, ast.Subscript) else part
                if isinstance(each, ast.Attribute) and not (
                    isinstance(each.value, ast.Name) and each.value.id == "self"
                ):
                    yield each


def declared(path: Path) -> set[str]:
    """The fields of the classes that a module defines."""
    names = set()
    for kind in ast.walk(ast.parse(path.read_text())):
        if isinstance(kind, ast.ClassDef):
            for node in ast.walk(kind):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return names


def test_who_assigns_what_of_others() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.glob("*.py")):
        own = declared(path)
        for each in assigned(path):
            if each.attr not in own and ast.unparse(each.value) != "total.flags" and each.attr != "writeable":
                found[path.stem].add(each.attr)
    assert found == OWNERS


def test_each_of_these_has_one_owner() -> None:
    names = [name for each in OWNERS.values() for name in each]
    assert len(names) == len(set(names))
