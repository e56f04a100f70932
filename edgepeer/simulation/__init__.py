"""Many peers in one process, over virtual time and an in-memory network. Same seed, same trace.

clock.py      virtual time: a queue of what happens when
network.py    connections with latency and rate
broker.py     presences and the view; wills, outages
peer.py       a protocol.Node with simulated I/O and a simulated application
world.py      puts them together; faults; the trace
"""
