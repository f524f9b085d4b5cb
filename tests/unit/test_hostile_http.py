"""The management client against servers that are slow, endless or wrong: it ends in time, in little memory, with one error."""

from __future__ import annotations

import gc
import json
import random
import socket
import sys
import threading
import time
import tracemalloc
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from types import SimpleNamespace

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from tests.verbs import ORDERS

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
CALLS = {
    "overview": lambda management: management.overview(),
    "whoami": lambda management: management.whoami(),
    "nodes": lambda management: management.nodes(),
    "feature flags": lambda management: management.feature_flags(),
    "exchange": lambda management: management.exchange("v", "x"),
    "exchanges": lambda management: management.exchanges("v"),
    "bindings": lambda management: management.bindings("v"),
    "queue": lambda management: management.queue("v", "q"),
    "queues": lambda management: management.queues("v"),
    "policies": lambda management: management.policies("v"),
}


@contextmanager
def answering(pieces, pause=0.0):
    """A server that answers every request with the bytes that ``pieces()`` yields."""
    requests: list[bytes] = []

    def answer(connection):
        with connection, suppress(OSError):
            requests.append(connection.recv(1 << 16))
            for piece in pieces():
                connection.sendall(piece)
                time.sleep(pause)

    def serve():
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def always(piece):
    while True:
        yield piece


def after_head(piece):
    yield HEAD
    yield from always(piece)


@pytest.mark.parametrize("pieces", [lambda: always(b"H"), lambda: after_head(b" ")], ids=["head", "body"])
def test_a_request_ends_at_its_deadline_however_slowly_the_answer_comes(pieces):
    with answering(pieces, pause=0.05) as (url, _):
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"did not answer within 0\.5 seconds"):
            Management(url, timeout=0.5).overview()
        assert time.monotonic() - started < 60  # 50,000 bytes of a header's line would take an hour


def test_a_server_that_closes_without_an_answer_is_taken_for_another_port_only_if_it_has_never_answered():
    answers = iter([[], [HEAD + b"[]"], []])
    with answering(lambda: next(answers)) as (url, _):
        management = Management(url)
        with pytest.raises(
            BrokerUnavailable, match="closed the connection without an answer; is this the AMQP port"
        ):
            management.nodes()
        management.nodes()
        with pytest.raises(BrokerUnavailable, match=r"closed the connection without an answer$"):
            management.nodes()


@pytest.mark.parametrize(
    "length", ["Content-Length: 500\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n500\r\n"]
)
@pytest.mark.parametrize("call", ["overview", "bindings", "queues"])
def test_an_answer_that_ends_too_early_is_called_so_and_not_another_server(call, length):
    cut = [b"HTTP/1.1 200 OK\r\n", length.encode(), b'[{"name":"q0","']
    expected = "closed the connection in the middle of an answer$"
    with answering(lambda: cut) as (url, _), pytest.raises(BrokerUnavailable, match=expected):
        CALLS[call](Management(url))


# Interrupted requests leave their sockets open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_the_call_of_any_function_ends_the_request():
    """As a signal does, whose handler runs when the next function begins: also one that Python calls to close a dropped file."""
    calls = at = 0

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt

    def interrupted(call: int) -> bool:
        nonlocal calls, at
        calls, at = 0, call
        before = sys.gettrace()
        gc.disable()  # it calls functions at any time, such as finalizers, whose errors Python drops
        sys.settrace(interrupt)
        try:
            management.nodes()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            gc.enable()
        return False

    with answering(lambda: [HEAD + b"[]"]) as (url, _):
        management = Management(url)
        for _ in range(2):  # the first time also imports
            assert not interrupted(0)
        most = calls
        survived = [call for call in range(1, most + 1) if not interrupted(call)]
    assert most > 100
    assert survived == []


def test_a_server_that_accepts_no_connection_is_not_waited_for_as_long_as_for_an_answer():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as filled:
        address = server.getsockname()
        for _ in range(4):  # from then on, the kernel ignores further connections
            waiting = filled.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        with pytest.raises(BrokerUnavailable, match=r"\(no connection within 1 seconds\)"):
            Management(f"http://127.0.0.1:{address[1]}", timeout=1).overview()


@pytest.mark.parametrize("verb", ["check", "plan", "apply", "scale", "export", "route", "doctor"])
def test_a_verb_says_that_a_broker_is_silent_and_gives_up_at_its_limit(run, write, monkeypatch, verb):
    monkeypatch.setattr("rabbit_chx.cli.ask.broker_access._SILENT_AFTER", 0.1)
    file = write(ORDERS)
    about = {
        "apply": [file, "--yes"],
        "scale": [file, "--status"],
        "route": ["k", "-x", "orders"],
        "export": [],
        "doctor": [],
    }.get(verb, [file])
    with answering(lambda: always(b"H"), pause=0.05) as (url, requests):
        found = run(
            verb, *about, "-U", "amqp://u:p@127.0.0.1:1", "--management-url", url, "--connect-timeout", "0.5"
        )
    assert found.code == 1
    assert "the broker has not answered for 0.1 seconds; this command gives up after 0.5 seconds" in found.err
    assert "did not answer within 0.5 seconds" in " ".join((found.out + found.err).split())
    assert len(requests) == 1


def test_a_verb_says_that_a_broker_is_silent_on_the_amqp_port_too(run, write, monkeypatch):
    monkeypatch.setattr("rabbit_chx.cli.ask.broker_access._SILENT_AFTER", 0.1)
    with answering(lambda: always(b""), pause=0.05) as (url, _):
        address = url.replace("http://", "amqp://u:p@")
        found = run("check", write(ORDERS), "-U", address, "--amqp-only", "--connect-timeout", "0.5")
    assert found.code == 1
    assert "gives up after 0.5 seconds" in found.err
    assert "accepted the connection but sent nothing" in found.err


LARGE = {
    "blanks": ("overview", b'{"x":[', b" " * 65536),
    "objects": ("overview", b'{"x":[', b"[" + b"{}," * 20000 + b"{}],"),
    "pairs": ("overview", b'{"x":[', b'{"a":"b"},' * 6000),
    "arguments": ("bindings", b"[", b'{"source":"x","destination":"q","destination_type":"queue","routing_key":"1","arguments":{"a":[%s0]}},' % (b"[]," * 9000)),
    "lines": ("bindings", b"[", b"\n" * 65536),
    "names": ("bindings", b"[", b'{"source":"%s"},' % (b"x" * 60000)),
    "lists": ("queues", b'{"x":[', b'"items":[' * 10000),
    "no JSON": ("policies", b"[", b"x" * 65536),
    "just below the limits": ("overview", b"[" + b",".join([b'{"a":"b"}'] * 199_000) + b"]", b""),
}  # fmt: skip


@pytest.mark.parametrize(("call", "begin", "piece"), LARGE.values(), ids=LARGE)
def test_an_endless_or_large_answer_takes_little_memory(call, begin, piece):
    with answering(lambda: chain([HEAD + begin], always(piece) if piece else ())) as (url, _):
        management = Management(url, timeout=600)
        tracemalloc.start()
        try:
            with pytest.raises(BrokerUnavailable, match=r"sent more data about|is not a management API"):
                CALLS[call](management)
            assert tracemalloc.get_traced_memory()[1] < 128 << 20
        finally:
            tracemalloc.stop()


def test_ten_thousand_bindings_are_within_the_limits():
    row = {"source": "x" * 60, "vhost": "v" * 20, "destination_type": "queue", "arguments": {}}
    rows = [row | {"destination": f"queue-{n:0>60}", "routing_key": "1"} for n in range(10_000)]
    body = json.dumps(rows).encode()
    with answering(lambda: [HEAD + body[:70_001], body[70_001:]]) as (url, _):
        found = Management(url).bindings("v")
    assert [bound.destination for bound in found] == [row["destination"] for row in rows]


def test_the_definitions_of_ten_thousand_queues_are_within_the_limits():
    rows = [
        {"name": f"queue-{n:0>100}", "vhost": "v", "durable": True, "arguments": {}} for n in range(10_000)
    ]
    body = json.dumps({"queues": rows, "bindings": rows, "exchanges": []}).encode()
    with answering(lambda: [HEAD + body]) as (url, _):
        assert len(Management(url).definitions()["queues"]) == 10_000


def test_a_list_without_end_is_given_up():
    page = {"items": [{"name": "q"}], "page_count": 10**9}
    with answering(lambda: [HEAD + json.dumps(page).encode()]) as (url, requests):
        with pytest.raises(BrokerUnavailable, match="lists queues on more than 400 pages"):
            Management(url)._pages(["queues", "v"], dict)
        assert len(requests) == 400


RANDOM = random.Random(20)
SHAPES = [
    *(b"[" * 200_000, b'{"a":' * 200_000, b'[{"a":' * 200_000, b"[[]]", b"[1]", b"[null]", b'[{"name":1}]'),
    *(
        b"null",
        b"7",
        b'"text"',
        b"{}",
        b"\xff",
        b"[\xff]",
        b"",
        b'{"items":7}',
        b'{"items":[7],"page_count":1}',
    ),
    *(b'{"items":[{}],"page_count":"x"}', b'{"name":[],"tags":[[]],"product_name":[],"exchange_types":[7]}'),
    *(bytes(RANDOM.choices(b'[]{}",:0ae\\ntru', k=RANDOM.randrange(80))) for _ in range(40)),
]


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_of_another_shape_is_not_a_management_api(call):
    for shape in SHAPES:
        with answering(lambda body=shape: [HEAD + body]) as (url, _):
            try:
                CALLS[call](Management(url))
            except BrokerUnavailable as error:
                assert "is not a management API" in str(error) or "calls itself" in str(error)  # noqa: PT017
            else:
                assert not shape.strip(b"[], "), shape


# -- where a password goes ---------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://broker:15672", "https://other:15671", "http://127.0.0.1:15672"])
def test_the_password_of_an_amqps_url_stays_protected(url):
    with pytest.raises(InvalidValue, match="expected https:// and the host broker") as caught:
        Management.of("amqps://me:sesame@broker", url)
    assert "sesame" not in str(caught.value)
    with pytest.raises(InvalidValue, match="invalid management URL"):
        Management.of("amqps://me@broker", url, credentials=lambda: ("me", "sesame"))
    Management.of("amqps://me:sesame@broker", url, insecure=True)
    Management.of("amqps://me:sesame@broker", url.replace("://", "://own:password@"))
    Management.of("amqp://me:sesame@broker", url)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status):
    with answering(lambda: [HEAD + b'{"name":"me","tags":[]}']) as (other, requests):
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {other}/api/whoami\r\nContent-Length: 0\r\n\r\n"
        with answering(lambda: [moved.encode()]) as (url, _), pytest.raises(BrokerUnavailable):
            Management(url.replace("://", "://me:sesame@")).whoami()
    assert requests == []


def test_a_proxy_in_the_environment_is_ignored_and_one_that_is_named_is_used(monkeypatch):
    found = HEAD + b'{"name":"me","tags":[]}'
    with answering(lambda: [found]) as (url, direct), answering(lambda: [found]) as (proxy, proxied):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        Management(url).whoami()
        assert (len(direct), len(proxied)) == (1, 0)
        own = proxy.replace("://", "://proxy:key@")
        Management(url, proxy=own).whoami()
        assert (len(direct), len(proxied)) == (1, 1)
    assert proxied[0].startswith(f"GET {url}/api/whoami HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic cHJveHk6a2V5" in proxied[0]
    assert b"Proxy-Authorization" not in direct[0]


def test_a_proxy_gets_no_password_in_clear_that_its_url_protects():
    with pytest.raises(
        InvalidValue, match=r"management proxy: got 'https://proxy\.corp', expected an http"
    ) as caught:
        Management("https://broker:15671", proxy="https://me:sesame@proxy.corp")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://broker:15672", "https://broker:15671"])
def test_the_default_port_of_a_proxy_is_80(monkeypatch, url):
    asked = []

    def refuse(*address, **_):
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    with pytest.raises(BrokerUnavailable):
        Management(url, proxy="http://proxy.corp").whoami()
    assert set(asked) == {("proxy.corp", 80)}


def test_the_addresses_of_a_host_share_the_time_to_connect(monkeypatch):
    now, waited = 0.0, []

    def connect_to(self, _):
        nonlocal now
        waited.append(self.gettimeout())
        now += waited[-1]
        raise TimeoutError

    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*kind, (f"127.0.0.{number}", 15672)) for number in (1, 2)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", connect_to)
    monkeypatch.setattr("rabbit_chx.broker.sockets.time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(BrokerUnavailable, match="no connection within 5 seconds"):
        Management("http://broker:15672").whoami()
    assert waited == [2.5, 2.5]


@pytest.mark.parametrize(
    ("options", "environment", "warnings"),
    [
        (["-U", "amqp://me:sesame@127.0.0.1:1"], {}, 1),
        (["-U", "amqp://127.0.0.1:1", "--management-url", "http://me:sesame@127.0.0.1:1"], {}, 1),
        (["-U", "amqp://127.0.0.1:1", "--management-proxy", "http://me:sesame@127.0.0.1:1"], {}, 1),
        (["-U", "amqp://me@127.0.0.1:1"], {}, 0),
        ([], {"AMQP_URL": "amqp://me:sesame@127.0.0.1:1"}, 0),
    ],
)
def test_a_password_on_the_command_line_is_warned_of_once(options, environment, warnings, run, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = run("export", *options)
    assert found.code == 1
    assert found.err.count("the command line contains a password") == warnings
    assert "sesame" not in found.err


def test_the_api_gets_the_user_of_the_broker_url_and_the_password_of_the_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("sesame\n")
    with answering(lambda: [HEAD + b'{"name":"me","tags":[]}']) as (url, requests):
        Management.of("amqp://me@127.0.0.1", url, credentials=file).whoami()
    assert b"Authorization: Basic bWU6c2VzYW1l\r\n" in requests[0]
