"""YAML as plain values with their places, without what makes YAML a trap.

A plain scalar means what it looks like in YAML 1.1 and in 1.2, or it is refused: ``010`` is eight to one parser
and ten to another, ``12:30`` is 750 or text, ``no`` is false or a country. Anchors are expanded up to a limit;
tags, merge keys and second documents are refused. Reads the events of PyYAML's parser, and no more of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import InvalidValue
from rabbit_chx.topology.file.places import Place, Places
from rabbit_chx.topology.file.source import MOST_DEPTH, Bare, twice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.source import Source

__all__ = ["MOST_NODES", "looks_ambiguous", "read_yaml"]

MOST_NODES: Final = 200_000
"""The values of a file, those that stand for an alias included."""

_NULL: Final = {"", "~", "null", "Null", "NULL"}
_TRUE: Final = {"true", "True", "TRUE"}
_FALSE: Final = {"false", "False", "FALSE"}
# What both versions read alike.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][+-][0-9]+)?")
# What at least one of them reads as a number, a time or a truth value, and the other or many a reader does not.
_AMBIGUOUS: Final = re.compile(
    r"""[+-]?(?: 0b[01_]+ | 0o?[0-7_]+ | 0x[0-9a-fA-F_]+ | \.(?:inf|Inf|INF) )
    | \.(?:nan|NaN|NAN)
    | [+-]?(?: [0-9][0-9_]*(?:\.[0-9_]*)? | \.[0-9][0-9_]* )(?:[eE][+-]?[0-9]+)?
    | [+-]?[0-9][0-9_]*(?: :[0-9]{1,2} )+(?:\.[0-9_]*)?
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+).*)?
    | (?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)""",
    re.VERBOSE,
)


def looks_ambiguous(text: str) -> bool:
    """Whether a plain scalar would mean different things to different readers."""
    return bool(_AMBIGUOUS.fullmatch(text)) and not _INTEGER.fullmatch(text) and not _FLOAT.fullmatch(text)


def read_yaml(yaml: ModuleType, source: Source) -> None:
    """Fill a source with the values of its text, by PyYAML's parser."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _Reader(yaml, source).read(yaml.parse(source.text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        began = error.context_mark and f" from line {error.context_mark.line + 1} on"
        got = ", ".join(filter(None, [error.context and f"{error.context}{began or ''}", error.problem]))
        source.give_up(_place(mark), "YAML", got=Bare(got), expected="YAML", hint=_hint(str(error.problem)))
    except (yaml.reader.ReaderError, UnicodeEncodeError) as error:
        at = error.position if isinstance(error, yaml.reader.ReaderError) else error.start
        before = source.text[:at].split("\n")
        source.give_up(
            Place(len(before), len(before[-1]) + 1),
            "YAML",
            got=source.text[at : at + 1],
            expected="characters that can be printed",
            hint='within double quotes YAML has "\\u0001" for others',
        )


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _hint(problem: str) -> str:
    if "cannot start any token" in problem or "tab" in problem:
        return "YAML is indented with spaces, not tabs; text that begins with @, ` or % needs quotes"
    if "mapping values are not allowed" in problem:
        return "text that holds a colon needs quotes"
    return ""


@dataclass
class _Recording:
    """An anchored value of which the last event is still to come."""

    name: str
    events: list[Any] = field(default_factory=list)
    depth: int = 0


class _Reader:
    """Builds values from events, and notes where they stand."""

    def __init__(self, yaml: ModuleType, source: Source) -> None:
        self._yaml = yaml
        self._source = source
        self._places = source.places = Places()
        self._anchors: dict[str, list[Any]] = {}
        self._recording: list[_Recording] = []

    def read(self, events: Iterator[Any]) -> None:
        """The one document of the text."""
        yaml = self._yaml
        stream = self._expanded(events)
        documents = 0
        for event in stream:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._source.give_up(
                        _place(event.start_mark),
                        "YAML",
                        got=Bare("a second document"),
                        expected="one document in a file",
                        hint="Take out the line '---', or make two files",
                    )
                self._source.value = self._value(next(stream), stream, ())

    def _expanded(self, events: Iterator[Any]) -> Iterator[Any]:
        """The events, with those of the anchored value in place of each alias."""
        count = 0
        for event in events:
            for found in self._resolved(event):
                count += isinstance(found, self._yaml.NodeEvent)
                if count > MOST_NODES:
                    self._source.give_up(
                        _place(event.start_mark),
                        "number of values",
                        got=Bare(f"more than {MOST_NODES}, aliases expanded"),
                        expected=f"{MOST_NODES} in a YAML file",
                        hint="Numbered families such as 'orders.{00..15}' say much in one line",
                    )
                self._record(found, getattr(event, "anchor", None) if found is event else None)
                yield found

    def _resolved(self, event: Any) -> list[Any]:
        if not isinstance(event, self._yaml.AliasEvent):
            return [event]
        is_open = any(event.anchor == each.name for each in self._recording)
        if is_open or event.anchor not in self._anchors:
            within = f"it stands within &{event.anchor}, and no value can hold itself"
            self._source.give_up(
                _place(event.start_mark),
                "alias",
                got=Bare(f"*{event.anchor}"),
                expected="the name of an anchor before it",
                hint=within if is_open else f"no &{event.anchor} stands before it",
            )
        return self._anchors[event.anchor]

    def _record(self, event: Any, anchor: str | None) -> None:
        """Keep the events of anchored values, from their first to their last."""
        yaml = self._yaml
        if anchor is not None:
            self._recording.append(_Recording(anchor))
        for each in self._recording:
            each.events.append(event)
            each.depth += isinstance(event, yaml.CollectionStartEvent)
            each.depth -= isinstance(event, yaml.CollectionEndEvent)
        while self._recording and self._recording[-1].depth == 0:
            done = self._recording.pop()
            self._anchors[done.name] = done.events

    def _value(self, event: Any, stream: Iterator[Any], loc: Loc) -> Any:
        yaml, place = self._yaml, _place(event.start_mark)
        self._places.values[loc] = place
        if len(loc) > MOST_DEPTH:
            self._source.give_up(
                place, "nesting", got=Bare(f"{len(loc)} levels"), expected=f"{MOST_DEPTH} levels at most"
            )
        if event.tag is not None:
            self._doubt(place, "the tag", event.tag, "no tags", "text is made text by quotes")
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style in ("'", '"', "|", ">") else self._plain(event.value, place)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(stream), yaml.SequenceEndEvent):
                items.append(self._value(event, stream, (*loc, len(items))))
            return items
        return self._mapping(stream, loc)

    def _mapping(self, stream: Iterator[Any], loc: Loc) -> dict[str, Any]:
        yaml = self._yaml
        values: dict[str, Any] = {}
        while not isinstance(event := next(stream), yaml.MappingEndEvent):
            place = _place(event.start_mark)
            key = self._key(event, place)
            if key in values:
                self._source.note(place, twice(key, self._places.keys[(*loc, key)]))
            else:
                self._places.keys[(*loc, key)] = place
            values[key] = self._value(next(stream), stream, (*loc, key))
        return values

    def _key(self, event: Any, place: Place) -> str:
        if not isinstance(event, self._yaml.ScalarEvent):
            self._source.give_up(
                place,
                "a key",
                got=Bare("a list or a mapping"),
                expected="text",
                hint='text with braces needs quotes: "orders.{00..15}"',
            )
        key: str = event.value
        if event.tag is not None:
            self._doubt(place, "the tag", event.tag, "no tags", "text is made text by quotes")
        elif not event.style and key == "<<":
            self._doubt(
                place, "the key", key, "no merge keys", "write the keys out, or share whole values by anchors"
            )
        elif not event.style and not isinstance(self._plain(key, place, "the key"), str):
            self._doubt(place, "the key", Bare(key or "nothing"), "text", f"put it in quotes: {key!r}")
        return key

    def _plain(self, text: str, place: Place, what: str = "the value") -> Any:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text):
            return int(text[:25])  # the first digits of too many are too many still
        if _FLOAT.fullmatch(text):
            return float(text)
        if looks_ambiguous(text):
            otherwise = (
                "a number looks like 10 or 1.5" if text[-1] in "0123456789_." else "truth is true or false"
            )
            self._doubt(
                place,
                what,
                Bare(text),
                "what all readers of YAML read alike",
                f"as text it needs quotes: {text!r}; {otherwise}",
            )
        return text

    def _doubt(self, place: Place, what: str, got: object, expected: str, hint: str) -> None:
        if place not in self._source.doubtful:
            self._source.doubtful.add(place)
            self._source.note(place, InvalidValue(what, got, expected, hint))
