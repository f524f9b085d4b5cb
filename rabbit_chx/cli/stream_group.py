"""The part of ``rabbit-chx group`` about groups on streams: what the broker knows of them, and their stored offsets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from time import sleep
from typing import Any, Final

import click

from rabbit_chx.broker.management import Management
from rabbit_chx.broker.management_rows import StreamConsumer
from rabbit_chx.broker.reading.node import NodeCommand
from rabbit_chx.broker.reading.stream_consumers import read_stream_consumers
from rabbit_chx.cli.changes import check_can_ask
from rabbit_chx.cli.options import Login, check_names, count_option, exchange_option, node_option
from rabbit_chx.cli.output import echo, notice, print_json
from rabbit_chx.cli.tables import Table, show
from rabbit_chx.cli.verb import Exit, bundle, option
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.streams import BrokerUrl, connect
from rabbit_chx.streams.group.offsets import GroupOffsets, PartitionOffsets
from rabbit_chx.streams.group.settings import Position, check_position, check_reference
from rabbit_chx.text import counted

_EVERY: Final = 2.0
_SEES_ALL: Final = {"monitoring", "administrator"}
"""Tags of users to whom the management API shows the consumers of all users."""
_POSITIONS: Final = "first, last, next, a time with its zone such as 2026-01-31T08:00:00Z, or an offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options about a group on streams."""

    super_stream: str | None
    exchange: str | None
    stream: str | None
    stream_port: int | None
    node: str | None
    reset: str | None
    yes: bool


def _of_streams(given: dict[str, Any]) -> dict[str, Any]:
    found = StreamOptions(**{each.name: given.pop(each.name) for each in fields(StreamOptions)})
    sources = [each for each in (found.super_stream, found.exchange, found.stream) if each is not None]
    if len(sources) > 1:
        raise click.UsageError("--super-stream, --exchange and --stream exclude each other")
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
        help="Set the stored offsets so that the group goes on there: first, last (the last chunk), next, a time with its "
        "zone, or an offset. The group must have no members.",
    ),
    _option("-y", "--yes", is_flag=True, help="Reset without asking for confirmation."),
    node_option(group="Groups on streams"),
    count_option(
        "--stream-port",
        group="Groups on streams",
        help="Port of the stream protocol; by default 5552, or 5551 with amqps.",
    ),
    gather=_of_streams,
)
"""The command gets `StreamOptions` as ``streams``, or None for a group of queues."""


@dataclass(frozen=True, slots=True)
class _View:
    """A group on streams, and how to reach its broker."""

    name: str
    url: BrokerUrl
    login: Login
    management_of: partial[Management]
    options: StreamOptions

    def offsets(self) -> GroupOffsets:
        """The stored offsets, to be opened."""
        check_reference(self.name)
        url = BrokerUrl.for_streams(self.url, port=self.options.stream_port or 0)
        opening = partial(connect, url, connection_name="rabbit-chx group", **self.login)
        return GroupOffsets(self.name, lambda stream: opening(stream=stream))

    def streams(self, offsets: GroupOffsets) -> Sequence[str]:
        """The streams that the members share."""
        exchange = self.options.super_stream or self.options.exchange
        if exchange is None:
            return [self.options.stream or ""]
        if found := offsets.streams_of(exchange):
            return found
        raise InvalidValue("exchange", exchange, "an exchange to which a stream is bound")

    def consumers(self, streams: Sequence[str]) -> list[StreamConsumer] | None:
        """The consumers of the members; None if they cannot all be seen, which a notice explains."""
        vhost = self.url.vhost
        try:
            if self.options.node is not None:
                return read_stream_consumers(NodeCommand(self.options.node), vhost, self.name, streams)
            management = self.management_of(self.url, **self.login)
            found = management.stream_consumers(vhost, self.name)
            user = management.whoami()
        except BrokerUnavailable as error:
            notice("Not seen", f"the members of the group: {error}. --node asks a node instead")
            return None
        if not user.tags & _SEES_ALL:
            notice("Not seen", f"members of other users than {user.name!r}, which lacks the tag monitoring")
            return None
        return [each for each in found if each.stream in streams]


def stream_group(
    name: str,
    url: BrokerUrl,
    login: Login,
    management_of: partial[Management],
    options: StreamOptions,
    *,
    watch: bool,
    output: str,
) -> int:
    """Show a group on streams, or set its stored offsets."""
    view = _View(name, url, login, management_of, options)
    if options.reset is None:
        return _show(view, watch=watch, output=output)
    if watch:
        raise click.UsageError("--reset and --watch exclude each other")
    position = parse_position(options.reset)
    if isinstance(position, int) and options.stream is None:
        raise InvalidValue(
            "--reset", position, "an offset only with --stream", "Other positions apply to each stream"
        )
    return _reset(view, position, yes=options.yes, output=output)


def _show(view: _View, *, watch: bool, output: str) -> int:
    """Print the members and the partitions of a group."""
    with view.offsets() as offsets:
        while True:
            streams = view.streams(offsets)
            partitions = [offsets.read(stream) for stream in streams]
            consumers = view.consumers(streams)
            if watch and sys.stdout.isatty():
                click.clear()
            _print(view.name, partitions, consumers, output)
            if not watch:
                break
            sleep(_EVERY)
    unserved = set(streams) - {each.stream for each in consumers or () if each.active}
    return Exit.FINE if consumers is None or not unserved else Exit.DIFFERENT


def _reset(view: _View, position: Position, *, yes: bool, output: str) -> int:
    """Set the stored offsets of a group without members."""
    check_can_ask("group --reset", "--yes", "Without --reset, the command shows the group", yes=yes)
    with view.offsets() as offsets:
        streams = view.streams(offsets)
        if consumers := view.consumers(streams):
            notice(
                "Refused",
                f"group {view.name!r} has members, which would store their own offsets: stop them first",
            )
            return Exit.FAILED
        if consumers is None:
            notice(
                "Warning", "a member that runs now would store its own offsets again: stop all members first"
            )
        before = [offsets.read(stream) for stream in streams]
        after = {stream: offsets.before(stream, position) for stream in streams}
        _print_reset(view.name, before, after, output)
        question = f"Set the stored {'offset' if len(streams) == 1 else 'offsets'} of group {view.name!r}?"
        if not (yes or click.confirm(question, err=True)):
            echo("Nothing was changed.", err=True)
            return Exit.FAILED
        for stream, offset in after.items():
            offsets.store(stream, offset)
    echo(f"Stored: {counted(len(after), 'offset')}.", err=output == "json")
    return Exit.FINE


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
            served = None if consumers is None else each.stream in active
            _print_partition(each, active.get(each.stream), served=served)
        return
    if consumers is not None and not consumers:
        echo(f"Group {name!r} has no members.")
    shown = Table("member", "streams", right=("streams",))
    for connection, streams in members.items():
        shown.add_row(connection, str(len(streams)))
    parts = [shown] if members else []
    show(*parts, _partition_table(partitions, None if consumers is None else active), title=f"Group {name}")


def _print_partition(each: PartitionOffsets, member: str | None, *, served: bool | None) -> None:
    print_json(
        "stream_partition",
        stream=each.stream,
        served=served,
        member=member,
        stored=each.stored,
        first=each.first,
        end=each.end,
        lag=each.lag,
    )


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
    if output == "json":
        for each in before:
            print_json("stream_reset", stream=each.stream, stored=each.stored, new=after[each.stream])
        return
    right = ("stored offset", "new offset", "first", "end")
    shown = Table("stream", *right, right=right, wrapped=("stream",))
    for each in before:
        new = _words(after[each.stream])
        shown.add_row(each.stream, _words(each.stored), new, str(each.first), str(each.end))
    show(shown, title=f"Group {name}")


def _words(stored: int | None) -> str:
    return "none" if stored is None else "before the first" if stored < 0 else str(stored)
