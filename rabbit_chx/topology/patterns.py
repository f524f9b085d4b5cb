"""The patterns of policies, as far as Python and the broker read them alike: the broker reads them as PCRE (``re:run/3``)."""

from __future__ import annotations

import re
from math import log, log1p
from typing import Final

_ESCAPED: Final = r"\\[dw!-/:-@[-`{-~]"
_COLLATING: Final = r"\.(?:\\]|[^]])*\.]"  # refused by PCRE
_CLASS: Final = rf"\[(?!{_COLLATING})\^?(?:[0-9A-Za-z]-[0-9A-Za-z]|{_ESCAPED}|[^]\\[^&|~:=-])+-?\]"
_ATOM: Final = rf"(?:{_ESCAPED}|{_CLASS}|[^\\^$[|()*+?{{])"
_QUANTIFIER: Final = r"(?:(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??)?"
_PIECE: Final = rf"(?:[\^$|]|{_ATOM}{_QUANTIFIER})"
_REPEATED: Final = rf"\((?:\?:)?{_ATOM}+\){_QUANTIFIER}"
_GROUP: Final = rf"\((?:\?:)?{_PIECE}*\)\??(?![*+?{{])"
_LOOKAHEAD: Final = rf"\(\?[=!]{_PIECE}*\)(?![*+?{{])"
_SHARED: Final = re.compile(rf"(?:{_PIECE}|{_REPEATED}|{_GROUP}|{_LOOKAHEAD})*+")
"""Syntax of one meaning in both engines. Only a group of single characters is repeated, so no search takes exponential time."""
_MOST_WAYS: Final = 1e6
"""Erlang gives up a search after ten million steps, and then nothing matches."""


def is_in(pattern: str, name: str) -> bool | None:
    """Whether a name contains what the pattern describes; None if only the broker knows."""
    ascii_only = name.isascii() and pattern.isascii() and pattern.isprintable()
    if not ascii_only or not _SHARED.fullmatch(pattern) or _ways(pattern, len(name)) > log(_MOST_WAYS):
        return None
    try:
        return re.search(pattern, name) is not None
    except re.error:  # a range or a number of repetitions is in the wrong order
        return None


def _ways(pattern: str, length: int) -> float:
    """The logarithm of a number that the ways to match some of a name do not exceed."""
    repetitions, options = len(re.findall("[*+{]", pattern)), pattern.count("?")
    alternatives, groups = pattern.count("|"), 1 + pattern.count("(")
    return repetitions * log(length + 1) + options * log(2) + groups * log1p(alternatives / groups)
