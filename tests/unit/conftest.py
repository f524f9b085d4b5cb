"""Fixtures for the verbs of the command line that take topology files, and for what draws pictures of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from rabbit_chx.cli import _exit_code
from tests.verbs import Result


@pytest.fixture
def run(capsys, monkeypatch):
    for name in ("AMQP_URL", "RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "RABBIT_CHX_NODE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Result:
        code = _exit_code(list(map(str, arguments)))
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes, name: str = "topology.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def pictures(monkeypatch):
    """scripts/pictures.py."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    return import_module("pictures")
