"""Apply a plan to a live broker, with pika or with aio-pika.

    with pika.BlockingConnection(parameters) as connection:
        observed = read(management, "/")
        applied = apply(connection, plan(wanted, observed), management=management)

The steps are carried out in order on a separate channel, and read back where the broker might ignore them.
The first unexpected result stops the plan: :class:`~rabbit_chx.errors.ApplyStopped` lists the steps that are done and
those that are not. To continue, plan again and apply.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rabbit_chx.broker.applying.plan_commands import Applied, check_plan, plan_commands
from rabbit_chx.broker.commands import TIMEOUT, Command, Driver
from rabbit_chx.topology.planning.steps import Plan, Step

if TYPE_CHECKING:
    import ssl

    from aio_pika.abc import AbstractChannel, AbstractConnection
    from pika import BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel

    from rabbit_chx.broker.management import Management


def apply(
    connection_or_channel: BlockingConnection | BlockingChannel | str,
    plan: Plan,
    *,
    management: Management | None = None,
    on_step: Callable[[Step], object] | None = None,
    dry_run: bool = False,
    record: bool = True,
    holder: str | None = None,
    timeout: float = TIMEOUT,
    tls: ssl.SSLContext | None = None,
) -> Applied:
    r"""Apply a plan with pika.

        topology = load("topology.yaml")
        management = Management("http://host:15672", credentials=lambda: (user, password))
        steps = plan(topology, read(management, topology.vhost))
        print(*steps.steps, sep="\n")
        try:
            applied = apply("amqp://user:password@host/%2F", steps, management=management, on_step=print)
        except ApplyStopped as stopped:
            print(stopped, "not tried:", *stopped.remaining)

    Args:
        connection_or_channel: of pika, or an AMQP URL; of a channel only the connection is used.
        plan: for the virtual host of the connection.
        management: to read back what was done. Without it only refusals are noticed, policies cannot be set, and
            ``Applied.unverified`` lists what the broker may have ignored.
        on_step: called with each step that is done or was found done.
        dry_run: change nothing, and return all steps as remaining.
        record: record the order in which rings were bound, in bindings of the exchange ``rabbit-chx.order``. Without
            the record (or without ``management``) only the node knows the order.
        holder: the text that the lock shows for its holder; by default user, host, process and time. With an empty
            text, the lock shows nothing.
        timeout: seconds for the broker to answer a command, of which a busy cluster takes some to declare a quorum queue; then
            the connection is dropped.
        tls: for an amqps URL; by default certificate and host name are checked.

    Raises:
        ApplyStopped: the plan was not applied completely; the message lists the steps that are done and gives the reason. With
            ``management``, none is done if the bindings of a ring or slot are no longer those that the plan was made for.
        BrokerUnavailable: no broker answers at the URL.
    """
    from rabbit_chx.broker.driver import PikaDriver, opened

    with opened(connection_or_channel, tls) as connection:
        driver = PikaDriver(connection, management, timeout=timeout)
        commands = _commands(driver, plan, on_step, dry_run=dry_run, record=record, holder=holder)
        return driver.run(commands)


async def apply_async(
    connection_or_channel: AbstractConnection | AbstractChannel | str,
    plan: Plan,
    *,
    management: Management | None = None,
    on_step: Callable[[Step], object] | None = None,
    dry_run: bool = False,
    record: bool = True,
    holder: str | None = None,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of one command, as apply() has it
    tls: ssl.SSLContext | None = None,
) -> Applied:
    """Apply a plan with aio-pika: as `apply`, with a connection or a channel of aio-pika, or an AMQP URL.

        async with await aio_pika.connect("amqp://user:password@host/%2F") as connection:
            applied = await apply_async(connection, steps, management=management)

    An apply stops when its connection is lost, even if a robust connection reconnects. A cancellation takes effect when the broker has
    answered the current command, a second one at once.
    """
    from rabbit_chx.broker.aio_driver import AioDriver, opened

    async with opened(connection_or_channel, tls) as connection:
        driver = AioDriver(connection, management, timeout=timeout)
        commands = _commands(driver, plan, on_step, dry_run=dry_run, record=record, holder=holder)
        return await driver.carry_out(commands)


def _commands(
    driver: Driver,
    plan: Plan,
    on_step: Callable[[Step], object] | None,
    *,
    dry_run: bool,
    record: bool,
    holder: str | None,
) -> Generator[Command, Any, Applied]:
    check_plan(plan, driver.vhost, seen=driver.has_management)
    if dry_run:
        return Applied(remaining=plan.steps)
    holder, seen = lock_holder() if holder is None else holder, driver.has_management
    return (yield from plan_commands(plan, holder=holder, seen=seen, record=record, on_step=on_step))


def lock_holder() -> str:
    """Who applies since when, for the error of a second apply."""
    return f"{this_process()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def this_process() -> str:
    """The user, the host and the process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}, process {os.getpid()}"
