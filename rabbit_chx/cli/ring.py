"""``rabbit-chx ring``: buckets, shares, and the ring after a restart."""

from __future__ import annotations

from typing import Any

from rabbit_chx.base.text import counted
from rabbit_chx.cli.ask.described import Described, exchange_options
from rabbit_chx.cli.ask.inputs import read_pairs
from rabbit_chx.cli.ask.options import FILE, output_option, refuse_pool_size, worker_pool_option
from rabbit_chx.cli.show.output import print_json, waiting
from rabbit_chx.cli.show.tables import Table, show
from rabbit_chx.cli.verb import option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.inference import infer
from rabbit_chx.mirror.movement import first_buckets, moved, shares
from rabbit_chx.mirror.ring import Destination, Ring, ToExchange, name_of


@verb(
    examples=[
        "rabbit-chx ring --queue q0 --queue q1 --queue q2=2",
        "rabbit-chx ring --queue q0 --queue q1 --release 3.10 --worker-pool-size 1",
        "rabbit-chx ring --file topology.yaml --exchange orders",
        "rabbit-chx ring --exchange orders --url amqp://user@host/ \\\n    --node 'docker exec NAME rabbitmqctl eval'",
        "rabbit-chx ring --infer pairs.csv --queue q0 --queue q1 --queue q2=2",
    ],
)
@exchange_options
@worker_pool_option
@option(
    "--infer",
    "pairs_file",
    type=FILE,
    metavar="PAIRS.csv",
    help="Infer the order of the buckets from observed pairs, one key,queue per line.",
)
@output_option
def ring(*, described: Described, worker_pool_size: int | None, pairs_file: str | None, output: str) -> None:
    """Show the buckets of each queue, its exact share of all keys, and the ring after a restart.

    With --infer, the order of the --queue options does not matter.
    """
    exchange = described.mirror()
    with waiting("Counting the keys of each bucket"):
        live = exchange.ring if pairs_file is None else _inferred(exchange, pairs_file)
        refuse_pool_size(live.release)
        restarted = live.after_restart(worker_pool_size=worker_pool_size)
        rows = _rows(live, restarted)
    if output == "json":
        for destination, row in rows.items():
            kind = "exchange" if isinstance(destination, ToExchange) else "queue"
            print_json("queue", **{kind: name_of(destination)}, **row)
        return
    _print(live, restarted, rows)


def _rows(live: Ring, restarted: Ring) -> dict[Destination, dict[str, Any]]:
    """The destinations with buckets, and behind them those that get buckets from a restart."""
    share = shares(live)
    before, after = first_buckets(live), first_buckets(restarted)
    weights = dict(live.runs or ())
    revived = {
        destination: weight for destination, weight in restarted.runs or () if destination not in weights
    }
    return {
        destination: {
            "weight": weight,
            "share": share.get(destination, 0.0),
            "first_bucket": before.get(destination),
            "first_bucket_after_restart": after.get(destination),
        }
        for destination, weight in (weights | revived).items()
    }


def _print(live: Ring, restarted: Ring, rows: dict[Destination, dict[str, Any]]) -> None:
    def buckets(first: int | None, weight: int, otherwise: str) -> str:
        if first is None:
            return otherwise
        return str(first) if weight == 1 else f"{first}-{first + weight - 1}"

    title = f"{counted(len(live), 'bucket')}, RabbitMQ {live.release} on {live.release.store}"
    shown = Table("queue", "weight", "buckets", "after restart", "share", right=("weight", "share"))
    for destination, row in rows.items():
        shown.add_row(
            str(destination),
            str(row["weight"]),
            buckets(row["first_bucket"], row["weight"], "none"),
            buckets(row["first_bucket_after_restart"], row["weight"], "unknown"),
            f"{row['share']:.3%}",
            row["share"],
        )
    if restarted.known:
        note = f"A restart moves {moved(live, restarted).share:.2%} of the keys."
    else:
        note = (
            f"After a restart the order is unknown: {restarted.why_unknown}. "
            "default_worker_pool_size = 1 in rabbitmq.conf would make it sorted (--worker-pool-size 1)."
        )
    show(shown, note, title=title)


def _inferred(exchange: ConsistentHashExchange, path: str) -> Ring:
    inference = infer(
        read_pairs(path, exchange.hash_property, option="--infer"),
        exchange.ring.bindings,
        release=exchange.release,
        hash_header=exchange.hash_header,
        hash_property=exchange.hash_property,
    )
    if inference.ring is None:
        expected = "pairs that only one ring explains"
        raise InvalidValue(f"pairs of {path}", str(inference), expected, "Observe longer")
    return inference.ring
