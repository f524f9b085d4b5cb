"""The schemas of a topology file and of a ``definitions.json``: their keys and types.

``python -m rabbit_chx.topology.file.schema`` prints the JSON Schema for editors, ``topology.schema.json``. Only the
loading of files imports this module, because it needs pydantic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from rabbit_chx.mirror.releases import MAX_WEIGHT
from rabbit_chx.topology.slots.slot_division import MOST_SLOTS

SCHEMA_FILE: Final = Path(__file__).with_name("topology.schema.json")
_PLUGGED: Final = ["x-random", "x-local-random", "x-recent-history"]
_TYPES: Final = ["x-consistent-hash", "x-modulus-hash", "direct", "fanout", "topic", "headers", *_PLUGGED]


def _kind(value: object) -> str | None:
    kinds = ((dict, "mapping"), (list, "list"), (str, "text"))
    return next((name for kind, name in kinds if isinstance(value, kind)), None)


Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]
Arguments = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
Shortstr = Annotated[str, Field(max_length=255)]
Queues = Annotated[
    Annotated[dict[str, Weight], Tag("mapping")] | Annotated[list[str], Tag("list")], Discriminator(_kind)
]
OneOrMore = Annotated[Annotated[str, Tag("text")] | Annotated[list[str], Tag("list")], Discriminator(_kind)]


def _tidy(schema: dict[str, Any]) -> None:
    """Remove titles, null and empty defaults, which are useless to an editor."""
    for name, each in schema["properties"].items():
        each.pop("title", None)
        branches = [branch for branch in each.pop("anyOf", ()) if branch != {"type": "null"}]
        found = {**each, **(branches[0] if branches else {})}
        if found.get("default", ...) in (None, {}, []):
            del found["default"]
        schema["properties"][name] = found


def _require_type(schema: dict[str, Any]) -> None:
    _tidy(schema)
    schema["required"] = ["type"]


class Entry(BaseModel):
    """A part of the file; unknown keys, null and values of another type are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        use_attribute_docstrings=True,
        json_schema_extra=_tidy,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("null", "nothing")
        return value


class QueueOrExchange(Entry):
    """One of the two."""

    queue: Text | None = None
    """A queue, or a range of queues such as "orders.{00..15}"."""
    exchange: Text | None = None
    """An exchange."""


class FileDestination(QueueOrExchange):
    """A destination of a hash exchange: a queue or an exchange."""

    weight: Weight = 1
    """The number of buckets of the destination."""


class FileBinding(QueueOrExchange):
    """A binding from the exchange to a queue or another exchange."""

    key: Shortstr = ""
    """The binding key; for x-consistent-hash the weight as text."""
    arguments: Arguments = Field(default_factory=dict)
    """Arguments of the binding, such as the headers that a headers exchange matches."""


class FileExchange(Entry):
    """An exchange. Predeclared exchanges (amq.topic and others) have only bindings."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_require_type)

    type: Annotated[Text, Field(examples=_TYPES)] = ""
    """The exchange type: any type that the broker supports."""
    durable: bool = True
    """Whether it survives a restart of the broker."""
    auto_delete: bool = False
    """Whether it is deleted when its last binding is deleted."""
    internal: bool = False
    """Whether clients cannot publish to it, only other exchanges."""
    hash_header: Text | None = None
    """The header that x-consistent-hash hashes, instead of the routing key."""
    hash_property: Literal["message_id", "correlation_id", "timestamp"] | None = None
    """The property that x-consistent-hash hashes, instead of the routing key."""
    queues: Queues | None = None
    """The queues of a hash exchange in bind order, with weights; in a list every weight is 1."""
    destinations: list[FileDestination] | None = None
    """Queues and exchanges bound to a hash exchange, in bind order; use it instead of queues."""
    bindings: list[FileBinding] | None = None
    """Bindings with keys and arguments, in bind order; for a hash exchange instead of queues."""
    order: Literal["unknown"] | None = None
    """unknown: the bindings of an x-consistent-hash exchange are not in bind order, so no routes are predicted; export writes it."""
    slots: Annotated[int, Field(ge=1, le=MOST_SLOTS)] | None = None
    """The number of slot exchanges between a hash exchange and its queues, which share them by weight; 64 suits most."""
    alternate_exchange: Text | None = None
    """The exchange for messages that match no binding; with slots, that of every slot."""
    co_partitioned_with: OneOrMore | None = None
    """Exchanges that must have the same ring as this one; check and lint compare them."""
    arguments: Arguments = Field(default_factory=dict)
    """Other arguments of the declaration, by the broker's names."""


class FileQueue(Entry):
    """A queue, or a range of equal queues."""

    type: Literal["quorum", "classic", "stream"] | None = None
    """The queue type; the default is quorum."""
    preset: Literal["ordered"] | None = None
    """ordered: a quorum queue with a single active consumer and no delivery limit, so that messages are processed in order."""
    single_active_consumer: bool = False
    """Whether only one consumer at a time receives messages."""
    durable: bool = True
    """Whether it survives a restart of the broker."""
    auto_delete: bool = False
    """Whether it is deleted when its last consumer is cancelled."""
    arguments: Arguments = Field(default_factory=dict)
    """Other arguments of the declaration, such as x-max-length."""


class FilePolicy(Entry):
    """A policy, which the broker applies to queues and exchanges with matching names."""

    pattern: str
    """A regular expression that is searched for in names."""
    apply_to: Literal["all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams"] = "all"
    """The kinds of objects that the policy applies to."""
    priority: int = 0
    """If several policies match a name, the one with the highest priority applies."""
    definition: Annotated[dict[str, Any], Field(min_length=1)]
    """The settings of the policy, by the broker's names."""


class File(Entry):
    """A RabbitMQ topology that rabbit-chx plans, applies and checks."""

    schema_uri: str = Field(default="", alias="$schema")
    """The path of the JSON Schema of this file, for editors."""
    schema_: Annotated[int, Field(ge=1, le=1)]
    """The version of this schema: 1."""
    vhost: Annotated[str, Field(min_length=1, max_length=255)] = "/"
    """The virtual host."""
    exchanges: dict[str, FileExchange] = Field(default_factory=dict)
    """The exchanges, by name."""
    queues: dict[str, FileQueue | None] = Field(default_factory=dict)
    """The queues, by name or as ranges of names such as "orders.{00..15}"."""
    policies: dict[str, FilePolicy] = Field(default_factory=dict)
    """The policies, by name."""


class _Defined(BaseModel):
    """An object that RabbitMQ exports; other keys are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    vhost: str | None = None
    arguments: Arguments = Field(default_factory=dict)


class DefinedQueue(_Defined):
    """A queue in a definitions.json."""

    name: str
    type: str | None = None
    durable: bool = True
    auto_delete: bool = False


class DefinedExchange(DefinedQueue):
    """An exchange in a definitions.json."""

    type: str
    internal: bool = False


class DefinedBinding(_Defined):
    """A binding in a definitions.json."""

    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str = ""


class DefinedPolicy(_Defined):
    """A policy in a definitions.json."""

    name: str
    pattern: str
    apply_to: str = Field(default="all", alias="apply-to")
    definition: dict[str, Any]
    priority: int = 0


class DefinedVhost(BaseModel):
    """A virtual host in a definitions.json."""

    name: str


class Definitions(BaseModel):
    """The parts of a definitions.json that belong to a topology."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    vhosts: list[DefinedVhost] = Field(default_factory=list)
    original_vhost_name: str | None = None
    exchanges: list[DefinedExchange] = Field(default_factory=list)
    queues: list[DefinedQueue] = Field(default_factory=list)
    bindings: list[DefinedBinding] = Field(default_factory=list)
    policies: list[DefinedPolicy] = Field(default_factory=list)


def json_schema() -> str:
    """The JSON Schema of the file, with the text that is shipped."""
    schema = File.model_json_schema()
    exchanges = schema["properties"]["exchanges"]
    # Predeclared exchanges have only bindings.
    bindings = schema["$defs"]["FileExchange"]["properties"]["bindings"]
    own = {"type": "object", "properties": {"bindings": bindings}, "additionalProperties": False}
    exchanges["patternProperties"] = {r"^amq\.": own}
    dialect = "https://json-schema.org/draft/2020-12/schema"
    whole = {"$schema": dialect, **schema, "title": "rabbit-chx topology"}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")  # noqa: T201
