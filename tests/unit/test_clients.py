"""The rules that every client keeps to: the same parameters with the same types, and nothing that connects by itself.

`rabbit_chx` has one API, so a new client is one entry here.
"""

from __future__ import annotations

import inspect
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

from rabbit_chx import consuming, publishing, streams
from rabbit_chx.broker.credentials import Credentials
from rabbit_chx.consuming import AsyncGroup, Group, QueueReader
from rabbit_chx.message_fields import Headers
from rabbit_chx.publishing import AsyncPublisher, Publisher
from rabbit_chx.streams import AsyncStreamGroup, StreamGroup, StreamPublisher, StreamReader
from rabbit_chx.timeouts import DEFAULTS, HEARTBEAT, HEARTBEAT_OF_CALLER, Timeouts
from rabbit_chx.urls import BrokerUrl

CLIENTS = {
    Publisher: publishing,
    AsyncPublisher: publishing,
    Group: consuming,
    AsyncGroup: consuming,
    QueueReader: consuming,
    StreamReader: streams,
    StreamPublisher: streams,
    StreamGroup: streams,
    AsyncStreamGroup: streams,
}
"""Each client, and the package that exports it."""
URL = "amqp://nowhere.invalid"
TARGET = {
    Group: {"exchange": "orders", "name": "billing"},
    AsyncGroup: {"exchange": "orders", "name": "billing"},
    QueueReader: {"queue": "orders.0"},
    StreamReader: {"stream": "events"},
    StreamPublisher: {"stream": "events"},
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
WITHOUT_THREAD = {StreamReader, StreamPublisher}
"""Clients that send heartbeats only while they are used."""
WITH_HEADERS = {(client, "__init__", "properties") for client in (Publisher, AsyncPublisher)}
"""Where a mapping has the properties and the headers."""


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


@pytest.mark.parametrize("client", CLIENTS)
def test_a_signature_says_which_types_it_takes(client: type) -> None:
    vague = {
        (client, method, name)
        for method, function in methods(client).items()
        for name, hint in hints(function).items()
        if Any in parts(hint)
    }
    assert vague <= WITH_HEADERS


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
    made = client(URL, **TARGET.get(client, {}))
    if isinstance(made, (Publisher, QueueReader, StreamReader, StreamPublisher)):
        made.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_several_addresses_are_one_parameter(client: type) -> None:
    for several in ([URL, URL], (URL,), [BrokerUrl.parse(URL)]):
        client(several, **TARGET.get(client, {}))
