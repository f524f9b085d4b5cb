"""One cluster of three nodes for all tests of this folder, one release after the other.

    pytest tests/cluster                                            what CI runs: 4.3, the short tests, one round
    RABBIT_CHX_PROOF=long pytest tests/cluster                      all tests, on 4.0 and 4.3
    RABBIT_CHX_CLUSTER_RELEASES=4.0 pytest tests/cluster            all tests, on this release
    RABBIT_CHX_CLUSTER_ROUNDS=10 ...                                and each fault ten times

A module lists in `SHORT` the tests that CI runs.
"""

from __future__ import annotations

import os

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.testing.node import CannotSupply
from tests.faults.conftest import judge, judge_table, record, spark  # noqa: F401 - the fixtures
from tests.proof import LONG, Check, record_result

CHOSEN = os.environ.get("RABBIT_CHX_CLUSTER_RELEASES", "")
ALL = LONG or bool(CHOSEN)
RELEASES = (CHOSEN or ("4.0,4.3" if LONG else "4.3")).split(",")
ROUNDS = int(os.environ.get("RABBIT_CHX_CLUSTER_ROUNDS", "1"))

TIMEOUT = 600 + 300 * ROUNDS
"""Seconds for one test; the first of a release also starts the cluster."""


def pytest_generate_tests(metafunc):
    if "cluster" in metafunc.fixturenames:
        metafunc.parametrize("cluster", RELEASES, indirect=True, scope="session")


def pytest_collection_modifyitems(config, items):
    own = [item for item in items if item.path.parent.name == "cluster"]
    for item in own:
        item.add_marker(pytest.mark.cluster)
        item.add_marker(pytest.mark.timeout(TIMEOUT))
    if not ALL:
        long = [item for item in own if item.originalname not in getattr(item.module, "SHORT", ())]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def cluster(request):
    if os.environ.get("RABBIT_CHX_BROKER_URL"):
        pytest.skip("RABBIT_CHX_BROKER_URL asks for one broker, and a cluster is three containers")
    from tests.cluster.nodes import Cluster

    cluster = Cluster(request.param)
    try:
        cluster.start()
    except CannotSupply as reason:
        pytest.skip(f"a cluster needs Docker: {reason}")
    yield cluster
    cluster.stop()
    if cluster.compared:
        what = "three nodes: each ring on each node, before and after faults and restarts"
        rings, wrong, sensed, seconds = map(sum, zip(*cluster.compared, strict=True))
        seen = f"a bucket taken out: {sensed:,} of {rings:,} seen"
        record_result(Check("Ring", what, cluster.version, rings, wrong, seconds, seen))
        assert sensed == rings, seen


@pytest.fixture
def broker(cluster):
    """A node, for the release that `record` books."""
    return cluster.members[0]


@pytest.fixture
def urls(cluster):
    """The stream URL of each node, by its name; each node advertises the address in its URL."""
    found = {}
    for member in cluster.members:
        url = BrokerUrl.for_streams(member.stream_url)
        for key, value in (("host", f'<<"{url.host}">>'), ("port", url.port)):
            member.eval(f"application:set_env(rabbitmq_stream, advertised_{key}, {value}).")
        found[member.name] = url
    return found


@pytest.fixture
def site(cluster):
    from tests.cluster.site import Site

    with Site(cluster) as site:
        yield site
        cluster.mend()
    cluster.whole()
