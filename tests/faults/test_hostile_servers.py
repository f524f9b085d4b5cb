"""Everything that connects, against hostile AMQP and HTTP servers: an error in time, in little memory, safe for a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import pika
import pytest
from pika import frame, spec

from rabbit_chx.base.text import UNPRINTABLE
from tests.amqp_server import AmqpServer
from tests.patience import PATIENCE
from tests.proof import LONG, dice
from tests.unit.test_hostile_http import HEAD, SHAPES, after_head, always, answering

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.long

MOST_SECONDS = 2 * PATIENCE
PUBLISH_SECONDS = 3 * PATIENCE
"""`publish` waits for two minutes for a confirm, and as long for another connection."""
MOST_KILOBYTES = 200 << 10
INTERNAL_ERROR = 70
ESCAPES = "\x1b]0;PWNED\x07\x9b2J\u202e"

FILES = {
    "topology.yaml": "schema: 1\nexchanges: {orders: {type: x-consistent-hash, queues: [q, r]}}\nqueues: {q: {}, r: {}}\n",
    "rows.csv": "a\n1\n",
    "definitions.json": json.dumps(
        {
            "rabbit_version": "4.3.6",
            "vhosts": [{"name": "/"}],
            "queues": [{"name": "q", "vhost": "/"}, {"name": "r", "vhost": "/"}],
            "exchanges": [{"name": "orders", "vhost": "/", "type": "x-consistent-hash"}],
            "bindings": [
                {"source": "orders", "vhost": "/", "destination": name, "destination_type": "queue", "routing_key": "1"}
                for name in ("q", "r")
            ],
        }
    ),
}  # fmt: skip
QUIET = """\
logging.getLogger("aiormq").addHandler(logging.NullHandler())  # its log has tracebacks, and quotes the server
logging.getLogger("aiormq").propagate = False
"""
URL, MANAGEMENT = "os.environ['AMQP_URL']", "Management(os.environ['RABBITMQ_MANAGEMENT_URL'])"
STEPS = "plan(load('topology.yaml'), Observed())"


def python(call: str) -> tuple[str, ...]:
    """A program that makes one call and, like the command line, exits with 1 after an error of rabbit-chx."""
    return (
        "-c",
        f"""\
import asyncio, logging, os, sys
{QUIET}from rabbit_chx import RabbitChxError
from rabbit_chx.broker import *
from rabbit_chx.publishing import Publisher, Timeouts, check_access
from rabbit_chx.topology import *
try:
    {call}
except RabbitChxError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
""",
    )


def command(*arguments: str) -> tuple[str, ...]:
    return ("-m", "rabbit_chx", *arguments)


OVER_AMQP = {
    "check": command("check", "topology.yaml", "--amqp-only"),
    "plan": command("plan", "topology.yaml", "--amqp-only"),
    "apply": command("apply", "topology.yaml", "--amqp-only", "--yes"),
    "publish": command("publish", "rows.csv", "--exchange", "orders", "--key-column", "a"),
    "parity": command("parity", "--messages", "10"),
    "doctor": command("doctor"),
    "broker.apply()": python(f"apply({URL}, {STEPS}, timeout=5)"),
    # aio-pika reads a frame of whatever size the server announces, so an endless frame is not for these two.
    "broker.apply_async()": python(f"asyncio.run(apply_async({URL}, {STEPS}, timeout=5))"),
    "drain()": python(f"drain({URL}, ['q'], timeout=5)"),
    "drain_async()": python(f"asyncio.run(drain_async({URL}, ['q'], timeout=5))"),
    "publishing.check_access()": python(f"check_access({URL}, ['orders'])"),
    "publishing.Publisher": python(f"Publisher({URL}, 'orders', timeouts=Timeouts(connect=1, reconnect=1, retry=1, confirm=5)).publish_many([b''], 'k')"),
}  # fmt: skip
AIO_PIKA = ("broker.apply_async()", "drain_async()")
OUR_OWN = ("publish", "publishing.Publisher")
OVER_PIKA = [name for name in OVER_AMQP if name not in (*AIO_PIKA, *OUR_OWN)]
OVER_HTTP = {
    "check": command("check", "topology.yaml"),
    "plan": command("plan", "topology.yaml", "--verbose"),
    "apply": command("apply", "topology.yaml", "--yes"),
    "export": command("export"),
    "export FILE": command("export", "definitions.json", "--url", "amqp://127.0.0.1:1"),
    "report": command("report", "--file", "topology.yaml", "--live", "--out", "page.html"),
    "doctor": command("doctor"),
    "broker.read()": python(f"read({MANAGEMENT}, '/')"),
}


def start_of(version: str) -> bytes:
    properties = {"product": "RabbitMQ", "version": version, "capabilities": {}}
    start = spec.Connection.Start(server_properties=properties, mechanisms="PLAIN", locales="en_US")
    return frame.Method(0, start).marshal()


def pieces(behaviour: Callable[[], Iterator[bytes]]) -> Callable[[socket.socket], object]:
    """Send the bytes, whatever comes, and then nothing until the client hangs up."""

    def behave(client: socket.socket) -> None:
        for piece in behaviour():
            client.sendall(piece)
        while client.recv(1 << 16):
            pass

    return behave


def after(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    yield from always(rest)


def slowly(piece: bytes) -> Iterator[bytes]:
    """Send it without end, but leave the processor to others."""
    for each in always(piece):
        yield each
        time.sleep(0.01)


def on_channel(method: object) -> bytes:
    return frame.Method(1, method).marshal()


TUNE = frame.Method(0, spec.Connection.Tune(2047, 131_072, 0)).marshal()
HEARTBEAT = frame.Heartbeat().marshal()
REFUSAL = frame.Method(0, spec.Connection.Close(530, ESCAPES, 10, 40)).marshal()
DELIVERY = (
    on_channel(spec.Basic.Deliver("nobody", 1, exchange="", routing_key=ESCAPES))
    + frame.Header(1, 1_000, pika.BasicProperties()).marshal()
    + frame.Body(1, b"x" * 1_000).marshal()
)
AT_THE_HANDSHAKE = {
    "silence": lambda: iter(()),
    "an HTTP answer": lambda: iter([b"HTTP/1.1 400 Bad Request\r\n\r\n"]),
    "random bytes": lambda: iter([dice("hostile AMQP server").randbytes(4_096)]),
    "an endless frame": lambda: after(b"\x01\x00\x00\xff\xff\xff\xff", b"x" * 65_536),
    "endless greetings": lambda: always(start_of("4.3.6")),
    "a refusal that controls the terminal": lambda: iter([start_of(ESCAPES), TUNE, REFUSAL]),
    "a greeting and silence": lambda: iter([start_of("4.3.6"), TUNE]),
}
AFTER_THE_HANDSHAKE = {
    "silence": lambda: iter(()),
    "random bytes": lambda: iter([dice("hostile AMQP answers").randbytes(4_096)]),
    "an endless frame": lambda: after(b"\x03\x00\x01\xff\xff\xff\xff", b"x" * 65_536),
    "heartbeats and nothing else": lambda: slowly(HEARTBEAT),
    "the answer to another question": lambda: iter([on_channel(spec.Exchange.UnbindOk())]),
    "an answer under another name": lambda: iter([on_channel(spec.Queue.DeclareOk(ESCAPES, 2**31, 0))]),
    "deliveries to nobody": lambda: always(DELIVERY),
    "an answer on a channel that is not open": lambda: iter([frame.Method(7, spec.Basic.Ack(1)).marshal()]),
    "a refusal that controls the terminal": lambda: iter([on_channel(spec.Channel.Close(404, ESCAPES, 50, 10))]),
    "a farewell that controls the terminal": lambda: iter([REFUSAL]),
}  # fmt: skip
HTTP_SERVERS = {
    "silence": lambda: iter(()),
    "nested brackets": lambda: iter([HEAD + b"[" * 200_000]),
    "an endless list": lambda: after_head(b'[{"name":"x"},' + b"{}," * 20_000),
    "an endless text": lambda: after_head(b'"' + b"x" * 65_536),
    "an endless head": lambda: always(b"x" * 65_536),
    "a reason that controls the terminal": lambda: iter([f"HTTP/1.1 500 {ESCAPES}\r\n\r\n{ESCAPES}".encode()]),
}  # fmt: skip

# Starts a program in a small process of its own and writes the peak of its memory into a file: a child of the test's
# process begins with the peak of its parent.
MEASURED = """\
import os, sys
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[2:]], os.environ)
_, status, used = os.wait4(child, 0)
with open(sys.argv[1], "w") as file:
    file.write(str(used.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Ended(NamedTuple):
    """The exit code of a program, what it has printed, and the peak of its memory."""

    code: int
    text: str
    kilobytes: int


def measured(folder: Path, arguments: tuple[str, ...], most_seconds: float, **environment: str) -> Ended:
    """Run a program to its end, within this time."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "page.html").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURED, "peak", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={"PYTHONPATH": os.getcwd(), **os.environ, **environment},  # noqa: PTH109
        start_new_session=True,
    )
    try:
        text = process.communicate(timeout=most_seconds)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ended(process.returncode, text, int((folder / "peak").read_text()))


def judged(folder: Path, arguments: tuple[str, ...], most_seconds: float, **environment: str) -> None:
    """Run a program to its end, and hold its exit code, its time, its memory and its output against the limits."""
    code, text, kilobytes = measured(folder, arguments, most_seconds, **environment)
    assert code > 0, text
    assert code != INTERNAL_ERROR, text
    assert "Traceback" not in text
    assert not UNPRINTABLE.search(text.replace("\n", "").replace("\t", "").replace("\r", "")), ascii(text)
    assert kilobytes < MOST_KILOBYTES, text


def all_judged(folder: Path, callers: dict[str, tuple[str, ...]], **environment: str) -> None:
    """All callers at the same time: most of them wait for an answer that does not come."""

    def judge(caller: str) -> str:
        own = folder / caller
        own.mkdir(parents=True, exist_ok=True)
        try:
            seconds = PUBLISH_SECONDS if caller == "publish" else MOST_SECONDS
            judged(own, callers[caller], seconds, **environment)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"{folder.name}, {caller}: {error!r}"
        return ""

    with ThreadPoolExecutor(len(callers)) as threads:
        wrong = list(filter(None, threads.map(judge, callers)))
    assert not wrong, "\n".join(wrong)


def callers_for(behaviour: str, turn: int, *, without: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """All in a long run; otherwise two that use pika and one of each other kind, so that in turn all are chosen."""
    without = {*without, *(AIO_PIKA if behaviour == "an endless frame" else ())}
    if LONG:
        chosen = [*OVER_AMQP]
    else:
        kinds = [
            [name for name in kind if name not in without]
            for kind in (OVER_PIKA, OVER_PIKA, AIO_PIKA, OUR_OWN)
        ]
        chosen = [
            kind[(turn + place * len(kind) // 2) % len(kind)] for place, kind in enumerate(kinds) if kind
        ]
    return {name: OVER_AMQP[name] for name in chosen if name not in without}


def by(count: int, servers: Iterable[str]) -> list[list[str]]:
    """Most callers only wait, so some servers run at a time; at most one of them sends without end."""
    names = list(servers)
    return [names[start : start + count] for start in range(0, len(names), count)]


def in_turn(groups: list[list[str]]) -> list[Any]:
    """The first group, and the others in the proof only."""
    return [groups[0], *(pytest.param(each, marks=pytest.mark.proof) for each in groups[1:])]


def all_judged_at(
    servers: Mapping[str, Callable[[], Iterator[bytes]]],
    behaviours: list[str],
    folder: Path,
    *,
    handshake: bool,
    without: Collection[str] = (),
) -> None:
    def judge(behaviour: str) -> None:
        turn = list(servers).index(behaviour)
        with AmqpServer(pieces(servers[behaviour]), handshake=handshake) as server:
            urls = {"AMQP_URL": server.url, "RABBITMQ_MANAGEMENT_URL": "http://127.0.0.1:1"}
            all_judged(folder / behaviour, callers_for(behaviour, turn, without=without), **urls)

    with ThreadPoolExecutor(len(behaviours)) as threads:
        list(threads.map(judge, behaviours))


@pytest.mark.parametrize("behaviours", in_turn(by(4, AT_THE_HANDSHAKE)), ids=", ".join)
def test_hostile_amqp_servers_get_an_error(behaviours: list[str], tmp_path: Path) -> None:
    all_judged_at(AT_THE_HANDSHAKE, behaviours, tmp_path, handshake=False)


PATIENT = {"publish", "apply", "drain()", "drain_async()"}


@pytest.mark.parametrize("behaviours", in_turn(by(3, AFTER_THE_HANDSHAKE)), ids=", ".join)
def test_amqp_servers_that_turn_hostile_get_an_error(behaviours: list[str], tmp_path: Path) -> None:
    """The patient ones only in the long run: they wait for a minute or two for an answer, and use the drivers and the
    publisher of `broker.apply()`, `broker.apply_async()` and `publishing.Publisher`, which have shorter timeouts here."""

    all_judged_at(AFTER_THE_HANDSHAKE, behaviours, tmp_path, handshake=True, without=() if LONG else PATIENT)


@pytest.mark.parametrize("caller", AIO_PIKA)
def test_aio_pika_takes_frames_of_any_size_and_logs_the_words_of_a_server(
    caller: str, tmp_path: Path
) -> None:
    """SECURITY.md excepts these two for that. Once this fails, they need no exception there, and none in `callers_for`."""
    head = b"\x01\x00\x00\xff\xff\xff\xff"
    endless = pieces(lambda: chain([head], repeat(b"x" * 65_536, 2 * MOST_KILOBYTES // 64)))
    with AmqpServer(endless, handshake=False) as server:
        code, text, kilobytes = measured(tmp_path, OVER_AMQP[caller], MOST_SECONDS, AMQP_URL=server.url)
    assert code == 1, text
    assert kilobytes > MOST_KILOBYTES
    option, program = OVER_AMQP[caller]
    with AmqpServer(pieces(AFTER_THE_HANDSHAKE["a farewell that controls the terminal"])) as server:
        loud = (option, program.replace(QUIET, ""))
        code, text, _ = measured(tmp_path, loud, MOST_SECONDS, AMQP_URL=server.url)
    assert code == 1, text
    assert ESCAPES in text


def judged_over_http(folder: Path, answer: Callable[[], Iterator[bytes]], turn: int) -> None:
    """All callers in a long run, otherwise every other one."""
    chosen = list(OVER_HTTP)[slice(None) if LONG else slice(turn % 2, None, 2)]
    with answering(answer) as (url, _):
        urls = {"AMQP_URL": "amqp://127.0.0.1:1", "RABBITMQ_MANAGEMENT_URL": url}
        all_judged(folder, {name: OVER_HTTP[name] for name in chosen}, **urls)


@pytest.mark.parametrize("behaviour", HTTP_SERVERS)
def test_a_hostile_management_api_gets_an_error(behaviour: str, tmp_path: Path) -> None:
    judged_over_http(tmp_path, HTTP_SERVERS[behaviour], list(HTTP_SERVERS).index(behaviour))


def test_answers_of_other_shapes_get_an_error(tmp_path: Path) -> None:
    for turn, shape in enumerate(SHAPES if LONG else SHAPES[::12]):
        judged_over_http(tmp_path, lambda body=shape: iter([HEAD + body]), turn)
