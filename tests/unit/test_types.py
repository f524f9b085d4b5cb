"""What type checkers know of the package: everything that users can reach has a type that none has to guess.

`make lint` has mypy and pyright read tests/typing, which is written as users write.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import rabbit_chx
from tests.programs import ran

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
INTERNAL = (  # no user meets these
    "rabbit_chx.cli.",
    *(f"rabbit_chx.consuming.member.{name}." for name in ("interruptions", "key_lanes", "lanes", "member")),
    *(f"rabbit_chx.working.{name}." for name in ("attempts", "loop_workers", "runs", "workers")),
    *(
        f"rabbit_chx.streams.group.{name}."
        for name in ("assignments", "failures", "lanes", "member", "parking", "places", "workers")
    ),
    *(f"rabbit_chx.publishing.{name}." for name in ("calls", "connection", "pipeline", "rows")),
    "rabbit_chx.streams.publishing.",
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


def test_the_python_of_the_readme_passes_strict_mypy_with_the_stubs_of_pika(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    for number, block in enumerate(blocks):
        (tmp_path / f"block_{number}.py").write_text(block)
    (tmp_path / "stubs_are_seen.py").write_text(
        "import pika\npika.BlockingConnection().channel().queue_declare(7)\n"
    )
    mypy = [
        Path(sys.executable).parent / "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        tmp_path / "cache",
    ]
    done = ran(
        [*map(str, mypy), *sorted(path.name for path in tmp_path.glob("*.py"))],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(sys.prefix) / "stubs"), str(ROOT)])},
        timeout=300,
    )
    assert len(blocks) >= 3
    (error,) = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert error.startswith("stubs_are_seen.py")
    assert "queue_declare" in error
