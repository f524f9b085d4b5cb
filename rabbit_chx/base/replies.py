"""Addresses for answers: only those that the broker made, because a sender may put anything into ``reply_to``. No IO.

A broker before 4.3 ends the connection that publishes to an address of direct reply-to which contains no process. On 3.10 the name
of its node must be known, too, which cannot be checked here.
"""

from __future__ import annotations

import binascii
import re
from typing import Final, TypeGuard

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Direct reply-to: the broker appends the address of the channel that sent the message."""

_DIRECT: Final = re.compile(re.escape(REPLY_TO) + r"\.([A-Za-z0-9+/=]{1,200})\.[A-Za-z0-9+/=]{1,64}")
_PROCESS: Final = re.compile(rb"\x83([Xg])(?:[dv]\x00|[sw])(.)([!-~]+@.*)", re.DOTALL)
"""A process in Erlang's external format: old or new, and the length and the text of its node's name."""
_AFTER_NODE: Final = {b"g": 9, b"X": 12}
_TEMPORARY: Final = re.compile(r"amq\.gen-[A-Za-z0-9_-]{22}")
"""A queue that was declared without a name; clients cannot choose one that begins with ``amq.``."""


def is_direct(reply_to: object) -> TypeGuard[str]:
    """Whether an answer to this address can only reach the channel that sent the message."""
    found = _DIRECT.fullmatch(reply_to) if isinstance(reply_to, str) else None
    return found is not None and _is_process(found[1])


def _is_process(encoded: str) -> bool:
    try:
        found = _PROCESS.fullmatch(binascii.a2b_base64(encoded, strict_mode=True))
    except binascii.Error:
        return False
    return found is not None and len(found[3]) == found[2][0] + _AFTER_NODE[found[1]]


def is_made_by_broker(reply_to: object) -> TypeGuard[str]:
    """Whether this address is of direct reply-to or the name of a queue that the broker chose.

    >>> is_made_by_broker("amq.gen-JzTY20BRgKO-HjmUJj0wLg"), is_made_by_broker("orders.0")
    (True, False)
    """
    return is_direct(reply_to) or (isinstance(reply_to, str) and _TEMPORARY.fullmatch(reply_to) is not None)
