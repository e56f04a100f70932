"""The protocol as a machine without I/O: `Node.handle(event, now) -> effects`, `Node.next_deadline()`.

Nothing in this package reads a clock, opens a socket, imports asyncio or draws random numbers. The same
machine runs over TCP in a peer and over virtual time in the simulator.

    machine.py     the surface of a machine, which the baselines have as well
    limits.py      the few numbers of the protocol
    events.py      what can happen to a peer
    effects.py     what a peer wants done
    place.py       where a peer and its neighbours stand
    allreduce.py   rounds: what comes in, when it is added, when a round is over
    sending.py     rounds: what goes out
    round.py       one round's buffers and progress
    past.py        rounds that are over, for neighbours that missed them
    streams.py     what has arrived of a vector
    rates.py       how fast the links are
    segments.py    how large a segment should be on a link
    links.py       which neighbours to be connected to, and which of them are gone
    neighbours.py  what neighbours tell each other of where they stand
    catchup.py     state for whoever joins or fell behind
    membership.py  views: bootstrap, join, leave, loss, takeover
    node.py        puts the above together: one peer
"""
