"""What is wrong with the nodes of a cluster, and whether it can be changed."""

from __future__ import annotations

from collections.abc import Iterator

from rabbit_chx.mirror.releases import Store
from rabbit_chx.topology.model import Observed


def cluster_problems(observed: Observed) -> Iterator[str]:
    """Nodes that are down, partitions, alarms, and quorum queues without a majority; none if the user may not see the nodes."""
    nodes = observed.nodes or {}
    down = [name for name, state in nodes.items() if not state.running]
    if down:
        yield f"{_listed(down)} {_is(down)} down: the cluster runs on {len(nodes) - len(down)} of its {len(nodes)} nodes"
    apart = sorted({other for state in nodes.values() for other in state.partitions})
    if apart:
        yield f"the cluster is partitioned: {_listed(apart)} cannot be reached by other nodes"
    for name, state in nodes.items():
        for alarm in state.alarms:
            yield f"{name} has a {alarm} alarm: the broker accepts no messages until it ends"
    if observed.without_majority:
        queues = ", ".join(map(repr, observed.without_majority))
        yield f"most members of {'these quorum queues' if len(observed.without_majority) > 1 else 'this quorum queue'} are down, so no message enters or leaves: {queues}"


def why_unchangeable(observed: Observed, *, publishes: bool = False) -> str:
    """Why no change is possible now; empty if one is. On Mnesia, a minority of the nodes may change the cluster.

    ``publishes`` says that the change also publishes messages, which an alarm of any node stops.
    """
    nodes = observed.nodes or {}
    down = [name for name, state in nodes.items() if not state.running]
    if any(state.partitions for state in nodes.values()):
        return "the cluster is partitioned, so one part of it would lose what is changed in the other: end the partition first"
    alarmed = [name for name, state in nodes.items() if state.alarms] if publishes else []
    if alarmed:
        return (
            f"{_listed(alarmed)} {'has' if len(alarmed) == 1 else 'have'} a memory or disk alarm, so the broker accepts none of "
            "the messages that this change publishes: end the alarm first"
        )
    if observed.release.store is not Store.KHEPRI or 2 * len(down) < max(1, len(nodes)):
        return ""
    return (
        f"{_listed(down)} {_is(down)} down, and RabbitMQ {observed.release} on Khepri changes nothing without a majority of its "
        f"{len(nodes)} nodes: start one of them first"
    )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
