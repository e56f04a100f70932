"""Every exception edgepeer raises on purpose, and which of several counts.

    EdgepeerError
    ├── ConfigError            a setting, flag or file of the user's is wrong; nothing was started
    ├── FabricError            the broker, or the enrolment service, can't be reached, refuses us, or went away
    ├── TrustError             who or what is not of this fleet, or not any more: a certificate, a signature, a token
    │   └── Expired            a certificate that counted; whether it does again is up to a clock, or who renews it
    ├── JobError               a training job can't run here (model, data, trainer)
    │   ├── DataError          a data set can't be found, read or used
    │   └── ModelError         a model can't be built or does not fit its data
    ├── WireError              bytes from outside that are not what they claim to be
    │   └── VersionError       well-formed, but of a protocol version this build does not speak
    ├── PeerError              this peer can't do what was asked of it
    │   ├── NotReady           the fabric did not reach the wanted size in time
    │   ├── RoundTimeout       an allreduce did not finish in time; names who was missing
    │   ├── ContributionMismatch  peers brought vectors of different size or dtype to one round
    │   ├── NotFinite          an infinite number, or none at all, in a round that rounds to bf16 or int8
    │   ├── LeftFabric         the peer has left, or was removed from, the view
    │   └── FellBehind         rounds were committed without this peer; load the state and go on
    │       └── BegunAnew      a newer generation has begun: what was done in the one before is given up
    ├── OutOfStep              a peer of a split run goes on from something else than the others; load their state
    ├── Undecodable            a code can't give what was asked of it: too much is missing or wrong
    └── ProtocolBug            our mistake, never the network's: please report it

`EdgepeerError` is "something outside is wrong and the text says what to do"; `ProtocolBug` is the only
one that means edgepeer itself is.
"""

from __future__ import annotations

__all__ = [
    "BegunAnew",
    "ConfigError",
    "ContributionMismatch",
    "DataError",
    "EdgepeerError",
    "Expired",
    "FabricError",
    "FellBehind",
    "JobError",
    "LeftFabric",
    "ModelError",
    "NotFinite",
    "NotReady",
    "OutOfStep",
    "PeerError",
    "ProtocolBug",
    "RoundTimeout",
    "TrustError",
    "Undecodable",
    "VersionError",
    "WireError",
    "first_error",
]


class EdgepeerError(Exception):
    """Base of all errors that a user can do something about."""


class ConfigError(EdgepeerError):
    """A setting is wrong. The text is one line: field, value, what is allowed."""


class FabricError(EdgepeerError):
    """The MQTT fabric can't be used."""


class TrustError(EdgepeerError):
    """Who or what is not of this fleet, or not any more. The text says whose certificate, what is wrong, since when."""


class Expired(TrustError):
    """A certificate has expired, by this machine's clock. That may pass: the clock is set, or the certificate renewed,
    while whoever starts services tries again."""


class JobError(EdgepeerError):
    """A training job can't run on this peer."""


class DataError(JobError):
    """A data set can't be found, read or used."""


class ModelError(JobError):
    """A model can't be built, or does not fit its data."""


class WireError(EdgepeerError):
    """Bytes from outside that are not what they claim to be."""


class VersionError(WireError):
    """A frame or document of a version that this build does not speak."""


class PeerError(EdgepeerError):
    """This peer can't do what was asked of it."""


class NotReady(PeerError):
    """The fabric did not reach the wanted number of peers in time."""


class RoundTimeout(PeerError):
    """An allreduce did not finish in time."""


class ContributionMismatch(PeerError):
    """Peers brought vectors of different size or dtype to the same round."""


class NotFinite(PeerError):
    """A vector or a partial sum of a round in bf16 or int8, which have no such number, is not finite; names where."""


class LeftFabric(PeerError):
    """The peer has left the view, or was removed from it."""


class FellBehind(PeerError):
    """Rounds were committed without this peer, maybe while it was in no view, and their results are no longer kept."""


class BegunAnew(FellBehind):
    """The others have begun anew, as a newer generation: rounds of the one before may be given up, also such whose
    outcomes this peer has had. Take the others' state, and go on from there."""


class OutOfStep(EdgepeerError):
    """What this peer of a split run goes on from is not what the others go on from, and doing its last step again does
    not mend it. Load the state of one of them."""


class Undecodable(EdgepeerError):
    """What was asked of a code can't be had of what is there: the exact sum of all chunks of a gradient code, or the
    data behind rows of which too many are lost or wrong.

    Attributes:
        residual: of a gradient code, squared error of the best that can be had, in units of one chunk's squared
            gradient norm; otherwise None.
    """

    def __init__(self, text: str, residual: float | None = None) -> None:
        best = "" if residual is None else f"; the best sum has a squared error of {residual:.4g} chunks' gradients"
        super().__init__(text + best)
        self.residual = residual


class ProtocolBug(AssertionError):
    """A state that the protocol rules out. Our mistake: please report it with the log."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended a group of tasks: the first that isn't a group itself, of those within each other."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
