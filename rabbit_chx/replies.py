"""Addresses for answers: only those that the broker made, because a sender may put anything into ``reply_to``. No IO."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Direct reply-to: the broker appends the address of the channel that sent the message."""

_DIRECT: Final = re.compile(re.escape(REPLY_TO) + r"\.[!-~]{1,230}")
_TEMPORARY: Final = re.compile(r"amq\.gen-[A-Za-z0-9_-]{22}")
"""A queue that was declared without a name; clients cannot choose one that begins with ``amq.``."""


def is_direct(reply_to: object) -> TypeGuard[str]:
    """Whether an answer to this address can only reach the channel that sent the message."""
    return isinstance(reply_to, str) and _DIRECT.fullmatch(reply_to) is not None


def is_made_by_broker(reply_to: object) -> TypeGuard[str]:
    """Whether this address is of direct reply-to or the name of a queue that the broker chose.

    >>> is_made_by_broker("amq.gen-JzTY20BRgKO-HjmUJj0wLg"), is_made_by_broker("orders.0")
    (True, False)
    """
    return is_direct(reply_to) or (isinstance(reply_to, str) and _TEMPORARY.fullmatch(reply_to) is not None)
