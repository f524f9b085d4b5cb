"""`rabbit-chx watch --serve` on a real broker: faults are shown on the page, in the metrics and by the alerts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.broker.test_watch import QUEUES, applied
from tests.browser import browser
from tests.prometheus import TOKEN, eventually, firing, prometheus, queues

pytestmark = [pytest.mark.broker, pytest.mark.one_release, pytest.mark.long]

TITLE = "document.title"


@contextmanager
def serving(site):
    """Run the command; yields the URL of its page."""
    command = [sys.executable, "-m", "rabbit_chx", "watch", "--exchange", "orders", "--interval", "5"]
    environment = {
        **os.environ,
        "AMQP_URL": site.url(),
        "RABBITMQ_MANAGEMENT_URL": site.broker.management_url,
        "RABBIT_CHX_WATCH_TOKEN": TOKEN,
    }
    process = subprocess.Popen(
        [*command, "--serve", "127.0.0.1:0"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        (url,) = re.findall(r"^Serving (http://127\.0\.0\.1:\d+/)$", process.stderr.readline())
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_faults_of_a_broker_are_on_the_page_and_fire_alerts_until_they_are_fixed(site, tmp_path) -> None:
    applied(site.url(), site.management, site.vhost)
    with (
        site.connection() as connection,
        serving(site) as url,
        prometheus(tmp_path, urlsplit(url).netloc) as scraping,
        browser(tmp_path) as window,
    ):
        channel = connection.channel()
        tags = [channel.basic_consume(name, lambda *_: None, auto_ack=True) for name in QUEUES]

        def settles(title: str, alerts: set[tuple[str, str]]) -> None:
            def title_and_alerts() -> tuple[str, set[tuple[str, str]]]:
                connection.process_data_events(0)  # heartbeats
                return window.value(TITLE), firing(scraping)

            eventually(title_and_alerts, (title, alerts))

        window.open(url.replace("//", f"//anyone:{TOKEN}@"))
        settles("orders · rabbit-chx watch", set())
        eventually(lambda: set(queues(scraping, "expected_share")), set(QUEUES))

        channel.basic_cancel(tags[0])
        settles("(1) orders · rabbit-chx watch", {("RabbitChxQueueWithoutConsumer", QUEUES[0])})
        channel.basic_consume(QUEUES[0], lambda *_: None, auto_ack=True)
        settles("orders · rabbit-chx watch", set())

        channel.queue_unbind(QUEUES[-1], "orders", "1")
        stranded = {("RabbitChxRingDrifted", ""), ("RabbitChxQueueStranded", QUEUES[-1])}
        settles("(2) orders · rabbit-chx watch", stranded)
        channel.queue_bind(QUEUES[-1], "orders", "1")  # as before: at the end
        settles("orders · rabbit-chx watch", set())
