"""The connector's log, ``rabbit_chx.spark``."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("rabbit_chx.spark")


def log_line(level: int, text: str) -> None:
    """Log to stderr in a process without logging configuration, such as Spark's Python workers."""
    if not log.hasHandlers():
        _to_stderr(log)
    log.log(level, "%s", text)


def show(name: str) -> None:
    """Send another logger of the toolkit to stderr in such a process, where its own handler drops all records."""
    other = logging.getLogger(name)
    if logging.getLogger().handlers or any(type(one) is logging.StreamHandler for one in other.handlers):
        return
    _to_stderr(other)


def _to_stderr(logger: logging.Logger) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
