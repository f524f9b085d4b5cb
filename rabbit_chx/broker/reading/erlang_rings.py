"""The Erlang expression that prints the rings of a virtual host, and the parser of its output.

RabbitMQ's own command for this crashes as soon as a destination is an exchange, so the node is asked
through ``rabbitmqctl eval`` for ``rabbit_exchange_type_consistent_hash:ring_state/2`` (the same shape in
3.10, 4.0 and 4.3: ``{ok, #chx_hash_ring{bucket_map}}``), and prints a line for each ring and one for each bucket::

    ring b3JkZXJz
    0 queue b3JkZXJzLTE=
    1 exchange c2xvdC03
    done

Names go in as Erlang bytes and come out as base64, so any name survives. This file opens no connection.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rabbit_chx.errors import InvalidValue, RingUnknown
from rabbit_chx.mirror.ring import Destination, ToExchange

_EXPRESSION: Final = """
VHost = {vhost},
[begin
     io:put_chars(["ring ", base64:encode(Name), "\\n"]),
     Buckets = case rabbit_exchange_type_consistent_hash:ring_state(VHost, Name) of
                   {{ok, Ring}} -> lists:keysort(1, maps:to_list(element(3, Ring)));
                   {{error, not_found}} -> []
               end,
     io:put_chars([io_lib:format("~b ~s ~s~n", [Bucket, Kind, base64:encode(Destination)])
                   || {{Bucket, {{resource, _, Kind, Destination}}}} <- Buckets])
 end
 || [{{name, {{resource, _, _, Name}}}}, {{type, 'x-consistent-hash'}}]
        <- rabbit_exchange:info_all(VHost, [name, type])],
done.
"""


def rings_expression(vhost: str) -> str:
    """Return the Erlang expression whose output `parse_rings` reads."""
    return " ".join(_EXPRESSION.format(vhost=erlang_binary(vhost)).split())


def erlang_binary(text: str) -> str:
    """Return a text as an Erlang binary, byte by byte, so that nothing needs escaping."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValue("name", text, "text without lone surrogates") from None
    return f"<<{','.join(map(str, encoded))}>>"


def parse_rings(text: str, *, vhost: str = "/") -> dict[str, list[Destination] | RingUnknown]:
    """Return the buckets of every ring of a virtual host, or why they cannot be read."""
    *lines, end = text.split("\n")
    if end != "done" or (lines and not lines[0].startswith("ring ")):
        raise RingUnknown(f"the rings of virtual host {vhost!r} were not read to their end")
    starts = [number for number, line in enumerate(lines) if line.startswith("ring ")]
    rings: dict[str, list[Destination] | RingUnknown] = {}
    for start, stop in pairwise([*starts, len(lines)]):
        try:
            name = decoded_name(lines[start].removeprefix("ring "))
        except ValueError:
            raise RingUnknown(
                f"the rings of virtual host {vhost!r} have an invalid line: {lines[start]!r}"
            ) from None
        try:
            rings[name] = _buckets(lines[start + 1 : stop], name)
        except RingUnknown as unknown:
            rings[name] = unknown
    return rings


def _buckets(lines: Sequence[str], exchange: str) -> list[Destination]:
    ring: list[Destination] = []
    for expected, line in enumerate(lines):
        try:
            bucket, kind, encoded = line.split(" ")
            name = decoded_name(encoded)
        except ValueError:
            raise RingUnknown(f"the ring of exchange {exchange!r} has an invalid line: {line!r}") from None
        if bucket != str(expected):
            # A hole: releases before 3.9.21 and 3.10.6 tear them, and messages that hit one are lost.
            raise RingUnknown(
                f"the ring of exchange {exchange!r} has bucket {bucket} where {expected} should be"
            )
        ring.append(name if kind == "queue" else ToExchange(name))
    return ring


def decoded_name(name: str) -> str:
    """Return the text whose base64 the node has printed; bytes that are not UTF-8 survive."""
    return base64.b64decode(name, validate=True).decode("utf-8", "surrogateescape")
