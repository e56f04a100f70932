"""The protocol as a machine without I/O: `Node.handle(event, now) -> effects`, `Node.next_deadline()`.

Nothing in this package reads a clock, opens a socket, imports asyncio or draws random numbers. The same
machine runs over TCP in a peer and over virtual time in the simulator.

    limits.py      the few numbers of the protocol
    events.py      what can happen to a peer
    effects.py     what a peer wants done
    allreduce.py   rounds: reduce up, result down, commit
    streams.py     buffers of a round and what has arrived in them
    segments.py    how large a segment should be on a link
    links.py       which neighbours to be connected to, and which of them are gone
    membership.py  views: bootstrap, join, leave, loss, takeover
    catchup.py     state for whoever joins or fell behind
    node.py        puts the above together: one peer
"""
