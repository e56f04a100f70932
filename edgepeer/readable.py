"""Structs that are read, from a network or a file: what msgspec must know to do so is there once a module is."""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = ["readable"]

_Kind = TypeVar("_Kind", bound=type[msgspec.Struct])


def readable(kind: _Kind) -> _Kind:
    """Let any number of threads read Structs of this kind, from the first one on.

    Of itself, msgspec makes the table of a Struct's types when one is first read, and those of the Structs within it.
    It runs Python code meanwhile, and the unfinished table is on the class already, where another thread takes it for
    whole: the process dies of SIGSEGV. One device is enough for that, whose event loop reads a job while a thread reads
    a checkpoint. But only one thread at a time imports a module. There is one table for msgpack, JSON and convert.
    """
    msgspec.msgpack.Decoder(kind)
    return kind
