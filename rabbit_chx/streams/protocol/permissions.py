"""The permissions that streams require.

The broker refuses a command without naming the permission, and some commands need several. Checked on 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rabbit_chx.broker.permissions import Beginning, Needs, Resources, lacking


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions of a command, and of the whole work that includes this command."""

    missing: tuple[str, ...]
    """The permissions of the command: a refusal means that the user lacks at least one of them."""
    on: str
    needs: Needs
    """The permissions of the work."""
    what: str
    """The name of the work."""

    def lacking(self, vhost: str, user: str | None) -> str:
        """Name the missing permissions, and the command that grants all permissions of the work."""
        return lacking(self.missing, self.on, vhost, user, self.needs, self.what)


def reading(stream: str) -> Access:
    """Read a stream, its statistics or its stored offsets."""
    return Access(("read",), f"stream {stream!r}", Needs(read=_streams([stream])), "reading this stream")


def publishing(stream: str, *, named: bool, missing: str = "write") -> Access:
    """Publish to a stream. With a name, publishers also read their last publishing id."""
    own = _streams([stream])
    what = "a publisher with a name" if named else "a publisher"
    return Access((missing,), f"stream {stream!r}", Needs(write=own, read=own if named else set()), what)


def changing(stream: str) -> Access:
    """Create or delete a stream."""
    needs = Needs(configure=_streams([stream]))
    return Access(("configure",), f"stream {stream!r}", needs, "creating and deleting this stream")


def listing(super_stream: str) -> Access:
    """List the streams of a super stream and read them. Listing needs permissions since RabbitMQ 4.3."""
    needs = Needs(read=_super_stream(super_stream))
    return Access(("read",), _all_of(super_stream), needs, "reading all of them")


def routing(super_stream: str) -> Access:
    """Look up the streams of a key and publish to them. The look-up needs permissions since RabbitMQ 4.3."""
    needs = Needs(write=_super_stream(super_stream))
    return Access(("write",), _all_of(super_stream), needs, "publishing to all of them")


def changing_super_stream(super_stream: str, partitions: Iterable[str] | None = None) -> Access:
    """Create or delete a super stream."""
    own = _super_stream(super_stream, partitions)
    exchange = {("exchange", super_stream)}
    needs = Needs(configure=own, write=own - exchange, read=exchange)
    missing = ("configure", "write", "read")
    return Access(missing, _all_of(super_stream), needs, "creating and deleting all of them")


def _streams(names: Iterable[str]) -> Resources:
    return {("queue", name) for name in names}


def _super_stream(name: str, partitions: Iterable[str] | None = None) -> Resources:
    """The exchange and the streams of a super stream. By convention, their names begin with its name and a hyphen."""
    return {("exchange", name), *_streams([Beginning(f"{name}-")] if partitions is None else partitions)}


def _all_of(super_stream: str) -> str:
    return f"super stream {super_stream!r} or its streams {super_stream + '-...'!r}"
