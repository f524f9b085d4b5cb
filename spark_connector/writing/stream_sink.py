"""Write the rows of a partition to a stream or a super stream, each exactly once.

A task uses the same producer name in each attempt and after a restart of the query, and gives each row a publishing id
(`publishing_ids`). A task opens one connection for each stream, because only the leader of a stream accepts messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from rabbit_chx import RabbitChxError, SuperStream
from rabbit_chx.streams import PublishFailed, StreamPublisher
from rabbit_chx.streams.messages.encode import encode_messages
from spark_connector.worker import Task
from spark_connector.writing.between_tasks import WriteJob
from spark_connector.writing.prepare import Prepared
from spark_connector.writing.publishers import FLUSH_SECONDS, last_ids, open_publisher, streams_of
from spark_connector.writing.publishing_ids import HOW_TO_CONTINUE, NotRepeatable, PublishingIds
from spark_connector.writing.rules import Limits
from spark_connector.writing.sinks import TOTALS, PermanentFailure, PublishingSink, stream_errors

MAX_PARTITIONS: Final = 255
"""The number of producer names that a stream remembers."""
_KEYS_KEPT: Final = 100_000
_TOO_MANY_PARTITIONS: Final = (
    f"exactlyOnce=true supports at most {MAX_PARTITIONS} partitions, because a stream remembers {MAX_PARTITIONS} producer names. Spark "
    "does not tell a sink written in Python how many partitions a write has, so the rows of earlier partitions may be stored. "
    "Reduce the partitions with df.coalesce(200) and use another producerName, because this divides the rows differently, or set "
    f"exactlyOnce=false: {HOW_TO_CONTINUE}"
)


class StreamSink(PublishingSink):
    """Publishes to a stream, or to the partitions of a super stream."""

    def __init__(self, job: WriteJob, task: Task) -> None:
        super().__init__(job, task)
        self._write = job.producer_of(task.query_id)
        self._producer = f"{self._write}/{task.partition}" if job.options.exactly_once else None
        self._earlier_partitions = 0
        self._outputs: dict[str, _Output] = {}

    def limits(self) -> Limits:
        """Connect, and return the limits of the broker."""
        if self._producer is not None and self._task.partition >= MAX_PARTITIONS:
            raise PermanentFailure(_TOO_MANY_PARTITIONS)
        with stream_errors():
            return Limits.default(self._output(self._streams[0]).publisher.max_message_bytes)

    def send(self, prepared: Prepared, first: int) -> None:
        """Publish the rows of a batch that the streams do not have yet, and the last ones that they have (`publishing_ids`)."""
        done = 0
        for count, given in self._chunks(prepared):
            messages = list(encode_messages(**given))
            self._check_sizes(messages, lambda row, done=done: first + prepared.rows[done + row])  # type: ignore[misc]
            with stream_errors():
                for stream, some in self._by_stream(messages, given.get("routing_keys")).items():
                    with self._same_rows(stream):
                        self._output(stream).send(some)
            done += count

    def finish(self, *, whole: bool) -> None:
        """Wait for all confirms. Of a whole partition, check that no other writer has used the names, and no stream has more rows."""
        with stream_errors():
            for stream, output in self._outputs.items():
                with self._same_rows(stream):
                    output.finish(whole=whole)
            if self._producer is not None and whole:
                self._check_earlier_attempts(self._producer)
        self._progress.add(self.counts()["confirmed"])

    def close(self) -> None:
        """Close the connections."""
        for output in self._outputs.values():
            with suppress(RabbitChxError):
                output.publisher.close(timeout=FLUSH_SECONDS)

    def counts(self) -> dict[str, int]:
        """The totals of the publishers without the rows that the streams already had, and the number of these."""
        outputs = self._outputs.values()
        totals = [output.publisher.totals for output in outputs]
        counts = {name: sum(getattr(one, name) for one in totals) for name in TOTALS}
        for name in ("published", "confirmed"):
            counts[name] -= sum(one.duplicates for one in totals)
        counts["already_stored"] = sum(output.already_stored for output in outputs)
        return {**counts, "earlier_partitions": self._earlier_partitions}

    @property
    def _headers(self) -> dict[str, Any]:
        found = self._task.headers
        if self._producer is not None:
            # Each attempt must send identical messages: the publishing ids contain a checksum of them.
            del found["x-spark-attempt"]
        return found

    # -- the streams

    @cached_property
    def _streams(self) -> Sequence[str]:
        return streams_of(self._options)

    @cached_property
    def _stream_of(self) -> Callable[[bytes], str]:
        """A cached function that returns the super stream's partition for a routing key."""
        route = SuperStream(self._streams).route
        return lru_cache(_KEYS_KEPT)(lambda key: route(key.decode()))

    def _output(self, stream: str) -> _Output:
        if stream not in self._outputs:
            name = self._task.connection_name(self._options.connection_name)
            self._outputs[stream] = output = _Output(
                open_publisher(self._options, stream, self._producer, name), None
            )
            if self._producer is not None:
                with self._same_rows(stream):
                    output.ids = self._ids(output.publisher.sequence())
        return self._outputs[stream]

    def _ids(self, known: int) -> PublishingIds:
        return PublishingIds(int(self._task.batch_id) if self._task.batch_id else None, known)

    # -- earlier attempts

    def _check_earlier_attempts(self, producer: str) -> None:
        """Check that no earlier attempt has stored rows that this one does not have. Partition 0 also looks for more partitions.

        Not always: on a first attempt, asking a thousand streams would take longer than a small task.
        """
        named = self._options.producer_name is not None and not self._task.query_id
        stored = any(output.ids is not None and output.ids.stored for output in self._outputs.values())
        if not (self._task.attempt or self._task.may_repeat_a_run() or named or stored):
            return
        others = [stream for stream in self._streams if stream not in self._outputs]
        for (stream, _), known in last_ids(self._options, others, [producer]).items():
            with self._same_rows(stream):
                self._ids(known).end()
        if self._task.partition == 0:
            self._earlier_partitions = self._count_partitions()

    def _count_partitions(self) -> int:
        """How many partitions this attempt and earlier ones had at least, by the names that have rows of this batch."""
        numbers = {f"{self._write}/{number}": number for number in range(MAX_PARTITIONS)}
        known = last_ids(self._options, self._streams, list(numbers))
        return max(
            (numbers[name] + 1 for (_, name), last in known.items() if self._has_rows(last)), default=0
        )

    def _has_rows(self, last: int) -> bool:
        try:
            return self._ids(last).stored > 0
        except NotRepeatable:  # rows of a later micro-batch
            return True

    @contextmanager
    def _same_rows(self, stream: str) -> Iterator[None]:
        """Turn `NotRepeatable` into a permanent failure that names the partition and the stream."""
        try:
            yield
        except NotRepeatable as error:
            self._earlier_partitions = self._count_partitions()
            raise PermanentFailure(
                f"the rows of partition {self._task.partition} for stream {stream!r} {error} (producer name {self._producer!r}). "
                f"{error.advice}"
            ) from None

    # -- the messages

    def _by_stream(self, messages: list[bytes], keys: Any) -> Mapping[str, list[bytes]]:
        if self._options.super_stream is None:
            return {self._streams[0]: messages}
        if isinstance(keys, str):
            return {self._stream_of(keys.encode()): messages}
        found: dict[str, list[bytes]] = defaultdict(list)
        for stream, message in zip(map(self._stream_of, keys), messages, strict=True):
            found[stream].append(message)
        return found

    def _check_sizes(self, messages: Sequence[bytes], row_of: Callable[[int], int]) -> None:
        most = self._output(self._streams[0]).publisher.max_message_bytes
        if most is None or max(map(len, messages), default=0) <= most:
            return
        number = next(number for number, message in enumerate(messages) if len(message) > most)
        raise PermanentFailure(
            f"row {row_of(number)} of partition {self._task.partition}: the message has {len(messages[number])} bytes, but a "
            f"frame can contain at most {most} (stream.frame_max in rabbitmq.conf)"
        )


@dataclass
class _Output:
    """The publisher of one stream, and the ids of its rows unless exactlyOnce is false."""

    publisher: StreamPublisher
    ids: PublishingIds | None
    skipped: int = 0

    def __post_init__(self) -> None:
        self._bulk = self.publisher.bulk()

    def send(self, messages: Sequence[bytes]) -> None:
        if self.ids is None:
            self._bulk._add_encoded(messages)  # only this sink encodes by itself
            return
        new = self.ids.of(
            messages
        )  # without pairs: a tuple for each row would keep the garbage collector busy
        self.skipped += len(messages) - len(new)
        if new:
            self._bulk._add_encoded(messages[len(messages) - len(new) :], new)

    @property
    def already_stored(self) -> int:
        """The rows that the stream has from earlier attempts, those that this one did not come to included."""
        if self.ids is not None and self.ids.rows < self.ids.stored:
            return self.ids.stored
        return self.skipped + self.publisher.totals.duplicates

    def finish(self, *, whole: bool) -> None:
        try:
            self._bulk.flush()
        except PublishFailed as failed:
            raise self._bulk.error or failed from None
        if self.ids is None or not whole:
            return
        self.ids.end()
        if self.ids.last != self.publisher.sequence():
            raise NotRepeatable("are mixed with rows of another writer that uses the same name")
