"""Every exception of the toolkit, in one tree.

    RabbitChxError
    ├── InvalidValue (also a ValueError)          an argument, option or file entry is invalid
    ├── Unpredictable                             the route is not determined by what is known
    │   ├── RingUnknown                           the order of the buckets must be read from the broker
    │   └── AmbiguousHeader                       the route depends on the client that sends the header
    ├── BrokerWouldFail                           this release fails on the message
    ├── Unroutable                                the exchange has no bucket or binding
    ├── Contradiction                             no ring explains the observed pairs
    ├── PublishFailed                             messages were not confirmed
    ├── ApplyStopped                              a plan was not applied completely
    ├── CorruptStream                             data stored in a stream cannot be decoded
    │   ├── CorruptChunk                          a chunk is damaged
    │   └── InvalidMessage                        a message is not valid AMQP 1.0
    ├── BrokerUnavailable                         no broker could be started or reached
    │   └── StreamUnavailable                     a stream cannot be read or written
    └── MissingDependency (also an ImportError)   an optional package is not installed

``str()`` of each says everything, because it is often all that a user sees, in a Spark task or a log line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from rabbit_chx.base.text import printable, without_secrets

__all__ = [
    "AmbiguousHeader",
    "ApplyStopped",
    "BrokerUnavailable",
    "BrokerWouldFail",
    "Contradiction",
    "CorruptChunk",
    "CorruptStream",
    "InvalidMessage",
    "InvalidValue",
    "MissingDependency",
    "PublishFailed",
    "RabbitChxError",
    "RingUnknown",
    "StreamUnavailable",
    "Unpredictable",
    "Unroutable",
]


class RabbitChxError(Exception):
    """The base class of every error that this package raises on purpose.

    Its text may quote names and a server, and is safe to print: control characters are escaped.
    """

    def __str__(self) -> str:
        return printable(self._text(), keep="\n\t")

    def _text(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidValue(RabbitChxError, ValueError):
    """An argument, option or file entry is invalid.

    >>> raise InvalidValue("weight for queue 'q0'", "1.5", "an integer from 1 to 10000")
    Traceback (most recent call last):
    ...
    rabbit_chx.errors.InvalidValue: invalid weight for queue 'q0': got '1.5', expected an integer from 1 to 10000

    Without ``expected``, ``what`` is the sentence that says what is wrong.
    """

    def __init__(self, what: str, got: object = None, expected: str = "", hint: str = "") -> None:
        self.what = what
        self.got = got
        self.expected = expected
        self.hint = hint
        message = f"invalid {what}: got {_shown(got)}, expected {expected}" if expected else what
        super().__init__(f"{message}. {hint}" if hint else message)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors in a Spark task are pickled for the driver. `got` may be an object that cannot be pickled or whose class
        # the driver lacks, so only plain values stay as they are.
        got = self.got if type(self.got) in _PLAIN else Unquoted(_shown(self.got))
        return (type(self), (self.what, got, self.expected, self.hint))


_PLAIN = {str, bytes, int, float, bool, type(None)}


class Unquoted(str):
    """Text that an error message shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(got: object) -> str:
    try:
        shown = without_secrets(repr(got).replace("\n", " "))
    except Exception:  # noqa: BLE001 - Python refuses to show a huge int, for example
        return f"a value of type {type(got).__name__} that cannot be shown"
    # The short form is below the limit, so that showing it again does not change it.
    if len(shown) <= 150:
        return shown
    quote = shown[-1] if isinstance(got, (str, bytes)) and shown[-1] in "'\"" else ""
    return f"{shown[:100]}...{quote} ({len(shown)} characters)"


class Unpredictable(RabbitChxError):
    """The route is not determined by what is known."""


class RingUnknown(Unpredictable):
    """The order of the buckets is unknown, for example after a restart on Mnesia, and must be read from the broker."""

    def __init__(self, reason: str, hint: str = "") -> None:
        self.reason = reason
        self.hint = hint
        """How to learn the order in Python; the command line gives its own hint."""
        super().__init__(reason, hint)

    def _text(self) -> str:
        return f"{self.reason}. {self.hint}" if self.hint else self.reason


class AmbiguousHeader(Unpredictable):
    """Clients encode this header value differently, and the difference changes the route."""


class BrokerWouldFail(RabbitChxError):
    """This release closes the connection or loses the message instead of routing it."""


class Unroutable(RabbitChxError):
    """The exchange has no bucket or binding: the broker returns mandatory messages and drops the others."""


class Contradiction(RabbitChxError):
    """No ring with the given bindings explains all observed pairs."""


class PublishFailed(RabbitChxError):
    """Some messages were not confirmed."""

    def __init__(self, message: str, totals: Any, failures: Sequence[Any]) -> None:
        self.totals = totals
        """The counters of the call or of the bulk (`Totals`)."""
        self.failures = failures
        """All messages of the call that were not confirmed, by row, with the reasons (`Failure`). A message that was written and has
        no outcome yet is one of them, as unknown."""
        super().__init__(message, totals, failures)

    @property
    def failure(self) -> Any:
        """The first message that was not confirmed (`Failure`)."""
        return self.failures[0]

    @property
    def may_have_arrived(self) -> bool:
        """Whether a message may be in a queue although it was not confirmed: publishing it again may duplicate it."""
        return any(failure.may_have_arrived for failure in self.failures)


class ApplyStopped(RabbitChxError):
    """A plan was not applied completely: the steps before the failed one are done.

    Plan again to apply the rest.
    """

    def __init__(
        self,
        reason: str,
        done: tuple[Any, ...] = (),
        failed: Any = None,
        remaining: tuple[Any, ...] = (),
        in_doubt: bool = False,  # noqa: FBT001, FBT002 - positional, as pickle passes it
    ) -> None:
        self.reason = reason
        """The reason, with a hint."""
        self.done = done
        """The steps that are done."""
        self.failed = failed
        """The step that failed; None if none was started."""
        self.remaining = remaining
        """The later steps."""
        self.in_doubt = in_doubt
        """Whether the failed step, and later ones that were sent with it, may have changed the broker."""
        super().__init__(reason, done, failed, remaining, in_doubt)

    def _text(self) -> str:
        if self.failed is None and self.done:
            return f"all steps are done, but the order of rings was not recorded: {self.reason}"
        if self.failed is None:
            return f"nothing was changed: {self.reason}"
        count = len(self.done) + 1 + len(self.remaining)
        return f"stopped at step {len(self.done) + 1} of {count} ({self.failed}): {self.reason}"


class CorruptStream(RabbitChxError):
    """Data stored in a stream cannot be decoded."""

    what = "corrupt data"
    """The subject of the message."""

    def __init__(self, reason: str, stream: str, offset: int, hint: str = "") -> None:
        self.reason = reason
        self.stream = stream
        self.offset = offset
        """The offset of the chunk or the message."""
        self.hint = hint
        """Which parameter of `StreamReader` helps, if any."""
        super().__init__(reason, stream, offset, hint)

    def _text(self) -> str:
        told = "; ".join(filter(None, [self.reason, self.hint]))
        return f"{self.what} at offset {self.offset} of stream {self.stream!r}: {told}"


class CorruptChunk(CorruptStream):
    """A chunk of a stream is damaged: its checksum, header or entries are invalid."""

    what = "corrupt chunk"


class InvalidMessage(CorruptStream):
    """A message in a stream begins like AMQP 1.0, but is not valid AMQP 1.0."""

    what = "invalid message"


class BrokerUnavailable(RabbitChxError):
    """No broker could be started or reached; the message lists what was tried."""

    def __init__(self, *args: object, permanent: bool = False) -> None:
        super().__init__(*args)
        self.permanent = permanent
        """Whether the broker refused the request, so that another attempt is useless."""


StreamProblem: TypeAlias = Literal[
    "unreachable",
    "tls",
    "login",
    "virtual host",
    "lost",
    "not available",
    "no such stream",
    "permission",
    "already exists",
    "truncated",
    "beyond the end",
    "frame too large",
    "protocol",
    "unsupported",
    "refused",
]
"""Why a stream cannot be read or written:

=================  ====================================================================================================
unreachable        nothing accepts connections: a wrong host or port, or the plugin ``rabbitmq_stream`` is disabled
tls                TLS rejected a certificate, or the peer does not speak TLS
login              the broker rejected the user, the password or the certificate
virtual host       the virtual host does not exist, or the user has no permission in it
lost               the connection or the TLS handshake ended, the broker does not answer, or the credentials cannot be read now
not available      the stream currently has no leader, or the connected node has no replica of it, or an incomplete one
no such stream     no stream has this name, but perhaps a queue of another type; or it was created again during a read
permission         the user has no permission on the stream
already exists     a stream or queue of this name exists
truncated          retention removed the requested offsets
beyond the end     the range ends after the stream: it was deleted and created again
frame too large    a frame exceeds the maximum negotiated with the broker
protocol           the peer does not speak the stream protocol, or sent a malformed or unknown frame
unsupported        this release of RabbitMQ lacks the command
refused            the broker refused a command for another reason, given in the message
=================  ====================================================================================================
"""
_TRANSIENT: Final = {"unreachable", "lost", "not available"}


class StreamUnavailable(BrokerUnavailable):
    """A stream cannot be read or written; :attr:`problem` is the reason, for programs."""

    def __init__(
        self,
        message: str,
        problem: StreamProblem,
        stream: str | None = None,
        first: int | None = None,
        end: int | None = None,
    ) -> None:
        self.problem: StreamProblem = problem
        """The reason, one of `StreamProblem`."""
        self.stream = stream
        """The stream, if the error is about one."""
        self.first = first
        """The first offset that the stream has, if it is truncated."""
        self.end = end
        """The end of the stream, if the start lies beyond it."""
        super().__init__(message, problem, stream, first, end, permanent=problem not in _TRANSIENT)


class MissingDependency(RabbitChxError, ImportError):
    """An optional package is missing; the message contains the command that installs it."""
