"""Check queues and permissions for a member or a reader. Generators of commands for a driver."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any, Final

from pika.spec import ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED

from rabbit_chx.base.text import listed
from rabbit_chx.broker.commands import Command, OnChannel, Pause, Refused, exists, unless_missing
from rabbit_chx.broker.permissions import why_denied
from rabbit_chx.consuming.queues.arguments import delivery_limit_warning, learn
from rabbit_chx.consuming.queues.permissions import needs_of
from rabbit_chx.consuming.seats import is_taken
from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.model import SINGLE_ACTIVE_CONSUMER
from rabbit_chx.working.markers import HOLDS
from rabbit_chx.working.parking import check_parking_queue
from rabbit_chx.working.settings import Settings, warn

_DEAD_LETTER: Final = "x-dead-letter-exchange"
_CHECK_AGAIN_AFTER: Final = 1.0
_FIT: Final = "a quorum queue with a single active consumer"
_UNKNOWN: Final = {ACCESS_REFUSED, PRECONDITION_FAILED}
"""Codes of a refusal that leaves the kind of a queue unknown: the user may not declare it, or the text does not show it."""
_UNFIT: Final = {
    "quorum": f"a quorum queue without {SINGLE_ACTIVE_CONSUMER}",
    "temporary": "a classic queue that is not durable or is deleted automatically",
    "stream": "a stream",
    "classic": "a classic queue",
}
_REPLACE: Final = (
    "This cannot be changed in place: declare another queue (with preset: ordered in a topology file), bind it in place "
    "of this one, and drain this one"
)


def check_access(settings: Settings, seat: int, queues: Collection[str]) -> Generator[Command, Any, None]:
    """Try the operations that a member needs only occasionally, so that a missing permission is reported at the start.

    A member checks whether a hold still exists; RabbitMQ 4.3.1 and later require a permission on the hold's name.
    """
    yield from exists(f"{HOLDS}check")
    if settings.parking_queue is not None:
        yield from check_parking_queue(settings.parking_queue)
    if seat == 0:
        yield from _warn_of_other_consumers(settings, queues)


def _warn_of_other_consumers(settings: Settings, queues: Collection[str]) -> Generator[Command, Any, None]:
    """Warn if queues have consumers although this is the only member of the group.

    The broker counts one consumer of a queue with a single active consumer, however many are waiting, so only the first
    member can tell. The broker may still count a member that has just ended, so the queues are checked twice.
    """
    consumed = yield from _consumed(queues)
    for seat in range(1, len(queues)) if consumed else ():
        if (yield from is_taken(settings.name, seat)):
            return
    if consumed:
        yield Pause(_CHECK_AGAIN_AFTER)
        consumed = yield from _consumed(consumed)
    if consumed:
        warn(
            settings.name,
            f"{listed(consumed)}: consumed by others, such as another group, although this is the only member of the "
            "group. Each queue has one active consumer, so one of the groups gets nothing. Give each group its own queues",
        )


def _consumed(queues: Collection[str]) -> Generator[Command, Any, list[str]]:
    found = []
    for queue in sorted(queues):
        state = yield from unless_missing(OnChannel("queue_declare", {"queue": queue, "passive": True}))
        if state is not None and state.consumer_count:
            found.append(queue)
    return found


# ---- which queues a group can consume


def fit_queues(
    names: Collection[str],
    settings: Settings,
    release: Release,
    logged: dict[str, str],
    known: Collection[str] = (),
    *,
    strict: bool = False,
) -> Generator[Command, Any, tuple[str, ...]]:
    """Return the queues that a group can consume. Log why it cannot consume the others, unless ``logged`` says the same already.

    If strict, raise if there are others. Queues in ``known`` passed an earlier check and only need to exist.
    """
    found: dict[str, dict[str, Any]] = {}
    fit: list[str] = []
    refusal: Refused | None = None
    usual: dict[str, Any] = {}
    for name in sorted(names):
        try:
            yield from _check_exists(name, settings.parking_queue)
            if name not in known and not (refusal and refusal.code == ACCESS_REFUSED):
                found[name] = usual = yield from _arguments(name, usual)
        except InvalidValue as error:
            if strict:
                raise
            _log_change(settings.name, name, f"not consumed: {error}", logged)
            continue
        except Refused as refused:
            if refused.code == NOT_FOUND and not strict:
                _log_change(settings.name, name, f"not consumed now: {refused.text}", logged)
                continue
            if refused.code not in _UNKNOWN:
                raise
            refusal = refused
        fit.append(name)
        logged.pop(name, None)
    for text in _warnings(found, names, refusal, settings, release):
        warn(settings.name, text)
    return tuple(fit)


def _log_change(group: str, queue: str, text: str, logged: dict[str, str]) -> None:
    if logged.get(queue) != text:
        logged[queue] = text
        warn(group, text)


def _check_exists(name: str, parking_queue: str | None) -> Generator[Command, Any, None]:
    if name == parking_queue:
        hint = "A message that fails would come back to the handler for ever"
        raise InvalidValue("parking_queue", name, "a queue that the group does not consume", hint)
    try:
        if not (yield from exists(name)):
            raise no_such_queue(name)
    except Refused as refused:
        if refused.code != RESOURCE_LOCKED:
            raise
        raise _unfit(name, "an exclusive queue") from None


def _arguments(name: str, usual: Mapping[str, Any]) -> Generator[Command, Any, dict[str, Any]]:
    """The arguments of a queue; raise if a group cannot consume it. The arguments of another queue are tried first."""
    kind, arguments = yield from learn(name, {**usual, SINGLE_ACTIVE_CONSUMER: True})
    if kind == "quorum" and arguments.get(SINGLE_ACTIVE_CONSUMER):
        return arguments
    raise _unfit(name, _UNFIT[kind])


def _unfit(name: str, what: str) -> InvalidValue:
    return InvalidValue(f"queue {name!r}", Unquoted(what), _FIT, _REPLACE)


# ---- which queues a reader can read


def check_readable(queue: str, release: Release) -> Generator[Command, Any, str]:
    """Check that a queue can be read; return a warning, or an empty text.

    Raises:
        InvalidValue: the queue is missing, is a stream, or belongs to another connection.
    """
    try:
        if not (yield from exists(queue)):
            raise no_such_queue(queue)
        kind, arguments = yield from learn(queue, {})
    except Refused as refused:
        if refused.code == RESOURCE_LOCKED:
            hint = "Only the connection that declared it can read it"
            raise InvalidValue("queue", queue, "a queue that is not exclusive", hint) from None
        if refused.code not in _UNKNOWN:
            raise
        return ""
    if kind == "stream":
        raise is_a_stream(queue)
    return delivery_limit_warning({queue: arguments}, release) if kind == "quorum" else ""


def no_such_queue(queue: str) -> InvalidValue:
    """The error for a missing queue."""
    hint = "`rabbit-chx apply` declares the queues of a topology file"
    return InvalidValue("queue", queue, "an existing queue", hint)


def is_a_stream(queue: str) -> InvalidValue:
    """The error for a stream."""
    hint = "Read it as a stream; in Spark, use the option stream instead of queue"
    return InvalidValue(f"queue {queue!r}", Unquoted("a stream"), "a classic or quorum queue", hint)


# ---- warnings


def _warnings(
    found: Mapping[str, Mapping[str, Any]],
    names: Collection[str],
    refusal: Refused | None,
    settings: Settings,
    release: Release,
) -> Iterator[str]:
    """Warnings about these queues, of which those in ``found`` have known arguments, the others because of a refusal."""
    if limited := delivery_limit_warning(found, release):
        yield limited
    without = [name for name, arguments in found.items() if _DEAD_LETTER not in arguments]
    if settings.on_failure == "dead-letter" and without:
        yield (
            f"{listed(without)}: no argument {_DEAD_LETTER}, so the broker drops failed messages unless a policy sets "
            "dead-letter-exchange, which AMQP does not show"
        )
    if refusal is None:
        return
    needs = needs_of(settings, names)
    needs.configure.update(("queue", name) for name in names)
    text = f"the broker does not show the arguments of a queue: {refusal.text}"
    why = why_denied(refusal.text, needs, what="a member that checks its queues") or text
    yield f"could not check whether each queue is {_FIT}: {why}"
