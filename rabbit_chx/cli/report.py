"""``rabbit-chx report``: one HTML page about an exchange, with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rabbit_chx.broker.amqp import server_version
from rabbit_chx.cli.broker_access import BrokerAccess, broker_access_options
from rabbit_chx.cli.described import read_exchange
from rabbit_chx.cli.options import (
    BROKER,
    EXCHANGE,
    FILE,
    count_option,
    exchange_option,
    file_option,
    keys_option,
    mirror_of,
    release_option,
    the_exchange,
    worker_pool_option,
)
from rabbit_chx.cli.output import echo
from rabbit_chx.cli.parity import compared
from rabbit_chx.cli.plan import what_if_options
from rabbit_chx.cli.progress import waiting
from rabbit_chx.cli.simulate import spread_of
from rabbit_chx.cli.verb import option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.releases import Release
from rabbit_chx.report import Parity, report as make
from rabbit_chx.ring import Ring
from rabbit_chx.text import counted
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.model import Topology, hashing_exchange


@verb(
    examples=[
        "rabbit-chx report --file topology.yaml --out orders.html",
        "rabbit-chx report --file topology.yaml --keys customers.txt --out orders.html",
        "rabbit-chx report --file topology.yaml --add 2 --out two-more.html",
        "rabbit-chx report -x orders --url amqp://user@host/ --out orders.html",
        "AMQP_URL=amqp://user:password@host/ rabbit-chx report --live --parity 10000 \\\n    --file topology.yaml --out live.html",
    ],
)
@file_option(help="Topology file with the exchange.")
@exchange_option(
    group=EXCHANGE,
    help="Exchange of --file, if several hash; without --file, an exchange of the broker.",
)
@release_option(group=EXCHANGE, help="The broker's release.")
@worker_pool_option
@option("-o", "--out", type=FILE, required=True, metavar="FILE", help="Where to write the page.")
@keys_option(help="A sample of keys, one per line; - is stdin.")
@what_if_options
@option(
    "--live",
    "from_broker",
    group=BROKER,
    is_flag=True,
    help="Take the release and the ring from the broker of --url.",
)
@count_option(
    "--parity",
    "messages",
    group=BROKER,
    help="Compare the mirror with the broker of --url over N messages, as `parity` does.",
)
@broker_access_options
def report(
    *,
    live: BrokerAccess,
    from_broker: bool,
    messages: int | None,
    file: str | None,
    exchange: str | None,
    out: str,
    release: str,
    keys_file: str | None,
    changes: dict[str, Any],
    worker_pool_size: int | None,
) -> None:
    """Write a page about an exchange: its ring, exact shares, a sample's skew, and the cost of changes.

    The page is self-contained and can be printed.
    """
    topology, name, ring = _located(live, file, exchange, from_broker=from_broker)
    running = Release.parse(release) if ring is None else ring.release
    sample = None
    if keys_file is not None:
        mirror = mirror_of(topology, name, running)
        sample = spread_of(mirror if ring is None else mirror.with_ring(ring), keys_file)
    parity = None if messages is None else _parity(live, topology, messages)
    with waiting(f"Counting and drawing exchange {name!r}"):
        made = make(
            topology,
            name,
            release=running,
            live=ring,
            sample=sample,
            sample_name="" if keys_file in {None, "-"} else Path(str(keys_file)).name,
            worker_pool_size=worker_pool_size,
            parity=parity,
            **changes,
        )
    try:
        made.save(out)
    except OSError as error:
        hint = f"The system says: {error.strerror}"
        raise InvalidValue("--out", out, "a file that can be written", hint) from None
    echo(f"Wrote {out}: exchange {name!r}, {counted(len(made.live.destinations), 'queue')}.")


def _located(
    live: BrokerAccess, file: str | None, exchange: str | None, *, from_broker: bool
) -> tuple[Topology, str, Ring | None]:
    """The exchange in the file, with its ring on the broker if that is asked for; or both from the broker."""
    if file is not None:
        topology = load(file)
        name = the_exchange(topology, exchange)
        return topology, name, _live_ring(live, topology, name) if from_broker else None
    if exchange is None or live.url is None:
        raise click.UsageError("missing --file: pass --file, or --exchange and --url")
    if click.get_current_context().get_parameter_source("release") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--release has no effect on an exchange that is read from a broker: leave it out"
        )
    found = read_exchange(live, exchange)
    hashing_exchange(found.topology, exchange)
    return found.topology, exchange, found.rings.get(exchange)


def _live_ring(live: BrokerAccess, topology: Topology, exchange: str) -> Ring:
    ring = live.read(topology).rings.get(exchange)
    if ring is None or not ring.known:
        why = "it is not there" if ring is None else ring.why_unknown
        raise InvalidValue(
            "--live",
            f"exchange {exchange!r}: {why}",
            "an exchange of the broker whose ring can be known",
            "--node, --pairs or --probe determine the order of a ring; without --live, the file does",
        )
    return ring


def _parity(live: BrokerAccess, topology: Topology, messages: int) -> Parity:
    with live.amqp(topology.vhost) as connection:
        release = Release.parse(server_version(connection))
        results = compared(connection, release, messages)
    return Parity(str(release), messages, sum(len(result["differences"]) for result in results))
