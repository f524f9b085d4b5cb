"""Every verb that connects, against hostile AMQP and HTTP servers: an error in time, in little memory, safe for a terminal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from pika import frame, spec

from rabbit_chx.text import UNPRINTABLE
from tests.proof import LONG, dice
from tests.unit.test_hostile_http import HEAD, SHAPES, after_head, always, answering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MOST_SECONDS = 90
MOST_BYTES = 200 << 20
INTERNAL_ERROR = 70
ESCAPES = "\x1b]0;PWNED\x07\x9b2J\u202e"

TOPOLOGY = "schema: 1\nexchanges: {orders: {type: x-consistent-hash, queues: [q]}}\nqueues: {q: {}}\n"
DEFINITIONS = json.dumps(
    {
        "rabbit_version": "4.3.6",
        "vhosts": [{"name": "/"}],
        "queues": [{"name": "q", "vhost": "/"}, {"name": "r", "vhost": "/"}],
        "exchanges": [{"name": "orders", "vhost": "/", "type": "x-consistent-hash"}],
        "bindings": [
            {"source": "orders", "vhost": "/", "destination": name, "destination_type": "queue", "routing_key": "1"}
            for name in ("q", "r")
        ],
    }
)  # fmt: skip

OVER_AMQP = {
    "check": ("check", "topology.yaml", "--amqp-only"),
    "plan": ("plan", "topology.yaml", "--amqp-only"),
    "apply": ("apply", "topology.yaml", "--amqp-only", "--yes"),
    "publish": ("publish", "rows.csv", "--exchange", "orders", "--key-column", "a"),
    "parity": ("parity", "--keys", "10"),
    "doctor": ("doctor",),
}
OVER_HTTP = {
    "check": ("check", "topology.yaml"),
    "plan": ("plan", "topology.yaml", "--verbose"),
    "apply": ("apply", "topology.yaml", "--yes"),
    "export": ("export",),
    "import": ("import", "definitions.json", "--url", "amqp://127.0.0.1:1"),
    "report": ("report", "--file", "topology.yaml", "--live", "--out", "page.html"),
    "doctor": ("doctor",),
}


def start_of(version: str) -> bytes:
    properties = {"product": "RabbitMQ", "version": version, "capabilities": {}}
    start = spec.Connection.Start(server_properties=properties, mechanisms="PLAIN", locales="en_US")
    return frame.Method(0, start).marshal()


CLOSE = frame.Method(0, spec.Connection.Close(530, ESCAPES, 10, 40)).marshal()
TUNE = frame.Method(0, spec.Connection.Tune(2047, 131_072, 0)).marshal()
AMQP_SERVERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "silence": lambda: iter(()),
    "an HTTP answer": lambda: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    "random bytes": lambda: iter([dice("hostile AMQP server").randbytes(4_096)]),
    "an endless frame": lambda: after(b"\x01\x00\x00\xff\xff\xff\xff", b"x" * 65_536),
    "endless greetings": lambda: always(start_of("4.3.6")),
    "a refusal that controls the terminal": lambda: iter([start_of(ESCAPES), TUNE, CLOSE]),
    "a greeting and silence": lambda: iter([start_of("4.3.6"), TUNE]),
}
HTTP_SERVERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "silence": lambda: iter(()),
    "nested brackets": lambda: iter([HEAD + b"[" * 200_000]),
    "an endless list": lambda: after_head(b'[{"name":"x"},' + b"{}," * 20_000),
    "an endless text": lambda: after_head(b'"' + b"x" * 65_536),
    "an endless head": lambda: always(b"x" * 65_536),
    "a reason that controls the terminal": lambda: iter([f"HTTP/1.1 500 {ESCAPES}\r\n\r\n{ESCAPES}".encode()]),
}  # fmt: skip


def after(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    yield from always(rest)


@contextmanager
def amqp(pieces: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """An AMQP server that sends the pieces, whatever it receives, and then waits for the client to hang up."""

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(MOST_SECONDS)
            client.recv(8)
            for piece in pieces():
                client.sendall(piece)
            while client.recv(1 << 16):
                pass

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"amqp://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def judged(folder: Path, arguments: tuple[str, ...], **environment: str) -> None:
    """Run a verb to its end, and hold its exit code, its time, its memory and its output against the limits."""
    (folder / "topology.yaml").write_text(TOPOLOGY)
    (folder / "definitions.json").write_text(DEFINITIONS)
    (folder / "rows.csv").write_text("a\n1\n")
    (folder / "page.html").unlink(missing_ok=True)
    with tempfile.TemporaryFile() as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "rabbit_chx", *arguments],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **environment},
        )
        killer = threading.Timer(MOST_SECONDS, process.kill)
        killer.start()
        _, status, used = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    assert time.monotonic() - started < MOST_SECONDS, text
    assert process.returncode > 0, text
    assert process.returncode != INTERNAL_ERROR, text
    assert "Traceback" not in text
    assert not UNPRINTABLE.search(text.replace("\n", "").replace("\t", "").replace("\r", "")), ascii(text)
    assert used.ru_maxrss << 10 < MOST_BYTES, text


@pytest.mark.parametrize("server", AMQP_SERVERS)
@pytest.mark.parametrize("verb", OVER_AMQP)
def test_a_hostile_amqp_server_gets_an_error(verb: str, server: str, tmp_path: Path) -> None:
    with amqp(AMQP_SERVERS[server]) as url:
        judged(tmp_path, OVER_AMQP[verb], AMQP_URL=url, RABBITMQ_MANAGEMENT_URL="http://127.0.0.1:1")


@pytest.mark.parametrize("server", HTTP_SERVERS)
@pytest.mark.parametrize("verb", OVER_HTTP)
def test_a_hostile_management_api_gets_an_error(verb: str, server: str, tmp_path: Path) -> None:
    with answering(HTTP_SERVERS[server]) as (url, _):
        judged(tmp_path, OVER_HTTP[verb], AMQP_URL="amqp://127.0.0.1:1", RABBITMQ_MANAGEMENT_URL=url)


@pytest.mark.parametrize("verb", OVER_HTTP)
def test_answers_of_other_shapes_get_an_error(verb: str, tmp_path: Path) -> None:
    for shape in SHAPES if LONG else SHAPES[::12]:
        with answering(lambda body=shape: iter([HEAD + body])) as (url, _):
            judged(tmp_path, OVER_HTTP[verb], AMQP_URL="amqp://127.0.0.1:1", RABBITMQ_MANAGEMENT_URL=url)
