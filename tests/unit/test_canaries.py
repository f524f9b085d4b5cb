"""Which canaries are reported, and how."""

from __future__ import annotations

import pytest

from rabbit_chx.canaries import CANARY, is_canary, report_of, reported
from rabbit_chx.replies import REPLY_TO

ADDRESS = f"{REPLY_TO}.g1h2AA5yZXBseUAzMzIxMjEzNgAAA+YAAAAAawUESQ==.o/4DKGB8PU1y8cr6BoGHWA=="


@pytest.mark.parametrize("headers", [{CANARY: "a 1"}, {CANARY: "a 1", "tenant": "canary-1"}])
def test_a_report_names_the_canary_and_its_queue(headers) -> None:
    report = report_of(headers, ADDRESS, "orders.ü")
    assert reported(report) == ("a 1", "orders.ü")


@pytest.mark.parametrize(
    "reply_to", [None, "", b"\xff", "orders.0", REPLY_TO, f"x{ADDRESS}", f"{REPLY_TO}.g1h2.x=="]
)
def test_no_report_goes_to_an_ordinary_queue(reply_to) -> None:
    assert report_of({CANARY: "a 1"}, reply_to, "orders.0") is None


@pytest.mark.parametrize("value", [None, 1, b"\xff", {}, "x" * 101])
def test_a_canary_that_no_watch_has_sent_is_not_reported(value) -> None:
    assert report_of({CANARY: value}, ADDRESS, "orders.0") is None


def test_a_dead_lettered_canary_is_not_reported() -> None:
    assert report_of({CANARY: "a 1", "x-death": []}, ADDRESS, "orders.0") is None


@pytest.mark.parametrize("headers", [None, {}, {CANARY: "a 1"}, {CANARY: 1, f"{CANARY}-queue": "q"}])
def test_other_messages_are_no_reports(headers) -> None:
    assert reported(headers) is None
    assert is_canary(headers) is (CANARY in (headers or {}))
