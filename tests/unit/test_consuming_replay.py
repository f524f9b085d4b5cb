"""What `replay` believes of a message, where it lets it go, and that no message of a publisher stops it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from pika import spec
from pika.exceptions import StreamLostError

from rabbit_chx.broker.commands import Lost, Refused, carry_out
from rabbit_chx.broker.driver import at_once
from rabbit_chx.consuming import replay as consuming_replay
from rabbit_chx.consuming.replay import Choice, Origin, Outcome, Replayed, _what_becomes_of, origin_of
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.messages.message import Message, StreamMessage
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.messages import Delivery
from rabbit_chx.working.parking import OFFSET, origin_of as parked_headers
from tests.wire import encoded_properties

NEW, OLD = Release._of_broker("4.3.6"), Release._of_broker("3.10.8")
BAD = b"\xff\xfe"
ALL = Choice()


def parked(exchange: str = "shop", key: str | bytes = "k", queue: str = "a", **added: Any) -> dict[Any, Any]:
    """The headers that a member adds to a message."""
    message = Message(b"", key, exchange=exchange, queue=queue)
    return {**parked_headers(message, "billing", ValueError("no")), **added}


def death(queue: str, exchange: str, key: str | bytes) -> dict[str, object]:
    return {"queue": queue, "reason": "rejected", "exchange": exchange, "routing-keys": [key], "count": 1}


def dead(*deaths: dict[str, object]) -> dict[str, object]:
    """The headers that the broker adds; the first death comes last."""
    return {
        "x-death": [*deaths],
        "x-first-death-queue": deaths[-1]["queue"],
        "x-first-death-reason": "rejected",
    }


def received(headers: dict[Any, Any], *, exchange: str = "", **properties: object) -> Delivery:
    encoded = encoded_properties(headers=headers, **properties)
    return Delivery(b"body", "parked", queue="parked", exchange=exchange, encoded=encoded, tag=1)


def becomes(message: Delivery, choice: Choice = ALL, driver: Any = None, release: Release = NEW) -> Replayed:
    return _what_becomes_of(message, origin_of(message, release), choice, driver)


# ---- who says where a message came from


def test_the_broker_decides_where_it_contradicts_the_headers_of_a_parked_message() -> None:
    """Once, dead letters of a user who could write only to `orders` were replayed into `payroll`."""
    forged = parked("", "payroll", "payroll")
    message = received({**forged, **dead(death("orders", "orders", "k"))})
    assert origin_of(message, NEW) == Origin("orders", "k", "orders", "rejected", "")
    assert becomes(message).outcome is Outcome.LISTED


def test_a_message_that_died_several_times_came_from_where_it_died_first() -> None:
    message = received(dead(death("retry", "dead", "k2"), death("orders", "orders", "k1")))
    assert origin_of(message, NEW) == Origin("orders", "k1", "orders", "rejected", "")


@pytest.mark.parametrize(
    ("message", "release"),
    [
        # No member parks through an exchange: this one came through an alternate exchange, or a binding of the queue.
        (received(parked(), exchange="shop"), NEW),
        # Before 4.0, the broker adds to the x-death that a publisher has written.
        (received(dead(death("orders", "shop", "k"))), OLD),
        # Over the stream protocol, a publisher writes the exchange and the key.
        (received(parked(**{OFFSET: 7})), NEW),
        (received({**parked(**{OFFSET: 7}), **dead(death("orders", "orders", "k"))}), NEW),
    ],
)
def test_what_only_a_publisher_may_have_written_is_believed_of_exchanges_that_are_allowed(
    message, release
) -> None:
    found = becomes(message, release=release)
    assert found.outcome is Outcome.REFUSED
    assert (
        found.error
        == "only its publisher says that it came to exchange 'shop'; allow its exchange in Choice.to"
    )
    assert becomes(message, Choice(to=["other"]), release=release).outcome is Outcome.REFUSED
    assert becomes(message, Choice(to=["other", "shop"]), release=release).outcome is Outcome.LISTED


def test_the_default_exchange_is_allowed_under_its_name_in_permissions() -> None:
    message = received(dead(death("orders", "", "orders")))
    found = becomes(message, release=OLD)
    assert (
        found.error
        == "only its publisher says that it came to queue 'orders'; allow its exchange in Choice.to"
    )
    assert becomes(message, Choice(to=["amq.default"]), release=OLD).outcome is Outcome.LISTED


def test_a_message_of_a_stream_that_came_through_no_named_exchange_has_no_origin() -> None:
    of_client = StreamMessage(b"", "victim", queue="events", offset=7)
    headers = {**parked_headers(of_client, "billing", ValueError("no")), OFFSET: 7}
    assert origin_of(received(headers), NEW) is None
    assert origin_of(received({**headers, **dead(death("orders", "", "orders"))}), NEW) is None


@pytest.mark.parametrize(
    "headers", [parked("", "payroll", "orders"), dead(death("orders", "", "payroll"))], ids=["parked", "dead"]
)
def test_through_the_default_exchange_a_message_goes_only_back_to_its_queue(headers) -> None:
    found = becomes(received(headers))
    assert (found.outcome, found.error) == (
        Outcome.REFUSED,
        "it was published to queue 'payroll', but came from queue 'orders'",
    )
    assert becomes(received(headers), Choice(to=["amq.default"])).outcome is Outcome.REFUSED
    assert becomes(received(parked("", "orders", "orders"))).outcome is Outcome.LISTED


def test_a_destination_that_was_not_agreed_to_is_refused() -> None:
    agreed = Choice(destinations=["exchange 'shop'", "queue 'orders'"])
    assert becomes(received(parked()), agreed).outcome is Outcome.LISTED
    assert becomes(received(parked("", "orders", "orders")), agreed).outcome is Outcome.LISTED
    found = becomes(received(parked("other")), agreed)
    assert (found.outcome, found.error) == (
        Outcome.REFUSED,
        "it came after the question, and would go to exchange 'other'",
    )


# ---- no message stops it


class Driver:
    """Carries out commands, and fails as it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.published: list[Any] = []

    def run(self, commands) -> Any:
        return at_once(carry_out(commands, self._do))

    async def _do(self, command) -> None:
        if self.error is not None:
            raise self.error
        self.published.append(command)


def test_names_of_headers_that_are_not_utf_8_are_copied() -> None:
    """Once, one such message stopped `replay` with exit code 70, and those behind it stayed."""
    driver = Driver()
    headers = {**parked(), BAD: "kept", b"x-rabbit-chx-parked-" + BAD: "left out", "n": 1}
    assert becomes(received(headers, message_id=BAD), driver=driver).outcome is Outcome.REPLAYED
    (copy,) = driver.published
    assert copy.arguments["properties"] == {
        "message_id": BAD,
        "headers": {BAD: "kept", "n": 1},
        "delivery_mode": 2,
    }


@pytest.mark.parametrize(
    "headers", [parked(key=BAD), dead(death("a", "shop", BAD))], ids=["parked", "dead-lettered"]
)
def test_a_message_with_a_key_that_is_not_utf_8_is_replayed_with_this_key(headers, replaying) -> None:
    driver = Driver()
    assert becomes(received(headers), driver=driver).outcome is Outcome.REPLAYED
    (copy,) = driver.published
    published = spec.Basic.Publish(
        exchange=copy.arguments["exchange"], routing_key=copy.arguments["routing_key"]
    )
    assert b"".join(published.encode()).endswith(b"\x04shop\x02" + BAD + b"\0")
    done, _ = replaying(received(headers), options=("--dry-run",))
    assert r"exchange 'shop', key b'\xff\xfe', from 'a'" in done.out


@pytest.mark.parametrize("only", [(), ("--only", r"\xff\xfe")])
def test_a_key_that_is_not_utf_8_is_printed_and_selected_with_escapes(replaying, only) -> None:
    done, _ = replaying(received(parked(key=BAD)), options=("--dry-run", "--output", "json", *only))
    (row,) = done.rows
    assert (row["outcome"], row["routing_key"]) == ("listed", r"\xff\xfe")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("of our own"), "it cannot be copied: TypeError: of our own"),
        (Refused(0, "pika cannot send it"), "pika cannot send it"),
    ],
)
def test_a_message_that_cannot_be_copied_is_refused(error, text) -> None:
    found = becomes(received(parked()), driver=Driver(error))
    assert (found.outcome, found.error) == (Outcome.REFUSED, text)


@pytest.mark.parametrize("error", [Lost("the connection is lost"), StreamLostError("lost"), OSError("lost")])
def test_a_lost_connection_ends_it(error) -> None:
    with pytest.raises(type(error)):
        becomes(received(parked()), driver=Driver(error))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Lost("the broker did not answer"), "the broker did not answer"),
        (StreamLostError("lost"), "the connection to 127.0.0.1:5672 was lost: lost"),
        (
            Refused(404, "NOT_FOUND - home node of 'parked' is down"),
            "the broker refused it: 404 NOT_FOUND - home",
        ),
    ],
)
def test_a_loss_or_a_refusal_is_explained(monkeypatch, error, text) -> None:
    """Once, the command called it a bug."""

    class Failing(Driver):
        where = "127.0.0.1:5672"

    monkeypatch.setattr(consuming_replay, "PikaDriver", lambda _: Failing(error))
    monkeypatch.setattr(consuming_replay, "server_version", lambda _: "4.3.6")
    with pytest.raises(BrokerUnavailable, match=text):
        next(consuming_replay.replay(None, "parked", ALL, warn=print))


# ---- the command


@pytest.fixture
def replaying(run, monkeypatch):
    """Run the command on these messages; return what it prints, and the choices with which messages were replayed."""

    def replaying(*messages: Delivery, options: tuple[str, ...] = ()):
        choices: list[Choice] = []

        def replayed(
            _: object, __: str, choice: Choice, *, dry_run: bool, **___: object
        ) -> Iterator[Replayed]:
            if not dry_run:
                choices.append(choice)
            for each in messages:
                yield becomes(each, choice, None if dry_run else Driver())

        monkeypatch.setattr("rabbit_chx.cli.replay.connect", lambda *_, **__: nullcontext())
        monkeypatch.setattr("rabbit_chx.cli.replay.replayed_messages", replayed)
        return run("replay", "parked", "--url", "amqp://127.0.0.1:1", *options), choices

    return replaying


MESSAGES = [received(parked()), received(parked()), received(parked("", "orders", "orders")), received({})]
GO = "  2 to exchange 'shop'\n  1 to queue 'orders'\n"


def test_destinations_are_asked_about_before_anything_is_published(replaying, answer) -> None:
    answer("n\n")
    done, choices = replaying(*MESSAGES)
    assert (done.code, choices) == (1, [])
    assert done.err.startswith(GO)
    assert "Nothing was changed." in done.err
    answer("y\n")
    done, (choice,) = replaying(*MESSAGES, options=("--to", "events"))
    assert done.code == 3
    assert {*choice.destinations} == {"exchange 'shop'", "queue 'orders'"}
    assert choice.to == ("events",)


def test_without_a_terminal_nothing_is_published_unasked(replaying) -> None:
    done, choices = replaying(*MESSAGES)
    assert (done.code, choices) == (64, [])
    assert "pass --yes or --dry-run" in done.err


def test_of_very_many_destinations_the_first_are_shown(replaying) -> None:
    done, _ = replaying(*(received(parked(f"x{number}")) for number in range(30)), options=("--dry-run",))
    assert done.out.count("  1 to exchange") == 20
    assert done.out.endswith("\n  and 10 more destinations\n")


@pytest.mark.parametrize("headers", [parked(), {}], ids=["listed", "unknown"])
def test_a_message_id_that_is_not_utf_8_is_printed_with_escapes(replaying, headers) -> None:
    message = received(headers, message_id=BAD)
    done, _ = replaying(message, options=("--dry-run", "--output", "json"))
    assert json.loads(done.out)["message_id"] == r"\xff\xfe"
    done, _ = replaying(message, options=("--dry-run",))
    assert done.code in {0, 3}
