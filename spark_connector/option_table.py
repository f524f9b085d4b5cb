"""Tables of options, which are fields of dataclasses, and the parser that turns text into values.

Spark passes each value as text and each name in lower case. Unknown names and values out of range are errors, which
never contain a secret. This module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Self

from rabbit_chx.base.text import sentences, too_long
from rabbit_chx.errors import InvalidValue, Unquoted

MAX_SHORT_TEXT: Final = 255
"""Bytes in a name, a routing key or another short string of AMQP."""

_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""Options of Spark itself, which it also passes to a sink."""


@dataclass(frozen=True)
class Option:
    """A row of a table."""

    name: str
    default: str
    expected: str
    doc: str
    group: str
    aliases: tuple[str, ...]
    secret: bool


# -- the fields of a table --------------------------------------------------------------------------


def option(
    group: str,
    default: Any,
    expected: str,
    doc: str,
    parse: Callable[[str], Any],
    *,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field with the metadata of an `Option`; ``parse`` returns None for invalid text."""
    shown = {"expected": expected, "doc": doc, "group": group, "aliases": aliases, "secret": secret}
    return field(default=default, repr=not secret, metadata={"shown": shown, "parse": parse})


def text(group: str, doc: str, default: str | None = None, **more: Any) -> Any:
    """A field for any text."""
    return option(group, default, "text", doc, str, **more)


def integer(group: str, default: int | None, doc: str, least: int = 1, most: int = 2**31 - 1) -> Any:
    """A field for an integer from ``least`` to ``most``."""

    def parse(given: str) -> int | None:
        digits = given.isascii() and given.isdigit()
        return int(given) if digits and least <= int(given[:20]) <= most else None

    return option(group, default, f"an integer from {least} to {most}", doc, parse)


def flag(group: str, doc: str, *, default: bool | None) -> Any:
    """A field for true or false."""
    values = {"true": True, "false": False}
    return option(group, default, "true or false", doc, lambda given: values.get(given.lower()))


def choice(group: str, doc: str, *choices: str) -> Any:
    """A field for one of several words; the first is the default."""
    values = {one: one for one in choices}
    return option(group, choices[0], " or ".join(choices), doc, lambda given: values.get(given.lower()))


def one_of(*keys: str) -> tuple[frozenset[str], frozenset[str]]:
    """Fields that exclude each other, for `OptionTable.REPLACES`."""
    return frozenset(keys), frozenset(keys)


# -- from text to values ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """A dataclass whose fields are options; :meth:`of` creates it."""

    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """Options that people look for, in lower case without separators, and what to use instead."""

    REPLACES: ClassVar[tuple[tuple[frozenset[str], frozenset[str]], ...]] = ()
    """Pairs of groups of fields: a given option of the first overrides the session's defaults for all of the second."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse options as Spark passes them: text, with names in any case.

        Raises:
            InvalidValue: an unknown name, a value out of range, or a contradiction.
        """
        keys = keys_of(cls)
        found: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in _SPARKS_OWN:
                continue
            key = keys.get(name.lower()) or cls._unknown(name)
            if key in found:
                raise InvalidValue(f"option {option_name(key)}", "two of its names", "one of them")
            found[key] = str(value)
        options = cls(**{key: _value(cls, key, value) for key, value in found.items()})
        options._check(set(found))
        return options

    @classmethod
    def applicable_defaults(cls, given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
        """The defaults for options of this table that no given option overrides."""
        keys = keys_of(cls)
        replaced = {keys.get(name.lower(), "") for name in given}
        replaced = replaced.union(*(defaults for options, defaults in cls.REPLACES if replaced & options))
        return {
            name: value
            for name, value in defaults.items()
            if name.lower() in keys and keys[name.lower()] not in replaced
        }

    @classmethod
    def _unknown(cls, name: str) -> str:
        names = [one.name for one in options_of(cls)]
        # The value is not shown: it may be a secret under a misspelt name.
        raise unknown_name("option name", name, names, cls.INSTEAD.get(re.sub("[_.-]", "", name).lower(), ""))

    def _check(self, found: set[str]) -> None:
        """Check options that depend on each other; ``found`` contains the given fields."""


def option_name(key: str) -> str:
    """The name of a field's option: ``maxInFlight`` for ``max_in_flight``."""
    first, *rest = key.split("_")
    return first + "".join(map(str.capitalize, rest))


def keys_of(table: type[OptionTable]) -> dict[str, str]:
    """The field of each name in lower case."""
    return {
        name.lower(): one.name
        for one in fields(table)
        for name in (option_name(one.name), *one.metadata["shown"]["aliases"])
    }


def options_of(table: type[OptionTable]) -> tuple[Option, ...]:
    """All options of a table, group by group."""
    found = [
        Option(
            option_name(one.name),
            default="" if one.default is None else as_text(one.default),
            **one.metadata["shown"],
        )
        for one in fields(table)
    ]
    groups = list(dict.fromkeys(one.group for one in found))
    return tuple(sorted(found, key=lambda one: groups.index(one.group)))


def as_text(value: object) -> str:
    """An option's value as Spark passes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, known: Iterable[str]) -> str:
    """``Did you mean X? ``, or nothing if no name is similar."""
    by_lower = {re.sub("[_.-]", "", one).lower(): one for one in known}
    near = get_close_matches(re.sub("[_.-]", "", name).lower(), by_lower, n=1)
    return f"Did you mean {by_lower[near[0]]}? " if near else ""


def unknown_name(what: str, name: str, known: Collection[str], hint: str = "") -> InvalidValue:
    """The error for a name that is not one of the known names: first what to use instead, then all names."""
    instead = hint or nearest(name, known).strip()
    return InvalidValue(what, name, "a known name", sentences(instead, f"Known names: {', '.join(known)}"))


def invalid_option(key: str, got: str, expected: str, hint: str = "") -> InvalidValue:
    """The error for an invalid value of an option."""
    return InvalidValue(f"option {option_name(key)}", got, expected, hint)


def check_short_text(value: str, what: str) -> None:
    """Raise if AMQP cannot carry the text as a short string."""
    if (size := len(value.encode(errors="surrogatepass"))) > MAX_SHORT_TEXT:
        raise InvalidValue(what, Unquoted(too_long(value, size)), f"at most {MAX_SHORT_TEXT} bytes of UTF-8")


def _value(table: type[OptionTable], key: str, given: str) -> Any:
    (metadata,) = (one.metadata for one in fields(table) if one.name == key)
    if (value := metadata["parse"](given)) is None:
        hint = "Options ending in Ms are in milliseconds" if key.endswith("_ms") else ""
        raise invalid_option(key, given, metadata["shown"]["expected"], hint)
    return value
