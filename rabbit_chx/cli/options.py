"""Options that several verbs share, and the exchange they describe."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rabbit_chx.errors import InvalidValue
from rabbit_chx.exchange import ConsistentHashExchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from rabbit_chx.ring import Destination

__all__ = ["broker_options", "exchange_options", "output_option", "parse_queue"]

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def output_option(command: _Command) -> _Command:
    """``--output``: a table for people, JSON lines for programs."""
    option = click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="json prints one object a line on stdout; everything else goes to stderr.",
    )
    return option(command)


def broker_options(command: _Command) -> _Command:
    """``--url``: where the broker is; ``--password-file``: what need not stand in it."""
    url = click.option(
        "-U",
        "--url",
        envvar=["AMQP_URL", "RABBITMQ_URL"],
        metavar="URL",
        help="The broker: amqp://user:password@host:5672/vhost. [env var: AMQP_URL, RABBITMQ_URL]",
    )
    password_file = click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        envvar="RABBITMQ_PASSWORD_FILE",
        show_envvar=True,
        metavar="FILE",
        help="The password is the one line of FILE, read on each connect, and not in the URL.",
    )
    return url(password_file(command))


def parse_queue(text: str) -> tuple[Destination, str]:
    """``NAME`` or ``NAME=WEIGHT``; a name that holds an equals sign needs a weight behind it."""
    name, equals, weight = text.rpartition("=")
    return (name, weight) if equals else (text, "1")


def exchange_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe an exchange; the command gets it as ``exchange``."""

    @click.option(
        "-q",
        "--queue",
        "queues",
        multiple=True,
        metavar="NAME[=WEIGHT]",
        help="A queue and its weight, in the order of the bind commands. Repeat it for each queue.",
    )
    @click.option("--hash-header", metavar="H", help="The exchange hashes this header.")
    @click.option(
        "--hash-property", metavar="P", help="The exchange hashes message_id, correlation_id or timestamp."
    )
    @click.option(
        "-r", "--release", default="4.3", show_default=True, metavar="R", help="The broker's release."
    )
    @click.option(
        "--store",
        type=click.Choice(["mnesia", "khepri"]),
        help="The broker's metadata store, where it is not its release's default.",
    )
    @functools.wraps(command)
    def wrapper(
        *,
        queues: tuple[str, ...],
        hash_header: str | None,
        hash_property: str | None,
        release: str,
        store: str | None,
        **others: Any,
    ) -> Any:
        if not queues:
            raise InvalidValue(
                "the command",
                got="no --queue",
                allowed="--queue NAME[=WEIGHT], once for each queue in bind order",
                way_out="for example: --queue q0 --queue q1 --queue q2=2",
            )
        exchange = ConsistentHashExchange(
            [parse_queue(queue) for queue in queues],
            release=release,
            store=store,
            hash_header=hash_header,
            hash_property=hash_property,
        )
        return command(exchange=exchange, **others)

    return wrapper
