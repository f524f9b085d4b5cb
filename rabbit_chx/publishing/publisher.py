"""Publish messages in bulk, with confirms and an outcome for each message.

    with Publisher("amqp://user:password@host", exchange="orders") as publisher:
        publisher.publish(b"...", "customer-42")
        publisher.publish_many(bodies, keys)
    print(publisher.totals)

Messages are persistent and mandatory, and each one is confirmed; there is no option to change that. A call returns when
its messages are accepted, and waits while too many are in flight. ``flush``, or the end of the ``with`` block, waits
until every message has its outcome and raises `PublishFailed` if one was not confirmed.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Self

from rabbit_chx.broker.amqp import parameters_of
from rabbit_chx.broker.credentials import Credentials, check_credentials
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.tls import warn_if_unchecked
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, PublishFailed, RabbitChxError
from rabbit_chx.hashing import shortstr
from rabbit_chx.publishing.attempts import Address, Timeouts
from rabbit_chx.publishing.batch_columns import (
    body_column,
    checked_body,
    column,
    key_column,
    property_column,
    values,
)
from rabbit_chx.publishing.messages import Failure, OutgoingMessage, Totals
from rabbit_chx.publishing.outbox import Outbox
from rabbit_chx.publishing.properties import DEFAULT_FRAME_MAX, encode_properties, max_property_bytes
from rabbit_chx.publishing.sender import Sender
from rabbit_chx.urls import BrokerUrl

_TIMEOUTS: Final = Timeouts()
_MAX_IN_FLIGHT: Final = 5_000
_MAX_BYTES_IN_FLIGHT: Final = 32 << 20
_MAX_MESSAGE: Final = 16 << 20
_MAX_MESSAGE_BEFORE_4: Final = 128 << 20
_CLOSE_SECONDS: Final = 4.0
_GRACE_SECONDS: Final = 5.0
"""By how much an attempt to connect may exceed its share of the time: the sender gives up before `open` does."""


class Publisher:
    """Publishes to a broker, or to the first of several that accepts the connection.

    Args:
        url: an AMQP URL, or several that are tried in turn.
        exchange: where to publish messages that name no exchange themselves.
        properties: for every message, such as ``{"content_type": "application/json"}``.
        max_in_flight: messages that may be unconfirmed before ``publish`` waits. Bodies of more than 32 MiB in total make
            it wait, too.
        max_message_bytes: the broker's ``max_message_size``, which AMQP does not report; by default 16 MiB on
            RabbitMQ 4 and 128 MiB before.
        timeouts: how long to keep trying.
        heartbeat: seconds; the publisher's thread sends them, even while the caller is busy.
        credentials: user and password that are not in the URL or that expire: a function that is called for each
            connection, or the ``Path`` of a file that holds the password of the URL's user and is read for each connection.
        tls: the context for amqps; by default the certificate and the host name are verified.
        name: the connection's name in the broker's list.
        fence: the name of an exclusive queue that each connection declares, so that nothing is sent again before the
            broker has dropped the old connection; needs permission to configure that name.
        sequence_header: a header that holds the row, so that a returned message is identified even among
            otherwise identical ones.
        around_batch: called on the publisher's thread with the number of messages that are about to be sent; returns a
            context manager around their sending, for a tracing span for example.
        on_failure: called on the publisher's thread for each message that was not confirmed; ``flush`` then does not
            raise for them, and returns after the calls.

    Hooks (``around_batch`` and ``on_failure``) must not publish with this publisher, flush or close it: these methods wait
    for the thread that runs the hooks, and raise `RabbitChxError` on it. Hand the message to another thread, or publish it
    after ``flush``.

    Order: messages are sent in the order of the calls. After a nack, a return or a reconnect, the messages that were in
    flight may arrive twice or out of order; ``totals.resent`` counts them.
    """

    def __init__(
        self,
        url: str | BrokerUrl | Sequence[str | BrokerUrl],
        exchange: str = "",
        *,
        properties: Mapping[str, Any] | None = None,
        max_in_flight: int = _MAX_IN_FLIGHT,
        max_message_bytes: int | None = None,
        timeouts: Timeouts = _TIMEOUTS,
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
        self._open_seconds = timeouts.connect + _GRACE_SECONDS * len(urls)
        self._state, self._frame_max = "new", DEFAULT_FRAME_MAX
        self._exchange = shortstr(exchange, "exchange")
        self._properties = dict(properties or {})
        self._sequence_header = _name("sequence header", sequence_header)
        self._plain, self._plain_fits = self._encode({}, None), True
        self._calls = threading.Lock()  # one caller at a time numbers its rows
        self._max_message = max_message_bytes and _positive("max_message_bytes", max_message_bytes)
        self._timeouts = timeouts
        self._raises, self._raised = on_failure is None, 0
        self._outbox = Outbox(
            max_messages=_positive("max_in_flight", max_in_flight),
            max_bytes=_MAX_BYTES_IN_FLIGHT,
            on_failure=on_failure,
        )
        parameters = partial(
            parameters_of,
            name=name,
            heartbeat=_positive("heartbeat", heartbeat, most=65_535),
            blocked_timeout=timeouts.blocked,
            credentials=credentials,
            tls=tls,
        )
        self._sender = Sender(
            [Address(str(one), partial(parameters, one)) for one in urls],
            self._outbox,
            timeouts,
            fence=_name("fence", fence),
            # As far as they are known before the first message.
            needs=Needs(
                configure={("queue", fence)} if fence is not None else set(),
                write={("exchange", exchange)} if exchange else set(),
            ),
            on_limits=self._learn_limits,
            around_batch=around_batch,
        )

    def __repr__(self) -> str:
        return f"<Publisher to {self._where}: {self._state}>"

    # -- opening and closing -----------------------------------------------------------------------

    def open(self) -> None:
        """Connect; an error that waiting cannot fix is raised after one attempt."""
        if self._state != "new":
            raise BrokerUnavailable(f"the publisher is {self._state}: create a new one")
        self._state = "open"
        self._sender.start()
        if not self._outbox.wait_until_connected(self._open_seconds):
            self.close()
            raise BrokerUnavailable(f"no broker answers at {self._where}")

    def close(self, timeout: float | None = None) -> None:
        """Wait until every message has its outcome, then close the connection; raise as :meth:`flush` does."""
        self._refuse_hooks()
        if self._state != "open":
            return
        try:
            self.flush(timeout)
        finally:
            self._state = "closed"
            self._sender.stop(timeout=_CLOSE_SECONDS)

    def stop_accepting(self) -> None:
        """Make ``publish`` raise `BrokerUnavailable` from now on, even where it waits; safe in a signal handler."""
        self._outbox.stop_accepting()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
            return
        # Raise the caller's own error, but give accepted messages time to be confirmed.
        try:
            self.close(timeout=self._timeouts.connect)
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
        """Accept one message and return its row number, which identifies it in failures."""
        self._refuse_hooks()
        target = self._exchange if exchange is None else shortstr(exchange, "exchange")
        key, checked = shortstr(routing_key, "routing key"), checked_body(body, self.max_message_bytes, 0)
        with self._calls:
            row = self._outbox.next_row()
            if self._sequence_header is not None:
                headers = _merged(headers, {self._sequence_header: row})
            plain = self._plain_fits and not (properties or headers)
            encoded = self._plain if plain else self._encode(properties, headers)
            self._add([OutgoingMessage(row, target, key, encoded, checked)])
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
        """Accept a batch given by columns and return its rows.

        Keys, exchanges, headers and each property are one value for all rows, or a column (a list, tuple or Arrow array).
        The whole batch is checked before its first message is sent.
        """
        self._refuse_hooks()
        checked = body_column(bodies, self.max_message_bytes)
        keys = key_column(routing_keys, len(checked))
        targets = key_column(self._exchange if exchange is None else exchange, len(checked), "exchange")
        with self._calls:
            first = self._outbox.next_row()
            rows = range(first, first + len(checked))
            encoded = self._encoded_column(rows, headers, properties)
            messages = [
                OutgoingMessage(row, target, key, own, body)
                for row, target, key, own, body in zip(rows, targets, keys, encoded, checked, strict=True)
            ]
            self._add(messages)
        return rows

    def _add(self, messages: list[OutgoingMessage]) -> None:
        if self._state != "open":
            raise BrokerUnavailable(f"the publisher is {self._state}: use it inside `with Publisher(...)`")
        self._outbox.add(messages, self._sender.wake)

    def flush(self, timeout: float | None = None) -> Totals:
        """Wait until every message has its outcome and return the totals.

        Raises:
            PublishFailed: messages were not confirmed since the last flush, or not within the timeout.
        """
        self._refuse_hooks()
        settled = self._outbox.wait_until_settled(timeout)
        totals = self._outbox.totals()
        new_failures = totals.failed - self._raised if self._raises else 0
        self._raised = totals.failed
        failures = self._outbox.failures if new_failures else []
        problems: list[str] = []
        if failures:
            problems.append(
                f"{new_failures} of {totals.published} messages were not confirmed; the first: {failures[0]}"
            )
        if not settled:
            problems.append(f"{totals.pending} messages are unconfirmed after {timeout} seconds")
        if problems:
            raise PublishFailed("; ".join(problems), totals, failures)
        return totals

    def _refuse_hooks(self) -> None:
        if threading.get_ident() == self._sender.thread_id:
            raise RabbitChxError(
                "a hook of the publisher must not publish with it, flush or close it: these wait for the thread that runs "
                "the hook"
            )

    @property
    def totals(self) -> Totals:
        """The current counters."""
        return self._outbox.totals()

    @property
    def failures(self) -> list[Failure]:
        """The hundred messages with the lowest rows that were not confirmed."""
        return list(self._outbox.failures)

    @property
    def confirmed_before(self) -> int:
        """A row before which every message is confirmed: exact when nothing is pending, otherwise at most a moment old."""
        return self._outbox.confirmed_before()

    @property
    def error(self) -> RabbitChxError | None:
        """Why nothing more can be published; None while publishing is possible."""
        return self._outbox.error

    # -- limits ------------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        """The largest body that is accepted; before the first connection the largest that any release accepts."""
        return self._max_message or _MAX_MESSAGE_BEFORE_4

    @property
    def max_property_bytes(self) -> int:
        """How long the properties of a message may be, headers included."""
        return max_property_bytes(self._frame_max)

    def _learn_limits(self, server_version: str, frame_max: int) -> None:
        self._frame_max = frame_max
        # If they do not fit, `publish` encodes them again for each message, which raises.
        self._plain_fits = len(self._plain) <= self.max_property_bytes
        if self._max_message is None:
            before_4 = server_version.partition(".")[0] in {"", "3"}
            self._max_message = _MAX_MESSAGE_BEFORE_4 if before_4 else _MAX_MESSAGE

    # -- properties --------------------------------------------------------------------------------

    def _encode(self, properties: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bytes:
        merged = {**self._properties, **properties}
        if headers is not None:
            merged["headers"] = self._with_own(headers)
        return encode_properties(merged, frame_max=self._frame_max)

    def _encoded_column(self, rows: range, headers: Any, properties: Mapping[str, Any]) -> list[bytes]:
        """Encode the properties of each row; only once if all rows have the same."""
        columns = {name: column(value, len(rows), name) for name, value in properties.items()}
        varying = {name: found for name, found in columns.items() if isinstance(found, list)}
        constant = self._properties | {name: columns[name] for name in columns.keys() - varying.keys()}
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
    """Merge two mappings of headers; return anything else unchanged, to be refused by the encoder."""
    for table in (headers, more):
        if table is not None and not hasattr(table, "keys"):
            return table
    return {**(headers or {}), **(more or {})}


def _urls(url: Any, credentials: Credentials | None, tls: ssl.SSLContext | None) -> list[BrokerUrl]:
    """Return the parsed URLs, after a check of the credentials and the TLS context for each."""
    urls = [url] if isinstance(url, (str, BrokerUrl)) else list(url) if isinstance(url, (list, tuple)) else []
    if not urls or not all(isinstance(one, (str, BrokerUrl)) for one in urls):
        raise InvalidValue("broker URL", type(url).__name__, "a str or a list of str")
    parsed = list(map(BrokerUrl.parse, urls))
    for one in parsed:
        check_credentials(credentials, one)
        if one.tls:
            warn_if_unchecked(tls, str(one))
    return parsed


def _name(what: str, value: str | None) -> str | None:
    return None if value is None else shortstr(value, what).decode()


def _positive(what: str, value: int, *, most: int | None = None) -> int:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        raise InvalidValue(
            what, value, f"an integer from 1 to {most}" if most else "an integer greater than 0"
        )
    return value
