"""The judge of what becomes of input that nobody wants.

A call may work, or raise one of our errors with words in it; it ends soon, and no secret that was given to it stands
in its words. Whatever else happens is wrong. :func:`fuzz` throws the examples of a strategy at a call and books how
many there were; meanwhile it shows that the judge sees a call that does wrong.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from rabbit_chx.errors import InvalidValue, RabbitChxError
from tests.canary import found
from tests.conftest import in_ci
from tests.proof import LONG, SEED, Check, book

TIMES = 6 if LONG else 1
"""How many times as many examples as in CI."""
SECONDS = 5
"""Of processor time for one example, so that a loaded machine does not make a slow parser."""
CONTROLS = 20


class TooLong(BaseException):
    """Nothing that is tried catches it."""


class Wrong(AssertionError):
    """What the judge has to say."""


@contextmanager
def limited() -> Iterator[None]:
    """At most so much processor time."""

    def stop(*_: object) -> NoReturn:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def judge(call: Callable[[], object], secrets: Iterable[str] = ()) -> object:
    """What the call returns, or the error of ours that it raises; all else is a :class:`Wrong`."""
    try:
        with limited():
            result = call()
            said = str(result)
    except RabbitChxError as error:
        result, said = error, f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
        if not str(error).strip():
            raise Wrong(f"{type(error).__name__} without a word") from error
    except TooLong as error:
        raise Wrong(f"it takes more than {SECONDS} seconds") from error
    except Exception as error:
        raise Wrong(f"{type(error).__name__} is none of our errors: {error}"[:500]) from error
    if leaks := found(said, secrets):
        raise Wrong(f"a secret stands in {leaks}")
    return result


def sees(broken: Callable[[], object], secrets: Iterable[str] = ()) -> bool:
    """Whether the judge calls it wrong."""
    try:
        judge(broken, secrets)
    except Wrong:
        return True
    return False


def fuzz(
    what: str,
    strategy: st.SearchStrategy[Any],
    tried: Callable[[Any], object],
    *,
    examples: int,
    secrets: tuple[str, ...] = (),
    kept: Iterable[Any] = (),
) -> None:
    """Judge a call on the examples of a strategy, and on those on which it was wrong once."""
    count: Counter[str] = Counter()

    def law(hostile: Any) -> None:
        count["cases"] += 1
        result = judge(lambda: tried(hostile), secrets)
        if isinstance(result, RabbitChxError):
            count["refused"] += 1
            if count["refused"] <= CONTROLS:
                count["seen"] += sees(lambda: _stumbling(result)) and sees(_silent)
                count["seen"] -= bool(secrets) and not sees(lambda: _leaking(secrets[0]), secrets)

    law = settings(max_examples=examples * TIMES)(given(strategy)(law))
    for one in kept:
        law = example(one)(law)
    # In CI the same examples every time, as for every law here; elsewhere those of the run's seed.
    law = law if in_ci() and not LONG else seed(SEED)(law)
    wrong, started = 1, time.monotonic()
    try:
        law()
        wrong = 0
    except BaseExceptionGroup as several:
        wrong = len(several.exceptions)
        raise
    finally:
        tries = min(count["refused"], CONTROLS)
        control = (
            f"{tries} refusals turned into KeyErrors{' and leaks' * bool(secrets)}: {count['seen']} seen"
        )
        book(Check("Input", what, "", count["cases"], wrong, time.monotonic() - started, control))
    assert count["seen"] == tries > 0, "the judge sees too little, or nothing was refused"


def _stumbling(refusal: RabbitChxError) -> NoReturn:
    raise KeyError(str(refusal))


def _silent() -> NoReturn:
    raise RabbitChxError(" ")


def _leaking(secret: str) -> NoReturn:
    raise InvalidValue("URL", f"http://user:{secret}@host", "another")
