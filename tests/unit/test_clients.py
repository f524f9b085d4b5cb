"""The rules that every client keeps to: the same parameters with the same types, and nothing that connects by itself.

`rabbit_chx` has one API, so a new client is one entry here.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

from rabbit_chx import broker, consuming, publishing, streams
from rabbit_chx.base.timeouts import DEFAULTS, HEARTBEAT, HEARTBEAT_OF_CALLER, Timeouts
from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.consuming import AsyncGroup, Batch, Group, Message, QueueReader
from rabbit_chx.errors import InvalidValue
from rabbit_chx.messages.message_fields import Headers
from rabbit_chx.publishing import AsyncPublisher, Bulk, Publisher
from rabbit_chx.streams import (
    AsyncStreamGroup,
    AsyncStreamPublisher,
    StreamBulk,
    StreamGroup,
    StreamPublisher,
    StreamReader,
)

CLIENTS = {
    Publisher: publishing,
    AsyncPublisher: publishing,
    Group: consuming,
    AsyncGroup: consuming,
    QueueReader: consuming,
    StreamReader: streams,
    StreamPublisher: streams,
    AsyncStreamPublisher: streams,
    StreamGroup: streams,
    AsyncStreamGroup: streams,
}
"""Each client, and the package that exports it."""
PAIRS = {
    Publisher: AsyncPublisher,
    StreamPublisher: AsyncStreamPublisher,
    Group: AsyncGroup,
    StreamGroup: AsyncStreamGroup,
}
URL = "amqp://nowhere.invalid"
TARGET = {
    Group: {"exchange": "orders", "name": "billing"},
    AsyncGroup: {"exchange": "orders", "name": "billing"},
    QueueReader: {"queue": "orders.0"},
    StreamReader: {"stream": "events"},
    StreamPublisher: {"stream": "events"},
    AsyncStreamPublisher: {"stream": "events"},
    StreamGroup: {"exchange": "orders", "name": "billing"},
    AsyncStreamGroup: {"exchange": "orders", "name": "billing"},
}
"""What a client needs beside the URL."""
SAME = {
    "url": str | BrokerUrl | Sequence[str | BrokerUrl],
    "timeouts": Timeouts,
    "credentials": Credentials | None,
    "tls": ssl.SSLContext | None,
    "heartbeat": int,
}
"""Parameter -> type, in every client."""
DEFAULT = {"timeouts": DEFAULTS, "credentials": None, "tls": None}
WITHOUT_THREAD = {StreamReader}
"""The client that sends heartbeats only while it is used."""


def methods(client: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(client, inspect.isfunction) + [
        (name, value.fget) for name, value in inspect.getmembers(client) if isinstance(value, property)
    ]
    return {name: function for name, function in found if name == "__init__" or not name.startswith("_")}


def parts(hint: object) -> set[object]:
    """A type and all that it is made of."""
    if hint == Headers:  # its values are nested without end, which has no type
        return {Headers}
    if isinstance(hint, (list, tuple)):
        return set().union(*map(parts, hint))
    inner = () if get_origin(hint) is Literal else get_args(hint)
    return {hint if isinstance(hint, TypeVar) else get_origin(hint) or hint}.union(*map(parts, inner))


def hints(function: Callable[..., Any]) -> dict[str, object]:
    return get_type_hints(function, localns={"pa": pa})


@pytest.mark.parametrize("client", CLIENTS)
def test_parameters_have_the_names_and_types_of_all_clients(client: type) -> None:
    parameters = inspect.signature(client).parameters
    assert next(iter(parameters)) == "url"
    assert {name: hints(client.__init__).get(name) for name in SAME} == SAME
    assert hints(client.__init__)["connection_name"] in {str, str | None}  # None names the group
    assert {name: parameters[name].default for name in DEFAULT} == DEFAULT
    seconds = HEARTBEAT_OF_CALLER if client in WITHOUT_THREAD else HEARTBEAT
    assert parameters["heartbeat"].default == seconds
    assert all(
        parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        for name in {*SAME, "connection_name"} - {"url"}
    )


ORDER = ("timeouts", "timeout", "heartbeat", "credentials", "tls", "connection_name")
CONNECTING = [
    *CLIENTS,
    *(broker.connect, streams.connect, streams.StreamConnection),
    *(publishing.check_access, consuming.members),
    *(broker.apply, broker.apply_async, broker.Management, broker.Management.of),
]
"""Every client, and whatever else of the public packages connects."""


@pytest.mark.parametrize("connecting", CONNECTING)
def test_the_parameters_of_a_connection_are_keywords_in_one_order(connecting: Callable[..., Any]) -> None:
    parameters = inspect.signature(connecting).parameters
    found = [name for name in parameters if name in ORDER]
    assert found == [name for name in ORDER if name in parameters]
    assert {parameters[name].kind for name in found} == {inspect.Parameter.KEYWORD_ONLY}
    if connecting in CLIENTS:
        assert [*parameters][-len(found) :] == found


@pytest.mark.parametrize(
    "connecting", [broker.connect, streams.connect, streams.StreamConnection, publishing.check_access]
)
def test_a_connection_may_take_as_long_by_default_as_in_a_client(connecting: Callable[..., Any]) -> None:
    assert inspect.signature(connecting).parameters["timeout"].default == DEFAULTS.connect


@pytest.mark.parametrize("client", [*PAIRS, QueueReader, StreamReader])
def test_the_class_documents_the_parameters_in_the_order_of_the_signature(client: type) -> None:
    (arguments,) = re.findall(r"\n\nArgs:\n(.+?)(?=\n\n|\Z)", inspect.getdoc(client) or "", re.DOTALL)
    assert re.findall(r"^    (\w+): ", arguments, re.MULTILINE) == [*inspect.signature(client).parameters]
    assert client.__init__.__doc__ is None


@pytest.mark.parametrize("client", CLIENTS)
def test_a_signature_says_which_types_it_takes(client: type) -> None:
    vague = {
        (client, method, name)
        for method, function in methods(client).items()
        for name, hint in hints(function).items()
        if Any in parts(hint)
    }
    assert not vague


SOURCES = Path(consuming.__file__).parents[1].rglob("*.py")
ALIASES = {
    name for path in SOURCES for name in re.findall(r"^([A-Z]\w*): TypeAlias", path.read_text(), re.MULTILINE)
}
"""Names of types that are no classes; only the text of an annotation has them."""


@pytest.mark.parametrize(
    ("client", "package"), [*CLIENTS.items(), (Bulk, publishing), (Message, consuming), (Message, streams)]
)
def test_an_alias_that_a_signature_names_can_be_imported_beside_the_client(
    client: type, package: Any
) -> None:
    named = {
        word
        for function in methods(client).values()
        for text in function.__annotations__.values()
        for word in re.findall(r"\w+", str(text))
        if not isinstance(function.__globals__.get(word), type)  # a class may have the name of another alias
    }
    assert named & ALIASES <= set(package.__all__)


@pytest.mark.parametrize(("client", "package"), CLIENTS.items())
def test_what_a_signature_names_can_be_imported_beside_the_client(client: type, package: Any) -> None:
    named = {
        part
        for function in methods(client).values()
        for hint in hints(function).values()
        for part in parts(hint)
    }
    own = {part for part in named if getattr(part, "__module__", "").startswith("rabbit_chx")}
    assert BrokerUrl in own
    assert {part.__name__ for part in own} <= set(package.__all__)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_connects_when_it_is_opened_and_not_before(client: type, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it looked for the broker")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    for url in (URL, [URL, URL], (URL,), [BrokerUrl.parse(URL)]):
        made = client(url, **TARGET.get(client, {}))
        if isinstance(made, (Publisher, QueueReader, StreamReader, StreamPublisher)):
            made.close()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items())
def test_the_client_for_an_event_loop_has_the_same_parameters(ours: type, theirs: type) -> None:
    common = methods(ours).keys() & methods(theirs).keys()
    assert {"__init__"} < common
    for name in common:
        signatures = [inspect.signature(methods(client)[name]).parameters for client in (ours, theirs)]
        first, second = (
            # Handlers differ: one of the two takes coroutine functions.
            [
                (each.name, each.default, each.kind, each.name != "handler" and each.annotation)
                for each in taken.values()
            ]
            for taken in signatures
        )
        assert first == second, name


OF_BOTH_PROTOCOLS = [(Publisher, StreamPublisher), (AsyncPublisher, AsyncStreamPublisher), (Bulk, StreamBulk)]


@pytest.mark.parametrize(("over_amqp", "over_streams"), OF_BOTH_PROTOCOLS)
def test_the_publishers_of_both_protocols_have_the_same_calls(over_amqp: type, over_streams: type) -> None:
    assert methods(over_amqp).keys() <= methods(over_streams).keys()
    assert methods(over_streams).keys() - methods(over_amqp).keys() <= {"sequence"}


@pytest.mark.parametrize(
    ("over_amqp", "over_streams", "call"),
    [
        (*pair, call)
        for pair in OF_BOTH_PROTOCOLS
        for call in sorted(methods(pair[0]).keys() & methods(pair[1]).keys())
    ],
)
def test_the_calls_of_both_protocols_have_the_same_parameters(
    over_amqp: type, over_streams: type, call: str
) -> None:
    over_amqp, over_streams = (methods(client)[call] for client in (over_amqp, over_streams))
    if call not in {"__init__", "bulk", "max_message_bytes"}:
        assert hints(over_amqp).get("return") == hints(over_streams).get("return")
    first, second = (inspect.signature(each).parameters for each in (over_amqp, over_streams))
    common = first.keys() & second.keys()
    of_streams = {"stream", "super_stream", "name", "follow_advertised"} if call == "__init__" else set()
    assert first.keys() - common <= {"exchange", "max_message_bytes"}
    assert second.keys() - common <= {"publishing_id", "ids", *of_streams}
    different = {"exchange", "max_in_flight", "connection_name"} if call == "__init__" else set()
    for name in common - {"exchange"}:
        assert first[name].kind == second[name].kind
    for name in common - {"routing_key", "routing_keys", *different}:  # a stream takes messages without a key
        assert first[name].default == second[name].default


INVALID = {
    "text that is no URL": (
        {"url": "nonsense"},
        "invalid broker URL: got '(not shown: it may contain a password)'",
    ),
    "no address": ({"url": []}, "invalid broker URL: got 'an empty list', expected one or more URLs"),
    "a list of numbers": ({"url": [5]}, "invalid broker URL: got 'list', expected a str or a list of str"),
    "no text": ({"url": None}, "invalid broker URL: got 'NoneType', expected a str or a list of str"),
    "bytes": ({"url": b"amqp://h"}, "invalid broker URL: got 'bytes', expected a str or a list of str"),
    "a mapping": (
        {"url": {"amqp://h": 1}},
        "invalid broker URL: got 'dict', expected a str or a list of str",
    ),
    "no heartbeats": ({"heartbeat": 0}, "invalid heartbeat: got 0, expected an integer from 1 to 65535"),
    "rare heartbeats": ({"heartbeat": 65_536}, "invalid heartbeat: got 65536, expected an integer from 1"),
    "half a second": ({"heartbeat": 0.5}, "invalid heartbeat: got 0.5, expected an integer from 1 to 65535"),
    "a password": ({"credentials": "secret"}, "invalid credentials: got 'str', expected a callable"),
    "a missing file": ({"credentials": Path("/missing")}, "invalid password file: got '/missing'"),
    "a flag for TLS": ({"tls": True}, "invalid tls: got True, expected an ssl.SSLContext"),
    "one timeout": (
        {"timeouts": 5},
        "invalid timeouts: got 5, expected Timeouts, such as Timeouts(connect=5)",
    ),
    "a number as name": ({"connection_name": 7}, "invalid connection_name: got 7, expected text"),
}
"""What no client accepts, and the beginning of the error."""


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("wrong", "error"), INVALID.values(), ids=INVALID)
def test_every_client_refuses_the_same_values_when_it_is_made(client: type, wrong: dict, error: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        client(**{"url": URL, **TARGET.get(client, {}), **wrong})
    assert str(caught.value).startswith(error)


_OF_READERS = {"connect", "reconnect"}
_OF_GROUPS = {"close"}
HONOURED = {
    Publisher: {field.name for field in fields(Timeouts)},
    AsyncPublisher: {field.name for field in fields(Timeouts)},
    Group: _OF_GROUPS,
    AsyncGroup: _OF_GROUPS,
    StreamGroup: _OF_GROUPS,
    AsyncStreamGroup: _OF_GROUPS,
    QueueReader: _OF_READERS,
    StreamReader: _OF_READERS,
    StreamPublisher: {"connect", "reconnect", "confirm", "close"},
    AsyncStreamPublisher: {"connect", "reconnect", "confirm", "close"},
}
"""The timeouts that each client has a use for."""


@pytest.mark.parametrize("client", CLIENTS)
def test_a_signature_shows_the_timeouts_that_a_client_honours(client: type) -> None:
    default = inspect.signature(client).parameters["timeouts"].default
    named = {field.name: field.default for field in fields(Timeouts) if field.name in HONOURED[client]}
    assert repr(default) == f"Timeouts({', '.join(f'{name}={value}' for name, value in named.items())})"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_timeout_that_a_client_cannot_honour_is_refused(client: type) -> None:
    for field in fields(Timeouts):
        allowed = field.name in HONOURED[client]
        refused = pytest.raises(InvalidValue, match=f"^invalid {field.name} timeout: got 7.5, expected none")
        with nullcontext() if allowed else refused:
            client(URL, timeouts=Timeouts(**{field.name: 7.5}), **TARGET.get(client, {}))


def publishing_calls(client: Any, **more: Any) -> list[Callable[[], object]]:
    """Each call of a publisher that publishes, with these arguments."""
    if isinstance(client, (AsyncPublisher, AsyncStreamPublisher)):
        return [
            lambda: asyncio.run(client.publish(b"a", **more)),
            lambda: asyncio.run(client.publish_many([b"a"], **more)),
        ]
    bulk = client.bulk()
    ones = [partial(each, b"a", **more) for each in (client.publish, client.submit, bulk.add)]
    return ones + [partial(each, [b"a"], **more) for each in (client.publish_many, bulk.add_many)]


def calls(client: Any) -> list[Callable[[], object]]:
    """A call of each kind that needs an open client."""
    match client:
        case AsyncPublisher() | AsyncStreamPublisher() | Publisher():
            return publishing_calls(client)
        case StreamPublisher():
            return [*publishing_calls(client), client.sequence]
        case QueueReader():
            return [partial(client.take, 1), client.waiting, partial(client.acknowledge, Batch((), 1))]
        case StreamReader():
            return [client.bounds, lambda: list(client.messages(0, 1)), partial(client.offset_at, 0)]
        case _:
            raise AssertionError(client)


@pytest.mark.parametrize(
    "client", [Publisher, AsyncPublisher, QueueReader, StreamReader, StreamPublisher, AsyncStreamPublisher]
)
def test_a_call_of_a_client_that_is_not_open_says_so(client: type) -> None:
    for call in calls(client(URL, **TARGET.get(client, {}))):
        with pytest.raises(InvalidValue) as caught:
            call()
        hint = "Call open(), or use it in a `with` block"
        assert str(caught.value) == f"the {client.__name__.removeprefix('Async')} is not open. {hint}"


@pytest.mark.parametrize("seconds", [math.nan, math.inf, "5", -1, True])
@pytest.mark.parametrize("client", [Publisher, AsyncPublisher, StreamPublisher, AsyncStreamPublisher])
def test_a_timeout_that_is_not_a_number_of_seconds_is_refused_before_anything_is_published(
    client: type, seconds: Any
) -> None:
    made = client(URL, **TARGET.get(client, {}))
    flush = [partial(made.bulk().flush, seconds)] if hasattr(made, "bulk") else []
    for call in publishing_calls(made, timeout=seconds) + flush:
        with pytest.raises(InvalidValue, match=r"invalid timeout: got .*, expected seconds, at least 0"):
            call()


@pytest.mark.parametrize("bulk", [Bulk, StreamBulk])
def test_a_bulk_has_only_what_its_users_call(bulk: type) -> None:
    public = {name for name, _ in inspect.getmembers(bulk) if not name.startswith("_")}
    assert public == {"add", "add_many", "confirmed_before", "error", "failures", "flush", "totals"}


WAITING = {
    Publisher: "close publish publish_many submit",
    Bulk: "add add_many flush",
    StreamPublisher: "sequence",
    StreamReader: "follow",
    QueueReader: "take waiting",
}
"""The calls that may wait for a broker; other clients have the same parameters, as the tests above show."""


@pytest.mark.parametrize("client", WAITING)
def test_a_call_that_may_wait_takes_a_timeout(client: type) -> None:
    without = [
        name
        for name in WAITING[client].split()
        if "timeout" not in inspect.signature(getattr(client, name)).parameters
    ]
    assert not without
