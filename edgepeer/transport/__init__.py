"""Framed, ordered connections: over TCP, and in memory. Both pass the same tests.

base.py          what a transport is
options.py       addresses as text, and what is set on every socket
window.py        how much may be under way to this peer
losses.py        another congestion control where packets get lost
acknowledged.py  whether the network still takes what is sent
tcp.py           over asyncio, from the socket straight into the machine's buffers
memory.py        within one event loop
"""
