"""``rabbit-chx route``: where each key lands."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rabbit_chx.base.text import UNPRINTABLE, printable
from rabbit_chx.cli.ask.described import Described, Located, exchange_options
from rabbit_chx.cli.ask.inputs import header_of, value_of
from rabbit_chx.cli.ask.options import keys_option, output_option, pairs, raw_option
from rabbit_chx.cli.show.answers import PredictedRoute, key_field, print_counts, print_routes
from rabbit_chx.cli.show.output import end_when_unheard, json_line, notice, write
from rabbit_chx.cli.verb import option, verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.ring import Destination

if TYPE_CHECKING:
    from rabbit_chx.cli.file_routes import FileRoutes
    from rabbit_chx.mirror.kernel.binaries import Binaries

_SLOTS: Final = (
    "the queue of each slot is known to the broker, not to the file; `rabbit-chx export -o LIVE.yaml` writes it, and "
    "`--file LIVE.yaml` then gives one queue."
)
_BYTES: Final = ("utf-8", "surrogateescape")
_OF_FILES: Final = {".yaml", ".yml", ".json"}


@verb(
    examples=[
        "rabbit-chx route customer-42 -q q0 -q q1 -q q2=2",
        "rabbit-chx route customer-42 -q q0 -q q1 --release 3.10 --explain",
        "rabbit-chx route --hash-header tenant --header tenant=acme -q q0 -q q1",
        "rabbit-chx route customer-42 --file topology.yaml --exchange orders",
        "rabbit-chx route customer-42 -x orders --url amqp://user@host/ \\\n    --node 'docker exec NAME rabbitmqctl eval'",
        "cut -f1 orders.tsv | rabbit-chx route --keys - --count -q q0 -q q1",
    ],
)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@exchange_options
@option(
    "--header",
    "headers",
    multiple=True,
    metavar="N=V",
    help="A header of one message, as text. Needs --hash-header or --file.",
)
@keys_option(help="Read keys from a file, one per line; - is stdin.")
@raw_option
@option("--count", is_flag=True, help="Count the keys of each queue instead of listing them.")
@option("--explain", is_flag=True, help="Show the hashed value, its hash and the bucket.")
@output_option
def route(
    *,
    described: Described,
    keys: tuple[str, ...],
    headers: tuple[str, ...],
    keys_file: str | None,
    raw: bool,
    **shown: Any,
) -> None:
    """Print the queue on which each KEY lands.

    KEY is the part of a message that the exchange hashes: the routing key or, with --hash-header or
    --hash-property, the text of that header or property. With --file, a message is followed through all
    exchanges of the file to the queues; if the first exchange hashes nothing, KEY is the routing key and may
    be combined with --header. An exchange that hashes another part of the message may choose any of its queues. With --exchange and --url, the exchange is read from the broker; if its bind order is not
    recorded there, --node, --pairs or --probe learn it.
    """
    end_when_unheard()
    for key in keys:
        if Path(key).suffix in _OF_FILES and os.path.isfile(key):  # noqa: PTH113 - Path raises for some keys
            notice("Note", f"{key!r} is treated as a key; to pass a topology file, use --file")
    found = described.located()
    routes = _through_exchanges(found)
    mirror = described.mirror if found is None else found.mirror
    given = [name for name, value in (("KEY", keys), ("--keys", keys_file), ("--header", headers)) if value]
    if len(given) != 1 and (routes is None or given != ["KEY", "--header"]):
        if not given:
            raise click.UsageError("missing KEY: pass keys, --keys FILE, or --header N=V for one message")
        raise click.UsageError(f"{' and '.join(given)} cannot be combined")
    if keys_file is not None and routes is None:
        _route_file(mirror(), keys_file, raw=raw, **shown)
    elif routes is not None:
        given_keys = (keys or (None,)) if keys_file is None else _keys_of(keys_file, raw=raw)
        if shown["explain"] and routes.ring is None:
            got, expected = "an exchange without a ring", "an exchange of type x-consistent-hash"
            raise InvalidValue("--explain", got, expected)
        _print(_follow(routes, given_keys, _headers(headers)), **shown)
    else:
        exchange = mirror()
        _print(_route(exchange, keys, headers), exchange.destinations, **shown)


def _through_exchanges(found: Located | None) -> FileRoutes | None:
    """The routes through a file or a broker; None where the exchange alone determines them."""
    if found is None:
        return None
    from rabbit_chx.cli.file_routes import FileRoutes, is_alone

    if is_alone(found):
        return None
    return FileRoutes(found)


def _keys_of(path: str, *, raw: bool) -> Iterator[bytes]:
    from rabbit_chx.cli.ask.key_file import key_columns

    for column in key_columns(path, raw=raw, title="Routing"):
        yield from (column[row] for row in range(len(column)))


def _follow(
    routes: FileRoutes, keys: Iterable[str | bytes | None], headers: dict[str, Any]
) -> Iterator[PredictedRoute]:
    """Yield the answer for each message that passes through the exchanges of a file."""
    # The keys of a file are not all known.
    width = max(len(key or "") for key in keys) if isinstance(keys, tuple) else None
    unsure = False
    for key in keys:
        answer = routes.answer(key, headers, width)
        unsure = unsure or answer.unsure
        yield answer
    if unsure and routes.has_slots:
        notice("Note", _SLOTS)
    for name, part in routes.undetermined(by_key=keys != (None,)).items() if unsure else ():
        if not (headers and part.startswith("the header")):
            hashes = f"it hashes {part} of the message, which is not given"
            notice("Note", f"exchange {name!r} may choose any of its queues: {hashes}")


def _route(
    exchange: ConsistentHashExchange, keys: tuple[str, ...], headers: tuple[str, ...]
) -> list[PredictedRoute]:
    """The answers for messages of an exchange that determines the queue alone."""
    messages = [(key, value_of(exchange, key)) for key in keys]
    if headers:
        if exchange._hash_on.part != "headers":
            raise InvalidValue(
                "--header",
                headers[0],
                f"no header, since the exchange hashes {exchange._hash_on}",
                "--hash-header names the header that the exchange hashes",
            )
        messages = [(" ".join(headers), _headers(headers))]
    width = max(len(key) for key, _ in messages)
    found = [(key, exchange._explain(value)) for key, value in messages]
    return [
        PredictedRoute(
            "route", key, end := str(each.destination), {"queue": end, "bucket": each.bucket}, each, width
        )
        for key, each in found
    ]


def _print(
    answers: Iterable[PredictedRoute],
    destinations: tuple[Destination, ...] = (),
    *,
    count: bool,
    explain: bool,
    output: str,
) -> None:
    """Print the answers or, with --count, the number of keys of all destinations, or of those that got keys."""
    if not count:
        print_routes(answers, output, explain=explain)
        return
    counts = Counter(dict.fromkeys(map(str, destinations), 0))
    counts.update(answer.end for answer in answers)
    if destinations:
        print_counts(counts, output, named="queue")
    else:
        print_counts(dict(sorted(counts.items())), output, named="end")


def _headers(given: tuple[str, ...]) -> dict[str, Any]:
    return {name: header_of(value) for name, value in pairs("--header", given, "NAME=VALUE")}


def _route_file(
    exchange: ConsistentHashExchange, path: str, *, raw: bool, count: bool, explain: bool, output: str
) -> None:
    """Print the queues of the keys of a file, by columns of keys."""
    import numpy as np

    from rabbit_chx.cli.ask.key_file import predicted

    if explain:
        raise InvalidValue("--explain", "--keys", "keys as arguments")
    totals = np.zeros(len(exchange.destinations), np.int64)
    part = exchange._hash_on.part
    for column, buckets in predicted(path, part, exchange.bucket_many, raw=raw, title="Routing"):
        if count:
            totals += np.bincount(exchange._owners[buckets], minlength=len(totals))
        else:
            _write_answers(exchange, column, buckets.tolist(), output)
    if count:
        print_counts(
            dict(zip(map(str, exchange.destinations), totals.tolist(), strict=True)), output, named="queue"
        )


def _write_answers(
    exchange: ConsistentHashExchange, column: Binaries, buckets: list[int], output: str
) -> None:
    line: Callable[[bytes, int], bytes]
    names = [str(name) for name in exchange.ring.bucket_map]
    keys = [column[row] for row in range(len(column))]
    if output == "json":

        def line(key: bytes, bucket: int) -> bytes:
            shown = json_line("route", **key_field(key), queue=names[bucket], bucket=bucket)
            return f"{shown}\n".encode()

    else:
        ends = [f"\t{printable(name)}\n".encode() for name in names]
        if UNPRINTABLE.search(column.data.tobytes().decode(*_BYTES)):
            keys = [printable(key.decode(*_BYTES)).encode(*_BYTES) for key in keys]

        def line(key: bytes, bucket: int) -> bytes:
            return key + ends[bucket]

    write(b"".join(map(line, keys, buckets)), nl=False)
