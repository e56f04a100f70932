"""Settings of the command line's verbs, from a TOML file, the environment and flags, checked before use.

model.py       the settings of each verb
simulating.py  those of `edgepeer simulate`
fleets.py      those of `edgepeer fleet` and `edgepeer join`
types.py       kinds of values that several have in common
fields.py      one setting at a time: what it allows, in words
sources.py     where values come from
membership.py  what follows from the fleet that a device has joined
verbs.py       all verbs that have settings
"""

from edgepeer.settings.fields import Setting, settings_of
from edgepeer.settings.fleets import (
    FleetEvictSettings,
    FleetInitSettings,
    FleetListSettings,
    FleetMoveSettings,
    FleetOperatorSettings,
    FleetRotateSettings,
    FleetServeSettings,
    FleetSettings,
    FleetTokenSettings,
    JoinSettings,
    seconds,
)
from edgepeer.settings.model import (
    BrokerSettings,
    EmulateSettings,
    ExportSettings,
    FabricSettings,
    JobSettings,
    PeerSettings,
    StatusSettings,
    TrainSettings,
    VerbSettings,
)
from edgepeer.settings.simulating import ExploreSettings, IsolationSettings, RunSettings, SoakSettings
from edgepeer.settings.sources import find_config, load_settings, variable

__all__ = [
    "BrokerSettings",
    "EmulateSettings",
    "ExploreSettings",
    "ExportSettings",
    "FabricSettings",
    "FleetEvictSettings",
    "FleetInitSettings",
    "FleetListSettings",
    "FleetMoveSettings",
    "FleetOperatorSettings",
    "FleetRotateSettings",
    "FleetServeSettings",
    "FleetSettings",
    "FleetTokenSettings",
    "IsolationSettings",
    "JobSettings",
    "JoinSettings",
    "PeerSettings",
    "RunSettings",
    "Setting",
    "SoakSettings",
    "StatusSettings",
    "TrainSettings",
    "VerbSettings",
    "find_config",
    "load_settings",
    "seconds",
    "settings_of",
    "variable",
]
