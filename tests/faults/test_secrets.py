"""A secret appears nowhere but where it is needed, whatever goes wrong: not in logs, errors, reprs, output or files.

tests/canary.py searches them after each test, and tests/spark/test_secrets.py searches Spark's own places.
"""

from __future__ import annotations

import logging
import re
import shlex
import signal
import ssl
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, STDOUT

import pytest

from tests.canary import canary, found, look, look_at_files
from tests.faults.secret_reads import SPARK_QUEUE, SPARK_READ, STREAM_READER, fill, remove
from tests.faults.secret_scenarios import PUBLISHER, READER, Site, appliers, with_aio_pika, with_pika
from tests.patience import PATIENCE, wait_until
from tests.programs import command_lines
from tests.spark.streams import Streams
from tests.tls import Listener
from tests.users import a_user
from tests.verbs import started

pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.proves(
        "Secrets",
        "errors and successes of all clients and verbs, after which what they showed is searched",
        "tests/unit/test_canary.py: a secret planted in each place is found",
    ),
]

PASSWORD = f"{canary('password')}/:@%é"
"""It must be percent-encoded in URLs."""
WRONG, KEY, BODY = canary("wrong"), canary("passphrase"), canary("body")
OF_NODE = canary("node")
"""Part of a command of the user's own, so it is in the list of processes."""

SCENARIOS = {
    (client, what): scenario
    for client, scenarios in {
        "publisher": PUBLISHER,
        "apply": appliers(with_pika),
        "apply_async": appliers(with_aio_pika),
        "management reader": READER,
        "stream reader": STREAM_READER,
        "Spark's read of streams": SPARK_READ,
        "Spark's read of a queue": SPARK_QUEUE,
    }.items()
    for what, scenario in scenarios.items()
}


@pytest.fixture(scope="module")
def tls(broker, authority):
    """A TLS listener in front of the broker, and a client certificate with an encrypted key."""
    authority.lock("client", KEY)
    listener = Listener(authority.server(clients=ssl.CERT_REQUIRED), broker.url)
    yield authority, listener
    listener.close()


@pytest.fixture(scope="module")
def user(broker):
    """A user who may publish to amq.direct, and read the stream and the queue with secrets."""
    patterns = "^$", r"^amq\.direct$", r"^secrets\.read"
    with (
        a_user(broker, *patterns, name="secretive", password=PASSWORD) as user,
        Streams(broker.url) as streams,
    ):
        fill(streams, BODY)
        yield user.name
        remove(streams)


@pytest.fixture(scope="module")
def site(broker, user, tls, tmp_path_factory):
    return Site(broker, user, PASSWORD, WRONG, KEY, BODY, *tls, tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize(("client", "what"), SCENARIOS)
def test_no_secret_is_shown(client, what, site, caplog):
    """Nor logged at DEBUG by pika, aio-pika, aiormq, asyncio and urllib3."""
    caplog.set_level(logging.DEBUG)
    scenario, words = SCENARIOS[client, what]
    if not words:
        scenario(site)
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each has its words
        scenario(site)
    assert re.search(words, str(caught.value) or repr(caught.value))


# -- the command line, each command in its own process -------------------------------------------------------

TOPOLOGY = """
schema: 1
exchanges: {secrets.x: {type: x-consistent-hash, queues: [secrets.q]}}
queues: {secrets.q: {type: classic}}
"""


def start(site, words, variables):
    """Start a command with secrets in environment variables only."""
    return started(*words, env=variables, cwd=site.kept, stdin=PIPE, stderr=STDOUT)


def ended(site, words, variables):
    """Run a command; return its exit code and its output."""
    with start(site, words, variables) as running:
        output = running.communicate(timeout=2 * PATIENCE)[0].decode()
    return running.returncode, output


def environments(site):
    """Environment variables, by the names that COMMANDS uses."""
    amqp, http = "AMQP_URL", "RABBITMQ_MANAGEMENT_URL"
    return {
        "user": {amqp: site.amqp()},
        "wrong": {amqp: site.amqp(WRONG)},
        "no password": {amqp: site.amqp("")},
        "malformed": {amqp: f"amqp://u:{WRONG}/{WRONG}@host"},
        "no broker": {amqp: site.amqp(where="127.0.0.1:1")},
        "tls": {amqp: site.tls},
        "admin": {amqp: site.broker.url, http: site.broker.management_url},
        "wrong api": {http: site.http(WRONG)},
        "no api": {http: site.http(where="127.0.0.1:1")},
        "node": {"RABBIT_CHX_NODE": f"false --secret {OF_NODE}"},
    }


PUBLISH = "publish rows.csv -k k --body-column b -x"
REFUSED = "rejected the user name or password"
COMMANDS = {
    "publish, wrong password": (f"{PUBLISH} amq.direct", ["wrong"], 1, REFUSED),
    "publish --debug, wrong password": (f"--debug {PUBLISH} amq.direct", ["wrong"], 1, f"(?s)Traceback.*{REFUSED}"),
    "publish --password-file": (f"{PUBLISH} amq.direct --password-file wrong", ["no password"], 1, REFUSED),
    "publish, unroutable": (
        f"{PUBLISH} amq.direct --resume {{files}}/position --output json", ["user"], 1, '"returned": 1'
    ),
    "publish, malformed": (f"{PUBLISH} amq.direct", ["malformed"], 64, "%2F"),
    "plan, 401": ("plan topology.yaml", ["user", "wrong api"], 1, "rejected the user"),
    "plan --debug, 401": ("--debug plan topology.yaml", ["user", "wrong api"], 1, "(?s)Traceback.*rejected"),
    "plan, no API": ("plan topology.yaml", ["user", "no api"], 1, "Connection refused"),
    "plan --node": ("plan topology.yaml", ["admin", "node"], 1, "'?false"),
    "check, wrong password": ("check topology.yaml --amqp-only --metrics {files}/prom", ["wrong"], 1, REFUSED),
    "check, no broker": ("check topology.yaml --amqp-only", ["no broker"], 1, "Connection refused"),
    "check, another authority": (
        "check topology.yaml --amqp-only --tls-ca-cert-file {tls}/other-ca.pem", ["tls"], 1, "certificate"
    ),
    "check, an encrypted key": (
        "check topology.yaml --amqp-only --tls-cert-file {tls}/client.pem --tls-key-file {tls}/locked.key",
        ["tls"], 64, "no passphrase",
    ),
    "export, wrong password": ("export -o {files}/out.yaml", ["user", "wrong api"], 1, "rejected the user"),
    "parity, wrong password": ("parity", ["wrong"], 1, REFUSED),
    "doctor": ("doctor", ["wrong", "wrong api"], 1, "rejected"),
    "doctor --output json": ("doctor --output json", ["user", "wrong api"], 1, "secretive"),
}  # fmt: skip
"""Command line, environment, exit code, and a part of the output."""


@pytest.fixture(scope="module")
def commands(site, tmp_path_factory):
    """Run all commands at the same time; the exit code and output of each, their files, and all that ran meanwhile."""
    folder = tmp_path_factory.mktemp("commands")
    (site.kept / "topology.yaml").write_text(TOPOLOGY)
    (site.kept / "rows.csv").write_text(f"k,b\nx,{BODY}\n")
    site.file("wrong", WRONG)
    known = environments(site)

    def run(line, names, *_):
        words = shlex.split(line.format(files=folder, tls=site.authority.folder))
        return ended(site, words, {key: value for name in names for key, value in known[name].items()})

    with command_lines() as lines, ThreadPoolExecutor(4) as pool:
        running = {name: pool.submit(run, *command) for name, command in COMMANDS.items()}
    return {name: one.result() for name, one in running.items()}, folder, "\n".join(lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_a_secret(name, commands):
    *_, expected, words = COMMANDS[name]
    code, output = commands[0][name]
    assert code == expected, output
    assert re.search(words, output), output


def test_no_command_leaves_a_secret_in_a_file_or_in_the_list_of_processes(commands):
    _, folder, lines = commands
    look_at_files(folder)
    assert [*folder.iterdir()]
    assert "-m rabbit_chx" in lines
    assert found(lines, [PASSWORD, WRONG, KEY, BODY]) == []


def test_a_url_in_the_wrong_place_is_quoted_without_its_password(site):
    for line in ("lint", "doctor", "--debug check", "check topology.yaml --pairs"):
        code, output = ended(site, [*line.split(), site.amqp(WRONG)], {})
        assert code == 64, output


def test_an_interrupted_command_shows_no_secret(site, broker):
    words = ["--debug", "publish", "-", "--format", "jsonl", "-x", "amq.direct", "-k", "k"]
    connections = ("list_connections", "user", "client_properties")
    with command_lines() as lines, start(site, words, {"AMQP_URL": site.amqp()}) as running:
        wait_until(lambda: site.user in broker.ctl(*connections), "the command connects", pause=0.2)
        look("the properties of connections", broker.ctl(*connections))
        running.send_signal(signal.SIGINT)
        output = running.communicate(timeout=2 * PATIENCE)[0].decode()
    assert (running.returncode, output.splitlines()[-1]) == (130, "Interrupted.")
    assert found("\n".join(lines), [PASSWORD]) == []


def test_the_broker_logs_no_secret(site, broker):
    """This test runs after all the others."""
    assert site.user in broker.logs()
    look("the log of the broker", broker.logs())
