"""Columns against the scalar kernel: every kind of column, every length, every border inside the bulk path."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from rabbit_chx.mirror.kernel import Atom, batch, jump_consistent_hash, phash2
from rabbit_chx.mirror.kernel.batch import block_hash_column, phash2_column, phash2_lists_column
from rabbit_chx.mirror.kernel.binaries import Binaries, binaries
from rabbit_chx.mirror.kernel.phash2 import NIL_ALONE, last_binary_initval
from rabbit_chx.mirror.kernel.table import SEEDS, BucketTable, _jump, bucket_table
from tests import vectors
from tests.unit.complaints import complaint

LONGEST = 300
RANDOM = random.Random(1)
BYTES = [RANDOM.randbytes(length) for length in range(LONGEST + 1)]
ASCII = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz0123456789-", k=n)) for n in range(LONGEST + 1)]
TEXT = ["é", "€uro", "😀" * 9, "", "plain", "x" * 12, "ünï" * 40, "\x00", "a\x00"]


def expected(keys) -> list[int]:
    return [phash2(key.encode() if isinstance(key, str) else bytes(key)) for key in keys]


def check(column, keys) -> None:
    hashes = phash2_column(column)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == expected(keys)


def shuffled(keys: list) -> list:
    return random.Random(2).sample(keys, len(keys))


# ---- every kind of column

OF_TEXT = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "numpy object": lambda keys: np.array(keys, object),
    "string": lambda keys: pa.array(keys, pa.string()),
    "large_string": lambda keys: pa.array(keys, pa.large_string()),
    "string_view": lambda keys: pa.array(keys, pa.string_view()),
    "dictionary": lambda keys: pa.array(keys + keys, pa.string()).dictionary_encode()[: len(keys)],
    "chunked": lambda keys: pa.chunked_array([keys[:7], [], keys[7:8], keys[8:]], pa.string()),
    "sliced": lambda keys: pa.array(["before", *keys, "behind"]).slice(1, len(keys)),
    "sliced twice": lambda keys: pa.array(["x", "yy", *keys]).slice(1).slice(1),
    "a slice of chunks": lambda keys: pa.chunked_array([["x", *keys[:5]], keys[5:]])[1:],
}
OF_BYTES = {
    "list": list,
    "bytearrays": lambda keys: list(map(bytearray, keys)),
    "numpy object": lambda keys: np.array(keys, object),
    "binary": lambda keys: pa.array(keys, pa.binary()),
    "large_binary": lambda keys: pa.array(keys, pa.large_binary()),
    "binary_view": lambda keys: pa.array(keys, pa.binary_view()),
    "dictionary": lambda keys: pa.array(keys, pa.binary()).dictionary_encode(),
    "chunked": lambda keys: pa.chunked_array([keys[:100], keys[100:]], pa.large_binary()),
    "sliced": lambda keys: pa.array([b"before", *keys], pa.binary()).slice(1),
}


@pytest.mark.parametrize("kind", OF_TEXT)
@pytest.mark.parametrize("keys", [ASCII, shuffled(ASCII), TEXT], ids=["ascii", "shuffled", "unicode"])
def test_a_column_of_text_is_hashed_as_its_utf8(kind: str, keys: list[str]) -> None:
    check(OF_TEXT[kind](keys), keys)


@pytest.mark.parametrize("kind", OF_BYTES)
@pytest.mark.parametrize("keys", [BYTES, shuffled(BYTES)], ids=["ascending", "shuffled"])
def test_a_column_of_bytes_is_hashed_as_it_is(kind: str, keys: list[bytes]) -> None:
    check(OF_BYTES[kind](keys), keys)


@pytest.mark.parametrize("dtype", ["S", "U"])
@pytest.mark.parametrize("keys", [ASCII, ASCII[5:6] * 40, ["", ""], ASCII[:1] * 20], ids=len)
def test_numpy_text_of_a_fixed_width_is_hashed_without_its_padding(dtype: str, keys: list[str]) -> None:
    column = np.array(keys, dtype)
    check(column, keys)
    check(column[::-2], keys[::-2])
    check(column.astype(column.dtype.newbyteorder()), keys)


def test_numpy_text_may_be_unicode() -> None:
    keys = [key for key in TEXT if not key.endswith("\x00")]  # to NumPy, those are padding
    check(np.array(keys), keys)
    check(np.array(keys, np.dtypes.StringDType()), keys)


@pytest.mark.parametrize("width", [*range(26), 255])
def test_fixed_size_binaries_are_hashed_at_any_offset(width: int) -> None:
    keys = [RANDOM.randbytes(width) for _ in range(40)]
    column = pa.array(keys, pa.binary(width))
    check(column, keys)
    check(column.slice(3, 30), keys[3:33])


@pytest.mark.parametrize(
    "column",
    [
        [],
        (),
        pa.array([], pa.string()),
        pa.array([], pa.binary(4)),
        pa.array(["a"]).slice(1),
        pa.array(["a"], pa.string_view()).slice(1),
        pa.array(["a"]).dictionary_encode().slice(1),
        pa.chunked_array([], pa.string()),
        pa.chunked_array([[], []], pa.binary()),
        pa.array([]),
    ],
    ids=str,
)
def test_an_empty_column_has_no_hashes(column) -> None:
    check(column, [])
    assert phash2_lists_column(column).tolist() == []


def test_a_column_that_was_read_before_is_taken_as_it_is() -> None:
    (read,) = binaries(BYTES)
    check(read, BYTES)


# ---- lengths of rows


@pytest.mark.parametrize("step", [0, 1], ids=["even", "uneven"])
def test_many_keys_with_more_blocks_than_16_bits_count_are_hashed(step: int) -> None:
    keys = [bytes([row]) * (12 * batch._MOST_BLOCKS + 11 + step * row) for row in range(18)] + [b""] * step
    hashes = phash2_column(pa.array(keys))
    some = [0, 8, 17, -1]
    assert hashes[some].tolist() == expected([keys[row] for row in some])
    assert len(set(hashes.tolist())) == len(keys)


@pytest.mark.parametrize("lengths", [[21] * 40, [*range(40)], [3] * 40, [0] * 39 + [1]], ids=len)
def test_neither_what_follows_a_key_nor_where_it_lies_makes_a_difference(lengths: list[int]) -> None:
    keys = [RANDOM.randbytes(length) for length in lengths]
    offsets = np.cumsum([0, *lengths])
    joined = b"".join(keys)
    for before in range(5):
        for behind in (b"", b"\xff", b"\xff" * 11, b"\xff" * 40):
            data = np.frombuffer(b"\xee" * before + joined + behind, np.uint8)
            for dtype in (np.int32, np.int64):
                check(Binaries(data, (offsets + before).astype(dtype)), keys)


KEYS = st.binary(max_size=80) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=150)
@given(
    st.lists(KEYS, max_size=60) | st.lists(st.binary(min_size=24, max_size=24), min_size=17, max_size=60),
    st.integers(0, 20),
    st.integers(1, 70),
    st.integers(1, 600),
    st.integers(0, 20),
)
def test_batch_equals_scalar(keys: list, start: int, rows: int, most: int, few: int) -> None:
    encoded = [key.encode() if isinstance(key, str) else key for key in keys]
    with mock.patch.multiple(batch, _ROWS=rows, _BYTES=most, _FEW=few):
        check(keys, keys)
        check(pa.array(encoded, pa.binary()).slice(start), encoded[start:])
        check(pa.chunked_array([encoded[:start], encoded[start:]], pa.large_binary()), keys)
        assert phash2_lists_column(keys).tolist() == [phash2([key]) for key in encoded]


def test_columns_of_erlangs_own_vectors_have_erlangs_hashes() -> None:
    rows = vectors.rows("phash2.jsonl")
    lone = [(vectors.term(term), narrow, wide) for term, narrow, wide, _ in rows if "binary" in term]
    keys = [key for key, *_ in lone]
    assert len(keys) > 1500
    assert phash2_column(keys).tolist() == [narrow for _, narrow, _ in lone]
    assert block_hash_column(keys).tolist() == [wide for *_, wide in lone]


def test_a_binary_behind_other_terms_starts_from_their_hash() -> None:
    longstr = Atom("longstr")
    hashes = block_hash_column(BYTES, last_binary_initval(longstr))
    assert hashes.tolist() == [phash2((longstr, key), 2**32) for key in BYTES]


def test_a_list_whose_binary_hashes_to_zero_hashes_as_an_empty_one() -> None:
    with mock.patch.object(batch, "block_hash_column", return_value=np.array([0, 1], np.uint32)):
        alone, other = phash2_lists_column([b"one of 2^32", b"another"]).tolist()
    assert alone == NIL_ALONE % 2**27 == phash2([])
    assert other != alone


# ---- what is no key


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (["a", None], 1),
        (["a", 1.5], 1),
        ([b"a", "b", "\ud800"], 2),
        (np.array(["a", "b", "\udfff"]), 2),
        (np.array(["a", None], object), 1),
        (pa.array(["a", "b", None, None]), 2),
        (pa.array(["a", None, "b", None], pa.large_string()).slice(2), 1),
        (pa.array([b"a", None], pa.binary(1)), 1),
        (pa.array(["a", None], pa.string_view()), 1),
        (pa.array(["a", None]).dictionary_encode(), 1),
        (pa.DictionaryArray.from_arrays([0, 0, 1], ["a", None]), 2),
        (pa.chunked_array([["a", "b"], [], ["c", None]]), 3),
        (pa.array([None]), 0),
    ],
    ids=range(13),
)
def test_what_is_no_key_is_named_by_its_row(column, row: int) -> None:
    assert complaint(lambda: phash2_column(column, what="label")).what == f"label in row {row}"


@pytest.mark.parametrize(
    "column",
    ["text", b"bytes", bytearray(b"x"), memoryview(b"x")],
    ids=["text", "bytes", "bytearray", "memoryview"],
)
def test_a_single_key_is_no_column(column) -> None:
    assert "list" in complaint(lambda: phash2_column(column)).hint


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float32(), pa.timestamp("s"), pa.list_(pa.string())], ids=str
)
def test_an_arrow_type_that_holds_no_keys_is_refused(kind: pa.DataType) -> None:
    column = pa.array([["a"]] if pa.types.is_list(kind) else [1], kind)
    assert complaint(lambda: phash2_column(column)).got == str(kind)


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (["a" * 255, "a" * 256], 1),
        (["é" * 128], 0),  # bytes count, not characters
        ([b"", b"x" * 300], 1),
        (pa.array(["a", "b", "c" * 256]).slice(1), 1),
        (pa.chunked_array([["a"], ["b", "c" * 256]]), 2),
        (np.array(["a" * 256]), 0),
    ],
    ids=range(6),
)
def test_a_key_above_the_limit_is_named_by_its_row(column, row: int) -> None:
    error = complaint(lambda: phash2_column(column, limit=255))
    assert error.what == f"key in row {row}"
    assert "at most 255 bytes" in error.expected
    assert len(phash2_column(column)) == len(column)


# ---- hashes to buckets

SIZES = [2, 3, 8, 64, 255, 256, 257, 1000, 65_535, 65_536, 100_000]


@pytest.mark.parametrize("buckets", SIZES)
def test_the_table_holds_the_buckets_of_the_scalar_path(buckets: int) -> None:
    keys = [0, 1, SEEDS - 1, SEEDS, 2**27 - 1, *(RANDOM.randrange(2**27) for _ in range(300))]
    found = BucketTable(buckets)[np.array(keys, np.uint32)]
    assert found.tolist() == [jump_consistent_hash(key, buckets) for key in keys]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_of_an_integer_of_any_type_21_bits_count(dtype: str) -> None:
    limits = np.iinfo(dtype)
    keys = [limits.min, limits.max, 0, 1, limits.max // 3, limits.min // 5]
    assert BucketTable(10)[np.array(keys, dtype)].tolist() == [jump_consistent_hash(key, 10) for key in keys]


@pytest.mark.parametrize("buckets", [12, 255, 256, 65_536])
def test_asking_for_a_few_buckets_does_not_draw_them_all(buckets: int) -> None:
    table = BucketTable(buckets)
    keys = np.arange(10_000, dtype=np.uint32)
    with mock.patch("rabbit_chx.mirror.kernel.table._jump", wraps=_jump) as drawn:
        first = table[keys]
        assert sum(len(call.args[0]) for call in drawn.call_args_list) == 10_000
        again = table[keys]
        assert drawn.call_count == 1  # nothing is drawn twice
    assert (first == again).all()


def test_buckets_stay_what_they_are_while_the_table_fills() -> None:
    whole = BucketTable(9).all()
    assert whole.shape == (SEEDS,)
    assert whole.min() == 0
    assert whole.max() == 8
    filling = BucketTable(9)
    for keys in np.array_split(np.random.default_rng(1).permutation(SEEDS), 5):
        assert (filling[keys] == whole[keys]).all()
    assert (filling.all() == whole).all()
    assert (filling[np.arange(2 * SEEDS)] == np.tile(whole, 2)).all()


def test_rings_of_one_size_share_a_table() -> None:
    assert bucket_table(21) is bucket_table(21)
    assert bucket_table(21) is not bucket_table(22)
