"""Spark reads streams while their leaders move and stop: the query writes each message to a table once, in order."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import pytest

from tests.broker.stream_scene import streams_at
from tests.faults.proxy import Proxy
from tests.faults.spark_load import SLOW
from tests.faults.spark_programs import Program
from tests.faults.spark_read import NO_LOSS, Feed, finish, until_committed, until_reading
from tests.patience import wait_until
from tests.proof import LONG

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROUNDS = 2 if LONG else 1
"""How often each leader moves to every node."""
MOVE = (
    'rabbit_stream_coordinator:restart_stream(rabbit_misc:r(<<"/">>, queue, <<"{stream}">>), '
    "#{{preferred_leader_node => 'rabbit@{node}'}})."
)


@pytest.fixture
def proxies(cluster):
    """A slow proxy in front of each node, so that faults hit tasks that are reading."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(member.stream_url)) for member in cluster.members]
        for proxy in proxies:
            proxy.delay = 0.03
        yield proxies


@pytest.fixture
def streams(urls):
    """Three streams, each with a replica on every node."""
    url, *_ = urls.values()
    prefix = secrets.token_hex(3)
    names = [f"faults.moved.{prefix}-{number}" for number in range(3)]
    with streams_at(url, *names):
        yield names


@pytest.fixture
def program(tmp_path):
    program = Program("local[2]", tmp_path / "driver")
    yield program
    program.stop()


@pytest.fixture
def feed(cluster, streams):
    feed = Feed(cluster.members[1].stream_url, streams, follow_advertised=True)
    yield feed
    feed.end()


def move(cluster, stream: str, to) -> None:
    """Restart a stream until a node leads it. The broker selects another node if this node lacks the last messages."""
    asked = cluster.members[0]

    def moved() -> bool:
        asked.eval(MOVE.format(stream=stream, node=to.name))
        listed = asked.ctl("list_queues", "--quiet", "--no-table-headers", "name", "leader")
        leaders = dict(line.split("\t") for line in listed.splitlines())
        return leaders[stream] == f"rabbit@{to.name}"

    wait_until(moved, f"{to} leads {stream}", SLOW, pause=0.5)


def test_a_query_loses_no_row_when_leaders_move_and_a_node_stops(
    cluster, proxies, streams, feed, program, judge_table, tmp_path
):
    first, second, third = cluster.members
    options = {
        "url": ",".join(proxy.url for proxy in proxies),
        "stream": ",".join(streams),
        "columns": "value,stream,offset",
        "startingOffsets": "earliest",
        "maxRowsPerTrigger": "5000",
    }
    program.order(copy=str(tmp_path), options=options)

    def until_hit() -> None:
        until_committed(program, tmp_path)
        until_reading(program, *(proxy.port for proxy in proxies))

    for _ in range(ROUNDS):
        for member in (second, third, first):
            for stream in streams:
                until_hit()
                move(cluster, stream, member)
    until_hit()
    first.node.halt()
    try:
        until_committed(program, tmp_path, 2)
        sent = finish(program, feed, tmp_path)
    finally:
        cluster.boot(first)
    moves = ROUNDS * len(cluster.members) * len(streams)
    note = f"{moves} times to another node, which then stopped"
    judge_table("leaders of streams moved, read", sent, moves + 1, control=NO_LOSS, note=note)
