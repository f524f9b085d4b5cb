"""A broker with a watched exchange, the command `rabbit-chx watch --serve`, a browser, and a Prometheus."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import Thread
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pika
from prometheus_client.parser import text_string_to_metric_families

from rabbit_chx.broker import Management, apply, read
from rabbit_chx.broker.reading.node import NodeCommand
from rabbit_chx.testing import Broker
from rabbit_chx.topology import loads, plan
from tests.broker.erlang import container_of, node_command
from tests.browser import browser
from tests.patience import PATIENCE, wait_until
from tests.prometheus import TOKEN, firing, prometheus
from tests.verbs import started

QUEUES = [f"orders.{number}" for number in reversed(range(10))]
"""So many, and in reverse, that a restart on Mnesia cannot bind them in the same order by chance."""
LAST = QUEUES[-1]
HTTP_LOG = "/tmp/http"
_TITLE = "orders · rabbit-chx watch"

Problems = frozenset[tuple[str, str | None]]
Alerts = frozenset[tuple[str, str]]


@contextmanager
def watching(broker: Broker, *options: str, output: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run the command until the block ends; it must then end at once, without errors."""
    env = {"AMQP_URL": broker.url, "RABBITMQ_MANAGEMENT_URL": str(broker.management_url)}
    env |= {"RABBIT_CHX_WATCH_TOKEN": TOKEN}
    command = ("watch", "--exchange", "orders", "--output", "json", *options)
    process = started(*command, env=env, stdout=output, text=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class Poll:
    """An interval of the watch, and when its event arrived."""

    interval: dict[str, Any]
    arrived: float

    @property
    def began(self) -> float:
        """When the poll at the end of the interval began."""
        return self.interval["time"]

    @property
    def problems(self) -> Problems:
        return frozenset((each["name"], each["queue"]) for each in self.interval["problems"])


@dataclass(frozen=True)
class Seen:
    """How long a change took until it was shown: from the end of the action that caused it."""

    polls: int
    """Polls that began after the change, up to the first that shows it."""
    event: float
    """Seconds until the page's event."""
    alert: float
    """Seconds until metrics and alerts agreed, too."""

    def __str__(self) -> str:
        return f"{self.event:.1f} s on the page, {self.alert:.1f} s in the alerts, {self.polls} polls"


class Scene:
    """What the tests of one release share."""

    def __init__(self, release: str, folder: Any, *options: str) -> None:
        self.release = release
        self.polls: list[Poll] = []
        self.keys: Iterator[str] = iter(())
        """The routing keys of the messages that are published while a test waits."""
        self.published = 0
        self._folder = folder
        self._options = options
        self._connection: pika.BlockingConnection | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            config = {"management.http_log_dir": HTTP_LOG}
            self.broker = stack.enter_context(Broker(self.release, config=config))
            self.node = node_command(self.broker)
            login = self.broker.username, self.broker.password
            self.management = Management(self.broker.management_url, credentials=lambda: login)
            document = {
                "schema": 1,
                "exchanges": {"orders": {"type": "x-consistent-hash", "queues": dict.fromkeys(QUEUES, 1)}},
                "queues": {name: {"type": "classic"} for name in QUEUES},
            }
            self.wanted = loads(json.dumps(document), format="json")
            file = self._folder / "topology.json"
            file.write_text(json.dumps(document))
            self.apply()
            self.connect()
            stack.callback(self.disconnect)
            options = [*self._options, "--file", str(file)]
            options = [each.format(node=self.node) for each in options]
            self.page = stack.enter_context(self._serving(*options))
            stack.enter_context(self._following())
            self._window = stack.enter_context(browser(self._folder))
            self._window.open(self.page.replace("//", f"//anyone:{TOKEN}@"))
            self._prometheus = stack.enter_context(prometheus(self._folder, urlsplit(self.page).netloc))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- the broker

    def connect(self) -> None:
        self._connection = self.broker.connection()
        self.channel, consumers = self._connection.channel(), self._connection.channel()
        self.consumers = consumers
        self.tags = {name: self.consume(name) for name in QUEUES}

    def consume(self, queue: str) -> str:
        return self.consumers.basic_consume(queue, lambda *_: None, auto_ack=True)

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def apply(self) -> None:
        """Make the broker agree with the file, the order of the ring included."""
        observed = read(self.management, "/", node=NodeCommand(self.node))
        steps = plan(self.wanted, observed, strategy="in place", max_moved=1.0)
        apply(self.broker.url, steps, management=self.management)

    def run(self, *command: str) -> str:
        """Run a program in the broker's container."""
        program = ["docker", "exec", "-u", "rabbitmq", container_of(self.broker), *command]
        return subprocess.run(program, check=True, capture_output=True, text=True).stdout

    def requests(self) -> list[tuple[str, str, str]]:
        """The method, the path and the status of each request that the management API has logged."""
        log = self.run("sh", "-c", f"cat {HTTP_LOG}/*")
        return re.findall(r'"(\w+) (\S+) HTTP/1.1" (\d+) ', log)

    # ---- the watch

    @property
    def reading(self) -> float:
        """Seconds that reading the virtual host has taken at most; polls with more than five requests have read it."""
        return sum(poll.arrived - poll.began for poll in self.polls if poll.interval["requests"] > 5)

    @contextmanager
    def _serving(self, *options: str) -> Iterator[str]:
        own = "--interval", "5", "--serve", "127.0.0.1:0"
        with watching(self.broker, *own, *options, output=subprocess.DEVNULL) as process:
            (page,) = re.findall(r"^Serving (http://127\.0\.0\.1:\d+/)$", process.stderr.readline())
            yield page

    @contextmanager
    def _following(self) -> Iterator[None]:
        request = Request(f"{self.page}events", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=PATIENCE) as events:
            thread = Thread(target=partial(self._follow, events))
            thread.start()
            yield
            with suppress(OSError):
                events.fp.raw._sock.shutdown(2)
            thread.join(PATIENCE)

    def _follow(self, events: Any) -> None:
        name = ""
        with suppress(OSError, ValueError):
            for line in events:
                word, _, value = line.decode().rstrip("\n").partition(": ")
                name = value if word == "event" else name
                if word == "data" and name == "interval":
                    self.polls.append(Poll(json.loads(value), time.time()))

    def metrics(self) -> tuple[Problems, bool, bool]:
        """The names and queues of the problems, whether the ring has drifted, and whether the broker can be reached."""
        request = Request(f"{self.page}metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=PATIENCE) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        found: set[tuple[str, str | None]] = {
            (sample.labels["problem"], sample.labels["queue"])
            for sample in samples
            if sample.name == "rabbit_chx_watch_queue_problem"
        }
        of_queues = Counter(name for name, _ in found)
        found |= {
            (sample.labels["problem"], None)
            for sample in samples
            if sample.name == "rabbit_chx_watch_problems"
            and sample.value > of_queues[sample.labels["problem"]]
        }
        plain = {sample.name: bool(sample.value) for sample in samples}
        return (
            frozenset(found),
            plain["rabbit_chx_watch_ring_drifted"],
            plain["rabbit_chx_watch_broker_reachable"],
        )

    def settles(self, problems: Problems, alerts: Alerts) -> Seen:
        """Wait until the page, its events, the metrics and the alerts show exactly this; the change has just happened."""
        changed, known = time.time(), len(self.polls)
        self.until(lambda: self._shows(problems, alerts))
        alert = time.time() - changed
        new = self.polls[known:] or self.polls[-1:]
        first = next((poll for poll in new if poll.problems == problems), new[-1])
        polls = [poll for poll in new if changed < poll.began <= first.began]
        return Seen(len(polls), max(0.0, first.arrived - changed), alert)

    def until(self, met: Callable[[], bool]) -> None:
        def state() -> str:
            shown = self.polls[-1].problems if self.polls else None
            return f"{shown}, {self.metrics()}, {firing(self._prometheus)}"

        wait_until(lambda: met() or self._publish(), state, pause=0)

    def _shows(self, problems: Problems, alerts: Alerts) -> bool:
        if not self.polls or self.polls[-1].problems != problems:
            return False
        names = {name for name, _ in problems}
        drifted = self.polls[-1].interval["ring"]["status"] == "drifted"
        expected = problems, drifted, "broker-unreachable" not in names
        title = f"({len(problems)}) {_TITLE}" if problems else _TITLE
        return (
            self.metrics() == expected
            and self._window.value("document.title") == title
            and firing(self._prometheus) == alerts
        )

    def _publish(self) -> None:
        if self._connection is None:
            time.sleep(0.2)
            return
        for key in islice(self.keys, 50):
            self.channel.basic_publish("orders", key, b"")
            self.published += 1
        self._connection.process_data_events(0.2)
