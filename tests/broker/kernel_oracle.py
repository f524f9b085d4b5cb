"""Random terms, and what Erlang says of them: the other side is kernel_oracle.escript, in the broker's container.

What goes over the pipe is Erlang's external term format, written here; for millions of binaries, their lengths and
their bytes. Expected hashes come from Erlang only: this file computes none.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rabbit_chx.mirror.kernel import Atom
from tests.broker.erlang import Packets

if TYPE_CHECKING:
    import random

    from rabbit_chx.mirror.kernel import Term
    from rabbit_chx.testing import Broker

PROGRAM = Path(__file__).with_name("kernel_oracle.escript")

_HASHED = np.dtype([("hash", "<u4"), ("bucket", "<u4")])
_KEYED = np.dtype([("bucket", "<u4"), ("uniforms", "<f8", 4)])


class Oracle(Packets):
    """Asks Erlang for hashes and the plugin for buckets; the hashes have all 32 bits."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, PROGRAM)

    def otp(self) -> str:
        """The release of Erlang."""
        return self.ask(b"v").decode().split()[0]

    def binaries(self, shape: str, buckets: int, lengths: Any, data: bytes) -> Any:
        """Of each binary alone (``.``), as the only element of a list (``[``), or behind ``longstr`` in a pair (``{``)."""
        head = struct.pack(">ccII", b"b", shape.encode(), buckets, len(lengths))
        return np.frombuffer(self.ask(head, lengths.astype(">u2").tobytes(), data), _HASHED)

    def terms(self, terms: list[Term], buckets: int) -> Any:
        """Of each term, and the bucket of its hash."""
        return np.frombuffer(self.ask(struct.pack(">cI", b"t", buckets), etf(terms)), _HASHED)

    def keys(self, keys: list[int], buckets: int) -> Any:
        """Of each integer its bucket, and the first four random numbers that lead there."""
        return np.frombuffer(self.ask(struct.pack(">cI", b"k", buckets), etf(keys)), _KEYED)


# -- the external term format, as erl_ext_dist describes it -----------------------------------------------------


def etf(term: Term) -> bytes:
    """A term as ``binary_to_term/1`` reads it."""
    return b"\x83" + _etf(term)


def _etf(term: Term) -> bytes:
    match term:
        case Atom(name):
            text = name.encode()
            return struct.pack(">BH", 118, len(text)) + text
        case bytes():
            return struct.pack(">BI", 109, len(term)) + term
        case int():
            return _integer(term)
        case float():
            return struct.pack(">Bd", 70, term)
        case tuple():
            return struct.pack(">BI", 105, len(term)) + b"".join(map(_etf, term))
        case []:
            return b"\x6a"
        case list():
            return struct.pack(">BI", 108, len(term)) + b"".join(map(_etf, term)) + b"\x6a"
    raise AssertionError(term)


def _integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return struct.pack(">Bi", 98, value)
    magnitude = abs(value).to_bytes((value.bit_length() + 7) // 8, "little")
    return struct.pack(">BIB", 111, len(magnitude), value < 0) + magnitude


# -- what is hashed: random terms ---------------------------------------------------------------------------------

TYPES = [
    "longstr",
    "signedint",
    "decimal",
    "timestamp",
    "table",
    "byte",
    "double",
    "float",
    "long",
    "short",
    "bool",
    "binary",
    "void",
    "array",
    "unsignedbyte",
    "unsignedshort",
    "unsignedint",
    "undefined",
    "true",
    "false",
]
"""The atoms that stand for AMQP's types, and those that stand for values."""
# Erlang never forgets an atom, and has room for a million: so there is a choice of names, and not a new one each time.
LETTERS = "abcxyzABC012 _-\xe9\xff\u0100\u20ac\u03bb\U0001f600"


class Terms:
    """Random terms of every kind that a message can bring, or that the exchange makes of one."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.atoms = [*TYPES, *("".join(dice.choices(LETTERS, k=dice.randrange(40))) for _ in range(2_000))]
        self.kinds = [
            *(self.binary, self.integer, self.bignum, self.float, self.atom, self.decimal),
            *(self.typed, self.array, self.table, self.keys, self.bytes_in_a_list, self.nested, self.empty),
        ]

    def term(self) -> Term:
        return self.dice.choice(self.kinds)()

    def binary(self) -> bytes:
        return self.dice.randbytes(self.dice.randrange(self.dice.choice((13, 40, 300))))

    def integer(self) -> int:
        """As many of eight bits as of sixty-four, and their borders."""
        bits = self.dice.randrange(65)
        return self.dice.choice((1, -1)) * (
            self.dice.getrandbits(bits) if self.dice.random() < 0.8 else 2**bits + self.dice.randrange(-2, 3)
        )

    def bignum(self) -> int:
        bits = self.dice.randrange(60, 600)
        return self.dice.choice((1, -1)) * (self.dice.getrandbits(bits) | 1 << self.dice.randrange(60, 600))

    def float(self) -> float:
        """Any 64 bits that are a number, a number of 32 bits, or one that people write."""
        match self.dice.randrange(3):
            case 0:
                value = struct.unpack("<d", self.dice.randbytes(8))[0]
            case 1:
                value = struct.unpack("<f", self.dice.randbytes(4))[0]
            case _:
                value = round(self.dice.uniform(-1000, 1000), self.dice.randrange(4))
        return value if math.isfinite(value) else -0.0

    def atom(self) -> Atom:
        return Atom(self.dice.choice(self.atoms))

    def decimal(self) -> Term:
        return (self.dice.randrange(256), self.dice.getrandbits(32))

    def empty(self) -> Term:
        return self.dice.choice(([], (), b"", 0, 0.0, -0.0, Atom("")))

    def scalar(self) -> Term:
        return self.dice.choice(self.kinds[:6])()

    def typed(self) -> Term:
        """A header up to 3.12, and an array's first element from 3.13 on."""
        return (Atom(self.dice.choice(TYPES)), self.scalar())

    def array(self) -> Term:
        return (Atom("array"), [self.typed() for _ in range(self.dice.randrange(5))])

    def field(self) -> Term:
        return (self.binary(), Atom(self.dice.choice(TYPES)), self.scalar())

    def table(self) -> Term:
        return (Atom("table"), [self.field() for _ in range(self.dice.randrange(5))])

    def keys(self) -> Term:
        """The routing keys of a message, which x-modulus-hash hashes all."""
        return [self.binary() for _ in range(self.dice.randrange(1, 5))]

    def bytes_in_a_list(self) -> Term:
        """What Erlang takes for text, and packs four to a word, with or without something else in it."""
        items: list[Term] = list(self.dice.randbytes(self.dice.randrange(20)))
        if self.dice.random() < 0.5:
            items.insert(self.dice.randint(0, len(items)), self.scalar())
        return items

    def nested(self, depth: int = 3) -> Term:
        if not depth:
            return self.scalar()
        items = [self.nested(self.dice.randrange(depth)) for _ in range(self.dice.randrange(5))]
        return self.dice.choice((items, tuple(items)))


class Rows:
    """Random binaries by the hundred thousand: uneven lengths, or all of one."""

    def __init__(self, dice: random.Random, count: int) -> None:
        self._numbers = np.random.default_rng(dice.getrandbits(64))
        longest = dice.choice((13, 24, 40, 60, 100, 300))
        if dice.random() < 0.75:
            self.lengths = self._numbers.integers(0, longest, count, dtype=np.int64)
        else:
            self.lengths = np.full(count, dice.randrange(1, longest), np.int64)
        self.data = self._numbers.bytes(int(self.lengths.sum()))
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
