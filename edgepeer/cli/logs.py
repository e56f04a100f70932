"""Log lines on standard error: short and plain for people, or one JSON object a line for machines.

What a line quotes may come from anywhere: a terminal obeys control characters, and whoever reads a log takes what
stands on a line of its own for one of ours. So the former are escaped, and further lines are indented.

A line about rounds, views, links or the like carries its facts as `extra={"fields": {...}}`, which become the object's.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any

import msgspec

from edgepeer.printable import one_line, plain_json

__all__ = ["setup_logging"]


def setup_logging(level: str, *, as_json: bool) -> None:
    """Send log records to standard error: edgepeer's from `level` up, all others' from warnings up."""
    handler = _StandardError()
    handler.setFormatter(_Json() if as_json else _Plain())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("edgepeer").setLevel(level.upper())
    logging.captureWarnings(True)
    if as_json:  # what ends a process, or a thread, is what machines are to read most of all
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    what = f"ended by what it did not expect: {kind.__name__}"
    logging.getLogger("edgepeer").critical("%s", what, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "a thread"
        logging.getLogger("edgepeer").critical("%s ended by what it did not expect", name, exc_info=args.exc_value)


class _StandardError(logging.Handler):
    # Looks sys.stderr up at every record, so that a live display that stands in for it is not torn.
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        said = f"{record.levelname.lower():7} {record.name}: {record.getMessage()}"
        if record.exc_info is not None:
            said += f"\n{self.formatException(record.exc_info)}"
        return f"{clock} " + "\n    ".join(map(one_line, said.split("\n")))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            **getattr(record, "fields", {}),  # what the line says, for machines: given as `extra`
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(record.getMessage()),
        }
        if record.exc_info is not None:
            fields["exception"] = _text(self.formatException(record.exc_info))
        return plain_json(msgspec.json.encode(fields).decode())


def _text(said: str) -> str:
    return said.encode(errors="backslashreplace").decode()  # of a path that is no text
