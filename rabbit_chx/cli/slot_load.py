"""Measure the load of slots: from a file of keys, or from the messages that the broker traces."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reading.node import NodeCommand
from rabbit_chx.broker.reading.tracing import sample, traced
from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.cli.ask.key_file import predicted
from rabbit_chx.cli.show.output import progress
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.mirror.exchange import ConsistentHashExchange
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.topology.graph import reachable
from rabbit_chx.topology.model import Observed, Topology
from rabbit_chx.topology.slots.slot_counts import SlotCounts

_MOST_TRACED = 100_000
"""Enough for about 400 messages per slot with 256 slots."""
_COUNTED = 6.0
"""Seconds until the broker's counters, updated every 5 seconds, include everything published so far."""
_PATIENCE = 2 * _COUNTED + 1
_SLACK = 30.0
"""Seconds until the node turns the tracer off if this program was killed, after the longest possible sample."""


def count_keys(counts: SlotCounts, path: str, *, raw: bool) -> None:
    """Count the keys of a file."""
    mirror = counts.mirror
    part = mirror._hash_on.part if isinstance(mirror, ConsistentHashExchange) else "routing_key"
    for _ in predicted(path, part, counts.add_keys, raw=raw, title="Counting"):
        pass


def measure(
    live: BrokerAccess,
    observed: Observed,
    exchange: str,
    queue_of: dict[str, str],
    counts: SlotCounts,
    seconds: float,
) -> tuple[float, int]:
    """Count the messages that the broker routes to each slot.

    Returns:
        The seconds of the measurement, and the messages to the exchange that did not reach the predicted queue.
    """
    vhost = observed.topology.vhost
    watch = _Watch(live.management, vhost, frozenset(queue_of.values()))
    if live.node is None:
        watch.check_tracing()
    sources = _sources_of(observed.topology, exchange)
    elsewhere, patience = 0, max(seconds, _PATIENCE)
    with ExitStack() as stack:
        connection = stack.enter_context(live.amqp(vhost))
        watch.advance = stack.enter_context(progress("Measuring", round(seconds)))
        if live.node is not None:
            longest = patience + seconds + _SLACK
            stack.enter_context(traced(NodeCommand(live.node), vhost, at_most=longest))
        messages = sample(
            connection, sources, seconds=seconds, patience=patience, most=_MOST_TRACED, advance=watch.tick
        )
        for message in messages:
            watch.traced += 1
            slot, key = counts.route(message.keys, message.headers, message.properties)
            if slot is not None and queue_of[slot] in message.queues:
                counts.add(slot, key)
            elif message.exchange == exchange:
                elsewhere += 1
    if not watch.traced:
        watch.check_traffic()
    return watch.seconds, elsewhere


def _sources_of(topology: Topology, exchange: str) -> list[str]:
    """The exchanges that may route messages to an exchange, including the exchange itself."""
    end = ToExchange(exchange)
    names = [each.name for each in topology.exchanges if each.name and not each.internal]
    return [name for name in names if end in reachable(topology, [ToExchange(name)], alternates=True)]


@dataclass
class _Watch:
    """Finds out why nothing is traced: no messages, or the tracer is off."""

    management: Management
    vhost: str
    queues: frozenset[str]
    traced: int = 0
    seconds: float = 0.0
    """Seconds since the first message."""
    advance: Callable[[int], object] = lambda _: None
    """Shows the seconds that have passed."""
    waited: float = 0.0
    """Seconds without any message."""
    _before: int | None = None
    _asked: bool = False

    def _published(self) -> int:
        return sum(
            count for queue, count in self.management._published(self.vhost).items() if queue in self.queues
        )

    def check_tracing(self) -> None:
        on = True
        with suppress(BrokerUnavailable):
            on = self.management._tracing(self.vhost)
        if not on:
            raise self._off()

    def tick(self, passed: float) -> None:
        """Show the progress; as long as nothing is traced, read the counters, twice at most."""
        if self.traced:
            whole = int(self.seconds)
            self.seconds += passed
            self.advance(int(self.seconds) - whole)
            return
        self.waited += passed
        if self._before is None and self.waited >= _COUNTED:
            self._before = self._published()
        elif not self._asked and self.waited >= 2 * _COUNTED:
            self._asked = True
            self._check_published()

    def check_traffic(self) -> None:
        """Raise an error with the reason why nothing was traced."""
        self._check_published()
        raise BrokerUnavailable(
            f"no message was published within {self.waited:.0f} seconds: measure while messages flow, increase "
            "--sample, or pass a sample of keys with --keys. If messages do flow, the tracer is off: "
            f"`{self._command('trace_on')}` turns it on"
        )

    def _check_published(self) -> None:
        """Raise if the counters have grown while no message was traced."""
        if self._before is not None and self._published() > self._before:
            raise self._off()

    def _off(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"messages of virtual host {self.vhost!r} are not traced, so the load of its slots cannot be measured: turn "
            f"the tracer on with `{self._command('trace_on')}` on each node and off again with "
            f"`{self._command('trace_off')}`, or pass --node, which does both, or --keys with a sample of keys"
        )

    def _command(self, verb: str) -> str:
        return f"rabbitmqctl {verb} -p {shlex.quote(self.vhost)}"
