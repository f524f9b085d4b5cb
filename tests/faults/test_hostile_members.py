"""A member of a group that lies: `rabbit-chx group` believes no value that it has not checked, and shows nothing raw."""

from __future__ import annotations

import json
import secrets
import threading
from functools import partial

import pytest
from pika import BasicProperties

from rabbit_chx.base.names import seat_queue
from rabbit_chx.base.text import UNPRINTABLE
from rabbit_chx.cli import group as group_command
from rabbit_chx.cli.verb import Exit
from rabbit_chx.consuming.member.roll_call import members_over
from tests.broker.privileges import run_cli
from tests.broker.topology_site import Site
from tests.patience import PATIENCE
from tests.queues import a_channel

pytestmark = [
    pytest.mark.broker,
    pytest.mark.one_release,
    pytest.mark.proves(
        "Consumers",
        "malformed, endless and forged answers of members to `rabbit-chx group`, also for other seats",
        "an answer that is valid is shown",
    ),
]

ESCAPES = "\x1b]0;PWNED\x07\x9b2J\u202e"
QUEUE = {"handled": 1, "rate": 1.5, "waiting": 2, "oldest": 3, "failures": 0, "hold": None, "priority": 1}
STATUS = {"host": "h", "pid": 7, "queues": {"q": QUEUE}}
NO_NUMBERS = ('"7"', "null", "true", "[]", "{}", "NaN", "Infinity", "1e999", "1" + "0" * 400)
MALFORMED = [
    *("", "\0", "nonsense", "null", "7", '"text"', "[]", "{}", "[" * 60_000, '{"queues": {}}', "1" * 5_000),
    *(json.dumps(STATUS | {"host": host}) for host in (None, 7, ["h"], "h" * 5_000, "\ud800")),
    *(json.dumps(STATUS | {"queues": rows}) for rows in (None, 7, "q", ["q"], {"q": None}, {"q": 7}, {"q": []})),
    *(json.dumps(STATUS | {"queues": {name: QUEUE}}) for name in ("q" * 256, "\u20ac" * 86, "\ud800", "q\n", "\rq")),
    *(json.dumps(STATUS | {"queues": {"q": QUEUE | {"hold": hold}}}) for hold in (7, ["h"], {})),
    *(json.dumps(STATUS).replace('"pid": 7', f'"pid": {number}') for number in NO_NUMBERS),
    *(
        json.dumps(STATUS).replace(f'"{name}": {value}', f'"{name}": {number}')
        for name, value in QUEUE.items()
        if name != "hold"
        for number in NO_NUMBERS
        if (name, number) != ("oldest", "null")
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(broker):
    with Site(broker) as site:
        yield site


@pytest.fixture
def shown(site, capsys, monkeypatch):
    """What the command says about a group whose members give these answers."""

    def shown(answers: list[str], output: str) -> tuple[int, str]:
        # A group of its own: a broker may delete exclusive queues a moment after their connection has closed.
        group = f"group-{secrets.token_hex(4)}"
        left = len(answers)
        with a_channel(site) as channel:

            def reply(_, __, asked: BasicProperties, ___) -> None:
                nonlocal left
                properties = BasicProperties(correlation_id=asked.correlation_id)
                answer = answers[int(asked.correlation_id.partition(".")[0])]
                channel.basic_publish("", asked.reply_to, answer.encode(), properties)
                left -= 1
                if not left:
                    channel.stop_consuming()

            for seat in range(left):
                channel.queue_declare(seat_queue(group, seat), exclusive=True)
                channel.basic_consume(seat_queue(group, seat), reply, auto_ack=True)
            members = threading.Thread(target=channel.start_consuming, daemon=True)
            members.start()
            monkeypatch.setenv("AMQP_URL", site.url())
            monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", site.broker.management_url)
            # All of them answer: the command need not wait for others, but for a machine that halts.
            monkeypatch.setattr(group_command, "members_over", partial(members_over, timeout=30))
            code, text = run_cli(f"rabbit-chx group {group} --output {output}", capsys)
            members.join(PATIENCE)
            assert not left
        assert "Traceback" not in text
        assert not UNPRINTABLE.search(text.replace("\n", "")), ascii(text)
        return code, text

    return shown


def test_members_with_a_malformed_status_do_not_answer(shown) -> None:
    code, text = shown([*MALFORMED, json.dumps(STATUS)], "json")
    assert code == Exit.DIFFERENT
    found = [json.loads(line) for line in text.splitlines()]
    answered = [one["answered"] for one in found if one["type"] == "member"]
    believed = [answer for answer, yes in zip(MALFORMED, answered, strict=False) if yes]
    assert believed == []
    assert len(answered) == len(MALFORMED) + 1
    assert answered[-1]
    assert [(one["queue"], one["waiting"]) for one in found if one["type"] == "group_queue"] == [("q", 2)]


def test_the_table_shows_members_with_a_malformed_status_too(shown) -> None:
    code, text = shown([*MALFORMED[:5], json.dumps(STATUS)], "table")
    assert code == Exit.DIFFERENT
    assert text.count("does not answer") == 5


@pytest.mark.parametrize("output", ["table", "json"])
def test_names_that_control_the_terminal_are_escaped(shown, output) -> None:
    queues = {ESCAPES: QUEUE | {"hold": ESCAPES}, "q": QUEUE}
    code, text = shown([json.dumps(STATUS | {"host": ESCAPES, "queues": queues})], output)
    assert code == Exit.FINE, text
    assert "PWNED" in text


def test_of_very_many_queues_the_first_are_shown_and_the_number_of_the_others(shown) -> None:
    many = json.dumps(STATUS | {"queues": {f"q{number:04}": QUEUE for number in range(5_000)}})
    honest = json.dumps(STATUS | {"queues": {"q": QUEUE, "z": QUEUE}})
    _, text = shown([many, honest], "json")
    found = [json.loads(line) for line in text.splitlines()]
    assert [one["omitted"] for one in found if one["type"] == "member"] == [4_000, 0]
    queues = [(one["queue"], one["seat"]) for one in found if one["type"] == "group_queue"]
    assert queues == [("q", 1), *((f"q{number:04}", 0) for number in range(1_000)), ("z", 1)]


def test_an_answer_that_is_too_long_is_not_read(shown) -> None:
    names = {f"q{number:05}": {} for number in range(200_000)}
    _, text = shown([json.dumps(STATUS | {"queues": names})], "json")
    assert not json.loads(text)["answered"]


def test_no_member_can_answer_for_another_seat(site) -> None:
    """A member in seat 1 answers for the silent member in seat 0, with everything that it can know or guess."""
    group = f"group-{secrets.token_hex(4)}"
    with site.connection() as connection, site.connection() as asking:
        channel = connection.channel()

        def lie(_, __, asked: BasicProperties, ___) -> None:
            number, _, token = asked.correlation_id.partition(".")
            for guess in (
                "0",
                f"0.{token}",
                f"0.{'0' * 16}",
                "",
                None,
                asked.correlation_id,
                asked.correlation_id,
            ):
                pid = 1 if guess == asked.correlation_id else 666
                answer = json.dumps(STATUS | {"seat": 0, "pid": pid}).encode()
                channel.basic_publish("", asked.reply_to, answer, BasicProperties(correlation_id=guess))
            assert number == "1"

        for seat in (0, 1):
            channel.queue_declare(seat_queue(group, seat), exclusive=True)
        channel.basic_consume(seat_queue(group, 1), lie, auto_ack=True)
        liar = threading.Thread(target=channel.start_consuming, daemon=True)
        liar.start()
        for seconds in (2, 10, 30):  # more of them if a machine that halts has left no time to answer
            found = members_over(asking, group, timeout=seconds)
            if any(each.answered for each in found):
                break
        connection.add_callback_threadsafe(channel.stop_consuming)
        liar.join(PATIENCE)
    assert [(each.seat, each.answered, each.pid) for each in found] == [(0, False, 0), (1, True, 1)]
