"""Names in a topology that a broker changes or that contain control characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rabbit_chx.names import VALID_NAME, name_flaw
from rabbit_chx.topology.checks.lint_rules import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rabbit_chx.topology.model import Topology

__all__ = ["invalid_names"]


def invalid_names(topology: Topology) -> Iterator[Finding]:
    """All invalid names. Topology files cannot contain them, but a `Topology` built in Python can."""
    named = (
        ("virtual host", (topology.vhost,)),
        ("exchange", tuple(each.name for each in topology.exchanges if each.name)),
        ("queue", tuple(each.name for each in topology.queues)),
        ("policy", tuple(each.name for each in topology.policies)),
    )
    for kind, names in named:
        for name in names:
            if name_flaw(name):
                message = f"has {name_flaw(name)}: use {VALID_NAME}"
                yield Finding("error", "invalid-name", f"{kind} {name!r}", message)
