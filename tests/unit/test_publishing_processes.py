"""A publisher after a fork, and at the end of a program that does not close it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from pika import spec

from tests.amqp_server import ACK_ALL, AmqpServer, confirm_all, received
from tests.patience import wait_until
from tests.programs import ran

if TYPE_CHECKING:
    import socket

CHANNEL_CLOSE = spec.Channel.Close.INDEX.to_bytes(4, "big")

FORKED = """
import logging, os, sys, threading
from rabbit_chx.publishing import Publisher
publisher = Publisher(sys.argv[1], "x")
publisher.open()
bulk = publisher.bulk()
publisher.publish(b"parent")
keeps_a_lock = threading.Thread(target=bulk._rows._changed.acquire)
keeps_a_lock.start()
keeps_a_lock.join()
ending = threading.Event()

def publish():
    while not ending.is_set():
        publisher.publish(b"parent")

threads = [threading.Thread(target=publish) for _ in range(8)]
for thread in threads:
    thread.start()
while publisher.totals.confirmed < 200:
    ending.wait(0.001)
child = os.fork()
if not child:
    for call in (
        lambda: publisher.publish(b"x"), lambda: publisher.publish_many([b"x"]), lambda: publisher.submit(b"x"),
        lambda: publisher.bulk(), lambda: publisher.totals, lambda: bulk.add(b"x"), lambda: bulk.flush(),
        publisher._stop_accepting, lambda: bulk.totals, lambda: bulk.failures, lambda: bulk.confirmed_before,
    ):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, "Call open() after the fork" in str(error), flush=True)
    publisher.__exit__(None, None, None)
    with publisher:
        for _ in range(200):
            publisher.publish(b"child")
    print("published", flush=True)
    sys.exit()
print("child", os.waitpid(child, 0)[1], flush=True)
ending.set()
for thread in threads:
    thread.join()
publisher.publish(b"again")
publisher.close()
print("closed", flush=True)
"""

ENDING = """
import sys
from rabbit_chx.publishing import Publisher, Timeouts
publisher = Publisher(sys.argv[1], "x", timeouts=Timeouts(close=float(sys.argv[2])))
publisher.open()
if sys.argv[2] == "30":
    publisher.publish(b"opening")
kept = [publisher.submit(b"message") for _ in range(500)]
publisher.bulk().add_many([b"message"] * 500)
"""


CALLBACK = """
import atexit, sys
from rabbit_chx.publishing import Publisher
publisher = Publisher(sys.argv[1], "x")
publisher.open()
atexit.register(print, "ending", flush=True)
publisher.submit(b"one").add_done_callback(lambda _: publisher.submit(b"two"))
"""

FORKED_LOOP = """
import asyncio, os, sys
from rabbit_chx.publishing import AsyncPublisher
publisher = AsyncPublisher(sys.argv[1], "x")
async def publish():
    await publisher.open()
    await publisher.publish(b"message")
asyncio.run(publish())
child = os.fork()
asyncio.run(publish() if not child else publisher.close())
if child:
    print(os.waitpid(child, 0)[1])
"""


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-c", program, *arguments]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(command(program, *arguments), check=True)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_a_forked_process_opens_the_publisher_afresh_and_leaves_the_parents_connection_alone() -> None:
    """While eight threads of the parent publish."""
    sent: list[bytearray] = []

    def confirm(client: socket.socket) -> None:
        of_client = bytearray()
        sent.append(of_client)
        client.sendall(ACK_ALL)
        is_closed = False
        while (data := client.recv(1 << 16)) and not is_closed:
            of_client.extend(data)
            is_closed = CHANNEL_CLOSE in of_client[-len(data) - len(CHANNEL_CLOSE) :]
            client.sendall(ACK_ALL)

    with AmqpServer(confirm) as server:
        lines = run(FORKED, server.url).stdout.splitlines()
        # The server may have read the first message of each connection before.
        wait_until(lambda: sent[1].count(b"child") >= 199 and b"again" in sent[0], "the last messages")
    assert lines == ["InvalidValue True"] * 11 + ["published", "child 0", "closed"]
    assert (sent[1].count(b"parent"), sent[0].count(b"child")) == (0, 0)
    assert server.connections == 2


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_a_forked_process_opens_a_publisher_for_asyncio_afresh() -> None:
    with AmqpServer(confirm_all) as server:
        assert run(FORKED_LOOP, server.url).stdout == "0\n"
    assert server.connections == 2


def test_a_callback_that_runs_while_the_program_ends_is_told_why_it_may_not_publish() -> None:
    ending = threading.Event()

    def confirm_late(client: socket.socket) -> None:
        ending.wait(60)
        confirm_all(client)

    with (
        AmqpServer(confirm_late) as server,
        subprocess.Popen(
            command(CALLBACK, server.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running,
    ):
        assert running.stdout is not None
        assert running.stdout.readline() == "ending\n"
        ending.set()
        _, said = running.communicate(timeout=60)
    assert "and neither must a callback while the program ends" in said


def test_a_program_that_ends_gives_accepted_messages_their_time() -> None:
    sent: list[bytes] = []
    ended = threading.Event()

    def confirm(client: socket.socket) -> None:
        client.sendall(ACK_ALL)
        while (data := client.recv(1 << 16)) and CHANNEL_CLOSE not in data:
            sent.append(data)
            client.sendall(ACK_ALL)
        sent.append(data)
        ended.set()

    with AmqpServer(confirm) as server:
        assert run(ENDING, server.url, "30").stderr == ""
        assert ended.wait(20)  # the connection was closed properly
    assert b"".join(sent).count(b"message") == 1000


def test_a_program_that_ends_says_how_many_messages_have_no_outcome() -> None:
    with AmqpServer(lambda client: list(received(client))) as server:
        said = run(ENDING, server.url, "0.1").stderr
    assert "the program ends while 1000 messages of an open publisher have no outcome" in said
