"""The answers of `watch --serve`, who gets them, and slow or vanished clients. Sockets on loopback only."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
from base64 import b64encode
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from urllib.parse import urlsplit

import pytest

from rabbit_chx.errors import InvalidValue, MissingDependency
from rabbit_chx.watch import Interval, server as module
from rabbit_chx.watch.server import Server
from rabbit_chx.watch.tokens import Access, Address
from tests.patience import wait_until
from tests.watching import HOSTILE, interval

TOKEN = "correct-horse-battery"
WITHIN = 30.0


@contextmanager
def serving(token: str | None = None):
    with Server(Access(Address.parse("127.0.0.1:0"), token)) as server:
        yield server


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def open_server():
    """For requests that change nothing; it shows one interval."""
    with serving() as server:
        server.show(interval())
        yield server


@pytest.fixture(scope="module")
def closed_server():
    """As open_server, with a token."""
    with serving(TOKEN) as server:
        yield server


def connected(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=WITHIN)


def ask(
    server: Server, path: str = "/", *, method: str = "GET", hosts: list[str] | None = None, **headers: str
):
    """The status, the headers and the body of an answer."""
    connection = connected(server)
    connection.putrequest(method, path, skip_host=hosts is not None)
    for host in hosts or ():
        connection.putheader("Host", host)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


@contextmanager
def following(server: Server):
    """Yield the name and the value of each event of a new connection, without comments."""
    connection = connected(server)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers.get_content_type() == "text/event-stream"

    def events():
        name = ""
        for line in answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)

    try:
        yield events()
    finally:
        answer.close()
        connection.close()


# --- addresses and access -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:0", "::1", 0), ("localhost:65535", "localhost", 65535)],
)
def test_addresses_of_this_machine_need_no_token(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.loopback, str(address)) == (host, port, True, text)
    Access(address, None)


@pytest.mark.parametrize(
    "text", ["8080", ":8080", "localhost", "::1:80", "127.0.0.1:65536", "a b:1", "u@h:1", "[::1]:"]
)
def test_an_invalid_address_is_an_error(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"invalid --serve: .* expected HOST:PORT, such as 127"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"])
def test_an_address_for_other_machines_needs_a_token(text: str) -> None:
    with pytest.raises(InvalidValue, match="set RABBIT_CHX_WATCH_TOKEN"):
        Access(Address.parse(text), None)
    Access(Address.parse(text), TOKEN)


@pytest.mark.parametrize("token", ["", "too-short", "with a space and more", "ü" * 20])
def test_a_weak_token_is_rejected_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidValue, match="at least 16 printable ASCII") as error:
        Access(Address.parse("127.0.0.1:0"), token)
    assert not token or token not in str(error.value)
    assert TOKEN not in repr(Access(Address.parse("127.0.0.1:0"), TOKEN))


def test_an_address_in_use_is_an_error(server: Server) -> None:
    taken = Address.parse(urlsplit(server.url).netloc)
    with pytest.raises(
        InvalidValue, match=r"an address to listen on\. The system says: Address already in use$"
    ):
        Server(Access(taken, None))


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["localhost"], 200),
        (["LocalHost:8080"], 200),
        (["127.0.0.1:1"], 200),
        (["[::1]:8080"], 200),
        (["rebound.example"], 400),
        (["127.0.0.1.rebound.example:8080"], 400),
        (["localhost.rebound.example"], 400),
        (["192.0.2.1"], 400),
        ([""], 400),
        ([], 400),
        (["localhost", "rebound.example"], 400),
        (["[::1"], 400),
    ],
)
@pytest.mark.parametrize("path", ["/", "/metrics", "/events"])
def test_a_request_must_name_this_machine(
    open_server: Server, hosts: list[str], status: int, path: str
) -> None:
    method = "HEAD" if path == "/events" else "GET"  # a GET of /events does not end
    assert ask(open_server, path, method=method, hosts=hosts)[0] == status


def basic(password: str) -> str:
    return f"Basic {b64encode(f'anyone:{password}'.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (basic(TOKEN), 200),
        (None, 401),
        ("", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer ", 401),
        (basic(""), 401),
        (basic(TOKEN.upper()), 401),
        ("Basic %%%", 401),
        (f"Basic {TOKEN}", 401),
        (f"Digest {TOKEN}", 401),
        ("Bearer \xff", 401),
    ],
)
def test_a_configured_token_is_required(
    closed_server: Server, authorization: str | None, status: int
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for path, method in (("/", "GET"), ("/metrics", "GET"), ("/events", "HEAD"), ("/nothing", "GET")):
        found, answer, body = ask(closed_server, path, method=method, hosts=["watch.example"], **headers)
        assert found == (404 if status == 200 and path == "/nothing" else status)
        assert ("WWW-Authenticate" in answer) == (status == 401)
        assert TOKEN not in f"{answer}{body}"


@pytest.mark.parametrize("missing", ["prometheus_client", "starlette", "uvicorn"])
def test_without_a_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "rabbit_chx.watch.server")
    with pytest.raises(MissingDependency, match=r"--serve needs .* pip install 'rabbit-chx\[watch\]'"):
        import_module("rabbit_chx.watch.server")


# --- answers --------------------------------------------------------------------------------------------------


def test_the_page_contains_no_data_and_cannot_load_anything(server: Server) -> None:
    server.show(interval(HOSTILE))
    status, headers, body = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "orders" not in body
    policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "http" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_metrics_show_the_newest_interval(server: Server) -> None:
    assert ask(server, "/metrics")[::2] == (200, "")
    server.show(interval())
    status, headers, body = ask(server, "/metrics")
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    assert 'rabbit_chx_watch_queue_messages{exchange="orders",queue="q0",vhost="/"} 5.0\n' in body


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/?x=1", "GET", 200),
        ("/metrics?name=a", "GET", 200),
        ("/", "HEAD", 200),
        ("/favicon.ico", "GET", 404),
        ("/../etc/passwd", "GET", 404),
        ("/%00", "GET", 404),
        ("/<script>", "GET", 404),
        ("/", "POST", 405),
        ("/", "OPTIONS", 405),
    ],
)
def test_status_of_paths_and_methods(open_server: Server, path: str, method: str, status: int) -> None:
    found, headers, body = ask(open_server, path, method=method)
    assert found == status
    assert "script>" not in body or status == 200
    assert "X-Content-Type-Options" in headers
    assert not body if method == "HEAD" else body


def test_a_follower_gets_the_newest_interval_then_each_new_one_and_pictures_of_each_new_ring(
    server: Server,
) -> None:
    def as_sent(shown: Interval) -> dict[str, object]:
        return json.loads(json.dumps(shown.as_dict()))

    server.show(interval())
    server.show(newest := interval(HOSTILE))
    with following(server) as events:
        found = dict([next(events), next(events)])
        assert found["interval"] == as_sent(newest)
        assert [each["caption"] for each in found["pictures"]["pictures"]] == ["The ring now"]
        server.show(later := interval(HOSTILE, at=1_800_000_010.0))
        assert next(events) == ("interval", as_sent(later))  # the ring is the same
        server.show(interval(HOSTILE, now=HOSTILE[::-1]))
        drawn = dict([next(events), next(events)])["pictures"]
        assert len(drawn["pictures"]) == 3
        assert drawn["colours"] == {queue: number for number, queue in enumerate(HOSTILE)}


# --- slow, vanished and too many clients ----------------------------------------------------------------------


def connections(server: Server) -> int:
    return len(server._http.server_state.connections)


def dialled(server: Server) -> socket.socket:
    """A connection that has sent nothing yet."""
    at = urlsplit(server.url)
    return socket.create_connection((at.hostname, at.port), WITHIN)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection on which it has nothing to say."""
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_client_that_does_not_read_delays_no_other_client_and_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.5)
    with serving() as server, dialled(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        large = {"large": b"x" * 16_000_000}  # more than the kernel keeps for it
        server._loop.call_soon_threadsafe(server._events.put, large)
        newest = interval()
        for _ in range(100):
            server.show(newest)
        assert ask(server, "/metrics")[0] == 200
        assert len(server._events._newest) == 3  # the newest of each name; nothing is queued
        wait_until(lambda: not connections(server), "every connection ends")


def test_idle_strangers_keep_out_no_client_with_the_token() -> None:
    with serving(TOKEN) as server, ExitStack() as stack:
        server.show(interval())
        follower = stack.enter_context(closing(connected(server)))
        follower.request("GET", "/events", headers={"Authorization": f"Bearer {TOKEN}"})
        events = follower.getresponse()
        for _ in range(module._MOST_CONNECTIONS + 10):
            stack.enter_context(dialled(server))
        denied = [ask(server)[0] for _ in range(40)]
        assert denied == [401] * 40
        assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert events.readline() == b"event: interval\n"
        wait_until(lambda: connections(server) <= module._MOST_WAITING + 1, "few strangers wait")


async def test_a_quiet_connection_gets_comments() -> None:
    follower = module._Events().follow(heartbeat=0.01)
    assert [await anext(follower), await anext(follower)] == [b":\n\n", b":\n\n"]


@pytest.mark.parametrize(
    ("limit", "most", "answers"),
    [
        ("_MOST_FOLLOWERS", 1, {"/events": 503, "/metrics": 200}),
        ("_MOST_CONNECTIONS", 2, {"/metrics": 503}),
    ],
    ids=["pages, but Prometheus is not", "connections"],
)
def test_a_client_over_the_limit_is_rejected_until_another_one_has_left(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, answers: dict[str, int]
) -> None:
    monkeypatch.setattr(module, limit, most)
    with serving() as server:
        server.show(interval())
        with following(server) as events:
            next(events)
            for path, status in answers.items():
                assert ask(server, path)[0] == status
        for path in answers:
            wait_until(lambda path=path: ask(server, path, method="HEAD")[0] == 200, "a client is accepted")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n"])
def test_a_request_that_arrives_byte_by_byte_is_ended(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)

    def is_ended() -> bool:
        with suppress(OSError):  # reset by the server
            slow.sendall(b"x" if sent else b"")
        return is_closed(slow)

    with serving() as server, dialled(server) as slow:
        slow.sendall(sent)
        wait_until(is_ended, "the request is ended", pause=0.01)
        wait_until(lambda: not connections(server), "every connection ends")


def test_an_invalid_request_is_answered_and_logs_no_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for invalid in (b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 100_000):
        with dialled(server) as connection:
            connection.sendall(invalid)
            assert connection.recv(12) == b"HTTP/1.1 400"
    assert ask(server)[0] == 200
    assert not caplog.records


def test_closing_the_server_ends_every_connection_and_thread(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    with serving() as server:
        server.show(interval())
        idle = dialled(server)
        with following(server) as events:
            next(events)
            server.close()
            assert all(name in {"interval", "pictures"} for name, _ in events)  # and then the stream ends
        assert idle.recv(1) == b""
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            dialled(server)
    wait_until(lambda: set(threading.enumerate()) <= before, "every thread ends")
    assert not caplog.records
