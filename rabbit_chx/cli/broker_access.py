"""A live broker as the verbs of topology reach it: over AMQP, over its management API, and on the node itself."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.cli.completion import exchanges
from rabbit_chx.cli.options import BROKER, ManagementAccess, broker_options, management_options
from rabbit_chx.cli.progress import waiting
from rabbit_chx.cli.verb import option
from rabbit_chx.errors import BrokerUnavailable, InvalidValue

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    import pika

    from rabbit_chx.broker.management import Management
    from rabbit_chx.broker.reading.node import NodeCommand
    from rabbit_chx.topology.model import Observed, Topology
    from rabbit_chx.urls import BrokerUrl

__all__ = ["BrokerAccess", "broker_access_options"]

_RINGS: Final = "Rings of unknown order"
_PLUGIN: Final = "rabbitmq-plugins enable rabbitmq_management"
"""Stands in the errors of a management API that is not there, and in no refusal of one that is."""


@dataclass(frozen=True)
class BrokerAccess:
    """Where a broker is, and by what means it may be asked."""

    url: str | BrokerUrl | None
    management_access: ManagementAccess
    password_file: Path | None = None
    node: str | None = None
    probe: str | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    """Exchanges, each with a file of what was hashed and where it was seen."""
    amqp_only: bool = False
    tls: ssl.SSLContext | None = None

    @property
    def given(self) -> BrokerUrl:
        """The URL, which must be there."""
        from rabbit_chx.urls import BrokerUrl

        if self.url is None:
            raise click.UsageError(
                "missing broker URL: pass --url or set AMQP_URL (`lint` and `plan FILE --against OTHER_FILE` need none)"
            )
        return BrokerUrl.parse(self.url)

    def amqp(self, vhost: str) -> pika.BlockingConnection:
        """A connection to a virtual host."""
        from rabbit_chx.broker.connect import connect

        url = self.given.at_vhost(vhost)
        return connect(url, name="rabbit-chx topology", credentials=self.password_file, tls=self.tls)

    def management(self) -> Management | None:
        """Its management API; None where AMQP has to do."""
        if self.amqp_only:
            return None
        return self.management_access.open(self.given, self.password_file, self.tls)

    def read(self, wanted: Topology) -> Observed:
        """What stands in the virtual host of a topology."""
        from rabbit_chx.broker.reading.reader import read, read_existence

        self.given.at_vhost(wanted.vhost)  # a URL that names another is a mistake
        management = self.management()
        if management is None:
            with waiting("Reading the broker"), self.amqp(wanted.vhost) as connection:
                return read_existence(connection, wanted)
        node = self._node()
        try:
            with waiting("Reading the broker"):
                observed = read(management, wanted.vhost, node=node)
        except BrokerUnavailable as error:
            if _PLUGIN not in str(error):
                raise
            raise BrokerUnavailable(
                f"{error}; --management-url names another place, and --amqp-only does without, though AMQP shows little"
            ) from None
        return self._learnt(observed)

    def _learnt(self, observed: Observed) -> Observed:
        """With the rings that messages betray: those in files, and those of others that pass meanwhile."""
        from rabbit_chx.broker.reading.ring_order import learn

        if self.pairs:
            observed = learn(observed, self._seen(observed))
        if self.probe is None:
            return observed
        from rabbit_chx.broker.reading.probe import probe

        with self.amqp(observed.topology.vhost) as connection:
            return learn(observed, probe(connection, observed, self.probe))

    def _seen(self, observed: Observed) -> dict[str, list[tuple[Any, str]]]:
        """The pairs of the files by exchange, several files of one put together."""
        from rabbit_chx.cli.plan_rows import condense
        from rabbit_chx.cli.ring import read_pairs

        seen: dict[str, list[tuple[Any, str]]] = {}
        for name, path in self.pairs:
            exchange = observed.topology.exchange(name)
            if exchange is None or name not in observed.rings:
                raise InvalidValue(
                    "--pairs",
                    name,
                    "an x-consistent-hash exchange of the broker: "
                    + (", ".join(condense(map(repr, observed.rings))) or "it has none"),
                )
            seconds = exchange.hash_property == "timestamp"
            seen.setdefault(name, []).extend(
                (int(key) if seconds and key.isdecimal() else key, queue)
                for key, queue in read_pairs(path, option="--pairs")
            )
        return seen

    def _node(self) -> NodeCommand | None:
        from rabbit_chx.broker.reading.node import NodeCommand

        return NodeCommand(self.node) if self.node else None


def broker_access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a broker is reached; the command gets it as ``live``."""

    @broker_options
    @management_options
    @option(
        "--amqp-only", group=BROKER, is_flag=True, help="Do without the HTTP API; says what it cannot see."
    )
    @option(
        "--node",
        group=_RINGS,
        metavar="COMMAND",
        envvar="RABBIT_CHX_NODE",
        show_envvar=True,
        help="How to ask a node for its rings: 'docker exec NAME rabbitmqctl eval'.",
    )
    @option(
        "--probe",
        group=_RINGS,
        shell_complete=exchanges,
        metavar="X",
        help="Work out the ring of exchange X with messages of our own: only if it and its queues are quiet.",
    )
    @option(
        "--pairs",
        group=_RINGS,
        multiple=True,
        metavar="X=PAIRS.csv",
        help="Work out the ring of exchange X from lines of key,queue, as consumers log them.",
    )
    @functools.wraps(command)
    def wrapper(**options: Any) -> Any:
        options["pairs"] = tuple(map(_parse_pairs, options["pairs"]))
        live = BrokerAccess(**{each.name: options.pop(each.name) for each in fields(BrokerAccess)})
        return command(live=live, **options)

    return wrapper


def _parse_pairs(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise InvalidValue("--pairs", text, "EXCHANGE=FILE", "For example: --pairs orders=seen.csv")
    return name, path
