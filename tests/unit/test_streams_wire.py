"""Frames of the stream protocol over a socket: fragments, heartbeats, deadlines, and servers that speak another protocol."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import sys
import threading
import time
from contextlib import closing, suppress
from itertools import count, pairwise
from select import select
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import StreamUnavailable
from rabbit_chx.streams import connect
from rabbit_chx.streams.protocol import wire as wire_module
from rabbit_chx.streams.protocol.answers import ANSWER, OK, Command
from rabbit_chx.streams.protocol.calls import Calls
from rabbit_chx.streams.protocol.handshake import _node
from rabbit_chx.streams.protocol.requests import one_way
from rabbit_chx.streams.protocol.wire import RECEIVE, Wire, open_wire
from tests.patience import PATIENCE
from tests.stream_chunks import sized


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    wire = Wire(ours, "broker")
    yield wire, theirs
    wire.close()
    theirs.close()


def soon() -> float:
    return time.monotonic() + 60


def chunk_frame(size: int) -> bytes:
    header = struct.pack(">bbHIqQQIIII", 0x50, 0, 1, 1, 0, 1, 0, 0, size, 0, 0)
    return (
        struct.pack(">HHB", Command.DELIVER, 1, 0) + header + (bytes(range(251)) * (size // 251 + 1))[:size]
    )


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 3 * RECEIVE) | st.integers(0, 200), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 3 * RECEIVE) | st.integers(0, 400), max_size=20),
)
def test_fragmented_frames_arrive_whole_and_are_not_overwritten(sizes: list[int], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    wire, frames = Wire(ours, "broker"), [chunk_frame(size) for size in sizes]

    def send() -> None:
        data = b"".join(map(sized, frames))
        for start, stop in pairwise([0, *sorted(cuts), len(data)]):
            theirs.sendall(data[start:stop])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        received = [wire.receive(soon()) for _ in frames]
        assert received == frames
    finally:
        sender.join()
        wire.close()
        theirs.close()


def test_a_deadline_within_a_frame_loses_no_data(ends) -> None:
    wire, theirs = ends
    data = sized(chunk_frame(RECEIVE))
    theirs.sendall(data[:5000])
    assert wire.receive(time.monotonic() + 0.01) is None
    sender = threading.Thread(target=theirs.sendall, args=(data[5000:],))
    sender.start()
    assert wire.receive(soon()) == data[4:]
    sender.join()


@pytest.mark.parametrize(
    ("sent", "problem", "words"),
    [
        (b"AMQP\0\0\x09\x01", "protocol", "it speaks AMQP; the default port of the stream protocol is 5552"),
        (b"HTTP/1.1 400 Bad Request\r\n", "protocol", "it speaks HTTP"),
        (b"\x15\x03\x03\0\x02\x02\x16", "protocol", "it expects TLS"),
        (struct.pack(">IHH", 1 << 21, Command.CLOSE, 1) + bytes(60), "frame too large", "maximum is 1048576"),
        (struct.pack(">I", 1 << 21) + chunk_frame(5), "frame too large", "a frame of 2097152 bytes"),
        (b"", "lost", "was lost: the broker closed it"),
        (b"\0\0\0", "lost", "was lost: the broker closed it"),
    ],
)
def test_servers_of_other_protocols_are_recognised(ends, sent: bytes, problem: str, words: str) -> None:
    wire, theirs = ends
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(StreamUnavailable, match=words) as caught:
        wire.receive(soon())
    assert caught.value.problem == problem
    assert wire.closed
    with pytest.raises(StreamUnavailable, match="the connection to broker is closed"):
        wire.send(b"", 1)


def test_a_heartbeat_that_the_broker_does_not_take_lasts_no_longer_than_the_wait(ends) -> None:
    wire, _ = ends
    wire.heartbeat = PATIENCE
    wire._socket.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            wire._socket.send(bytes(1 << 16))
    wire._last_sent -= PATIENCE
    began = time.monotonic()
    with pytest.raises(StreamUnavailable, match="the broker took no data for 1 second"):
        wire.receive(began + 0.1)
    assert time.monotonic() - began < PATIENCE


def test_receiving_sends_heartbeats_and_silence_ends_the_connection(ends) -> None:
    wire, theirs = ends
    wire.heartbeat = 0.5
    wire._last_sent -= 0.5  # a heartbeat is due before the silence begins
    with pytest.raises(StreamUnavailable, match="no data for") as caught:
        wire.receive(soon())
    assert caught.value.problem == "lost"
    theirs.settimeout(60)
    assert theirs.recv(8) == one_way(Command.HEARTBEAT)


def test_a_frame_that_is_sent_in_part_ends_the_connection(ends) -> None:
    """What is sent after it would complete the frame: the broker would store a message with the bytes of another frame."""
    wire, theirs = ends

    def interrupt(*_: object) -> None:
        if select([theirs], [], [], 0)[0]:  # a part of the frame was sent
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            wire.send(bytes(1 << 24), 60)  # the broker reads nothing, as during an alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert wire.closed
    assert theirs.recv(1)


def test_after_an_interrupt_at_any_line_of_receiving_the_next_frame_is_whole_or_the_connection_is_closed(
    monkeypatch,
) -> None:
    monkeypatch.setattr(wire_module, "RECEIVE", 150)
    frames = [chunk_frame(size) for size in (10, 200, 20)]  # the second one needs a larger buffer
    left = 0

    def interrupt(code: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if code.f_code.co_filename != wire_module.__file__:
            return None
        left -= event == "line"
        if left == 0:
            raise KeyboardInterrupt
        return interrupt

    for line in count(1):
        left = line
        ours, theirs = socket.socketpair()
        with closing(Wire(ours, "broker")) as wire, theirs:
            theirs.sendall(b"".join(map(sized, frames)))
            before = sys.gettrace()
            try:
                sys.settrace(interrupt)
                for _ in frames:
                    wire.receive(soon())
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            if left > 0:
                break
            if not wire.closed:
                assert all(each in frames for each in iter(lambda: wire.receive(time.monotonic()), None))
                assert not wire.has_part
    assert line > 50


def test_the_reason_of_a_broker_that_closes_the_connection_is_told_though_it_is_gone(ends) -> None:
    wire, theirs = ends
    text = b"no more connections"
    closing = struct.pack(">HHIHh", Command.CLOSE, 1, 1, 17, len(text)) + text
    theirs.sendall(sized(closing))
    theirs.close()
    with pytest.raises(StreamUnavailable, match=r"closed the connection: .*no more connections") as caught:
        Calls(wire, 60).take(lambda: None, 60)
    assert caught.value.permanent
    assert wire.closed


@pytest.mark.parametrize(
    ("arrives", "answered_at", "given_up_at"),
    [(True, 55, None), (True, 65, 60), (False, 5, 1)],
    ids=["slow link", "data without an answer", "silence"],
)
def test_data_that_arrives_prolongs_the_wait_for_an_answer(
    monkeypatch, arrives, answered_at, given_up_at
) -> None:
    """The broker sends all chunks that the credit allows before it reads the next request."""
    now = 0.0

    def receive(deadline: float) -> memoryview | None:
        nonlocal now
        if now >= answered_at:
            return memoryview(struct.pack(">HHIH", Command.UNSUBSCRIBE | ANSWER, 1, 1, OK))
        now = min(deadline, now + 0.5)
        wire.longest_gap = 0.5
        wire.last_data = now if arrives else 0.0
        return None if now == deadline else memoryview(one_way(Command.HEARTBEAT))[4:]

    wire = SimpleNamespace(
        where="b", send=lambda *_: None, close=lambda: None, receive=receive, last_data=0.0
    )
    monkeypatch.setattr("rabbit_chx.streams.protocol.calls.time", SimpleNamespace(monotonic=lambda: now))
    calls = Calls(wire, 1.0)
    if given_up_at is None:
        assert calls.answer(Command.UNSUBSCRIBE).code == OK
        assert calls.heard == answered_at - 0.5
    else:
        with pytest.raises(StreamUnavailable, match="did not answer Unsubscribe within 1 second"):
            calls.answer(Command.UNSUBSCRIBE)
        assert now == given_up_at


def test_a_heartbeat_is_no_data_that_arrives(ends) -> None:
    """A broker whose connection hangs still sends heartbeats."""
    wire, theirs = ends
    wire.last_data = 0.0
    wire._last_received -= 30
    theirs.sendall(one_way(Command.HEARTBEAT))
    assert wire.receive(soon()) is not None
    assert (wire.last_data, wire.has_part) == (0.0, False)
    assert 30 <= wire.longest_gap < 60
    theirs.sendall(sized(chunk_frame(100))[:50])
    assert wire.receive(time.monotonic() + 0.01) is None
    assert wire.last_data > 0
    assert wire.has_part


def test_the_addresses_of_a_host_and_the_tls_handshake_share_the_time_to_connect(monkeypatch) -> None:
    now, waited = 0.0, []

    def connect_to(self: socket.socket, address: tuple[str, int]) -> None:
        nonlocal now
        waited.append(self.gettimeout())
        if address[0] != "127.0.0.3":
            now += waited[-1]
            raise TimeoutError
        now += 1.0

    class SilentServer(ssl.SSLContext):
        def wrap_socket(self, plain: socket.socket, **_: object) -> None:
            waited.append(plain.gettimeout())
            raise TimeoutError("timed out")

    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*kind, (f"127.0.0.{number}", 5551)) for number in (1, 2, 3)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", connect_to)
    for module in ("rabbit_chx.streams.protocol.wire", "rabbit_chx.broker.sockets"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(StreamUnavailable, match=r"TLS with the broker at .* failed: timed out"):
        open_wire(BrokerUrl("h", 5551, tls=True, streams=True), SilentServer(ssl.PROTOCOL_TLS_CLIENT), 9.0)
    assert waited == [3.0, 3.0, 3.0, 2.0]


@pytest.mark.parametrize("port", ["9" * 5_000, "70000", "0", "5" * 6])
def test_a_port_that_a_server_advertises_must_be_one(port: str) -> None:
    """Python converts at most 4,300 digits, with an error of its own."""
    with pytest.raises(StreamUnavailable, match="h:5552 advertises the invalid port") as caught:
        _node({"advertised_host": "h", "advertised_port": port}, "h:5552")
    assert caught.value.problem == "protocol"


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 2**32 - 1), ("a..b", 1)])
def test_an_address_that_no_server_can_have_is_unreachable(host: str, port: int) -> None:
    """The list of a stream's nodes, which a server sends, may contain any."""
    with pytest.raises(StreamUnavailable) as caught:
        connect(BrokerUrl(host, port, streams=True))
    assert caught.value.problem == "unreachable"
