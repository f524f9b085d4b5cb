"""The throw-away broker without a broker: where it comes from, what is asked of it, what its errors say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from rabbit_chx.broker.reading.erlang_rings import rings_expression
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RingUnknown
from rabbit_chx.testing import Broker, available, broker as broker_module, cleanup, local_node
from rabbit_chx.testing.node import CannotSupply, NodeSettings, Source
from tests.programs import loaded_after

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]


def a_node(name="fake", error=None, ctl=""):
    """A node that only notes what is done to it."""
    node = Mock(url=f"amqp://user:geheim@{name}:5672/%2F", management_url=None, stream_url=None)
    node.start.side_effect = error
    node.ctl.return_value = ctl
    return node


def supply(monkeypatch, docker=None, local=None):
    """Let Docker and the local server be these nodes, or absent."""

    def finder(kind, fake):
        def find(release):
            if fake is None:
                raise CannotSupply(f"{kind}: absent")
            return Source(kind, f"a fake {kind} broker", lambda settings: fake)

        return find

    monkeypatch.setattr(broker_module, "_find_docker", finder("docker", docker))
    monkeypatch.setattr(local_node, "find", finder("local", local))


@pytest.fixture(autouse=True)
def no_broker_in_the_environment(monkeypatch):
    for name in ("BROKER_URL", "MANAGEMENT_URL", "RABBITMQCTL"):
        monkeypatch.delenv(f"RABBIT_CHX_{name}", raising=False)


# --- which source -------------------------------------------------------------------------------------------


def test_a_url_in_the_environment_comes_before_docker_and_docker_before_a_local_server(monkeypatch):
    supply(monkeypatch, local=a_node())
    assert available().kind == "local"
    docker = a_node()
    supply(monkeypatch, docker=docker, local=a_node())
    assert (available().kind, docker.mock_calls) == ("docker", [])  # nothing is started
    monkeypatch.setenv("RABBIT_CHX_BROKER_URL", "amqp://user:geheim@somewhere:5673/%2F")
    assert available().kind == "external"
    assert str(available()) == "the running broker at somewhere:5673 (RABBIT_CHX_BROKER_URL)"


@pytest.mark.parametrize("release", ["4.3", "4.0"])
def test_a_running_broker_is_available_if_it_has_the_release(monkeypatch, release):
    monkeypatch.setenv("RABBIT_CHX_BROKER_URL", "amqp://user:geheim@somewhere:5673/%2F")
    monkeypatch.setattr("rabbit_chx.testing.external_node.release_at", lambda _: "4.3.6")
    if release == "4.3":
        assert available(release).kind == "external"
    else:
        with pytest.raises(
            BrokerUnavailable, match=r"^the broker at somewhere:5673 .* is 4\.3\.6, not 4\.0$"
        ):
            available(release)


def test_without_any_source_the_error_lists_what_was_tried_and_what_to_install(monkeypatch):
    supply(monkeypatch)
    with pytest.raises(BrokerUnavailable) as caught:
        available("4.3")
    tried = "RABBIT_CHX_BROKER_URL is not set; docker: absent; local: absent"
    assert str(caught.value) == f"no RabbitMQ 4.3 broker is available: {tried}. {broker_module.HELP}"


def test_a_missing_docker_engine_is_a_reason_and_not_a_warning(monkeypatch):
    docker_node = pytest.importorskip("rabbit_chx.testing.docker_node")
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CannotSupply, match=r"^Docker: no engine answers \(.*No such file"):
            docker_node.find("4.3")


def docker_node_with(container, monkeypatch):
    docker_node = pytest.importorskip("rabbit_chx.testing.docker_node")
    monkeypatch.setattr(docker_node.DockerNode, "_docker", container)
    return docker_node.DockerNode("image", NodeSettings())


def test_rabbitmqctl_that_does_not_end_in_a_container_is_given_up(monkeypatch):
    def run(command, **_):
        done = subprocess.run([*command[:4], "sleep", "600"], check=False)
        return done.returncode, (None, None)

    for module in ("node", "docker_node"):
        monkeypatch.setattr(f"rabbit_chx.testing.{module}.CTL_SECONDS", 0.1)
    node = docker_node_with(SimpleNamespace(exec_run=run), monkeypatch)
    with pytest.raises(BrokerUnavailable, match=r"rabbitmqctl status did not end within 0\.1 seconds"):
        node.ctl("status")


@pytest.mark.parametrize("call", ["kill", "pause", "unpause", "restart", "ctl"])
def test_what_docker_refuses_is_an_error_of_the_package(monkeypatch, call):
    errors = pytest.importorskip("docker.errors")

    def refuse(*_, **__):
        raise errors.APIError("409 Client Error", explanation="container 1f is paused")

    refusals = dict.fromkeys(("kill", "pause", "unpause", "restart", "exec_run"), refuse)
    node = docker_node_with(SimpleNamespace(logs=bytes, **refusals), monkeypatch)
    with pytest.raises(BrokerUnavailable, match=r"^Docker: container 1f is paused$"):
        getattr(node, call)()


def test_a_missing_testcontainers_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "testcontainers", None)
    monkeypatch.delitem(sys.modules, "rabbit_chx.testing.docker_node", raising=False)
    monkeypatch.delattr("rabbit_chx.testing.docker_node", raising=False)
    for name in [name for name in sys.modules if name.startswith("testcontainers.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CannotSupply, match="testcontainers is not installed"):
        broker_module._find_docker(None)


def test_the_reaper_of_testcontainers_is_off_for_our_container_only():
    docker_node = pytest.importorskip("rabbit_chx.testing.docker_node")
    config = docker_node.testcontainers_config
    before = config.ryuk_disabled
    with docker_node._without_reaper():
        assert config.ryuk_disabled is True
    assert config.ryuk_disabled is before


@pytest.mark.parametrize(
    "release", ["", "four", "4.x", "4.3.6.1", "4.3-management", "4.3 ", "v4.3", "../4", "4.3; id", "-v"]
)
def test_a_release_that_is_no_number_is_refused(release):
    with pytest.raises(InvalidValue, match="release"):
        Broker(release)
    with pytest.raises(InvalidValue, match="release"):
        available(release)


# --- starting and stopping ----------------------------------------------------------------------------------


def test_a_source_that_lacks_the_release_is_stopped_and_the_next_one_started(monkeypatch):
    without_image, local = a_node(error=CannotSupply("no image")), a_node("here")
    supply(monkeypatch, docker=without_image, local=local)
    with Broker("4.3") as broker:
        assert broker.url == local.url
        assert broker.source.kind == "local"
    assert without_image.mock_calls == local.mock_calls == [call.start(), call.stop()]


@pytest.mark.parametrize("error", [BrokerUnavailable("boot failed"), KeyboardInterrupt()])
def test_a_failed_or_interrupted_start_stops_the_node_and_tries_no_other(monkeypatch, error):
    failing, local = a_node(error=error), a_node()
    supply(monkeypatch, docker=failing, local=local)
    with pytest.raises(type(error)):
        Broker().start()
    assert (failing.mock_calls, local.mock_calls) == ([call.start(), call.stop()], [])


def test_a_broker_without_a_plugin_that_was_asked_for_is_refused(monkeypatch):
    fake = a_node(ctl="[rabbitmq_management,\n rabbitmq_sharding]")
    supply(monkeypatch, docker=fake)
    with Broker(plugins=["rabbitmq_sharding"]):
        pass
    with pytest.raises(BrokerUnavailable, match="no plugin rabbitmq_tracing"):
        Broker(plugins=["rabbitmq_sharding", "rabbitmq_tracing"]).start()


def test_a_broker_that_does_not_run_says_how_to_run_it():
    broker = Broker()
    for ask in (lambda: broker.url, lambda: broker.source, broker.restart, broker.logs):
        with pytest.raises(BrokerUnavailable, match="with Broker"):
            ask()


def test_no_password_in_any_repr(monkeypatch):
    supply(monkeypatch, docker=a_node())
    with Broker() as broker:
        assert broker.username == "user"
        assert broker.password == "geheim"
        assert "geheim" not in repr(broker) + repr(broker.source)
        assert repr(broker) == "<Broker: a fake docker broker>"
        assert broker._settings.password not in repr(broker._settings)
        assert broker._settings.password != Broker()._settings.password
    assert repr(broker) == "<Broker: not running>"


def test_sigterm_ends_the_program_in_order_only_while_a_broker_runs_and_where_the_program_has_no_handler(
    monkeypatch,
):
    supply(monkeypatch, docker=a_node())
    before, received = signal.getsignal(signal.SIGTERM), []
    with Broker():
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
        with Broker():
            signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_runs_at_the_end_of_the_program_is_stopped_by_the_process_that_started_it(monkeypatch):
    fakes = [a_node(), a_node()]
    stops = [fake.stop for fake in fakes]
    monkeypatch.setattr(cleanup, "_running", {stops[0]: os.getpid(), stops[1]: os.getppid()})
    cleanup._stop_all()
    assert [fake.mock_calls for fake in fakes] == [[call.stop()], []]


# --- asking it ----------------------------------------------------------------------------------------------


def test_an_expression_gets_the_dot_that_erlang_wants(monkeypatch):
    fake = a_node(ctl="2")
    supply(monkeypatch, docker=fake)
    with Broker() as broker:
        assert broker.eval("1 + 1") == broker.eval("1 + 1. ") == "2"
    assert fake.ctl.mock_calls == [call("eval", "1 + 1.", "--quiet")] * 2


def test_the_ring_is_looked_for_in_the_virtual_host_of_the_url(monkeypatch):
    fake = a_node(ctl="ring eA==\n0 queue cQ==\ndone")
    fake.url = "amqp://user:geheim@here:5672/vh%2F1"
    supply(monkeypatch, docker=fake)
    with Broker() as broker:
        assert broker.ring("x") == broker.ring("x", vhost="other") == ["q"]
        with pytest.raises(
            InvalidValue, match=r"got 'direct', expected an x-consistent-hash exchange of .* 'vh/1'"
        ):
            broker.ring("direct")
    asked = [each.args[1] for each in fake.ctl.mock_calls[:2]]
    assert asked == [rings_expression(vhost) for vhost in ("vh/1", "other")]


def test_a_ring_with_a_hole_is_an_error(monkeypatch):
    supply(monkeypatch, docker=a_node(ctl="ring eA==\n1 queue cQ==\ndone"))
    with Broker() as broker, pytest.raises(RingUnknown, match="bucket 1 where 0 should be"):
        broker.ring("x")


# --- the pytest plugin, and the project's own rule for CI ---------------------------------------------------


def test_the_plugin_loads_nothing_heavy():
    heavy = {"pika", "numpy", "testcontainers", "docker", "rabbit_chx.testing.broker"}
    assert not heavy & loaded_after("import rabbit_chx.testing.plugin")


@pytest.fixture
def project(pytester, monkeypatch):
    """An empty test folder in which this checkout can be imported and no other plugin is loaded."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return pytester


@pytest.mark.parametrize(
    ("arguments", "ini", "expected"),
    [(["--rabbitmq-release", "4.0"], "3.10", "4.0"), ([], "3.10", "3.10")],
)
def test_the_fixture_starts_one_broker_a_session_of_the_release_asked_for(project, arguments, ini, expected):
    more = "rabbitmq_plugins = rabbitmq_stream rabbitmq_mqtt\nrabbitmq_config =\n    channel_max = 100\n"
    project.makeini(f"[pytest]\nrabbitmq_release = {ini}\n{more}")
    project.makepyfile(
        f"""
        import pytest, rabbit_chx.testing.broker as module

        class Fake:
            started = 0
            def __init__(self, release, **settings): self.release, self.settings = release, settings
            def __enter__(self): Fake.started += 1; return self
            def __exit__(self, *_): pass

        module.Broker = Fake
        def test_one(rabbitmq_broker): assert rabbitmq_broker.release == {expected!r}
        def test_two(rabbitmq_broker): assert Fake.started == 1
        def test_settings(rabbitmq_broker):
            given = {{"plugins": ["rabbitmq_stream", "rabbitmq_mqtt"], "config": {{"channel_max": "100"}}}}
            assert rabbitmq_broker.settings == given
        """
    )
    result = project.runpytest_subprocess("-p", "rabbit_chx.testing.plugin", *arguments)
    result.assert_outcomes(passed=3)


def test_a_line_of_the_configuration_without_a_value_is_an_error(project):
    project.makeini("[pytest]\nrabbitmq_config =\n    channel_max")
    project.makepyfile("def test_one(rabbitmq_broker): pass")
    result = project.runpytest_subprocess("-p", "rabbit_chx.testing.plugin")
    result.assert_outcomes(errors=1)
    assert "invalid line of rabbitmq_config: got 'channel_max'" in str(result.stdout)


PASSWORD = "geheim-91d0"
BROKER = f"amqp://me:{PASSWORD}@127.0.0.1:1/"
HOSTILE_SETTINGS = {
    "a broker that does not answer": ({"BROKER_URL": BROKER}, ""),
    "a URL of another scheme": ({"BROKER_URL": f"\x1b]0;PWNED\x07://me:{PASSWORD}@h/"}, ""),
    "a management URL with an error": (
        {"BROKER_URL": BROKER, "MANAGEMENT_URL": f"ftp://me:{PASSWORD}@h/"},
        "",
    ),
    "a release that is none": ({"BROKER_URL": BROKER}, "\x1b]0;PWNED\x07"),
}


@pytest.mark.parametrize(("settings", "release"), HOSTILE_SETTINGS.values(), ids=HOSTILE_SETTINGS)
def test_the_plugin_shows_no_password_and_nothing_raw(project, monkeypatch, settings, release):
    for name, value in settings.items():
        monkeypatch.setenv(f"RABBIT_CHX_{name}", value)
    project.makepyfile("def test_one(rabbitmq_broker): pass")
    options = ("-vv", "--setup-show", "-l", f"--rabbitmq-release={release}")
    result = project.runpytest_subprocess("-p", "rabbit_chx.testing.plugin", *options)
    result.assert_outcomes(errors=1)
    text = str(result.stdout) + str(result.stderr)
    assert ("invalid RabbitMQ release" if release else "RABBIT_CHX_") in text
    assert PASSWORD not in text
    assert "\x1b]0" not in text


@pytest.mark.parametrize(("ci", "outcomes"), [("true", {"failed": 1, "errors": 1}), ("", {"skipped": 2})])
def test_a_skipped_broker_test_fails_where_ci_is_set(project, monkeypatch, ci, outcomes):
    monkeypatch.setenv("CI", ci)
    project.makeconftest((ROOT / "tests/conftest.py").read_text())
    project.makeini("[pytest]\nmarkers = broker: needs a broker")
    (project.mkdir("broker") / "test_whole_file.py").write_text(
        "import pytest; pytest.importorskip('no_such_package')\ndef test(): pass\n"
    )
    project.makepyfile(
        """
        import pytest

        @pytest.mark.broker
        def test_skipped(): pytest.skip("no broker to be had")

        def test_that_needs_none(): pass
        """
    )
    result = project.runpytest_subprocess("-ra", "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, **outcomes)
    result.stdout.fnmatch_lines(["*no broker to be had*"])


def test_a_forked_child_leaves_the_broker_to_its_parent(monkeypatch):
    node = a_node()
    supply(monkeypatch, docker=node)
    broker = Broker()
    broker.start()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        broker.stop()
    node.stop.assert_not_called()
