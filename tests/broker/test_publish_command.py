"""`rabbit-chx publish` on a real broker: every row arrives, or is named."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter

import pytest

from rabbit_chx.cli.publish_resume import MAX_SENT_AGAIN
from tests.inbox import emptied
from tests.json_lines import documented, printed
from tests.patience import PATIENCE, wait_until
from tests.queues import a_channel, bind_ring, delete_exchange, message_count
from tests.verbs import in_a_process as run, started

pytestmark = [pytest.mark.broker, pytest.mark.one_release]


@pytest.fixture
def exchange(broker):
    """A hash exchange over two durable queues, gone with the test."""
    name = f"publish.{uuid.uuid4().hex[:8]}"
    queues = [f"{name}.{queue}" for queue in "ab"]
    with broker.connection() as connection:
        bind_ring(connection.channel(), name, queues)
        yield name
        delete_exchange(connection.channel(), name, queues)


def drained(broker, exchange: str) -> list[tuple[str, str | None, bytes]]:
    found = []
    with a_channel(broker) as channel:
        for queue in ("a", "b"):
            messages = emptied(channel, f"{exchange}.{queue}")
            found += [(one.key, one.properties.message_id, one.body) for one in messages]
    return found


def test_every_row_arrives_with_its_key_property_and_body(broker, exchange, tmp_path) -> None:
    rows = [(f"c{i}", f"m{i}", f"body {i}") for i in range(1_000)]
    file = tmp_path / "rows.csv"
    file.write_text("customer,id,text\n" + "".join(",".join(row) + "\n" for row in rows))
    mapping = ["-k", "customer", "--body-column", "text", "--property-column", "message_id=id"]
    done = run(
        "publish", str(file), "-x", exchange, *mapping, "--output", "json", env={"AMQP_URL": broker.url}
    )
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)
    assert (totals["confirmed"], totals["connections"]) == (1_000, 1)
    assert printed("publish", [json.loads(done.stdout)]) == documented("publish")
    assert sorted(drained(broker, exchange)) == sorted((key, row, body.encode()) for key, row, body in rows)


def depth(channel, exchange: str) -> int:
    queues = (f"{exchange}.{queue}" for queue in ("a", "b"))
    return sum(message_count(channel, queue) for queue in queues)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "most_again"),
    [
        pytest.param(signal.SIGINT, 130, 0, marks=pytest.mark.proof),
        pytest.param(signal.SIGTERM, 143, 0, marks=pytest.mark.proof),
        (signal.SIGKILL, -9, MAX_SENT_AGAIN),
    ],
)
def test_an_interrupted_file_is_resumed(broker, exchange, tmp_path, number, code, most_again) -> None:
    """It continues at the exact row after a signal, and repeats at most MAX_SENT_AGAIN rows after a kill."""
    count = 60_000
    file, position = tmp_path / "rows.jsonl", tmp_path / "position"
    file.write_text("".join(f'{{"k": "c{row}"}}\n' for row in range(count)))
    options = ["-x", exchange, "-k", "k", "--resume", str(position), "--output", "json"]
    arguments = ["publish", str(file), *options]
    env = {"AMQP_URL": broker.url}
    with (
        a_channel(broker) as channel,
        started(*arguments, "--rate", "6000", env=env) as command,  # the rest takes seconds
    ):
        wait_until(
            lambda: depth(channel, exchange) >= 12_000 or command.poll() is not None,
            "12,000 messages",
            2 * PATIENCE,
        )
        assert command.poll() is None, command.communicate()
        command.send_signal(number)
        output, errors = command.communicate(timeout=2 * PATIENCE)
        assert command.returncode == code, errors
        saved = json.loads(position.read_text())["rows"]
        if number != signal.SIGKILL:
            assert errors.decode().strip() == "Interrupted."
            totals = json.loads(output)
            assert totals["confirmed"] == totals["published"] == saved == depth(channel, exchange)
        assert 0 < saved < count
    again = run(*arguments, env=env)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["confirmed"] == count - saved
    copies = Counter(key for key, _, _ in drained(broker, exchange))
    assert copies.keys() == {f"c{row}" for row in range(count)}
    assert copies.total() - count <= most_again
