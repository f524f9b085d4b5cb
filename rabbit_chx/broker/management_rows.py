"""Rows of the management API as values. A row of another shape raises one of `WRONG_SHAPE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, get_args

from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.model import (
    SINGLE_ACTIVE_CONSUMER,
    Binding,
    Exchange,
    NodeState,
    Policy,
    Queue,
    QueueType,
)

_T = TypeVar("_T")

WRONG_SHAPE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What decoding raises for an answer that the management API would not give."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The server that answers."""

    product: str
    release: str
    """Of the node that answers; the nodes of a cluster may differ during an upgrade."""
    exchange_types: frozenset[str] = frozenset()
    """The types that can be declared."""
    cluster: str = ""
    """The name of the cluster, by default that of its first node."""


@dataclass(frozen=True, slots=True)
class User:
    """The user of the API."""

    name: str
    tags: frozenset[str]


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """A consumer of a stream that belongs to a group."""

    stream: str
    connection: str | None
    """The addresses of its connection; None if the management API does not know them yet, for some seconds."""
    active: bool
    """Whether the broker delivers to this consumer of the group."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as of the broker's last statistics, which are up to five seconds old. Unreported values are None."""

    name: str
    ready: int | None = None
    unacknowledged: int | None = None
    received: int | None = None
    """Messages that arrived since the node started counting."""
    handled: int | None = None
    """Messages that left: acknowledged, or delivered without acknowledgement."""
    consumers: int | None = None
    single_active: bool = False
    """Whether the broker delivers to one consumer at a time."""
    active_consumer: str | None = None
    """The tag of the single active consumer, empty if none is active; some releases do not report it for quorum queues."""
    oldest: float | None = None
    """Seconds since the timestamp of the first message; None for most brokers, and for messages without a timestamp."""
    is_stream: bool = False
    state: str = ""


_REQUIRED: Final = object()


def field_of(row: Any, name: str, kind: type[_T], default: Any = _REQUIRED) -> _T:
    """A field of the type that it must have; the default also replaces null."""
    value = row[name] if default is _REQUIRED else row.get(name)
    if value is None and default is not _REQUIRED:
        return default  # type: ignore[no-any-return]
    if not isinstance(value, kind):
        raise TypeError(name)
    return value


def _fields(row: Any, **kinds: type) -> dict[str, Any]:
    return {name: field_of(row, name, kind) for name, kind in kinds.items()}


def _table(row: Any, name: str) -> dict[str, Any]:
    """A table of AMQP; an empty one is [] in JSON, as every empty list of Erlang."""
    return field_of(row, name, dict) if row.get(name) else {}


def overview(row: Any) -> Overview:
    """Product and release."""
    product = "LavinMQ" if "lavinmq_version" in row else field_of(row, "product_name", str, "")
    types = field_of(row, "exchange_types", list, [])
    return Overview(
        product,
        field_of(row, "rabbitmq_version", str, ""),
        frozenset(field_of(each, "name", str) for each in types if each.get("enabled", True)),
        field_of(row, "cluster_name", str, ""),
    )


def user(row: Any) -> User:
    """The user of the API."""
    tags = row["tags"]
    text = tags if isinstance(tags, str) else ",".join(tags)  # a text up to 3.8
    return User(field_of(row, "name", str), frozenset(filter(None, text.split(","))))


def feature_flag(row: Any) -> tuple[str, bool]:
    """The name of a feature flag and whether it is enabled."""
    return field_of(row, "name", str), field_of(row, "state", str) == "enabled"


def exchange(row: Any) -> Exchange:
    """An exchange."""
    fields = _fields(row, name=str, type=str, durable=bool, auto_delete=bool, internal=bool)
    policy = field_of(row, "policy", str, "")  # absent if none applies
    return Exchange(**fields, arguments=_table(row, "arguments"), policy=policy)


def queue(row: Any) -> Queue:
    """A queue."""
    fields = _fields(row, name=str, type=str, durable=bool, auto_delete=bool)
    # From 4.0 on a classic queue shows its type among the arguments, even if it was declared without.
    arguments = {name: value for name, value in _table(row, "arguments").items() if name != "x-queue-type"}
    exclusive = bool(row["exclusive"])  # null where the type cannot be exclusive and statistics are off
    return Queue(**fields, exclusive=exclusive, arguments=arguments)


class ListedQueue(NamedTuple):
    """A queue with its numbers a few seconds ago; None for those that were not listed."""

    queue: Queue
    messages: int | None
    consumers: int | None = None

    @property
    def is_unconsumed(self) -> bool:
        """Whether it has no consumer; not every release counts those of the stream protocol."""
        return self.consumers == 0 and self.queue.type != "stream"


def listed_queue(row: Any) -> ListedQueue | None:
    """A queue and its numbers; None for a type that only some plugins have."""
    if row.get("type", "classic") not in get_args(QueueType):
        return None
    return ListedQueue(queue(row), *(field_of(row, name, int, None) for name in ("messages", "consumers")))


def published(row: Any) -> tuple[str, int]:
    """A queue and the number of messages that it has received; 0 without statistics."""
    return field_of(row, "name", str), field_of(field_of(row, "message_stats", dict, {}), "publish", int, 0)


_HANDLED: Final = ("ack", "deliver_no_ack", "get_no_ack")
QUEUE_STATE_COLUMNS: Final = ",".join(
    (
        *("name", "type", "arguments", "state", "consumers", "messages_ready", "messages_unacknowledged"),
        *("single_active_consumer_tag", "head_message_timestamp", "message_stats.publish"),
        *(f"message_stats.{name}" for name in _HANDLED),
    )
)


def queue_state(row: Any, *, now: float) -> QueueState:
    """A queue with its statistics, at a time in seconds since the epoch; a new queue has no counters yet."""
    ready = field_of(row, "messages_ready", int, None)
    stats: dict[str, Any] = field_of(row, "message_stats", dict, {})
    counted = row.get("messages_ready") is not None or bool(stats)
    single_active = _table(row, "arguments").get(SINGLE_ACTIVE_CONSUMER) is True
    tag = "single_active_consumer_tag"
    since = row.get("head_message_timestamp")
    return QueueState(
        field_of(row, "name", str),
        ready,
        field_of(row, "messages_unacknowledged", int, None),
        field_of(stats, "publish", int, 0) if counted else None,
        sum(field_of(stats, name, int, 0) for name in _HANDLED) if counted else None,
        field_of(row, "consumers", int, None),
        single_active,
        field_of(row, tag, str, "") if single_active and tag in row else None,
        max(0.0, now - since) if isinstance(since, int) and since > 0 else None,
        row.get("type") == "stream",
        field_of(row, "state", str, ""),
    )


NODE_COLUMNS: Final = "name,running,uptime,partitions,mem_alarm,disk_free_alarm"
_ALARMS: Final = {"mem_alarm": "memory", "disk_free_alarm": "disk"}


def stream_consumer(row: Any, *, group: str) -> StreamConsumer | None:
    """A consumer of a stream; None if it is not of this group."""
    properties = _table(row, "properties")
    if properties.get("name") != group or properties.get("single-active-consumer") != "true":
        return None
    stream = field_of(_table(row, "queue"), "name", str)
    connection = field_of(_table(row, "connection_details"), "name", str, "")
    return StreamConsumer(stream, connection or None, field_of(row, "active", bool))


def vhost(row: Any) -> str:
    """The name of a virtual host."""
    return field_of(row, "name", str)


def node(row: Any) -> tuple[str, NodeState]:
    """The name of a node and its state."""
    return field_of(row, "name", str), NodeState(
        field_of(row, "running", bool),
        field_of(row, "uptime", int, None),
        tuple(map(str, field_of(row, "partitions", list, []))),
        tuple(alarm for column, alarm in _ALARMS.items() if row.get(column) is True),
    )


def members(row: Any) -> tuple[str, tuple[str, ...]]:
    """The name of a queue and the nodes of its members; none for a queue without members."""
    return field_of(row, "name", str), tuple(map(str, field_of(row, "members", list, [])))


QUEUE_COLUMNS: Final = "name,type,durable,auto_delete,exclusive,arguments"
COUNTED_COLUMNS: Final = f"{QUEUE_COLUMNS},messages,consumers"
BINDING_COLUMNS: Final = "source,destination,destination_type,routing_key,arguments"


def binding(row: Any) -> Binding:
    """A binding."""
    name = field_of(row, "destination", str)
    destination = name if row["destination_type"] == "queue" else ToExchange(name)
    source, key = field_of(row, "source", str), field_of(row, "routing_key", str)
    return Binding(source, destination, key, _table(row, "arguments"))


def policy(row: Any) -> Policy:
    """A policy."""
    fields = _fields(row, name=str, pattern=str, priority=int)
    return Policy(**fields, apply_to=field_of(row, "apply-to", str), definition=_table(row, "definition"))
