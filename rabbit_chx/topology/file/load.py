"""Load a topology from a file: YAML or JSON of this project's schema, or RabbitMQ's own ``definitions.json``.

    topology = load("topology.yaml")

All problems of a file are raised together as :class:`InvalidTopology`, each with its line and column: entries that
violate the schema are reported and left out, then the rest is checked as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rabbit_chx.base.advice import Advice
from rabbit_chx.base.text import listed
from rabbit_chx.errors import InvalidValue, MissingDependency, Unquoted
from rabbit_chx.topology.file.definitions import looks_like_definitions, read_definitions
from rabbit_chx.topology.file.json_reader import read_json
from rabbit_chx.topology.file.problems import Document, Path as FilePath, check_values
from rabbit_chx.topology.file.yaml_reader import read_yaml
from rabbit_chx.topology.model import Topology

Format: TypeAlias = Literal["yaml", "json"]

MAX_BYTES: Final = 8 << 20
"""The size of a file; a definitions.json of 20,000 queues has about 4 MiB."""

_FORMATS: Final[dict[str, Format]] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def load(path: str | Path, *, vhost: str | None = None) -> Topology:
    """Load the topology in a .yaml, .yml or .json file.

    ``vhost`` selects a virtual host in a ``definitions.json`` that has several.
    """
    return _only_topology(read_file(path), vhost)


def read_file(path: str | Path) -> Document:
    """The document in a .yaml, .yml or .json file."""
    name = str(path)
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        # The whole name, in which the command line recognizes a URL and hides its password.
        hint = Advice.READ_BROKER if "://" in name else ""
        Document(name).fail(None, "file name", name, f"a name that ends in {', '.join(_FORMATS)}", hint)
    return parse(read_text(name), _FORMATS[suffix], name)


def loads(
    text: str,
    *,
    format: Format,  # noqa: A002 - the word that users know
    name: str = "<text>",
    vhost: str | None = None,
) -> Topology:
    """Load the topology in a text; error messages show ``name`` as the name of the file."""
    return _only_topology(parse(text, format, name), vhost)


def _only_topology(document: Document, vhost: str | None) -> Topology:
    found = topologies(document, () if vhost is None else (vhost,))
    if len(found) > 1:
        several = listed([each.vhost for each in found], "virtual host")
        hint = "`rabbit-chx export FILE --vhost NAME` writes one of them into a file"
        document.fail(None, "definitions", Unquoted(several), "one virtual host", hint)
    return found[0]


def topologies(document: Document, vhosts: Sequence[str] = ()) -> tuple[Topology, ...]:
    """The topologies in a document: of a ``definitions.json`` those of some virtual hosts, or of all."""
    if looks_like_definitions(document.value):
        return read_definitions(document, vhosts)
    found = _topology(document)
    if vhosts and list(vhosts) != [found.vhost]:
        document.fail(("vhost",), "vhost", found.vhost, " and ".join(map(repr, vhosts)))
    return (found,)


def parse(text: str, format: Format, name: str) -> Document:  # noqa: A002
    """The document in a text, with the values that AMQP cannot carry reported."""
    if format not in ("yaml", "json"):
        raise InvalidValue("format", format, "yaml or json")
    try:
        import pydantic  # noqa: F401 - the schema needs it
    except ImportError as error:
        raise MissingDependency("topology files need pydantic: pip install 'rabbit-chx[topology]'") from error
    document = read_yaml(text, name) if format == "yaml" else read_json(text, name)
    check_values(document)
    return document


def read_text(name: str, *, at_most: int = MAX_BYTES) -> str:
    """The text of a file that is not larger than ``at_most`` bytes."""
    document = Document(name)
    try:
        with Path(name).open("rb") as file:
            data = file.read(at_most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        document.fail(None, "file", name, "a readable file", f"The system says: {reason}")
    if len(data) > at_most:
        hint = "Ranges of names such as 'orders.{00..15}' keep a file short"
        document.fail(None, "file size", Unquoted("more"), f"at most {at_most >> 20} MiB", hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.text = data[: error.start].decode("utf-8-sig", "replace")
        wrong = data[error.start : error.start + 4]
        hint = "An editor can save a text file as UTF-8"
        document.fail(len(document.text), "encoding", wrong, "UTF-8", hint)


def _topology(document: Document) -> Topology:
    from rabbit_chx.topology.file.objects import build_topology
    from rabbit_chx.topology.file.schema import File
    from rabbit_chx.topology.file.schema_errors import validated

    if document.value in (None, {}) and not document.found:
        document.fail(None, "file", Unquoted("nothing"), "a topology", "The smallest file is `schema: 1`")
    file, paths = validated(File, document)
    if () in paths:
        document.raise_problems()
    file = file or File.model_validate(_without(document.value, paths))
    topology = build_topology(file, document)
    document.raise_problems()
    return topology


# An entry without one of these would mean something else, and cause misleading problems.
_DECISIVE: Final = {"type", "slots", "preset", "pattern", "definition"}


def _without(value: dict[str, Any], paths: list[FilePath]) -> dict[str, Any]:
    """The file without its invalid parts: a key, a whole list, or an entry whose decisive key is invalid."""
    kept = deepcopy(value)
    for path in paths:
        # Lists go as a whole, so that indices stay right.
        keys = list(map(str, takewhile(lambda part: isinstance(part, str), path)))
        if keys[2:3] and keys[2] in _DECISIVE:
            keys = keys[:2]
        *parents, last = keys
        parent: Any = kept
        for key in parents:
            parent = parent.get(key, {})
        if last in parent:
            del parent[last]
        elif len(parents) == 2:  # a required key is missing
            kept[parents[0]].pop(parents[1], None)
    return {**kept, "schema": 1}
