"""What a consumer learns about the ring from the messages it gets anyway."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rabbit_chx import ConsistentHashExchange, DeliveryMonitor, Ring
from tests.unit.erlang import SEVEN

UNKNOWN = Ring.of(["q0", "q1"], release="3.10.8").after_restart()


def method(routing_key: str = "a", exchange: str = "orders") -> SimpleNamespace:
    """What pika hands over, beside the properties."""
    return SimpleNamespace(routing_key=routing_key, exchange=exchange)


def properties(**given) -> SimpleNamespace:
    absent = {"headers": None, "message_id": None, "correlation_id": None, "timestamp": None}
    return SimpleNamespace(**absent | given)


def message(routing_key: str = "a", exchange: str = "orders", **given) -> SimpleNamespace:
    """What aio-pika hands over: both in one, and headers always a dict."""
    return SimpleNamespace(
        **vars(method(routing_key, exchange)) | vars(properties(**{"headers": {}, **given}))
    )


def watch(queues=SEVEN, *, keep: int = 10_000, **arguments) -> DeliveryMonitor:
    return DeliveryMonitor(ConsistentHashExchange(queues, **arguments), name="orders", keep=keep)


def counts(observer: DeliveryMonitor) -> tuple[int, int, int, int]:
    return (observer.expected, observer.drifted, observer.unpredicted, observer.skipped)


def test_a_message_at_its_queue_is_expected_and_at_another_one_drift() -> None:
    observer = watch()
    assert observer.observe(method("a"), "q6", properties()) is True  # the last of seven, says Erlang
    assert observer.observe(method("a"), "q0", properties()) is False
    assert observer.observe(message("customer-42"), "q0") is True
    assert counts(observer) == (2, 1, 0, 0)
    assert list(observer.pairs) == [("a", "q6"), ("a", "q0"), ("customer-42", "q0")]


def test_a_dead_lettered_message_says_nothing_about_the_queue_it_is_in() -> None:
    observer = watch()
    assert observer.observe(method("a"), "q0", properties(headers={"x-death": [{"queue": "q6"}]})) is None
    assert counts(observer) == (0, 0, 0, 1)
    assert not observer.pairs


def test_headers_are_judged_and_collected_by_their_value() -> None:
    observer = watch(hash_header="tenant")
    assert observer.observe(method(), "q4", properties(headers={"tenant": "acme", "n": 1})) is True
    assert observer.observe(message(headers={"tenant": "acme"}), "q4") is True
    assert list(observer.pairs) == [("acme", "q4")] * 2


@pytest.mark.parametrize("ring", [Ring.of(SEVEN, release="3.12"), UNKNOWN], ids=["known", "unknown"])
@pytest.mark.parametrize("headers", [None, {}, {"other": 1}])
def test_a_message_without_the_header_is_no_pair_since_infer_would_take_it_for_a_null(ring, headers) -> None:
    observer = DeliveryMonitor(ConsistentHashExchange(ring, hash_header="tenant"), name="orders")
    observer.observe(method(), "q1", properties(headers=headers))
    assert not observer.pairs
    assert sum(counts(observer)) == 1


@pytest.mark.parametrize("part", ["message_id", "correlation_id"])
def test_properties_are_judged_and_collected(part: str) -> None:
    observer = watch(hash_property=part)
    assert observer.observe(method(), "q6", properties(**{part: "m-1"})) is True
    assert observer.observe(method(), "q1", properties()) is True  # undefined falls into bucket 1
    assert ("m-1", "q6") in observer.pairs


@pytest.mark.parametrize("ring", [Ring.of(["q0", "q1"], release="3.10.8"), UNKNOWN], ids=["known", "unknown"])
def test_what_could_have_been_sent_in_several_ways_is_no_evidence(ring: Ring) -> None:
    # An integer: whether pika sent it or aio-pika makes a difference on 3.10, and the consumer cannot see it.
    observer = DeliveryMonitor(ConsistentHashExchange(ring, hash_header="tenant"), name="orders")
    assert observer.observe(method(), "q1", properties(headers={"tenant": 1})) is None
    assert counts(observer) == (0, 0, 1, 0)
    assert not observer.pairs


@pytest.mark.parametrize("part", ["message_id", "correlation_id"])
def test_an_id_that_amqp_1_0_may_have_sent_in_another_form_is_no_evidence(part: str) -> None:
    observer = watch(hash_property=part)
    as_uuid = properties(**{part: "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"})
    as_bytes = properties(headers={f"x-{part.replace('_', '-')}": b"\xff"})
    assert [observer.observe(method(), "q1", each) for each in (as_uuid, as_bytes)] == [None, None]
    assert counts(observer) == (0, 0, 2, 0)
    assert not observer.pairs


@pytest.mark.parametrize(("release", "of_number"), [("4.3.6", None), ("3.10.8", False)])
def test_an_id_at_the_queue_of_the_number_that_amqp_1_0_may_have_sent_is_no_evidence(
    release, of_number
) -> None:
    observer = watch(hash_property="message_id", release=release)
    # The broker routes the text "5" to q0 and, from 4.0 on, the number 5 to q4.
    seen = [observer.observe(method(), queue, properties(message_id="5")) for queue in ("q4", "q0", "q1")]
    assert seen == [of_number, True, False]
    assert [queue for _, queue in observer.pairs][-2:] == ["q0", "q1"]
    assert len(observer.pairs) == 3 - (of_number is None)
    for text in ("05", "+5", "\u0665", str(2**64)):
        assert observer.observe(method(), "q4", properties(message_id=text)) is not None


def test_an_exchange_without_a_bucket_judges_nothing() -> None:
    observer = DeliveryMonitor(ConsistentHashExchange(Ring()), name="orders")
    assert observer.observe(method(), "q0", properties()) is None
    assert counts(observer) == (0, 0, 1, 0)


def test_only_the_newest_pairs_are_kept() -> None:
    observer = watch(["q0", "q1"], keep=3)
    for i in range(10):
        observer.observe(method(f"key-{i}"), "q0", properties())
    assert [key for key, _ in observer.pairs] == ["key-7", "key-8", "key-9"]
    assert observer.expected + observer.drifted == 10
