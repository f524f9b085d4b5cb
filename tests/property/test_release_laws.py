"""Laws of releases."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rabbit_chx import InvalidValue, Release, Store
from tests.property.strategies import ANYTHING


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
