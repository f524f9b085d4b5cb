"""The permissions that streams require.

The broker refuses a command without naming the permission, and some commands need several. Checked on 3.10.8, 4.0.5 and 4.3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from rabbit_chx.broker.permissions import Beginning, Needs, Resources, lacking

Access: TypeAlias = Callable[[str, str | None], str]
"""A function that explains a refusal to a user of a virtual host: which permissions may be missing, and what grants all of them."""


def reading(stream: str) -> Access:
    """Read a stream, its statistics or its stored offsets."""
    return _access("read", f"stream {stream!r}", Needs(read=_streams([stream])), "reading this stream")


def publishing(stream: str, *, named: bool, missing: str = "write") -> Access:
    """Publish to a stream. With a name, publishers also read their last publishing id."""
    own = _streams([stream])
    what = "a publisher with a name" if named else "a publisher"
    return _access(missing, f"stream {stream!r}", Needs(write=own, read=own if named else set()), what)


def changing(stream: str) -> Access:
    """Create or delete a stream."""
    needs = Needs(configure=_streams([stream]))
    return _access("configure", f"stream {stream!r}", needs, "creating and deleting this stream")


def listing(super_stream: str) -> Access:
    """List the streams of a super stream and read them. Listing needs permissions since RabbitMQ 4.3."""
    needs = Needs(read=_super_stream(super_stream))
    return _access("read", _all_of(super_stream), needs, "reading all of them")


def routing(super_stream: str, *, named: bool = False) -> Access:
    """Look up the streams, or those of a key, and publish to them. The look-up needs permissions since RabbitMQ 4.3.

    The streams are listed for a user who may read or write each, so a publisher that is refused lacks the write permission.
    """
    needs = Needs(write=_super_stream(super_stream))
    if named:
        needs.read = _streams([Beginning(f"{super_stream}-")])
    what = "publishing to all of them with a name" if named else "publishing to all of them"
    return _access("write", _all_of(super_stream), needs, what)


def routing_by_exchange(exchange: str, *, named: bool) -> Access:
    """Do the same with the streams that are bound to an exchange, whose names the refused user cannot list."""
    streams = _streams(["STREAMS"])
    needs = Needs(write={("exchange", exchange), *streams}, read=streams if named else set())
    what = "publishing to the streams whose names replace STREAMS"
    return _access("write", f"exchange {exchange!r} or its streams", needs, what)


def changing_super_stream(super_stream: str, partitions: Iterable[str] | None = None) -> Access:
    """Create or delete a super stream."""
    own = _super_stream(super_stream, partitions)
    exchange = {("exchange", super_stream)}
    needs = Needs(configure=own, write=own - exchange, read=exchange)
    what = "creating and deleting all of them"
    return _access("configure write read", _all_of(super_stream), needs, what)


def _access(missing: str, on: str, needs: Needs, what: str) -> Access:
    return partial(lacking, missing.split(), on, needs=needs, what=what)


def _streams(names: Iterable[str]) -> Resources:
    return {("queue", name) for name in names}


def _super_stream(name: str, partitions: Iterable[str] | None = None) -> Resources:
    """The exchange and the streams of a super stream. By convention, their names begin with its name and a hyphen."""
    return {("exchange", name), *_streams([Beginning(f"{name}-")] if partitions is None else partitions)}


def _all_of(super_stream: str) -> str:
    return f"super stream {super_stream!r} or its streams {super_stream + '-...'!r}"
