"""A publisher that is fast because it confirms in bulk, and that tells the truth about every message.

    with Publisher("amqp://user:password@host", exchange="orders") as publisher:
        publisher.publish(b"...", "customer-42")
        publisher.publish_many(bodies, keys)
    print(publisher.totals)

Messages are persistent and mandatory, and every one is confirmed; there is no switch for that. The call returns
when a message is taken in, which waits while too many are under way. ``flush``, or the end of the ``with`` block,
waits until each has its outcome and raises `PublishFailed` if one was not confirmed.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from rabbit_chx.broker.connect import parameters_of
from rabbit_chx.broker.credentials import check_credentials
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed
from rabbit_chx.hashing import shortstr
from rabbit_chx.publishing.account import Account
from rabbit_chx.publishing.attempts import Address, Patience
from rabbit_chx.publishing.encoding import (
    body_column,
    checked_body,
    column,
    key_column,
    property_column,
    values,
)
from rabbit_chx.publishing.engine import Engine
from rabbit_chx.publishing.frames import Message, encode_properties, most_bytes
from rabbit_chx.urls import BrokerUrl

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rabbit_chx.broker.credentials import Credentials
    from rabbit_chx.errors import RabbitChxError
    from rabbit_chx.publishing.account import Failure, Totals

__all__ = ["Publisher"]

_FRAME_MAX: Final = 131_072
_MOST: Final = 5_000
_MOST_BYTES: Final = 32 << 20
_BODY_LIMIT: Final = 16 << 20
_BODY_LIMIT_BEFORE_4: Final = 128 << 20


class Publisher:
    """Publishes to one broker (or the first of several that answers), confirmed and mandatory.

    Args:
        url: an AMQP URL, or several that are tried in turn.
        exchange: where messages go that name no exchange themselves.
        properties: of every message, such as ``{"content_type": "application/json"}``.
        most_pending: messages that may be under way before ``publish`` waits.
        most_pending_bytes: the same for their bodies.
        most_body_bytes: the broker's ``max_message_size``, which AMQP does not tell; by default 16 MiB on
            RabbitMQ 4 and 128 MiB before.
        connect_timeout: seconds until the first connection must stand.
        reconnect_timeout: seconds until a lost one must stand again.
        blocked_timeout: seconds for which a broker may refuse to read (a memory or disk alarm).
        confirm_timeout: seconds for which a broker may confirm nothing of what it was sent.
        retry_timeout: seconds for which a message that came back is sent again.
        heartbeat: seconds; they flow whatever the caller does.
        credentials: where they are not in the URL or expire: called on each connect for user and password; or the
            ``Path`` of a file, read on each connect, whose one line is the password of the URL's user.
        tls: for amqps; by default certificates and host names are checked.
        name: of the connection, as the broker lists it.
        fence: the name of an exclusive queue that the next connection must win, so that the broker has surely
            dropped the old one before anything is sent again; needs permission to configure that name.
        sequence_header: a header that carries the row, by which a message that came back is told from others
            that are alike in all else.
        around_batch: called with the number of messages that are about to leave, from the publisher's thread,
            for a context manager around their leaving: a place for a tracing span.
        on_failure: called, from the publisher's thread, for each message that was not confirmed; with it
            ``flush`` does not raise for those.

    Order: messages leave in the order of the calls. After a nack, a return or a reconnect, those of one window
    may arrive twice or out of order; ``totals.resent`` counts them.
    """

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        exchange: str = "",
        *,
        properties: Mapping[str, Any] | None = None,
        most_pending: int = _MOST,
        most_pending_bytes: int = _MOST_BYTES,
        most_body_bytes: int | None = None,
        connect_timeout: float = 10.0,
        reconnect_timeout: float = 120.0,
        blocked_timeout: float = 120.0,
        confirm_timeout: float = 120.0,
        retry_timeout: float = 10.0,
        heartbeat: int = 30,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        name: str = "rabbit-chx publisher",
        fence: str | None = None,
        sequence_header: str | None = None,
        around_batch: Callable[[int], AbstractContextManager[object]] = nullcontext,
        on_failure: Callable[[Failure], object] | None = None,
    ) -> None:
        urls = _urls(url, credentials, tls)
        self._where = ", ".join(map(str, urls))
        self._state, self._frame_max = "new", _FRAME_MAX
        self._exchange = shortstr(exchange, "the exchange")
        self._properties = dict(properties or {})
        self._sequence_header = _name("the sequence header", sequence_header)
        self._plain = self._encode({}, None)
        self._calls = threading.Lock()  # rows are numbered by one caller at a time
        self._most_body_bytes = most_body_bytes and _at_least_one("most_body_bytes", most_body_bytes)
        self._connect_timeout = connect_timeout
        self._raises, self._raised = on_failure is None, 0
        self._account = Account(
            most=_at_least_one("most_pending", most_pending),
            most_bytes=_at_least_one("most_pending_bytes", most_pending_bytes),
            on_failure=on_failure,
        )
        waits = Patience(connect_timeout, reconnect_timeout, retry_timeout, confirm_timeout, blocked_timeout)
        heartbeat = _at_least_one("heartbeat", heartbeat, most=65_535)
        parameters = partial(parameters_of, name=name, heartbeat=heartbeat, credentials=credentials, tls=tls)
        parameters = partial(parameters, blocked_timeout=waits.blocked)
        addresses = [Address(str(one), partial(parameters, one)) for one in urls]
        self._engine = Engine(
            addresses,
            self._account,
            waits,
            fence=_name("the fence", fence),
            needs=_needs(exchange, fence),
            on_limits=self._learn_limits,
            around_batch=around_batch,
        )

    def __repr__(self) -> str:
        return f"<Publisher to {self._where}: {self._state}>"

    # -- its life ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect; an error that waiting cannot mend is raised after one attempt."""
        if self._state != "new":
            raise BrokerUnavailable(f"the publisher is {self._state}; make a new one")
        self._state = "open"
        self._engine.start()
        if not self._account.wait_until_connected(self._connect_timeout + 5.0):
            self.close()
            raise BrokerUnavailable(f"no broker answers at {self._where}")

    def close(self, timeout: float | None = None) -> None:
        """Wait for all outcomes, then close the connection; raises as :meth:`flush` does."""
        if self._state != "open":
            return
        try:
            self.flush(timeout)
        finally:
            self._state = "closed"
            self._engine.stop(timeout=4.0)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The caller's own error is what it should see; what was taken in is still given its time.
        try:
            self.close(timeout=self._connect_timeout)
        except (PublishFailed, BrokerUnavailable) as failed:
            error.add_note(str(failed))

    # -- publishing --------------------------------------------------------------------------------

    def publish(
        self,
        body: bytes | str,
        routing_key: str | bytes = "",
        *,
        exchange: str | None = None,
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> int:
        """Take in one message and return its row, the number by which failures name it."""
        target = self._exchange if exchange is None else shortstr(exchange, "the exchange")
        key, checked = shortstr(routing_key, "the routing key"), checked_body(body, self.most_body_bytes, 0)
        with self._calls:
            row = self._account.next_row()
            if self._sequence_header is not None:
                headers = _merged(headers, {self._sequence_header: row})
            encoded = self._encode(properties, headers) if properties or headers else self._plain
            self._take_in([Message(row, target, key, encoded, checked)])
        return row

    def publish_many(
        self,
        bodies: Iterable[bytes | str],
        routing_keys: str | bytes | Iterable[str | bytes] = "",
        *,
        exchange: str | Iterable[str | bytes] | None = None,
        headers: Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None = None,
        **properties: Any,
    ) -> range:
        """Take in a batch, given by columns, and return its rows.

        Keys, exchanges, headers and each property are one value for all, or a column (a list, tuple or Arrow array).
        The whole batch is checked before its first message leaves.
        """
        checked = body_column(bodies, self.most_body_bytes)
        keys = key_column(routing_keys, len(checked))
        targets = key_column(self._exchange if exchange is None else exchange, len(checked), "the exchange")
        with self._calls:
            first = self._account.next_row()
            rows = range(first, first + len(checked))
            encoded = self._encoded_column(rows, headers, properties)
            messages = [
                Message(row, target, key, own, body)
                for row, target, key, own, body in zip(rows, targets, keys, encoded, checked, strict=True)
            ]
            self._take_in(messages)
        return rows

    def _take_in(self, messages: list[Message]) -> None:
        if self._state != "open":
            raise BrokerUnavailable(f"the publisher is {self._state}: use it inside `with Publisher(...)`")
        self._account.take_in(messages, self._engine.wake)

    def flush(self, timeout: float | None = None) -> Totals:
        """Wait until every message has its outcome, and return the totals.

        Raises:
            PublishFailed: messages were not confirmed since the last flush, or not within the timeout.
        """
        settled = self._account.wait_until_settled(timeout)
        totals = self._account.totals()
        news = totals.failed - self._raised
        self._raised = totals.failed
        if not settled:
            raise PublishFailed(
                f"{totals.pending} messages are not confirmed after {timeout} seconds", totals, []
            )
        if news and self._raises:
            failures = self._account.failures
            raise PublishFailed(
                f"{news} of {totals.published} messages were not confirmed; the first: {failures[0]}",
                totals,
                failures,
            )
        return totals

    @property
    def totals(self) -> Totals:
        """The counters at this moment."""
        return self._account.totals()

    @property
    def failures(self) -> list[Failure]:
        """Messages that were not confirmed: the hundred lowest rows of them."""
        return list(self._account.failures)

    @property
    def error(self) -> RabbitChxError | None:
        """Why nothing more can be published; None while that is not so."""
        return self._account.fatal

    # -- checking ----------------------------------------------------------------------------------

    @property
    def most_body_bytes(self) -> int:
        """How long a body may be; before the first connection the largest that any release takes."""
        return self._most_body_bytes or _BODY_LIMIT_BEFORE_4

    @property
    def most_property_bytes(self) -> int:
        """How long a message's properties may be, headers included."""
        return most_bytes(self._frame_max)

    def _learn_limits(self, server_version: str, frame_max: int) -> None:
        self._frame_max = frame_max
        if self._most_body_bytes is None:
            before_4 = server_version.partition(".")[0] in {"", "3"}
            self._most_body_bytes = _BODY_LIMIT_BEFORE_4 if before_4 else _BODY_LIMIT

    def _encode(self, properties: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bytes:
        merged = {**self._properties, **properties}
        if headers is not None:
            merged["headers"] = self._with_own(headers)
        return encode_properties(merged, frame_max=self._frame_max)

    def _encoded_column(self, rows: range, headers: Any, properties: Mapping[str, Any]) -> list[bytes]:
        """The properties of each row; encoded once where no column is among them."""
        columns = {name: column(value, len(rows), name) for name, value in properties.items()}
        varying = {name: found for name, found in columns.items() if isinstance(found, list)}
        constant = {
            **self._properties,
            **{name: value for name, value in columns.items() if name not in varying},
        }
        if headers is not None and not hasattr(headers, "items"):
            varying["headers"] = column(list(values(headers)), len(rows), "headers")
        elif headers is not None:
            constant["headers"] = self._with_own(headers)
        if self._sequence_header is not None:
            given = varying.get("headers", [constant.get("headers")] * len(rows))
            numbered = zip(rows, given, strict=True)
            varying["headers"] = [_merged(own, {self._sequence_header: row}) for row, own in numbered]
        if "headers" in varying and "headers" in self._properties:
            varying["headers"] = [self._with_own(own or {}) for own in varying["headers"]]
        return property_column(constant, varying, len(rows), frame_max=self._frame_max)

    def _with_own(self, headers: Any) -> Any:
        return _merged(self._properties.get("headers"), headers)


def _merged(headers: Any, more: Any) -> Any:
    """Two tables of headers as one; or what is no table, which is refused where it is encoded."""
    for table in (headers, more):
        if table is not None and not hasattr(table, "keys"):
            return table
    return {**(headers or {}), **(more or {})}


def _urls(url: Any, credentials: Credentials | None, tls: ssl.SSLContext | None) -> list[BrokerUrl]:
    """The URLs, with a look at how we are known there and how they are."""
    urls = [url] if isinstance(url, (str, BrokerUrl)) else list(url) if isinstance(url, (list, tuple)) else []
    if not urls or not all(isinstance(one, (str, BrokerUrl)) for one in urls):
        raise InvalidValue("broker's URL", type(url).__name__, "a str, or a list of them")
    parsed = list(map(BrokerUrl.parse, urls))
    for one in parsed:
        check_credentials(credentials, one)
        if one.tls:
            warn_if_unchecked(tls, str(one))
    return parsed


def _needs(exchange: str, fence: str | None) -> Needs:
    """The permissions that publishing takes, as far as it is known before the first message."""
    return Needs(
        configure=set() if fence is None else {("queue", fence)},
        write={("exchange", exchange)} if exchange else set(),
    )


def _name(what: str, value: str | None) -> str | None:
    return None if value is None else shortstr(value, what).decode()


def _at_least_one(what: str, value: int, *, most: int | None = None) -> int:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        raise InvalidValue(what, value, f"a whole number from 1 {f'to {most}' if most else 'on'}")
    return value
