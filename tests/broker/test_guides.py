"""The blocks of docs/ that need a broker, run as they stand."""

from __future__ import annotations

import pytest

from tests.unit.test_docs import marked

pytestmark = pytest.mark.broker


def test_the_test_of_the_testing_guide_passes(broker) -> None:
    names: dict[str, object] = {}
    exec(marked("testing.md", "test_the_test_of_the_testing_guide_passes"), names)
    names["test_each_message_is_where_it_was_predicted"](broker)
