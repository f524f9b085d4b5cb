"""What a broker accepts as the name of a queue, an exchange, a policy or a virtual host, and what is refused here.

RabbitMQ deletes CR and LF from the name of a declaration and answers under the other name
(``rabbit_channel:strip_cr_lf/1``), so a client waits forever. Other control characters are legal but harmful.
"""

from __future__ import annotations

import unicodedata
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
