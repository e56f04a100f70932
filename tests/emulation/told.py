"""What the peers of a small job say, for the tests of whoever listens."""

from __future__ import annotations

import msgspec

from edgepeer.fabric.documents import PeerReport, Presence, RoundRecord, Telemetry
from edgepeer.peer.round_log import LoggedRound
from edgepeer.topology.view import Member, View
from edgepeer.training.job import Job

PEERS = ("ash", "birch", "cedar")


class Told:
    """Builds what the peers of the job say."""

    job = Job(id="j1", rounds=10, wait_for=3, trainer="numpy")
    peers = PEERS

    def presence(self, peer: str) -> Presence:
        return Presence(id=peer, incarnation=1, addresses=("127.0.0.1:7700",))

    def view(self, *peers: str, epoch: int = 3) -> View:
        return View(epoch=epoch, members=tuple(Member(id=peer, incarnation=1) for peer in peers or PEERS), run="j1")

    def report(self, peer: str, state: str = "done", **fields: object) -> PeerReport:
        given = {"round": 10, "digest": "ab" * 8, "bytes_sent": 1_600_000, "samples": 1000} | fields
        return PeerReport(job="j1", peer=peer, state=state, coordinator=peer == "ash", **given)  # type: ignore[arg-type]

    def record(self, number: int, *, epoch: int = 3, **fields: object) -> RoundRecord:
        given = {
            "generation": "1-00c0ffee",
            "seconds": 0.1,
            "allreduce_seconds": 0.02,
            "compute_seconds": 0.05,
            "contributors": PEERS,
            "exact": True,
            "loss": 2.3 / number,
            "paths": ("direct",),
            "waited_seconds": 0.012,
            "broadcast_seconds": 0.007,
            "decided_seconds": 0.001,
            "samples": 300.0,
            "accuracy": 0.9 + number / 200 if number % 5 == 0 else None,
        } | fields
        return RoundRecord(round=number, epoch=epoch, **given)  # type: ignore[arg-type]

    def logged(self, peer: str, record: RoundRecord, *, coordinator: bool = False) -> LoggedRound:
        return LoggedRound(**msgspec.structs.asdict(record), job="j1", peer=peer, coordinator=coordinator)

    def telemetry(self, *records: RoundRecord, job: str = "j1") -> Telemetry:
        return Telemetry(job=job, peer="ash", records=records)
