"""``rabbit-chx replay`` puts parked and dead-lettered messages back, and loses none if it is killed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pika
import pytest

from rabbit_chx.broker import connect
from rabbit_chx.broker.properties import Properties
from tests.json_lines import documented, printed
from tests.patience import wait_until
from tests.queues import message_count
from tests.verbs import in_a_process, started

pytestmark = [pytest.mark.one_release, pytest.mark.broker]

ORIGIN = {"x-rabbit-chx-parked-exchange": "shop", "x-rabbit-chx-parked-queue": "a"}


@pytest.fixture
def channel(site) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A channel, an exchange ``shop`` that leads to queue ``a``, and a queue ``parked``."""
    with connect(site.url(), heartbeat=0) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("shop", "fanout")
        channel.queue_declare("a", durable=True)
        channel.queue_bind("a", "shop")
        channel.queue_declare("parked", durable=True)
        yield channel


def park(
    channel, body: str, key: str, headers: dict[str, object] | None = None, **properties: object
) -> None:
    origin = ORIGIN | {"x-rabbit-chx-parked-routing-key": key, **(headers or {})}
    channel.basic_publish("", "parked", body.encode(), Properties(headers=origin, **properties))


def bodies(channel, queue: str) -> list[str]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2].decode())
    return found


def run(site, *options: str) -> tuple[int, str]:
    """The exit code and the output."""
    ran = in_a_process("replay", "parked", "--yes", *options, env={"AMQP_URL": site.url()})
    return ran.returncode, ran.stdout.decode() + ran.stderr.decode()


def test_messages_go_back_to_where_they_came_from_without_the_headers_that_were_added(site, channel) -> None:
    park(
        channel, "1", "k", {"n": 7, "price": 2.75, "CC": ["elsewhere"]}, message_id="m-1", expiration="60000"
    )
    said = "parked: 1 replayed, 0 with other keys, 0 of unknown origin, 0 refused\n  1 to exchange 'shop'\n"
    assert run(site) == (0, said)
    method, properties, body = channel.basic_get("a", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == ("shop", "k", b"1")
    assert (properties.headers, properties.message_id, properties.expiration) == (
        {"n": 7, "price": 2.75},
        "m-1",
        None,
    )
    assert message_count(channel, "parked") == 0


@pytest.mark.since_4_0
def test_messages_that_the_broker_dead_lettered_go_back_too(site, channel) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parked", "x-queue-type": "quorum"}
    channel.queue_declare("orders", durable=True, arguments=dead)
    channel.exchange_declare("crm", "direct")
    channel.queue_bind("orders", "crm", "k")
    channel.basic_publish("crm", "k", b"1", Properties(headers={"n": 7}))
    wait_until(lambda: channel.basic_get("orders", auto_ack=False)[0], "the message")
    channel.basic_reject(1, requeue=False)
    wait_until(lambda: message_count(channel, "parked") == 1, "the dead letter")
    assert run(site)[0] == 0
    wait_until(lambda: message_count(channel, "orders") == 1, "the message is back")
    method, properties, _ = channel.basic_get("orders")
    assert (method.exchange, method.routing_key, properties.headers) == ("crm", "k", {"n": 7})


def test_a_dry_run_lists_and_changes_nothing_and_options_select(site, channel) -> None:
    for number, key in enumerate("abab"):
        park(channel, str(number), key)
    _, out = run(site, "--dry-run", "--only", "a", "--output", "json")
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [(row["outcome"], row["routing_key"]) for row in rows] == [
        ("listed", "a"),
        ("other key", "b"),
        ("listed", "a"),
        ("other key", "b"),
    ]
    assert printed("replay", rows) == documented("replay")
    assert "exchange 'shop', key 'a', from 'a'" in run(site, "--dry-run")[1]
    assert (message_count(channel, "parked"), message_count(channel, "a")) == (4, 0)
    assert run(site, "--only", "a", "--limit", "1")[0] == 0
    assert bodies(channel, "a") == ["0"]
    assert bodies(channel, "parked") == ["1", "2", "3"]


@pytest.mark.long
def test_what_cannot_be_replayed_stays_in_its_place(site, channel) -> None:
    channel.basic_publish("", "parked", b"1")
    park(channel, "2", "k", {"x-rabbit-chx-parked-exchange": "deleted"})
    park(
        channel, "3", "k", {"x-rabbit-chx-parked-exchange": "", "x-rabbit-chx-parked-routing-key": "deleted"}
    )
    park(channel, "4", "k")
    of_stream = {"x-rabbit-chx-parked-exchange": "", "x-rabbit-chx-parked-offset": 7}
    park(channel, "5", "a", of_stream)  # queue "a" is not where it came from
    dry = run(site, "--dry-run")
    assert dry[0] == 3
    assert "parked: 2 would be replayed, 0 with other keys, 2 of unknown origin, 1 refused" in dry[1]
    code, out = run(site)
    assert code == 3
    assert "no header says to which exchange it was published" in out
    assert "no exchange 'deleted'" in out
    assert "it was published to queue 'deleted', but came from queue 'a'" in out
    assert "parked: 1 replayed, 0 with other keys, 2 of unknown origin, 2 refused" in out
    assert bodies(channel, "a") == ["4"]
    assert bodies(channel, "parked") == ["1", "2", "3", "5"]


@pytest.mark.since_4_0
def test_a_queue_with_a_single_active_consumer_is_refused_and_never_advised(site, channel) -> None:
    channel.queue_delete("parked")
    arguments = {"x-queue-type": "quorum"}
    channel.queue_declare("parked", durable=True, arguments=arguments)
    code, out = run(site)
    assert code == 0
    assert "a delivery limit applies" in out
    assert "preset: ordered" not in out
    channel.queue_delete("parked")
    channel.queue_declare("parked", durable=True, arguments=arguments | {"x-single-active-consumer": True})
    code, out = run(site)
    assert code == 64
    assert "invalid queue: got 'parked', expected a queue without a single active consumer. " in out


@pytest.mark.long
def test_a_replay_that_is_killed_loses_nothing(site, channel) -> None:
    for number in range(600):
        park(channel, str(number), "k")
    arriving: list[str] = []
    for _ in range(3):
        process = started(
            *("replay", "parked", "--yes"),
            env={"AMQP_URL": site.url()},
            stdout=subprocess.DEVNULL,
            stderr=None,
        )
        wait_until(
            lambda it=process: it.poll() is not None or message_count(channel, "a") > 20, "some are replayed"
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        arriving += bodies(channel, "a")
    wait_until(lambda: run(site)[0] == 0 and message_count(channel, "parked") == 0, "the rest")
    arriving += bodies(channel, "a")
    assert {*map(int, arriving)} == {*range(600)}
    assert len(arriving) <= 600 + 3
