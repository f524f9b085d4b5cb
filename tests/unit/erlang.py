"""Answers of Erlang and of the broker's own plugin, for tests to hold the mirror against.

The hashes are ``erlang:phash2/1`` of the terms shown, the buckets the plugin's ``jump_consistent_hash/2`` of
them (an integer is used as it is) in 7 and in 16 buckets: RabbitMQ 4.3.6 on OTP 27, asked with the loader of
tests/vectors/make_vectors.escript.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime

from rabbit_chx import ConsistentHashExchange, Field
from rabbit_chx.mirror.kernel import Atom

SEVEN = [f"q{i}" for i in range(7)]
SIXTEEN = [f"q{i}" for i in range(16)]
HEADER = {"hash_header": "h"}


def encoded(name: str) -> str:
    return base64.b64encode(name.encode("utf-8", "surrogateescape")).decode()


def ring_text(*buckets: tuple[str, str], name: str = "x") -> str:
    """What a node prints of a ring, whose buckets are given by kind and name."""
    lines = [f"{number} {kind} {encoded(each)}" for number, (kind, each) in enumerate(buckets)]
    return "\n".join([f"ring {encoded(name)}", *lines, "done"])


def exchange(queues: list[str] = SIXTEEN, release: str = "4.3.6", **arguments) -> ConsistentHashExchange:
    return ConsistentHashExchange(queues, release=release, **arguments)


ROUTING_KEYS = [
    ("", 13708901, 6, 9),
    ("a", 112802447, 6, 15),
    ("customer-42", 66013791, 0, 0),
    ("é", 87215157, 1, 8),
    ("x" * 255, 113300833, 4, 11),
    ("é" * 127, 51481773, 2, 12),
    (b"\xff\x00\xfe", 92229112, 6, 7),
    ("m-1", 25543995, 6, 6),
    ("1700000000", 71065017, 5, 13),
    ("0", 107350362, 3, 3),
]

# value, client (None for all that can send it), the term hashed, its hash, the bucket of 7 and of 16
TYPED = [  # up to 3.12: {Type, Value}
    ("acme", None, (Atom("longstr"), b"acme"), 32129604, 0, 0),
    (1, "pika", (Atom("signedint"), 1), 71654985, 4, 13),
    (1, "py-amqp", (Atom("signedint"), 1), 71654985, 4, 13),
    (1, "aio-pika", (Atom("byte"), 1), 58364750, 1, 1),
    (2**40, None, (Atom("long"), 2**40), 93748608, 3, 3),
    (None, None, (Atom("void"), Atom("undefined")), 27077197, 0, 0),
    (True, None, (Atom("bool"), Atom("true")), 32030443, 4, 4),
    (datetime.fromtimestamp(1_700_000_000, UTC), "pika", (Atom("timestamp"), 1_700_000_000), 59280699, 3, 3),
    (0.1, "py-amqp", (Atom("double"), 0.1), 41087522, 0, 10),
    (0.1, "aio-pika", (Atom("float"), 0.10000000149011612), 73266083, 6, 6),
    (b"acme", "pika", (Atom("binary"), b"acme"), 62127061, 1, 1),
    (Field("D", (1, 15)), None, (Atom("decimal"), (1, 15)), 102737922, 6, 14),
    (["a", 1], "pika", (Atom("array"), [(Atom("longstr"), b"a"), (Atom("signedint"), 1)]), 40191755, 1, 12),
    ([], None, (Atom("array"), []), 86211673, 6, 12),
    ({"k": "v"}, None, (Atom("table"), [(b"k", Atom("longstr"), b"v")]), 95356243, 1, 1),
    ({}, None, (Atom("table"), []), 80606520, 0, 11),
]
BARE = [  # from 3.13 on: the value, of which an integer is used as it is
    ("acme", None, b"acme", 67106529, 4, 12),
    (1, None, 1, 1, 3, 3),
    (-1, None, -1, -1, 6, 13),
    (5, None, 5, 5, 4, 4),
    (2**40, None, 2**40, 2**40, 4, 15),
    (None, None, Atom("undefined"), 45914356, 1, 1),
    (True, None, Atom("true"), 506293, 0, 0),
    (False, None, Atom("false"), 7111573, 0, 12),
    (datetime.fromtimestamp(1_700_000_000, UTC), "pika", 1_700_000_000_000, 1_700_000_000_000, 5, 5),
    (0.1, "py-amqp", 0.1, 114238079, 1, 9),
    (0.1, "aio-pika", 0.10000000149011612, 2673180, 2, 14),
    (b"acme", "pika", b"acme", 67106529, 4, 12),
    (Field("D", (1, 15)), None, (1, 15), 117662257, 4, 12),
    (["a", 1], None, (Atom("longstr"), b"a"), 65711459, 4, 4),  # an array's first element, typed
    ({"k": "v"}, None, (b"k", Atom("longstr"), b"v"), 37084577, 3, 3),  # a table's first field
    ([], None, [], 113427502, 5, 14),
    ({}, None, [], 113427502, 5, 14),
]

# How many of the 2^21 seeds fall into each bucket of a ring, counted by jump_consistent_hash/2 on the BEAM ...
COUNTS = {
    3: [699544, 699013, 698595],
    4: [524982, 524456, 524334, 523380],
    9: [233813, 232182, 233158, 232824, 232914, 233280, 232530, 233159, 233292],
    10: [210547, 208797, 210033, 209473, 209440, 210045, 209470, 209852, 209977, 209518],
}
# ... and how many change hands when one of ten equal queues goes, by its place in bind order.
MOVED_WITHOUT = [2073837, 1863290, 1654493, 1444460, 1234987, 1025547, 815502, 606032, 396180, 209518]

# phash2(Keys, 2^27) of the lists of routing keys that x-modulus-hash hashes
KEY_LISTS = [
    ([""], 38220213),
    (["a"], 53691870),
    (["customer-42"], 113787224),
    (["é"], 61451803),
    (["a", "b"], 3094894),
    (["a", "b", "c"], 109904979),
    (["k", "cc", "bcc"], 96525678),
]

# (key, kind, name) of bindings, in the order of lists:usort/1 over #binding{} records
SORTED_BINDINGS = [
    ("+5", "queue", "a"), ("007", "queue", "q9"), ("01", "queue", "q0"), ("1", "exchange", "zz"), ("1", "queue", "B"),
    ("1", "queue", "a"), ("1", "queue", "q"), ("1", "queue", "q0"), ("1", "queue", "q1"), ("1", "queue", "q10"),
    ("1", "queue", "z"), ("1", "queue", "é"), ("1", "queue", "\ufffd"), ("1", "queue", "\U0001f600"),
    ("10", "queue", "q0"), ("10000", "queue", "b"), ("2", "queue", "q0"), ("3", "exchange", "a"), ("3", "queue", "a"),
    ("9999", "queue", "b"),
]  # fmt: skip
