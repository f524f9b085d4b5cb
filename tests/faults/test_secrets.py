"""A secret stands nowhere but where it is needed, whatever goes wrong: not in logs, errors, reprs, output or files.

Of Spark's own places tests/spark/test_secrets.py tells.
"""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.canary import canary, forms
from tests.faults.load import wait_until
from tests.faults.secret_places import KINDS, Places, plant
from tests.faults.secret_scenarios import PUBLISHER, READER, Site, appliers, with_aio_pika, with_pika
from tests.proof import Check, book
from tests.tls import Authority, Listener

pytestmark = [pytest.mark.broker, pytest.mark.long]

PASSWORD = f"{canary('password')}/:@%é"
"""Has to be written in another way in URLs."""
WRONG, KEY, BODY = canary("wrong"), canary("passphrase"), canary("body")
OF_NODE = canary("node")
"""In a command of the user's own, which is run, and so stands in the list of processes."""
SECRETS = [PASSWORD, WRONG, KEY, BODY, PASSWORD.partition("/")[0]]

RUNS = {
    "publisher": PUBLISHER,
    "apply": appliers(with_pika),
    "apply_async": appliers(with_aio_pika),
    "management reader": READER,
}
IN_PROCESS = {f"{who}: {what}": (who, *run) for who, runs in RUNS.items() for what, run in runs.items()}


@pytest.fixture(scope="module")
def tls(broker, tmp_path_factory):
    """Before the broker, with a client's certificate whose key is locked."""
    authority = Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("client")
    authority.lock("client", KEY)
    listener = Listener(authority.server(clients=ssl.CERT_REQUIRED), broker.url)
    yield authority, listener
    listener.close()


@pytest.fixture(scope="module")
def user(broker):
    """Who may publish to amq.direct and nothing else."""
    broker.ctl("add_user", "secretive", PASSWORD)
    broker.ctl("set_permissions", "secretive", "^$", r"^amq\.direct$", "^$")
    yield "secretive"
    broker.ctl("delete_user", "secretive")


@pytest.fixture(scope="module")
def searched(broker):
    """What was searched by whom; each is booked when all have run."""
    books: dict[str, list] = {}
    yield books
    for who, (cases, wrong, seconds, places) in books.items():
        planted = (
            f"a secret planted in each of {len(KINDS)} places, and in {len(forms(PASSWORD))} forms: all found"
        )
        what = f"{who}: {', '.join(place for place in KINDS if place in places)}"
        book(Check("Secrets", what, broker.version, cases, wrong, seconds, planted))


@pytest.fixture(scope="module")
def site_in(broker, user, tls, tmp_path_factory):
    """A site that leaves its files in a folder."""
    kept = tmp_path_factory.mktemp("kept")
    return lambda folder: Site(broker, user, PASSWORD, WRONG, KEY, BODY, *tls, Places(folder), kept)


@pytest.fixture
def site(site_in, tmp_path):
    return site_in(tmp_path)


def judge(who, places, searched, started, *more, scenarios=1):
    """Book a scenario, and how many of its places hold a secret, before it is judged."""
    leaks = places.leaks([*SECRETS, *more])
    cases, wrong, seconds, seen = searched.get(who, (0, 0, 0.0, set()))
    searched[who] = (
        cases + scenarios,
        wrong + bool(leaks),
        seconds + time.monotonic() - started,
        seen | places.seen,
    )
    assert leaks == {}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_no_secret_is_told(name, site, searched, capfd):
    who, scenario, words = IN_PROCESS[name]
    started, said = time.monotonic(), ""
    with site.places.scenario():
        try:
            scenario(site)
        except Exception as error:  # noqa: BLE001 - its words are looked at
            site.places.catch(error)
            said = str(error)
    site.places.note("output", *capfd.readouterr())
    judge(who, site.places, searched, started)
    assert re.search(words, said), said
    assert bool(words) == bool(said)


@pytest.mark.parametrize("place", KINDS)
def test_a_secret_that_is_planted_is_found(place, tmp_path):
    for form in sorted(forms(PASSWORD)):
        places = Places(tmp_path)
        assert places.leaks(SECRETS) == {}
        plant(places, place, form)
        assert place in places.leaks([PASSWORD])
        for file in tmp_path.iterdir():
            file.unlink()


# -- the command line, each in a process of its own -----------------------------------------------------------

TOPOLOGY = """
schema: 1
exchanges: {secrets.x: {type: x-consistent-hash, queues: [secrets.q]}}
queues: {secrets.q: {type: classic}}
"""


def start(site, words, variables):
    """As a user does who keeps the password out of the command line."""
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
    """The exit code of a command, and what it has written."""
    with start(site, words, variables) as running:
        said = running.communicate(timeout=240)[0].decode()
    return running.returncode, said


@pytest.fixture(scope="module")
def told(site_in, tmp_path_factory):
    """The places of all commands, and how each has ended; they run side by side, watched by one."""
    site, started = site_in(tmp_path_factory.mktemp("commands")), time.monotonic()
    (site.kept / "topology.yaml").write_text(TOPOLOGY)
    (site.kept / "rows.csv").write_text(f"k,b\nx,{BODY}\n")
    known = commands(site)
    assert list(known) == NAMES
    with site.places.processes(), ThreadPoolExecutor(4) as pool:
        running = {name: pool.submit(ended, site, *known[name][:2]) for name in known}
    return site.places, {name: (*known[name][2:], *one.result()) for name, one in running.items()}, started


PUBLISH = ("publish", "rows.csv", "-k", "k", "--body-column", "b")


def commands(site):
    """Words, variables of the environment, exit code, and what stands in the output."""
    url, wrong = {"AMQP_URL": site.amqp()}, {"AMQP_URL": site.amqp(WRONG)}
    http = {"RABBITMQ_MANAGEMENT_URL": site.http()}
    no_api = {"RABBITMQ_MANAGEMENT_URL": site.http(where="127.0.0.1:1")}
    not_let_in = {"RABBITMQ_MANAGEMENT_URL": site.http(WRONG)}
    admin = {"AMQP_URL": site.broker.url, "RABBITMQ_MANAGEMENT_URL": site.broker.management_url}
    secure = {"AMQP_URL": site.tls}
    authority, folder = site.authority.folder, site.places.folder
    amq = (*PUBLISH, "-x", "amq.direct")
    refused = "rejected the user name or password"
    over_amqp = ("check", "topology.yaml", "--amqp-only")
    certificate = ("--tls-cert-file", authority / "client.pem", "--tls-key-file", authority / "locked.key")
    return {
        "publish, wrong password": (amq, wrong, 1, refused),
        "publish --debug, wrong password": (("--debug", *amq), wrong, 1, f"(?s)Traceback.*{refused}"),
        "publish --password-file": (
            (*amq, "--password-file", site.file("wrong", WRONG)), {"AMQP_URL": site.amqp("")}, 1, refused
        ),
        "publish, nowhere to go": (
            (*amq, "--resume", folder / "position", "--output", "json"), url, 1, '"returned": 1'
        ),
        "publish, no permission": ((*PUBLISH, "-x", "amq.topic"), url, 1, "no write permission"),
        "publish, malformed": (amq, {"AMQP_URL": f"amqp://u:{WRONG}/{WRONG}@host"}, 64, "%2F"),
        "plan, 401": (("plan", "topology.yaml"), url | not_let_in, 1, "rejected the user"),
        "plan --debug, 401": (("--debug", "plan", "topology.yaml"), url | not_let_in, 1, "(?s)Traceback.*rejected"),
        "plan, without the tag": (("plan", "topology.yaml", "--output", "json"), url | http, 1, "needs the tag"),
        "plan, no API": (("plan", "topology.yaml"), url | no_api, 1, "Connection refused"),
        "plan --node": (("plan", "topology.yaml"), admin | {"RABBIT_CHX_NODE": f"false --secret {OF_NODE}"}, 1, "'?false"),
        "check, wrong password": ((*over_amqp, "--metrics", folder / "prom"), wrong, 1, refused),
        "check, no broker": (over_amqp, {"AMQP_URL": site.amqp(where="127.0.0.1:1")}, 1, "Connection refused"),
        "check, another authority": ((*over_amqp, "--tls-ca-cert-file", authority / "other-ca.pem"), secure, 1, "certificate"),
        "check, a locked key": ((*over_amqp, *certificate), secure, 64, "no passphrase"),
        "apply, no permission": (
            ("apply", "topology.yaml", "--yes", "--amqp-only", "--output", "json"), url, 1, "permission"
        ),
        "export, wrong password": (("export", "-o", folder / "out.yaml"), url | not_let_in, 1, "rejected the user"),
        "parity, wrong password": (("parity",), wrong, 1, refused),
        "parity, no permission": (("parity", "-n", "10"), url, 1, "permission"),
        "doctor": (("doctor",), wrong | not_let_in, 1, "rejected"),
        "doctor --output json": (("doctor", "--output", "json"), url | not_let_in, 1, "secretive"),
    }  # fmt: skip


NAMES = [
    "publish, wrong password",
    "publish --debug, wrong password",
    "publish --password-file",
    "publish, nowhere to go",
    "publish, no permission",
    "publish, malformed",
    "plan, 401",
    "plan --debug, 401",
    "plan, without the tag",
    "plan, no API",
    "plan --node",
    "check, wrong password",
    "check, no broker",
    "check, another authority",
    "check, a locked key",
    "apply, no permission",
    "export, wrong password",
    "parity, wrong password",
    "parity, no permission",
    "doctor",
    "doctor --output json",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_command_tells_a_secret(name, told, site, searched):
    code, expected, left_with, said = told[1][name]
    site.places.note("output", said)
    judge("rabbit-chx", site.places, searched, time.monotonic(), OF_NODE)
    assert left_with == code, said
    assert re.search(expected, said), said


def test_no_command_leaves_a_secret_in_a_file_or_in_the_list_of_processes(told, searched):
    places, commands, started = told
    judge("rabbit-chx, side by side", places, searched, started, scenarios=len(commands))
    assert {"files", "command lines"} <= places.seen


def test_a_url_in_the_wrong_place_is_quoted_without_its_password(site, searched):
    """Of the command line that has it the process list tells, so that alone is not looked at."""
    started = time.monotonic()
    for words in (
        ("lint",),
        ("doctor",),
        ("--debug", "check"),
        ("check", "topology.yaml", "--amqp-only", "--pairs"),
    ):
        code, said = ended(site, (*words, site.amqp(WRONG)), {})
        site.places.note("output", said)
        assert code == 64, said
    judge("rabbit-chx", site.places, searched, started)


def test_a_command_that_is_interrupted_tells_no_secret(site, broker, searched):
    started = time.monotonic()
    words = ("--debug", "publish", "-", "--format", "jsonl", "-x", "amq.direct", "-k", "k")
    connections = ("list_connections", "user", "client_properties")
    with site.places.processes(), start(site, words, {"AMQP_URL": site.amqp()}) as running:
        wait_until(lambda: site.user in broker.ctl(*connections), "it is connected", pause=0.2)
        site.places.note("output", broker.ctl(*connections))
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=60)[0].decode()
    site.places.note("output", said)
    judge("rabbit-chx", site.places, searched, started)
    assert (running.returncode, said.splitlines()[-1]) == (130, "Interrupted.")


def test_the_broker_was_told_no_secret_that_it_logs(site, broker, searched):
    """After all the others."""
    started = time.monotonic()
    site.places.note("log", broker.logs())
    judge("the broker's log", site.places, searched, started)
    assert site.user in broker.logs()
