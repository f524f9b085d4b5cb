"""Ask for the state of the cluster before a change, as commands of `protocol`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from rabbit_chx.broker.applying.protocol import Command, OverHttp, Surprise
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.releases import Release
from rabbit_chx.topology.checks.cluster import why_unchangeable
from rabbit_chx.topology.model import Observed


def check_cluster(*, publishes: bool = False) -> Generator[Command, Any, None]:
    """Raise `Surprise` if the nodes of the cluster cannot be changed now; ``publishes`` as for `why_unchangeable`."""
    try:
        nodes = yield OverHttp("nodes")
    except BrokerUnavailable as error:
        if error.permanent:  # the user lacks the tag monitoring
            return
        raise
    if all(state.running and not (state.partitions or state.alarms) for state in nodes.values()):
        return
    overview = yield OverHttp("overview")
    release = Release.parse(overview.release, store=(yield OverHttp("store", (overview.release,))))
    if why := why_unchangeable(Observed(release=release, nodes=nodes), publishes=publishes):
        raise Surprise(why)
