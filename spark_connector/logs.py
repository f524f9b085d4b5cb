"""The connector's log, ``rabbit_chx.spark``."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("rabbit_chx.spark")


def log_line(level: int, text: str) -> None:
    """Log to stderr in a process without logging configuration, such as Spark's Python workers."""
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    log.log(level, "%s", text)
