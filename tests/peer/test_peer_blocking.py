"""edgepeer.connect: the same from threads and scripts."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from peer_fleet import DEADLINE_S

import edgepeer
from edgepeer.errors import ConfigError, FabricError, LeftFabric, NotReady, ProtocolBug, RoundTimeout
from edgepeer.fabric.broker import EmbeddedBroker


def test_two_peers_in_two_threads(broker_elsewhere: EmbeddedBroker) -> None:
    url = broker_elsewhere.address.url()

    def work(rank: int) -> list[float]:
        with edgepeer.connect(url, "lab", peer_id=f"p{rank}") as peer:
            view = peer.ready(peers=2, timeout=DEADLINE_S)
            assert view.size == 2
            assert view == peer.view
            assert peer.id == f"p{rank}"
            rounded = peer.allreduce(np.full(3, 1 + 2**-10, np.float32), precision="bf16")
            assert rounded.precision == "bf16"
            assert rounded.vector.tolist() == [2.0] * 3
            return [float(peer.allreduce(np.full(3, float(rank + n)), weight=1 + rank).mean[0]) for n in range(10)]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(work, range(2))
    assert first == second
    np.testing.assert_allclose(first, [n + 2 / 3 for n in range(10)])


def test_what_goes_wrong_is_raised_where_it_was_called(broker_elsewhere: EmbeddedBroker) -> None:
    url = broker_elsewhere.address.url()
    before = threading.active_count()
    with pytest.raises(ConfigError):
        edgepeer.connect(url, "no/slash")
    with pytest.raises(TypeError):
        edgepeer.connect(url, colour="red")
    began = time.monotonic()
    with pytest.raises(FabricError, match="connection refused"):
        edgepeer.connect("mqtt://127.0.0.1:1")
    assert time.monotonic() - began < 30
    with edgepeer.connect(url, "lab", peer_id="a") as a:
        a.ready()
        with pytest.raises(NotReady, match="1 of 2 peers"):
            a.ready(2, timeout=0.1)
        with pytest.raises(TypeError, match="float32 or float64"):
            a.allreduce(np.ones(2, np.int32))
        with edgepeer.connect(url, "lab", peer_id="b") as b:
            b.ready(2)
            with pytest.raises(RoundTimeout, match="waiting for"):
                b.allreduce(np.ones(2), timeout=0.1)
    assert threading.active_count() == before


def test_closed_is_closed(broker_elsewhere: EmbeddedBroker) -> None:
    peer = edgepeer.connect(broker_elsewhere.address.url(), "lab")
    peer.ready()
    peer.close()
    peer.close()
    with pytest.raises(LeftFabric, match="this peer is closed"):
        peer.allreduce(np.ones(1))


def test_a_fork_leaves_the_peer_to_its_parent(broker_elsewhere: EmbeddedBroker) -> None:
    """As a pool of processes does: it has no thread that could leave."""
    script = (
        "import os, sys, edgepeer\n"
        "with edgepeer.connect(sys.argv[1], 'lab', peer_id='a') as peer:\n"
        "    peer.ready()\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        print('child', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), peer.view.ids, flush=True)\n"
        "os._exit(0 if child else 7)\n"
    )
    command = [sys.executable, "-c", script, broker_elsewhere.address.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "child 7 ('a',)\n"), done.stderr


def test_a_call_that_waits_when_the_peer_is_closed(broker_elsewhere: EmbeddedBroker) -> None:
    url = broker_elsewhere.address.url()
    with edgepeer.connect(url, "lab", peer_id="a") as a, ThreadPoolExecutor(1) as thread:
        a.ready()
        b = edgepeer.connect(url, "lab", peer_id="b")
        b.ready(2)
        waiting = thread.submit(b.allreduce, np.ones(2))
        b.close()
        with pytest.raises(LeftFabric):
            waiting.result(DEADLINE_S)


@pytest.mark.parametrize("calling", [True, False])
def test_a_bug_in_the_machine_surfaces(
    calling: bool, broker_elsewhere: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = ProtocolBug("made for this test")

    def fail(*_: object) -> list[object]:
        raise bug

    def live() -> None:
        ended = threading.Event()
        with edgepeer.connect(broker_elsewhere.address.url(), "lab") as peer:
            peer.ready()
            monkeypatch.setattr(peer._peer._driver.node, "tick", fail)
            peer._life.add_done_callback(lambda _: ended.set())
            if calling:
                peer.ready(2, timeout=DEADLINE_S)
            assert ended.wait(DEADLINE_S)

    with pytest.raises(ProtocolBug) as caught:
        live()
    assert caught.value is bug


@contextlib.contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive this context."""
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check_interrupted(process: subprocess.Popen[str]) -> None:
    """Ctrl-C ends it in time, and as Python does."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.slow
def test_ctrl_c_in_a_script_leaves_the_fabric(broker_elsewhere: EmbeddedBroker) -> None:
    script = (
        "import signal, sys, numpy, edgepeer\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background ignores it
        "with edgepeer.connect(sys.argv[1], 'lab', peer_id='b') as peer:\n"
        "    peer.ready(2)\n"
        "    print('ready', flush=True)\n"
        "    peer.allreduce(numpy.ones(3))\n"
    )
    url = broker_elsewhere.address.url()
    with edgepeer.connect(url, "lab", peer_id="a") as a:
        a.ready()
        with running(script, url) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            a.ready(2)
            check_interrupted(process)
            # It took leave: the round that it had a part in is given to nobody else.
            assert set(a.allreduce(np.ones(3), timeout=DEADLINE_S).contributors) in ({"a", "b"}, {"a"})


@pytest.mark.parametrize("secure", [False, True])
def test_ctrl_c_while_a_broker_is_silent(secure: bool) -> None:
    """However long one would wait for it."""
    script = (
        "import functools, signal, sys\n"
        "from edgepeer.peer import api, blocking\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "api.FabricClient = functools.partial(api.FabricClient, timeout=1000)\n"
        "blocking.connect(sys.argv[1])\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        url = f"mqtt{'s' if secure else ''}://127.0.0.1:{silent.getsockname()[1]}"
        with running(script, url) as process:
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(DEADLINE_S)
                assert connection.recv(1)
                check_interrupted(process)


def test_ctrl_c_while_a_name_is_looked_up() -> None:
    """A name server that is out of reach takes its time, and the C library's look-up can't be interrupted."""
    script = (
        "import signal, socket, threading, edgepeer\n"
        "def getaddrinfo(*_, **__):\n"
        "    print('asked', flush=True)\n"
        "    threading.Event().wait()\n"
        "socket.getaddrinfo = getaddrinfo\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "edgepeer.connect('mqtt://broker.example')\n"
    )
    with running(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        check_interrupted(process)
