"""The kernel against what real Erlang and the real plugin answered (tests/vectors)."""

from __future__ import annotations

from itertools import islice

import pytest

from rabbit_chx.mirror.kernel import Atom, jump_consistent_hash, phash2
from rabbit_chx.mirror.kernel.jump import uniforms
from rabbit_chx.mirror.kernel.terms import format_term
from tests import vectors


def test_there_are_vectors_of_every_kind_of_term() -> None:
    kinds = {next(iter(tagged)) for tagged, *_ in vectors.rows("phash2.jsonl")}
    assert kinds == {"atom", "binary", "integer", "float", "tuple", "list"}
    assert len(vectors.rows("phash2.jsonl")) >= 5_000


def test_phash2_gives_erlangs_hash_of_every_term() -> None:
    for tagged, narrow, wide, thousand in vectors.rows("phash2.jsonl"):
        term = vectors.term(tagged)
        answers = (phash2(term), phash2(term, 2**32), phash2(term, 1000))
        assert answers == (narrow, wide, thousand), format_term(term)


def test_exs1024_draws_erlangs_floats_bit_for_bit() -> None:
    for triple, floats in vectors.rows("exs1024.jsonl"):
        seed = tuple(map(int, triple))
        assert list(islice(uniforms(seed), len(floats))) == [vectors.ieee(bits) for bits in floats], seed


def test_jump_consistent_hash_gives_the_plugins_bucket() -> None:
    for key, buckets, bucket in vectors.rows("jump.jsonl"):
        assert jump_consistent_hash(int(key), buckets) == bucket, (key, buckets)


@pytest.mark.parametrize("range_", [0, -1, 2**32 + 1])
def test_phash2_refuses_a_range_that_erlang_refuses(range_: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 2\\^32"):
        phash2(b"", range_)


def test_phash2_refuses_what_is_no_erlang_term_and_says_what_to_use() -> None:
    with pytest.raises(TypeError, match="use bytes"):
        phash2("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Atom\\('true'\\)"):
        phash2((1, True))


def test_no_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one bucket"):
        jump_consistent_hash(1, 0)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (b"plain", '<<"plain">>'),
        (b'a"b\\', '<<"a\\"b\\\\">>'),
        ("é".encode(), '<<"é"/utf8>>'),
        (b"\xff\x00", "<<255,0>>"),
        (Atom("undefined"), "undefined"),
        (Atom("two words"), "'two words'"),
        ((Atom("longstr"), b"x", [1, -2.5]), '{longstr,<<"x">>,[1,-2.5]}'),
    ],
)
def test_terms_are_shown_in_erlang_syntax(term: object, text: str) -> None:
    assert format_term(term) == text  # type: ignore[arg-type]
