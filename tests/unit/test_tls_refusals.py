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
from rabbit_chx.base import urls
from rabbit_chx.consuming import AsyncGroup, Group, QueueReader
from rabbit_chx.publishing import AsyncPublisher
from rabbit_chx.streams import StreamGroup, StreamPublisher, StreamReader
from tests.tls import UNKNOWN_AUTHORITY, Authority, Listener
from tests.verbs import ORDERS, SLOTS, Result, commands

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
    authority.issue("expired", days=0)
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


ASKS = {
    "list",
    "plan orders.yaml",
    "apply orders.yaml -y",
    "check orders.yaml",
    "export",
    "route k -x orders",
    "ring -x orders",
    "ring -x orders --probe orders",
    "simulate -x orders",
    "simulate -x orders --probe orders",
    "report --file orders.yaml --out page.html --live",
    "report --file orders.yaml --out page.html --live --probe orders",
    "scale orders.yaml -y",
    "rebalance slots.yaml -x tenants -y",
    "watch -x orders --interval 5",
    "watch -x orders --interval 5 --serve 127.0.0.1:0",
}
"""Verbs that also ask the management API."""
STREAM_VERBS = {
    "group billing --stream events --stream-port PORT",
    "group billing --super-stream events --stream-port PORT",
    "group billing --stream events --stream-port PORT --reset first -y",
}
OTHERS = {
    "publish rows.csv -x orders",
    "publish rows.csv -x orders --resume done.json",
    "check orders.yaml --amqp-only",
    "group billing",
    "replay parked -y",
    "parity",
}
VERBS = sorted(ASKS | STREAM_VERBS | OTHERS)
FILES = {"orders.yaml": ORDERS, "slots.yaml": SLOTS % 5, "rows.csv": "k\nx\n"}


def test_each_verb_that_connects_has_its_certificates_tried() -> None:
    """A new verb that takes the address of a broker fails here until it is among VERBS."""
    connecting = {
        name
        for name, command in commands().items()
        if any("--tls-ca-cert-file" in parameter.opts for parameter in command.params)
    }
    assert connecting - {"doctor"} == {verb.split()[0] for verb in VERBS}
    streams = {
        name
        for name, command in commands().items()
        if any("--stream-port" in parameter.opts for parameter in command.params)
    }
    assert streams == {verb.split()[0] for verb in STREAM_VERBS}


@pytest.fixture
def with_files(bad, authority, run, tmp_path: Path, monkeypatch):
    """Run a verb, with its files and the addresses of the listener."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    listener, known, _ = bad
    address = f"user:{PASSWORD}@127.0.0.1:{listener.port}"

    def verb(*arguments: str, asks: bool) -> Result:
        urls = ["--url", f"amqps://{address}"]
        urls += ["--management-url", f"https://{address}"] if asks else []
        words = [word.replace("PORT", str(listener.port)) for word in arguments]
        return run(*words, *urls, "--tls-ca-cert-file", authority.folder / f"{known}.pem")

    return verb


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_a_wrong_certificate_and_says_what_is_wrong(verb, bad, with_files) -> None:
    done = with_files(*verb.split(), asks=verb in ASKS)
    said = done.out + done.err
    assert any(word in said for word in bad[2]), said
    assert done.code == 1
    assert said.count("Error: ") == 1
    assert PASSWORD not in said
    assert "Traceback" not in said


def test_doctor_names_a_wrong_certificate_in_the_row_of_each_protocol(bad, with_files, monkeypatch) -> None:
    monkeypatch.setitem(urls._PORTS, (True, True), bad[0].port)  # `doctor` tries the default port of streams
    done = with_files("doctor", "--output", "json", asks=True)
    rows = {row["name"]: row for row in done.rows}
    assert done.code == 1
    for protocol in ("broker", "management API", "stream protocol"):
        assert any(word in rows[protocol]["found"] for word in bad[2]), rows
    assert PASSWORD not in done.out + done.err
    assert "Traceback" not in done.out + done.err
