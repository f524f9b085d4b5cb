"""Check that an error says what is invalid, what was given and expected, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rabbit_chx import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable


def complaint(call: Callable[[], object]) -> InvalidValue:
    """The InvalidValue that the call raises, after checking that its parts are shown."""
    with pytest.raises(InvalidValue) as caught:
        call()
    error = caught.value
    assert type(error) is InvalidValue
    assert error.what
    assert not error.what.startswith(("the ", "a ", "an "))
    assert error.expected
    for part in (error.what, error.expected, error.hint):
        assert part in str(error)
    assert "got " in str(error)
    assert "\n" not in str(error)
    return error
