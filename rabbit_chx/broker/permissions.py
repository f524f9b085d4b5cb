"""The permissions that some work needs, and which of them a broker's refusal is about. Text in, text out.

    needs = Needs(write={("exchange", "orders")})
    needs.line("/", "me")     # rabbitmqctl set_permissions -p / me '^$' '^orders$' '^$'
    why_denied(reply_text, needs)

3.10 does not say which permission is missing: it follows from what the work needs. Checked on 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

DEFAULT_EXCHANGE: Final = "amq.default"
"""The name of the default exchange in permissions."""

_DENIED = re.compile(
    r"(?:(configure|write|read) )?access to (queue|exchange) '(.*)' in vhost '(.*)' refused for user '(.*)'",
    re.DOTALL,
).search
backend_failed: Final = re.compile("refused for user '.*', backend ", re.DOTALL).search
"""Whether a refusal is about no permission: for example, the user's token has expired, or the server that knows the permissions is away.

Names may be so long that the broker cuts the rest of the text off: "returned an error" and the reason.
"""
_LAST_NUMBER: Final = re.compile(r"[0-9]+(?=[^0-9]*\Z)")
_FAMILY: Final = 10
"""From this many on, names that differ by a number become one pattern."""
_BY_KIND: Final = {"exchange": "write", "queue": "configure"}
"""The permission to assume for a resource that is not among the needs, such as an exchange that one message names."""


class Beginning(str):
    """The beginning of names whose end is generated, such as ``amq.gen-``."""

    __slots__ = ()


class BeforeNumber(Beginning):
    """The beginning of names that end with a number, perhaps hexadecimal, such as the seats of a group.

    A seat of group ``billing.eu`` is none of group ``billing``.
    """

    __slots__ = ()


Resources: TypeAlias = set[tuple[str, str]]
"""Pairs of a kind, ``exchange`` or ``queue``, and a name."""


@dataclass
class Needs:
    """The permissions that some work needs, by resource."""

    configure: Resources = field(default_factory=set)
    write: Resources = field(default_factory=set)
    read: Resources = field(default_factory=set)

    def __or__(self, other: Needs) -> Needs:
        """The permissions that either of the two needs."""
        return Needs(self.configure | other.configure, self.write | other.write, self.read | other.read)

    def on(self, kind: str, name: str) -> list[str]:
        """The needed permissions on one resource."""
        return [each for each in ("configure", "write", "read") if _holds(getattr(self, each), kind, name)]

    def line(self, vhost: str, user: str) -> str:
        """The command that grants these permissions and no others."""
        patterns = " ".join(shlex.quote(_pattern(names)) for names in (self.configure, self.write, self.read))
        return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} {patterns}"


NOTHING: Final = Needs()


def why_denied(text: str, needs: Needs, *, at: Needs | None = None, what: str = "this") -> str:
    """Name the permission that a refusal is about and the command that grants it; empty if it is about something else.

    Args:
        text: of the broker.
        needs: what the command grants: everything, because it replaces the patterns that the user has.
        at: what the refused AMQP method needs, if that is less.
        what: the subject of "needs" in the sentence.
    """
    found = _DENIED(text)
    if found is None or backend_failed(text):
        return ""
    operation, kind, name, vhost, user = found.groups()
    needed = (at or needs).on(kind, name) or needs.on(kind, name)
    # A refused passive declare names configure, but any of the three permissions is enough for it.
    passive = operation == "configure" and needed and operation not in needed
    missing = [operation] if operation and not passive else needed or [_BY_KIND[kind]]
    if not needs.on(kind, name):
        needs = Needs(set(needs.configure), set(needs.write), set(needs.read))
        getattr(needs, missing[0]).add((kind, name))
    return lacking(missing, f"{kind} {name!r}", vhost, user, needs, what)


def lacking(missing: Sequence[str], on: str, vhost: str, user: str | None, needs: Needs, what: str) -> str:
    """Name missing permissions, of which the user lacks one, and the command that grants all that some work needs.

    ``on`` is the resource in words, and the user None if the client knows only the user's certificate.
    """
    who = "the user of the certificate" if user is None else f"user {user!r}"
    line = needs.line(vhost, "USER" if user is None else user)
    return (
        f"{who} has no {' or '.join(missing)} permission on {on} in virtual host {vhost!r}; "
        f"`{line}` grants all that {what} needs, and replaces the patterns that the user has there"
    )


def _holds(resources: Resources, kind: str, name: str) -> bool:
    return any(kind == other and re.match(_escaped(known) + _end(known), name) for other, known in resources)


def _pattern(resources: Resources) -> str:
    """An Erlang regular expression for these names; many names that differ by a number become one pattern."""
    names = {name for _, name in resources}
    if not names:
        return "^$"
    whole = not any(isinstance(name, Beginning) for name in names)
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        escaped, end = _escaped(name), "" if whole else _end(name)
        families[_LAST_NUMBER.sub("[0-9]+", escaped) + end].append(escaped + end)
    parts = sorted(
        part
        for family, members in families.items()
        for part in ([family] if len(members) >= _FAMILY else members)
    )
    inner = parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"
    return f"^{inner}$" if whole else f"^{inner}"


def _end(name: str) -> str:
    """What follows a name in a pattern."""
    if isinstance(name, BeforeNumber):
        return "[0-9a-f]+$"
    return "" if isinstance(name, Beginning) else "$"


def _escaped(name: str) -> str:
    return re.escape(name).replace(r"\-", "-")
