"""A topology from a file: YAML, TOML or JSON of one schema, or RabbitMQ's own ``definitions.json``.

    topology = load("topology.yaml")

All that is wrong with a file is told at once, each with its line and column (:class:`InvalidTopology`): what is
wrong by itself is left out for the moment, and what remains is looked at as a whole. This and the writing of a
file by the caller are all the files that this room touches.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from rabbit_chx.errors import MissingDependency
from rabbit_chx.topology.file.definitions import looks_like_definitions, read_definitions
from rabbit_chx.topology.file.source import (
    Bare,
    InvalidTopology,
    Problem,
    format_of,
    parse,
    read_text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rabbit_chx.topology.file.places import Loc
    from rabbit_chx.topology.file.source import Format, Source
    from rabbit_chx.topology.model import Topology

__all__ = ["InvalidTopology", "Problem", "load", "loads"]


def load(path: str | Path, *, vhost: str | None = None) -> Topology:
    """The topology in a file, whose name tells the format: .yaml, .yml, .toml or .json.

    ``vhost`` picks the virtual host of a ``definitions.json`` that holds several.
    """
    text = read_text(str(path))
    return loads(text, format=format_of(str(path)), name=str(path), vhost=vhost)


def loads(
    text: str,
    *,
    format: Format,  # noqa: A002 - what a user calls it
    name: str = "<text>",
    vhost: str | None = None,
) -> Topology:
    """The topology in a text; ``name`` stands in the messages where a file's would."""
    _check_installed()
    source = parse(text, format, name)
    if looks_like_definitions(source.value):
        return read_definitions(source, vhost)
    return _topology(source)


def _check_installed() -> None:
    try:
        import pydantic  # noqa: F401 - all that follows is built on it
    except ImportError as error:
        raise MissingDependency(
            "topology files are checked with pydantic: pip install 'rabbit-chx[topology]'"
        ) from error


def _topology(source: Source) -> Topology:
    from rabbit_chx.topology.file.assemble import assemble
    from rabbit_chx.topology.file.complaints import complain_of
    from rabbit_chx.topology.file.schema import File, checked

    if not source.value and not source.problems:
        least = "schema = 1" if source.format == "toml" else "schema: 1"
        source.give_up(
            None, "file", got=Bare("nothing"), expected="a topology", hint=f"The least is `{least}`"
        )
    file, errors = checked(File, source.value)
    locs = complain_of(errors, source)
    if () in locs:
        source.raise_problems()
    file = file or File.model_validate(_without(source.value, locs))
    topology = assemble(file, source)
    source.raise_problems()
    return topology


# Without one of these an entry would mean something else, and be blamed for it.
_DECISIVE: Final = {"type", "slots", "preset", "pattern", "definition"}


def _without(value: dict[str, Any], locs: list[Loc]) -> dict[str, Any]:
    """The file without what is wrong by itself: a key, a whole list, or an entry that cannot do without."""
    kept = deepcopy(value)
    for loc in locs:
        names = list(
            map(str, takewhile(lambda part: isinstance(part, str), loc))
        )  # places in lists must not shift
        if names[2:3] and names[2] in _DECISIVE:
            names = names[:2]
        *parents, last = names
        holder: Any = kept
        for name in parents:
            holder = holder.get(name, {})
        if last in holder:
            del holder[last]
        elif len(parents) == 2:  # a key is missing, and what it belongs to cannot do without
            kept[parents[0]].pop(parents[1], None)
    return {**kept, "schema": 1}
