"""What type checkers know of the package: everything that users can reach has a type that none has to guess.

`make lint` has mypy and pyright read tests/typing, which is written as users write.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import rabbit_chx
from tests.programs import ran

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
INTERNAL = (  # no user meets these
    "rabbit_chx.cli.",
    *(f"rabbit_chx.consuming.member.{name}." for name in ("interruptions", "lanes", "member", "membership")),
    *(f"rabbit_chx.consuming.member.{name}." for name in ("loop_workers", "workers")),
    "rabbit_chx.publishing.connection.",
    "rabbit_chx.testing.external_node.",
    "rabbit_chx.topology.file.bindings.",
    "rabbit_chx.topology.file.schema.",
    "rabbit_chx.topology.file.objects.",
    "rabbit_chx.topology.file.schema_errors.",
)


@pytest.fixture(scope="module")
def symbols(tmp_path_factory) -> list[dict]:
    """What pyright says of every name that the package lets out."""
    done = ran(
        [
            Path(sys.executable).parent / "basedpyright",
            *("--pythonpath", sys.executable, "--verifytypes", "rabbit_chx", "--ignoreexternal"),
            "--outputjson",
        ],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    return json.loads(done.stdout)["typeCompleteness"]["symbols"]


def test_every_public_name_is_seen(symbols) -> None:
    seen = {symbol["name"] for symbol in symbols}
    assert {f"rabbit_chx.{name}" for name in rabbit_chx.__all__} - seen == set()


def test_no_type_that_users_meet_is_unknown_or_guessed(symbols) -> None:
    unclear = {
        symbol["name"]
        for symbol in symbols
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"] or symbol["diagnostics"]
    }
    met = {name for name in unclear if not name.startswith(INTERNAL)}
    assert sorted(name for name in met if name.rpartition(".")[2] not in {"log", "missing"}) == []
