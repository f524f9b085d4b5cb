"""Intervals of a watched exchange, created without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rabbit_chx.broker.management_rows import QueueState
from rabbit_chx.topology import Binding, Exchange, Observed, Queue, Topology
from rabbit_chx.topology.planning.what_if import assume_applied
from rabbit_chx.watch import Interval
from rabbit_chx.watch.interval import compare
from rabbit_chx.watch.observer import Problem, Snapshot

QUEUES = ("q0", "q1", "q2", "q3")
HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "\"quotes\", 'apostrophes', `ticks` and \\",
    "\N{RIGHT-TO-LEFT OVERRIDE}right to left",
    "a\nb\rc\td",
    "data: {}\n\nevent: interval",
    "&lt;b&gt;",
    "{queue}",
    "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}-queue",
    "long" * 50,
)
"""Names of queues that a page, an event or a metric could misinterpret."""
SCRIPTS = (
    "<img src=x onerror=ran()>",
    '"><script>ran()</script>',
    "</script><script>ran()</script>",
    "</style><svg onload=ran()>",
    "</title></text></textarea><iframe onload=ran()>",
    "' onmouseover='ran()' onfocus=ran() autofocus x='",
    "javascript:ran()",
    "]]><script>ran()</script>",
)
"""Names that call a function if a page takes them for markup or for an address."""


def observed(queues: Iterable[str]) -> Observed:
    """A broker whose exchange ``orders`` has these queues, bound in this order with weight 1."""
    names = list(queues)
    bindings = tuple(Binding("orders", name, "1") for name in names)
    exchange = Exchange("orders", "x-consistent-hash")
    return assume_applied(Topology("/", (exchange,), tuple(map(Queue, sorted(names))), bindings))


def interval(
    queues: Iterable[str] = QUEUES,
    *,
    now: Iterable[str] | None = None,
    received: Mapping[str, int] | None = None,
    states: Mapping[str, Mapping[str, object]] | None = None,
    at: float = 1_800_000_000.0,
    reachable: bool = True,
) -> Interval:
    """Ten seconds of an exchange whose queues were bound in the order ``queues`` and are now bound in the order ``now``."""
    first = observed(queues)
    current = first if now is None else observed(now)
    names = [queue.name for queue in current.topology.queues]
    counts = {name: (received or {}).get(name, 100) for name in names}
    usual = {"ready": 3, "unacknowledged": 2, "consumers": 1}
    before = {name: QueueState(name, received=0, handled=0, consumers=1) for name in names}
    after = {
        name: QueueState(
            name, **{**usual, "received": count, "handled": count, **(states or {}).get(name, {})}
        )
        for name, count in counts.items()
    }
    down = Problem("broker-unreachable", "broker", "cannot be reached: connection refused")
    start = Snapshot(at - 10, "orders", observed=first, first=first, queues=before)
    end = Snapshot(
        at,
        "orders",
        observed=current,
        first=first,
        queues=after if reachable else {},
        problems=() if reachable else (down,),
    )
    return compare(start, end)
