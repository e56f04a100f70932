"""Structs can be read by several threads at once from the first one on: see `edgepeer.readable`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("first", "others"), [("state", "state"), ("checkpoint", "checkpoint"), ("view", "view"), ("checkpoint", "job")]
)
def test_threads_read_for_the_first_time_at_once(first: str, others: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", READ, tmp_path, first, others], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr
