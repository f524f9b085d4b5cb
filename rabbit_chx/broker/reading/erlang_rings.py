"""The Erlang expression that prints the rings of a node, and the parser for what it prints.

RabbitMQ's own command for this crashes as soon as a destination is an exchange, so the node is asked
through ``rabbitmqctl eval`` for ``rabbit_exchange_type_consistent_hash:ring_state/2`` (the same shape in
3.10, 4.0 and 4.3: ``{ok, #chx_hash_ring{bucket_map}}``), and prints one line a bucket::

    0 queue b3JkZXJzLTE=
    1 exchange c2xvdC03
    done

For all rings of a virtual host, a line ``ring b3JkZXJz`` comes before the buckets of each. Names go in as Erlang bytes
and come out as base64, so any name survives. This file opens no connection.
"""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rabbit_chx.errors import InvalidValue, RingUnknown
from rabbit_chx.ring import ToExchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rabbit_chx.ring import Destination

__all__ = ["parse_ring", "parse_rings", "ring_expression", "rings_expression"]

_SHOW: Final = """
VHost = {vhost},
Show = fun(Name) ->
    Buckets = case rabbit_exchange_type_consistent_hash:ring_state(VHost, Name) of
                  {{ok, Ring}} -> lists:keysort(1, maps:to_list(element(3, Ring)));
                  {{error, not_found}} -> []
              end,
    io:put_chars([io_lib:format("~b ~s ~s~n", [Bucket, Kind, base64:encode(Destination)])
                  || {{Bucket, {{resource, _, Kind, Destination}}}} <- Buckets])
end,
"""
_ONE: Final = """
Name = {name},
case rabbit_exchange:lookup(rabbit_misc:r(VHost, exchange, Name)) of
    {{error, not_found}} ->
        io:put_chars("missing\\n");
    {{ok, Exchange}} ->
        case rabbit_exchange:info(Exchange, [type]) of
            [{{type, 'x-consistent-hash'}}] -> Show(Name);
            [{{type, Type}}] -> io:format("type ~s~n", [Type])
        end
end,
done.
"""
_ALL: Final = """
[begin io:put_chars(["ring ", base64:encode(Name), "\\n"]), Show(Name) end
 || [{{name, {{resource, _, _, Name}}}}, {{type, 'x-consistent-hash'}}]
        <- rabbit_exchange:info_all(VHost, [name, type])],
done.
"""


def ring_expression(exchange: str, vhost: str) -> str:
    """Return the Erlang expression whose output `parse_ring` reads."""
    return _on_one_line((_SHOW + _ONE).format(vhost=_erlang_binary(vhost), name=_erlang_binary(exchange)))


def rings_expression(vhost: str) -> str:
    """Return the Erlang expression whose output `parse_rings` reads."""
    return _on_one_line((_SHOW + _ALL).format(vhost=_erlang_binary(vhost)))


def parse_ring(text: str, *, exchange: str = "", vhost: str = "/") -> list[Destination]:
    """Return the destination of every bucket in order.

    ``exchange`` and ``vhost`` only name the ring in errors.
    """
    lines = text.split("\n")
    if lines[0] == "missing" or lines[0].startswith("type "):
        raise InvalidValue(
            "exchange to read the ring of",
            exchange,
            f"the name of an x-consistent-hash exchange in the virtual host {vhost!r}",
            "there is no such exchange" if lines[0] == "missing" else f"it is of {lines[0]}",
        )
    if lines[-1] != "done":
        raise RingUnknown(f"the ring of exchange {exchange!r} was not read to its end")
    return _buckets(lines[:-1], exchange)


def parse_rings(text: str, *, vhost: str = "/") -> dict[str, list[Destination] | RingUnknown]:
    """Return the buckets of every ring of a virtual host, or why they cannot be read."""
    *lines, end = text.split("\n")
    if end != "done" or (lines and not lines[0].startswith("ring ")):
        raise RingUnknown(f"the rings of virtual host {vhost!r} were not read to their end")
    starts = [number for number, line in enumerate(lines) if line.startswith("ring ")]
    rings: dict[str, list[Destination] | RingUnknown] = {}
    for start, stop in pairwise([*starts, len(lines)]):
        name = _decoded(lines[start].removeprefix("ring "))
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
            name = _decoded(encoded)
        except (ValueError, binascii.Error):
            raise RingUnknown(f"the ring of exchange {exchange!r} has an invalid line: {line!r}") from None
        if bucket != str(expected):
            # A hole: releases before 3.9.21 and 3.10.6 tear them, and messages that hit one are lost.
            raise RingUnknown(
                f"the ring of exchange {exchange!r} has bucket {bucket} where {expected} should be"
            )
        ring.append(name if kind == "queue" else ToExchange(name))
    return ring


def _decoded(name: str) -> str:
    return base64.b64decode(name, validate=True).decode("utf-8", "surrogateescape")


def _on_one_line(expression: str) -> str:
    return " ".join(expression.split())


def _erlang_binary(text: str) -> str:
    """Return a text as an Erlang binary, byte by byte, so that nothing needs escaping."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidValue("name", text, "text without lone surrogates") from None
    return f"<<{','.join(map(str, encoded))}>>"
