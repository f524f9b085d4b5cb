"""Every exception of the toolkit, in one tree.

    RabbitChxError
    ├── InvalidValue (also a ValueError)     what was given cannot be used: fix the call
    ├── Unpredictable                        the broker itself does not determine the answer
    │   ├── RingUnknown                      ... until the ring is read from the broker again
    │   └── AmbiguousHeader                  ... until it is known which client sends the header
    ├── BrokerWouldFail                      this release crashes on this very message
    ├── Unroutable                           the exchange has no bucket: the message goes nowhere
    ├── Contradiction                        observed pairs that no ring could have produced
    ├── PublishFailed                        messages were not confirmed; which, and what became of them
    ├── ApplyStopped                         a plan was not applied, or in part; what is done and what is not
    ├── MissingDependency (also an ImportError)   an optional package is not installed
    └── BrokerUnavailable                    no broker could be started or reached

Each has a full sentence in ``str()``, because that sentence is often all a user ever sees (a Spark
task, a log line). This file imports nothing of the package, so that everything may import it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AmbiguousHeader",
    "ApplyStopped",
    "BrokerUnavailable",
    "BrokerWouldFail",
    "Contradiction",
    "InvalidValue",
    "MissingDependency",
    "PublishFailed",
    "RabbitChxError",
    "RingUnknown",
    "Unpredictable",
    "Unroutable",
]


class RabbitChxError(Exception):
    """The root of the tree: ``except RabbitChxError`` catches whatever this toolkit raises on purpose."""


class InvalidValue(RabbitChxError, ValueError):
    """An argument, option or file entry is invalid.

    >>> raise InvalidValue("weight for queue 'q0'", "1.5", "an integer from 1 to 10000")
    Traceback (most recent call last):
    ...
    rabbit_chx.errors.InvalidValue: invalid weight for queue 'q0': got '1.5', expected an integer from 1 to 10000
    """

    def __init__(self, what: str, got: object, expected: str, hint: str = "") -> None:
        self.what = what
        self.got = got
        self.expected = expected
        self.hint = hint
        message = f"invalid {what}: got {_shown(got)}, expected {expected}"
        super().__init__(f"{message}. {hint}" if hint else message)

    def __reduce__(self) -> tuple[object, ...]:
        # An error raised in a Spark task must survive the trip to the driver. `got` may be anything, including an
        # object that cannot be pickled or whose class the driver lacks, so everything but plain values goes as text.
        got = self.got if type(self.got) in _PLAIN else Unquoted(_shown(self.got))
        return (type(self), (self.what, got, self.expected, self.hint))


_PLAIN = {str, bytes, int, float, bool, type(None)}


class Unquoted(str):
    """Shown as it stands, where a str would be shown in quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(got: object) -> str:
    try:
        shown = repr(got).replace("\n", " ")
    except Exception:  # noqa: BLE001 - Python refuses to show a huge int, for one; to complain must not fail
        return f"a value of type {type(got).__name__} that cannot be shown"
    # The short form is below the limit itself, so that it stays as it is when it is shown again.
    return shown if len(shown) <= 150 else f"{shown[:100]}... ({len(shown)} characters)"


class Unpredictable(RabbitChxError):
    """The broker's answer is not a function of what is known; guessing would be a lie."""


class RingUnknown(Unpredictable):
    """The order of the buckets was lost (a restart on Mnesia, for one) and has to be read again."""


class AmbiguousHeader(Unpredictable):
    """Clients encode this header value differently, and here the difference changes the route."""


class BrokerWouldFail(RabbitChxError):
    """The broker of this release closes the connection or loses the message instead of routing it."""


class Unroutable(RabbitChxError):
    """The exchange has no bucket: a mandatory message comes back, any other is dropped in silence."""


class Contradiction(RabbitChxError):
    """No ring that follows from the given bindings explains all of the observed pairs."""


class PublishFailed(RabbitChxError):
    """Messages that were taken in were not confirmed. Nothing that was confirmed is meant."""

    def __init__(self, message: str, totals: Any, failures: list[Any]) -> None:
        self.totals = totals
        """All counters of the publisher (`Totals`)."""
        self.failures = failures
        """Messages that were not confirmed, and why (`Failure`): the hundred lowest rows of them."""
        super().__init__(message, totals, failures)

    def __str__(self) -> str:
        return str(self.args[0])


class ApplyStopped(RabbitChxError):
    """A plan was not applied to its end. Every step before the one that failed is done; none after it was tried.

    What stands then is plain to see: plan again, and apply what is left.
    """

    def __init__(
        self, reason: str, *, done: tuple[Any, ...] = (), failed: Any = None, remaining: tuple[Any, ...] = ()
    ) -> None:
        self.reason = reason
        """Why, and the way out."""
        self.done = done
        """The steps that the broker has carried out, or had before."""
        self.failed = failed
        """The step that went wrong; None where none was begun."""
        self.remaining = remaining
        """The steps that were not tried."""
        super().__init__(reason, done, failed, remaining)

    def __str__(self) -> str:
        if self.failed is None:
            return f"nothing was changed: {self.reason}"
        count = len(self.done) + 1 + len(self.remaining)
        return f"stopped at step {len(self.done) + 1} of {count} ({self.failed}): {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_apply_stopped, self.args)


def _rebuild_apply_stopped(reason: str, done: Any, failed: Any, remaining: Any) -> ApplyStopped:
    return ApplyStopped(reason, done=done, failed=failed, remaining=remaining)


class MissingDependency(RabbitChxError, ImportError):
    """An optional package is needed for this call; the message holds the line that installs it."""


class BrokerUnavailable(RabbitChxError):
    """No broker could be started or reached; the message says what was tried and what would help."""

    permanent = False
    """Whether the broker's own answer makes another attempt useless: a refusal, not a broken connection."""
