"""What the peers of a small job say, plain or split, for the tests of whoever listens."""

from __future__ import annotations

import msgspec

from edgepeer.fabric.documents import PeerReport, Presence, RoundRecord, SoftError, Telemetry
from edgepeer.following.progress import JobProgress
from edgepeer.following.result import JobResult
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

    def running(self) -> JobProgress:
        """All peers are in and work."""
        progress = JobProgress(self.job, broker="embedded")
        for peer in PEERS:
            progress.see_presence(peer, self.presence(peer))
            progress.see_report(self.report(peer, "running", round=0, digest=""))
        progress.see_view(self.view())
        return progress


class Divided(Told):
    """The same three peers, of which two hold a cell each; one makes errors."""

    job = Job(id="j1", rounds=10, wait_for=3, split="none:m=2,n=1", optimizer="sgd", model="mlp-plain")

    def counted(self, number: int, **counts: int) -> RoundRecord:
        return self.record(number, corrected=number // 2, regenerated=number // 3, **counts)

    def error(self, number: int, **fields: object) -> SoftError:
        given = {"node": 1, "step": "update 0", "place": "stored", "kind": "flip"} | fields
        return SoftError(round=number, **given)  # type: ignore[arg-type]

    def running(self) -> JobProgress:
        progress = super().running()
        for number in range(1, 8):
            progress.see_telemetry(self.telemetry(self.counted(number)))
        return progress

    def see_made(self, progress: JobProgress, peer: str, number: int, *errors: SoftError) -> None:
        """The peer has written down a round in which it has made errors on purpose."""
        progress.see_logged([msgspec.structs.replace(self.logged(peer, self.counted(number)), made=errors)])

    def ended(self, progress: JobProgress, **of_birch: int) -> JobResult:
        """How the job ended; `of_birch` is what that peer says besides."""
        for number in range(8, 11):
            progress.see_telemetry(self.telemetry(self.counted(number)))
        parts = {"held_bytes": 900, "parameters": 450, "samples": 0}
        progress.see_report(self.report("ash", cell=0, **parts))
        progress.see_report(self.report("birch", cell=1, **parts, **of_birch))
        progress.see_report(self.report("cedar", **parts | {"held_bytes": 0}))
        return progress.result()
