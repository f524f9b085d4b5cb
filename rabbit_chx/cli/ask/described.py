"""The exchange that ``route``, ``ring`` and ``simulate`` are about: by its queues, in a topology file, or on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rabbit_chx.base.text import listed, sentences
from rabbit_chx.cli.ask.options import (
    ACCESS_OPTIONS,
    BROKER_OPTIONS,
    EXCHANGE,
    MANAGEMENT_OPTIONS,
    READ_FROM_BROKER,
    exchange_option,
    file_option,
    parse_queue,
    refuse,
    release_option,
    store_option,
    the_exchange,
    with_login,
    with_management,
)
from rabbit_chx.cli.show.output import notice
from rabbit_chx.cli.verb import bundle, option
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.releases import Release
from rabbit_chx.mirror.ring import Ring, ToExchange

if TYPE_CHECKING:
    from rabbit_chx.cli.ask.broker_access import BrokerAccess
    from rabbit_chx.topology.model import Topology

_of_exchange = partial(option, group=EXCHANGE)


@dataclass(frozen=True)
class Located:
    """An exchange of a topology file or of a broker."""

    topology: Topology
    exchange: str
    release: Release
    rings: Mapping[str, Ring] = field(default_factory=dict)
    """The rings on the broker; empty for a file."""

    def mirror(self) -> ConsistentHashExchange:
        """The mirror of the exchange, which must be an x-consistent-hash exchange."""
        name = self.exchange
        ring = self.rings[name] if name in self.rings else self.topology.ring(name, self.release)
        found = self.topology.exchange(name)
        on = {"hash_header": found.hash_header, "hash_property": found.hash_property} if found else {}
        return ConsistentHashExchange(ring, **on)


@dataclass(frozen=True)
class Described:
    """The exchange that the options describe."""

    broker: Mapping[str, Any]
    """The options of a broker."""
    queues: tuple[str, ...]
    hash_header: str | None
    hash_property: str | None
    release: str
    store: str | None
    file: str | None
    exchange: str | None

    def __post_init__(self) -> None:
        by_queues = self.queues or self.hash_header or self.hash_property
        if self.file is not None and by_queues:
            raise click.UsageError(
                "--file replaces --queue, --hash-header and --hash-property: leave those out"
            )
        if self.file is None and self.queues and self.exchange:
            raise click.UsageError("--exchange needs --file or --url, without --queue")
        if not self.is_on_broker:
            refuse("url", "node", "probe", "pairs", "amqp_only", on="--queue and --file")
            return
        if self.exchange is None:
            raise click.UsageError(
                "missing --queue NAME[=WEIGHT]: repeat it for each queue in bind order, or pass --file, or --exchange and --url"
            )
        if not self.broker["url"]:
            raise click.UsageError("--exchange needs --file or --url")
        refuse("release", "store", on=READ_FROM_BROKER)
        if self.hash_header or self.hash_property or self.broker["amqp_only"]:
            raise click.UsageError(
                "an exchange of a broker is read from the management API: leave out --amqp-only, --hash-header and --hash-property"
            )

    @property
    def live(self) -> BrokerAccess:
        """The broker; most runs need none, and start faster without what it imports."""
        from rabbit_chx.cli.ask.broker_access import with_access

        live: BrokerAccess = with_access(with_management(with_login(dict(self.broker))))["live"]
        return live

    @property
    def is_on_broker(self) -> bool:
        """Whether the exchange is read from a broker."""
        return self.file is None and not self.queues

    def mirror(self) -> ConsistentHashExchange:
        """The mirror of the exchange, which must be an x-consistent-hash exchange."""
        if (found := self.located()) is not None:
            return found.mirror()
        self._note_assumed_release(self.hash_header)
        return ConsistentHashExchange(
            [parse_queue(queue) for queue in self.queues],
            release=self.release,
            store=self.store,
            hash_header=self.hash_header,
            hash_property=self.hash_property,
        )

    def located(self) -> Located | None:
        """The exchange in the file or on the broker; None if its queues describe it."""
        if self.file is not None:
            from rabbit_chx.topology.file.load import load

            topology = load(self.file)
            release = Release.parse(self.release, store=self.store)
            name = the_exchange(topology, self.exchange)
            if (found := topology.exchange(name)) is not None:
                self._note_assumed_release(found.hash_header)
            return Located(topology, name, release)
        return read_exchange(self.live, self.exchange or "") if self.is_on_broker else None

    def _note_assumed_release(self, hash_header: str | None) -> None:
        """Name the release that is assumed where another one may route otherwise."""
        source = click.get_current_context().get_parameter_source("release")
        if hash_header and source is ParameterSource.DEFAULT:
            notice(
                "Note",
                f"RabbitMQ {self.release} is assumed. Releases up to 3.12 hash headers differently: pass --release if the "
                "broker runs another release",
            )


def read_exchange(live: BrokerAccess, exchange: str) -> Located:
    """An exchange of a broker, which must hash or lead to one that does."""
    from rabbit_chx.cli.ask.broker_access import note_unproven
    from rabbit_chx.topology.file.problems import did_you_mean
    from rabbit_chx.topology.graph import reachable
    from rabbit_chx.topology.model import RESERVED, Topology

    observed = live.read(Topology(vhost=live.given.vhost))
    known = sorted(each.name for each in observed.topology.exchanges)
    if exchange and exchange not in known and not exchange.startswith(RESERVED):
        has = f"it has {listed(known, 'exchange') if known else 'none'}"
        missing = f"virtual host {live.given.vhost!r} has no exchange {exchange!r}: {has}"
        raise BrokerUnavailable(sentences(missing, did_you_mean(exchange, known)), permanent=True)
    behind = reachable(observed.topology, [ToExchange(exchange)], alternates=True)
    note_unproven(observed, (each.name for each in behind if isinstance(each, ToExchange)))
    return Located(observed.topology, exchange, observed.release, observed.rings)


_LIVE = (*BROKER_OPTIONS, *MANAGEMENT_OPTIONS, *ACCESS_OPTIONS)
_NAMES = tuple(str(each.name) for each in bundle(*_LIVE)(lambda: None).__click_params__)  # type: ignore[attr-defined]

exchange_options = bundle(
    _of_exchange(
        "-q",
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME[=WEIGHT]",
        help="Queue and weight, in bind order.",
    ),
    _of_exchange("--hash-header", metavar="H", help="Header to hash."),
    _of_exchange(
        "--hash-property",
        metavar="P",
        shell_complete=lambda *_: ["message_id", "correlation_id", "timestamp"],
        help="Property to hash: message_id, correlation_id or timestamp.",
    ),
    file_option(help="Topology file with the exchange, instead of --queue."),
    exchange_option(
        group=EXCHANGE,
        help="Exchange of --file, if several hash; without --file and --queue, an exchange of the broker.",
    ),
    release_option(group=EXCHANGE, help="The broker's release."),
    store_option(group=EXCHANGE, help="Metadata store, if it is not the default of the release."),
    *_LIVE,
    gather=lambda given: {
        "described": Described(
            broker={name: given.pop(name) for name in _NAMES},
            **{name: given.pop(name) for name in Described.__dataclass_fields__ if name != "broker"},
        ),
        **given,
    },
)
"""The options that describe an exchange; the command gets them as ``described``."""
