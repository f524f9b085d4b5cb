"""The kernel against Erlang and the plugin themselves, on millions of random terms: every hash and every bucket.

Three ways into the kernel are tried, each on what it is for: whole columns of binaries in NumPy, one term of any kind
after the other, and integers, which are no longer hashed from 3.13 on but drawn with. Beside each of them kernels are
tried in which one constant is off; the first batch has to show every one of those.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import islice
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from rabbit_chx.mirror.kernel import Atom, batch, jump, jump_consistent_hash, phash2, table
from rabbit_chx.mirror.kernel.batch import block_hash_column, phash2_column, phash2_lists_column
from rabbit_chx.mirror.kernel.jump import uniforms
from rabbit_chx.mirror.kernel.phash2 import PHASH2_BITS, last_binary_initval
from tests.broker.kernel_oracle import Oracle, Rows, Terms
from tests.proof import LONG, Check, dice, record_result

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800 if LONG else 600)]

# The package's name phash2 is the function.
SCALAR = sys.modules["rabbit_chx.mirror.kernel.phash2"]
MASK27 = (1 << PHASH2_BITS) - 1
MOST_BUCKETS = 300

# How many batches, and how many cases in each; long, that is more than 10 million on the three releases.
BINARIES = (13, 250_000) if LONG else (6, 5_000)
TERMS = (20, 10_000) if LONG else (2, 1_500)
KEYS = (10, 10_000) if LONG else (2, 500)
FEW = 1_000
"""Terms on which each kernel with a changed constant is tried."""

SHAPES = {
    ".": phash2_column,
    "[": phash2_lists_column,
    "{": lambda column: block_hash_column(column, last_binary_initval(Atom("longstr"))) & MASK27,
}


@pytest.fixture(scope="module")
def oracle(broker):
    with Oracle(broker) as oracle:
        yield oracle


def in_columns(answer, shape, buckets, column):
    """How many rows of a column the bulk path has wrong."""
    hashes = SHAPES[shape](column)
    found = table.BucketTable(buckets)[hashes]
    return np.count_nonzero((hashes != answer["hash"] & MASK27) | (found != answer["bucket"]))


def one_by_one(answer, buckets, terms):
    """How many terms the scalar path has wrong."""
    hashes = [phash2(term, 1 << 32) for term in terms]
    return sum(
        (hash_, jump_consistent_hash(hash_ & MASK27, buckets)) != expected
        for hash_, expected in zip(hashes, answer.tolist(), strict=True)
    )


def drawn(answer, buckets, keys):
    """How many keys lead to wrong random numbers or to a wrong bucket."""
    return sum(
        (jump_consistent_hash(key, buckets), list(islice(uniforms((key, key, key)), 4))) != (bucket, floats)
        for key, bucket, floats in zip(
            keys, answer["bucket"].tolist(), answer["uniforms"].tolist(), strict=True
        )
    )


def changed(constants, wrong, count):
    """What the first batch shows of kernels with one constant changed; no case wrong would be a blind comparison."""
    seen = {}
    for module, name in constants:
        value = getattr(module, name)
        off = value + 2 if isinstance(value, int) else (value[0] + 2, *value[1:])
        with mock.patch.object(module, name, off):
            seen[name] = wrong()
    assert all(seen.values()), seen
    fewest = min(seen, key=seen.get)
    return (
        f"{len(seen)} kernels with one constant off: each seen in the first batch, "
        f"in {seen[fewest]:,} ({fewest.strip('_')}) to {max(seen.values()):,} of {count:,}"
    )


def judge(what, oracle, cases, wrong, started, control):
    record_result(
        Check("Kernel", what, f"OTP {oracle.otp()}", cases, wrong, time.monotonic() - started, control)
    )
    assert not wrong


def test_columns_of_random_binaries_hash_and_fall_as_erlang_and_the_plugin_say(oracle, lab):
    rng = dice("kernel fuzz", "columns", str(lab.release))
    started = time.monotonic()
    wrong, (batches, count) = 0, BINARIES
    for number in range(batches):
        shape, buckets = list(SHAPES)[number % 3], rng.randint(2, MOST_BUCKETS)
        rows = Rows(rng, count)
        buffers = [None, pa.py_buffer(rows.offsets), pa.py_buffer(rows.data)]
        column = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        answer = oracle.binaries(shape, buckets, rows.lengths, rows.data)
        wrong += in_columns(answer, shape, buckets, column)
        if not number:
            constants = [(batch, "HCONST"), (table, "EXS64_FACTOR"), (table, "EXS1024_FACTOR")]
            first = partial(in_columns, answer, shape, buckets, column)
            control = changed([*constants, (table, "SEED_FACTORS")], first, count)
    judge("binaries, in columns", oracle, batches * count, int(wrong), started, control)


def test_random_terms_of_every_kind_hash_and_fall_as_erlang_and_the_plugin_say(oracle, lab):
    rng = dice("kernel fuzz", "terms", str(lab.release))
    started = time.monotonic()
    random_terms = Terms(rng)
    wrong, (batches, count) = 0, TERMS
    for number in range(batches):
        buckets = rng.randint(2, MOST_BUCKETS)
        terms = [random_terms.term() for _ in range(count)]
        answer = oracle.terms(terms, buckets)
        wrong += one_by_one(answer, buckets, terms)
        if not number:
            constants = [(SCALAR, name) for name in vars(SCALAR) if "HCONST" in name or "NIL_" in name]
            first = partial(one_by_one, answer[:FEW], buckets, terms[:FEW])
            control = changed(constants, first, FEW)
    judge("terms of every kind, one by one", oracle, batches * count, wrong, started, control)


def test_random_keys_draw_and_fall_as_rand_and_the_plugin_say(oracle, lab):
    rng = dice("kernel fuzz", "keys", str(lab.release))
    started = time.monotonic()
    random_terms = Terms(rng)
    wrong, (batches, count) = 0, KEYS
    for number in range(batches):
        buckets = rng.choice((1, 2, 3, 10, 100, 1_000, 10_000))
        keys = [rng.choice((random_terms.integer, random_terms.bignum))() for _ in range(count)]
        answer = oracle.keys(keys, buckets)
        wrong += drawn(answer, buckets, keys)
        if not number:
            constants = [(jump, name) for name in ("SEED_FACTORS", "EXS64_FACTOR", "EXS1024_FACTOR")]
            control = changed(constants, partial(drawn, answer, buckets, keys), count)
    judge("exs1024 and jump, integers of any size", oracle, batches * count, wrong, started, control)
