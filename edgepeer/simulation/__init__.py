"""Many peers in one process, over virtual time and simulated machines. Same seed, same trace.

clock.py       virtual time: a queue of what happens when
ways.py        how long what is sent takes, and what is kept from whom
pipe.py        one direction of a TCP connection: what is sent arrives in order, or waits
process.py     a peer's process, as connections, the broker and its application see it
connection.py  both directions, and how a connection ends
network.py     machines, cuts, dials
lines.py       the connections of one peer
broker.py      presences and the view; wills, outages, relay
peer.py        a protocol.Node with simulated I/O and a simulated application
task.py        what the applications of a fleet have to do
coded_app.py   the application where rounds are coded; split_app.py where they train a divided network
ledger.py      what must hold of every round
rounded.py     what a round in bf16 or int8 must come to, to the bit
world.py       puts them together; faults; the trace
schedule.py    a fleet and its faults as text
story.py       lets a schedule happen, and checks that it is survived
account.py     what happened, told briefly
drawing.py     random schedules
shrinking.py   a smaller schedule that still breaks something
soak.py        random schedules, one after the other
isolation.py   how many links fail until a peer is isolated; isolation_plot.py draws it
"""
