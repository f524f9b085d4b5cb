"""Which streams of an exchange the driver finds, with a small local server, and which of them are read for keys."""

from __future__ import annotations

import time
from unittest.mock import MagicMock

import pytest

from rabbit_chx import Ring
from rabbit_chx.base import urls
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, StreamUnavailable
from rabbit_chx.topology import Binding, Exchange, Observed, Queue, ToExchange, Topology
from spark_connector.reading import stream_access
from spark_connector.reading.options import ReadOptions
from spark_connector.reading.stream_access import StreamAccess, streams_of_keys
from spark_connector.writing import publishers
from spark_connector.writing.options import WriteOptions
from spark_connector.writing.publishers import open_publisher, streams_of
from tests.unit.complaints import complaint
from tests.unit.test_management import FLAGS, QUEUE_COLUMNS, serving

BINDING = {"source": "top", "routing_key": "", "arguments": {}}
TYPES = {"s0": "stream", "s1": "stream", "q": "quorum"}


def binding(source: str, destination: str, kind: str = "queue") -> dict[str, object]:
    return {**BINDING, "source": source, "destination": destination, "destination_type": kind}


def queue(name: str) -> dict[str, object]:
    return {"name": name, "type": TYPES[name], "exclusive": False, "arguments": {}, **FLAGS}


BINDINGS = "/api/bindings/%2F?columns=source%2Cdestination%2Cdestination_type%2Crouting_key%2Carguments"


@pytest.fixture
def api():
    bindings = [binding("top", "hash", "exchange"), binding("hash", "s1"), binding("hash", "q")]
    bindings += [binding("top", "s0"), binding("other", "elsewhere")]
    answers = {f"/api/queues/%2F/{name}?columns={QUEUE_COLUMNS}": queue(name) for name in TYPES}
    with serving({BINDINGS: bindings, **answers}) as api:
        yield api


def access_to(api, **options: str) -> StreamAccess:
    given = {"url": "amqp://u:p@127.0.0.1", "exchange": "top", "managementUrl": api.url}
    return StreamAccess(ReadOptions.of({**given, **options}))


@pytest.mark.parametrize(("seconds", "lists"), [(1e9, 1), (0.0, 2)])
def test_the_list_of_the_streams_of_an_exchange_expires(api, monkeypatch, seconds, lists) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", seconds)
    access = access_to(api)
    assert [access.chosen(), access.chosen(["s0"])] == [["s0", "s1"]] * 2
    asked = [path for path, _ in api.asked]
    assert asked.count(BINDINGS) == lists
    assert len(asked) == lists + len(TYPES)


def test_without_the_api_the_last_list_is_used_for_a_while(api, monkeypatch) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", 0.0)
    access = access_to(api)
    assert access.chosen() == ["s0", "s1"]
    bindings, api.answers[BINDINGS] = api.answers[BINDINGS], (503, {"reason": "starting"})
    assert access.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = bindings
    assert access.chosen() == ["s0", "s1"]

    impatient = access_to(api, reconnectTimeoutMs="1")
    assert impatient.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = (503, {"reason": "starting"})
    assert impatient.chosen() == ["s0", "s1"]
    time.sleep(0.01)
    with pytest.raises(BrokerUnavailable, match=r"answered 503.*name the streams in the option stream"):
        impatient.chosen()


@pytest.mark.parametrize(("status", "permanent"), [(503, False), (401, True)])
def test_a_query_cannot_start_without_the_api(api, status, permanent) -> None:
    api.answers[BINDINGS] = (status, {"reason": "Not"})
    with pytest.raises(BrokerUnavailable, match="name the streams in the option stream") as caught:
        access_to(api).chosen()
    assert caught.value.permanent == permanent


@pytest.mark.parametrize(
    ("given", "hint"), [({}, r"\. The option streamPort names another port"), ({"streamPort": "1"}, "")]
)
def test_the_option_is_named_if_nothing_answers_at_the_default_stream_port(monkeypatch, given, hint) -> None:
    monkeypatch.setitem(urls._PORTS, (True, False), 1)
    options = {"url": "amqp://127.0.0.1:5672", "stream": "s", **given}
    nothing = rf"no broker answers at 127\.0\.0\.1:1.*\(5551 with TLS\){hint}$"
    with pytest.raises(StreamUnavailable, match=nothing) as caught:
        StreamAccess(ReadOptions.of(options)).bounds(["s"])
    assert (caught.value.problem, caught.value.permanent) == ("unreachable", False)
    with pytest.raises(StreamUnavailable, match=nothing):
        open_publisher(WriteOptions.of(options), "s", None, "spark")


def test_the_last_list_is_not_used_if_the_api_refuses_another_one(api, monkeypatch) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", 0.0)
    access = access_to(api)
    access.chosen()
    api.answers[BINDINGS] = (401, {"reason": "Not"})
    with pytest.raises(BrokerUnavailable):
        access.chosen()


def test_a_queue_that_was_deleted_after_its_bindings_were_listed_is_left_out(api) -> None:
    api.answers[BINDINGS].append(binding("top", "amq.gen-x"))
    assert access_to(api).chosen() == ["s0", "s1"]


def test_an_exchange_that_does_not_exist_is_told_from_one_without_streams(api) -> None:
    here = {"name": "other", "type": "fanout", "internal": False, "arguments": {}, **FLAGS}
    api.answers["/api/exchanges/%2F/other"] = here
    with pytest.raises(InvalidValue, match="got 'other', expected an exchange to which a stream is bound"):
        access_to(api, exchange="other").chosen()
    with pytest.raises(InvalidValue, match="got 'nope', expected an exchange of virtual host '/'"):
        access_to(api, exchange="nope").chosen()


def test_the_broker_takes_an_exchange_without_streams_for_a_super_stream_without_partitions(
    monkeypatch,
) -> None:
    connection = MagicMock()
    connection.__enter__.return_value.partitions.return_value = connection.partitions.return_value = []
    for module in (stream_access, publishers):
        monkeypatch.setattr(module, "connected", lambda *_, **__: connection)
    options = {"url": "amqp://h", "superStream": "orders"}
    for ask in (StreamAccess(ReadOptions.of(options)).chosen, lambda: streams_of(WriteOptions.of(options))):
        error = complaint(ask)
        assert (error.what, error.expected) == (
            "option superStream",
            "an exchange to which a stream is bound",
        )


def test_a_queue_that_was_not_bound_for_a_while_may_be_a_stream_afterwards(api, monkeypatch) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", 0.0)
    access, bindings = access_to(api), api.answers[BINDINGS]
    assert access.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = [each for each in bindings if each["destination"] != "q"]
    assert access.chosen() == ["s0", "s1"]
    api.answers[BINDINGS] = bindings
    api.answers[f"/api/queues/%2F/q?columns={QUEUE_COLUMNS}"] = {**queue("q"), "type": "stream"}
    assert access.chosen() == ["q", "s0", "s1"]


def test_by_default_the_api_of_each_broker_is_asked_until_one_answers(api, monkeypatch) -> None:
    apis = {"gone": "http://127.0.0.1:1", "here": api.url}
    monkeypatch.setattr(BrokerUrl, "management_url", property(lambda url: apis[url.host]))
    options = ReadOptions.of({"url": "amqp://u:p@gone,amqp://u:p@here", "exchange": "top"})
    assert StreamAccess(options).chosen() == ["s0", "s1"]


# -- which of them are read for keys

STREAMS = tuple(Queue(name, "stream") for name in ("q0", "q1", "q2"))
WEIGHTS = {"q0": 1, "q1": 1, "q2": 2}


def observed(*exchanges: Exchange, rings=None) -> Observed:
    """A top exchange, bound to one that hashes."""
    bindings = [Binding("hash", queue, str(weight)) for queue, weight in WEIGHTS.items()]
    top = Exchange("top", "fanout")
    return Observed(
        topology=Topology(
            exchanges=(top, *exchanges),
            queues=STREAMS,
            bindings=(Binding("top", ToExchange("hash")), *bindings),
        ),
        rings=rings or {},
    )


HASH = Exchange("hash", "x-consistent-hash")


def test_the_ring_determines_the_stream_of_a_key() -> None:
    found = observed(HASH, rings={"hash": Ring.of(WEIGHTS)})
    # A broker routed this key to q0: it is the README's first route.
    assert streams_of_keys(["customer-42"], found, "hash") == {"q0"}
    assert streams_of_keys(["customer-42"], found, "top") == {"q0"}


def test_routes_that_depend_on_more_than_the_key_are_refused() -> None:
    unknown = Ring((), None, "4.3", "the broker was not asked")
    by_tenant = Exchange("hash", "x-consistent-hash", arguments={"hash-header": "tenant"})
    for found, words in [
        (observed(HASH, rings={"hash": unknown}), "the broker was not asked"),
        (
            observed(by_tenant, rings={"hash": Ring.of(WEIGHTS)}),
            "Exchange 'hash' does not route by the routing key",
        ),
        (observed(Exchange("hash", "headers")), "Exchange 'hash' does not route by the routing key"),
    ]:
        error = complaint(lambda found=found: streams_of_keys(["a", "b"], found, "top"))
        assert words in error.hint
        assert "where(\"routing_key in ('a', 'b')\")" in error.hint
