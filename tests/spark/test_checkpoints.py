"""A query that restarts with the checkpoint of another source ends with an error that names both sources."""

from __future__ import annotations

from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.patience import PATIENCE
from tests.queues import confirming_channel
from tests.spark.test_batch_write import failure

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def sources(broker, streams):
    """Two queues and a stream, each with five messages, as options of a read."""
    port, names = str(urlsplit(broker.stream_url).port), [f"checkpoint-{uuid4().hex[:6]}" for _ in range(2)]
    stream = streams.stream()
    with confirming_channel(broker) as channel:
        for name in names:
            channel.queue_declare(name, durable=True)
            streams.fill(name, [b"%d" % number for number in range(5)])
        streams.fill(stream, [b"%d" % number for number in range(5)])
        yield {
            "queue": {"queue": names[0]},
            "another queue": {"queue": names[1]},
            "stream": {"stream": stream, "streamPort": port, "startingOffsets": "earliest"},
        }
        for name in names:
            channel.queue_delete(name)


@pytest.mark.long
def test_a_checkpoint_of_another_source_is_an_error_that_names_both(spark, broker, sources, tmp_path):
    rows: list[int] = []

    def run(source, checkpoint):
        frame = spark.readStream.format("rabbitmq").options(url=broker.url, **sources[source]).load()
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: rows.append(len(batch.collect())))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(2 * PATIENCE)

    names = {kind: source.get("queue") or source["stream"] for kind, source in sources.items()}
    for kind, owner in (("stream", f"streams ['{names['stream']}']"), ("queue", f"queue '{names['queue']}'")):
        run(kind, kind)
        for other in sources.keys() - {kind}:
            said = failure(lambda other=other, kind=kind: run(other, kind))
            assert f"invalid checkpoint of the query: got offsets of {owner}, expected offsets of" in said
            assert (
                f"expected offsets of {'streams' if other == 'stream' else f'queue {names[other]!r}'}. "
                in said
            )
    assert sum(rows) == 10
