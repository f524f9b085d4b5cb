"""What the clients that consume have in common: parameters, addresses, guards; and a reader without a broker."""

from __future__ import annotations

import inspect
import multiprocessing
import threading
import types
import typing
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, thread_time

import pytest
from prometheus_client import CollectorRegistry

from rabbit_chx import consuming
from rabbit_chx.consuming import (
    BrokerUnavailable,
    Group,
    GroupStatus,
    InvalidValue,
    QueueReader,
    Timeouts,
    members,
    queue_reader,
)
from rabbit_chx.consuming.queue_reader import _TakenBack
from rabbit_chx.working.settings import OnFailure
from rabbit_chx.working.workers import Workers
from tests.patience import wait_until
from tests.unit.test_docs import marked

DEAD = ["amqp://user:secret@127.0.0.1:1", "amqp://user:secret@127.0.0.1:2"]
GIVEN = {"url": DEAD, "exchange": "orders", "name": "billing", "queues": ["a"]}
STATUS = GroupStatus(
    connected=True, reason="", queues=("a",), in_hand=3, oldest=301.5, handled=7, failed=2, last_delivery=None
)


# ---- heartbeats


@pytest.mark.parametrize(
    ("queries", "shortest"),
    [(["heartbeat=30", "heartbeat=2"], 2), (["", "heartbeat=30"], 10), (["heartbeat=0"], 10)],
)
def test_a_member_asks_a_silent_broker_after_the_shortest_heartbeat_of_its_connections(
    queries, shortest
) -> None:
    urls = [f"amqp://127.0.0.1:1/?{query}" for query in queries]
    member = Group(**GIVEN | {"url": urls})._new_member(Workers, print)
    assert member.workers._heartbeat == member._settings.heartbeat == shortest


# ---- signatures


def named(hint) -> set[object]:
    inner = typing.get_args(hint)
    if not inner:
        return {hint}
    return set().union(*(named(each) for each in inner if not isinstance(each, (list, str))))


def test_members_takes_the_words_for_a_connection_and_names_types_that_can_be_imported() -> None:
    """As the clients do (test_clients.py)."""
    taken = inspect.signature(members).parameters
    assert next(iter(taken)) == "url"
    assert {"credentials", "tls", "connection_name"} <= taken.keys()
    for hint in typing.get_type_hints(members).values():
        for found in named(hint):
            assert found is not typing.Any
            if isinstance(found, type) and found.__module__.startswith("rabbit_chx"):
                assert getattr(consuming, found.__name__) is found
    assert typing.get_args(OnFailure) == ("stop", "dead-letter", "park")


# ---- a reader without a broker


def test_a_reader_that_waits_for_no_quiet_moment_needs_no_cpu_until_it_is_connected() -> None:
    with QueueReader(DEAD, "a") as reader:
        began = thread_time()
        reader.take(1, timeout=0.5, quiet=0.0)
        assert thread_time() - began < 0.1


def test_a_reader_that_reaches_no_address_says_so_after_its_timeout() -> None:
    unreached = pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2")
    with QueueReader(DEAD, "a", timeouts=Timeouts(connect=0.1)) as reader, unreached as caught:
        reader.take(1, timeout=60)
    assert "secret" not in str(caught.value)


def test_without_a_connection_the_number_of_waiting_messages_is_unknown_at_once() -> None:
    began = monotonic()
    with QueueReader(DEAD, "a") as reader:
        assert reader.waiting(60) is None
    assert monotonic() - began < 60


def test_a_lost_connection_answers_the_question_for_the_number_of_waiting_messages() -> None:
    reader = QueueReader(DEAD, "a")
    reader._channel = types.SimpleNamespace()  # as if it were consuming
    with ThreadPoolExecutor(initializer=reader._guard.opened) as threads:
        answer = threads.submit(reader.waiting)
        wait_until(lambda: reader._asked, "the question is asked")
        reader._forget()
        assert answer.result(60) is None


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda reader: reader.take(-1), "most: got -1"),
        (lambda reader: reader.take(1, most_bytes=-1), "most_bytes: got -1"),
        (lambda reader: reader.take(1, timeout=-1.0), "timeout: got -1.0, expected seconds"),
        (lambda reader: reader.take(1, timeout=float("nan")), "timeout: got nan, expected seconds"),
        (lambda reader: reader.take(1, quiet="1"), "quiet: got '1', expected seconds"),
        (lambda reader: reader.take(1, quiet=-1.0), "quiet: got -1.0, expected seconds"),
        (lambda reader: reader.take(1, most_bytes=0.5), "most_bytes: got 0.5"),
        (lambda reader: reader.waiting("1"), "timeout: got '1', expected seconds"),
        (lambda _: members(DEAD, "billing", timeout="1"), "timeout: got '1', expected seconds"),
    ],
)
def test_a_call_refuses_impossible_arguments(call, what) -> None:
    reader = QueueReader(DEAD, "a")
    reader._guard.opened()
    with pytest.raises(InvalidValue, match=f"invalid {what}"):
        call(reader)


def test_a_reader_of_an_idle_queue_waits_for_messages() -> None:
    reader = QueueReader(DEAD, "a")
    reader._guard.opened()
    reader._channel = types.SimpleNamespace()
    began = monotonic()
    assert reader.take(10, timeout=60, quiet=0.2).messages == ()
    assert 0.2 <= monotonic() - began < 60


def test_only_messages_that_were_taken_back_twice_in_a_row_are_permanent() -> None:
    busy = QueueReader(DEAD, "a")
    for permanent in (False, True):
        busy._delivered = 3
        error = busy._why(_TakenBack())
        assert "increase consumer_timeout" in str(error)
        assert error.permanent is permanent
        busy._forget()
        assert not busy._why(_TakenBack()).permanent  # which leaves the count as it is


def test_the_addresses_share_what_is_left_of_the_time_for_the_first_connection(monkeypatch) -> None:
    now, taken = 0.0, []

    def answer_nothing(addresses, *, timeout, **_):
        nonlocal now
        taken.append(timeout * len(addresses))
        now += 3.0
        raise BrokerUnavailable("silent", permanent=len(taken) == 2)

    monkeypatch.setattr(queue_reader, "connect", answer_nothing)
    monkeypatch.setattr(queue_reader, "monotonic", lambda: now)
    silent = pytest.raises(BrokerUnavailable, match="silent")
    with QueueReader(DEAD, "a", timeouts=Timeouts(connect=9)) as reader, silent:
        reader.take(1, timeout=60)
    assert taken == pytest.approx([9.0, 6.0])


# ---- health and metrics


def test_the_health_checks_of_the_guide_answer() -> None:
    names: dict[str, typing.Any] = {"group": Group(**GIVEN)}
    exec(marked("consuming-production.md", "test_the_health_checks_of_the_guide_answer"), names)
    assert (names["healthz"](), names["readyz"]()) == ((200, ""), (503, "it is not running"))
    names["group"] = types.SimpleNamespace(status=STATUS, error=None)
    assert (names["healthz"](), names["readyz"]()) == ((503, ""), (200, ""))


def test_the_metrics_of_the_guide_are_those_of_the_member(monkeypatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr("prometheus_client.core.REGISTRY", registry)
    names = {"group": types.SimpleNamespace(status=STATUS)}
    exec(marked("consuming-production.md", "test_the_metrics_of_the_guide_are_those_of_the_member"), names)
    assert {each.name: each.value for found in registry.collect() for each in found.samples} == {
        "group_connected": 1,
        "group_in_hand": 3,
        "group_oldest_seconds": 301.5,
        "group_handled_total": 7,
        "group_failed_total": 2,
    }


# ---- threads and forks


def refusals(client, calls) -> list[str]:
    """What the calls raise."""
    found = []
    for call in calls:
        with pytest.raises(InvalidValue) as caught:
            call(client)
        found.append(str(caught.value))
    return found


READING = [
    lambda reader: reader.take(1),
    lambda reader: reader.waiting(),
    lambda reader: reader.acknowledge(None),
]


def test_a_second_thread_may_not_use_a_reader() -> None:
    with QueueReader(DEAD, "a") as reader, ThreadPoolExecutor() as threads:
        found = threads.submit(refusals, reader, READING).result()
    assert ["belongs to the thread that opened it" in text for text in found] == [True] * 3


def in_a_fork(function) -> object:
    """What a function returns in a forked child."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=lambda: theirs.send(function()))
    child.start()
    assert ours.poll(30)
    answer = ours.recv()
    child.join(30)
    return answer


def test_a_forked_child_may_not_use_the_reader_of_its_parent_until_it_opens_it_again() -> None:
    def in_child() -> tuple[list[str], object]:
        found = refusals(reader, READING)
        reader.close()  # does nothing
        with reader:
            return found, reader.waiting()

    with QueueReader(DEAD, "a") as reader:
        found, waiting = in_a_fork(in_child)
        assert ["Call open() after the fork" in text for text in found] == [True] * 3
        assert waiting is None
        assert reader.waiting() is None


def test_a_forked_child_cannot_stop_the_group_of_its_parent_and_can_run_its_own() -> None:
    def in_child() -> str:
        (text,) = refusals(group, [Group.stop])
        threading.Timer(0.2, lambda: group.stop()).start()  # noqa: PLW0108 - the child's, by then
        group.run(print, signals=False)
        return text

    group = Group(**GIVEN)
    running = threading.Thread(target=group.run, args=(print,))
    running.start()
    wait_until(lambda: group._member is not None, "the group runs")
    assert "Call run() after the fork" in in_a_fork(in_child)
    assert running.is_alive()
    group.stop()
    running.join(30)
    assert not running.is_alive()
