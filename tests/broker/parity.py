"""What the parity tests share: an exchange on a real broker beside its mirror, and the count of what was compared.

The broker is the oracle. A message's body is its number, so that after publishing a list the queues tell
where each of it landed; the mirror has to have said the same of every single one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pika.exceptions import AMQPError

from rabbit_chx import ConsistentHashExchange, Release, Ring, ToExchange
from rabbit_chx.mirror.ring import as_bindings
from tests.broker.parity_clients import Message, publish
from tests.inbox import emptied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pika

    from rabbit_chx.mirror.fields import Client
    from rabbit_chx.mirror.ring import Bindings, Destination
    from rabbit_chx.testing import Broker

    Publish = Callable[[str, str, Sequence[Message], Client], set[int]]


QUEUES = {f"q{i}": weight for i, weight in enumerate([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 9, 6])}
"""A prime number of buckets, so that values that differ rarely meet in one."""


@dataclass
class Tally:
    """What was compared with one broker in this session."""

    broker: str
    messages: Counter[str] = field(default_factory=Counter)
    rings: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    rebuilt: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        compared = (
            f"{self.messages.total():,} messages{_counts(self.messages)} and {self.rings:,} rings compared"
        )
        restarts = f"{self.restarts.total()} restarts{_counts(self.restarts)}"
        after = f", after which rings came back{_counts(self.rebuilt)}" if self.rebuilt else ""
        return f"{self.broker}: {compared}, {restarts}{after}"


def _counts(counter: Counter[str]) -> str:
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items()))
    return f" ({counts})" if counts else ""


# One line of a name and its buckets. The numbers of the buckets have to be 0, 1, 2 ... without a hole.
_PRINT_RING = """
begin
    Ring = case rabbit_exchange_type_consistent_hash:ring_state(<<"/">>, Name) of
               {ok, State} -> maps:to_list(element(3, State));
               {error, not_found} -> []
           end,
    {Numbers, Destinations} = lists:unzip(lists:keysort(1, Ring)),
    Numbers = lists:seq(0, length(Ring) - 1),
    io:format("~s~s~n", [Name, [[" ", atom_to_list(Kind), ":", D] || {resource, _, Kind, D} <- Destinations]])
end
"""


def _destination(text: str) -> Destination:
    kind, _, name = text.partition(":")
    return name if kind == "queue" else ToExchange(name)


class Lab:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.release = Release.parse(broker.version, store=broker.store)
        name = f"RabbitMQ {self.release} ({self.release.store.value}, {broker.eval('erlang:system_info(schedulers).')} schedulers)"
        self.tally = Tally(name)

    def restart(self, how: str) -> None:
        """Restart by ``"restart"`` (the whole node) or ``"restart_app"`` (RabbitMQ in it)."""
        getattr(self.broker, how)()
        self.tally.restarts[how] += 1

    def compare_rings(self, expected: Mapping[str, Ring]) -> None:
        """Hold rings against what the broker has for the exchanges of these names."""
        actual = self.rings(expected)
        for exchange, ring in expected.items():
            assert actual[exchange] == ring.bucket_map, f"the ring of {exchange}"
        self.tally.rings += len(expected)

    def rings(self, exchanges: Iterable[str]) -> dict[str, tuple[Destination, ...]]:
        """The rings of these exchanges, asked for at once."""
        names = ", ".join(f'<<"{name}">>' for name in exchanges)
        lines = self.broker.eval(f"[{_PRINT_RING} || Name <- [{names}]], done.").split("\n")
        assert lines.pop() == "done"
        return {name: tuple(map(_destination, ring)) for name, *ring in map(str.split, lines)}

    @contextmanager
    def exchange(
        self,
        bindings: Bindings,
        *,
        name: str = "parity",
        hash_header: str | None = None,
        hash_property: str | None = None,
    ) -> Iterator[Scratch]:
        """An x-consistent-hash exchange and its mirror, for the length of the block.

        Destinations that are exchanges are of the type fanout, with one queue each.
        """
        listed = list(as_bindings(bindings))
        arguments = {"hash-header": hash_header, "hash-property": hash_property}
        with Scratch(self, name) as scratch:
            scratch.declare("x-consistent-hash", {k: v for k, v in arguments.items() if v is not None})
            for binding in listed:
                scratch.bind(binding.destination, binding.key)
            ring = Ring.of(listed, release=self.release)
            scratch.mirror = ConsistentHashExchange(
                ring, hash_header=hash_header, hash_property=hash_property
            )
            yield scratch


class Scratch:
    """An exchange, the destinations that were bound to it, and where its messages land."""

    mirror: ConsistentHashExchange

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name
        self.destinations: dict[str, Destination] = {}
        """Every queue, and the destination that a message in it was routed to."""

    def __enter__(self) -> Self:
        self._connection = self.lab.broker.connection()
        self._channel = self._connection.channel()
        return self

    def __exit__(self, *_: object) -> None:
        self.reconnect()
        with self._connection:
            self._channel.exchange_delete(self.name)
            for queue, destination in self.destinations.items():
                self._channel.queue_delete(queue)
                if isinstance(destination, ToExchange):
                    self._channel.exchange_delete(destination.name)

    def reconnect(self) -> None:
        """Open a new connection in place of one that a restart has closed, or whose channel an error has."""
        close(self._connection)
        self.__enter__()

    def declare(self, kind: str, arguments: Mapping[str, Any] | None = None) -> None:
        self._channel.exchange_declare(self.name, kind, durable=True, arguments=arguments)

    def bind(self, destination: Destination, key: str = "1") -> None:
        """Bind a queue, or an exchange that hands all it gets to one queue."""
        if isinstance(destination, ToExchange):
            queue = f"behind {destination.name}"
            self._channel.exchange_declare(destination.name, "fanout", durable=True)
            self._queue(queue, destination)
            self._channel.queue_bind(queue, destination.name, "1")
            self._channel.exchange_bind(destination.name, self.name, key)
        else:
            self._queue(destination, destination)
            self._channel.queue_bind(destination, self.name, key)

    def _queue(self, queue: str, destination: Destination) -> None:
        if queue not in self.destinations:
            self._channel.queue_declare(queue, durable=True)
            self.destinations[queue] = destination

    def bind_to(self, source: str, key: str) -> None:
        """Bind the exchange to another one, which hands on what it gets."""
        self._channel.exchange_bind(self.name, source, key)

    def count(self, queue: str) -> int:
        """The number of messages in a queue."""
        return int(self._channel.queue_declare(queue, passive=True).method.message_count)

    def unbind(self, destination: Destination, key: str = "1") -> None:
        """Take one binding away."""
        if isinstance(destination, ToExchange):
            self._channel.exchange_unbind(destination.name, self.name, key)
        else:
            self._channel.queue_unbind(destination, self.name, key)

    def send(
        self, messages: Sequence[Message], client: Client, publish: Publish = publish
    ) -> list[Destination | None]:
        """Publish, and return where every message landed; None where it came back."""
        returned = publish(self.lab.broker.url, self.name, messages, client)
        self.lab.tally.messages[client] += len(messages)
        landed = self._landed()
        assert len(landed) + len(returned) == len(messages)
        assert landed.keys().isdisjoint(returned)
        return [landed.get(place) for place in range(len(messages))]

    def _landed(self) -> dict[int, Destination]:
        """Empty all queues: where every message was. In two queues at once is an error."""
        landed: dict[int, Destination] = {}
        for queue, destination in self.destinations.items():
            for message in emptied(self._channel, queue):
                number = int(message.body)
                assert number not in landed, f"message {number} is in two queues"
                landed[number] = destination
        return landed

    def check(
        self, messages: Iterable[Message], client: Client, publish: Publish = publish
    ) -> list[Destination | None]:
        """Publish, and hold what the mirror says of every message against where it landed."""
        messages = list(messages)
        part = self.mirror._hash_on.part
        expected = [
            self.mirror.route(**{part: getattr(message, part)}, client=client) for message in messages
        ]
        landed = self.send(messages, client, publish)
        assert_same(messages, expected, landed)
        return landed


def assert_bulk(
    mirror: Any, columns: Iterable[Any], landed: Sequence[Any], client: Client | None = None
) -> None:
    """Fail if a column of values, routed at once, is said to land elsewhere than its messages did."""
    for column in columns:
        routed = [mirror.destinations[index] for index in mirror.route_many(column, client=client)]
        assert_same(column, routed, landed)


def close(connection: pika.BlockingConnection) -> None:
    """Close a connection, if a restart of the broker has not done so already."""
    with suppress(AMQPError):
        connection.close()


def assert_same(messages: Sequence[Any], expected: Sequence[Any], landed: Sequence[Any]) -> None:
    """Fail with the first few messages that landed elsewhere."""
    wrong = [
        f"{message}: expected {said}, landed {got}"
        for message, said, got in zip(messages, expected, landed, strict=True)
        if said != got
    ]
    assert not wrong, f"{len(wrong)} of {len(messages)} landed elsewhere:\n" + "\n".join(wrong[:10])
