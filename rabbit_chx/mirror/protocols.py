"""What an exchange sees of a message that was published over AMQP 1.0, MQTT or STOMP.

docs/routing.md has the table, and tests/broker/test_parity_protocols.py compares it with real clients and brokers.
"""

from __future__ import annotations

from binascii import unhexlify
from datetime import datetime
from typing import Any, Final

from rabbit_chx.errors import BrokerWouldFail, InvalidValue, Unpredictable
from rabbit_chx.mirror.fields import Client, milliseconds, uuid_bytes
from rabbit_chx.mirror.releases import Release

# rabbit_stomp_util.erl, message_properties/1 and user_header_key/1: these become properties of the message.
_STOMP_PROPERTIES: Final = {
    *("amqp-message-id", "app-id", "content-encoding", "content-type", "correlation-id", "destination"),
    *("expiration", "message-id", "persistent", "priority", "reply-to", "timestamp", "type", "user-id"),
}

_URN_SIZE: Final = len("urn:uuid:") + 36


def routing_key_as_sent(value: Any, release: Release, client: Client | None) -> Any:
    """The routing key: of MQTT, the topic with dots for slashes."""
    match value:
        case str() | bytes() if client == "amqp10" and not release.amqp10_in_core and not value.isascii():
            raise Unpredictable(
                f"RabbitMQ {release} changes characters other than ASCII in an address of AMQP 1.0; use ASCII, or "
                "upgrade to 4.0"
            )
        case str() if client == "mqtt":
            return value.replace("/", ".")
        case bytes() if client == "mqtt":
            return value.replace(b"/", b".")
    return value


def has_header(header: str, value: object, release: Release, client: Client | None) -> bool:
    """Whether the broker finds the header that the message was sent with."""
    match client:
        case "amqp10":
            _refuse_unknown(release)
            return release.amqp10_in_core
        case "mqtt" if not release.has_mqtt5:
            raise InvalidValue(
                f"header {header!r}", value, f"no header, since RabbitMQ {release} supports MQTT up to 3.1.1"
            )
        case "stomp":
            return header not in _STOMP_PROPERTIES
    return True


def id_as_sent(name: str, value: Any, release: Release, client: Client | None) -> int | Any:
    """A message id or correlation id: of AMQP 1.0 a number stays a number; a UUID is its 16 bytes, as its text in MQTT is."""
    if client == "mqtt" and (name == "message_id" or not release.has_mqtt5):
        raise InvalidValue(
            f"property {name}",
            value,
            f"None, since MQTT as RabbitMQ {release} supports it has no such property",
        )
    if client == "amqp10":
        _refuse_unknown(release)
        return uuid_bytes(value) or value
    if type(value) is int or uuid_bytes(value):
        raise InvalidValue(
            f"property {name}",
            value,
            "str (sent as UTF-8) or bytes",
            "Pass client='amqp10' if AMQP 1.0 sends it as a number or a UUID, otherwise the text that is sent",
        )
    is_binary = isinstance(value, (str, bytes, bytearray))
    return _uuid_of_urn(value, release) if client == "mqtt" and is_binary else value


def _uuid_of_urn(value: str | bytes, release: Release) -> str | bytes:
    """What the broker makes of correlation data (``mc_util:urn_string_to_uuid/1``): of the text of a UUID, its bytes."""
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    if len(raw) != _URN_SIZE or not raw.startswith(b"urn:uuid:"):
        return value
    try:
        return b"".join(map(unhexlify, raw.removeprefix(b"urn:uuid:").split(b"-")))
    except ValueError:
        raise BrokerWouldFail(
            f"RabbitMQ {release} fails on the correlation data {value!r} of MQTT: it looks like the text of a UUID, and is none"
        ) from None


def timestamp_as_sent(value: Any, release: Release, client: Client | None) -> Any:
    """A timestamp as the number that the broker writes as text: seconds, or milliseconds in the AMQP 1.0 plugin."""
    if client == "mqtt":
        if value is None and release.has_mqtt5:
            raise Unpredictable(
                "RabbitMQ sets the timestamp of an MQTT message that has an expiry interval; hash the routing key instead"
            )
        if value is not None:
            raise InvalidValue("property timestamp", value, "None, since MQTT has no timestamp")
    if client != "amqp10" or not (isinstance(value, datetime) or type(value) is int):
        return value
    _refuse_unknown(release)
    number = milliseconds(value) if isinstance(value, datetime) else value * 1000
    if number == 0:
        raise Unpredictable("some AMQP 1.0 clients omit a creation time of 0; send a later one")
    return number // 1000 if release.amqp10_in_core else number


def _refuse_unknown(release: Release) -> None:
    if release.amqp10_converts:
        raise Unpredictable(
            f"RabbitMQ {release} may be configured to convert messages of AMQP 1.0, with results that are not known; "
            "hash the routing key, or upgrade to 4.0"
        )
