"""What brokers answered, word for word, and what a reader is told; and two codecs that write the same bytes."""

from __future__ import annotations

import asyncio
import re
import shlex
from types import SimpleNamespace

import aio_pika
import pamqp.encode
import pika.data
import pytest

from rabbit_chx import InvalidValue, ToExchange
from rabbit_chx.broker import aio_driver
from rabbit_chx.broker.aio_driver import AioDriver, as_pika_writes, opened
from rabbit_chx.broker.applying.broker_errors import needs_of, why_refused
from rabbit_chx.broker.applying.handover import marker_commands
from rabbit_chx.broker.commands import OnChannel, Pause
from rabbit_chx.topology.model import Binding, Exchange, Policy, Queue
from rabbit_chx.topology.planning.steps import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    SetPolicy,
    Unbind,
)

DECLARE = DeclareExchange(Exchange("x", "fanout"))


INEQUIVALENT = (
    "PRECONDITION_FAILED - inequivalent arg '{}' for {} in vhost '/': received {} but current is {}"
)
REFUSALS = [
    (
        406,
        INEQUIVALENT.format("type", "exchange 'x'", "'fanout'", "''x-consistent-hash''"),
        r"exchange 'x' exists with 'type' x-consistent-hash instead of fanout.*blue/green",
    ),
    (
        406,
        INEQUIVALENT.format("x-max-length", "queue 'plain'", "the value '4' of type 'signedint'", "none"),
        r"'x-max-length' none instead of .*declare another queue",
    ),
    (406, "PRECONDITION_FAILED - unknown exchange type 'x-recent-history'", "plugins enable rabbitmq_recent"),
    (503, "COMMAND_INVALID - unknown exchange type 'x-modulus-hash'", "plugins enable rabbitmq_sharding"),
    (503, "COMMAND_INVALID - unknown exchange type 'x-local-random'", "came with release 4.0"),
    (503, "COMMAND_INVALID - unknown exchange type 'x-foo'", "does not know the exchange type 'x-foo'"),
    (
        404,
        "NOT_FOUND - no exchange 'nope' in vhost 'v'",
        "no exchange 'nope' in virtual host 'v'.*plan again",
    ),
    (541, "INTERNAL_ERROR", "the broker failed.*its log"),
    (
        406,
        "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost 'my vhost' (5) is reached",
        "not have more than 5 queues; `rabbitmqctl set_vhost_limits -p 'my vhost'",
    ),
    (
        406,
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use",
        "refused it: 406 .*exchange 'x' in vhost '/' in use; other bindings start from it.*unbinds exclusive queues: keep the exchange",
    ),
    (
        406,
        'PRECONDITION_FAILED - Invalid x-match field value <<"al">>; expected all or any',
        "refused it: 406 .*all or any; it refuses the same again, so change the topology$",
    ),
    (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty", "refused it: 406 .* not empty$"),
    (0, "pika cannot send it", "^pika cannot send it$"),
]


@pytest.mark.parametrize(("code", "text", "told"), REFUSALS)
def test_a_refusal_is_explained_with_what_helps(code, text, told) -> None:
    assert re.search(told, why_refused(code, text, DECLARE, [DECLARE]))


def test_a_queue_in_use_has_consumers_and_no_bindings() -> None:
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    said = why_refused(406, text, DeleteQueue("q"), [DeleteQueue("q")])
    assert said == f"the broker refused it: 406 {text}; it has consumers: plan again"


FORWARDING = DeclareExchange(Exchange("x", "fanout", arguments={"alternate-exchange": "a"}))
DEAD_LETTERING = DeclareQueue(Queue("q", arguments={"x-dead-letter-exchange": "d"}))


@pytest.mark.parametrize(
    ("step", "resource", "operation"),
    [
        (DECLARE, "exchange 'x'", "configure"),
        (FORWARDING, "exchange 'a'", "write"),
        (DeclareQueue(Queue("q")), "queue 'q'", "configure"),
        (DEAD_LETTERING, "queue 'q'", "configure or read"),
        (Bind(Binding("x", "q")), "queue 'q'", "write"),
        (Unbind(Binding("x", "q")), "exchange 'x'", "read"),
        (Bind(Binding("x", ToExchange("y"))), "exchange 'y'", "write"),
        (DeleteQueue("q"), "queue 'q'", "configure"),
        (None, "queue 'rabbit-chx.lock'", "configure"),
    ],
)
def test_for_release_3_10_the_command_determines_the_missing_permission(step, resource, operation) -> None:
    steps = [step] if step else [DECLARE]
    text = f"ACCESS_REFUSED - access to {resource} in vhost '/' refused for user 'p'"
    said = why_refused(403, text, step, steps)
    assert said.startswith(f"user 'p' has no {operation} permission on {resource} in virtual host '/'; ")


def test_the_line_that_grants_it_survives_the_shell_and_matches_just_the_names() -> None:
    odd = "a|b (c)'s ü*"
    steps = [
        DeclareExchange(Exchange("x.1", "fanout", arguments={"alternate-exchange": "a"})),
        DeclareQueue(Queue(odd, arguments={"x-dead-letter-exchange": ""})),
        Bind(Binding("x.1", odd)),
    ]
    text = "ACCESS_REFUSED - read access to exchange 'x.1' in vhost 'my vhost' refused for user 'it's me'"
    line = re.search("`rabbitmqctl (.*)`", why_refused(403, text, steps[2], steps))
    assert line
    command, flag, vhost, user, *patterns = shlex.split(line[1])
    assert (command, flag, vhost, user) == ("set_permissions", "-p", "my vhost", "it's me")
    wanted = [{"rabbit-chx.lock", "x.1", odd}, {"a", "amq.default", odd}, {"x.1", odd}]
    for pattern, names in zip(patterns, wanted, strict=True):
        assert all(re.search(pattern, name) for name in names)
        assert not any(re.search(pattern, f"{name}?") or re.search(pattern, f"-{name}") for name in names)
        assert not re.search(pattern, "x01")


def test_a_plan_that_reads_nothing_asks_for_nothing_to_read() -> None:
    text = "ACCESS_REFUSED - access to queue 'rabbit-chx.lock' in vhost '/' refused for user 'p'"
    said = why_refused(403, text, None, [DeclareQueue(Queue("q"))])
    assert said.split("`")[1].endswith(r" '^(q|rabbit-chx\.lock)$' '^$' '^$'")


# ---- one encoding


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bits", [0, 1, 7, 8, 15, 16, 31, 32, 40, 62])
def test_aio_pika_writes_the_integers_of_arguments_as_pika_does(bits, sign) -> None:
    for number in (sign * 2**bits - 1, sign * 2**bits, sign * 2**bits + 1):
        table = {"n": number, "deep": {"m": number}, "all": [number, True], "flag": False, "text": "1"}
        written = as_pika_writes(table)
        assert written == table
        ordered = dict(sorted(table.items()))  # as pamqp writes them; the broker sorts them by itself
        pieces: list[bytes] = []
        pika.data.encode_table(pieces, ordered)
        assert pamqp.encode.field_table(written) == b"".join(pieces)


@pytest.mark.parametrize("cancelled", ["queue_declare", "close"])
async def test_a_cancellation_takes_effect_when_the_broker_has_answered(cancelled) -> None:
    """aiormq would close the channel of the command, and the broker may end the connection if that is done twice."""

    class Channel:
        is_closed = False

        async def queue_declare(self, queue: str) -> None:
            await self._called("queue_declare")

        async def close(self) -> None:
            await self._called("close")

        async def _called(self, name: str) -> None:
            if name == cancelled:
                running[0].cancel()
            await asyncio.sleep(0.01)
            answered.append(name)

    async def new_channel() -> Channel:
        return Channel()

    running: list[asyncio.Task[object]] = []
    answered: list[str] = []
    url = SimpleNamespace(host="localhost", port=5672)
    driver = AioDriver(SimpleNamespace(vhost="/", url=url, channel=new_channel))
    commands = (OnChannel("queue_declare", {"queue": "q"}) for _ in "1")
    running.append(asyncio.create_task(driver.carry_out(commands)))
    await asyncio.wait(running)
    assert running[0].cancelled()
    assert answered == ["queue_declare", "close"]


@pytest.mark.parametrize("kind", [aio_pika.Channel, aio_pika.RobustChannel])
async def test_a_channel_that_is_not_open_is_refused(kind, monkeypatch) -> None:
    """One that was not awaited, and that of a closed robust connection, which aio-pika waits for forever."""
    connection = SimpleNamespace(ready=asyncio.Event().wait, transport=None, connected=asyncio.Event())
    monkeypatch.setattr(aio_driver, "TIMEOUT", 0.05)
    with pytest.raises(InvalidValue, match="expected an open connection or channel of aio-pika"):
        async with asyncio.timeout(20), opened(kind(connection)):
            pass


# ---- handover


def test_a_drain_that_is_cancelled_deletes_its_queue_for_answers() -> None:
    commands = marker_commands(["q"], 1.0, 0.0)
    next(commands)
    commands.send(SimpleNamespace(queue="amq.gen-1"))
    assert commands.send(None) == Pause(0.0)
    assert commands.throw(asyncio.CancelledError()) == OnChannel("queue_delete", {"queue": "amq.gen-1"})
    with pytest.raises(asyncio.CancelledError):
        commands.send(None)


@pytest.mark.parametrize("queues", ["abc", []])
def test_the_queues_to_drain_are_a_list_of_names(queues) -> None:
    with pytest.raises(InvalidValue, match="names of queues"):
        next(marker_commands(queues, 1.0, 0.0))


def test_policies_need_a_tag_and_no_permission_on_a_resource() -> None:
    policy = SetPolicy(Policy("p", "x"))
    assert needs_of([policy]) == needs_of([])
    text = "ACCESS_REFUSED - configure access to exchange 'x' in vhost '/' refused for user 'a b'"
    assert "`rabbitmqctl set_user_tags 'a b' policymaker`" in why_refused(
        403, text, DECLARE, [DECLARE, policy]
    )
    assert "policymaker" not in why_refused(403, text, DECLARE, [DECLARE])
