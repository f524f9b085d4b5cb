"""Find out the arguments of a queue from refused declarations, since AMQP does not list them. Generators of commands.

The broker refuses to declare an existing queue with other arguments, and names one that differs
(``rabbit_misc:assert_args_equivalence/4``).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from pika.spec import PRECONDITION_FAILED

from rabbit_chx.broker.applying.protocol import Command, OnChannel, Refused
from rabbit_chx.releases import Release
from rabbit_chx.text import listed
from rabbit_chx.topology.delivery_limit import limit_warning
from rabbit_chx.topology.model import SINGLE_ACTIVE_CONSUMER

_MOST_REFUSALS: Final = 30

Kind: TypeAlias = Literal["quorum", "classic", "temporary", "stream", "unknown"]


def learn(queue: str, guess: Mapping[str, Any]) -> Generator[Command, Any, tuple[Kind, dict[str, Any], str]]:
    """Find out the kind of an existing queue, and the arguments of a quorum queue; ``guess`` is tried first.

    Also returns the text of the last refusal. A temporary queue is not durable, is exclusive or is deleted automatically.
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
            return "quorum", arguments, text
        match difference(text):
            case None:
                break
            case "x-queue-type", value:
                return "stream" if "'stream'" in value else "classic", {}, text
            case "durable" | "auto_delete" | "exclusive", _:
                return "temporary", {}, text
            case argument, value:
                adjust(arguments, argument, value)
    return "unknown", {}, text


def difference(text: str) -> tuple[str, str] | None:
    """The argument that differs according to a refused declaration, and the broker's text for the queue's value."""
    found = re.search(
        r"inequivalent arg '(.*?)' for queue .*: received .* but current is (.*)", text, re.DOTALL
    )
    return None if found is None else (found[1], found[2])


def adjust(arguments: dict[str, Any], argument: str, current: str) -> None:
    """Give an argument the value that a refusal names."""
    value = re.fullmatch(r"(?:the value )?'(.*?)'(?: of type '(\w+)')?", current, re.DOTALL)
    if value is None:
        del arguments[argument]
    elif argument == SINGLE_ACTIVE_CONSUMER:  # a value of any type; the next refusal shows the right one
        arguments[argument] = False
    else:
        arguments[argument] = _typed(value[1], value[2], arguments.get(argument))


def _typed(text: str, kind: str | None, ours: Any) -> Any:
    """Parse a value from a refusal, which shows its type only if ours has another type."""
    if kind == "bool" or isinstance(ours, bool):
        return text == "true"
    is_number = kind not in {None, "longstr"} or isinstance(ours, int)
    return int(text) if is_number and re.fullmatch(r"-?\d+", text) else text


def delivery_limit_warning(queues: Sequence[str], release: Release) -> str:
    """Explain the delivery limit of queues whose policies are unknown."""
    text = f"{listed(queues)}: {limit_warning(release)}"
    if release.has_default_delivery_limit:
        return f"{text}. AMQP does not show policies: ignore this warning if there is such a policy"
    return text
