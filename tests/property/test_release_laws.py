"""Laws of releases."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from rabbit_chx import InvalidValue, Release, Store
from tests.property.strategies import ANYTHING, releases


@given(releases())
def test_a_release_is_read_back_from_what_it_shows(release: Release) -> None:
    assert Release.parse(str(release), store=release.store) == release
    assert Release.parse(release) == release
    assert pickle.loads(pickle.dumps(release)) == release


@given(
    st.text(max_size=12) | st.text("0123456789.-+x", max_size=9) | ANYTHING, st.sampled_from([None, *Store])
)
def test_any_text_is_a_release_or_refused(text, store: Store | None) -> None:
    try:
        release = Release.parse(text, store=store)
    except InvalidValue:
        return
    major, minor, *_ = text.split(".")
    assert (str(release.major), str(release.minor)) == (major, minor)
    assert store in {None, release.store}


@given(releases(), releases())
def test_what_the_broker_once_learnt_it_does_not_forget(one: Release, other: Release) -> None:
    early, late = sorted([one, other], key=lambda each: (each.major, each.minor, each.patch))
    assert early.typed_headers >= late.typed_headers
    assert early.modulus_sorts_destinations <= late.modulus_sorts_destinations
    # The one mend that two series got: 3.10.0 to 3.10.5 came after 3.9.21 and did not have it.
    if (late.major, late.minor) != (3, 10):
        assert early.first_binding_wins <= late.first_binding_wins
