"""Which message made the broker close the channel: it names neither, only what was wrong.

After such an error the broker ignores what follows on the channel, so what was in flight is sent again, except the message that it
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rabbit_chx.publishing.messages import OutgoingMessage

# The words of rabbit_misc:not_found/1, rabbit_access_control:check_resource_access/4 and rabbit_channel:check_msg_size/3.
_EXCHANGE: Final = re.compile(
    "NOT_FOUND - no exchange '(.*)' in vhost|ACCESS_REFUSED - .*access to exchange '(.*)' in vhost", re.DOTALL
).match
_SIZE: Final = re.compile(r"PRECONDITION_FAILED - message size (\d+) is larger than").match


def refused_messages(text: str, in_flight: Iterable[OutgoingMessage]) -> list[OutgoingMessage]:
    """Return the messages to which the broker's reply applies; none if the reply does not say which."""
    exchange, size = _EXCHANGE(text), _SIZE(text)
    if exchange:
        name = (exchange[1] or exchange[2]).encode()
        return [message for message in in_flight if message.exchange == name]
    if size:
        return [message for message in in_flight if len(message.body) == int(size[1])]
    return []
