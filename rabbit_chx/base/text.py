"""Text from elsewhere, made safe to show: names and keys may hold terminal escapes and characters that reorder a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from json import JSONDecodeError

UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters (C0, DEL, C1), bidirectional controls, and the separators of lines and paragraphs."""


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with an escape in place of each unprintable character, except those to ``keep``.

    >>> print(printable("\x1b[2J\u202eqa"))
    \x1b[2J\u202eqa
    """
    return UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)


# A password may hold blanks, but does not extend beyond the quote or bracket after the URL, nor to another URL. A URL
# that was parsed as a path has one slash. Without an @, a match is passed over, so that no text is searched twice.
_UP_TO_HOST: Final = re.compile(r""":/+(?:(?!['")][,.;:)]?(?:\s|$)|\s\S*:/).)*""")


def without_secrets(text: str) -> str:
    """The text without user and password of a URL that it quotes; call it before the text is cut.

    >>> without_secrets("got 'amqp://user:password@host/'")
    "got 'amqp://***@host/'"
    """
    return _UP_TO_HOST.sub(lambda found: re.sub("^.*@", "://***@", found[0]), text)


def is_utf8(text: str) -> bool:
    r"""Whether UTF-8 can express the text: a lone surrogate has no encoding.

    >>> is_utf8("\u00fc"), is_utf8("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def described(error: BaseException) -> str:
    """The type and the text of an error, as far as UTF-8 can encode it; an error may fail to describe itself."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a class of the program may raise anything
        text = type(error).__name__
    return text.encode(errors="replace").decode()


def text_of(key: Any) -> str:
    """A key as text, with an escape in place of each byte that is not UTF-8."""
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)


def unescaped(literal: str) -> str:
    r"""What a literal of Python means, which is given without its quotes.

    >>> unescaped(r"it\'s \xe4")
    "it's ä"
    """
    return literal.encode("latin-1", "backslashreplace").decode("unicode_escape")


def text_of_reply(reply: str) -> str:
    r"""A broker's reply as text. One that is not UTF-8 is a literal of bytes in the exceptions of pika.

    RabbitMQ 3.12 to 4.0.4 send a name that Latin-1 can encode in Latin-1, and 3.10 may cut UTF-8 within a letter.

    >>> text_of_reply(r"b'no queue \xe4'"), text_of_reply(r"b'no queue \xc3\xa4\xc3...'")
    ('no queue ä', 'no queue ä\ufffd...')
    """
    if reply[:2] not in {"b'", 'b"'}:
        return reply
    try:
        sent = unescaped(reply[2:-1]).encode("latin-1")
    except ValueError:  # a server that is no RabbitMQ may send anything
        return reply
    text = sent.decode(errors="replace")
    return sent.decode("latin-1") if text.replace("\ufffd", "").isascii() else text


def too_long(text: str | bytes, size: int) -> str:
    """The beginning of a text that is too long, and its size in bytes.

    >>> too_long(b"x" * 300, 300)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'... (300 bytes)"
    """
    return f"{without_secrets(text_of(text))[:40]!r}... ({size} bytes)"


def syntax_error(error: JSONDecodeError) -> str:
    """What is wrong in a JSON text, without the position.

    >>> from json import JSONDecodeError
    >>> syntax_error(JSONDecodeError("Unterminated string starting at", '{"a": "b}', 6))
    'a syntax error (unterminated string)'
    """
    words = error.msg.removesuffix(" at").removesuffix(" starting")
    return f"a syntax error ({words[0].lower()}{words[1:]})"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "unknown" if share is None else f"{share:.2%}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """A count with its noun.

    >>> counted(1, "step"), counted(2, "policy", "policies")
    ('1 step', '2 policies')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def seconds(count: float) -> str:
    """A number of seconds, to the millisecond.

    >>> seconds(1.0), seconds(0.5), seconds(0.9997970891)
    ('1 second', '0.5 seconds', '1 second')
    """
    rounded = round(count, 3)
    return f"{rounded:g} second{'s' * (rounded != 1)}"


def sentences(*texts: str) -> str:
    """Texts as sentences, without a full stop after a question; empty ones are left out.

    >>> sentences("is it running?", "", "Try again", "Or name another")
    'is it running? Try again. Or name another'
    """
    return ". ".join(filter(None, texts)).replace("?. ", "? ")


def listed(names: Sequence[str], noun: str = "queue") -> str:
    """The first names of queues, or of other things, and the number of the rest.

    >>> listed(["a"]), listed("abcdefg")
    ("queue 'a'", "queues 'a', 'b', 'c', 'd', 'e' and 2 more")
    """
    more = len(names) - 5
    first = ", ".join(map(repr, names[:5]))
    return f"{noun}{'s' * (len(names) > 1)} {first}" + (f" and {more} more" if more > 0 else "")
