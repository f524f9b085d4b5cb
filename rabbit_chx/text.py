"""Text from elsewhere, made safe to show: names and keys may hold terminal escapes and characters that reorder a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), bidirectional controls, and the separators of lines and paragraphs."""


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with an escape in place of each unprintable character, except those to ``keep``.

    >>> print(printable("\x1b[2J\u202eqa"))
    \x1b[2J\u202eqa
    """
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


def counted(count: int, singular: str, plural: str = "") -> str:
    """A count with its noun.

    >>> counted(1, "step"), counted(2, "policy", "policies")
    ('1 step', '2 policies')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def listed(names: Sequence[str], noun: str = "queue") -> str:
    """The first names of queues, or of other things, and the number of the rest.

    >>> listed(["a"]), listed("abcdefg")
    ("queue 'a'", "queues 'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    more = len(names) - 5
    first = ", ".join(map(repr, names[:5]))
    return f"{noun}{'s' * (len(names) > 1)} {first}" + (f" and {more} more" if more > 0 else "")
