"""`rabbit-chx publish` on a real broker: every row arrives, or is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid

import pytest

from tests.inbox import emptied
from tests.json_lines import documented, printed
from tests.unit.test_cli import run

pytestmark = [pytest.mark.broker, pytest.mark.one_release]


@pytest.fixture
def exchange(broker):
    """A hash exchange over two durable queues, gone with the test."""
    name = f"publish.{uuid.uuid4().hex[:8]}"
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "x-consistent-hash", durable=True)
        for queue in ("a", "b"):
            channel.queue_declare(f"{name}.{queue}", durable=True)
            channel.queue_bind(f"{name}.{queue}", name, "1")
        yield name
        for queue in ("a", "b"):
            channel.queue_delete(f"{name}.{queue}")
        channel.exchange_delete(name)


def drained(broker, exchange: str) -> list[tuple[str, str | None, bytes]]:
    found = []
    with broker.connection() as connection:
        channel = connection.channel()
        for queue in ("a", "b"):
            messages = emptied(channel, f"{exchange}.{queue}")
            found += [(one.key, one.properties.message_id, one.body) for one in messages]
    return found


def test_every_row_arrives_with_its_key_property_and_body(broker, exchange, tmp_path) -> None:
    rows = [(f"c{i}", f"m{i}", f"body {i}") for i in range(1_000)]
    file = tmp_path / "rows.csv"
    file.write_text("customer,id,text\n" + "".join(",".join(row) + "\n" for row in rows))
    mapping = ["-k", "customer", "--body-column", "text", "--property", "message_id=id"]
    done = run(
        "publish", str(file), "-x", exchange, *mapping, "--output", "json", env={"AMQP_URL": broker.url}
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["confirmed"] == 1_000
    assert sorted(drained(broker, exchange)) == sorted((key, row, body.encode()) for key, row, body in rows)


def test_what_is_returned_is_named_and_resumed_from(broker, exchange, tmp_path) -> None:
    file, position = tmp_path / "rows.jsonl", tmp_path / "position"
    file.write_text("".join(json.dumps({"k": f"c{i}"}) + "\n" for i in range(200)))
    arguments = ["publish", str(file), "-x", exchange, "-k", "k", "--resume", str(position)]
    with broker.connection() as connection:
        channel = connection.channel()
        for queue in ("a", "b"):
            channel.queue_unbind(f"{exchange}.{queue}", exchange, "1")
        failed = run(*arguments, env={"AMQP_URL": broker.url})
        assert failed.returncode == 1
        assert "row 1: returned" in failed.stderr.decode()
        assert "NO_ROUTE" in failed.stderr.decode()
        for queue in ("a", "b"):
            channel.queue_bind(f"{exchange}.{queue}", exchange, "1")
    assert run(*arguments, env={"AMQP_URL": broker.url}).returncode == 0
    assert sorted(key for key, _, _ in drained(broker, exchange)) == sorted(f"c{i}" for i in range(200))
    again = run(*arguments, "--output", "json", env={"AMQP_URL": broker.url})
    assert json.loads(again.stdout)["published"] == 0


def test_a_missing_exchange_is_named_without_a_traceback(broker, tmp_path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("k\n1\n")
    done = run("publish", str(file), "-x", "no.such.exchange", "-k", "k", env={"AMQP_URL": broker.url})
    assert done.returncode == 1
    text = done.stderr.decode()
    assert "no exchange 'no.such.exchange'" in text
    assert "Traceback" not in text
    assert broker.password not in text


@pytest.fixture
def slots(broker):
    """An x-modulus-hash over eight slots that share two durable queues, a and b; c is bound to nothing yet."""
    name = f"publish.{uuid.uuid4().hex[:8]}"
    with broker.connection() as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "x-modulus-hash", durable=True)
        for queue in "abc":
            channel.queue_declare(f"{name}.{queue}", durable=True)
        for number in range(8):
            channel.exchange_declare(f"{name}.{number}", "x-consistent-hash", durable=True)
            channel.exchange_bind(f"{name}.{number}", name, "1")
            channel.queue_bind(f"{name}.{'ab'[number % 2]}", f"{name}.{number}", "1")
        yield name
        for queue in "abc":
            channel.queue_delete(f"{name}.{queue}")
        for one in (name, *(f"{name}.{number}" for number in range(8))):
            channel.exchange_delete(one)


def landed(broker, exchange: str) -> dict[bytes, tuple[str, str]]:
    """For each body its queue, and the exchange that it came through."""
    found = {}
    with broker.connection() as connection:
        channel = connection.channel()
        for queue in "abc":
            for message in emptied(channel, f"{exchange}.{queue}"):
                assert message.body not in found
                found[message.body] = (queue, message.exchange)
    return found


def straight(broker, exchange: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a command that goes past an exchange."""
    arguments = ["publish", "-", "--format", "jsonl", "-x", exchange, "-k", "k", "--via", "queues"]
    return arguments, {"AMQP_URL": broker.url, "RABBITMQ_MANAGEMENT_URL": broker.management_url}


def lines(rows: range) -> list[bytes]:
    return [b'{"k": "c%d"}' % row for row in rows]


def test_straight_to_the_queues_every_row_lands_where_the_exchange_puts_it(broker, slots) -> None:
    arguments, env = straight(broker, slots)
    stdin = b"\n".join(lines(range(1_000)))
    through = run(*arguments[:-2], stdin=stdin, env=env)  # where the URL of the API means nothing
    assert through.returncode == 0, through.stderr
    expected = landed(broker, slots)
    assert {exchange for _, exchange in expected.values()} == {slots}
    done = run(*arguments, "--output", "json", stdin=stdin, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["confirmed"] == 1_000
    assert json.loads(done.stdout)["via_queues"] == {"straight": True, "reason": "", "doubtful_rows": []}
    assert printed("publish", [json.loads(done.stdout)]) == documented("publish")
    assert landed(broker, slots) == {body: (queue, "") for body, (queue, _) in expected.items()}


def test_rows_that_went_past_a_change_are_named_with_an_exit_code_of_their_own(broker, slots) -> None:
    arguments, env = straight(broker, slots)
    before, after = lines(range(5_000)), lines(range(5_000, 5_400))  # it reads 5,000 rows at a time
    with (
        subprocess.Popen(
            [sys.executable, "-m", "rabbit_chx", *arguments, "--output", "json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | env,
        ) as command,
        broker.connection() as connection,
    ):
        assert command.stdin
        command.stdin.write(b"".join(line + b"\n" for line in before))
        command.stdin.flush()
        channel = connection.channel()
        deadline = time.monotonic() + 60
        while sum(_ready(channel, f"{slots}.{queue}") for queue in "ab") < len(before):
            assert time.monotonic() < deadline
            assert command.poll() is None, command.communicate()
            time.sleep(0.05)
        channel.queue_bind(f"{slots}.c", f"{slots}.0", "1")
        channel.queue_unbind(f"{slots}.a", f"{slots}.0", "1")
        output, errors = command.communicate(b"".join(line + b"\n" for line in after), timeout=60)
    assert command.returncode == 2, errors
    way = json.loads(output)["via_queues"]
    assert not way["straight"]
    assert "has changed" in way["reason"]
    assert b"has changed" in errors
    first, last = way["doubtful_rows"]
    places = landed(broker, slots)
    assert places.keys() == {*before, *after}
    through = run(*arguments[:-2], stdin=b"\n".join(after), env=env)
    assert through.returncode == 0, through.stderr
    right = landed(broker, slots)
    wrong = [row for row, line in enumerate(after, 5_001) if places[line][0] != right[line][0]]
    assert wrong
    assert first <= min(wrong)
    assert max(wrong) <= last <= 5_400


def _ready(channel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).method.message_count


def test_what_cannot_be_gone_past_is_refused_before_a_row_leaves(broker, exchange) -> None:
    arguments, env = straight(broker, exchange)
    done = run(*arguments, stdin=lines(range(1))[0], env=env)
    assert done.returncode == 1
    assert b"has to read it from the node" in done.stderr
    assert b"Traceback" not in done.stderr
    assert broker.password.encode() not in done.stderr
    assert drained(broker, exchange) == []
