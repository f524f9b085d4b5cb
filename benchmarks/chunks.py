"""Measure how fast chunks of a stream are converted to Arrow batches, without a broker.

    python benchmarks/chunks.py [--messages 220000] [--rounds 3]

The chunks are built here, as RabbitMQ 4.3 stores messages of 100 bytes. The time is the CPU time of this process in the
best round, including the checksum.
"""

from __future__ import annotations

import argparse
import struct
import time
import zlib
from collections.abc import Callable, Sequence

from rabbit_chx.streams.messages.arrow.batch import COLUMNS, record_batches
from rabbit_chx.streams.messages.chunks import HEADER, parse_chunk

LARGE, SMALL = 2_200, 7
MOST_MICROSECONDS = 2.0
BODY = b"x" * 100


def data(body: bytes) -> bytes:
    return b"\x00\x53\x75\xa0" + bytes([len(body)]) + body


def from_0_9_1(number: int, headers: bytes = b"") -> bytes:
    """Encode a message as published over AMQP 0-9-1, with a routing key of variable length."""
    key = b"key %d" % (number * 7919 % 100_000)
    pairs = b"\xa3\x0dx-routing-key\xa1" + bytes([len(key)]) + key + b"\xa3\x0ax-exchange\xa1\x06orders"
    annotations = b"\x00\x53\x72\xc1" + bytes([len(pairs) + 1, 4]) + pairs
    return b"\x00\x53\x70\xc0\x06\x05\x42\x40\x40\x41\x43" + annotations + headers + data(BODY)


def with_headers(number: int) -> bytes:
    pairs = b"\xa1\x06region\xa1\x02eu\xa1\x06number\x71" + struct.pack(">i", number)
    return from_0_9_1(number, b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 4]) + pairs)


def from_a_stream_client(_: int) -> bytes:
    return data(BODY)


def of_any_length(number: int) -> bytes:
    return b"x" * (50 + number * 7919 % 100)


KINDS: dict[str, Callable[[int], bytes]] = {
    "AMQP 0-9-1": from_0_9_1,
    "AMQP 0-9-1 with two headers": with_headers,
    "stream client": from_a_stream_client,
    "bytes of any length": of_any_length,
}


def chunks(kind: Callable[[int], bytes], messages: int, size: int) -> list[bytes]:
    made = []
    for first in range(0, messages, size):
        entries = [kind(number) for number in range(first, first + size)]
        body = b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)
        header = (0x50, 0, size, size, 0, 1, first, zlib.crc32(body), len(body), 0, 0)
        made.append(HEADER.pack(*header) + body)
    return made


def seconds(made: Sequence[bytes], columns: Sequence[str]) -> tuple[float, int]:
    start = time.process_time()
    rows = sum(batch.num_rows for batch in record_batches((parse_chunk(one, "s") for one in made), columns))
    return time.process_time() - start, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="How fast chunks of a stream are converted to Arrow batches."
    )
    parser.add_argument("--messages", type=int, default=220_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| messages | in a chunk | columns | rows a second | us a row |\n|---|---|---|---|---|")
    worst = 0.0
    for name, kind in KINDS.items():
        for size in (LARGE, SMALL):
            made = chunks(kind, options.messages, size)
            for columns in (["body", "routing_key"], list(COLUMNS)):
                took, rows = min(seconds(made, columns) for _ in range(options.rounds))
                each = took / rows * 1e6
                worst = max(worst, each if (size, len(columns)) == (LARGE, 2) else 0)
                print(f"| {name} | {size} | {len(columns)} | {rows / took:,.0f} | {each:.2f} |", flush=True)
    met = "met" if worst <= MOST_MICROSECONDS else "missed"
    print(f"{met}: at most {MOST_MICROSECONDS:g} us a row of large chunks with two columns ({worst:.2f})")


if __name__ == "__main__":
    main()
