"""A running peer: the protocol machine with real I/O around it.

session.py      one connection: who is at the other end
switchboard.py  all connections of a peer, one per other peer
whereabouts.py  where others were found: whose machine it is that refuses
moving.py       where this machine is by now
meeting.py      getting to know those who are no neighbours
leaving.py      how long one that leaves waits for the others
driver.py       events in, effects out, one timer
bell.py         waiting for a change
control.py      what the machine wants said over MQTT, and what MQTT says to it
letters.py      what goes through others, sealed
translation.py  what MQTT says, in the protocol's words
tasks.py        a TaskGroup that raises plain exceptions
reach.py        who can connect, and what to warn of
watching.py     what changes around a peer, told as it happens
machines.py     what rounds run by
keeper.py       who keeps the state of a run
last_view.py    who the others were, over restarts
outcome.py      what an allreduce gives back; flattening and restoring what goes in
calls.py        the rounds that a program takes part in, one call each
coded_call.py   one of them, where they are coded
arguments.py    what a Peer is made of, each of its kind
api.py          Peer, the public face
blocking.py     Peer for code without an event loop
agent.py        a device that runs jobs
job_board.py    which job counts, when brokers come and go
said_again.py   how a device announces it in another's place
hearsay.py      what peers tell each other of it, beside the protocol
reminding.py    who of them tells a broker that knows nothing of it
run.py          the life of one job on one device
run_state.py    its state, given to neighbours and taken from one
checkpoints.py  the same on disk
worker.py       the thread that computes
computing.py    what it computes for a data-parallel job
pacing.py       how slowly, where it is to be slow
job_run.py      a data-parallel job
split_run.py    a split job
split_rounds.py the rounds of a split program
split_training.py  edgepeer.train_split
reporting.py    round records on their way to whoever follows a job
round_log.py    the same in a file of the device's own
metrics.py      what a device counts and measures
service.py      what systemd is told
page_server.py  where that can be fetched
"""
