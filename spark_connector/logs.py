"""The connector's log, ``rabbit_chx.spark``."""

from __future__ import annotations

import logging
import sys
from functools import partial

from rabbit_chx.base.outages import Outage

log = logging.getLogger("rabbit_chx.spark")


def log_line(level: int, text: str) -> None:
    """Log a line, and show it where logging is not configured."""
    show(log.name)
    log.log(level, "%s", text)


def show(name: str) -> None:
    """Send a logger to stderr with its times in a process without logging configuration, such as Spark's Python workers."""
    found = logging.getLogger(name)
    if found.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    found.addHandler(handler)
    found.setLevel(logging.INFO)


def outage_of(what: str, timeout: float) -> Outage:
    """An outage in this log; ``what`` says what uses the connection, which it tries to restore for so many seconds."""
    return Outage(partial(log_line, logging.WARNING), what, f"trying to reconnect for {timeout:g} s")
