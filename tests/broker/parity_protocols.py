"""Publishing a list of messages over AMQP 1.0, MQTT and STOMP, and finding out where each of it landed."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import paho.mqtt.client as mqtt
import stomp
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message as Amqp10Message, float32, timestamp, ulong
from proton.utils import BlockingConnection

from rabbit_chx.mirror.fields import Field, milliseconds
from tests.broker.erlang import container_of
from tests.broker.parity_clients import Message
from tests.patience import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rabbit_chx.mirror.ring import Destination
    from tests.broker.parity import Lab, Scratch

TOPICS: Final = "amq.topic"
"""The exchange that MQTT publishes to."""


class Peers:
    """Clients of the three protocols for one broker."""

    def __init__(self, lab: Lab) -> None:
        parts = urlsplit(lab.broker.url)
        self._login = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._amqp = f"amqp://{parts.hostname}:{parts.port}"
        container_of(lab.broker)  # or the test is skipped
        container = lab.broker._node._container.get_wrapped_container()
        container.reload()
        self._host = container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
        self._in_core = lab.release.amqp10_in_core
        self._mqtt = mqtt.MQTTv5 if lab.release.has_mqtt5 else mqtt.MQTTv311

    def publish(self, protocol: str, exchange: str, messages: Sequence[Message]) -> None:
        """Publish, and wait until the broker has confirmed every message."""
        {"amqp10": self._over_amqp10, "mqtt": self._over_mqtt, "stomp": self._over_stomp}[protocol](
            exchange, messages
        )

    @contextmanager
    def _amqp10(self) -> Iterator[BlockingConnection]:
        user, password = self._login
        connection = BlockingConnection(
            self._amqp, user=user, password=password, allowed_mechs="PLAIN", timeout=PATIENCE
        )
        try:
            yield connection
        finally:
            connection.conn.close()

    def _over_amqp10(self, exchange: str, messages: Sequence[Message]) -> None:
        with self._amqp10() as connection:
            senders: dict[str, Any] = {}
            for place, message in enumerate(messages):
                key = quote(message.routing_key, safe="") if self._in_core else _slashes(message.routing_key)
                kind = "exchanges" if self._in_core else "exchange"
                if key not in senders:
                    senders[key] = connection.create_sender(f"/{kind}/{exchange}/{key}", name=key or "none")
                senders[key].send(_amqp10_message(place, message))

    def landed(self, scratch: Scratch) -> dict[int, Destination]:
        """Empty all queues, over AMQP 1.0: over 0-9-1 the broker fails on an id that is not text."""
        landed: dict[int, Destination] = {}
        with self._amqp10() as connection:
            for queue, destination in scratch.destinations.items():
                count = scratch.count(queue)
                if not count:
                    continue
                address = f"/queues/{queue}" if self._in_core else f"/amq/queue/{queue}"
                receiver = connection.create_receiver(address, credit=count)
                for _ in range(count):
                    message = receiver.receive(PATIENCE)  # which owns the memory of its body
                    landed[int(bytes(message.body))] = destination
                    receiver.accept()
        return landed

    def _over_mqtt(self, exchange: str, messages: Sequence[Message]) -> None:
        del exchange  # the caller has bound it to the exchange that MQTT publishes to
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=self._mqtt)
        client.username_pw_set(*self._login)
        client.connect(self._host)
        client.loop_start()
        sent = [
            client.publish(message.routing_key, str(place), qos=1, properties=_mqtt_properties(message))
            for place, message in enumerate(messages)
        ]
        for one in sent:
            one.wait_for_publish(PATIENCE)
            assert one.is_published()
        client.disconnect()
        client.loop_stop()

    def _over_stomp(self, exchange: str, messages: Sequence[Message]) -> None:
        connection = stomp.Connection12([(self._host, 61613)], vhost="/")
        receipts = Receipts()
        connection.set_listener("", receipts)
        connection.connect(*self._login, wait=True)
        for place, message in enumerate(messages):
            to = f"/exchange/{exchange}/{_slashes(message.routing_key)}"
            # A receipt is a confirm; that of DISCONNECT may come before the messages are in their queues.
            connection.send(to, str(place), headers=_stomp_headers(message), receipt=str(place))
        wait_until(lambda: len(receipts.seen) == len(messages), "a receipt for each message")
        connection.disconnect()


class Receipts(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.seen: set[str] = set()

    def on_receipt(self, frame: Any) -> None:
        self.seen.add(frame.headers["receipt-id"])


def _slashes(key: str) -> str:
    """The key in an address in which the broker decodes nothing else."""
    return key.replace("/", "%2F")


def _amqp10_message(place: int, message: Message) -> Amqp10Message:
    properties = {name: _amqp10_value(value) for name, value in (message.headers or {}).items()}
    made = Amqp10Message(body=str(place).encode(), inferred=True, durable=True, properties=properties or None)
    for name, value in (("id", message.message_id), ("correlation_id", message.correlation_id)):
        if value is not None:
            setattr(made, name, ulong(value) if isinstance(value, int) else value)
    stamp = message.timestamp
    if stamp is not None:
        # The client cuts what comes after the milliseconds.
        made.creation_time = (milliseconds(stamp) + 0.5) / 1000 if isinstance(stamp, datetime) else stamp
    return made


def _amqp10_value(value: Any) -> Any:
    match value:
        case Field(tag="f"):
            return float32(value.value)
        case Field():
            return value.value
        case datetime():
            return timestamp(milliseconds(value))
        case int() if value >= 2**63:
            return ulong(value)
    return value


def _mqtt_properties(message: Message) -> Properties | None:
    made = Properties(PacketTypes.PUBLISH)
    if message.correlation_id is not None:
        made.CorrelationData = message.correlation_id
    if message.headers:
        made.UserProperty = list(message.headers.items())
    return made if message.correlation_id is not None or message.headers else None


def _stomp_headers(message: Message) -> dict[str, Any]:
    named = {
        "amqp-message-id": message.message_id,
        "correlation-id": message.correlation_id,
        "timestamp": message.timestamp,
    }
    return {name: value for name, value in named.items() if value is not None} | dict(message.headers or {})
