"""One row of ``rabbit-chx doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Check"]


class Check(NamedTuple):
    """What was checked, the result, and how to fix it."""

    name: str
    state: str
    """``ok``, ``missing`` (needed only for some features) or ``failed``."""
    found: str
    hint: str = ""
    details: Mapping[str, object] = {}
    """More fields of the JSON object."""
