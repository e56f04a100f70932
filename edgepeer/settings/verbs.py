"""All verbs that have settings."""

from __future__ import annotations

from typing import Final

from edgepeer.settings.fleets import (
    FleetEvictSettings,
    FleetInitSettings,
    FleetListSettings,
    FleetMoveSettings,
    FleetOperatorSettings,
    FleetRotateSettings,
    FleetServeSettings,
    FleetTokenSettings,
    JoinSettings,
)
from edgepeer.settings.model import (
    BrokerSettings,
    EmulateSettings,
    ExportSettings,
    PeerSettings,
    StatusSettings,
    TrainSettings,
    VerbSettings,
)
from edgepeer.settings.simulating import ExploreSettings, IsolationSettings, RunSettings, SoakSettings

__all__ = ["VERBS"]

VERBS: Final[tuple[type[VerbSettings], ...]] = (
    BrokerSettings,
    PeerSettings,
    TrainSettings,
    EmulateSettings,
    StatusSettings,
    ExportSettings,
    SoakSettings,
    ExploreSettings,
    RunSettings,
    IsolationSettings,
    JoinSettings,
    FleetInitSettings,
    FleetTokenSettings,
    FleetListSettings,
    FleetMoveSettings,
    FleetEvictSettings,
    FleetOperatorSettings,
    FleetRotateSettings,
    FleetServeSettings,
)
