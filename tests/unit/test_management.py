"""The reader of the management API against a small server of our own: what it asks, and how it complains."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from operator import itemgetter

import pytest

from rabbit_chx.broker.management import Management
from rabbit_chx.broker.management_rows import Overview, QueueState, User
from rabbit_chx.errors import BrokerUnavailable, InvalidValue
from rabbit_chx.mirror.releases import Store
from rabbit_chx.topology.model import Exchange, NodeState, Policy, Queue

NODES = "name%2Crunning%2Cuptime%2Cpartitions%2Cmem_alarm%2Cdisk_free_alarm"
SECRET = "pa:ss/w%rd"
FLAGS = {"durable": True, "auto_delete": False}


class Api:
    """Answers by path and query, and remembers what it was asked."""

    def __init__(self, answers) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def answer(self, path: str, authorization: str):
        self.asked.append((path, authorization))
        return self.answers.get(path, (404, {"error": "Object Not Found", "reason": "Not Found"}))


@contextmanager
def serving(answers):
    api = Api(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        do_DELETE = do_PUT  # noqa: N815

        def do_GET(self) -> None:
            found = api.answer(self.path, self.headers.get("Authorization", ""))
            status, body = found if isinstance(found, tuple) else (200, found)
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_) -> None:
            """Not a word."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_names_are_escaped_and_the_user_goes_along() -> None:
    row = {"name": "a/b ü", "type": "fanout", "internal": False, "arguments": {}, **FLAGS}
    with serving({"/api/exchanges/%2F/a%2Fb%20%C3%BC": row}) as api:
        url = api.url.replace("://", "://me%40home:pa%3Ass%2Fw%25rd@")
        assert Management(url).exchange("/", "a/b ü") == Exchange("a/b ü", "fanout", internal=False)
    _, authorization = api.asked[0]
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"me@home:{SECRET}"


def test_credentials_are_requested_each_time_unless_the_url_has_them() -> None:
    users = iter(["one", "two"])
    with serving({"/api/policies/v": []}) as api:
        management = Management(api.url, credentials=lambda: (next(users), SECRET))
        assert management.policies("v") == management.policies("v") == []
        Management(api.url.replace("://", "://own:x@"), credentials=lambda: ("other", "y")).policies("v")
        Management(api.url).policies("v")
    asked = [base64.b64decode(token.removeprefix("Basic ")).decode() for _, token in api.asked]
    assert asked == [f"one:{SECRET}", f"two:{SECRET}", "own:x", "guest:guest"]


QUEUE_COLUMNS = "name%2Ctype%2Cdurable%2Cauto_delete%2Cexclusive%2Carguments"


def test_what_is_disabled_is_not_there_and_an_empty_list_is_no_arguments() -> None:
    queue = {"name": "q", "type": "quorum", "exclusive": False, **FLAGS, "arguments": []}
    answers = {
        "/api/overview": {
            "product_name": "RabbitMQ", "rabbitmq_version": "4.3.6", "cluster_name": "here",
            "exchange_types": [{"name": "direct", "enabled": True}, {"name": "x-old", "enabled": False}],
        },
        "/api/feature-flags": [{"name": "khepri_db", "state": "enabled"}, {"name": "b", "state": "disabled"}],
        "/api/exchanges/v/amq.default": {"name": "", "type": "direct", "internal": False, "arguments": [], **FLAGS},
        f"/api/queues/v/q?columns={QUEUE_COLUMNS}": queue,
    }  # fmt: skip
    with serving(answers) as api:
        management = Management(f"{api.url}/")
        assert management.overview() == Overview("RabbitMQ", "4.3.6", frozenset({"direct"}), "here")
        assert management.feature_flags() == {"khepri_db": True, "b": False}
        assert management.exchange("v", "") == Exchange("", "direct", internal=False)
        assert management.queue("v", "q") == Queue("q", "quorum")


def test_pages_are_read_until_one_is_empty_regardless_of_the_page_count() -> None:
    def page(number: int, *names: str):
        rows = [{"name": n, "type": "fanout", "internal": True, "arguments": {}, **FLAGS} for n in names]
        return {"items": rows, "page": number, "page_count": 1_000_000_000, "total_count": 3}

    pages = {1: page(1, "a", "b"), 2: page(2, "c"), 3: page(3)}
    answers = {f"/api/exchanges/v?page={n}&page_size=500": found for n, found in pages.items()}
    with serving(answers) as api:
        assert [one.name for one in Management(api.url).exchanges("v")] == ["a", "b", "c"]
        assert len(api.asked) == 3
        # As RabbitMQ answers if the rows of the last page are deleted before it is read.
        gone = {"error": "page_out_of_range", "reason": "Page out of range, page: 2 page size: 500, len: 2"}
        answers["/api/exchanges/v?page=2&page_size=500"] = 400, gone
        assert [one.name for one in Management(api.url).exchanges("v")] == ["a", "b"]
        assert len(api.asked) == 3 + 4 * 2
        answers["/api/exchanges/v?page=1&page_size=500"] = 400, gone
        with pytest.raises(BrokerUnavailable, match="answered 400 to exchanges: Page out of range"):
            Management(api.url).exchanges("v")


@pytest.mark.parametrize(("before", "after"), [("_abcd", "abcd"), ("abcdef", "_abcdef")])
def test_a_list_that_changes_between_two_pages_is_read_again(before, after) -> None:
    """Without the first queue, ``d`` would be on no page; with one before it, on both."""
    states = chain([before], repeat(after))

    def page(path: str, _: str) -> dict[str, object]:
        names, begin = next(states), 4 * ("page=2" in path)
        items = [{"name": name} for name in names[begin : begin + 4]]
        return {"items": items, "page_count": 2, "total_count": len(names)}

    with serving({}) as api:
        api.answer = page
        assert "".join(Management(api.url)._pages(["queues", "v"], itemgetter("name"))) == after


COUNTED_COLUMNS = f"{QUEUE_COLUMNS}%2Cmessages%2Cconsumers"


@pytest.mark.parametrize(
    ("consumers", "asked"), [(False, "disable_stats=true"), (True, f"columns={COUNTED_COLUMNS}")]
)
def test_queues_come_with_their_messages_and_of_three_types_only(consumers: bool, asked: str) -> None:
    def row(name: str, kind: str, **more):
        return {"name": name, "type": kind, "exclusive": False, "arguments": {}, **FLAGS, **more}

    rows = [
        row("c", "classic", messages=3, durable=False, arguments={"x-queue-type": "classic"}),
        row("s", "stream", arguments={"x-queue-type": "stream"}) | {"exclusive": None},
        row("m", "rabbit_mqtt_qos0_queue", messages=1),
        row("x", "classic", exclusive=True, auto_delete=True, messages=0, consumers=0),
    ]
    path = f"/api/queues/%2F?page=1&page_size=500&{asked}&enable_queue_totals=true"
    with serving({path: {"items": rows, "page_count": 1}}) as api:
        assert Management(api.url).queues("/", consumers=consumers) == [
            (Queue("c", durable=False), 3, None),
            (Queue("s", "stream"), None, None),
            (Queue("x", auto_delete=True, exclusive=True), 0, 0),
        ]


def test_the_user_and_the_nodes() -> None:
    answers = {
        "/api/whoami": {"name": "me", "tags": ["management", "monitoring"]},
        f"/api/nodes?columns={NODES}": [
            {"name": "rabbit@a", "running": True, "uptime": 7},
            {"name": "b", "running": False, "partitions": ["c"], "mem_alarm": True},
        ],
    }
    with serving(answers) as api:
        management = Management(api.url)
        assert management.whoami() == User("me", frozenset({"management", "monitoring"}))
        assert management.nodes() == {
            "rabbit@a": NodeState(uptime=7),
            "b": NodeState(running=False, partitions=("c",), alarms=("memory",)),
        }
        assert management.requests == 2


def test_statistics_of_queues_distinguish_unknown_from_zero() -> None:
    single = {"x-single-active-consumer": True}
    stats = {"publish": 9, "ack": 4, "deliver_no_ack": 2, "get_no_ack": 1}
    found = [
        {"name": "new", "type": "classic", "arguments": [], "state": "running"},
        {"name": "idle", "messages_ready": 0, "messages_unacknowledged": 0, "consumers": 0},
        {"name": "busy", "messages_ready": 2, "message_stats": stats, "head_message_timestamp": 70},
        {"name": "active", "arguments": single, "single_active_consumer_tag": "tag", "consumers": 2},
        {"name": "inactive", "arguments": single, "single_active_consumer_tag": None, "consumers": 2},
        {"name": "unreported", "arguments": single, "consumers": 2},
        {"name": "log", "type": "stream", "messages_ready": 0, "single_active_consumer_tag": None},
    ]
    names = ("name", "type", "arguments", "state", "consumers", "messages_ready", "messages_unacknowledged")
    names += ("single_active_consumer_tag", "head_message_timestamp")
    counted = ("publish", "ack", "deliver_no_ack", "get_no_ack")
    columns = "%2C".join((*names, *(f"message_stats.{name}" for name in counted)))
    path = f"/api/queues/v?page=1&page_size=500&columns={columns}"
    with serving({path: {"items": found, "page_count": 1}}) as api:
        assert Management(api.url)._queue_states("v", now=100.0) == [
            QueueState("new", state="running"),
            QueueState("idle", 0, 0, 0, 0, 0),
            QueueState("busy", 2, None, 9, 7, oldest=30.0),
            QueueState("active", consumers=2, single_active=True, active_consumer="tag"),
            QueueState("inactive", consumers=2, single_active=True, active_consumer=""),
            QueueState("unreported", consumers=2, single_active=True),
            QueueState("log", 0, None, 0, 0, is_stream=True),
        ]


@pytest.mark.parametrize(
    ("release", "answer", "store"),
    [
        ("3.10.8", None, Store.MNESIA),
        ("4.3.6", None, Store.KHEPRI),
        ("9.0.0", None, None),
        ("4.0.5", [{"name": "khepri_db", "state": "enabled"}], Store.KHEPRI),
        ("4.2.0", [{"name": "khepri_db", "state": "disabled"}], Store.MNESIA),
        ("3.13.7", (401, {"error": "not_authorised", "reason": "Not administrator user"}), None),
    ],
)
def test_the_store_is_asked_for_only_where_a_release_can_have_two(release, answer, store) -> None:
    with serving({} if answer is None else {"/api/feature-flags": answer}) as api:
        assert Management(api.url).store(release) is store
    assert len(api.asked) == (answer is not None)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            (401, {"reason": "User not authorised to access object"}),
            "'guest' may not change policies .*needs the tag policymaker",
        ),
        (
            (400, {"reason": "Validation failed\n\n[] is not recognised"}),
            r"answered 400 to policies: Validation failed: \[\] is not recognised$",
        ),
    ],
)
def test_the_error_of_a_refused_policy_has_the_reason(answer, complaint) -> None:
    with (
        serving({"/api/policies/v/p": answer}) as api,
        pytest.raises(BrokerUnavailable, match=complaint) as refused,
    ):
        Management(api.url).put_policy("v", Policy("p", ""))
    assert refused.value.permanent  # so `apply` does not suggest to plan again


LAVIN = {"lavinmq_version": "2.0.0", "rabbitmq_version": "4.3.6", "product_name": "RabbitMQ"}
COMPLAINTS = [
    ((401, {"error": "not_authorized", "reason": "Login failed"}), "rejected the user 'me' or the password"),
    ((401, b"go away"), "rejected the user 'me' or the password"),
    ((401, {"error": "not_authorised", "reason": "Not management user"}), "needs the tag management"),
    ((404, b"nothing here"), "not a management API: .*rabbitmq-plugins enable"),
    ((500, {"reason": "boom"}), "answered 500 to overview: boom"),
    ((500, {"reason": "x://" * 200_000}), "answered 500 to overview: x://.{0,1000}$"),
    ((401, {"reason": "Not monitor user"}), "needs the tag monitoring"),
    ((200, LAVIN), "calls itself 'LavinMQ', not RabbitMQ: .*another algorithm"),
    ((200, {}), "calls itself ''"),
]


@pytest.mark.parametrize(("answer", "complaint"), COMPLAINTS)
def test_complaints_tell_what_is_wrong_and_no_password(answer, complaint) -> None:
    with serving({"/api/overview": answer}) as api:
        management = Management(api.url, credentials=lambda: ("me", SECRET))
        with pytest.raises(BrokerUnavailable, match=complaint) as raised:
            management.overview()
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(management)
    assert len(api.asked) == 1  # the password goes nowhere else


def test_what_is_not_there_is_named() -> None:
    with serving({}) as api:
        management = Management(api.url)
        with pytest.raises(BrokerUnavailable, match="no exchange 'x' in virtual host 'v'"):
            management.exchange("v", "x")
        with pytest.raises(BrokerUnavailable, match="no queue 'q' in virtual host 'v'"):
            management.queue("v", "q")
        with pytest.raises(BrokerUnavailable, match="no policy 'p' in virtual host 'v'"):
            management.delete_policy("v", "p")
        with pytest.raises(BrokerUnavailable, match="no virtual host 'v'"):
            management.bindings("v")
        with pytest.raises(BrokerUnavailable, match="rabbitmq-plugins enable rabbitmq_stream_management"):
            management._stream_consumers("v", "g")


@pytest.mark.parametrize(
    "url", [None, "host:15672", "amqp://host", "http://h:0", "http://u:p/w@h", "http://h/?x=1"]
)
def test_an_invalid_url_is_refused_without_being_shown(url) -> None:
    with pytest.raises(InvalidValue, match="management URL") as raised:
        Management(url)
    assert "p/w" not in str(raised.value)


def test_an_api_that_has_answered_before_needs_no_plugin() -> None:
    with serving({"/api/whoami": {"name": "me", "tags": []}}) as api:
        known, new = Management(api.url), Management(api.url)
        known.whoami()
    with pytest.raises(BrokerUnavailable, match="no management API answers") as stopped:
        known.whoami()
    assert "rabbitmq_management" not in str(stopped.value)
    with pytest.raises(
        BrokerUnavailable, match=r"is the broker running there, .* rabbitmq_management\?"
    ) as off:
        new.whoami()
    assert "rabbitmq-plugins enable" not in str(off.value), "a broker that is down needs no plugin"
