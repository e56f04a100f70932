"""The protocol as a machine without I/O: `Node.handle(event, now) -> effects`, `Node.next_deadline()`.

Nothing in this package reads a clock, opens a socket, imports asyncio or draws random numbers. The same
machine runs over TCP in a peer and over virtual time in the simulator.

    machine.py      the surface of a machine, which the baselines have as well
    limits.py       the few numbers of the protocol
    events.py       what can happen to a peer
    effects.py      what a peer wants done
    place.py        where a peer and its neighbours stand
    allreduce.py    rounds: what comes in, when it is added
    ending.py       rounds: how one ends, held, decided and committed, or dropped
    deciding.py     when a round counts: once a quorum's worth of peers holds its result
    sending.py      rounds: what goes out
    round.py        one round's buffers and progress
    past.py         rounds that are over, for neighbours that missed them
    code.py         what is asked of a gradient code
    coded.py        coded rounds: who has computed what, and when the root closes the round
    coded_rounds.py between these and the sum
    streams.py      what has arrived of a vector
    rates.py        how fast the links are
    segments.py     how large a segment should be on a link
    links.py        which neighbours to be connected to, and which of them are gone
    paths.py        ways around a broken connection
    timing.py       how long to wait for a peer, as measured
    vitals.py       signs of life
    neighbours.py   what neighbours tell each other of where they stand
    catchup.py      state for whoever joins or fell behind
    rollcall.py     who is really there
    outside.py      in no view: wait to be let in, or begin a generation
    membership.py   who is to be in: joiners, leavers, the lost
    succession.py   what follows a view, decided once by a quorum of it
    wiring.py       frames in and out, by whatever path
    diagnosis.py    how a peer stands, for people to read
    node.py         puts the above together: one peer
"""
