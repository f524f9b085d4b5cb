"""The log of members and readers."""

from __future__ import annotations

import logging

log = logging.getLogger("rabbit_chx.consuming")


def warn(group: str, text: object) -> None:
    """Log a problem of a group."""
    log.warning("group %r: %s", group, text)
