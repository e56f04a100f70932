"""What the package shows of itself, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgepeer

ROOT = Path(edgepeer.__file__).parent
MODULES = sorted(
    module.name for module in pkgutil.walk_packages([str(ROOT)], "edgepeer.") if not module.name.endswith("__main__")
)
HEAVY = ("tensorflow", "keras", "sklearn", "matplotlib", "amqtt", "pyroute2", "cryptography")


def loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import edgepeer",
        "import edgepeer; edgepeer.Peer; edgepeer.connect",
        "import edgepeer.simulation.world",
        "import edgepeer.cli.group as g; [g.application().get_command(None, verb) for verb in g._VERBS]",
        "import edgepeer.peer.agent, edgepeer.cli.peer as verb; verb.machine_of(verb.PeerSettings())",
    ],
)
def test_importing_pulls_in_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & set(HEAVY)


def test_importing_the_package_alone_is_cheap() -> None:
    assert not {"numpy", "aiomqtt", "uvloop", "rich"} & loaded_by("import edgepeer")


@pytest.mark.parametrize(
    "statement",
    [
        "import edgepeer; edgepeer.Peer(); edgepeer.connect; edgepeer.train_split",
        "import edgepeer.peer.agent, edgepeer.cli.peer as verb; verb.machine_of(verb.PeerSettings())",
    ],
)
def test_a_peer_has_nothing_of_the_protocols_that_it_is_compared_with(statement: str) -> None:
    assert not {name for name in loaded_by(statement) if name.startswith("edgepeer.baselines")}


def test_the_public_face() -> None:
    for name in edgepeer.__all__:
        assert getattr(edgepeer, name) is not None
    assert set(edgepeer.__all__) <= set(dir(edgepeer))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = edgepeer.nonsense


@pytest.mark.parametrize("name", MODULES)
def test_all_is_resolvable(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(exported) == len(set(exported))
    for each in exported:
        assert hasattr(module, each), f"{name}.__all__ names {each}, which is not there"


def used_elsewhere() -> dict[str, set[str]]:
    """By module: the names that other modules of the package import from it."""
    used: dict[str, set[str]] = {name: set() for name in MODULES}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in used:
                used[node.module] |= {alias.name for alias in node.names}
    return used


def test_all_is_complete() -> None:
    missing = []
    for name, names in used_elsewhere().items():
        module = importlib.import_module(name)
        submodules = {each.rpartition(".")[2] for each in MODULES if each.rpartition(".")[0] == name}
        missing += [f"{name}.{each}" for each in sorted(names - submodules - set(getattr(module, "__all__", [])))]
    assert not missing, f"imported by others, but not in __all__: {', '.join(missing)}"


MAPPED = [
    "emulation",
    "emulation.faults",
    "emulation.network",
    "fabric",
    "following",
    "peer",
    "protocol",
    "transport",
    *("enrol", "trust"),
]


@pytest.mark.parametrize("package", MAPPED)
def test_the_map_of_a_package_names_all_its_modules(package: str) -> None:
    directory = ROOT.joinpath(*package.split("."))
    named = re.findall(r"^ *(\w+\.py) ", importlib.import_module(f"edgepeer.{package}").__doc__ or "", re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in directory.glob("*.py") if path.name != "__init__.py")
