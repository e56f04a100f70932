"""A delay line for frames, in a process of its own: for kernels without netem.

`python -m edgepeer.emulation.network.pump CONTROL`, a descriptor. Frames are read from packet sockets and sent to
others, later. They are whole writes of up to 64 KB with virtio's header in front (the kernel cuts them up where it
must), so that a fast line costs few of them. Over CONTROL, a SOCK_SEQPACKET socket, come `ORDER`s; the first for a
port with its two packet sockets. The end of CONTROL ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Final

__all__ = ["ORDER", "Pump"]

ORDER: Final = struct.Struct("<Iqq")
"""A port, and from now on nanoseconds of delay and of jitter; -1: close the port, what it has sent still arrives."""
_FRAME_BYTES: Final = 65_536 + 64
_BATCH: Final = 64
_QUEUE_BYTES: Final = 256 << 20
"""More than that in all lines together is lost, as in a router."""
_PRIORITY: Final = 1
_TICK_S: Final = 250e-6
"""Between two looks at the ports: to wake up for every frame takes more of the processor than to carry it."""


class _Line:
    """What one port has sent: frames, and when they are due, in order.

    Jitter stops the line for a time drawn anew: what comes meanwhile is let go at its end, all of it together.
    """

    __slots__ = ("_delay", "_jitter", "_last", "_open_at", "frames", "outlet", "port")

    def __init__(self, port: socket.socket, outlet: socket.socket) -> None:
        self.outlet = outlet
        self.port: socket.socket | None = port
        self.frames: deque[tuple[int, bytes]] = deque()
        self._delay = self._jitter = self._open_at = self._last = 0

    def set(self, delay: int, jitter: int) -> None:
        self._delay, self._jitter = delay, jitter

    def close(self) -> None:
        if self.port is not None:
            self.port.close()
        self.port = None  # the outlet is needed while something is under way

    def due(self, now: int) -> int:
        """When what comes now is to arrive, in nanoseconds."""
        if self._jitter and now >= self._open_at:
            self._open_at = now + int(self._jitter * random.random())
        # Whatever changes, nobody overtakes.
        self._last = max(self._last, (max(now, self._open_at) if self._jitter else now) + self._delay)
        return self._last


class Pump:
    """The ports, and the frames on their way."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ports: dict[int, _Line] = {}
        self._arriving: dict[int, _Line] = {}
        """By descriptor of a port's socket."""
        self._lines: list[_Line] = []
        """Those of closed ports, too, while something is under way on them."""
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
        for line in self._lines:
            if frames := line.frames:
                now = time.monotonic_ns()
                while frames and frames[0][0] <= now and self._write(line.outlet, frames[0][1]):
                    frames.popleft()
        return self._queued > 0

    def _write(self, outlet: socket.socket, frame: bytes) -> bool:
        """Whether the frame is gone; else queues that this port's frames stand in have no room for it yet."""
        try:
            outlet.send(frame)
        except BlockingIOError:
            return False
        except OSError as error:  # a frame that the kernel does not take is lost, as on any line
            self._lose(str(error))
        self._queued -= len(frame)
        return True

    def _take(self, descriptor: int) -> None:
        if descriptor not in self._arriving:
            return  # closed by what came before it
        line = self._arriving[descriptor]
        port, frames = line.port, line.frames
        assert port is not None
        due = line.due(time.monotonic_ns())
        try:
            for _ in range(_BATCH):
                frame = port.recv(_FRAME_BYTES)
                if self._queued + len(frame) > _QUEUE_BYTES:
                    self._lose("more is under way than fits")
                    continue
                self._queued += len(frame)
                frames.append((due, frame))
        except BlockingIOError:
            return
        except OSError as error:  # the interface went down
            self._lose(str(error))

    def _obey(self) -> bool:
        order, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 2)
        if not order:
            return False
        number, delay, jitter = ORDER.unpack(order)
        if descriptors:
            port, outlet = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            port.setblocking(False)
            outlet.setblocking(False)
            self._epoll.register(port, select.EPOLLIN)
            self._lines = [line for line in self._lines if line.port is not None or line.frames]
            self._lines.append(_Line(port, outlet))
            self._ports[number] = self._arriving[port.fileno()] = self._lines[-1]
        if delay >= 0:
            self._ports[number].set(delay, jitter)
            return True
        line = self._ports.pop(number)
        assert line.port is not None
        del self._arriving[line.port.fileno()]
        line.close()
        return True

    def _lose(self, reason: str) -> None:
        self._lost += 1
        if self._lost == 1:
            print(f"a frame was lost: {reason}", file=sys.stderr, flush=True)


def main() -> None:
    """The process: its socket is the descriptor that it is started with."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(PermissionError):  # only root may; without it a busy machine delays more than is asked for
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    gc.disable()  # nothing here makes cycles
    Pump(control).run()


if __name__ == "__main__":
    main()
