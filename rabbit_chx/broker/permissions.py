"""What some work needs a user to be allowed, and what a broker's refusal means for it. Texts in, texts out; no socket.

    needs = Needs(write={("exchange", "orders")})
    needs.line("/", "me")     # rabbitmqctl set_permissions -p / me '^$' '^orders$' '^$'
    why_denied(reply_text, needs)

The broker's answers were taken from 3.10.8, 4.0.5 and 4.3.6; 3.10 does not say which permission is missing, so that is
told from what the work needs.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, TypeAlias

__all__ = ["DEFAULT_EXCHANGE", "Beginning", "Needs", "Resources", "why_denied"]

DEFAULT_EXCHANGE: Final = "amq.default"
"""What permissions call the exchange without a name."""

_DENIED = re.compile(
    r"(?:(configure|write|read) )?access to (queue|exchange) '(.*)' in vhost '(.*)' refused for user '(.*)'",
    re.DOTALL,
).search
_LAST_NUMBER: Final = re.compile(r"[0-9]+(?=[^0-9]*\Z)")
_FAMILY: Final = 10
"""So many names that differ by a number are written as one."""
_BY_KIND: Final = {"exchange": "write", "queue": "configure"}
"""What is needed on a resource that nobody had foreseen: an exchange that a single message names."""


class Beginning(str):
    """How names begin whose end is made up while the work goes on."""

    __slots__ = ()


Resources: TypeAlias = set[tuple[str, str]]
"""Each has a kind, ``exchange`` or ``queue``, and a name."""


@dataclass
class Needs:
    """The permissions that some work needs, by resource (`access-control` in RabbitMQ's documentation)."""

    configure: Resources = field(default_factory=set)
    write: Resources = field(default_factory=set)
    read: Resources = field(default_factory=set)

    def on(self, kind: str, name: str) -> list[str]:
        """Which of the three are needed on one resource."""
        return [each for each in ("configure", "write", "read") if _holds(getattr(self, each), kind, name)]

    def line(self, vhost: str, user: str) -> str:
        """The command that grants all of it and nothing else."""
        patterns = " ".join(shlex.quote(_pattern(names)) for names in (self.configure, self.write, self.read))
        return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} {patterns}"


def why_denied(text: str, needs: Needs, *, at: Needs | None = None, what: str = "this") -> str:
    """The permission that a refusal is about, and the line that grants it; nothing where it is about something else.

    Args:
        text: the broker's.
        needs: what the line grants, all of it, since it replaces what the user has.
        at: what the refused command needs, where that is less.
        what: needs it, for people.
    """
    found = _DENIED(text)
    if found is None:
        return ""
    operation, kind, name, vhost, user = found.groups()
    needed = (at or needs).on(kind, name) or needs.on(kind, name)
    # A passive declare is refused for want of configure, and would be content with any of the three.
    passive = operation == "configure" and needed and operation not in needed
    missing = [operation] if operation and not passive else needed or [_BY_KIND[kind]]
    if not needs.on(kind, name):
        needs = Needs(set(needs.configure), set(needs.write), set(needs.read))
        getattr(needs, missing[0]).add((kind, name))
    return (
        f"user {user!r} has no {' or '.join(missing)} permission on {kind} {name!r} in virtual host {vhost!r}; "
        f"`{needs.line(vhost, user)}` grants all that {what} needs, and replaces the patterns that the user has there"
    )


def _holds(resources: Resources, kind: str, name: str) -> bool:
    return (kind, name) in resources or any(
        kind == other and isinstance(known, Beginning) and name.startswith(known)
        for other, known in resources
    )


def _pattern(resources: Resources) -> str:
    """A regular expression of Erlang's for these names; large families are told by their numbers."""
    names = {name for _, name in resources}
    if not names:
        return "^$"
    whole = not any(isinstance(name, Beginning) for name in names)
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        end = "" if whole or isinstance(name, Beginning) else "$"
        families[_LAST_NUMBER.sub("[0-9]+", _escaped(name)) + end].append(_escaped(name) + end)
    parts = sorted(
        part
        for family, members in families.items()
        for part in ([family] if len(members) >= _FAMILY else members)
    )
    inner = parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"
    return f"^{inner}$" if whole else f"^{inner}"


def _escaped(name: str) -> str:
    return re.escape(name).replace(r"\-", "-")
