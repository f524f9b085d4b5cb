"""What the schema has against a file, in this project's words: what is wrong, what was got, what is allowed.

The validator's own messages speak of inputs and dictionaries; people wrote keys and mappings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.releases import MAX_WEIGHT
from rabbit_chx.topology.file.schema import (
    MOST_SLOTS,
    Entry,
    File,
    FileBinding,
    FileDestination,
    FileExchange,
    FilePolicy,
    FileQueue,
)
from rabbit_chx.topology.file.source import Bare, did_you_mean, way

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.source import Source

__all__ = ["complain_of"]

_ALLOWED: Final = {
    "string_type": "text",
    "string_too_short": "at least one character",
    "string_too_long": "at most 255 characters",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "too_short": "at least one key",
    "null": "a value",
    "missing": "a value",
}
_NUMBERS: Final = {
    "schema": "1",
    "priority": "a whole number",
    "slots": f"a whole number from 1 to {MOST_SLOTS}",
}
_UNIONS: Final = {
    "queues": "names with weights, or a list of names",
    "co-partitioned-with": "a name, or a list of names",
}


def complain_of(errors: Iterable[Mapping[str, Any]], source: Source) -> list[Loc]:
    """Note everything that the validator found, and return where."""
    locs = []
    for found in errors:
        loc = _untagged(found["loc"])
        locs.append(loc)
        if found["type"] == "extra_forbidden":
            _complain_of_key(loc, source)
        else:
            source.complain(
                loc,
                way(loc),
                got=Bare("nothing") if found["type"] == "missing" else shown(found["input"]),
                expected=_allowed(found, loc),
                hint=_hint(found, loc),
            )
    return locs


def _untagged(loc: Loc) -> Loc:
    """A way without the names that the validator gives to the branches of a union."""
    if len(loc) > 3 and loc[0] == "exchanges" and loc[2] in _UNIONS:
        return (*loc[:3], *loc[4:])
    return loc


def shown(value: Any) -> object:
    """A value as a file has it."""
    match value:
        case None:
            return Bare("nothing")
        case bool():
            return Bare(str(value).lower())
        case dict():
            return Bare("a mapping" if value else "an empty mapping")
        case list():
            return Bare("a list" if value else "an empty list")
        case _:
            return value


def _complain_of_key(loc: Loc, source: Source) -> None:
    known = [field.alias or name for name, field in _model(loc).model_fields.items()]
    key = str(loc[-1])
    source.complain(
        loc,
        f"key {key!r} in {way(loc[:-1])}",
        got=Bare("an unknown key"),
        expected=", ".join(name for name in known if not name.startswith("$")),
        hint=did_you_mean(key, known),
        at_key=True,
    )


def _model(loc: Loc) -> type[Entry]:
    match loc:
        case ("exchanges", _, "destinations", _, _):
            return FileDestination
        case ("exchanges", _, "bindings", _, _):
            return FileBinding
        case ("exchanges", _, _):
            return FileExchange
        case ("queues", _, _):
            return FileQueue
        case ("policies", _, _):
            return FilePolicy
        case _:
            return File


def _allowed(found: Mapping[str, Any], loc: Loc) -> str:
    kind, last = found["type"], loc[-1] if loc else ""
    if kind == "literal_error":
        return str(found["ctx"]["expected"])
    if kind in _ALLOWED and not (kind == "missing" and last == "schema"):
        return _ALLOWED[kind]
    if len(loc) == 3 and last in _UNIONS:
        return _UNIONS[str(last)]
    field = last if len(loc) in (1, 3) else ""
    return _NUMBERS.get(str(field), f"a whole number from 1 to {MAX_WEIGHT}")


def _hint(found: Mapping[str, Any], loc: Loc) -> str:
    kind, got, last = found["type"], found["input"], loc[-1] if loc else ""
    match kind:
        case "missing" if last == "schema":
            return "the file begins with the version of its schema: 1"
        case "null":
            return "leave the key out where there is nothing to say"
        case "string_type" if isinstance(got, (int, float)):
            return "put it in quotes"
        case "int_type" | "bool_type" if isinstance(got, str):
            return "write it without quotes"
        case "string_too_short" if last == "exchange":
            return "the default exchange cannot be bound"
        case "literal_error" if isinstance(got, str):
            return did_you_mean(got, str(found["ctx"]["expected"]).replace("'", "").replace(",", "").split())
        case _ if loc == ("schema",):
            return "a later version of the schema needs a later rabbit-chx"
        case "greater_than_equal" | "less_than_equal" if last != "slots":
            return "a weight is the number of buckets, so small ones with the same ratio do"
        case "dict_type" if isinstance(got, list) and loc == ("queues",):
            return "write each as a key: `vip: {}`"
        case _:
            return ""
