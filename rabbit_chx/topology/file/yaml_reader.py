"""Read YAML without its traps, by PyYAML's composer, whose nodes know their positions.

A plain scalar must mean the same in YAML 1.1 and 1.2, or it is refused: ``010`` is 8 or 10, ``12:30`` is 750 or
text, ``no`` is false or text. Aliases are expanded up to a limit; tags, merge keys and second documents are refused.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Final

from rabbit_chx.errors import InvalidValue, MissingDependency, Unquoted
from rabbit_chx.topology.file.problems import MAX_DEPTH, Document, Path, Positions

MAX_VALUES: Final = 200_000
"""The number of values in a file, with aliases expanded."""

_NULL: Final = {"", "~", "null", "Null", "NULL"}
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Numbers that both versions of YAML read alike.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][+-][0-9]+)?")
# Scalars that are a number, a time or a truth value in only one of the versions.
_AMBIGUOUS: Final = re.compile(
    r"""[+-]?(?: 0b[01_]+ | 0o?[0-7_]+ | 0x[0-9a-fA-F_]+ | \.(?:inf|Inf|INF) )
    | \.(?:nan|NaN|NAN)
    | [+-]?(?: [0-9][0-9_]*(?:\.[0-9_]*)? | \.[0-9][0-9_]* )(?:[eE][+-]?[0-9]+)?
    | [+-]?[0-9][0-9_]*(?: :[0-9]{1,2} )+(?:\.[0-9_]*)?
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+).*)?
    | (?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)""",
    re.VERBOSE,
)


_INDENT: Final = "Indent with spaces, not tabs, and quote text that begins with @, ` or %"
_HINTS: Final = {
    "cannot start any token": _INDENT,
    "tab": _INDENT,
    "mapping values are not allowed": "Quote text that contains a colon",
}


def read_yaml(text: str, name: str) -> Document:
    """The document in a YAML text; problems of single values are reported, others raised."""
    try:
        import yaml
    except ImportError as error:
        raise MissingDependency("YAML files need PyYAML: pip install 'rabbit-chx[topology]'") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = Document(name, text)
    try:
        _check_events(yaml, yaml.parse(text, Loader=loader), document)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        _fail_syntax(document, error)
    except (yaml.reader.ReaderError, UnicodeEncodeError) as error:
        at = error.position if isinstance(error, yaml.reader.ReaderError) else error.start
        hint = 'Escape others in double quotes: "\\u0001"'
        document.fail(at, "YAML", text[at : at + 1], "printable characters", hint)
    if root is not None:
        document.value = _Builder(document).value(root, ())
    return document


def _fail_syntax(document: Document, error: Any) -> None:
    """Raise an error of the parser: a problem, often within a context that began earlier."""
    position, problem = (error.problem_mark or error.context_mark).index, str(error.problem)
    if "another document" in problem:
        document.fail(position, "YAML", Unquoted("a second document"), "one document per file")
    since = f" from line {error.context_mark.line + 1}" if error.context_mark else ""
    context = f" {error.context}{since}" if error.context else ""
    hint = next((hint for part, hint in _HINTS.items() if part in problem), "")
    document.fail(position, "YAML", Unquoted(f"a syntax error ({problem}{context})"), "valid YAML", hint)


def _check_events(yaml: ModuleType, events: Any, document: Document) -> None:
    """Check what the composer would hide (tags) or not survive (its C version crashes on deep nesting)."""
    depth = 0
    for count, event in enumerate(events):
        position = event.start_mark.index
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            document.fail(position, "nesting", Unquoted("more"), f"at most {MAX_DEPTH} levels")
        if count > 4 * MAX_VALUES:
            _fail_size(document, position)
        if getattr(event, "tag", None) is not None:
            _doubt(document, position, "tag", event.tag, "no tags", "Put text in quotes instead")


def _fail_size(document: Document, position: int) -> None:
    got = Unquoted(f"more than {MAX_VALUES} with aliases expanded")
    hint = "Ranges of names such as 'orders.{00..15}' keep a file short"
    document.fail(position, "number of values", got, f"at most {MAX_VALUES} in a YAML file", hint)


def _doubt(document: Document, position: int, what: str, got: object, expected: str, hint: str) -> None:
    document.add(position, InvalidValue(what, got, expected, hint))
    document.reported.add(position)


class _Builder:
    """Builds values from nodes, and records their positions."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._positions = Positions()
        document.find_positions = lambda _: self._positions
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: Any, path: Path) -> Any:
        position = node.start_mark.index
        self._count += 1
        if self._count > MAX_VALUES:
            _fail_size(self._document, position)
        if len(path) > MAX_DEPTH:
            self._document.fail(position, "nesting", Unquoted("more"), f"at most {MAX_DEPTH} levels")
        if node.id == "scalar":
            self._positions.values[path] = position
            return self._plain(node.value, position) if not node.style else node.value
        if path not in self._positions.keys:
            self._positions.values[path] = position
        if id(node) in self._open:
            self._document.fail(position, "anchor", Unquoted("a value that contains itself"), "finite values")
        self._open.add(id(node))
        if node.id == "sequence":
            value: Any = [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            value = self._mapping(node, path)
        self._open.remove(id(node))
        return value

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            position = key_node.start_mark.index
            key = self._key(key_node, position)
            at = (*path, key)
            if key in values:
                self._document.report_duplicate(key, self._positions.keys[at], position)
            self._positions.keys.setdefault(at, position)
            values[key] = self.value(value_node, at)
        return values

    def _key(self, node: Any, position: int) -> str:
        if node.id != "scalar":
            hint = 'Quote text with braces: "orders.{00..15}"'
            self._document.fail(position, "key", Unquoted("a list or a mapping"), "text", hint)
        key: str = node.value
        if not node.style and key == "<<":
            hint = "Write the keys out, or share whole values by anchors"
            _doubt(self._document, position, "key", key, "no merge keys", hint)
        elif not node.style and not isinstance(self._plain(key, position, "key"), str):
            got = Unquoted(key or "nothing")
            _doubt(self._document, position, "key", got, "text", f"Put it in quotes: {key!r}")
        return key

    def _plain(self, text: str, position: int, what: str = "value") -> Any:
        if text in _NULL:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return int(text[:25])  # enough digits to see that it is out of range
        if _FLOAT.fullmatch(text):
            return float(text)
        if _AMBIGUOUS.fullmatch(text):
            of_number, of_truth = "a number is written as 10 or 1.5", "a truth value is true or false"
            hint = f"Text needs quotes: {text!r}; {of_number if text[-1] in '0123456789_.' else of_truth}"
            expected = "a value that every YAML reader understands alike"
            _doubt(self._document, position, what, Unquoted(text), expected, hint)
        return text
