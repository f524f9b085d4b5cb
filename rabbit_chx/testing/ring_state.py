"""Reading the ring of an exchange out of a live node: the Erlang to evaluate, and what it prints.

RabbitMQ's own command for this crashes as soon as a destination is an exchange, so the node is asked
through ``rabbitmqctl eval`` for ``rabbit_exchange_type_consistent_hash:ring_state/2`` (the same shape in
3.10, 4.0 and 4.3: ``{ok, #chx_hash_ring{bucket_map}}``), and prints one line a bucket::

    0 queue b3JkZXJzLTE=
    1 exchange c2xvdC03
    done

Names go in as Erlang bytes and come out as base64, so any name survives the way. This file opens no
socket: text in, text out.
"""

from __future__ import annotations

import base64
import binascii

from rabbit_chx.errors import InvalidValue, RingUnknown

_TEMPLATE = """
VHost = {vhost}, Name = {name},
case rabbit_exchange:lookup(rabbit_misc:r(VHost, exchange, Name)) of
    {{error, not_found}} ->
        io:put_chars("missing\\n");
    {{ok, Exchange}} ->
        case rabbit_exchange:info(Exchange, [type]) of
            [{{type, 'x-consistent-hash'}}] ->
                Buckets = case rabbit_exchange_type_consistent_hash:ring_state(VHost, Name) of
                              {{ok, Ring}} -> lists:keysort(1, maps:to_list(element(3, Ring)));
                              {{error, not_found}} -> []
                          end,
                io:put_chars([io_lib:format("~b ~s ~s~n", [Bucket, Kind, base64:encode(Destination)])
                              || {{Bucket, {{resource, _, Kind, Destination}}}} <- Buckets]);
            [{{type, Type}}] ->
                io:format("type ~s~n", [Type])
        end
end,
done.
"""


def ring_expression(exchange: str, vhost: str) -> str:
    """Return the Erlang expression whose output `parse_ring` reads."""
    return " ".join(_TEMPLATE.format(vhost=_erlang_binary(vhost), name=_erlang_binary(exchange)).split())


def parse_ring(text: str, *, exchange: str = "", vhost: str = "/") -> list[tuple[str, str]]:
    """Return (kind, name) of every bucket in order; kind is ``"queue"`` or ``"exchange"``.

    ``exchange`` and ``vhost`` only name the ring in errors.
    """
    lines = text.split("\n")
    if lines[0] == "missing" or lines[0].startswith("type "):
        raise InvalidValue(
            "the exchange to read the ring of",
            got=exchange,
            allowed=f"the name of an x-consistent-hash exchange in the virtual host {vhost!r}",
            way_out="there is no such exchange" if lines[0] == "missing" else f"it is of {lines[0]}",
        )
    if lines[-1] != "done":
        raise RingUnknown(f"the ring of exchange {exchange!r} was not read to its end")
    ring = []
    for expected, line in enumerate(lines[:-1]):
        try:
            bucket, kind, name = line.split(" ")
            ring.append((kind, base64.b64decode(name, validate=True).decode("utf-8", "surrogateescape")))
        except (ValueError, binascii.Error):
            raise RingUnknown(
                f"the ring of exchange {exchange!r} has a line that is no bucket: {line!r}"
            ) from None
        if bucket != str(expected):
            # A hole: releases before 3.9.21 and 3.10.6 tear them, and messages that hit one are lost.
            raise RingUnknown(
                f"the ring of exchange {exchange!r} has bucket {bucket} where {expected} should be"
            )
    return ring


def _erlang_binary(text: str) -> str:
    return f"<<{','.join(str(byte) for byte in text.encode('utf-8', 'surrogateescape'))}>>"
