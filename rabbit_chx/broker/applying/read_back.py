"""Compare the state of the broker with the commands that it received and raise `Surprise` where they differ. No IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from rabbit_chx.broker.commands import Surprise
from rabbit_chx.topology.model import Binding, Exchange, Queue

Listed = dict[object, Binding]
"""Bindings by their identity."""


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
            f"{what} is a {found.type} queue, not {wanted.type}, because of the default queue type of the virtual host: change "
            "that, or the file"
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
