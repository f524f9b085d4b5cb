"""SIGTERM while the broker is gone: the handler that runs finishes, or is cut and logged."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from contextlib import ExitStack

import pytest

from tests.broker.worker_programs import started
from tests.faults.load import killed
from tests.patience import PATIENCE, wait_until
from tests.queues import ORDERED, STREAM, a_channel

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(400)]

ALSO = {"test_a_handler_finishes_after_sigterm_amid_an_outage": ["4.0"]}
CUT = "the handler did not return within 1 s of the stop; its messages from '{}' will be delivered again"


@pytest.fixture
def queues(broker, request):
    """Two queues or streams, with a message in each.

    They stay: after a kill, 4.0 may refuse for minutes to delete a stream (404, "home node is down or inaccessible").
    """
    names = [f"stop-{secrets.token_hex(3)}" for _ in range(2)]
    arguments = STREAM if request.getfixturevalue("kind") == "StreamGroup" else ORDERED
    with a_channel(broker) as channel:
        for name in names:
            channel.queue_declare(name, durable=True, arguments=arguments)
            channel.basic_publish("", name, b"x")
    return names


@pytest.mark.parametrize("kind", ["Group", "AsyncGroup", "StreamGroup"])
def test_a_handler_finishes_after_sigterm_amid_an_outage(broker, queues, kind, tmp_path):
    def worker(queue, close):
        source = {"stream": queue} if kind == "StreamGroup" else {"exchange": "amq.direct", "queues": [queue]}
        url = broker.stream_url if kind == "StreamGroup" else broker.url
        options = {"kind": kind, "url": url, "name": queue, "file": str(tmp_path / queue), "close": close}
        return started(["-m", "tests.faults.stopping_worker"], {"MEMBER": json.dumps(options | source)})

    patient, hasty = queues
    with ExitStack() as outage, worker(patient, 10 * PATIENCE) as waits, worker(hasty, 1) as cuts:
        programs = [waits, cuts]
        wait_until(lambda: all(each.found("begun") for each in programs), "both handlers")
        outage.enter_context(killed(broker))
        wait_until(lambda: all(each.found("trying again") for each in programs), "both notice the outage")
        for each in programs:
            each.process.send_signal(signal.SIGTERM)
        assert cuts.process.wait(PATIENCE) == 0
        with pytest.raises(subprocess.TimeoutExpired):
            waits.process.wait(0.5)
        (tmp_path / patient).touch()
        assert waits.process.wait(PATIENCE) == 0
    assert CUT.format(hasty) in cuts.text
    assert "ended" not in cuts.text
    assert waits.text.endswith("ended\nstopped\n")
    assert "did not return" not in waits.text
