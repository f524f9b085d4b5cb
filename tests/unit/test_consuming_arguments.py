"""The arguments of a queue, learned from a broker that refuses to declare it with others."""

from __future__ import annotations

import logging

import pytest

from rabbit_chx import InvalidValue
from rabbit_chx.broker.commands import OnChannel, Refused, carry_out as do_each
from rabbit_chx.broker.driver import at_once
from rabbit_chx.consuming.queues.queues import check_readable, fit_queues
from rabbit_chx.mirror.releases import Release
from rabbit_chx.working.settings import Settings
from tests.queues import ORDERED, SINGLE_ACTIVE
from tests.unit.test_consuming_lanes import SETTINGS

NEWEST = Release._of_broker("4.3.0")
TYPES = {str: "longstr", bool: "bool", int: "signedint"}


class Broker:
    """Queues with these arguments, and the refused declarations, as texts of `rabbit_misc:assert_args_equivalence/4`."""

    def __init__(self, **queues) -> None:
        self.queues = queues
        self.refused: list[str] = []

    async def do(self, command: OnChannel) -> None:
        if command.arguments.get("passive"):
            return
        name, given = command.arguments["queue"], command.arguments["arguments"]
        there = self.queues[name]
        for argument in sorted(there.keys() | given.keys()):
            ours, current = given.get(argument), there.get(argument)
            if ours != current:
                texts = [_shown(each, typed=None in (ours, current)) for each in (ours, current)]
                text = f"PRECONDITION_FAILED - inequivalent arg '{argument}' for queue '{name}' in vhost '/': received {texts[0]} but current is {texts[1]}"
                self.refused.append(text)
                raise Refused(406, text if len(text) <= 255 else f"{text[:252]}...")

    def fit(self) -> tuple[str, ...]:
        """The queues that a group can consume."""
        return at_once(
            do_each(fit_queues(self.queues, Settings(**SETTINGS), NEWEST, {}, strict=True), self.do)
        )


def _shown(value: object, *, typed: bool) -> str:
    if value is None:
        return "none"
    text = f"'{str(value).lower() if isinstance(value, bool) else value}'"
    return f"the value {text} of type '{TYPES[type(value)]}'" if typed else text


@pytest.mark.parametrize("arguments", [ORDERED, {**SINGLE_ACTIVE, "x-dead-letter-exchange": "lost " * 10}])
def test_a_queue_is_consumed_wherever_the_broker_cuts_the_text_of_a_refusal(arguments, caplog) -> None:
    for length in range(1, 256):
        caplog.clear()
        broker = Broker(**{"q" * length: arguments, "z": ORDERED})
        assert broker.fit() == ("q" * length, "z")
        assert ("does not show the arguments" in caplog.text) == (len(broker.refused[0]) > 255)


def test_one_warning_says_why_a_queue_with_a_long_name_is_not_checked(caplog) -> None:
    Broker(**{"q" * 200: ORDERED, "r" * 200: ORDERED}).fit()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "group 'billing': could not check whether each queue is a quorum queue with a single active consumer: the broker does "
        "not show the arguments of a queue: PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'rrr"
    )


def test_the_other_queues_are_checked_when_one_has_a_long_name() -> None:
    with pytest.raises(InvalidValue, match="queue 'z': got a stream"):
        Broker(**{"q" * 200: ORDERED, "z": {"x-queue-type": "stream"}}).fit()


def test_a_queue_whose_type_is_cut_is_not_taken_for_a_classic_one() -> None:
    name = "q" * 135
    broker = Broker(**{name: {"x-queue-type": "stream", "x-single-active-consumer": True}})
    assert broker.fit() == (name,)
    assert "received 'quorum' but current is 'st" in broker.refused[0][:252]
    assert "'stream'" not in broker.refused[0][:252]


@pytest.mark.parametrize("single", [True, False])
def test_a_check_of_a_queue_to_read_refuses_each_argument_once(single) -> None:
    broker = Broker(q={**ORDERED, "x-single-active-consumer": single})
    assert at_once(do_each(check_readable("q", NEWEST), broker.do)) == ""
    assert len(broker.refused) == 2


def test_a_reader_warns_of_the_delivery_limit_of_a_queue_with_a_single_active_consumer() -> None:
    broker = Broker(q=SINGLE_ACTIVE)
    assert "a delivery limit applies" in at_once(do_each(check_readable("q", NEWEST), broker.do))


def test_a_single_active_consumer_that_is_turned_off_is_none() -> None:
    with pytest.raises(InvalidValue, match="a quorum queue without x-single-active-consumer"):
        Broker(q={**ORDERED, "x-single-active-consumer": False}).fit()
