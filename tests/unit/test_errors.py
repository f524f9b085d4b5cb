"""The exceptions: one tree, full sentences, and nothing lost on the way from a Spark worker to its driver."""

from __future__ import annotations

import pickle
import re
import threading

import pytest

from rabbit_chx import InvalidValue, RabbitChxError, errors
from rabbit_chx.testing.node import CannotSupply

CLASSES = [getattr(errors, name) for name in errors.__all__]
OF_A_MESSAGE = [
    cls for cls in CLASSES if not any("__init__" in vars(base) for base in cls.__mro__ if base in CLASSES)
]
HUGE = 10**5_000


def test_the_drawn_tree_is_the_real_tree() -> None:
    drawn = re.findall(r"^ +((?:│? *[├└]── )?)(\w+)", errors.__doc__ or "", re.MULTILINE)
    parents: dict[int, str] = {}
    for branch, name in drawn:
        parents[len(branch)] = name
        above = [parents[depth] for depth in parents if depth < len(branch)]
        bases = [base.__name__ for base in getattr(errors, name).__bases__]
        assert bases[0] == (above[-1] if above else "Exception"), name
        parents = {depth: each for depth, each in parents.items() if depth <= len(branch)}
    assert {name for _, name in drawn} == set(errors.__all__)


def test_errors_can_be_caught_by_the_builtin_that_fits() -> None:
    assert issubclass(errors.InvalidValue, ValueError)
    assert issubclass(errors.MissingDependency, ImportError)


@pytest.mark.parametrize("cls", OF_A_MESSAGE)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(cls: type[RabbitChxError], protocol: int) -> None:
    back = pickle.loads(pickle.dumps(cls("a full sentence"), protocol))
    assert type(back) is cls
    assert str(back) == "a full sentence"


@pytest.mark.parametrize("cls", [errors.BrokerUnavailable, CannotSupply])
@pytest.mark.parametrize("permanent", [False, True])
def test_pickling_keeps_whether_another_attempt_is_useless(
    cls: type[errors.BrokerUnavailable], permanent: bool
) -> None:
    back = pickle.loads(pickle.dumps(cls("a full sentence", permanent=permanent)))
    assert (type(back), str(back), back.permanent) == (cls, "a full sentence", permanent)


@pytest.mark.parametrize("got", ["a", b"\xff", 5, 1.5, None, True, "\ud800", "x" * 500])
def test_an_invalid_value_survives_pickling_with_all_its_parts(got: object) -> None:
    error = InvalidValue("weight", got, "1 or more", "Leave it out")
    error.add_note("in partition 7")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is InvalidValue
    assert str(back) == str(error)
    assert (back.what, back.got, back.expected, back.hint) == ("weight", got, "1 or more", "Leave it out")


def test_a_sentence_in_place_of_an_invalid_value_survives_pickling() -> None:
    error = InvalidValue("the Publisher is not open", hint="Call open()")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "the Publisher is not open. Call open()"


def local_class() -> object:
    class Local:
        pass

    return Local()


@pytest.mark.parametrize(
    "got",
    [(i for i in "ab"), threading.Lock(), lambda: 0, local_class(), [object()], {"a": [1, "b"]}, ["x"] * 99],
)
def test_what_cannot_travel_does_so_as_its_text(got: object) -> None:
    error = InvalidValue("weight", got, "1 or more", "Leave it out")
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error)
    assert str(pickle.loads(pickle.dumps(back))) == str(error)


def test_a_message_has_the_four_parts_in_the_order_they_are_read_on_one_line() -> None:
    class Table:
        def __repr__(self) -> str:
            return "[1,\n 2]"

    text = str(InvalidValue("weight", Table(), "1 or more", "Leave it out"))
    assert text == "invalid weight: got [1,  2], expected 1 or more. Leave it out"


def test_a_long_value_is_cut_and_its_length_shown() -> None:
    text = str(InvalidValue("key", "x" * 1_000_000, "less"))
    assert len(text) < 250
    assert "x...' (1000002 characters)" in text


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("got", [HUGE, Unshowable(), [HUGE]], ids=["huge", "broken", "nested"])
def test_a_value_that_python_cannot_show_is_complained_of_all_the_same(got: object) -> None:
    error = InvalidValue("weight", got, "1 or more", "Leave it out")
    assert f"a value of type {type(got).__name__} that cannot be shown" in str(error)
    assert "expected 1 or more. Leave it out" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
