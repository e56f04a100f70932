"""Structs can be read by several threads at once from the first one on: see `edgepeer.readable`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from test_layering import FILES, MODULES, importing, name_of

NEVER_READ = {
    "edgepeer.emulation.faults.scenarios": {"Scenario"},
    "edgepeer.peer.said_again": {"_JobAgain"},
    "edgepeer.protocol.effects": {"Send"},
    "edgepeer.protocol.events": {"FrameReceived", "Heard", "Unacknowledged"},
    "edgepeer.protocol.headers": {"Address", "Shape"},
    "edgepeer.topology.view": {"Form"},
    "edgepeer.wire.frames": {"_Header"},
}
"""Beside settings, each field of which is read for itself."""
READ_BY = {"edgepeer.wire.frames": "edgepeer.wire.codec"}
"""What alone reads the Structs of a module, and makes decoders of them all as it is imported."""
OTHER_TYPES = {
    "edgepeer.peer.arguments": {"field.type"},  # of Arguments, which are readable
    "edgepeer.peer.checkpoints": {"dict[str, Ending]"},  # words
    "edgepeer.settings.fields": {"self.type"},  # numbers, words, paths
    "edgepeer.trust.directory": {"cls"},  # Whereabouts
    "edgepeer.training.split.common": {"cls"},  # Common
    "edgepeer.wire.documents": {"kind"},  # of document, named by who calls it
    "edgepeer.readable": {"kind"},
    "edgepeer.fabric.client": {"type(document)"},  # likewise, one of its own
}
"""What else is read, and what of."""

LOOK = """
import gc, importlib, json, sys, msgspec
modules, read_by = json.load(sys.stdin)
tables = {}
for name in modules:
    importlib.import_module(read_by.get(name, name))
    for kind in vars(sys.modules[name]).values():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name:
            found = any(type(each).__name__ == "StructInfo" for each in gc.get_referents(kind))
            tables.setdefault(name, {})[kind.__name__] = found
print(json.dumps(tables))
"""
READ = """
import gc, sys, threading
from pathlib import Path
from edgepeer.ids import Generation
from edgepeer.topology.view import Member, View
from edgepeer.training import checkpoint, state
from edgepeer.training.form import Form
from edgepeer.training.job import Job
from edgepeer.wire.documents import pack, unpack

member, job = Member(id="a", incarnation=1), Job(id="a")
view = View(epoch=1, members=(member,))
packed = state.pack_state("numpy", {}, form=Form(input_shape=(1,), outputs=1, loss="mse"))
file = checkpoint.write_checkpoint(Path(sys.argv[1]), checkpoint.Checkpoint(
    job=job, round=1, generation=Generation(), epoch=1, members=("a",), digest="", state=packed))
reads = {
    "state": lambda: state.read_about(packed),
    "checkpoint": lambda: checkpoint.read_checkpoint(file),
    "view": lambda: unpack(pack(view), View),
    "job": lambda: unpack(pack(job), Job),
}
first, others = map(reads.get, sys.argv[2:4])
kind = {"state": state._StateHeader, "checkpoint": checkpoint._CheckpointHeader, "view": View, "job": Job}[sys.argv[3]]
begun = threading.Event()

def hold(*_):
    if not begun.is_set() and any(type(each).__name__ == "StructInfo" for each in gc.get_referents(kind)):
        begun.set()  # the table is there; without @readable it is unfinished
        threading.Event().wait(0.1)

def go_first():
    sys.setprofile(hold)
    first()
    sys.setprofile(None)
    begun.set()

def follow():
    begun.wait()
    others()

threads = [threading.Thread(target=follow) for _ in range(3)] + [threading.Thread(target=go_first)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("fine")
"""


@cache
def tables() -> dict[str, dict[str, bool]]:
    """By module, of each of its Structs: whether its table is there as soon as the module is."""
    order = TopologicalSorter(importing(typing_too=False)).static_order()  # no module before those that it imports
    modules = [name for name in order if "msgspec" in MODULES[name].read_text()]
    given = json.dumps((modules, READ_BY))
    looked = subprocess.run([sys.executable, "-c", LOOK], input=given, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, bool]] = json.loads(looked.stdout)
    return found


def types_read(path: Path) -> Iterator[str]:
    """What is given to msgspec, or to `documents.unpack`, as the type of what is read; not at import, by a constant."""
    tree = ast.parse(path.read_text())
    tree.body = [statement for statement in tree.body if not isinstance(statement, ast.Assign | ast.AnnAssign)]
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = ast.unparse(call.func).rpartition(".")[2]
            typed = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            if name == "Decoder":
                yield from map(ast.unparse, [*call.args, *typed])
            elif name == "decode":
                yield from map(ast.unparse, typed)
            elif ast.unparse(call.func) in ("msgspec.convert", "unpack"):
                yield from map(ast.unparse, [*call.args[1:2], *typed])


def test_a_struct_is_readable_as_soon_as_its_module_is_there() -> None:
    without = {name: {kind for kind, table in kinds.items() if not table} for name, kinds in tables().items()}
    found = {name: kinds for name, kinds in without.items() if kinds and not name.startswith("edgepeer.settings.")}
    assert found == NEVER_READ, "@readable, or never read?"


def test_nothing_else_is_read() -> None:
    readable = {kind for kinds in tables().values() for kind, table in kinds.items() if table}
    others = {name_of(path): {*types_read(path)} - readable for path in FILES}
    assert {name: types for name, types in others.items() if types} == OTHER_TYPES


@pytest.mark.parametrize(
    ("first", "others"), [("state", "state"), ("checkpoint", "checkpoint"), ("view", "view"), ("checkpoint", "job")]
)
def test_threads_read_for_the_first_time_at_once(first: str, others: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", READ, tmp_path, first, others], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr
