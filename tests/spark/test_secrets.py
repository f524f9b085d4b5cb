"""A secret in an option appears nowhere in what Spark shows, logs or stores.

One program writes and reads with secrets of every kind, successfully and not, and leaves what was to be seen, place by place
(tests/spark/secret_traces.py). The tests look for the secrets there.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest

from tests.canary import canary, found
from tests.inbox import Inbox
from tests.patience import PATIENCE
from tests.spark.streams import Streams
from tests.tls import Authority, Listener
from tests.users import a_user

pytestmark = [
    pytest.mark.long,
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.timeout(1_200),
    pytest.mark.proves(
        "Secrets",
        "places in Spark searched for planted secrets",
        "where Spark itself shows a secret the search finds it",
    ),
]

REPOSITORY = Path(__file__).parents[2]
RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
DEADLINE = 4 * PATIENCE

PLACES = {
    "explain": "rabbitmq|RabbitMQ",
    "exceptions": "rejected the user name or password",
    "sql": "a_table",
    "progress": "numOutputRows",
    "event log": "SparkListenerSQLExecutionStart",
    "checkpoints": "batchWatermarkMs",
    "ui": "planDescription",
    "spark's log": " DEBUG ",
    "command lines": r"pyspark\.daemon",
    "local files": ".",
    "broker's log": "rabbit-chx spark",
    "connections": "rabbit-chx spark secrets query",
}
"""Where no secret may appear, and a text that shows that the writes have left their traces there."""


PASSWORD = canary("password")
"""Of the broker's user, by whatever option it is given."""
KEY = canary("tlsKeyPassword")
WRONG = {name: canary(f"wrong-{name}") for name in ("url", "password", "env", "file", "key")}
MISSPELT = canary("misspelt")
CONFIGURED = canary("configured")
SETTING = canary("setting")
"""A password in a setting of the session, which `register` refuses."""
SECRETS = [PASSWORD, KEY, *WRONG.values(), CONFIGURED, SETTING]

AT_DEBUG = re.compile(
    "DEBUG (SparkSqlParser: Parsing command|SharedState: Applying other initial session options)|^ *envVars: "
)
SHOWN = {
    "python log": ["py4j", PASSWORD, KEY, WRONG["url"], WRONG["password"], WRONG["key"], SETTING],
    "event log": ["SparkListenerJobStart", SETTING],
    "spark's log at DEBUG": ["DEBUG", PASSWORD, KEY, CONFIGURED],
    "errors of SQL": ["PARSE_SYNTAX_ERROR", PASSWORD],
    "command lines": ["--conf spark.executorEnv.RABBITMQ_PASSWORD", CONFIGURED],
}
"""Where Spark itself shows them, as docs/spark-cluster.md says: a control of the other tests too."""


@pytest.fixture(scope="module")
def user(rabbitmq_broker):
    """A user whose password is a secret to look for."""
    with a_user(rabbitmq_broker, "", ".*", ".*", password=PASSWORD) as user:
        yield user.name


@pytest.fixture(scope="module")
def tls(rabbitmq_broker, tmp_path_factory):
    """Listeners before the broker's ports, and the options by which a client shows a certificate to them."""
    authority = Authority(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")
    authority.issue("good")
    authority.issue("client")
    authority.lock("client", KEY)
    context = authority.server(clients=ssl.CERT_REQUIRED)
    listeners = [Listener(context, url) for url in (rabbitmq_broker.url, rabbitmq_broker.stream_url)]
    files = {"tlsCaFile": "ca.pem", "tlsCertFile": "client.pem", "tlsKeyFile": "locked.key"}
    yield listeners, {option: str(authority.folder / file) for option, file in files.items()}
    for listener in listeners:
        listener.close()


@pytest.fixture(scope="module")
def inbox(rabbitmq_broker):
    with Inbox(rabbitmq_broker.url) as inbox:
        yield inbox


@pytest.fixture(scope="module")
def source(rabbitmq_broker, tls):
    """What a read needs to know: a stream and a queue with messages, and the ports of the stream protocol."""
    plain, (_, secure) = urlsplit(rabbitmq_broker.stream_url).port, tls[0]
    with Streams(rabbitmq_broker.url) as streams, Inbox(rabbitmq_broker.url) as queue:
        stream = streams.stream()
        streams.fill(stream, [b"a row of a stream"] * 5)
        streams.fill("", [b"a row of a queue"] * 5, exchange=queue.exchange, key="k")
        yield {"stream": stream, "queue": queue.queue, "plain": str(plain), "secure": str(secure.port)}


@pytest.fixture(scope="module")
def ways(rabbitmq_broker, inbox, user, tls, source, tmp_path_factory):
    """Every option that holds a secret or says where it is; good, wrong, and with no broker there."""
    folder = tmp_path_factory.mktemp("secrets")
    for name, secret in (("right", PASSWORD), ("wrong", WRONG["file"])):
        (folder / name).write_text(f"{secret}\n")
    parts = urlsplit(rabbitmq_broker.url)
    address, vhost = f"{parts.hostname}:{parts.port}", parts.path
    bare = {"host": parts.hostname, "port": str(parts.port), "username": user, "exchange": inbox.exchange}
    (listener, _), files = tls

    def url(secret: str, where: str = address, scheme: str = "amqp") -> dict[str, str]:
        access = f"{user}:{secret}" if secret else user
        return {"url": f"{scheme}://{access}@{where}{vhost}", "exchange": inbox.exchange}

    def locked(key: str, port: int = listener.port) -> dict[str, str]:
        return {**url(PASSWORD, f"127.0.0.1:{port}", "amqps"), **files, "tlsKeyPassword": key}

    def way(name, good, wrong, nowhere=None):
        return {"name": name, "good": good, "wrong": wrong, "nowhere": nowhere or {}, "read": source}

    by_env, by_file = {"passwordEnv": "PASSWORD_RIGHT"}, {"passwordFile": f"{folder}/right"}
    refused = "rejected the user name or password"
    return [
        way(
            "url",
            locked(KEY),
            {refused: url(WRONG["url"]), "tlsKeyPassword opens an encrypted key": locked(WRONG["key"])},
            locked(KEY, port=1),
        ),
        way(
            "password",
            bare | {"password": PASSWORD},
            {refused: bare | {"password": WRONG["password"]}},
            bare | {"password": WRONG["password"], "port": "1"},
        ),
        way("env", url("") | by_env, {refused: url("") | {"passwordEnv": "PASSWORD_WRONG"}}),
        way("file", url("") | by_file, {refused: url("") | {"passwordFile": f"{folder}/wrong"}}),
    ]


@pytest.fixture(scope="module")
def traces(rabbitmq_broker, inbox, ways, tmp_path_factory):
    """The folder with all that was to be seen, a file or a folder for each place."""
    folder = tmp_path_factory.mktemp("traces")
    told = {"folder": str(folder), "ways": ways, "configured": CONFIGURED, "setting": SETTING}
    told["misspelt"] = {"uri": f"amqp://nobody:{MISSPELT}@127.0.0.1", "exchange": inbox.exchange}
    _run(told, rabbitmq_broker, folder)
    arrived = inbox.bodies()
    assert (arrived[b"3"], arrived[b"a stream's row"], arrived[b"by SQL"]) == (4, 4, 4)
    assert arrived[b"by settings"] == 1
    (folder / "broker's log").write_text(rabbitmq_broker.logs())
    log = folder / "spark's log"
    lines = log.read_text(errors="replace").splitlines()
    (folder / "spark's log at DEBUG").write_text("\n".join(filter(AT_DEBUG.search, lines)))
    log.write_text("\n".join(line for line in lines if not AT_DEBUG.search(line)))
    return folder


def _run(told, broker, folder):
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PASSWORD_RIGHT": PASSWORD,
        "PASSWORD_WRONG": WRONG["env"],
    }
    with (folder / "spark's log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.spark.secret_traces"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with program:
            program.stdin.write(json.dumps(told) + "\n")
            program.stdin.flush()
            ready = program.stdout.readline()
            if ready:
                listed = broker.ctl("list_connections", "name", "user", "client_properties")
                (folder / "connections").write_text(listed)
            program.communicate("\n", timeout=DEADLINE)
    assert (ready, program.returncode) == ("ready\n", 0), _end_of(folder / "spark's log")


def _end_of(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if " DEBUG " not in line]
    return "\n".join(lines[-80:])


def seen(folder: Path, place: str) -> str:
    """All that is to be seen at a place, names of files included."""
    whole = folder / place
    files = [file for file in whole.rglob("*") if file.is_file()] if whole.is_dir() else [whole]
    return "\n".join(f"{file.name}\n{file.read_text(errors='replace')}" for file in files)


@pytest.mark.parametrize("place", PLACES)
def test_spark_shows_no_secret(traces, place):
    text = seen(traces, place)
    assert re.search(PLACES[place], text)
    assert found(text, [one for one in SECRETS if one not in SHOWN.get(place, ())]) == []


@pytest.mark.pyspark("4.1", "it keeps no log of workers that SQL could ask for")
def test_worker_logs_contain_no_secret(traces):
    text = seen(traces, "worker logs")
    assert "Connection refused" in text
    assert found(text, SECRETS) == []


@pytest.mark.parametrize("place", SHOWN)
def test_where_spark_shows_options_it_does_not_know_what_the_environment_and_files_hold(traces, place):
    text = seen(traces, place)
    assert [one for one in SHOWN[place] if one not in text] == []
    assert found(text, [WRONG["env"], WRONG["file"]]) == []


def test_up_to_4_1_spark_shows_a_secret_in_an_option_with_an_unsuspicious_name(traces):
    """Which is why the option is called url, and not uri."""
    text = seen(traces, "misspelt")
    assert "Use url" in text
    assert (MISSPELT in text) == (RELEASE < (4, 2))
