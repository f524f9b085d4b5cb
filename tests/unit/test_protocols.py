"""AMQP 1.0, MQTT and STOMP where no broker can be asked: what is refused, and which releases are not known."""

from __future__ import annotations

from uuid import UUID

import pytest

from rabbit_chx import ConsistentHashExchange, InvalidValue, Unpredictable
from rabbit_chx.errors import AmbiguousHeader, BrokerWouldFail

HEADER = {"hash_header": "h"}
ID = {"hash_property": "message_id"}
CORRELATION = {"hash_property": "correlation_id"}
STAMP = {"hash_property": "timestamp"}


def exchange(release: str = "4.3", **arguments) -> ConsistentHashExchange:
    return ConsistentHashExchange({"q0": 1, "q1": 2}, release=release, **arguments)


@pytest.mark.parametrize("release", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(HEADER, {"headers": {"h": "a"}}), (ID, {"message_id": "a"}), (STAMP, {"timestamp": 5})],
)
def test_routes_that_depend_on_the_configuration_of_a_plugin_are_unpredictable(
    release, arguments, message
) -> None:
    with pytest.raises(Unpredictable, match=r"upgrade to 4\.0"):
        exchange(release, **arguments).route(**message, client="amqp10")
    assert exchange(release, **arguments).route(**message, client="stomp")


@pytest.mark.parametrize("release", ["3.13.0", "4.0.5", "4.3.6"])
def test_correlation_data_of_mqtt_that_is_the_text_of_a_uuid_counts_as_its_bytes(release) -> None:
    x = exchange(release, hash_property="correlation_id")
    uuid = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
    for sent in (uuid.urn, uuid.urn.encode(), "urn:uuid:" + str(uuid).upper()):
        assert x._explain(sent, client="mqtt").term == uuid.bytes
    for other in (f"{uuid.urn}0", uuid.urn.upper(), str(uuid)):
        assert x._explain(other, client="mqtt").term == other.encode()
    assert x._explain(uuid.urn, client="pika").term == uuid.urn.encode()


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_an_unsigned_integer_of_amqp_1_0_is_hashed_as_it_is(number) -> None:
    x = exchange(**HEADER)
    assert x._explain({"h": number}, client="amqp10").term == number
    (index,) = x.route_many([number], client="amqp10")
    assert x.route(headers={"h": number}, client="amqp10") == f"q{index}"


@pytest.mark.parametrize(
    ("arguments", "message", "client", "error"),
    [
        (HEADER, {"headers": {"h": 2.0}}, "amqp10", AmbiguousHeader),
        (HEADER, {"headers": {"h": [1]}}, "amqp10", InvalidValue),
        (HEADER, {"headers": {"h": 2**64}}, "amqp10", InvalidValue),
        (HEADER, {"headers": {"h": 5}}, "mqtt", InvalidValue),
        (HEADER, {"headers": {"h": True}}, "stomp", InvalidValue),
        (HEADER, {"headers": {"h": 0.5}}, "stomp", InvalidValue),
        (ID, {"message_id": 2**64}, "amqp10", InvalidValue),
        (ID, {"message_id": -1}, "amqp10", InvalidValue),
        (ID, {"message_id": "a"}, "mqtt", InvalidValue),
        (ID, {"message_id": 5}, "stomp", InvalidValue),
        (ID, {"message_id": UUID(int=5)}, None, InvalidValue),
        (ID, {"message_id": "x" * 256}, "stomp", InvalidValue),
        (STAMP, {"timestamp": 0}, "amqp10", Unpredictable),
        (STAMP, {"timestamp": "5"}, "amqp10", InvalidValue),
        (STAMP, {"timestamp": True}, "amqp10", InvalidValue),
        (STAMP, {"timestamp": 5}, "mqtt", InvalidValue),
        (STAMP, {"timestamp": None}, "mqtt", Unpredictable),
        (CORRELATION, {"correlation_id": "urn:uuid:" + 36 * "z"}, "mqtt", BrokerWouldFail),
        (
            CORRELATION,
            {"correlation_id": "urn:uuid:f81d4fae-7dec-11d0-a76-5-0a0c91e6bf6"},
            "mqtt",
            BrokerWouldFail,
        ),
    ],
)
def test_what_a_protocol_cannot_send_is_refused(arguments, message, client, error) -> None:
    x = exchange(**arguments)
    with pytest.raises(error):
        x.route(**message, client=client)
    (value,) = message.values()
    with pytest.raises(error):
        x.route_many([value["h"]] if "headers" in message else [value], client=client)


def test_a_header_that_no_client_can_send_names_no_client() -> None:
    with pytest.raises(InvalidValue, match="expected a value that a client can encode"):
        exchange(**HEADER).route(headers={"h": 2**63})
    with pytest.raises(InvalidValue, match="expected a value that pika can encode"):
        exchange(**HEADER).route(headers={"h": 2**63}, client="pika")
