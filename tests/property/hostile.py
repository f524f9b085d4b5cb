"""Fuzzing: a call must accept an input or raise one of this project's errors, soon and without a secret in its message.

:func:`fuzz` runs the examples of a strategy and records how many there were. As a control it also checks that a call
which fails in another way would be noticed.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from hypothesis import HealthCheck, example, given, seed, settings, strategies as st

from rabbit_chx.errors import InvalidValue, RabbitChxError
from tests.canary import found
from tests.proof import LONG, SEED, Check, in_ci, record_result

TIMES = 6 if LONG else 1
"""The factor for the number of examples; 1 in CI."""
SECONDS = 5
"""Processor time for one example; a loaded machine does not make a parser slow."""
CONTROLS = 20
T = TypeVar("T")


class TooLong(BaseException):
    """An example took too long; nothing under test catches it."""


class Wrong(AssertionError):
    """A call failed in a way that is not allowed."""


@contextmanager
def limited() -> Iterator[None]:
    """Limit the processor time."""

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
    """The result of the call, or the error of this project that it raises; anything else is :class:`Wrong`."""
    try:
        with limited():
            result = call()
            said = str(result)
    except RabbitChxError as error:
        result, said = error, f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
        if not str(error).strip():
            raise Wrong(f"{type(error).__name__} without a message") from error
    except TooLong as error:
        raise Wrong(f"took more than {SECONDS} seconds") from error
    except Exception as error:
        raise Wrong(f"{type(error).__name__} is not an error of this project: {error}"[:500]) from error
    if leaks := found(said, secrets):
        raise Wrong(f"a secret is in {leaks}")
    return result


def _seen(wrong: Exception, secrets: Iterable[str] = ()) -> bool:
    """Whether :func:`judge` reports a call that raises this."""

    def broken() -> NoReturn:
        raise wrong

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
    """Judge a call on the examples of a strategy, and on those of earlier defects (``kept``)."""
    count: Counter[str] = Counter()

    def law(hostile: Any) -> None:
        count["cases"] += 1
        result = judge(lambda: tried(hostile), secrets)
        if isinstance(result, RabbitChxError):
            count["refused"] += 1
            if count["refused"] <= CONTROLS:
                count["seen"] += _seen(KeyError(str(result))) and _seen(RabbitChxError(" "))
                leak = InvalidValue("password", secrets[0], "another") if secrets else None
                count["seen"] -= leak is not None and not _seen(leak, secrets)

    law = settings(max_examples=examples * TIMES)(given(strategy)(law))
    for one in kept:
        law = example(one)(law)
    # CI uses the same examples every time, other runs those of their seed.
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
        record_result(Check("Input", what, "", count["cases"], wrong, time.monotonic() - started, control))
    assert count["seen"] == tries > 0, "the control failed, or nothing was refused"


def drawn(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Examples of a strategy, of which a long run has 400.

    They are drawn before a member runs: Hypothesis fails if any thread uses random numbers while it draws.
    """
    examples: list[T] = []

    @settings(max_examples=400 if LONG else count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(one: T) -> None:
        examples.append(one)

    draw()
    return examples
