"""The fixture `broker`: every release in turn, one running at a time.

    RABBIT_CHX_TEST_RELEASES=4.3 pytest tests/broker       one release only ("any": whatever is at hand)

Tests marked `one_release` tell on every release the same. They run on the last of these alone, and on all of them where
RABBIT_CHX_PROOF is long. In a file with this marker, tests marked `newest_first` run on the oldest as well.

A release that cannot be had is skipped with the reason, and fails where CI is set (tests/conftest.py). A
broker that is to be had but does not start is an error everywhere.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.broker.management import Management
from rabbit_chx.streams import connect
from rabbit_chx.testing import Broker, available
from tests.broker.erlang import asked_quickly, quick_command
from tests.broker.parity import Lab
from tests.broker.stream_scene import a_name, streams_at
from tests.broker.topology_site import CLIENTS, Site
from tests.brokers import revive, running
from tests.proof import LONG, record_result
from tests.queues import a_channel, bind_ring, confirming_channel, delete_exchange, message_count
from tests.spark.conftest import inbox, streams  # noqa: F401 - the same fixtures for both folders
from tests.verbs import Result, run_verb

PLUGINS = ["rabbitmq_sharding", "rabbitmq_random_exchange", "rabbitmq_stream", "rabbitmq_stream_management"]
PLUGINS += ["rabbitmq_auth_mechanism_ssl"]
PROTOCOLS = ["rabbitmq_amqp1_0", "rabbitmq_mqtt", "rabbitmq_stomp"]
"""In containers only: a node outside one would have to share the ports of MQTT and STOMP."""
RELEASES = os.environ.get("RABBIT_CHX_TEST_RELEASES", "3.10,4.0,4.3").split(",")
NEWEST_IN_CI = [*(pytest.param(each, marks=pytest.mark.proof) for each in RELEASES[:-1]), RELEASES[-1]]
"""For tests with a broker of their own that takes long to break."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    before = {"since_4_0": "3.", "since_4_3": ("3.", "4.0")}
    early = {
        item
        for item in items
        for marker, releases in before.items()
        if item.get_closest_marker(marker) and str(_broker_of(item)).startswith(releases)
    }
    config.hook.pytest_deselected(items=list(early))
    items[:] = [item for item in items if item not in early]
    if LONG:
        return
    older = [item for item in items if _broker_of(item) in RELEASES[:-1]]
    spared = {item for item in older if _rule_of(item) == "one_release"}
    config.hook.pytest_deselected(items=list(spared))
    items[:] = [item for item in items if item not in spared]
    for item in older:
        if _rule_of(item) == "newest_first":
            item.add_marker("long")
            if _broker_of(item) != RELEASES[0] and not item.path.name.startswith("test_parity"):
                item.add_marker("proof")


def _rule_of(item) -> str | None:
    """The marker that says on which releases a test runs: its own counts before that of its file."""
    names = (mark.name for mark in item.iter_markers())
    return next((name for name in names if name in {"one_release", "newest_first"}), None)


def _broker_of(item) -> str | None:
    """The release that a test is to run on."""
    return item.callspec.params.get("broker") if hasattr(item, "callspec") else None


# pytest runs all tests of one parameter of a session fixture before it turns to the next one.
@pytest.fixture(scope="session", params=RELEASES)
def broker(request):
    release = None if request.param == "any" else request.param
    contained = available(release).kind == "docker"
    broker = Broker(release, plugins=PLUGINS + PROTOCOLS * contained)
    with running(broker), asked_quickly(broker):
        yield broker


@pytest.fixture(autouse=True)
def living_broker(request):
    if "broker" in request.fixturenames:
        revive(request.getfixturevalue("broker"))


@pytest.fixture(scope="session")
def lab(broker):
    """The broker with its facts, and with the count of what was compared on it: parity is a claim about numbers."""
    lab = Lab(broker)
    yield lab
    record_result(str(lab.tally))


@pytest.fixture
def management(broker):
    return Management(broker.management_url, credentials=lambda: (broker.username, broker.password))


@pytest.fixture
def stream_url(broker):
    return BrokerUrl.for_streams(broker.stream_url)


@pytest.fixture
def stream_connection(stream_url):
    with connect(stream_url) as connection:
        yield connection


@pytest.fixture
def stream(stream_url):
    with streams_at(stream_url, a_name()) as (name,):
        yield name


@pytest.fixture
def site(broker):
    """A virtual host of its own."""
    with Site(broker) as site:
        yield site


@pytest.fixture
def channel(site):
    """A channel in the virtual host of the test."""
    with a_channel(site) as channel:
        yield channel


@pytest.fixture
def node(broker) -> list[str]:
    """Options that name the broker's node."""
    return ["--node", quick_command(broker)]


@pytest.fixture
def environment(broker, monkeypatch):
    """Where the broker is, as a user sets it once."""
    parts = urlsplit(broker.url)
    found = {"AMQP_URL": f"amqp://{parts.netloc}", "RABBITMQ_MANAGEMENT_URL": broker.management_url}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def run(environment, capsys):
    def run(*arguments: object) -> Result:
        found = run_verb(capsys, *arguments)
        assert "Traceback" not in found.err
        return found

    return run


@pytest.fixture(params=CLIENTS)
def applied(request):
    """Each of the two ways to apply a plan."""
    return request.param


@pytest.fixture
def orders(broker):
    """An exchange orders with two queues, of weight 1 and 3; called, the number of messages that lie in them."""
    weights = {"orders.a": "1", "orders.b": "3"}
    with confirming_channel(broker) as channel:
        bind_ring(channel, "orders", weights)
        yield lambda: sum(message_count(channel, name) for name in weights)
        delete_exchange(channel, "orders", weights)
