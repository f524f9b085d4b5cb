"""Text from elsewhere, made safe to show: names and keys may hold terminal escapes and characters that reorder a line."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["UNPRINTABLE", "printable"]

UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), bidirectional controls, and the separators of lines and paragraphs."""


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with an escape in place of each unprintable character, except those to ``keep``.

    >>> print(printable("\x1b[2J\u202eqa"))
    \x1b[2J\u202eqa
    """
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return repr(character)[1:-1]
