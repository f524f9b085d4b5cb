"""Find out the arguments of a queue from refused declarations, since AMQP does not list them. Generators of commands.

The broker refuses to declare an existing queue with other arguments, and names one that differs
(``rabbit_misc:assert_args_equivalence/4``).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any, Final, Literal, TypeAlias

from pika.spec import PRECONDITION_FAILED

from rabbit_chx.base.text import listed
from rabbit_chx.broker.applying.broker_errors import INEQUIVALENT
from rabbit_chx.broker.commands import Command, OnChannel, Refused
from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.checks.ordered_queues import limit_applies, limit_warning
from rabbit_chx.topology.model import DELIVERY_LIMIT

_MOST_REFUSALS: Final = 30

_VALUE: Final = re.compile(r"none|(?:the value )?'(.*?)'(?: of type '(\w+)')?", re.DOTALL).fullmatch
"""A value in a refusal, with its type only if ours has another type."""

Kind: TypeAlias = Literal["quorum", "classic", "temporary", "stream"]


def learn(queue: str, guess: Mapping[str, Any]) -> Generator[Command, Any, tuple[Kind, dict[str, Any]]]:
    """Find out the kind of an existing queue, and the arguments of a quorum queue; ``guess`` is tried first.

    A temporary queue is not durable, is exclusive or is deleted automatically.

    Raises:
        Refused: with the code 406 if the refusals do not show the arguments, as of a queue with a long name.
    """
    arguments = {**guess, "x-queue-type": "quorum"}
    text = ""
    for _ in range(_MOST_REFUSALS):
        try:
            yield OnChannel("queue_declare", {"queue": queue, "durable": True, "arguments": arguments})
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            text = refused.text
        else:
            return "quorum", arguments
        differing = INEQUIVALENT(text)
        # The broker cuts a text of more than 255 bytes.
        if differing is None or (value := _VALUE(differing["current"])) is None:
            break
        match differing["argument"]:
            case "x-queue-type":
                return "stream" if value[1] == "stream" else "classic", {}
            case "durable" | "auto_delete" | "exclusive":
                return "temporary", {}
            case argument:
                _adjust(arguments, argument, *value.groups())
    raise Refused(PRECONDITION_FAILED, text)


def _adjust(arguments: dict[str, Any], argument: str, text: str | None, kind: str | None) -> None:
    """Give an argument the value that a refusal names."""
    ours = arguments.pop(argument, None)
    if text is None:
        return
    is_number = kind not in {None, "longstr"} or isinstance(ours, int)
    if kind == "bool" or isinstance(ours, bool):
        arguments[argument] = text == "true"
    else:
        arguments[argument] = int(text) if is_number and re.fullmatch(r"-?\d+", text) else text


def delivery_limit_warning(found: Mapping[str, Mapping[str, Any]], release: Release) -> str:
    """Explain the delivery limit of those quorum queues that have one by their arguments; empty if none has."""
    limited = [
        name for name, arguments in found.items() if limit_applies(release, arguments.get(DELIVERY_LIMIT))
    ]
    if not limited:
        return ""
    text = f"{listed(limited)}: {limit_warning(release)}"
    if release._has_default_delivery_limit:
        return f"{text}. AMQP does not show policies: ignore this warning if there is such a policy"
    return text
