"""``rabbit-chx group`` shows groups on streams, and sets the stored offsets of a group without members."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import chain
from urllib.parse import urlsplit

import pytest

from rabbit_chx.cli.verb import Exit
from rabbit_chx.publishing import Publisher
from rabbit_chx.streams import BrokerUrl, StreamGroup, connect
from tests.broker.erlang import quick_command
from tests.broker.stream_scene import stored
from tests.json_lines import printed
from tests.members import running
from tests.patience import wait_until
from tests.queues import STREAM, a_channel, bind_ring, delete_exchange
from tests.users import a_user
from tests.verbs import Result, in_a_process, run_verb

pytestmark = [pytest.mark.newest_first, pytest.mark.broker, pytest.mark.since_4_0]

STREAMS = 3
MESSAGES = 300


@pytest.fixture
def exchange(broker):
    """A hash exchange with filled streams."""
    name = f"shown-{uuid.uuid4().hex[:8]}"
    streams = [f"{name}-{number}" for number in range(STREAMS)]
    with a_channel(broker) as channel:
        bind_ring(channel, name, streams, STREAM)
        with Publisher(broker.url, name) as publisher:
            publisher.publish_many([b"body"] * MESSAGES, [f"key-{row}" for row in range(MESSAGES)])
        yield name
        delete_exchange(channel, name, streams)


@pytest.fixture
def group(broker, exchange, capsys):
    """Run ``rabbit-chx group billing`` with further options."""

    def run(*options: object, url: str = broker.url) -> Result:
        port = urlsplit(broker.stream_url).port
        given = ["group", "billing", "-U", url, "--management-url", broker.management_url]
        given += ["--stream-port", port, "--exchange", exchange, *options]
        return run_verb(capsys, *given)

    return run


@contextmanager
def members(url, exchange, count, seen):
    """Members that share the streams; they start one after another, because they join in any order if they start at once."""
    groups = [StreamGroup(url, exchange=exchange, name="billing") for _ in range(count)]
    started: list[StreamGroup] = []

    def share() -> bool:
        found = [each.status for each in started]
        return (
            all(each.connected for each in found) and sum(len(each.partitions) for each in found) == STREAMS
        )

    with ExitStack() as stack:
        for each in groups:
            stack.enter_context(running(each, seen.append))
            started.append(each)
            wait_until(share, "members that share the streams")
        yield
        for each in groups:
            each.stop()


def handled_again(url, exchange, count) -> list:
    """What a group of one handles until it has handled this many messages."""
    seen: list = []

    def handled() -> list:
        return sorted((each.queue, each.offset) for each in seen)

    with members(url, exchange, 1, seen):
        wait_until(lambda: len(seen) >= count, lambda: f"{count}: {handled()} of {offsets_of(url, exchange)}")
    return seen


def offsets_of(url, exchange) -> dict[str, list[int]]:
    """The offsets of all messages of each stream, as a reader sees them."""
    streams = [f"{exchange}-{number}" for number in range(STREAMS)]
    return {stream: [each.offset for each in stored(url, stream)] for stream in streams}


def reset(group, position) -> Result:
    """Set the stored offsets, as soon as the management API no longer counts members that have ended."""
    results = []

    def done() -> bool:
        results.append(group("--reset", position, "--yes", "--output", "json"))
        return results[-1].code == Exit.FINE

    wait_until(done, "no members")
    return results[-1]


def rows(result, kind) -> list[dict]:
    return [row for row in result.rows if row["type"] == kind]


def sizes(result) -> list[int]:
    """How many streams each member has."""
    return sorted(len(row["streams"]) for row in rows(result, "stream_member"))


@pytest.mark.parametrize("by", ["management", "node"])
def test_members_and_stored_offsets_are_shown(group, broker, stream_url, exchange, by):
    options = ["--node", quick_command(broker)] if by == "node" else []
    handled_again(stream_url, exchange, MESSAGES)
    ends = offsets_of(stream_url, exchange)
    with members(stream_url, exchange, 2, []):
        wait_until(  # the statistics of the management API are some seconds old
            lambda: sizes(group("--output", "json", *options)) == [1, 2], "members"
        )
        shown, text = group("--output", "json", *options), group(*options)
    assert shown.code == Exit.FINE, shown
    assert "Not seen" not in shown.err
    found = rows(shown, "stream_partition")
    assert {row["stream"]: row["stored"] for row in found} == {name: each[-1] for name, each in ends.items()}
    assert [row["lag"] for row in found] == [0] * STREAMS
    shared = {row["connection"]: row["streams"] for row in rows(shown, "stream_member")}
    assert sorted(chain(*shared.values())) == sorted(ends)
    assert all(row["stream"] in shared[row["member"]] for row in found)
    for each in (*ends, *shared):
        assert each in text.out
    printed("group", shown.rows)


def test_a_group_without_members_is_shown(group, exchange):
    shown = group("--output", "json")
    assert shown.code == Exit.DIFFERENT
    assert [row["lag"] for row in rows(shown, "stream_partition")] == [None] * STREAMS
    assert "Group 'billing' has no members." in group().out


def test_an_offset_beyond_the_end_that_a_reader_has_stored_is_warned_of(group, broker, exchange):
    """Once, the group handled nothing, with a lag of 0."""
    stream = f"{exchange}-1"
    with a_user(broker, "^$", "^$", f"^{stream}$") as reader:
        url = BrokerUrl.for_streams(broker.stream_url)
        login = {"credentials": lambda: (reader.name, reader.password)}
        with connect(url, **login) as connection:
            connection.store_offset("billing", stream, 10**9)
            wait_until(lambda: connection.query_offset("billing", stream) == 10**9, "the stored offset")
    shown = group("--output", "json")
    row = next(row for row in rows(shown, "stream_partition") if row["stream"] == stream)
    assert (row["stored"], row["lag"]) == (10**9, None)
    assert f"stream {stream!r}: the stored offset is beyond the end" in shown.err


def test_what_a_user_cannot_see_is_named(group, broker, exchange):
    with a_user(broker, "", "", f"^{exchange}.*", tags="management") as user:
        shown = group(url=user.url)
    assert shown.code == Exit.FINE
    assert "Not seen: members of other users" in shown.err
    assert f"{exchange}-0" in shown.out
    with a_user(broker, "", "", f"^{exchange}.*") as user:
        hidden = group(url=user.url).err
    assert "Not seen: the members of the group" in hidden
    assert "--node asks a node instead" in hidden
    failed = group("--node", "false").err
    assert "Not seen: the members of the group" in failed
    assert "--node asks" not in failed


def test_a_missing_exchange_and_a_closed_port_are_errors_with_what_to_do(broker):
    command = ["group", "billing", "-U", broker.url, "--management-url", broker.management_url]
    port = urlsplit(broker.stream_url).port
    missing = in_a_process(*command, "--exchange", "none", "--stream-port", str(port))
    assert missing.returncode == Exit.FAILED
    assert b"has no super stream or other exchange 'none'" in missing.stderr
    closed = in_a_process(*command, "--exchange", "none")
    assert closed.returncode == Exit.FAILED
    assert (b"--stream-port names another port" in closed.stderr) == (port != 5552)  # a broker of one's own


@pytest.mark.parametrize("by", ["management", "node"])
def test_offsets_of_a_group_with_members_are_not_reset(group, broker, stream_url, exchange, by):
    options = ["--node", quick_command(broker)] if by == "node" else []
    with members(stream_url, exchange, 2, []):
        wait_until(  # the management API lists them a moment later
            lambda: rows(group("--output", "json", *options), "stream_member"), "members"
        )
        refused = group("--reset", "first", "--yes", *options)
    assert refused.code == Exit.FAILED
    assert "Refused: group 'billing' has members" in refused.err


def test_a_group_goes_on_where_its_offsets_are_reset_to(group, broker, stream_url, exchange):
    all_messages = offsets_of(stream_url, exchange)
    seen = handled_again(stream_url, exchange, MESSAGES)
    between = max(message.stream_timestamp for message in seen) + timedelta(milliseconds=1)
    with Publisher(broker.url, exchange) as publisher:
        publisher.publish_many([b"later"] * MESSAGES, [f"key-{row}" for row in range(MESSAGES)])
    handled_again(stream_url, exchange, MESSAGES)

    reset(group, between.isoformat())
    later = handled_again(stream_url, exchange, MESSAGES)
    assert [message.body for message in later] == [b"later"] * MESSAGES

    reset(group, "first")
    again = handled_again(stream_url, exchange, 2 * MESSAGES)
    first = {name: min(each.offset for each in again if each.queue == name) for name in all_messages}
    assert first == {name: each[0] for name, each in all_messages.items()}
    assert len(again) == 2 * MESSAGES

    reset(group, "first")
    reset(group, "next")
    shown = group("--output", "json")
    assert [row["lag"] for row in rows(shown, "stream_partition")] == [0] * STREAMS
    with Publisher(broker.url, exchange) as publisher:
        publisher.publish_many([b"new"] * MESSAGES, [f"key-{row}" for row in range(MESSAGES)])
    shown = group("--output", "json")
    assert sum(row["lag"] for row in rows(shown, "stream_partition")) == MESSAGES
    new = handled_again(stream_url, exchange, MESSAGES)
    assert [message.body for message in new] == [b"new"] * MESSAGES
    assert len(printed("group", reset(group, "last").rows)) == 1


def test_a_reset_asks_first(group, exchange, monkeypatch):
    asked = group("--reset", "first")
    assert asked.code == Exit.USAGE
    assert "stdin is not a terminal" in asked.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    declined = group("--reset", "first")
    assert declined.code == Exit.FAILED
    assert "Nothing was changed." in declined.err
    assert [row["stored"] for row in rows(group("--output", "json"), "stream_partition")] == [None] * STREAMS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("soon", "invalid --reset: got 'soon'"),
        ("2026-01-31T08:00:00", "a time with its zone"),
        ("7", "an offset only with --stream"),
    ],
)
def test_an_invalid_position_is_refused(group, given, words):
    refused = group("--reset", given, "--yes")
    assert refused.code == Exit.USAGE
    assert words in refused.err
