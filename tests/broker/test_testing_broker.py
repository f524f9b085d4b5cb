"""The throw-away broker for real: what it tells about itself, its restarts, and that nothing of it is left."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError
from rabbit_chx.mirror.ring import ToExchange
from rabbit_chx.testing import Broker, available, broker as broker_module, local_node
from rabbit_chx.testing.node import READY, CannotSupply
from tests.patience import PATIENCE, wait_until
from tests.programs import ran
from tests.queues import a_channel

pytestmark = [pytest.mark.newest_first, pytest.mark.broker, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ODD_NAME = 'two words, \'quotes\' "double" \\ é 🐇 <<"}.'


def http(broker, *path):
    return Management.of(broker.url, broker.management_url)._request("GET", path)


def bind(broker, exchange, destinations, vhost="/"):
    """Declare a durable consistent-hash exchange and its destinations, bound in this order."""
    parameters = pika.URLParameters(broker.url)
    parameters.virtual_host = vhost
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "x-consistent-hash", durable=True)
        for destination, weight in destinations:
            if isinstance(destination, ToExchange):
                channel.exchange_declare(destination.name, "fanout", durable=True)
                channel.exchange_bind(destination.name, exchange, weight)
            else:
                channel.queue_declare(destination, durable=True)
                channel.queue_bind(destination, exchange, weight)


def is_answering(url):
    parts = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((parts.hostname, parts.port)) == 0


@pytest.fixture(autouse=True)
def as_users_have_it(request, monkeypatch):
    """Take away the program that `asked_quickly` keeps."""
    if "broker" in request.fixturenames:
        monkeypatch.delattr(request.getfixturevalue("broker"), "ctl")


@pytest.fixture
def own(broker):
    """The session's broker, if it is one that may be restarted."""
    if broker.source.kind == "external":
        pytest.skip("the broker of RABBIT_CHX_BROKER_URL is not ours to restart")
    return broker


# --- what it tells ------------------------------------------------------------------------------------------


def test_it_is_of_the_release_that_was_asked_for_and_amqp_and_http_agree_on_it(broker):
    overview = http(broker, "overview")
    assert overview["rabbitmq_version"] == broker.version
    assert broker.release is None or broker.version.startswith(f"{broker.release}.")
    types = {each["name"] for each in overview["exchange_types"]}
    assert {"x-consistent-hash", "x-modulus-hash"} <= types  # of the plugins


def test_the_store_is_the_one_the_feature_flag_tells_over_http(broker):
    states = {flag["name"]: flag["state"] for flag in http(broker, "feature-flags")}
    assert broker.store == ("khepri" if states.get("khepri_db") == "enabled" else "mnesia")


def test_rabbitmqctl_prints_data_and_its_failure_is_an_error(broker):
    assert broker.ctl("list_vhosts", "name", "--formatter", "json").startswith('[\n{"name":"/"}')
    with pytest.raises(RabbitChxError, match=r"rabbitmqctl eval failed with exit code \d+: Error:\s+\{:boom"):
        broker.eval("error(boom).")
    with pytest.raises(RabbitChxError, match="syntax error"):
        broker.eval("1 +")


# --- its rings ----------------------------------------------------------------------------------------------


def test_names_of_any_characters_come_back_as_they_are(broker):
    destinations = [(f"queue {ODD_NAME}", "1"), (ToExchange(f"exchange {ODD_NAME}"), "1"), ("q" * 255, "1")]
    bind(broker, ODD_NAME, destinations)
    assert broker.ring(ODD_NAME) == [destination for destination, _ in destinations]


def test_a_ring_is_read_from_the_virtual_host_asked_for(broker):
    vhost = f"host {ODD_NAME}"
    broker.ctl("add_vhost", vhost)
    try:
        broker.ctl("set_permissions", "--vhost", vhost, broker.username, ".*", ".*", ".*")
        bind(broker, "ring.host", [("there", "1")], vhost)
        bind(broker, "ring.host", [])
        assert broker.ring("ring.host", vhost=vhost) == ["there"]
        assert broker.ring("ring.host") == []
    finally:
        broker.ctl("delete_vhost", vhost)


@pytest.mark.parametrize("name", ["ring.unknown", "amq.topic"])
def test_what_has_no_ring_is_an_error(broker, name):
    with pytest.raises(InvalidValue, match=rf"got '{name}', expected an x-consistent-hash exchange"):
        broker.ring(name)


# --- its restarts -------------------------------------------------------------------------------------------


@pytest.mark.one_release
def test_a_restart_keeps_urls_queues_and_messages(own):
    bind(own, "kept", [("kept.q", "1")])
    urls, boots = (own.url, own.management_url), own.logs().count(READY)
    with a_channel(own, confirms=True) as channel:
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("kept", "key", b"kept", persistent, mandatory=True)

    own.restart()

    assert (own.url, own.management_url) == urls
    assert own.logs().count(READY) == boots + 1
    assert own.ring("kept") == ["kept.q"]
    assert http(own, "exchanges", "/", "kept")["type"] == "x-consistent-hash"
    with own.connection() as connection:
        assert connection.channel().basic_get("kept.q", auto_ack=True)[2] == b"kept"


@pytest.mark.one_release
def test_restart_app_restarts_rabbitmq_and_leaves_erlang_running(own):
    bind(own, "kept", [("kept.q", "1")])
    own.eval("persistent_term:put(rabbit_chx_test, still_here).")
    before = own.connection()

    own.restart_app()

    with pytest.raises(pika.exceptions.AMQPError):
        before.channel()
    assert own.eval("persistent_term:get(rabbit_chx_test, gone).") == "still_here"
    assert own.ring("kept") == ["kept.q"]
    own.restart()
    assert own.eval("persistent_term:get(rabbit_chx_test, gone).") == "gone"


# --- a broker of one's own ----------------------------------------------------------------------------------


def without_docker(monkeypatch):
    def find(release):
        raise CannotSupply("Docker is left out here")

    monkeypatch.setattr(broker_module, "_find_docker", find)


def kinds():
    """The ways this machine can run a broker: there is nothing to test about the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RABBIT_CHX_BROKER_URL", raising=False)
        found = []
        for find in (broker_module._find_docker, local_node.find):
            try:
                found.append(find(None).kind)
            except CannotSupply:
                continue
    return found


@pytest.fixture(params=kinds())
def kind(request, monkeypatch):
    monkeypatch.delenv("RABBIT_CHX_BROKER_URL", raising=False)
    if request.param == "local":
        without_docker(monkeypatch)
    return request.param


def traces(broker):
    """What must be gone once the broker is stopped: a function that tells whether any of it is still there."""
    url, node = broker.url, broker._running
    if broker.source.kind == "docker":
        name = node._container.get_container_id()

        def left():
            return ran(["docker", "inspect", name]).returncode == 0

    else:
        folder, processes = node._folder, (node._server, node._mapper)

        def left():
            return folder.exists() or any(process.poll() is None for process in processes)

    return lambda: left() or is_answering(url)


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_nothing_is_left_after_the_block_or_an_exception_in_it(kind, error):
    with suppress(ZeroDivisionError), Broker() as broker:
        assert broker.source.kind == kind
        left = traces(broker)
        assert left()
        if error:
            raise error
    wait_until(lambda: not left(), "the sockets of a killed process are closed")


PROGRAM = """if True:
    import sys, time
    from rabbit_chx.testing import Broker
    from rabbit_chx.testing import broker as broker_module
    from rabbit_chx.testing.node import CannotSupply

    def leave_out(release):
        raise CannotSupply("left out")

    if sys.argv[1] == "local":
        broker_module._find_docker = leave_out
    broker = Broker()
    broker.start()  # and never stopped
    print(broker.url, flush=True)
    if sys.argv[2] == "wait":
        time.sleep(600)
    raise RuntimeError("the program crashes")
"""


@pytest.mark.parametrize(("mode", "exit_code"), [("crash", 1), ("wait", 128 + signal.SIGTERM)])
def test_nothing_is_left_after_a_program_that_crashes_or_is_terminated(kind, mode, exit_code):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, kind, mode]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        url = program.stdout.readline().strip()
        assert url.startswith("amqp://"), program.stderr.read()
        if mode == "wait":
            assert is_answering(url)
            program.terminate()
        _, errors = program.communicate(timeout=2 * PATIENCE)
    assert program.returncode == exit_code
    assert ("the program crashes" in errors) is (mode == "crash")
    wait_until(lambda: not is_answering(url), "the sockets of a killed process are closed")


def test_the_configuration_reaches_the_node(kind):
    with Broker(config={"default_worker_pool_size": "1", "channel_max": "77"}) as broker:
        assert broker.eval("application:get_env(rabbit, channel_max).") == "{ok,77}"
        assert broker.eval("application:get_env(rabbit, default_worker_pool_size).") == "{ok,1}"


def test_a_configuration_the_node_refuses_is_an_error_that_names_the_line(kind):
    with pytest.raises(BrokerUnavailable, match="no_such_key"):
        Broker(config={"no_such_key": "1"}).start()


def test_a_plugin_that_the_release_does_not_have_is_an_error(kind):
    with pytest.raises(BrokerUnavailable, match="no_such_plugin"):
        Broker(plugins=["no_such_plugin"]).start()


def test_a_release_that_nobody_has_is_an_error_that_lists_what_was_tried(kind):
    with pytest.raises(BrokerUnavailable, match=r"no RabbitMQ 1\.99 broker is available.*To get one"):
        Broker("1.99").start()


# --- a broker that somebody else runs -----------------------------------------------------------------------


def test_a_running_broker_is_used_as_it_is_and_left_running(own, monkeypatch):
    bind(own, "external", [("external.q", "2"), (ToExchange("external.x"), "1")])
    monkeypatch.setenv("RABBIT_CHX_BROKER_URL", own.url)
    monkeypatch.setenv("RABBIT_CHX_MANAGEMENT_URL", own.management_url)
    with Broker(own.release) as broker:
        assert broker.source.kind == available().kind == "external"
        assert broker.version == own.version
        assert http(broker, "overview")["rabbitmq_version"] == own.version
        for refused in (broker.restart, broker.restart_app, broker.logs, lambda: broker.ring("external")):
            with pytest.raises(BrokerUnavailable, match="RABBIT_CHX"):
                refused()
        if own.source.kind == "docker":
            name = own._running._container.get_container_id()
            monkeypatch.setenv("RABBIT_CHX_RABBITMQCTL", f"docker exec -u rabbitmq {name} rabbitmqctl")
            assert broker.ring("external") == ["external.q"] * 2 + [ToExchange("external.x")]
            assert broker.store == own.store
    assert is_answering(own.url)
