"""One row of ``rabbit-chx doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """What was checked, the result, and how to fix it."""

    name: str
    state: str
    """``ok``, ``missing`` (needed only for some features) or ``failed``."""
    found: str
    hint: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    """More fields of the JSON object."""

    def json(self) -> dict[str, object]:
        """The row as a JSON object."""
        fields = asdict(self)
        details: dict[str, object] = fields.pop("details")
        return fields | details
