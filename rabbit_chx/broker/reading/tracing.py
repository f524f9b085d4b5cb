"""Sample the messages that reach an exchange, with the broker's firehose tracer.

The broker counts a message only at the exchange that it was published to, so the exchanges behind that one, such as
slots, have no rates (observed on 3.10.8, 4.0.5 and 4.3.6). A second queue on a hash exchange would take keys from the
first. The tracer changes no route: it publishes a copy of each message to ``amq.rabbitmq.trace``, with the names of the
queues that the message was routed to (rabbit_trace.erl, tap_in/6). Each copy costs the broker another publish, so the
tracer is on only as long as needed.

This module never turns the tracer on over HTTP: ``PUT /api/vhosts/NAME`` also resets the description, the tags and, on
4.3, the default queue type of the virtual host.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pika import BasicProperties, BlockingConnection
from pika.exceptions import AMQPError

from rabbit_chx.base.interruption import uninterrupted
from rabbit_chx.broker.permissions import Beginning, Needs, Resources
from rabbit_chx.broker.reading.erlang_rings import erlang_binary
from rabbit_chx.broker.reading.node import NodeAccess
from rabbit_chx.broker.reasons import why_refused
from rabbit_chx.errors import BrokerUnavailable

_TRACE: Final = "amq.rabbitmq.trace"
_QUEUE: Final = {"x-queue-type": "classic", "x-max-length": 10_000, "x-max-length-bytes": 64 << 20}
"""The queue of copies drops its oldest messages, so that a slow network costs the broker no memory."""
_TURN_ON: Final = """
Ours = fun() -> [N || {{rabbit_chx_tracer, V, _}} = N <- global:registered_names(), V =:= {vhost}] end,
case Ours() =:= [] andalso rabbit_trace:enabled({vhost}) of
    true -> on_before;
    false ->
        Stop = fun() -> rpc:multicall(rabbit_trace, stop, [{vhost}]) end,
        Name = {{rabbit_chx_tracer, {vhost}, {run}}},
        Run = spawn(fun() ->
            receive stop -> ok after {milliseconds} -> ok end,
            global:unregister_name(Name),
            Ours() =:= [] andalso Stop()
        end),
        yes = global:register_name(Name, Run),
        rpc:multicall(rabbit_trace, start, [{vhost}]),
        started
end."""
"""The last of the runs that trace a virtual host turns the tracer off; a tracer of somebody else stays on."""
_TURN_OFF: Final = """
case global:whereis_name({{rabbit_chx_tracer, {vhost}, {run}}}) of
    undefined -> not_ours;
    Run ->
        Monitor = monitor(process, Run),
        Run ! stop,
        receive {{'DOWN', Monitor, _, _, _}} -> stopped after 10000 -> late end
end."""
_PREFETCH: Final = 1_000
_TICK: Final = 0.2
_OWN: Final[Resources] = {("queue", Beginning("amq.gen-"))}
_NEEDS: Final = Needs(configure=_OWN, write=_OWN, read={*_OWN, ("exchange", _TRACE)})


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """A message as it was published, without its body."""

    exchange: str
    """The exchange that it was published to."""
    keys: tuple[str, ...]
    """Its routing key, followed by the keys of CC and BCC."""
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    queues: frozenset[str]
    """The queues that it was routed to."""


@contextmanager
def traced(node: NodeAccess, vhost: str, *, at_most: float) -> Iterator[None]:
    """Turn on the tracer of a virtual host on all nodes of the cluster, and off afterwards, unless it was on before.

    A process on the node turns it off after ``at_most`` seconds, in case this program is killed.
    """
    names = {"vhost": erlang_binary(vhost), "run": erlang_binary(secrets.token_hex(8))}
    try:
        # A node command that is interrupted leaves open whether it has taken effect.
        with uninterrupted():
            node.eval(_TURN_ON.format(**names, milliseconds=int(at_most * 1000)))
        yield
    finally:
        with uninterrupted():
            node.eval(_TURN_OFF.format(**names))


def sample(
    connection: BlockingConnection,
    exchanges: Collection[str],
    *,
    seconds: float,
    patience: float,
    most: int,
    advance: Callable[[float], object],
) -> Iterator[TracedMessage]:
    """Yield the traced messages that are published to these exchanges, for some seconds, and at most so many.

    The time begins with the first message, because a busy broker may deliver it late; without one, the sample ends after
    ``patience``. ``advance`` is called with the seconds that have passed since the last call.
    """
    try:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True, arguments=_QUEUE).method.queue
        for exchange in exchanges:
            channel.queue_bind(queue, _TRACE, f"publish.{exchange}")
        channel.basic_qos(prefetch_count=_PREFETCH)
        count = 0
        last = started = time.monotonic()
        for method, properties, _ in channel.consume(queue, inactivity_timeout=_TICK):
            now = time.monotonic()
            if now - last >= _TICK:
                advance(now - last)
                last = now
            if method is not None:
                started = started if count else now
                yield _message(properties)
                count += 1
                if count % (_PREFETCH // 2) == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
            if count >= most or now - started >= (seconds if count else patience):
                break
        channel.queue_delete(queue)
        channel.close()
    except AMQPError as error:
        raise BrokerUnavailable(f"the tracer cannot be read: {why_refused(error, _NEEDS)}") from None


def _message(properties: BasicProperties) -> TracedMessage:
    about = properties.headers or {}
    own = dict(about.get("properties") or {})
    return TracedMessage(
        str(about.get("exchange_name", "")),
        tuple(map(str, about.get("routing_keys") or [""])),
        own.pop("headers", None) or {},
        own,
        frozenset(map(str, about.get("routed_queues") or ())),
    )
