"""What every kind of node is told and how its answers are read, without a broker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from pika.exceptions import AMQPError

from rabbit_chx.broker.reading.erlang_rings import parse_rings, rings_expression
from rabbit_chx.errors import BrokerUnavailable, InvalidValue, RabbitChxError, RingUnknown
from rabbit_chx.testing import Broker, available, local_node, node
from rabbit_chx.testing.node import READY, CannotSupply, NodeSettings
from tests.unit.erlang import ring_text

# --- what the node is told ----------------------------------------------------------------------------------


def test_management_and_consistent_hash_are_always_on_and_every_plugin_once():
    assert node.plugin_names(["rabbitmq_sharding", "rabbitmq_management"]) == (
        *("rabbitmq_management", "rabbitmq_consistent_hash_exchange", "rabbitmq_sharding"),
    )


@pytest.mark.parametrize("name", ["", "rabbitmq-sharding", "a,b", "a].", "A", "a b"])
def test_a_plugin_name_that_would_spoil_the_file_is_refused(name):
    with pytest.raises(InvalidValue, match="plugin"):
        Broker(plugins=[name])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, "geheim") for key in ("a\nb", "a b", "", "default_pass", "listeners.tcp.default")),
        ("management.tcp.port", "geheim"),
        ("a", "geheim\nb = 1"),
    ],
)
def test_a_configuration_line_that_cannot_be_is_refused_without_its_value(key, value):
    with pytest.raises(InvalidValue, match=r"rabbitmq\.conf") as caught:
        Broker(config={key: value})
    assert "geheim" not in str(caught.value)


def test_free_ports_differ_and_lie_below_the_range_of_outgoing_connections():
    ports = node.free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 30_000 for port in ports)


def test_a_node_that_dies_while_it_starts_is_reported_with_its_first_errors():
    log = "starting\n0 [error] <0.1.0> \n0 [error] <0.1.0> cannot listen on port 1\n" + "stack trace\n" * 100
    with pytest.raises(BrokerUnavailable, match=r"cannot listen on port 1$"):
        node.wait_for_boot(1, logs=lambda: log, running=lambda: False)


def test_a_second_boot_is_awaited_beyond_the_line_of_the_first():
    logs = iter([READY, READY, f"{READY}\n{READY}"])
    node.wait_for_boot(2, logs=lambda: next(logs), running=lambda: True)
    assert list(logs) == []


def test_a_broker_that_does_not_answer_yet_is_asked_again_and_a_bug_is_not(monkeypatch):
    answers = [BrokerUnavailable("refused"), AMQPError("lost at once"), "4.3.6", ValueError("another")]

    def release_at(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(node, "release_at", release_at)
    node.wait_for_amqp("amqp://127.0.0.1")
    with pytest.raises(ValueError, match="another"):
        node.wait_for_amqp("amqp://127.0.0.1")
    assert answers == []


@pytest.mark.parametrize(
    ("version", "release", "same"),
    [
        *(("4.3.6", release, True) for release in ("4.3", "4.3.6", "4", None)),
        *(("4.30.1", "4.3", False), ("4.3.60", "4.3.6", False), ("3.10.8", "3.1", False)),
    ],
)
def test_a_version_belongs_to_a_release_by_whole_numbers(version, release, same):
    assert node.is_release(version, release) is same


# --- rabbitmqctl --------------------------------------------------------------------------------------------


def test_rabbitmqctl_output_comes_without_the_last_newline_and_errors_without_the_arguments():
    assert node.ctl_output(("eval", "x."), 0, b"a\nb\n", b"a warning") == "a\nb"
    errors = b'Error: user "x" does not exist\nArguments given:\n\tchange_password x geheim\n\nUsage\n...'
    with pytest.raises(RabbitChxError) as caught:
        node.ctl_output(("change_password", "x", "geheim"), 67, b"", errors)
    assert str(caught.value) == (
        'rabbitmqctl change_password failed with exit code 67: Error: user "x" does not exist'
    )


# --- the ring -----------------------------------------------------------------------------------------------


def test_names_in_a_ring_may_be_any_bytes():
    names = ["two words", "\n", "é 'q' \"q\" \\", "done", "\udcff not UTF-8", "x" * 255]
    assert parse_rings(ring_text(*(("queue", name) for name in names))) == {"x": names}


@pytest.mark.parametrize("text", ["0 queue cQ==\n2 queue cQ==", "0 queue", "0 queue !", "1 queue cQ=="])
def test_a_ring_with_a_hole_or_an_invalid_line_is_never_taken_for_a_ring(text):
    assert isinstance(parse_rings(f"ring eA==\n{text}\ndone")["x"], RingUnknown)


def test_a_name_with_a_lone_surrogate_is_refused_before_a_node_is_asked() -> None:
    with pytest.raises(InvalidValue, match="without lone surrogates"):
        rings_expression("\ud800")


# --- a broker that somebody else runs -----------------------------------------------------------------------


@pytest.fixture
def external(monkeypatch):
    monkeypatch.setenv("RABBIT_CHX_BROKER_URL", "amqp://user:geheim@127.0.0.1:1/vh%2F1")
    monkeypatch.setenv("RABBIT_CHX_MANAGEMENT_URL", "http://user:geheim@127.0.0.1:2/path/")
    return available().node(NodeSettings())


def test_the_management_url_comes_without_its_password(external):
    assert external.management_url == "http://127.0.0.1:2/path"


def test_what_cannot_be_done_to_it_says_what_to_set(external):
    for impossible, hint in [
        (external.restart, "unset RABBIT_CHX_BROKER_URL"),
        (external.logs, "unset RABBIT_CHX_BROKER_URL"),
        (lambda: external.ctl("status"), "set RABBIT_CHX_RABBITMQCTL"),
        (external.start, "correct or unset RABBIT_CHX_BROKER_URL"),  # nothing listens there
        (available().node(NodeSettings(config=(("a", "1"),))).start, "configuration"),
    ]:
        with pytest.raises(BrokerUnavailable) as caught:
            impossible()
        assert hint in str(caught.value)
        assert "geheim" not in str(caught.value)


def test_a_server_that_says_nothing_is_named_without_the_password(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv(
            "RABBIT_CHX_BROKER_URL",
            f"amqp://user:geheim@127.0.0.1:{port}/?Socket_Timeout=0.2&stack_timeout=0.2",
        )
        with pytest.raises(BrokerUnavailable, match="it cannot be reached") as caught:
            available().node(NodeSettings()).start()
    assert "geheim" not in str(caught.value)


def test_rabbitmqctl_that_does_not_end_is_given_up(external, monkeypatch):
    monkeypatch.setattr(node, "CTL_SECONDS", 0.1)
    monkeypatch.setenv("RABBIT_CHX_RABBITMQCTL", "sleep")
    with pytest.raises(BrokerUnavailable, match=r"rabbitmqctl 600 did not end within 0\.1 seconds"):
        external.ctl("600")


def test_rabbitmqctl_is_the_command_line_of_the_environment(external, monkeypatch):
    program = "import sys; print(sys.argv[1:])"
    monkeypatch.setenv("RABBIT_CHX_RABBITMQCTL", f"{sys.executable} -c '{program}' 'two words'")
    assert external.ctl("eval", "1.") == "['two words', 'eval', '1.']"
    monkeypatch.setenv("RABBIT_CHX_RABBITMQCTL", "/no/such/rabbitmqctl")
    with pytest.raises(BrokerUnavailable, match="correct RABBIT_CHX_RABBITMQCTL"):
        external.ctl("status")


@pytest.mark.parametrize(
    "url",
    ["geheim", "http://u:geheim@h", "amqp://u:geheim@:5672", "amqp://u:geheim@h:port", "amqp://u:geheim@h:0"],
)
def test_an_invalid_url_is_refused_without_being_shown(monkeypatch, url):
    monkeypatch.setenv("RABBIT_CHX_BROKER_URL", url)
    with pytest.raises(InvalidValue, match="RABBIT_CHX_BROKER_URL") as caught:
        available()
    assert "geheim" not in str(caught.value)


# --- an installed server ------------------------------------------------------------------------------------


def install(root, version, *, core=None):
    """Lay out a server as packages do, and return the folder of its plain scripts."""
    server = root / f"usr/lib/rabbitmq/lib/rabbitmq_server-{version}"
    (server / "sbin").mkdir(parents=True)
    (server / "plugins").mkdir()
    (server / "plugins" / (core or f"rabbit-{version}")).touch()
    (server / "plugins" / "rabbitmq_sharding-9.9.9").touch()
    for script in (server / "sbin/rabbitmq-server", root / "bin/rabbitmq-server", root / "bin/erl"):
        script.parent.mkdir(exist_ok=True)
        script.touch(mode=0o755)
    return server / "sbin"


@pytest.mark.parametrize("core", ["rabbit-3.10.8", "rabbit-3.10.8.ez"])
def test_the_plain_scripts_are_found_with_a_wrapper_or_nothing_on_the_path(tmp_path, monkeypatch, core):
    scripts = install(tmp_path, "3.10.8", core=core)
    for path in (
        tmp_path / "bin",
        scripts,
        None,
    ):  # a package's wrapper, the plain scripts themselves, neither
        if path is None:
            (tmp_path / "bin/rabbitmq-server").unlink()
        monkeypatch.setenv("PATH", f"{path}:{tmp_path / 'bin'}")
        assert local_node._installed(str(tmp_path)) == (scripts, "3.10.8")
        assert str(local_node.find("3.10", root=str(tmp_path))).endswith("rabbitmq-server 3.10.8")


@pytest.mark.parametrize(
    ("path", "root", "release", "reason"),
    [
        ("bin", ".", "4.3", r"3\.10\.8 is installed, not 4\.3$"),
        ("nowhere", ".", None, "no erl"),
        ("nowhere", "bin", None, "none is on the PATH"),
    ],
)
def test_a_server_that_cannot_be_used_is_a_reason(tmp_path, monkeypatch, path, root, release, reason):
    install(tmp_path, "3.10.8")
    monkeypatch.setenv("PATH", str(tmp_path / path))
    with pytest.raises(CannotSupply, match=reason):
        local_node.find(release, root=str(tmp_path / root))


def test_a_private_node_takes_nothing_over_from_a_broker_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RABBITMQ_NODENAME", "production@elsewhere")
    monkeypatch.setenv("RABBITMQ_DATA_DIR", "/var/lib/production")
    monkeypatch.setenv("ERL_FLAGS", "-sname production")
    private = local_node.LocalNode(tmp_path, NodeSettings())._private_environment(tmp_path)
    assert "production" not in str(private)
    assert private["RABBITMQ_NODENAME"] == "rabbit@localhost"
    assert private["HOME"] == str(tmp_path)
    assert private["PATH"] == os.environ["PATH"]


def test_a_server_that_was_killed_or_has_ended_gets_no_signal(tmp_path, monkeypatch):
    private = local_node.LocalNode(tmp_path, NodeSettings())
    private._folder = tmp_path
    signals, killpg = [], os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, signum: (signals.append(signum), killpg(group, signum)))

    def run(program):
        private._server = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        return private._server

    run("import time; time.sleep(60)")
    private.kill()
    for again in (private.kill, private.pause, private.unpause):
        with pytest.raises(BrokerUnavailable, match=r"it was killed or has ended; restart\(\) starts it"):
            again()
    private.stop()
    assert signals == [signal.SIGKILL]

    private._folder = tmp_path
    run("").wait()
    with pytest.raises(BrokerUnavailable, match="has ended"):
        private.kill()
    assert signals == [signal.SIGKILL]
