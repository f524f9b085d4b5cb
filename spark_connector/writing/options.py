"""The options of a write with ``format("rabbitmq")``: the fields of `WriteOptions` are their table.

This module imports neither PySpark nor Arrow and opens no socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from rabbit_chx import InvalidValue
from rabbit_chx.publishing import BrokerUrl
from spark_connector.connection_options import (
    CONNECTION,
    STREAMS,
    TLS,
    AmqpOptions,
    ConnectionOptions,
    StreamOptions,
    check_one_target,
    targets_in,
)
from spark_connector.option_table import (
    MAX_SHORT_TEXT,
    check_short_text,
    choice,
    flag,
    integer,
    invalid_option,
    option_name,
    options_of,
    text,
)
from spark_connector.writing.rules import Layout, layout_of

_TARGET, _DELIVERY, _SAFETY = "Target", "Delivery", "Safety"
_STREAM_TARGETS: Final = ("stream", "super_stream")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(AmqpOptions, StreamOptions):
    """The options of one write, checked."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **ConnectionOptions.INSTEAD,
        "path": "Call save() or start() without a path; the option exchange says where rows go",
        "queue": 'To write to one queue, use the default exchange: option("exchange", "").option("routingKey", NAME)',
        "topic": "Use exchange, stream or superStream",
        "includeheaders": "Leave it out: a column headers is always sent",
        "mandatory": "Leave it out: every message is mandatory",
        "orderby": "Sort before the write: spark_connector.order_for(df, key=..., seq=...)",
        "onreturned": "A returned message is sent again for retryTimeoutMs, then the write fails and names it",
        "messageid": "Add a column message_id: an id that Spark generates would change with each attempt",
    }

    blocked_timeout_ms: int = integer(
        CONNECTION, 900_000, "How long to wait while the broker has a memory or disk alarm."
    )
    exchange: str | None = text(_TARGET, "Exchange for all rows, unless there is a column exchange.")
    routing_key: str | None = text(_TARGET, "Routing key for all rows, unless there is a column routing_key.")
    management_url: str | None = text(
        _TARGET,
        "URL of the management API, to compare the bindings of exchange before and after a batch. If a queue was deleted, the batch fails; "
        "the log warns about other changes. Default: no comparison.",
        secret=True,
    )
    stream: str | None = text(_TARGET, "Stream for all rows, instead of an exchange.")
    super_stream: str | None = text(
        _TARGET,
        "Super stream for all rows. The routing key selects the partition, as in RabbitMQ's stream clients.",
    )
    check_exchange: bool = flag(
        _TARGET,
        "Before a batch, check on the driver that the exchange or stream exists and that the user may publish to it.",
        default=True,
    )
    exactly_once: bool = flag(
        STREAMS,
        "Store each row in a stream once, even if tasks run again. false stores rows at least once and accepts any order.",
        default=True,
    )
    producer_name: str | None = text(
        STREAMS,
        "The name under which streams remember the rows of a write. Default: the id of the query, or a new name for each "
        "batch. A failed batch that runs again under the same name, in the same partitions, adds only the missing rows.",
    )
    persistent: bool = flag(_DELIVERY, "Messages survive a restart of the broker.", default=True)
    max_in_flight: int = integer(_DELIVERY, 5_000, "How many messages of a task may be unconfirmed.")
    confirm_timeout_ms: int = integer(_DELIVERY, 120_000, "How long to wait if the broker confirms nothing.")
    retry_timeout_ms: int = integer(
        _DELIVERY,
        10_000,
        "How long to resend a message that no queue accepts. The write fails a few seconds after that, or after several times "
        "that if a task has more such rows than maxInFlight.",
    )
    max_rate_per_task: int = integer(_DELIVERY, 0, "Rows per second; 0 means no limit.", least=0)
    task_headers: bool = flag(
        _DELIVERY,
        "Add the headers x-spark-query-id, -batch-id, -partition and -attempt, the last one not to streams with "
        "exactlyOnce=true.",
        default=False,
    )
    max_message_bytes: int | None = integer(
        _DELIVERY,
        None,
        "The broker's max_message_size. Default 16 MiB, or 128 MiB before RabbitMQ 4; split_valid and dryRun assume 16 "
        "MiB. For streams, it replaces stream.frame_max in split_valid and dryRun (default 1 MiB); a write ignores it.",
    )
    invalid_rows: str = choice(
        _SAFETY, "drop leaves invalid rows out, counts them and reports the first five.", "fail", "drop"
    )
    fail_fast: bool = flag(
        _SAFETY,
        "An error that no retry can repair stops the other tasks. false lets them write their rows first.",
        default=True,
    )
    fail_on_data_loss: bool = flag(
        _SAFETY,
        "With managementUrl, fail if a queue of exchange was deleted during a batch, with the rows in it; false logs a warning.",
        default=True,
    )
    null_value: str = choice(
        _SAFETY, "A null value is an invalid row (fail) or an empty message.", "fail", "empty"
    )
    ignore_unknown_columns: bool = flag(_SAFETY, "Leave unknown columns out.", default=False)
    allow_speculation: bool = flag(
        _SAFETY, "Write even though speculative execution publishes rows twice.", default=False
    )
    dry_run: bool = flag(
        _SAFETY, "Check options, rows, connection and permission; publish nothing.", default=False
    )

    @property
    def connection(self) -> tuple[Any, ...]:
        """Equal for writes that can share a connection; it contains secrets."""
        return tuple(
            getattr(self, one.name)
            for one in fields(self)
            if one.metadata["shown"]["group"] in _OF_CONNECTION
        )

    def layout_of(self, schema: Any) -> Layout:
        """Check the columns of a PySpark ``StructType``: some are replaced by options, some have no effect on streams."""
        names = ("exchange", "routing_key")
        given = frozenset(name for name in names if getattr(self, name) is not None)
        to_super_stream = ("exchange",) if self.super_stream is not None else ()
        optional = frozenset(names if self.stream is not None else to_super_stream)
        return layout_of(schema, ignore_unknown=self.ignore_unknown_columns, given=given, optional=optional)

    @property
    def to_streams(self) -> bool:
        """Whether the rows go to a stream or a super stream."""
        return any(getattr(self, key) is not None for key in _STREAM_TARGETS)

    @property
    def max_body_bytes(self) -> int | None:
        """The limit to assume without asking a broker: for streams, the default size of a frame; for exchanges, None means the default."""
        return self.max_message_bytes or (1 << 20 if self.to_streams else None)

    @property
    def exactly_once_to_streams(self) -> bool:
        """Whether streams drop the rows that they already have."""
        return self.to_streams and self.exactly_once

    def check_speculation(self, *, on: bool) -> None:
        """Raise if speculative execution is on, and a second attempt of a slow task would publish its rows again."""
        if on and not (self.allow_speculation or self.exactly_once_to_streams):
            raise InvalidValue(
                "setting spark.speculation",
                "true",
                "false",
                "A second attempt of a slow task would publish its rows again. Turn it off for this job, or set "
                "allowSpeculation=true if consumers can handle duplicates",
            )

    def address(self, url: str | BrokerUrl) -> BrokerUrl:
        """Parse a URL as the address of the protocol that the target needs."""
        return super().address(url) if self.to_streams else BrokerUrl.parse(url)

    @classmethod
    def applicable_defaults(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """Also leave out the defaults that have no effect on the target of the write."""
        found = super().applicable_defaults(given, defaults)
        to_streams = set(_STREAM_TARGETS) & set(targets_in((*given, *found)))
        other = {option_name(key).lower() for key in (_EXCHANGES_ONLY if to_streams else _STREAMS_ONLY)}
        if to_streams:
            other.add("maxmessagebytes")  # of exchanges, whose messages may be larger
        if "exchange" not in map(str.lower, (*given, *found)):
            other.add("managementurl")
        return {name: value for name, value in found.items() if name.lower() not in other}

    def _check(self, found: set[str]) -> None:
        check_one_target("target of a write", map(option_name, found))
        other = sorted(found & (_EXCHANGES_ONLY if self.to_streams else _STREAMS_ONLY))
        if other:
            this, that = "streams", "exchanges"
            if not self.to_streams:
                this, that = that, this
            names = ", ".join(map(option_name, other))
            hint = f"Remove what only writes to {that} have"
            raise InvalidValue(f"options for a write to {this}", names, f"options of a write to {this}", hint)
        super()._check(found)
        if self.management_url is not None and self.exchange is None:
            raise InvalidValue(
                "option managementUrl",
                "a write whose exchange is a column",
                "the option exchange as well",
                "The bindings of one exchange are compared before and after each batch",
            )
        for key in ("exchange", "routing_key", "stream", "super_stream"):
            if getattr(self, key) is not None:
                check_short_text(getattr(self, key), f"option {option_name(key)}")
        name = self.producer_name
        if name is not None and not 0 < len(name.encode(errors="surrogatepass")) <= _MAX_PRODUCER:
            raise invalid_option("producer_name", name, f"text of 1 to {_MAX_PRODUCER} bytes in UTF-8")


_MAX_PRODUCER: Final = MAX_SHORT_TEXT - len("/254")
"""Bytes of a name to which the tasks add the numbers of their partitions."""
_OF_CONNECTION: Final = {CONNECTION, TLS, _DELIVERY}
_EXCHANGES_ONLY: Final = {
    *("heartbeat_seconds", "blocked_timeout_ms", "management_url", "persistent", "max_in_flight"),
    *("retry_timeout_ms", "fail_on_data_loss"),
}
"""Options that have no effect on streams."""
_STREAMS_ONLY: Final = {"stream_port", "follow_advertised", "exactly_once", "producer_name"}

OPTIONS: Final = options_of(WriteOptions)
"""All options of a write, for documentation."""
