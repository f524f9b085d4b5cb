"""Why a request to the management API failed: one sentence for each answer and each exception. No password appears in it."""

from __future__ import annotations

import shlex
import ssl
from http.client import HTTPException, IncompleteRead
from typing import Final

from rabbit_chx.broker import management_rows as rows
from rabbit_chx.broker.http import Answer, TooLarge
from rabbit_chx.broker.permissions import Needs
from rabbit_chx.broker.reasons import why_tls_failed
from rabbit_chx.errors import BrokerUnavailable

_FINAL: Final = {401, 403, 404}
"""Statuses with which a retry would also fail."""
_MOST_WORDS: Final = 1_000
"""Characters of a reason. Any server may have written it, of any length."""
_SINGULAR: Final = {"exchanges": "exchange", "queues": "queue", "policies": "policy"}
_TAGS: Final = {"monitor": "monitoring", "administrator": "administrator", "policymaker": "policymaker"}


def why_answered(answer: Answer, base: str, method: str, path: list[str], user: str) -> BrokerUnavailable:
    """Explain an answer that is not a success."""
    is_invalid = answer.status == 400 and method != "GET"
    is_final = is_invalid or answer.status in _FINAL
    return BrokerUnavailable(_words(answer, base, method, path, user), permanent=is_final)


def _words(answer: Answer, base: str, method: str, path: list[str], user: str) -> str:
    reason = _reason(answer)
    if answer.status == 404 and path[0] == "stream":
        return f"the broker at {base} lists no consumers of streams: `rabbitmq-plugins enable rabbitmq_stream_management` enables it"
    hidden = answer.status == 404 or "virtual host" in reason
    if hidden and len(path) > 1 and reason:
        return f"the broker at {base} has no {_missing(answer.status, path, user)}"
    if answer.status == 404:
        return str(no_api(base))
    if answer.status in {401, 403} and (tag := _missing_tag(reason, method)):
        verb = "read" if method == "GET" else "change"
        return (
            f"the user {user!r} may not {verb} {path[0]} at {base} ({reason}): it needs the tag "
            f"{tag} (`rabbitmqctl set_user_tags {shlex.quote(user)} {tag}`) and a permission in the virtual host"
        )
    if answer.status in {401, 403}:
        return f"the broker at {base} rejected the user {user!r} or the password"
    return f"the management API at {base} answered {answer.status} to {path[0]}: {reason or answer.reason}"


def _missing(status: int, path: list[str], user: str) -> str:
    """What a path names and the broker does not have, or hides from the user."""
    kind, vhost, *name = path
    if status == 404 and name and kind in _SINGULAR:
        return f"{_SINGULAR[kind]} {name[0]!r} in virtual host {vhost!r}"
    return (
        f"virtual host {vhost!r}, or the user {user!r} has no permission there: "
        f"`{Needs().line(vhost, user)}` lets the user read it"
    )


def no_api(base: str) -> BrokerUnavailable:
    """The error for a server that is not a management API."""
    return BrokerUnavailable(
        f"{base} is not a management API: `rabbitmq-plugins enable rabbitmq_management` on the node enables it, by default on "
        "port 15672"
    )


def why_unanswered(error: OSError, base: str, *, timeout: float, answered: bool) -> BrokerUnavailable:
    """Explain an error below HTTP; ``answered`` says that the API has answered before."""
    match error:
        case TimeoutError():
            text = f"the management API at {base} did not answer within {round(timeout, 1):g} seconds"
        case ssl.SSLError():
            text = str(why_tls_failed(error, f"the management API at {base}"))
        case ConnectionResetError():
            hint = "" if answered else "; is this the AMQP port?"
            text = f"{base} closed the connection without an answer{hint}"
        case _:
            hint = "" if answered else "; is the broker running there, with the plugin rabbitmq_management?"
            text = f"no management API answers at {base} ({error.strerror or error}){hint}"
    return BrokerUnavailable(text)


def why_no_http(error: HTTPException, base: str) -> BrokerUnavailable:
    """Explain an answer that is not HTTP, or ends too early."""
    if isinstance(error, IncompleteRead):
        return BrokerUnavailable(f"{base} closed the connection in the middle of an answer")
    return BrokerUnavailable(f"{base} does not speak HTTP ({type(error).__name__}); is this the AMQP port?")


def _reason(answer: Answer) -> str:
    """The API's own words in one line, if the answer is the API's; not all of them if there are many."""
    try:
        lines = rows.field_of(answer.value(), "reason", str, "")[:_MOST_WORDS].splitlines()
        return ": ".join(filter(None, map(str.strip, lines)))
    except (*rows.WRONG_SHAPE, TooLarge, OSError, HTTPException):
        return ""


def _missing_tag(reason: str, method: str) -> str:
    """The tag that the API asks for, if it does: "Not monitor user", "User not authorised ..."."""
    if not reason.startswith(("Not ", "User not", "Access")):
        return ""
    for word, tag in _TAGS.items():
        if word in reason:
            return tag
    return "management" if method == "GET" else "policymaker"
