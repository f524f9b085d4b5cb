"""The part of ``rabbit-chx group`` about groups on streams: what the broker knows of them, and their stored offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import sleep
from typing import Any, Final

import click

from rabbit_chx.base.text import counted, listed, sentences
from rabbit_chx.base.urls import MAX_PORT
from rabbit_chx.broker.management_rows import StreamConsumer
from rabbit_chx.broker.reading.node import read_stream_consumers
from rabbit_chx.cli.ask.broker_access import BrokerAccess, warn_of_tracer
from rabbit_chx.cli.ask.options import check_names, exchange_option, node_option
from rabbit_chx.cli.changes import check_can_ask, confirmed
from rabbit_chx.cli.show.output import echo, notice, print_json
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import Exit, bundle, option
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, StreamUnavailable
from rabbit_chx.streams import BrokerUrl, StreamConnection, connect
from rabbit_chx.streams.group.offsets import GroupOffsets, PartitionOffsets
from rabbit_chx.streams.group.settings import Position, check_position, check_reference, check_release

EVERY: Final = 2.0
"""Seconds between two looks with --watch."""
_SEES_ALL: Final = {"monitoring", "administrator"}
"""Tags of users to whom the management API shows the consumers of all users."""
_POSITIONS: Final = "first, last, next, a time with its zone such as 2026-01-31T08:00:00Z, or an offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOfStreams:
    """A group on streams, its broker, and what the options ask for."""

    name: str
    live: BrokerAccess
    super_stream: str | None
    exchange: str | None
    stream: str | None
    stream_port: int | None
    reset: str | None
    yes: bool

    def offsets(self) -> GroupOffsets:
        """The stored offsets, to be opened."""
        check_reference(self.name)
        url = BrokerUrl.for_streams(self.live.given, port=self.stream_port or 0)
        opening = partial(connect, url, connection_name="rabbit-chx group", **self.live.login)

        def at_stream(stream: str | None) -> StreamConnection:
            try:
                connection = opening(stream=stream)
            except StreamUnavailable as error:
                if error.problem == "unreachable" and self.stream_port is None:
                    text = sentences(str(error), "--stream-port names another port")
                    raise StreamUnavailable(text, error.problem) from None
                raise
            try:
                check_release(connection.release)
            except InvalidValue:
                connection.close()
                raise
            return connection

        return GroupOffsets(self.name, at_stream)

    def streams(self, offsets: GroupOffsets) -> Sequence[str]:
        """The streams of the group."""
        exchange = self.super_stream or self.exchange
        if exchange is None:
            return [self.stream or ""]
        if found := offsets.streams_of(exchange):
            return found
        raise InvalidValue("exchange", exchange, "an exchange to which a stream is bound")

    def consumers(self, streams: Sequence[str]) -> list[StreamConsumer] | None:
        """The consumers of the members; None if they cannot all be seen, which a notice explains."""
        vhost, node = self.live.given.vhost, self.live.node_command
        try:
            if node is not None:
                return read_stream_consumers(node, vhost, self.name, streams)
            management = self.live.management
            warn_of_tracer(management, vhost)
            found = management._stream_consumers(vhost, self.name)
            user = management.whoami()
        except BrokerUnavailable as error:
            hint = "--node asks a node instead" if node is None else ""
            notice("Not seen", sentences(f"the members of the group: {error}", hint))
            return None
        if not user.tags & _SEES_ALL:
            notice("Not seen", f"members of other users than {user.name!r}, which lacks the tag monitoring")
            return None
        return [each for each in found if each.stream in streams]


def _of_streams(given: dict[str, Any]) -> dict[str, Any]:
    own = ("super_stream", "exchange", "stream", "stream_port", "reset", "yes")
    found = GroupOfStreams(name=given["name"], live=given["live"], **{name: given.pop(name) for name in own})
    sources = [each for each in (found.super_stream, found.exchange, found.stream) if each is not None]
    if len(sources) > 1:
        raise click.UsageError("--super-stream, --exchange and --stream cannot be combined")
    if found.reset is not None and not sources:
        raise click.UsageError("--reset requires --super-stream, --exchange or --stream")
    return given | {"streams": found if sources else None}


_option = partial(option, group="Groups on streams")
stream_options = bundle(
    _option(
        "--super-stream",
        metavar="NAME",
        callback=check_names,
        help="The group shares the streams of a super stream.",
    ),
    exchange_option(group="Groups on streams", help="The group shares the streams bound to an exchange."),
    _option("--stream", metavar="NAME", callback=check_names, help="The group reads a single stream."),
    _option(
        "--reset",
        metavar="POSITION",
        help="Set the stored offsets, so that the group resumes there: first, last (the last chunk), next, a time with its "
        "zone, or an offset. The group must have no members.",
    ),
    _option("-y", "--yes", is_flag=True, help="Reset without asking for confirmation."),
    node_option(group="Groups on streams"),
    _option(
        "--stream-port",
        type=click.IntRange(1, MAX_PORT),
        metavar="N",
        help="Port of the stream protocol; by default 5552, or 5551 with amqps.",
    ),
    gather=_of_streams,
)
"""The command gets `GroupOfStreams` as ``streams``, or None for a group of queues."""


def stream_group(group: GroupOfStreams, *, watch: bool, output: str) -> int:
    """Show a group on streams, or set its stored offsets."""
    if group.reset is None:
        return _show(group, watch=watch, output=output)
    if watch:
        raise click.UsageError("--reset and --watch cannot be combined")
    position = parse_position(group.reset)
    if isinstance(position, int) and group.stream is None:
        raise InvalidValue(
            "--reset", position, "an offset only with --stream", "Other positions apply to each stream"
        )
    return _reset(group, position, output)


def _show(group: GroupOfStreams, *, watch: bool, output: str) -> int:
    """Print the members and the partitions of a group."""
    with group.offsets() as offsets:
        while True:
            streams = group.streams(offsets)
            partitions = [offsets.read(stream) for stream in streams]
            consumers = group.consumers(streams)
            if watch:
                click.clear()  # a terminal only
            _print(group.name, partitions, consumers, output)
            if beyond := [each.stream for each in partitions if each.stored is not None and each.lag is None]:
                text = "the stored offset is beyond the end, so no message is handled; --reset sets it"
                notice("Warning", f"{listed(beyond, 'stream')}: {text}")
            if not watch:
                break
            sleep(EVERY)
    unserved = set(streams) - {each.stream for each in consumers or () if each.active}
    return Exit.FINE if consumers is None or not unserved else Exit.DIFFERENT


def _reset(group: GroupOfStreams, position: Position, output: str) -> int:
    """Set the stored offsets of a group without members."""
    check_can_ask("group --reset", "--yes", "Without --reset, the command shows the group", yes=group.yes)
    with group.offsets() as offsets:
        streams = group.streams(offsets)
        if _has_members(group, streams):
            return Exit.FAILED
        before = [offsets.read(stream) for stream in streams]
        after = {stream: offsets.before(stream, position) for stream in streams}
    _print_reset(group.name, before, after, output)
    question = f"Set the stored {'offset' if len(streams) == 1 else 'offsets'} of group {group.name!r}?"
    # Not connected: the broker closes a connection that sends no heartbeats.
    if not confirmed(question, yes=group.yes) or (not group.yes and _has_members(group, streams)):
        return Exit.FAILED
    with group.offsets() as offsets:
        for stream, offset in after.items():
            offsets.store(stream, offset)
    echo(f"Stored: {counted(len(after), 'offset')}.", err=output == "json")
    return Exit.FINE


def _has_members(group: GroupOfStreams, streams: Sequence[str]) -> bool:
    """Print that a group has members, if it has any; warn if they cannot be seen."""
    consumers = group.consumers(streams)
    if consumers:
        hint = "" if group.live.node else ". A member that has just ended is listed for some seconds"
        notice(
            "Refused",
            f"group {group.name!r} has members, which would store their own offsets: stop them first{hint}",
        )
    elif consumers is None:
        notice("Warning", "a member that runs now would store its own offsets again: stop all members first")
    return bool(consumers)


def parse_position(text: str) -> Position:
    """The value of --reset."""
    position: Position | str = text
    with suppress(ValueError):
        position = int(text) if text.isdecimal() else datetime.fromisoformat(text)
    try:
        check_position(position, "--reset")
    except InvalidValue:
        raise InvalidValue("--reset", text, _POSITIONS) from None
    return position  # type: ignore[return-value]  # checked above


def _print(
    name: str, partitions: Sequence[PartitionOffsets], consumers: Sequence[StreamConsumer] | None, output: str
) -> None:
    active = {each.stream: each.connection for each in consumers or () if each.active}
    members = {each.connection: list[str]() for each in consumers or () if each.connection}
    for stream, connection in sorted(active.items()):
        if connection:
            members[connection].append(stream)
    if output == "json":
        for connection, streams in members.items():
            print_json("stream_member", connection=connection, streams=streams)
        for each in partitions:
            print_json(
                "stream_partition",
                stream=each.stream,
                served=None if consumers is None else each.stream in active,
                member=active.get(each.stream),
                stored=each.stored,
                first=each.first,
                end=each.end,
                lag=each.lag,
            )
        return
    if consumers is not None and not consumers:
        echo(f"Group {name!r} has no members.")
    shown = Table("member", "streams", right=("streams",))
    for connection, streams in members.items():
        shown.add_row(connection, str(len(streams)))
    parts = [shown] if members else []
    show(*parts, _partition_table(partitions, None if consumers is None else active), title=f"Group {name}")


def _partition_table(
    partitions: Sequence[PartitionOffsets], active: Mapping[str, str | None] | None
) -> Table:
    right = ("stored offset", "end", "lag")
    shown = Table("stream", "member", *right, right=right, wrapped=("stream",))
    for each in partitions:
        member = "?" if active is None else (active.get(each.stream, "none") or "?")
        lag = "" if each.lag is None else f"{each.lag:,}"
        shown.add_row(each.stream, member, _words(each.stored), str(each.end), lag)
    return shown


def _print_reset(
    name: str, before: Sequence[PartitionOffsets], after: Mapping[str, int], output: str
) -> None:
    right = ("stored offset", "new offset", "first", "end")
    shown = Table("stream", *right, right=right, wrapped=("stream",))
    for each in before:
        new = after[each.stream]
        if output == "json":
            print_json("stream_reset", stream=each.stream, stored=each.stored, new=new)
        else:
            shown.add_row(each.stream, _words(each.stored), _words(new), str(each.first), str(each.end))
    if output == "table":
        show(shown, title=f"Group {name}")


def _words(stored: int | None) -> str:
    return "none" if stored is None else "before the first" if stored < 0 else str(stored)
