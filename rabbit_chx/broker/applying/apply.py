"""Carry out a plan on a live broker, with pika or with aio-pika: the two faces of one sequence of commands.

    with pika.BlockingConnection(parameters) as connection:
        observed = read(management, "/")
        applied = apply(connection, plan(wanted, observed), management=management)

One step after the other on a channel of its own, each read back where the broker might ignore it, up to the first
surprise. An :class:`~rabbit_chx.errors.ApplyStopped` says what is done and what is not; to go on, plan again and apply.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rabbit_chx.broker.applying.plan_commands import Applied, check_plan, plan_commands

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from aio_pika.abc import AbstractChannel, AbstractConnection
    from pika import BlockingConnection
    from pika.adapters.blocking_connection import BlockingChannel

    from rabbit_chx.broker.management import Management
    from rabbit_chx.topology.planning.steps import Plan, Step

__all__ = ["Applied", "apply", "apply_async"]


def apply(
    connection_or_channel: BlockingConnection | BlockingChannel | str,
    plan: Plan,
    *,
    management: Management | None = None,
    on_step: Callable[[Step], object] | None = None,
    dry_run: bool = False,
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
        connection_or_channel: of pika's, or an AMQP URL; of a channel only the connection is used.
        plan: for the virtual host of the connection.
        management: to read back what was done. Without it only refusals are noticed, policies cannot be set, and
            ``Applied.unverified`` lists what may have been ignored.
        on_step: called with each step once it is done, or was found done.
        dry_run: change nothing, and return all steps as remaining.
        tls: for an amqps URL; by default certificate and host name are checked.

    Raises:
        ApplyStopped: it was not applied to its end; what is done, and why.
        BrokerUnavailable: no broker answers at the URL.
    """
    from rabbit_chx.broker.applying.pika_driver import PikaDriver, opened

    with opened(connection_or_channel, tls) as connection:
        driver = PikaDriver(connection, management)
        check_plan(plan, driver.vhost, seen=management is not None)
        if dry_run:
            return Applied(remaining=plan.steps)
        seen = management is not None
        return driver.run(plan_commands(plan, holder=_holder(), token=_token(), seen=seen, on_step=on_step))


async def apply_async(
    connection_or_channel: AbstractConnection | AbstractChannel | str,
    plan: Plan,
    *,
    management: Management | None = None,
    on_step: Callable[[Step], object] | None = None,
    dry_run: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Applied:
    """Apply a plan with aio-pika: as `apply`, with a connection or a channel of aio-pika's, or an AMQP URL.

        async with await aio_pika.connect("amqp://user:password@host/%2F") as connection:
            applied = await apply_async(connection, steps, management=management)

    A robust connection may come back by itself; an apply whose connection was lost has stopped all the same.
    """
    from rabbit_chx.broker.applying.aio_driver import AioDriver, opened

    async with opened(connection_or_channel, tls) as connection:
        driver = AioDriver(connection, management)
        check_plan(plan, driver.vhost, seen=management is not None)
        if dry_run:
            return Applied(remaining=plan.steps)
        seen = management is not None
        return await driver.run(
            plan_commands(plan, holder=_holder(), token=_token(), seen=seen, on_step=on_step)
        )


def _holder() -> str:
    """Who applies: whoever finds the lock taken has to know whom to ask."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}, process {os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _token() -> int:
    return 1 + secrets.randbelow(2**31 - 1)
