"""Over Spark Connect, forged rows are read and written as everywhere else, and errors have their sentence and no password."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pika import BasicProperties

from rabbit_chx.streams import StreamReader, connect
from rabbit_chx.streams.messages.stored import Undecodable
from tests.broker.stream_scene import settle
from tests.broker.test_forged_amqp10 import STORABLE
from tests.broker.test_stream_group_forged import CHOSEN, MEGABYTE
from tests.canary import canary, found
from tests.faults.forgeries import FORGERIES
from tests.faults.test_forged_properties import PROPERTIES
from tests.inbox import Inbox
from tests.patience import PATIENCE
from tests.programs import ran
from tests.property.hostile import drawn
from tests.property.test_stream_parking_laws import stored
from tests.queues import confirming_channel
from tests.spark.streams import Streams
from tests.spark.test_connect import ENVIRONMENT
from tests.stream_forgeries import MESSAGES, publish_entry
from tests.users import a_user

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.proof,
    pytest.mark.timeout(900),
    pytest.mark.pyspark("4.2", "it has no Trigger.AvailableNow for Python sources"),
]

CUT = b"\0\x53\x75"
PASSWORD, WRONG = canary("password"), canary("wrong")
REFUSED = "rejected the user name or password"


@pytest.fixture(scope="module")
def sources(rabbitmq_broker):
    """A stream and a queue with forged messages, the valid offsets of the stream, and the number of messages of the queue."""
    messages = [each for each in drawn(MESSAGES | STORABLE, 60) if len(each) <= MEGABYTE]
    properties = [*FORGERIES.values(), *drawn(PROPERTIES, 60)]
    with Streams(rabbitmq_broker.url) as streams, confirming_channel(rabbitmq_broker) as channel:
        stream, queue = streams.stream(), streams.stream()[::-1]
        with connect(rabbitmq_broker.stream_url) as connection:
            publisher = connection._declare_publisher(stream)
            entries = [*CHOSEN, CUT, *messages]
            for number, each in enumerate(entries):
                publish_entry(connection, publisher, number, each)
            refused = settle(connection, len(entries))
        entries = [each for number, each in enumerate(entries) if number not in refused]
        valid = [offset for offset, each in enumerate(stored(entries)) if not isinstance(each, Undecodable)]
        assert 30 < len(valid) < len(entries)
        channel.queue_declare(queue, durable=True)
        for number, each in enumerate(properties):
            if isinstance(each, BasicProperties):
                each.expiration = None
            channel.basic_publish("", queue, b"%d" % number, each)
        yield stream, valid, queue, len(properties)
        channel.queue_delete(queue)


@pytest.fixture(scope="module")
def failing(rabbitmq_broker, sources):
    """The sentence of each error, how to provoke it, and the options with secrets."""
    parts, (stream, *_) = urlsplit(rabbitmq_broker.url), sources
    port = str(urlsplit(rabbitmq_broker.stream_url).port)
    with (
        a_user(rabbitmq_broker, "", ".*", ".*", password=PASSWORD) as user,
        Inbox(rabbitmq_broker.url) as inbox,
    ):
        address = f"{parts.hostname}:{parts.port}"
        right = {"url": f"amqp://{user.name}:{PASSWORD}@{address}"}
        wrong = {"url": f"amqp://{user.name}:{WRONG}@{address}"}
        nowhere = {"url": f"amqp://{user.name}:{WRONG}@127.0.0.1:1", "reconnectTimeoutMs": "500"}
        target, source = {"exchange": inbox.exchange}, {"stream": stream, "streamPort": port}
        yield {
            "a message that is not valid": ("invalidRows=drop", "read", right | source),
            "a message that is not valid, in a query": (
                *("invalidRows=drop", "query"),
                right | source | {"startingOffsets": "earliest"},
            ),
            "invalid rows": ("use split_valid(df) to separate invalid rows", "write again", right | target),
            "a wrong password of a read": (REFUSED, "read", wrong | source),
            "a wrong password of a write": (REFUSED, "write", wrong | target),
            "a wrong password of a task": (REFUSED, "write", wrong | target | {"checkExchange": "false"}),
            "a wrong password of a query": (REFUSED, "query", wrong | source),
            "a wrong password of a query of a queue": (REFUSED, "query", wrong | {"queue": "missing"}),
            "a queue that is missing": ("expected an existing queue", "query", right | {"queue": "missing"}),
            "no broker for a read": ("Connection refused", "read", nowhere | source | {"streamPort": "1"}),
            "no broker for a write": ("Connection refused", "write", nowhere | target),
            "an unknown option": ("Did you mean password?", "read", right | source | {"pasword": WRONG}),
            "two passwords": ("expected one of them", "write", right | target | {"password": WRONG}),
            "no URL": ("invalid broker URL", "read", source | {"url": f"amqp//{user.name}:{WRONG}@{address}"}),
        }  # fmt: skip


@pytest.fixture(scope="module")
def seen(rabbitmq_broker, sources, failing, tmp_path_factory):
    """What the program has left, and the output of Spark's server, which runs on the same machine."""
    pytest.importorskip("grpc")
    folder = tmp_path_factory.mktemp("seen")
    stream, _, queue, _ = sources
    url, port = rabbitmq_broker.url, str(urlsplit(rabbitmq_broker.stream_url).port)
    with Inbox(url) as inbox, Streams(url) as streams:
        copy = streams.stream()
        targets = [{"url": url, "exchange": inbox.exchange}, {"url": url, "streamPort": port, "stream": copy}]
        task = {
            "folder": str(folder),
            "stream": {"url": url, "streamPort": port, "stream": stream, "invalidRows": "drop"},
            "queue": {"url": url, "queue": queue},
            "targets": targets,
            "errors": [[name, *given] for name, (_, *given) in failing.items()],
        }
        done = ran(
            [sys.executable, "-W", "ignore", "-m", "tests.spark.connect_forged"],
            input=json.dumps(task) + "\n",
            env=os.environ | ENVIRONMENT,
            timeout=10 * PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with StreamReader(rabbitmq_broker.stream_url, copy) as reader:
            bounds = reader.bounds()
            arrived = [len(inbox), sum(each.num_rows for each in reader.read(bounds.first, bounds.end))]
    return folder, json.loads((folder / "answers").read_text()), arrived, done.stdout + done.stderr


def table(folder: Path, name: str) -> pa.Table:
    with pa.memory_map(str(folder / name)) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.mark.parametrize("way", ["batch", "query"])
def test_forged_rows_of_a_stream_are_those_that_a_reader_returns(rabbitmq_broker, sources, seen, way) -> None:
    stream, valid, *_ = sources
    rows = table(seen[0], way).sort_by("offset")
    assert rows["offset"].to_pylist() == valid
    expected = []
    with StreamReader(rabbitmq_broker.stream_url, stream) as reader:
        for _, numbers in groupby(enumerate(valid), lambda pair: pair[1] - pair[0]):
            offsets = [offset for _, offset in numbers]
            expected += reader.read(offsets[0], offsets[-1] + 1)
    same = pa.Table.from_batches(expected)
    for name in rows.column_names:
        column = same["body" if name == "value" else name]
        assert rows[name].to_pylist() == column.to_pylist(), name


def test_forged_rows_of_a_queue_are_read_once(sources, seen) -> None:
    *_, count = sources
    assert sorted(map(int, table(seen[0], "queue")["value"].to_pylist())) == list(range(count))


def test_rows_are_written_again_except_invalid_ones(sources, seen) -> None:
    _, valid, *_ = sources
    _, answers, arrived, _ = seen
    for counts, count in zip(answers["again"], arrived, strict=True):
        assert counts["valid"] + counts["invalid"] == len(valid)
        assert count == counts["valid"] > 0


def test_each_error_has_its_sentence_and_no_password(failing, seen) -> None:
    _, answers, _, _ = seen
    for name, (sentence, *_) in failing.items():
        text = answers["errors"][name]
        assert re.search(
            rf"^(rabbit_chx|spark_connector)\.[\w.]+: .*{re.escape(sentence)}", text, re.MULTILINE
        ), text
        assert found(text, [PASSWORD, WRONG]) == [], name
