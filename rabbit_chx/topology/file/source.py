"""A text as plain values that know their places: YAML, TOML and JSON look alike from here on.

What these formats allow and a topology has no use for is found here: keys that stand twice, text that is no
text, numbers that no broker takes, nesting without end. What the values mean is not known in this file.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, get_args

from rabbit_chx.errors import InvalidValue, MissingDependency
from rabbit_chx.topology.file.places import Place, Places, line_starts, places_in_json, places_in_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rabbit_chx.topology.file.places import Loc

__all__ = [
    "MOST_BYTES",
    "MOST_DEPTH",
    "Bare",
    "Format",
    "InvalidTopology",
    "Problem",
    "Source",
    "check_values",
    "did_you_mean",
    "format_of",
    "parse",
    "read_text",
    "twice",
    "way",
]

Format: TypeAlias = Literal["yaml", "toml", "json"]


class Bare(str):
    """Shown as it stands, without the quotes of text."""

    __slots__ = ()
    __repr__ = str.__str__


MOST_BYTES: Final = 8 << 20
MOST_DEPTH: Final = 50
_SUFFIXES: Final[dict[str, Format]] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
_DEEP: Final = {
    "got": Bare("values within values without end"),
    "expected": f"{MOST_DEPTH} levels at most",
    "hint": "a topology needs five, and arguments rarely more",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, and where."""

    file: str
    line: int | None
    """From 1; None where the file as a whole is meant."""
    column: int | None
    message: str

    def __str__(self) -> str:
        place = "" if self.line is None else f":{self.line}:{self.column}"
        return f"{self.file}{place}: {self.message}"


class InvalidTopology(InvalidValue):
    """All that is wrong with a topology, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            sorted(dict.fromkeys(problems), key=lambda each: (each.line or 0, each.column or 0))
        )
        """In the order in which they stand in the file."""
        super().__init__("the topology", got=f"{len(self.problems)} problems", expected="none")

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def __reduce__(self) -> tuple[object, ...]:
        return (InvalidTopology, (self.problems,))


@dataclass
class Source:
    """The values of one text, and the problems found in it so far."""

    name: str
    value: Any = None
    places: Places | None = None
    """Where everything stands; of TOML and JSON found when first asked for."""
    text: str = ""
    format: Format = "yaml"
    problems: list[Problem] = field(default_factory=list)
    doubtful: set[Place] = field(default_factory=set)
    """Places of which one problem was told already; others would follow from it."""

    def complain(
        self, loc: Loc, what: str, *, got: object, expected: str, hint: str = "", at_key: bool = False
    ) -> None:
        """Note a problem with the value, or with the key, at the end of a way."""
        place = self.place(loc, at_key=at_key)
        if place is None or place not in self.doubtful:
            self.note(place, InvalidValue(what, got, expected, hint))

    def note(self, place: Place | None, error: InvalidValue) -> None:
        """Note a problem at a place."""
        line, column = place or (None, None)
        self.problems.append(Problem(self.name, line, column, str(error)))

    def give_up(
        self, place: Place | None, what: str, *, got: object, expected: str, hint: str = ""
    ) -> NoReturn:
        """Raise all problems, this one included: nothing after it could be read."""
        self.note(place, InvalidValue(what, got, expected, hint))
        raise InvalidTopology(self.problems)

    def raise_problems(self) -> None:
        """Raise all problems, if there are any."""
        if self.problems:
            raise InvalidTopology(self.problems)

    def place(self, loc: Loc, *, at_key: bool = False) -> Place | None:
        """Where a value stands; of one that is missing, where what should hold it is named."""
        places = self._places
        for end in range(len(loc), 0, -1):
            found, is_whole = loc[:end], end == len(loc)
            if found in places.values and is_whole and not at_key and not self._is_container(found):
                return places.values[found]
            if found in places.keys or found in places.values:
                return places.keys.get(found, places.values.get(found))
        return places.values.get(())

    def _is_container(self, loc: Loc) -> bool:
        value = self.value
        try:
            for part in loc:
                value = value[part]
        except (LookupError, TypeError):  # under a key that stands twice
            return False
        return isinstance(value, (dict, list))

    @cached_property
    def _places(self) -> Places:
        if self.places is not None:
            return self.places
        if not self.text:
            return Places()
        return places_in_json(self.text) if self.format == "json" else places_in_toml(self.text)


_SIMPLE: Final = re.compile(r"[A-Za-z0-9_-]+")


def way(loc: Loc) -> str:
    """A way for people: ``exchanges.orders.queues."orders.00"``."""
    shown = ""
    for part in loc:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += "." + (part if _SIMPLE.fullmatch(part) else json.dumps(part, ensure_ascii=False))
    return shown.removeprefix(".") or "the file"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the nearest of the words that would have been right; nothing where none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def format_of(path: str) -> Format:
    """The format that the name of a file tells."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        Source(path).give_up(
            None,
            "name of the file",
            got=Path(path).name,
            expected=f"a name that ends in {', '.join(_SUFFIXES)}",
            hint="Rename it: the end of the name tells the format",
        )
    return _SUFFIXES[suffix]


def read_text(path: str) -> str:
    """The text of a file, without a byte order mark."""
    source = Source(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        says = error.strerror if isinstance(error, OSError) else str(error)
        source.give_up(
            None, "file", got=path, expected="a file that can be read", hint=f"The system says: {says}"
        )
    return decoded(source, data)


def decoded(source: Source, data: bytes) -> str:
    """Bytes as text, if they are UTF-8."""
    if len(data) > MOST_BYTES:
        source.give_up(
            None,
            "size of the file",
            got=Bare("more"),
            expected=f"{MOST_BYTES >> 20} MiB",
            hint="Numbered families such as 'orders.{00..15}' say much in one line",
        )
    as_utf8 = "save it as UTF-8; `iconv -f UTF-16 -t UTF-8` converts"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        source.give_up(None, "encoding of the file", got=Bare("UTF-16"), expected="UTF-8", hint=as_utf8)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig", "replace")
        source.give_up(
            _place_at(before, len(before)),
            "encoding of the file",
            got=data[error.start : error.start + 4],
            expected="UTF-8",
            hint="It may be no text at all; an editor can save it as UTF-8",
        )


def parse(text: str, format: Format, name: str) -> Source:  # noqa: A002 - what the user calls it
    """The values of a text; problems that concern single values are noted, and others raised."""
    if format not in get_args(Format):
        raise InvalidValue("format", format, ", ".join(get_args(Format)))
    source = Source(name, text=text, format=format)
    if text.find("\0") >= 0:
        source.give_up(
            _place_at(text, text.find("\0")),
            "text",
            got=Bare("a NUL character"),
            expected="text",
            hint="This is a binary file, or UTF-16: save it as UTF-8",
        )
    if format == "yaml":
        from rabbit_chx.topology.file.yaml_source import read_yaml

        try:
            import yaml
        except ImportError as error:
            raise MissingDependency("YAML files need PyYAML: pip install 'rabbit-chx[topology]'") from error
        read_yaml(yaml, source)
    elif format == "json":
        _read_json(source)
    else:
        _read_toml(source)
    check_values(source)
    return source


def _place_at(text: str, index: int) -> Place:
    starts = line_starts(text[:index])
    return Place(len(starts), index - starts[-1] + 1)


def _read_json(source: Source) -> None:
    doubles: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(items)
        if len(values) < len(items):
            doubles.append("")
        return values

    try:
        source.value = json.loads(source.text, object_pairs_hook=pairs, parse_int=_integer)
    except json.JSONDecodeError as error:
        place = Place(error.lineno, error.colno)
        source.give_up(place, "JSON", got=Bare(error.msg), expected="a JSON object", hint=_or_empty(source))
    except RecursionError:
        source.give_up(None, "the JSON", **_DEEP)
    if doubles:
        for loc, place in source._places.doubles:  # noqa: SLF001 - of this very file
            first = source._places.keys[loc]  # noqa: SLF001
            source.note(place, twice(loc[-1], first))


def twice(key: object, first: Place) -> InvalidValue:
    """The complaint of a key that stands twice."""
    return InvalidValue(
        f"key {key!r}",
        Bare("it for the second time"),
        "each key once",
        f"The first is in line {first.line}",
    )


# One name of a hundred parts is no name of a topology, but keeps the parser busy for the square of their number.
_LONG_KEY: Final = re.compile(r"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){200}""")
_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def _read_toml(source: Source) -> None:
    if found := _LONG_KEY.search(source.text):
        source.give_up(_place_at(source.text, found.start()), "the TOML", **_DEEP)
    try:
        source.value = tomllib.loads(source.text)
    except RecursionError:
        source.give_up(None, "the TOML", **_DEEP)
    except ValueError as error:
        says = str(error)
        found = _AT.search(says)
        place = Place(int(found[1]), int(found[2])) if found and found[1] else None
        source.give_up(
            place or _place_at(source.text, len(source.text)),
            "TOML",
            got=Bare(_AT.sub("", says)),
            expected="TOML 1.0",
            hint="Names with dots or other signs need quotes",
        )


def _or_empty(source: Source) -> str:
    return "" if source.text.strip() else 'the file is empty: the least is {"schema": 1}'


def _integer(digits: str) -> int:
    """An integer; of one that has too many digits for any use the first, which are still too many."""
    return int(digits[:25])


def check_values(source: Source) -> None:
    """Note the values that no topology can hold."""
    try:
        for loc, got, expected, hint in _unusable((), source.value):
            source.complain(loc, way(loc), got=got, expected=expected, hint=hint)
    except RecursionError:
        source.give_up(None, f"the {source.format.upper()}", **_DEEP)


def _unusable(loc: Loc, value: object) -> Iterator[tuple[Loc, object, str, str]]:
    """What no topology can hold, wherever it stands."""
    if len(loc) > MOST_DEPTH:
        raise RecursionError
    match value:
        case dict():
            for key, item in value.items():
                if not _is_text(key):
                    yield (*loc, key), key, "text without lone surrogates", ""
                yield from _unusable((*loc, key), item)
        case list():
            for index, item in enumerate(value):
                yield from _unusable((*loc, index), item)
        case str() if not _is_text(value):
            yield loc, value, "text without lone surrogates", "write the character itself"
        case bool() | str() | None:
            pass
        case int() if not -(2**63) <= value < 2**63:
            yield loc, value, "a number of 64 bits", "AMQP has no larger one"
        case float() if not math.isfinite(value):
            yield loc, value, "a number", "Erlang knows no infinity, and no number that is none"
        case int() | float():
            pass
        case _:
            yield loc, str(value), "text, numbers, true and false", "put a date or a time in quotes"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
