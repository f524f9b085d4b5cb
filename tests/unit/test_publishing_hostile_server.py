"""A hostile or faulty AMQP server ends its own connection: it neither fills the memory nor outlives the timeouts."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest
from pika import frame, spec

from tests.amqp_server import AmqpServer
from tests.programs import ran
from tests.proof import LONG, dice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = b"x" * 1_000
MOST_SECONDS = 300
"""How long the program may run, whose timeouts end it after a few seconds of an idle machine."""
MOST_BYTES = 200 << 20
PUBLISH = """
import json
import sys
from rabbit_chx.errors import BrokerUnavailable, PublishFailed
from rabbit_chx.publishing import Publisher, Timeouts
from tests.programs import peak

url, confirm, timeout = json.loads(sys.argv[1])
timeouts = Timeouts(connect=60, reconnect=0.01, retry=0.5, confirm=confirm, blocked=1)
publisher = Publisher(url, "x", timeouts=timeouts)
before, text = peak(reset=True), ""
try:
    with publisher:
        publisher.publish_many([b"x" * 1_000] * 100, "k", timeout=timeout)
except (PublishFailed, BrokerUnavailable) as error:
    text = str(error)
    told = getattr(error, "totals", publisher.totals).confirmed  # others may follow until the publisher is closed
else:
    told = publisher.totals.confirmed
print(json.dumps([text, peak() - before, told, publisher.totals.pending, publisher.totals.confirmed]))
"""


def return_of(size: int) -> bytes:
    """A basic.return and its content header, which announces a body of that size."""
    method = frame.Method(1, spec.Basic.Return(312, "NO_ROUTE", "x", "k")).marshal()
    return method + frame.Header(1, size, pika.BasicProperties(delivery_mode=2)).marshal()


def ack(number: int) -> bytes:
    return frame.Method(1, spec.Basic.Ack(number)).marshal()


def send(first: bytes, piece: bytes = b"") -> Callable[[socket.socket], object]:
    """Send ``first`` once, and then the piece (or nothing) until the client ends the connection."""
    block = piece * ((1 << 16) // len(piece) or 1) if piece else b""

    def behave(client: socket.socket) -> None:
        client.sendall(first)
        while block or client.recv(1 << 16):
            client.sendall(block)

    return behave


BODY_FRAME = frame.Body(1, b"y" * 100_000).marshal()
SERVERS = {
    "a returned body of 2^63 bytes": (send(return_of(2**63), BODY_FRAME), "more than any in flight"),
    "a returned body longer than what was sent": (send(return_of(len(BODY) + 1)), "more than any in flight"),
    "a returned body that never ends": (send(return_of(len(BODY))), "confirmed nothing"),
    "a frame for a channel that is not open": (send(frame.Method(7, spec.Basic.Ack(1)).marshal()), "channel 7"),
    "a frame of 4 GiB": (send(struct.pack(">BHI", 1, 1, 2**32 - 1), b"z" * 1_000), "frame_max"),
    "acks for messages that were never sent": (send(b"", ack(10**9)), "confirmed nothing"),
    "returns of messages that were never sent": (send(b"", return_of(0)), "was not sent"),
    "heartbeats and nothing else": (send(b"", frame.Heartbeat().marshal()), "confirmed nothing"),
}  # fmt: skip

AT_ONCE = [name for name, (_, reason) in SERVERS.items() if reason != "confirmed nothing"]
"""The servers whose connection ends before any timeout."""


def outcome(
    server: AmqpServer, confirm: float, *, may_confirm: bool = False, timeout: float | None = None
) -> str:
    """Publish to a server in a process of its own; return the error.

    Spoiled bytes can be an ack of all messages, so without an error all of them must be confirmed.
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the memory is read from Linux")
    arguments = json.dumps([server.url, confirm, timeout])
    ended = ran([sys.executable, "-c", PUBLISH, arguments], timeout=MOST_SECONDS)
    assert not ended.returncode, ended.stderr
    text, grown, told, pending, confirmed = json.loads(ended.stdout)
    assert grown < MOST_BYTES
    assert pending == 0
    assert bool(text) == (told < 100)
    assert may_confirm or confirmed == 0
    return text


@pytest.mark.parametrize(
    "name",
    [*AT_ONCE, *(pytest.param(name, marks=pytest.mark.long) for name in SERVERS if name not in AT_ONCE)],
)
def test_a_hostile_server_loses_its_connection(name: str) -> None:
    behave, reason = SERVERS[name]
    with AmqpServer(behave) as server:
        assert reason in outcome(server, confirm=60 if name in AT_ONCE else 1)


def spoiled() -> Iterator[bytes]:
    """Frames that a server may send, with bytes exchanged, left out or repeated."""
    random = dice("hostile server")
    others = (
        frame.Body(1, b"abc"),
        frame.Heartbeat(),
        frame.Method(1, spec.Channel.Close(404, "no", 60, 40)),
    )
    frames = [ack(1), return_of(10), return_of(0), *(each.marshal() for each in others)]
    while True:
        data = bytearray(b"".join(random.choices(frames, k=random.randint(1, 6))))
        for _ in range(random.randint(1, 8)):
            at = random.randrange(len(data))
            match random.randrange(3):
                case 0:
                    data[at] = random.randrange(256)
                case 1:
                    del data[at : at + random.randint(1, 5)]
                case 2:
                    data[at:at] = data[at : at + random.randint(1, 20)]
            data = data or bytearray(b"\0")
        yield bytes(data)


@pytest.mark.long
def test_spoiled_frames_end_within_the_timeouts() -> None:
    for data in itertools.islice(spoiled(), 200 if LONG else 3):
        with AmqpServer(send(data)) as server:
            # A server that confirms one message in each connection makes progress, so only a timeout of the call ends that soon.
            text = outcome(server, confirm=1, may_confirm=True, timeout=10)
        assert "the publisher failed" not in text, data
