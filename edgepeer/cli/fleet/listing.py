"""`edgepeer fleet list`: who is a member, and which tokens are good."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from edgepeer.cli.fleet.home import print_json, registrar_of
from edgepeer.cli.verb import Verb
from edgepeer.settings import FleetListSettings

if TYPE_CHECKING:
    from edgepeer.enrol.registrar import Issued

__all__ = ["LIST"]

_DAY_S: Final = 86400.0
_SOON_S: Final = 30 * _DAY_S


def list_members(settings: FleetListSettings) -> int:
    """Show the members, and the tokens that are good."""
    from edgepeer.trust.clock import certain_time, date

    now = certain_time()
    with registrar_of(settings) as (registrar, _):
        members, tokens, newest = registrar.members(), registrar.tokens(), registrar.newest_authority
        fabric = registrar.fabric
    rows: list[dict[str, object]] = [
        {
            "id": each.holder.id,
            "role": str(each.holder.role),
            "name": each.holder.common_name,
            "serial": f"{each.holder.serial:x}",
            "issued": each.holder.issued,
            "expires": each.ends,
            "token": each.token,
            "state": _state(each, newest, now),
        }
        for each in members
    ]
    if settings.json:
        open_tokens = [
            {"token": good.id, "role": str(good.role), "id": good.name, "uses": good.left, "expires": good.ends}
            for good in tokens
        ]
        print_json({"fabric": fabric, "members": rows, "tokens": open_tokens})
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"fleet {fabric}: {sum(not each.evicted for each in members)} members", title_justify="left")
    for column in ("name", "role", "since", "until", "came with", "state"):
        table.add_column(column)
    for each in members:
        holder, state = each.holder, _state(each, newest, now)
        looks = {"member": "green", "evicted": "red", "expired": "red"}.get(state, "yellow")
        dates = date(holder.issued), date(each.ends)
        table.add_row(holder.common_name, holder.role, *dates, each.token or "", Text(state, style=looks))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for good in tokens:
        many = "one device" if good.left == 1 else f"{good.left} devices"
        minutes = max(1, round((good.ends - now) / 60))
        whom = f" as {good.name}" if good.name else ""
        print(f"token {good.id} lets {many} in{whom}, {good.role}, for another {_duration(minutes)}")
    return 0


def _state(each: Issued, newest: int, now: float) -> str:
    if each.evicted:
        return "evicted"
    if each.ends < now:
        return "expired"
    if each.holder.issued > now + _DAY_S:
        return "dated ahead, as this machine's clock was"
    if each.authority != newest:
        return "has the old authority's certificate"
    if each.ends - now < min(_SOON_S, (each.ends - each.holder.issued) / 6):
        return "expires soon, and has not renewed"
    return "member"


def _duration(minutes: int) -> str:
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"


LIST = Verb(
    kind=FleetListSettings,
    about="List the members, and the tokens that are good.",
    examples=[
        ("who is in", "edgepeer fleet list"),
        ("for a script: how many are there?", "edgepeer fleet list --json | jq '.members | length'"),
    ],
    run=list_members,
)
