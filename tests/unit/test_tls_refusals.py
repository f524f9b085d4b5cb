"""Clients and verbs refuse a server whose certificate is wrong, say why, and send it no password.

The handshake is all that they need, so there is no broker behind the listener. tests/faults/test_tls_matrix.py has other clients.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbit_chx import RabbitChxError
from rabbit_chx.consuming import AsyncGroup, Group, QueueReader
from rabbit_chx.publishing import AsyncPublisher
from rabbit_chx.streams import StreamGroup, StreamPublisher, StreamReader
from tests.tls import UNKNOWN_AUTHORITY, Authority, Listener
from tests.verbs import ORDERS, SLOTS, in_a_process

PASSWORD = "geheim-5d1c"
BAD = {
    "unknown authority": ("good", "other-ca", UNKNOWN_AUTHORITY),
    "expired": ("expired", "ca", ("certificate has expired",)),
    "another host": ("elsewhere", "ca", ("not valid for",)),
}
SECONDS = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("elsewhere", names="DNS:elsewhere.example")
    authority.issue("expired", dates=("-days", "-1"))
    return authority


@pytest.fixture(params=BAD)
def bad(request, authority: Authority) -> Iterator[tuple[Listener, str, tuple[str, ...]]]:
    """A listener with a wrong certificate, the authority that the client knows, and the words that say what is wrong."""
    shown, known, words = BAD[request.param]
    with Listener(authority.server(shown), "amqp://127.0.0.1:1") as listener:
        yield listener, known, words
        assert listener.clients == []  # no client came as far as to send a password


def publish_in_loop(url: str, tls: ssl.SSLContext) -> None:
    async def run() -> None:
        async with AsyncPublisher(url, "orders", tls=tls):
            pass

    asyncio.run(run())


def publish_to_a_stream(url: str, tls: ssl.SSLContext) -> None:
    with StreamPublisher(url, "events", tls=tls) as publisher:
        publisher.publish(b"x")


def consume(url: str, tls: ssl.SSLContext) -> None:
    Group(url, exchange="orders", name="billing", queues=["a"], tls=tls).run(print)


def consume_in_loop(url: str, tls: ssl.SSLContext) -> None:
    async def run() -> None:
        async def handle(_: object) -> None: ...

        await AsyncGroup(url, exchange="orders", name="billing", queues=["a"], tls=tls).run(handle)

    asyncio.run(run())


def consume_streams(url: str, tls: ssl.SSLContext) -> None:
    StreamGroup(url, name="billing", stream="events", tls=tls).run(print)


def read_a_queue(url: str, tls: ssl.SSLContext) -> None:
    with QueueReader(url, "a", tls=tls) as reader:
        reader.take(1, timeout=SECONDS)


def read_a_stream(url: str, tls: ssl.SSLContext) -> None:
    with StreamReader(url, "events", tls=tls) as reader:
        next(iter(reader.messages()))


AMQP, STREAMS = "amqps", "rabbitmq-stream+tls"
CLIENTS = {
    "AsyncPublisher": (AMQP, publish_in_loop),
    "StreamPublisher": (STREAMS, publish_to_a_stream),
    "Group": (AMQP, consume),
    "AsyncGroup": (AMQP, consume_in_loop),
    "StreamGroup": (STREAMS, consume_streams),
    "QueueReader": (AMQP, read_a_queue),
    "StreamReader": (STREAMS, read_a_stream),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_refuses_a_wrong_certificate_and_says_what_is_wrong(client, bad, authority) -> None:
    listener, known, words = bad
    scheme, use = CLIENTS[client]
    context = ssl.create_default_context(cafile=authority.folder / f"{known}.pem")
    began = time.monotonic()
    with pytest.raises(RabbitChxError) as caught:
        use(f"{scheme}://user:{PASSWORD}@127.0.0.1:{listener.port}", context)
    assert time.monotonic() - began < SECONDS
    text = str(caught.value)
    assert any(word in text for word in words), text
    assert f"127.0.0.1:{listener.port}" in text
    assert PASSWORD not in f"{text} {caught.value!r} {caught.value.__cause__!r}"


BOTH = {
    "list": ["list"],
    "apply": ["apply", "orders.yaml", "-y"],
    "export": ["export"],
    "route": ["route", "k", "-x", "orders"],
    "ring": ["ring", "-x", "orders"],
    "scale": ["scale", "orders.yaml", "-y"],
    "rebalance": ["rebalance", "slots.yaml", "-x", "tenants", "-y"],
}
"""Verbs that also ask the management API."""
VERBS = BOTH | {
    "check --amqp-only": ["check", "orders.yaml", "--amqp-only"],
    "group": ["group", "billing"],
    "replay": ["replay", "parked", "-y"],
    "parity": ["parity"],
}
FILES = {"orders.yaml": ORDERS, "slots.yaml": SLOTS % 5}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_a_wrong_certificate_and_says_what_is_wrong(
    verb, bad, authority, tmp_path: Path
) -> None:
    listener, known, words = bad
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    arguments = [str(tmp_path / word) if word in FILES else word for word in VERBS[verb]]
    address = f"user:{PASSWORD}@127.0.0.1:{listener.port}"
    urls = ["--url", f"amqps://{address}"]
    urls += ["--management-url", f"https://{address}"] if verb in BOTH else []
    known = str(authority.folder / f"{known}.pem")
    done = in_a_process(*arguments, *urls, "--tls-ca-cert-file", known)
    said = (done.stdout + done.stderr).decode()
    assert any(word in said for word in words), said
    assert done.returncode == 1
    assert said.count("Error: ") == 1
    assert PASSWORD not in said
    assert "Traceback" not in said
