"""Which streams of an exchange the driver finds, and how often it lists them, with a small local server."""

from __future__ import annotations

import pytest

from spark_connector import stream_access
from spark_connector.read_options import ReadOptions
from spark_connector.stream_access import StreamAccess
from tests.unit.test_management import BINDING_COLUMNS, FLAGS, QUEUE_COLUMNS, serving

BINDING = {"source": "top", "routing_key": "", "arguments": {}}
TYPES = {"s0": "stream", "s1": "stream", "q": "quorum"}


def binding(source: str, destination: str, kind: str = "queue") -> dict[str, object]:
    return {**BINDING, "source": source, "destination": destination, "destination_type": kind}


def queue(name: str) -> dict[str, object]:
    return {"name": name, "type": TYPES[name], "exclusive": False, "arguments": {}, **FLAGS}


BINDINGS = f"/api/bindings/%2F?columns={BINDING_COLUMNS}"


@pytest.fixture
def api():
    bindings = [binding("top", "hash", "exchange"), binding("hash", "s1"), binding("hash", "q")]
    bindings += [binding("top", "s0"), binding("other", "elsewhere")]
    answers = {f"/api/queues/%2F/{name}?columns={QUEUE_COLUMNS}": queue(name) for name in TYPES}
    with serving({BINDINGS: bindings, **answers}) as api:
        yield api


@pytest.mark.parametrize(("seconds", "lists"), [(1e9, 1), (0.0, 2)])
def test_the_list_of_the_streams_of_an_exchange_expires(api, monkeypatch, seconds, lists) -> None:
    monkeypatch.setattr(stream_access, "_LISTED_SECONDS", seconds)
    options = ReadOptions.of({"url": "amqp://u:p@127.0.0.1", "exchange": "top", "managementUrl": api.url})
    access = StreamAccess(options)
    assert [access.chosen(), access.chosen(["s0"])] == [["s0", "s1"]] * 2
    asked = [path for path, _ in api.asked]
    assert asked.count(BINDINGS) == lists
    assert len(asked) == lists + len(TYPES)
