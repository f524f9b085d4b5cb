"""What a broker accepts as the name of a queue, an exchange, a policy or a virtual host, and what is refused here.

RabbitMQ deletes CR and LF from the name of a declaration and answers under the other name
(``rabbit_channel:strip_cr_lf/1``), so a client waits forever. Other control characters are legal but harmful.
"""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from rabbit_chx.errors import InvalidValue

VALID_NAME: Final = "1 to 255 bytes of UTF-8 without control characters"


def name_flaw(name: str) -> str:
    """What makes a name invalid, as a noun phrase; empty for a valid name.

    >>> name_flaw("")
    'an empty name'
    """
    if not name:
        return "an empty name"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name with a lone surrogate"
    control = next((each for each in name if unicodedata.category(each) == "Cc"), None)
    if control is not None:
        return f"a name with the control character {control!r}"
    return f"a name of {size} bytes" if size > 255 else ""


def check_name(what: str, name: str) -> str:
    """Return the name; raise InvalidValue if it is invalid. ``what`` is the kind of thing that it names.

    >>> check_name("queue", "orders.0")
    'orders.0'
    """
    if not isinstance(name, str) or name_flaw(name):
        raise InvalidValue(what, name, f"text of {VALID_NAME}")
    return name


SEATS: Final = "rabbit-chx.seat."
"""The prefix of the queues of all seats."""


def seat_queue(group: str, seat: int) -> str:
    """The name of a seat's queue.

    >>> seat_queue("billing", 3)
    'rabbit-chx.seat.billing.3'
    """
    return f"{SEATS}{group}.{seat}"


def notes_of(group: str, queue: str) -> str:
    """The name of the queue with a group's notes about the messages of a queue.

    >>> notes_of("billing", "orders.0")
    'rabbit-chx.seat.billing.d08d67bcf63bc79c'
    """
    return f"{SEATS}{group}.{blake2b(queue.encode(), digest_size=8).hexdigest()}"


def group_of(queue: str) -> str | None:
    """The group whose seat a queue is, if it is one: others may give any name to theirs.

    >>> group_of("rabbit-chx.seat.billing.3")
    'billing'
    """
    group, _, seat = queue.removeprefix(SEATS).rpartition(".")
    with suppress(InvalidValue):
        if queue.startswith(SEATS) and seat.isdecimal():
            return check_group_name(group)
    return None


def check_group_name(name: str) -> str:
    """Return the name of a group whose queues have valid names."""
    check_name("group name", name)
    # Of these queues, the ones with notes have the longest names.
    if len(notes_of(name, "").encode()) > 255:
        raise InvalidValue(
            "group name",
            name,
            f"at most {255 - len(notes_of('', ''))} bytes of UTF-8",
            "The names of the group's own queues contain it",
        )
    return name
