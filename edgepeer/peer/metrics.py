"""What a device counts and measures, in Prometheus' format, over HTTP where it is asked for.

Needs the `metrics` extra, and loads it only then. Labels have few values, whatever the fleet's size: neighbours are
told apart by role, paths by kind, never by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from edgepeer.errors import ConfigError
from edgepeer.peer.api import Peer
from edgepeer.peer.checkpoints import Checkpoints
from edgepeer.peer.outcome import Outcome
from edgepeer.peer.page_server import PageServer
from edgepeer.protocol.links import LinkState
from edgepeer.training.trainer import Evaluation
from edgepeer.transport.options import parse_address
from edgepeer.version import VERSION

__all__ = ["Metrics"]

_ROLES: Final = ("parent", "child", "lane", "backup")
_PATHS: Final = ("direct", "via", "relay", "none")
_SPLIT: Final = {
    "computed": ("split_iterations_computed", "Iterations of split jobs, those that were done again included."),
    "corrected": ("split_lines_corrected", "Wrong lines that were corrected, in the fleet."),
    "damaged": ("split_lines_damaged", "Lines that were damaged on their way and made up for, in the fleet."),
    "erased": ("split_contributions_erased", "Contributions that were missing and made up for, in the fleet."),
    "unchecked": ("split_steps_unchecked", "Steps that nobody could check, for too much was missing, in the fleet."),
    "odd": ("split_peers_odd", "Peers that went on from something else and did their step again, in the fleet."),
    "regenerated": ("split_blocks_regenerated", "Blocks that were put together again from others', in the fleet."),
    "scrubbed": ("split_blocks_scrubbed", "Blocks that a look at all weights found wrong, in the fleet."),
    "restored": ("split_restores", "Times that the fleet went back to a checkpoint."),
    "checkpoints": ("split_checkpoints", "Checkpoints that the fleet made."),
    "injected": ("soft_errors_injected", "Soft errors that this peer was told to make, and has made."),
    "found": ("soft_errors_found", "Those of them that were found."),
    "harmless": ("soft_errors_harmless", "Those of them that are lost in rounding."),
    "reverted": ("soft_errors_restored", "Those of them before which training went back."),
}
_OF_THIS_PEER: Final = ("injected", "found", "harmless", "reverted")
"""Of those: counted from 0 on whenever this peer takes a job up; the others from when the fleet did."""
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Served while its context is open; counts nothing without an address.

    Args:
        address: a port of this machine, or host:port; None: none are wanted.

    Raises (on entering):
        ConfigError: prometheus-client is not installed, or it can't listen there.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._stack = AsyncExitStack()
        self._rounds: Any = None
        self._seconds: Any = None
        self._last: Outcome | None = None
        self._loss = math.nan
        self._evaluation: Evaluation | None = None
        self._peer: Peer | None = None
        self._checkpoints: Checkpoints | None = None
        self._split: Mapping[str, int] = {}
        self._split_job = ""
        self._split_most: Counter[str] = Counter()
        """Of the split job, by the names of _SPLIT, the most that was counted ..."""
        self._split_before: Counter[str] = Counter()
        """... and of all before it: counters never fall."""
        self.url = ""
        """Where they are served; empty if they aren't."""

    async def __aenter__(self) -> Self:
        if self._address is None:
            return self
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise ConfigError(
                f"metrics_port needs prometheus-client ({error}): pip install 'edgepeer[metrics]'"
            ) from error
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # it is not typed
        registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        self._rounds = prometheus.Counter(
            "edgepeer_rounds", "Rounds by how they ended at this peer.", ["outcome"], registry=registry
        )
        for outcome in ("exact", "inexact", "aborted"):
            self._rounds.labels(outcome)
        self._seconds = prometheus.Histogram(
            "edgepeer_round_seconds",
            "Where the time of a round went: compute, then waited for the children, broadcast of the result, decided; "
            "allreduce is all but compute, and of a coded round all.",
            ["phase"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        registry.register(self)
        server = PageServer(
            "metrics_port",
            *parse_address(self._address if ":" in self._address else f"127.0.0.1:{self._address}"),
            path="/metrics",
            content_type=prometheus.CONTENT_TYPE_LATEST,
            make=lambda: prometheus.generate_latest(registry),
        )
        await self._stack.enter_async_context(server)
        self.url = server.url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def watch(self, peer: Peer, checkpoints: Checkpoints) -> None:
        """Tell also of this peer, which has started."""
        self._peer, self._checkpoints = peer, checkpoints

    def begun(self) -> None:
        """Another job is taken up: what was last told is of the one before it, and not of this."""
        self._last, self._loss, self._evaluation = None, math.nan, None

    def committed(self, outcome: Outcome, compute_s: float) -> None:
        """A round has ended well."""
        if self._rounds is None:
            return
        self._last = outcome
        self._rounds.labels("exact" if outcome.exact else "inexact").inc()
        phases = outcome.phases
        for phase, seconds in (
            ("compute", compute_s),
            ("allreduce", outcome.seconds),
            ("waited", phases.waited_s),
            ("broadcast", phases.broadcast_s),
            ("decided", phases.decided_s),
        ):
            self._seconds.labels(phase).observe(seconds)

    def learned(self, loss: float, evaluation: Evaluation | None, *, leads: bool) -> None:
        """How good the model is: at every round, and where it was evaluated; by whoever `leads`, and once another does
        that, what this peer has found before is not how it is any more."""
        self._loss = loss
        if evaluation is not None or not leads:
            self._evaluation = evaluation

    def split(self, job: str, numbers: Mapping[str, int]) -> None:
        """How a split job stands: what the fleet and this peer have counted, and what it holds."""
        if job != self._split_job:
            self._settle(_SPLIT)
            self._split_job = job
        self._split = numbers
        self._split_most |= Counter({key: numbers.get(key, 0) for key in _SPLIT})

    def split_over(self) -> None:
        """This peer has no part in the split job any more, and may have one in it again."""
        self._split = {}
        self._settle(_OF_THIS_PEER)

    def _settle(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._split_before[key] += self._split_most.pop(key, 0)

    def aborted(self) -> None:
        """A round has ended without a result for this peer."""
        if self._rounds is not None:
            self._rounds.labels("aborted").inc()

    def _round(self, peer: Peer) -> int:
        # In a view without a job rounds are counted, too, from 1 on: of nothing that anybody has asked for.
        if peer.view is not None and peer.view.run:
            return max(peer.committed, 0)
        return self._last.round if self._last is not None else 0

    def collect(self) -> Iterator[Any]:
        """What is read only when it is asked for; called by the registry, on the event loop's thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        peer, checkpoints = self._peer, self._checkpoints
        if peer is None or checkpoints is None:
            return
        info = GaugeMetricFamily("edgepeer_info", "Who this is; always 1.", labels=["peer", "fabric", "version"])
        info.add_metric([peer.id, peer.fabric.topics.fabric, VERSION], 1)
        yield info
        view, last, traffic = peer.view, self._last, peer.traffic
        gauges = {
            "round": ("The last round of a job that is over at this peer.", self._round(peer)),
            "contributors": ("How many were counted in the last round.", len(last.contributors) if last else 0),
            "chunks_covered": ("How many chunks the last sum holds whole, if coded.", len(last.chunks) if last else 0),
            "gradient_error": (
                "The last sum's expected squared error, in squared gradients of one chunk; 0: exact.",
                last.error if last else 0.0,
            ),
            "view_epoch": ("Epoch of the view; 0 outside of any.", view.epoch if view else 0),
            "view_size": ("Peers in the view, this one included.", view.size if view else 0),
            "waiting": (
                "Whether something is in the fleet's way, as far as this peer knows: `edgepeer status` says what.",
                int(bool(peer.waits)),
            ),
            "held_bytes": ("What this peer stores of a split job's model.", self._split.get("held_bytes", 0)),
            "cell": ("Which node of the split this peer is; -1: none.", self._split.get("cell", -1)),
            "soft_errors_undetected": (
                "Soft errors that this peer was told to make and nobody has found yet, harmless ones left out.",
                self._split.get("undetected", 0),
            ),
            "broker_connected": ("Whether a broker is in reach.", int(peer.fabric.connected_now)),
        }
        if (ends := peer.certificate_ends) is not None:
            gauges["certificate_expiry_timestamp_seconds"] = ("Until when its certificate counts, as Unix time.", ends)
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"edgepeer_{name}", text, value)
        of = GaugeMetricFamily(
            "edgepeer_generation", "The generation of the view, by name and counter; 0 outside of any.", labels=["name"]
        )
        of.add_metric([str(view.generation) if view else ""], view.generation.counter if view else 0)
        yield of
        yield GaugeMetricFamily("edgepeer_loss", "Mean training loss of the last round.", value=self._loss)
        tested = GaugeMetricFamily(
            "edgepeer_test",
            "On held-out data, where this peer evaluated last: loss, accuracy, mae, rmse.",
            labels=["of"],
        )
        for name, found in (self._evaluation._asdict() if self._evaluation is not None else {}).items():
            if found is not None:
                tested.add_metric([name], found)
        yield tested
        counters = {
            "broker_reconnects": ("Connections with a broker after the first.", peer.fabric.reconnects),
            "bytes_sent": ("Bytes sent to other peers.", traffic.bytes_sent),
            "bytes_received": ("Bytes received from other peers.", traffic.bytes_received),
            "frames_rejected": ("Connections and messages refused for what they said.", traffic.frames_rejected),
            "documents_rejected": ("MQTT documents refused.", peer.fabric.rejected_documents),
            "checkpoints_written": ("Checkpoints written.", checkpoints.written),
            "checkpoints_failed": ("Checkpoints that could not be written.", checkpoints.failed),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"edgepeer_{name}", text, value)
        for key, (name, text) in _SPLIT.items():
            yield CounterMetricFamily(f"edgepeer_{name}", text, self._split_before[key] + self._split_most[key])
        yield from _links(peer.links)


def _links(states: tuple[LinkState, ...]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    counts = Counter((state.role, _kind(state)) for state in states)
    links = GaugeMetricFamily("edgepeer_links", "Neighbours, by what their link runs over.", labels=["role", "path"])
    rtt = GaugeMetricFamily("edgepeer_link_rtt_seconds", "The longest smoothed round-trip time.", labels=["role"])
    rate = GaugeMetricFamily("edgepeer_link_bytes_per_second", "The slowest rate measured.", labels=["role"])
    for role in _ROLES:
        for path in _PATHS:
            links.add_metric([role, path], counts[role, path])
        of_role = [state for state in states if state.role == role and state.up]
        if times := [state.rtt_s for state in of_role if state.rtt_s is not None]:
            rtt.add_metric([role], max(times))
        if rates := [state.rate_bytes_per_s for state in of_role if state.rate_bytes_per_s]:
            rate.add_metric([role], min(rates))
    yield from (links, rtt, rate)


def _kind(state: LinkState) -> str:
    """direct, via, relay or none."""
    path = state.path.split(" ", 1)[0]
    return path if state.up and path in _PATHS else "none"
