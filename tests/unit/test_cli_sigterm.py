"""SIGTERM ends every verb as Ctrl-C does, wherever it waits: for a broker that does not answer, or for its input."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rabbit_chx.cli import main
from tests.patience import wait_until
from tests.verbs import ORDERS, SLOTS, commands, started

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKER = {
    "plan": ["FILE"],
    "apply": ["FILE", "--yes"],
    "scale": ["FILE", "--yes"],
    "check": ["FILE"],
    "rebalance": ["SLOTS", "--dry-run"],
    "export": [],
    "list": [],
    "watch": ["-x", "orders"],
    "group": ["workers"],
    "replay": ["parked", "--yes"],
    "doctor": [],
    "parity": [],
    "demo": [],
    "publish": ["ROWS", "-x", "orders", "-k", "k"],
}
INPUT = {
    "route": ["--queue", "q0", "--queue", "q1", "--keys", "FIFO"],
    "simulate": ["--queue", "q0", "--queue", "q1", "--keys", "FIFO"],
    "ring": ["--queue", "q0", "--queue", "q1", "--infer", "FIFO"],
    "report": ["--file", "FILE", "-x", "orders", "--keys", "FIFO", "--out", "page.html"],
    "lint": ["FIFO"],
}
AT_ONCE = {"completion"}
"""Verbs that wait for nothing."""
ENDS_WELL = {"watch": 0}
"""Verbs that run until they are ended."""
PROVES = (
    "Input",
    "SIGTERM while a verb waits: the verb ends as with Ctrl-C",
    "each verb waited when the signal came, and would have gone on",
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """The files of the command lines above, by the word that stands for each."""
    (tmp_path / "orders.yaml").write_text(ORDERS)
    (tmp_path / "slots.yaml").write_text(SLOTS % 5)
    (tmp_path / "rows.csv").write_text("k\n1\n")
    os.mkfifo(tmp_path / "fifo.yaml")
    names = {"FILE": "orders.yaml", "SLOTS": "slots.yaml", "ROWS": "rows.csv", "FIFO": "fifo.yaml"}
    return {word: str(tmp_path / name) for word, name in names.items()}


def urls(silent: socket.socket) -> dict[str, str]:
    """A broker and a management API that do not answer."""
    url = f"127.0.0.1:{silent.getsockname()[1]}"
    amqp, http = f"amqp://{url}", f"http://{url}"
    return {"AMQP_URL": amqp, "RABBITMQ_MANAGEMENT_URL": http, "RABBIT_CHX_BROKER_URL": amqp}


@contextmanager
def opened_for_writing(fifo: str, reader: subprocess.Popen[bytes]) -> Iterator[None]:
    """Wait until the process reads from the FIFO, and keep it open."""

    descriptors: list[int] = []

    def opened() -> bool:
        assert reader.poll() is None, reader.communicate()
        with suppress(OSError):  # no process reads yet
            descriptors.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(descriptors)

    def reading() -> bool:
        """Whether the system call in which the process is blocked has the FIFO as its first argument."""
        _, *arguments = Path(f"/proc/{reader.pid}/syscall").read_text().split()
        with suppress(OSError, IndexError):  # no call, or its argument is no descriptor
            return Path(f"/proc/{reader.pid}/fd/{int(arguments[0], 16)}").readlink() == Path(fifo)
        return False

    wait_until(opened, "the verb opens its input", 60)
    try:
        # A signal between two system calls would not interrupt the second one, which waits for input.
        wait_until(reading, "the verb reads its input", 60)
        yield
    finally:
        os.close(*descriptors)


def check_ended(verb: str, running: subprocess.Popen[bytes]) -> None:
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == ENDS_WELL.get(verb, 143), errors
    if verb not in ENDS_WELL:
        assert errors.decode().splitlines()[-1] == "Interrupted."


def test_every_verb_is_tested_here() -> None:
    assert {*BROKER, *INPUT, *AT_ONCE} == set(commands())


@pytest.mark.proves(*PROVES)
@pytest.mark.parametrize("verb", BROKER)
def test_sigterm_while_a_verb_waits_for_the_broker(verb: str, files: dict[str, str], tmp_path: Path) -> None:
    arguments = [files.get(each, each) for each in BROKER[verb]]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        with started(verb, *arguments, cwd=tmp_path, env=urls(silent)) as running, silent.accept()[0]:
            check_ended(verb, running)


@pytest.mark.proves(*PROVES)
@pytest.mark.parametrize("verb", INPUT)
def test_sigterm_while_a_verb_waits_for_input(verb: str, files: dict[str, str], tmp_path: Path) -> None:
    arguments = [files.get(each, each) for each in INPUT[verb]]
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        started(verb, *arguments, cwd=tmp_path, env=urls(silent)) as running,
        opened_for_writing(files["FIFO"], running),
    ):
        check_ended(verb, running)


def test_an_object_whose_constructor_was_interrupted_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finalized: list[object] = []

    class Incomplete:
        def __init__(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

        def __del__(self) -> None:
            finalized.append(None)
            self.closed  # noqa: B018 - the constructor would have set it

    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    monkeypatch.setattr("rabbit_chx.cli.cli.main", Incomplete)
    with pytest.raises(SystemExit, match="130"):
        main(["lint"])
    assert capsys.readouterr().err.splitlines() == ["Interrupted."]
    assert finalized
    assert not reported
