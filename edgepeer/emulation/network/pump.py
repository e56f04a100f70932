"""A delay line for frames, in a process of its own: for kernels without netem.

`python -m edgepeer.emulation.network.pump CONTROL OUTLET`, both descriptors. Frames are read from packet sockets and
sent to the outlet, another one, later. They are whole writes of up to 64 KB with virtio's header in front (the
kernel cuts them up where it must), so that a fast line costs few of them. Over CONTROL, a
SOCK_SEQPACKET socket, come `ORDER`s; the first for a port with its packet socket. The end of CONTROL ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Final

__all__ = ["ORDER", "Pump"]

ORDER: Final = struct.Struct("<Iq")
"""A port, and nanoseconds from now on; -1: close the port, what it has sent still arrives."""
_FRAME_BYTES: Final = 65_536 + 64
_BATCH: Final = 64
_QUEUE_BYTES: Final = 256 << 20
"""More than that in all lines together is lost, as in a router."""
_PRIORITY: Final = 1
_TICK_S: Final = 250e-6
"""Between two looks at the ports: to wake up for every frame takes more of the processor than to carry it."""


class Pump:
    """The ports, and the frames on their way."""

    def __init__(self, control: socket.socket, outlet: socket.socket) -> None:
        self._control = control
        self._outlet = outlet
        self._ports: dict[int, socket.socket] = {}
        self._arriving: dict[int, tuple[socket.socket, int]] = {}
        """By descriptor: a port's socket, and its delay in nanoseconds."""
        self._lines: dict[int, deque[tuple[int, bytes]]] = {}
        """By delay: frames and when they are due, in order."""
        self._queued = 0
        self._lost = 0
        self._epoll = select.epoll()
        self._epoll.register(control, select.EPOLLIN)

    def run(self) -> None:
        """Until the other end of `control` is closed."""
        epoll, control = self._epoll, self._control.fileno()
        while True:
            if under_way := self._deliver():
                time.sleep(_TICK_S)
            for descriptor, _ in epoll.poll(0 if under_way else None):
                if descriptor != control:
                    self._take(descriptor)
                elif not self._obey():
                    return

    def _deliver(self) -> bool:
        """Write what is due; returns whether more is under way."""
        for line in self._lines.values():
            now = time.monotonic_ns()
            while line and line[0][0] <= now:
                self._write(line.popleft()[1])
        return self._queued > 0

    def _write(self, frame: bytes) -> None:
        self._queued -= len(frame)
        try:
            self._outlet.send(frame)
        except OSError as error:  # a frame that the kernel does not take is lost, as on any line
            self._lose(str(error))

    def _take(self, descriptor: int) -> None:
        if descriptor not in self._arriving:
            return  # closed by what came before it
        port, delay = self._arriving[descriptor]
        line = self._lines.setdefault(delay, deque())
        due = time.monotonic_ns() + delay
        try:
            for _ in range(_BATCH):
                frame = port.recv(_FRAME_BYTES)
                if self._queued + len(frame) > _QUEUE_BYTES:
                    self._lose("more is under way than fits")
                    continue
                self._queued += len(frame)
                line.append((due, frame))
        except BlockingIOError:
            return
        except OSError as error:  # the interface went down
            self._lose(str(error))

    def _obey(self) -> bool:
        order, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        if not order:
            return False
        number, delay = ORDER.unpack(order)
        if descriptors:
            port = self._ports[number] = socket.socket(fileno=descriptors[0])
            port.setblocking(False)
            self._epoll.register(port, select.EPOLLIN)
        port = self._ports[number]
        if delay >= 0:
            self._arriving[port.fileno()] = (port, delay)
        else:
            del self._ports[number], self._arriving[port.fileno()]
            port.close()
        return True

    def _lose(self, reason: str) -> None:
        self._lost += 1
        if self._lost == 1:
            print(f"a frame was lost: {reason}", file=sys.stderr, flush=True)


def main() -> None:
    """The process: its sockets are the descriptors that it is started with."""
    control, outlet = (socket.socket(fileno=int(argument)) for argument in sys.argv[1:])
    with contextlib.suppress(PermissionError):  # only root may; without it a busy machine delays more than is asked for
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    gc.disable()  # nothing here makes cycles
    Pump(control, outlet).run()


if __name__ == "__main__":
    main()
