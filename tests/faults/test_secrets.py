"""A secret appears nowhere but where it is needed, whatever goes wrong: not in logs, errors, reprs, output or files.

tests/spark/test_secrets.py searches Spark's own places.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.canary import canary, forms
from tests.faults.secret_places import KINDS, Places, plant
from tests.faults.secret_reads import SPARK_QUEUE, SPARK_READ, STREAM_READER, fill, remove
from tests.faults.secret_scenarios import PUBLISHER, READER, Site, appliers, with_aio_pika, with_pika
from tests.patience import PATIENCE, wait_until
from tests.proof import Check, record_result
from tests.spark.streams import Streams
from tests.tls import Listener
from tests.users import a_user

pytestmark = [pytest.mark.broker, pytest.mark.long]

PASSWORD = f"{canary('password')}/:@%é"
"""It must be percent-encoded in URLs."""
WRONG, KEY, BODY = canary("wrong"), canary("passphrase"), canary("body")
OF_NODE = canary("node")
"""Part of a command of the user's own, so it is in the list of processes."""
SECRETS = [PASSWORD, WRONG, KEY, BODY, PASSWORD.partition("/")[0]]

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
def search(broker):
    """Search places for secrets, as one or more cases of a client; at the end, record the cases of each client."""
    cases: dict[str, list] = {}

    def search(client, places, started, *more, count=1):
        leaks = places.leaks([*SECRETS, *more])
        seconds = time.monotonic() - started
        cases.setdefault(client, []).append((count, bool(leaks), seconds, places.seen))
        assert leaks == {}

    yield search
    planted = f"a secret planted in each of {len(KINDS)} places, in {len(forms(PASSWORD))} forms: all found"
    for client, found in cases.items():
        counts, wrong, seconds, seen = zip(*found, strict=True)
        what = f"{client}: {', '.join(place for place in KINDS if place in set().union(*seen))}"
        record_result(Check("Secrets", what, broker.version, sum(counts), sum(wrong), sum(seconds), planted))


@pytest.fixture(scope="module")
def site_in(broker, user, tls, tmp_path_factory):
    """A site that writes its files into a folder."""
    kept = tmp_path_factory.mktemp("kept")
    return lambda folder: Site(broker, user, PASSWORD, WRONG, KEY, BODY, *tls, Places(folder), kept)


@pytest.fixture
def site(site_in, tmp_path):
    return site_in(tmp_path)


@pytest.mark.parametrize(("client", "what"), SCENARIOS)
def test_no_secret_is_shown(client, what, site, search, capfd):
    scenario, words = SCENARIOS[client, what]
    started, error = time.monotonic(), ""
    with site.places.scenario():
        try:
            scenario(site)
        except Exception as raised:  # noqa: BLE001 - its text is examined
            site.places.catch(raised)
            error = str(raised) or repr(raised)
    site.places.note("output", *capfd.readouterr())
    search(client, site.places, started)
    assert re.search(words, error), error
    assert bool(words) == bool(error)


@pytest.mark.parametrize("place", KINDS)
def test_a_planted_secret_is_found(place, tmp_path):
    for form in sorted(forms(PASSWORD)):
        places = Places(tmp_path)
        assert places.leaks(SECRETS) == {}
        plant(places, place, form)
        assert place in places.leaks([PASSWORD])
        for file in tmp_path.iterdir():
            file.unlink()


# -- the command line, each command in its own process -------------------------------------------------------

TOPOLOGY = """
schema: 1
exchanges: {secrets.x: {type: x-consistent-hash, queues: [secrets.q]}}
queues: {secrets.q: {type: classic}}
"""


def start(site, words, variables):
    """Start a command with secrets in environment variables only."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("AMQP_", "RABBIT"))}
    return subprocess.Popen(
        [sys.executable, "-m", "rabbit_chx", *map(str, words)],
        cwd=site.kept,
        env=others | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


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
        "api": {http: site.http()},
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
    "publish, no permission": (f"{PUBLISH} amq.topic", ["user"], 1, "no write permission"),
    "publish, malformed": (f"{PUBLISH} amq.direct", ["malformed"], 64, "%2F"),
    "plan, 401": ("plan topology.yaml", ["user", "wrong api"], 1, "rejected the user"),
    "plan --debug, 401": ("--debug plan topology.yaml", ["user", "wrong api"], 1, "(?s)Traceback.*rejected"),
    "plan, without the tag": ("plan topology.yaml --output json", ["user", "api"], 1, "needs the tag"),
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
    "apply, no permission": ("apply topology.yaml --yes --amqp-only --output json", ["user"], 1, "permission"),
    "export, wrong password": ("export -o {files}/out.yaml", ["user", "wrong api"], 1, "rejected the user"),
    "parity, wrong password": ("parity", ["wrong"], 1, REFUSED),
    "parity, no permission": ("parity -n 10", ["user"], 1, "permission"),
    "doctor": ("doctor", ["wrong", "wrong api"], 1, "rejected"),
    "doctor --output json": ("doctor --output json", ["user", "wrong api"], 1, "secretive"),
}  # fmt: skip
"""Command line, environment, exit code, and a part of the output."""


@pytest.fixture(scope="module")
def commands(site_in, tmp_path_factory):
    """Run all commands at the same time; the places of all of them, and the exit code and output of each."""
    site, started = site_in(tmp_path_factory.mktemp("commands")), time.monotonic()
    (site.kept / "topology.yaml").write_text(TOPOLOGY)
    (site.kept / "rows.csv").write_text(f"k,b\nx,{BODY}\n")
    site.file("wrong", WRONG)
    known = environments(site)

    def run(line, names, *_):
        words = shlex.split(line.format(files=site.places.folder, tls=site.authority.folder))
        return ended(site, words, {key: value for name in names for key, value in known[name].items()})

    with site.places.processes(), ThreadPoolExecutor(4) as pool:
        running = {name: pool.submit(run, *command) for name, command in COMMANDS.items()}
    return site.places, {name: one.result() for name, one in running.items()}, started


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_a_secret(name, commands, site, search):
    *_, expected, words = COMMANDS[name]
    code, output = commands[1][name]
    site.places.note("output", output)
    search("rabbit-chx", site.places, time.monotonic(), OF_NODE)
    assert code == expected, output
    assert re.search(words, output), output


def test_no_command_leaves_a_secret_in_a_file_or_in_the_list_of_processes(commands, search):
    places, _, started = commands
    search("rabbit-chx, side by side", places, started, count=len(COMMANDS))
    assert {"files", "command lines"} <= places.seen


def test_a_url_in_the_wrong_place_is_quoted_without_its_password(site, search):
    """The password is in this command line, so the list of processes is not searched."""
    started = time.monotonic()
    for line in ("lint", "doctor", "--debug check", "check topology.yaml --pairs"):
        code, output = ended(site, [*line.split(), site.amqp(WRONG)], {})
        site.places.note("output", output)
        assert code == 64, output
    search("rabbit-chx", site.places, started)


def test_an_interrupted_command_shows_no_secret(site, broker, search):
    started = time.monotonic()
    words = ["--debug", "publish", "-", "--format", "jsonl", "-x", "amq.direct", "-k", "k"]
    connections = ("list_connections", "user", "client_properties")
    with site.places.processes(), start(site, words, {"AMQP_URL": site.amqp()}) as running:
        wait_until(lambda: site.user in broker.ctl(*connections), "the command connects", pause=0.2)
        site.places.note("output", broker.ctl(*connections))
        running.send_signal(signal.SIGINT)
        output = running.communicate(timeout=2 * PATIENCE)[0].decode()
    site.places.note("output", output)
    search("rabbit-chx", site.places, started)
    assert (running.returncode, output.splitlines()[-1]) == (130, "Interrupted.")


def test_the_broker_logs_no_secret(site, broker, search):
    """This test runs after all the others."""
    started = time.monotonic()
    site.places.note("log", broker.logs())
    search("the broker's log", site.places, started)
    assert site.user in broker.logs()
