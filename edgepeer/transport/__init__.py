"""Framed, ordered connections: over TCP, plain or sealed, and in memory. All pass the same tests.

base.py          what a transport is
options.py       addresses as text, and what is set on every socket
window.py        how much may be under way to this peer
portions.py      how much of a payload is read at once
losses.py        another congestion control where packets get lost
acknowledged.py  whether the network still takes what is sent
reading.py       frames out of a stream of bytes
connection.py    what plain and sealed connections have in common
tcp.py           over asyncio, from the socket straight into the machine's buffers
secure.py        between members of a fleet, sealed
door.py          who may be half-way in
handshake.py     how members of a fleet meet: TLS, and keys for what follows
records.py       what follows: sealed records
news.py          the list of who is out, passed on over links
memory.py        within one event loop

Only `records` imports `cryptography`, and only who has an identity imports it, or who imports it.
"""
