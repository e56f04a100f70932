"""The protocol as a machine without I/O: `Node.handle(event, now) -> effects`, `Node.next_deadline()`.

Nothing in this package reads a clock, opens a socket, imports asyncio or draws random numbers. The same
machine runs over TCP in a peer and over virtual time in the simulator.

    the machine
    node.py         one peer: one table with everything that arrives, and what handles it
    parts.py        what a peer is made of; each part alone writes its state
    machine.py      the surface of a machine, which the baselines have as well
    events.py       what can happen to a peer
    effects.py      what a peer wants done
    limits.py       the few numbers of the protocol
    diagnosis.py    how a peer stands, for people to read

    rounds
    course.py       which round a peer works on, and where it stands
    allreduce.py    what happens in a round, by the stage that it is in
    round.py        the stages and moves of a round: a table that is executed
    lane.py         a range of its vectors on its way up a tree, and their sum down
    headers.py      what frames say of a round: which it is, of what kind its vectors are
    streams.py      what has arrived of a vector
    encoded.py      the bytes that it travels as, where it is rounded
    deciding.py     when a round counts: once a quorum's worth of peers holds its result
    past.py         rounds that are over, for neighbours that missed them
    rates.py        how fast the links are
    segments.py     how large a segment should be on a link
    code.py         what is asked of a gradient code
    closing.py      coded rounds: who has computed what, and when the root closes the round

    where a peer stands
    place.py        its view, its run, its last round
    inview.py       what lives as long as a view does
    neighbours.py   what neighbours tell each other of where they stand
    catchup.py      state for whoever joins or fell behind

    links
    wiring.py       what follows when a path stands or breaks
    links.py        which neighbours to be connected to, and which of them are gone
    paths.py        ways around a broken connection
    tunnel.py       what goes through one of these, in order
    vitals.py       signs of life
    over.py         when a run is over, by what they say
    timing.py       how long to wait for a peer, as measured

    trees
    measuring.py    what a peer measures of its network, and tells the head
    estimate.py     what the head concludes for all lines
    shape.py        what a round costs over which trees, and which cost least
    shaping.py      when the head proposes other trees

    views
    views.py        what follows a view, and what a peer does when one comes
    membership.py   who is to be in: joiners, leavers, the lost
    succession.py   the vote on what follows a view, decided once by a quorum of it
    attendance.py   who is there: asked and answered through the broker
    rollcall.py     who has answered, and whom to call
    outside.py      in no view: wait to be let in, or begin a generation
    waking.py       after a long stop: learn what has happened before deciding anything
"""
