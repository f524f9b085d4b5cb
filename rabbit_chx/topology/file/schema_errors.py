"""Report what the schema rejects, in the words of the file: pydantic speaks of inputs and dictionaries."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rabbit_chx.errors import InvalidValue, Unquoted
from rabbit_chx.mirror.releases import MAX_WEIGHT
from rabbit_chx.topology.file.problems import Document, Path, did_you_mean, dotted
from rabbit_chx.topology.file.schema import (
    Entry,
    File,
    FileBinding,
    FileDestination,
    FileExchange,
    FilePolicy,
    FileQueue,
)
from rabbit_chx.topology.slots.slot_division import MOST_SLOTS

_Model = TypeVar("_Model", bound=BaseModel)

_EXPECTED: Final = {
    "string_type": "text",
    "string_too_short": "at least one character",
    "string_too_long": "at most 255 characters",
    "bool_type": "true or false",
    "list_type": "a list",
    "too_short": "at least one key",
    "null": "a value",
    "missing": "a value",
} | dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping")
_NUMBERS: Final = {"schema": "1", "priority": "an integer", "slots": f"an integer from 1 to {MOST_SLOTS}"}
_UNIONS: Final = {
    "queues": "names with weights, or a list of names",
    "co-partitioned-with": "a name, or a list of names",
}
_MODELS: Final[dict[str, type[Entry]]] = {
    "exchanges": FileExchange,
    "exchanges destinations": FileDestination,
    "exchanges bindings": FileBinding,
    "queues": FileQueue,
    "policies": FilePolicy,
}


def validated(model: type[_Model], document: Document) -> tuple[_Model | None, list[Path]]:
    """The values of a document as a model, or the paths of the invalid ones, which are reported."""
    try:
        return model.model_validate(document.value), []
    except ValidationError as error:
        return None, [_report(found, document) for found in error.errors(include_url=False)]


def _report(found: ErrorDetails, document: Document) -> Path:
    path: Path = found["loc"]
    if len(path) > 3 and path[0] == "exchanges" and path[2] in _UNIONS:
        path = (*path[:3], *path[4:])  # without the tag of the union
    if found["type"] == "extra_forbidden":
        _report_key(path, document)
    else:
        got = Unquoted("nothing") if found["type"] == "missing" else _shown(found["input"])
        document.report(path, got, _expected(found, path), _hint(found, path))
    return path


def _shown(value: Any) -> object:
    match value:
        case None | bool():
            return Unquoted("nothing" if value is None else str(value).lower())
        case dict() | list():
            kind = "mapping" if isinstance(value, dict) else "list"
            return Unquoted(f"a {kind}" if value else f"an empty {kind}")
        case _:
            return value


def _report_key(path: Path, document: Document) -> None:
    # exchanges, NAME, bindings, INDEX, KEY: the sections determine the model.
    sections = " ".join(map(str, path[:-1:2]))
    known = [each.alias or name for name, each in _MODELS.get(sections, File).model_fields.items()]
    key = str(path[-1])
    expected = ", ".join(name for name in known if not name.startswith("$"))
    what, got = f"key {key!r} in {dotted(path[:-1])}", Unquoted("an unknown key")
    document.add(path, InvalidValue(what, got, expected, did_you_mean(key, known)), at_key=True)


def _expected(found: ErrorDetails, path: Path) -> str:
    kind, last = found["type"], path[-1] if path else ""
    if kind == "literal_error":
        return str(found["ctx"]["expected"])
    if kind in _EXPECTED and not (kind == "missing" and last == "schema"):
        return _EXPECTED[kind]
    if len(path) == 3 and last in _UNIONS:
        return _UNIONS[str(last)]
    field = str(last) if len(path) in (1, 3) else ""
    return _NUMBERS.get(field, f"an integer from 1 to {MAX_WEIGHT}")


def _hint(found: ErrorDetails, path: Path) -> str:
    kind, got, last = found["type"], found["input"], path[-1] if path else ""
    match kind:
        case "missing" if last == "schema":
            return "A file begins with the version of its schema: 1"
        case "null":
            return "Leave the key out if it has no value"
        case "string_type" if isinstance(got, (int, float)):
            return "Put it in quotes"
        case "int_type" | "bool_type" if isinstance(got, str):
            return "Write it without quotes"
        case "string_too_short" if last == "exchange":
            return "The default exchange cannot be bound"
        case "literal_error" if isinstance(got, str):
            return did_you_mean(got, str(found["ctx"]["expected"]).replace("'", "").replace(",", "").split())
        case _ if path == ("schema",):
            return "A newer schema needs a newer rabbit-chx"
        case "greater_than_equal" | "less_than_equal" if last != "slots":
            return "Use small integers with the same ratio"
        case "dict_type" if isinstance(got, list) and path == ("queues",):
            return "Write each queue as a key: `vip: {}`"
        case _:
            return ""
