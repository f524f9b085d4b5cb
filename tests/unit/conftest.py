"""Fixtures for the verbs of the command line that take topology files."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import pytest

from rabbit_chx.cli import _exit_code
from rabbit_chx.cli.ask.broker_access import BrokerAccess
from rabbit_chx.topology.file.load import loads
from rabbit_chx.topology.model import Binding, NodeState, Observed, Topology
from rabbit_chx.topology.planning.what_if import assume_applied
from tests.verbs import Result

USUAL = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""The handlers that Python sets."""


class NoQueues:
    """A management API that lists no queue, so that nothing is held; `live` sets the bindings that there are."""

    bound: Sequence[Binding] = ()

    def vhosts(self) -> list[str]:
        return ["/"]

    def queues(self, _vhost: str) -> list[object]:
        return []

    def bindings(self, _vhost: str) -> Sequence[Binding]:
        return self.bound

    def _tracing(self, _vhost: str) -> bool:
        return False

    def nodes(self) -> dict[str, NodeState]:
        return {"a": NodeState()}


class Runner:
    """Runs verbs in this process."""

    def __init__(self, capsys, monkeypatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Result:
        if "-" in arguments:
            self._monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        code = _exit_code(list(map(str, arguments)))
        return Result(code, *self._capsys.readouterr())

    def refused(self, *arguments: object, stdin: bytes = b"", code: int = 64) -> str:
        """The error of a command that is refused, as wrong usage if nothing else is said."""
        found = self(*arguments, stdin=stdin)
        assert (found.code, found.out) == (code, "")
        assert "Error: " in found.err
        assert "Traceback" not in found.err
        return found.err


@pytest.fixture
def run(capsys, monkeypatch) -> Runner:
    for name in ("AMQP_URL", "RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "RABBIT_CHX_NODE"):
        monkeypatch.delenv(name, raising=False)
    return Runner(capsys, monkeypatch)


@pytest.fixture
def answer(monkeypatch):
    """Somebody at a terminal who says this."""

    def answer(text: str) -> None:
        stdin = StringIO(text)
        stdin.isatty = lambda: True
        monkeypatch.setattr(sys, "stdin", stdin)

    return answer


@pytest.fixture
def keys(tmp_path):
    """A sample in which one slot has much more load than the others."""
    path = tmp_path / "keys"
    path.write_text("\n".join(["hot"] * 100 + [f"key-{number}" for number in range(200)]))
    return path


@pytest.fixture
def live(monkeypatch):
    """Set what verbs read from the broker: what is observed, or a topology that was applied, perhaps as text."""

    def live(there: Observed | Topology | str, management: object | None = None) -> None:
        if isinstance(there, str):
            there = loads(there, format="yaml")
        observed = there if isinstance(there, Observed) else assume_applied(there)
        management = management or NoQueues()
        management.bound = observed.topology.bindings
        monkeypatch.setattr(BrokerAccess, "read", lambda *_, **__: observed)
        monkeypatch.setattr(BrokerAccess, "recounted", lambda _self, found, _queues: found)
        monkeypatch.setattr(BrokerAccess, "management", management)
        monkeypatch.setattr(BrokerAccess, "amqp", lambda *_: nullcontext())

    return live


@pytest.fixture
def empty_broker(monkeypatch) -> None:
    """Reads find nothing, and whatever is applied succeeds."""

    def applied(_connection, plan, *, on_step, **_):
        for step in plan.steps:
            on_step(step)
        return SimpleNamespace(unverified=(), recorded=())

    monkeypatch.setattr(BrokerAccess, "read", lambda _self, wanted: Observed(Topology(vhost=wanted.vhost)))
    monkeypatch.setattr(BrokerAccess, "amqp", lambda _self, _vhost: nullcontext())
    monkeypatch.setattr(BrokerAccess, "management", SimpleNamespace(queues=lambda _: []))
    monkeypatch.setattr("rabbit_chx.cli.apply.apply_steps", applied)


@pytest.fixture
def usual_handlers():
    """A broker that other tests of this process have started handles SIGTERM, too."""
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "topology.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
