"""Write stream_chunks.jsonl: the chunks that brokers store for messages published over three protocols.

    docker run -d --rm --name broker rabbitmq:4.3-management
    docker exec broker rabbitmq-plugins enable rabbitmq_stream rabbitmq_amqp1_0
    python -m tests.vectors.make_stream_chunks 4.3=ADDRESS ... > tests/vectors/stream_chunks.jsonl

Run in the root of the repository, with the address of a fresh broker for each release. The script logs in as the default user.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence

import pika
from proton.utils import BlockingConnection

from tests.stream_messages import EXCHANGE, FROM_0_9_1, RAW, Properties, sized
from tests.vectors.stream_messages_1_0 import FROM_1_0, REFUSED

USER = "guest"
SUBSCRIBE, PUBLISH, DELIVER, CONFIRM = 7, 2, 8, 3


def main(brokers: Sequence[str]) -> None:
    for broker in brokers:
        release, _, address = broker.partition("=")
        for protocol, publish in PUBLISHERS.items():
            if protocol == "filtered" and release.startswith("3."):
                continue  # filters require 3.13
            stream = f"{protocol} {release}".replace(" ", "-")
            names = publish(address, stream)
            for chunk in chunks(address, stream, len(names)):
                records, offset = struct.unpack_from(">I16xQ", chunk, 4)
                line = {
                    "release": release,
                    "publisher": protocol,
                    "messages": names[offset : offset + records],
                    "chunk": base64.b64encode(chunk).decode(),
                }
                print(json.dumps(line))


# --- AMQP 0-9-1 ---


def over_0_9_1(address: str, stream: str) -> list[str]:
    parameters = pika.ConnectionParameters(address, credentials=pika.PlainCredentials(USER, USER))
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.exchange_declare(EXCHANGE, "fanout")
        channel.queue_bind(stream, EXCHANGE)
        for name, sent in FROM_0_9_1.items():
            exchange = "" if name == "default exchange" else EXCHANGE
            key = stream if name == "default exchange" else sent.routing_key
            channel.basic_publish(exchange, key, sent.body, Properties(sent))
        channel.queue_unbind(stream, EXCHANGE)
    return list(FROM_0_9_1)


# --- AMQP 1.0 ---


def over_1_0(address: str, stream: str) -> list[str]:
    connection = BlockingConnection(
        f"amqp://{address}:5672", user=USER, password=USER, allowed_mechs="PLAIN", timeout=5
    )
    Client(address).call(0x0D, text(stream) + struct.pack(">i", 0))
    target = f"/queues/{stream}" if not stream.endswith("3.10") else f"/amq/queue/{stream}"
    sender = connection.create_sender(target)
    names = [name for name in FROM_1_0 if name not in REFUSED[stream.partition("-")[2]]]
    for name in names:
        sender.send(FROM_1_0[name])
    connection.close()
    return names


# --- the stream protocol ---


def over_streams(address: str, stream: str) -> list[str]:
    client = Client(address)
    client.call(0x0D, text(stream) + struct.pack(">i", 0))
    encoded = {name: message.encode() for name, message in FROM_1_0.items()} | RAW
    messages = list(encoded.values())
    client.publish(stream, [sized(message) for message in messages])
    return list(encoded)


def in_sub_entries(address: str, stream: str) -> list[str]:
    """Publish sub-entry batches and messages to one chunk."""
    client = Client(address)
    client.call(0x0D, text(stream) + struct.pack(">i", 0))
    messages = [f"body {number}".encode() for number in range(20)]
    data = b"".join(map(sized, messages[:8])), b"".join(map(sized, messages[10:18]))
    client.publish(
        stream,
        [
            sub_entry(0, 8, data[0], len(data[0])),
            *map(sized, messages[8:10]),
            sub_entry(1, 8, gzip.compress(data[1], mtime=0), len(data[1])),
            *map(sized, messages[18:]),
        ],
    )
    return [message.decode() for message in messages]


def with_filters(address: str, stream: str) -> list[str]:
    """Publish to a chunk with a filter, and with a trailer for the producer."""
    client = Client(address)
    client.call(0x0D, text(stream) + struct.pack(">i", 0))
    bodies = [f"body {number}" for number in range(3)]
    client.publish(stream, [text(f"filter {body}") + sized(body.encode()) for body in bodies], version=2)
    return bodies


def sub_entry(compression: int, count: int, data: bytes, uncompressed: int) -> bytes:
    return struct.pack(">BHII", 0x80 | compression << 4, count, uncompressed, len(data)) + data


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Client:
    """A minimal client of the stream protocol, independent of `rabbit_chx.streams`."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection((address, 5552), 10)
        self.requests = 0
        self.call(0x11, struct.pack(">i", 0))
        self.call(0x12, b"")
        self.call(0x13, text("PLAIN") + sized(f"\0{USER}\0{USER}".encode()))
        self.send(struct.pack(">HH", 0x14, 1) + self.frame()[4:])
        self.call(0x15, text("/"))

    def send(self, frame: bytes) -> None:
        self.socket.sendall(sized(frame))

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data)) or sys.exit("connection closed")
        return data

    def frame(self) -> bytes:
        return self.take(int.from_bytes(self.take(4), "big"))

    def call(self, key: int, body: bytes) -> bytes:
        self.requests += 1
        self.send(struct.pack(">HHI", key, 1, self.requests) + body)
        answer = self.frame()
        assert struct.unpack_from(">HHIH", answer) == (key | 0x8000, 1, self.requests, 1), answer
        return answer[10:]

    def publish(self, stream: str, entries: Sequence[bytes], version: int = 1) -> None:
        self.call(1, b"\1" + text("producer") + text(stream))
        body = b"".join(struct.pack(">Q", number) + entry for number, entry in enumerate(entries, 1))
        self.send(struct.pack(">HHBI", PUBLISH, version, 1, len(entries)) + body)
        confirmed = 0
        while confirmed < len(entries):
            frame = self.frame()
            assert struct.unpack_from(">H", frame)[0] == CONFIRM, frame
            confirmed += struct.unpack_from(">I", frame, 5)[0]

    def chunks(self, stream: str, messages: int) -> Iterator[bytes]:
        self.send(struct.pack(">HHIB", SUBSCRIBE, 1, 99, 1) + text(stream) + struct.pack(">HHI", 1, 1000, 0))
        while messages > 0:
            frame = self.frame()
            if struct.unpack_from(">H", frame)[0] == DELIVER:
                messages -= struct.unpack_from(">I", frame, 9)[0]
                yield frame[5:]


def chunks(address: str, stream: str, messages: int) -> Iterator[bytes]:
    return Client(address).chunks(stream, messages)


PUBLISHERS: dict[str, Callable[[str, str], list[str]]] = {
    "0-9-1": over_0_9_1,
    "1.0": over_1_0,
    "streams": over_streams,
    "sub-entries": in_sub_entries,
    "filtered": with_filters,
}

if __name__ == "__main__":
    main(sys.argv[1:])
