"""Names that no command sends to a broker."""

from __future__ import annotations

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.names import check_name

INVALID = ["", "a\nb", "a\r", "\t", "\0", "\x1b[2J", "\x7f", "\x85", "\ud800", "x" * 256, "é" * 128]


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_name_is_refused_in_words_that_hold_no_control_character(name):
    with pytest.raises(InvalidValue, match=r"^invalid queue: .*1 to 255 bytes") as caught:
        check_name("queue", name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, " ", "a b", "\u202e", "\U0010ffff"])
def test_other_names_are_returned_as_they_are(name):
    assert check_name("queue", name) is name
