"""The outcome of the commands of `apply`: reading back, and comparing what is there with what should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from rabbit_chx.broker.commands import Command, Pause, Surprise
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.topology.model import Binding, Exchange, Queue

_Found = TypeVar("_Found")
_LOOK_AGAIN: Final = (0.1, 0.2, 0.4, 0.8)
"""Seconds until what was changed is read again, if it is not there yet."""
# rabbit_exchange:assert_args_equivalence/2 compares this one of all exchange arguments, and no other.
_COMPARED_BY_THE_BROKER: Final = {"alternate-exchange"}

Listed = dict[object, Binding]
"""Bindings by their identity."""


def read_back(
    look: Callable[[], Generator[Command, Any, _Found]], check: Callable[[_Found], object]
) -> Generator[Command, Any, _Found]:
    """Look until the check does not raise: on Khepri, the node that answers may be a moment behind the one that changed."""
    for pause in (*_LOOK_AGAIN, None):
        try:
            found = yield from look()
            check(found)
        except (Surprise, BrokerUnavailable) as trouble:  # of a single object that is not listed
            if pause is None or not getattr(trouble, "permanent", True):
                raise
            yield Pause(pause)
        else:
            break
    return found


def unverified(declared: Iterable[Exchange | Queue]) -> Iterator[str]:
    """What is not known of declared exchanges if they cannot be read."""
    for each in declared:
        if isinstance(each, Exchange) and (
            ignorable := sorted(set(each.arguments) - _COMPARED_BY_THE_BROKER)
        ):
            yield (
                f"whether exchange {each.name!r} has {', '.join(ignorable)} as declared: an exchange "
                "that existed before keeps its own"
            )


_OTHER_ARGUMENTS: Final = {
    "exchange": "; the broker accepts the declaration and ignores them. Arguments cannot be changed in place: declare a second "
    "exchange under another name and switch its publishers (blue/green)",
    "queue": ": declare another queue and bind it in place of this one",
}


def check_declared(kind: str, wanted: Exchange | Queue, found: Exchange | Queue | None) -> None:
    """An exchange or a queue after its declaration."""
    what = f"{kind} {wanted.name!r}"
    if found is None:
        raise Surprise(f"the broker does not list {what} after it was declared")
    if kind == "queue" and found.type != wanted.type:
        raise Surprise(
            f"{what} is a {found.type} queue, not {wanted.type}, because of the default queue type of the virtual host. Either "
            "change the file, or change that type and delete the queue, which has just been declared"
        )
    if dict(found.arguments) != dict(wanted.arguments):
        given, declared = _shown(found.arguments), _shown(wanted.arguments)
        raise Surprise(
            f"{what} existed with the arguments {given} instead of {declared}{_OTHER_ARGUMENTS[kind]}"
        )


def check_bindings(source: str, expected: Listed, found: Listed) -> None:
    """The bindings of one exchange."""
    differences = [f"missing {_shown_binding(expected[each])}" for each in expected if each not in found]
    differences += [f"unexpected {_shown_binding(found[each])}" for each in found if each not in expected]
    if differences:
        raise Surprise(
            f"exchange {source!r} does not have the bindings that it should have now: {'; '.join(differences)}. "
            "Another program changes it, or a client bound it that writes numbers in arguments with another AMQP "
            "type, and only that client or the management API can unbind it"
        )


def _shown_binding(bound: Binding) -> str:
    return f"{bound.destination} with key {bound.key!r} and arguments {_shown(bound.arguments)}"


def _shown(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), sort_keys=True, default=str) if arguments else "none"
