"""``rabbit-chx route``: where each key lands."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rabbit_chx.cli.keys import evidence, key_field, value_of
from rabbit_chx.cli.options import FILE, exchange_options, output_option
from rabbit_chx.cli.output import echo, json_line, print_json
from rabbit_chx.cli.verb import verb
from rabbit_chx.errors import InvalidValue
from rabbit_chx.text import UNPRINTABLE, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rabbit_chx.cli.options import Described
    from rabbit_chx.exchange import ConsistentHashExchange, Explanation
    from rabbit_chx.kernel.binaries import Binaries
    from rabbit_chx.releases import Release
    from rabbit_chx.ring import Destination
    from rabbit_chx.topology.model import Topology

__all__ = ["route"]


@verb(
    examples=[
        "rabbit-chx route customer-42 -q q0 -q q1 -q q2=2",
        "rabbit-chx route customer-42 -q q0 -q q1 --release 3.10 --explain",
        "rabbit-chx route --hash-header tenant --header tenant=acme -q q0 -q q1",
        "rabbit-chx route customer-42 --file topology.yaml --exchange orders",
        "cut -f1 orders.tsv | rabbit-chx route --keys - --count -q q0 -q q1",
    ],
)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@exchange_options
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="N=V",
    help="A header of one message, as text; may be repeated. Needs --hash-header or --file.",
)
@click.option(
    "--keys", "keys_file", type=FILE, metavar="FILE", help="Read keys from a file, one per line; - is stdin."
)
@click.option("--raw", is_flag=True, help="Lines of --keys are bytes, not UTF-8 text.")
@click.option("--count", is_flag=True, help="Count the keys of each queue instead of listing them.")
@click.option("--explain", is_flag=True, help="Show the hashed value, its hash and the bucket.")
@output_option
def route(
    *,
    described: Described,
    keys: tuple[str, ...],
    headers: tuple[str, ...],
    keys_file: str | None,
    raw: bool,
    count: bool,
    explain: bool,
    output: str,
) -> None:
    """Print the queue on which each KEY lands.

    KEY is the part of a message that the exchange hashes: the routing key or, with --hash-header or
    --hash-property, the text of that header or property. With --file, a message is followed through all
    exchanges of the file to the queues; if the first exchange hashes nothing, KEY is the routing key and may
    be combined with --header.
    """
    found = None if described.file is None else described.in_file()
    alone = found is None or _is_alone(*found)
    given = [name for name, value in (("KEY", keys), ("--keys", keys_file), ("--header", headers)) if value]
    if len(given) != 1 and (alone or given != ["KEY", "--header"]):
        if not given:
            raise click.UsageError("missing KEY: pass keys, --keys FILE, or --header N=V for one message")
        raise click.UsageError(f"{' and '.join(given)} cannot be combined")
    if found is not None and not alone:
        shown = {"count": count, "explain": explain, "output": output}
        _walk(found, described.parsed_release, keys, headers, keys_file, raw=raw, **shown)
        return
    exchange = described.mirror()
    if keys_file is not None:
        _route_file(exchange, keys_file, raw=raw, count=count, explain=explain, output=output)
        return
    messages = (
        [(" ".join(headers), _hashed_headers(exchange, headers))]
        if headers
        else [(key, value_of(exchange, key)) for key in keys]
    )
    answers = [(key, exchange.explain(value)) for key, value in messages]
    if count:
        _print_counts(exchange, [(answer.destination, 1) for _, answer in answers], output)
    elif output == "json":
        for key, answer in answers:
            echo(_json(key, answer.destination, answer.bucket, answer if explain else None))
    else:
        _print_answers(answers, explain=explain)


def _is_alone(topology: Topology, exchange: str) -> bool:
    from rabbit_chx.cli.file_routes import is_alone

    return is_alone(topology, exchange)


def _walk(
    found: tuple[Topology, str],
    release: Release,
    keys: tuple[str, ...],
    headers: tuple[str, ...],
    keys_file: str | None,
    *,
    raw: bool,
    **shown: Any,
) -> None:
    from rabbit_chx.cli.file_routes import FileRoutes, print_answers, rows_of

    walk = FileRoutes(*found, release)
    if keys_file is None:
        print_answers(walk, keys or ("",), _parse_headers(headers), **shown)
        return
    from rabbit_chx.cli.key_file import open_keys, read_keys

    name = "standard input" if keys_file == "-" else keys_file
    with open_keys(keys_file) as file:
        print_answers(walk, rows_of(read_keys(file, name=name, raw=raw)), {}, **shown)


def _hashed_headers(exchange: ConsistentHashExchange, headers: tuple[str, ...]) -> dict[str, str]:
    if exchange.hash_on.part != "headers":
        raise InvalidValue(
            "--header",
            headers[0],
            f"no header, since the exchange hashes {exchange.hash_on}",
            "--hash-header names the header that the exchange hashes",
        )
    return _parse_headers(headers)


def _parse_headers(headers: tuple[str, ...]) -> dict[str, str]:
    parsed: dict[str, str] = {}
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidValue("--header", text, "NAME=VALUE")
        parsed[name] = value
    return parsed


def _print_answers(answers: list[tuple[str, Explanation]], *, explain: bool) -> None:
    if explain:
        echo("\n\n".join(f"key:         {key}\n{answer}" for key, answer in answers))
        return
    width = max(len(key) for key, _ in answers)
    for key, answer in answers:
        echo(f"{key:<{width}}  {answer.destination}")


def _json(key: str | bytes, destination: Destination, bucket: int, answer: Explanation | None = None) -> str:
    line: dict[str, Any] = {**key_field(key), "queue": str(destination), "bucket": bucket}
    if answer is not None:
        line |= evidence(answer)
    return json_line("route", **line)


def _route_file(
    exchange: ConsistentHashExchange, path: str, *, raw: bool, count: bool, explain: bool, output: str
) -> None:
    import numpy as np

    from rabbit_chx.cli.key_file import buckets_of, open_keys, read_keys, size_of
    from rabbit_chx.cli.progress import bytes_progress

    if explain:
        raise InvalidValue("--explain", "--keys", "keys as arguments")
    name = "standard input" if path == "-" else path
    totals = np.zeros(len(exchange.destinations), np.int64)
    with open_keys(path) as file, bytes_progress(f"Routing {name}", size_of(path)) as advance:
        for column in read_keys(file, name=name, raw=raw, advance=advance):
            buckets = buckets_of(exchange, column)
            if count:
                totals += np.bincount(exchange.owners[buckets], minlength=len(totals))
            else:
                _write_answers(exchange, column, buckets, output)
    if count:
        _print_counts(exchange, zip(exchange.destinations, totals.tolist(), strict=True), output)


def _write_answers(exchange: ConsistentHashExchange, column: Binaries, buckets: Any, output: str) -> None:
    line: Callable[[bytes, int], bytes]
    if output == "json":
        bucket_map = exchange.ring.bucket_map

        def line(key: bytes, bucket: int) -> bytes:
            return _json(key, bucket_map[bucket], bucket).encode() + b"\n"

    else:
        names = [f"\t{printable(str(name))}\n".encode() for name in exchange.ring.bucket_map]

        def line(key: bytes, bucket: int) -> bytes:
            return key + names[bucket]

    keys = [column[row] for row in range(len(column))]
    if output != "json" and UNPRINTABLE.search(column.data.tobytes().decode("utf-8", "surrogateescape")):
        keys = [_printable_bytes(key) for key in keys]
    lines = [line(key, bucket) for key, bucket in zip(keys, buckets.tolist(), strict=True)]
    sys.stdout.buffer.write(b"".join(lines))


def _printable_bytes(key: bytes) -> bytes:
    return printable(key.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _print_counts(
    exchange: ConsistentHashExchange, counted: Iterable[tuple[Destination, int]], output: str
) -> None:
    counts = dict.fromkeys(exchange.destinations, 0)
    for destination, keys in counted:
        counts[destination] += keys
    total = sum(counts.values())
    if output == "json":
        for destination, keys in counts.items():
            share = keys / total if total else 0.0
            print_json("count", queue=str(destination), keys=keys, share=share)
        return
    from rabbit_chx.cli.tables import print_shares

    print_shares(counts, title=f"{total:,} keys")
