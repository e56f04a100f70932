"""Framed, ordered connections: over TCP, and in memory. Both pass the same tests.

base.py      what a transport is
options.py   socket options
tcp.py       over asyncio, from the socket straight into the machine's buffers
memory.py    within one event loop
"""
