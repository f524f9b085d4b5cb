"""The file's schema: which keys there are, of which types. What a key means for another is not known here.

``python -m rabbit_chx.topology.file.schema`` prints the JSON Schema that stands beside this file for editors. Needs
pydantic, so nothing but the loading of files imports it. What is read of a ``definitions.json`` stands here too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from rabbit_chx.releases import MAX_WEIGHT

__all__ = [
    "MAX_SLOTS",
    "SCHEMA_FILE",
    "Definitions",
    "File",
    "FileBinding",
    "FileDestination",
    "FileExchange",
    "FilePolicy",
    "FileQueue",
    "json_schema",
]

SCHEMA_FILE: Final = Path(__file__).with_name("topology.schema.json")
MAX_SLOTS: Final = 256


def _kind(value: object) -> str | None:
    match value:
        case dict():
            return "mapping"
        case list():
            return "list"
        case str():
            return "text"
        case _:
            return None


Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT)]
Arguments = dict[str, Any]
Text = Annotated[str, Field(min_length=1)]
Shortstr = Annotated[str, Field(max_length=255)]
Queues = Annotated[
    Annotated[dict[str, Weight], Tag("mapping")] | Annotated[list[str], Tag("list")], Discriminator(_kind)
]
OneOrMore = Annotated[Annotated[str, Tag("text")] | Annotated[list[str], Tag("list")], Discriminator(_kind)]


def _tidy(schema: dict[str, Any]) -> None:
    """Leave out what editors would only repeat; absent is no value of its own in a file."""
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
    """What all parts of the file have: unknown keys and values of another type are refused, and so is null."""

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


class FileDestination(Entry):
    """A destination of a hash exchange: a queue or an exchange."""

    queue: Text | None = None
    """A queue, or a numbered family such as "orders.{00..15}"."""
    exchange: Text | None = None
    """Another exchange."""
    weight: Weight = 1
    """How many buckets of the ring it gets."""


class FileBinding(Entry):
    """A binding that leads away from the exchange."""

    queue: Text | None = None
    """A queue, or a numbered family such as "orders.{00..15}"."""
    exchange: Text | None = None
    """Another exchange."""
    key: Shortstr = ""
    """The binding key; of a hash exchange it is the weight, in digits."""
    arguments: Arguments = Field(default_factory=dict)
    """The arguments of the binding, such as those that a headers exchange matches."""


class FileExchange(Entry):
    """An exchange; of those that the broker declares itself (amq.topic and so on) only bindings can be given."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_require_type)

    type: Annotated[
        Text,
        Field(
            examples=[
                "x-consistent-hash",
                "x-modulus-hash",
                "direct",
                "fanout",
                "topic",
                "headers",
                "x-random",
                "x-local-random",
                "x-recent-history",
            ]
        ),
    ] = ""
    """What kind of exchange it is: any type that the broker has."""
    durable: bool = True
    """Whether it outlives a restart."""
    auto_delete: bool = False
    """Whether it goes when its last binding goes."""
    internal: bool = False
    """Whether only other exchanges can publish to it."""
    hash_header: Text | None = None
    """The header that x-consistent-hash hashes, instead of the routing key."""
    hash_property: Literal["message_id", "correlation_id", "timestamp"] | None = None
    """The property that x-consistent-hash hashes, instead of the routing key."""
    queues: Queues | None = None
    """The queues of a hash exchange in bind order, with their weights; in a list each has the weight 1."""
    destinations: list[FileDestination] | None = None
    """The same, where exchanges are among what is bound to a hash exchange: in bind order."""
    bindings: list[FileBinding] | None = None
    """Bindings of any exchange, with keys and arguments; of a hash exchange where queues cannot say it."""
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS)] | None = None
    """Slot exchanges between a hash exchange and its queues, which share them by weight; 64 is a good number."""
    alternate_exchange: Text | None = None
    """Where messages go that match no binding; with slots, the alternate exchange of every slot."""
    co_partitioned_with: OneOrMore | None = None
    """Exchanges whose ring is meant to be equal to this one's, which check and lint watch."""
    arguments: Arguments = Field(default_factory=dict)
    """Other arguments of the declaration, as the broker names them."""


class FileQueue(Entry):
    """A queue, or a numbered family of equal queues."""

    type: Literal["quorum", "classic", "stream"] | None = None
    """What kind of queue it is; quorum if nothing is said."""
    preset: Literal["ordered"] | None = None
    """ordered: a quorum queue with a single active consumer, so that its messages are worked on in order."""
    single_active_consumer: bool = False
    """Whether one consumer at a time gets the messages; the others wait until it goes."""
    durable: bool = True
    """Whether it outlives a restart."""
    auto_delete: bool = False
    """Whether it goes when its last consumer goes."""
    arguments: Arguments = Field(default_factory=dict)
    """Other arguments of the declaration, such as x-max-length."""


class FilePolicy(Entry):
    """A policy, which the broker applies to all names that match."""

    pattern: str
    """A regular expression: the policy is for names in which it is found."""
    apply_to: Literal["all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams"] = "all"
    """What it is for."""
    priority: int = 0
    """Of the policies for one name the one with the highest applies."""
    definition: Annotated[dict[str, Any], Field(min_length=1)]
    """What the policy sets, as the broker names it."""


class File(Entry):
    """A RabbitMQ topology that rabbit-chx plans, applies and checks."""

    schema_uri: str = Field(default="", alias="$schema")
    """Where the JSON Schema of this file is, for editors."""
    schema_: Annotated[int, Field(ge=1, le=1)]
    """The version of this schema: 1."""
    vhost: Annotated[str, Field(min_length=1, max_length=255)] = "/"
    """The virtual host."""
    exchanges: dict[str, FileExchange] = Field(default_factory=dict)
    """The exchanges, by name."""
    queues: dict[str, FileQueue | None] = Field(default_factory=dict)
    """The queues, by name or as numbered families such as "orders.{00..15}"."""
    policies: dict[str, FilePolicy] = Field(default_factory=dict)
    """The policies, by name."""


class _Defined(BaseModel):
    """What RabbitMQ exports; it may grow keys that mean nothing here."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    vhost: str | None = None
    arguments: Arguments = Field(default_factory=dict)


class DefinedExchange(_Defined):
    """An exchange in a definitions.json."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False


class DefinedQueue(_Defined):
    """A queue in a definitions.json."""

    name: str
    type: str | None = None
    durable: bool = True
    auto_delete: bool = False


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
    """The parts of a definitions.json that make a topology."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    vhosts: list[DefinedVhost] = Field(default_factory=list)
    original_vhost_name: str | None = None
    exchanges: list[DefinedExchange] = Field(default_factory=list)
    queues: list[DefinedQueue] = Field(default_factory=list)
    bindings: list[DefinedBinding] = Field(default_factory=list)
    policies: list[DefinedPolicy] = Field(default_factory=list)


_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], value: Any) -> tuple[_Model | None, list[ErrorDetails]]:
    """A value as a model of it, or everything that the model has against it."""
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def json_schema() -> str:
    """The JSON Schema of the file, as it is shipped."""
    schema = File.model_json_schema()
    exchanges = schema["properties"]["exchanges"]
    # The broker's own exchanges have no type to declare: only what leads away from them can be given.
    bindings = schema["$defs"]["FileExchange"]["properties"]["bindings"]
    own = {"type": "object", "properties": {"bindings": bindings}, "additionalProperties": False}
    exchanges["patternProperties"] = {r"^amq\.": own}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "rabbit-chx topology",
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")  # noqa: T201 - this is what it is run for
