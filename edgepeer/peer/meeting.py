"""Getting to know the others: every other second one of the view's members is looked for where it says that it listens.

Neighbours meet anyway. But whose neighbour dies may get another that has died as well, and if most of a fleet are lost,
those who are left must know of all of them that they have ended: both are seen from machines that refuse connections,
and only of peers that were found there before (whereabouts.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from edgepeer.ids import PeerId
from edgepeer.peer.switchboard import Switchboard
from edgepeer.topology.view import View

__all__ = ["meet_others"]

EVERY_S: Final = 2.0
AGAIN_S: Final = (300.0, 86_400.0)
"""Who is not found is behind NAT, mostly, and may have come out from there: it is looked for again after so long, and
then ever more rarely, to this."""
_JITTER: Final = random.SystemRandom()  # nobody's seed is disturbed


async def meet_others(switchboard: Switchboard, view: Callable[[], View | None], *, every_s: float = EVERY_S) -> None:
    """Do so until cancelled."""
    loop = asyncio.get_running_loop()
    tried: dict[tuple[str, int], tuple[float, float]] = {}
    """Until when each life is not looked for, and for how long it was."""
    while True:
        await asyncio.sleep(every_s * _JITTER.uniform(0.5, 1.5))
        present, now = view(), loop.time()
        if present is None:
            continue
        lives = {(member.id, member.incarnation): member for member in present.members}
        tried = {life: when for life, when in tried.items() if life in lives}
        strange = [
            life
            for life, member in lives.items()
            if now >= tried.get(life, (now, 0.0))[0] and switchboard.may_meet(member)
        ]
        if strange:
            life = _JITTER.choice(strange)
            first, longest = AGAIN_S
            pause = min(2 * tried.get(life, (now, first / 2))[1], longest)
            tried[life] = now + pause, pause
            await switchboard.meet(PeerId(life[0]), lives[life])
