"""The README's block with a throw-away broker, run as it stands."""

from __future__ import annotations

import pytest

from rabbit_chx.testing import available
from rabbit_chx.testing.node import CannotSupply
from tests.unit.test_docs import BLOCKS, dedent

pytestmark = [pytest.mark.broker, pytest.mark.long]


def test_the_throw_away_broker_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [dedent(*found) for found in BLOCKS if "Broker(" in found[1]]
    try:
        available("4.3")
    except CannotSupply as reason:
        pytest.skip(str(reason))
    exec(block, {})
    assert capsys.readouterr().out.strip() == "[]"
