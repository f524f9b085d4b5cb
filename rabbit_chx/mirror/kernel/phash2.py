"""``erlang:phash2``: the 27-bit hash of a term, the same in every Erlang release since R13.

It mirrors the C function ``make_hash2`` of the emulator (erts/emulator/beam, utils.c up to OTP 25,
erl_term_hashing.c from OTP 26). The function traverses a term depth first and mixes every atom, digit and word into one
running 32-bit hash. Two kinds of term replace the running hash while it is still zero, instead of being
mixed in: atoms and the empty list. Binaries always replace it, and use its old value as their seed.

This is the readable reference, one term at a time. :mod:`rabbit_chx.mirror.kernel.batch` computes the same for
columns of binaries, and tests compare the two.
"""

from __future__ import annotations

import struct
from typing import Final

from rabbit_chx.mirror.kernel.terms import Atom, Term

PHASH2_BITS: Final = 27
"""The number of bits that ``phash2/1`` returns."""

_MASK32: Final = 0xFFFF_FFFF

# The golden ratio, and HCONST_n = n * HCONST mod 2^32: each kind of term is mixed in with its own constant.
HCONST: Final = 0x9E37_79B9
HCONST_NIL: Final = 2 * HCONST & _MASK32
_HCONST_ATOM: Final = 3 * HCONST & _MASK32
_HCONST_BYTES: Final = 4 * HCONST & _MASK32
_HCONST_TUPLE: Final = 9 * HCONST & _MASK32
_HCONST_NEGATIVE: Final = 10 * HCONST & _MASK32
_HCONST_POSITIVE: Final = 11 * HCONST & _MASK32
_HCONST_FLOAT: Final = 12 * HCONST & _MASK32
HCONST_BINARY: Final = 13 * HCONST & _MASK32

NIL_TAIL: Final = 2  # the word mixed in for an empty list, such as the end of a list
NIL_ALONE: Final = 3468870702  # the hash of an empty list that is hashed first

_MAX_RANGE: Final = 2**32


def phash2(term: Term, range_: int = 1 << PHASH2_BITS) -> int:
    """Return the portable hash of a term: ``erlang:phash2/1``, or ``/2`` with a range from 1 to 2^32.

    >>> phash2(b"customer-42")
    66013791
    """
    if not 1 <= range_ <= _MAX_RANGE:
        raise ValueError(f"the range of phash2 must lie between 1 and 2^32, got {range_!r}")
    return _make_hash2(0, [term]) % range_


def last_binary_initval(*before: Term) -> int:
    """Return the seed of a binary that is the last element of a tuple, after these elements."""
    arity = len(before) + 1
    return (HCONST_BINARY + _make_hash2(_stir(0, arity, 0, _HCONST_TUPLE), [*reversed(before)])) & _MASK32


# utils.c, make_hash2/1. The stack holds the terms still to be hashed, the next one last.
def _make_hash2(hash_: int, stack: list[Term]) -> int:
    while stack:
        match stack.pop():
            case bool() as value:
                raise TypeError(
                    f"Erlang has no booleans: hash Atom({str(value).lower()!r}) instead of {value}"
                )
            case bytes() as value:
                hash_ = block_hash(value, (HCONST_BINARY + hash_) & _MASK32)
            case Atom(name):
                # "fast, but poor hash value": the hash of a leading atom is the hash of its name.
                hash_ = _stir(hash_, atom_hash(name), 0, _HCONST_ATOM) if hash_ else atom_hash(name)
            case int() as value:
                hash_ = _integer(hash_, value)
            case float() as value:
                hash_ = _float(hash_, value)
            case tuple() as value:
                hash_ = _stir(hash_, len(value), 0, _HCONST_TUPLE)
                stack.extend(reversed(value))
            case []:
                hash_ = _stir(hash_, NIL_TAIL, 0, HCONST_NIL) if hash_ else NIL_ALONE
            case list() as value:
                hash_, rest = _leading_bytes(hash_, value)
                # Next comes one element and then the tail, which is itself a list and may also start
                # with bytes.
                stack.append(rest[1:])
                if rest:
                    stack.append(rest[0])
            case other:
                raise TypeError(
                    f"{type(other).__name__} is not an Erlang term: use bytes, int, float, tuple, list or Atom"
                )
    return hash_


def _integer(hash_: int, value: int) -> int:
    # SINT32_HASH: 28 bits, sign included. "Negative numbers are unnecessarily mixed twice."
    if -(2**27) <= value < 2**27:
        if value < 0:
            hash_ = _stir(hash_, -value, 0, HCONST)
        return _stir(hash_, value & _MASK32, 0, HCONST)
    # NOT_SSMALL28_HASH and the bignum cases: the magnitude, 64 bits at a time, lowest first.
    constant = _HCONST_NEGATIVE if value < 0 else _HCONST_POSITIVE
    magnitude = abs(value)
    while magnitude:
        hash_ = _stir(hash_, magnitude & _MASK32, magnitude >> 32 & _MASK32, constant)
        magnitude >>= 64
    return hash_


def _float(hash_: int, value: float) -> int:
    high, low = struct.unpack(">II", struct.pack(">d", value or 0.0))  # -0.0 hashes as 0.0
    return _stir(hash_, high, low, _HCONST_FLOAT)


def _leading_bytes(hash_: int, items: list[Term]) -> tuple[int, list[Term]]:
    """Mix in the bytes that a list starts with, four to a word; return the rest of the list."""
    count = 0
    for item in items:
        if type(item) is not int or not 0 <= item <= 0xFF:
            break
        count += 1
    leading = bytes(items[:count])  # type: ignore[arg-type] # the loop above checked each
    for start in range(0, count, 4):
        hash_ = _stir(hash_, int.from_bytes(leading[start : start + 4], "big"), 0, _HCONST_BYTES)
    return hash_, items[count:]


def _stir(hash_: int, first: int, second: int, constant: int) -> int:
    """UINT32_HASH_2: mix two words into the running hash."""
    return _mix((constant + first) & _MASK32, (constant + second) & _MASK32, hash_)[2]


# utils.c, block_hash/3: Bob Jenkins' lookup2 over 12-byte blocks, the length in the lowest byte of c.
def block_hash(data: bytes, initval: int) -> int:
    """Return the hash of a binary, seeded with the hash of the terms before it."""
    if not data:
        return initval  # an empty binary is not mixed in at all
    a = b = HCONST
    c = initval
    whole = len(data) // 12 * 12
    for x, y, z in struct.iter_unpack("<III", data[:whole]):
        a, b, c = _mix((a + x) & _MASK32, (b + y) & _MASK32, (c + z) & _MASK32)
    tail = data[whole:]
    a += int.from_bytes(tail[0:4], "little")
    b += int.from_bytes(tail[4:8], "little")
    c += len(data) + (int.from_bytes(tail[8:11], "little") << 8)
    return _mix(a & _MASK32, b & _MASK32, c & _MASK32)[2]


# The MIX macro.
def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    m = _MASK32
    a = (a - b - c & m) ^ c >> 13
    b = (b - c - a & m) ^ a << 8 & m
    c = (c - a - b & m) ^ b >> 13
    a = (a - b - c & m) ^ c >> 12
    b = (b - c - a & m) ^ a << 16 & m
    c = (c - a - b & m) ^ b >> 5
    a = (a - b - c & m) ^ c >> 3
    b = (b - c - a & m) ^ a << 10 & m
    c = (c - a - b & m) ^ b >> 15
    return a, b, c


# atom.c, atom_hash/1: the ELF hash (hashpjw); each character counts as Latin-1 if it fits, else as UTF-8.
def atom_hash(name: str) -> int:
    """Return the hash of an atom's name, which is also the hash of a lone atom."""
    h = 0
    for byte in b"".join(char.encode("latin-1" if char <= "\xff" else "utf-8") for char in name):
        h = (h << 4) + byte & _MASK32
        if overflow := h & 0xF000_0000:
            h ^= overflow >> 24
            h ^= overflow
    return h
