"""The page of `watch --serve`: its text, and its behaviour in a real browser."""

from __future__ import annotations

import re
from asyncio import Semaphore
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest

from rabbit_chx.mirror.ring import Ring
from rabbit_chx.watch import Interval
from rabbit_chx.watch.observer import Problem
from rabbit_chx.watch.page import page, pictures
from rabbit_chx.watch.server import Server
from rabbit_chx.watch.tokens import Access, Address
from tests.browser import browser
from tests.watching import HOSTILE, QUEUES, SCRIPTS, interval

ROWS = "document.querySelectorAll('#rows > tr')"
NAMES = f"[...{ROWS}].map((row) => row.querySelector('bdi').textContent)"


def between(html: str, tag: str) -> str:
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return found


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_no_other() -> None:
    html, policy = page()
    for tag in ("style", "script"):
        digest = b64encode(sha256(between(html.decode(), tag).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.split("; ")


def test_the_page_loads_no_external_resource() -> None:
    html = page()[0].decode()
    assert set(re.findall(r"\w+://[\w./]+", html)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r'(?:href|src)="([^"]*)"', html)) == {"data:,", "#queues", "/metrics"}
    assert not re.findall(r"\{(?:style|script|version)\}", html)


def test_the_script_uses_existing_elements_and_parses_no_markup() -> None:
    html = page()[0].decode()
    script = between(html, "script")
    assert set(re.findall(r'\$\("(\w+)"\)', script)) <= set(re.findall(r'\bid="([\w-]+)"', html))
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|\beval\b", script)


def test_a_ring_without_drift_is_drawn_once() -> None:
    ring = Ring.of({"a": 1, "b": 2}, release="4.3")
    drawn = pictures(ring, ring)
    assert [each["caption"] for each in drawn["pictures"]] == ["The ring now"]
    assert drawn["colours"] == {"a": 0, "b": 1}
    tag, attributes, title, *_ = drawn["pictures"][0]["svg"]
    assert (tag, attributes["role"], title) == ("svg", "img", ["title", {}, "The ring now"])


@pytest.mark.parametrize(("live", "wanted"), [({}, {"a": 1}), ({"a": 1}, {}), ({"a": 1}, {"b": 2})])
def test_both_rings_are_drawn_if_they_have_nothing_in_common(live: dict, wanted: dict) -> None:
    drawn = pictures(Ring.of(live, release="4.3"), Ring.of(wanted, release="4.3"))
    assert len(drawn["pictures"]) == 3
    assert set(drawn["colours"]) == {*live, *wanted}


def test_an_unknown_ring_is_not_drawn() -> None:
    assert pictures(None, Ring.of({"a": 1}, release="4.3")) == {"pictures": [], "colours": {}}


# --- in a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture
def server():
    with Server(Access(Address.parse("127.0.0.1:0"), None)) as server:
        yield server


@pytest.fixture
def open_page(window, server):
    """Show an interval, open the page and wait until it has a row for each queue, or this many."""

    def open_page(shown: Interval, count: int | None = None, **size) -> None:
        server.show(shown)
        window.complaints.clear()
        window.open(server.url, **size)
        window.wait(f"{ROWS}.length === {len(shown.rows) if count is None else count}")

    yield open_page
    window.open("about:blank")
    assert window.complaints == []


@pytest.mark.long
def test_each_interval_updates_the_page(window, server, open_page) -> None:
    open_page(interval(received={"q0": 100, "q1": 200, "q2": 300, "q3": 400}))
    assert window.value("document.title") == "orders · rabbit-chx watch"
    assert window.value("document.getElementById('verdict').textContent") == "No problems."
    text = window.value("document.getElementById('rows').innerText").split()
    assert {"10.0%", "20.0%", "30.0%", "40.0%"} <= set(text)
    window.wait("document.querySelector('#pictures svg').textContent.includes('4')")
    server.show(interval(now=("q1", "q0", "q2", "q3"), states={"q2": {"consumers": 0}}))
    window.wait("document.title === '(2) orders · rabbit-chx watch'")
    window.wait("document.querySelectorAll('#pictures svg').length === 3")
    assert "50.04% of the keys" in window.value("document.getElementById('ring').textContent")
    problems = window.value("[...document.querySelectorAll('#problems code')].map((one) => one.textContent)")
    assert problems == ["ring-drifted", "no-consumer"]
    server.show(interval(QUEUES[:3]))
    window.wait(f"{ROWS}.length === 3")


@pytest.mark.long
@pytest.mark.parametrize("policy", [True, False], ids=["with the policy", "without the policy"])
def test_no_name_runs_a_script(window, open_page, policy) -> None:
    """The names of an exchange, a virtual host, queues and users are those that others chose."""
    problems = tuple(Problem("hot-queue", name, f"its share {name}", name) for name in SCRIPTS)
    shown = interval(SCRIPTS, now=SCRIPTS[::-1], states={name: {"consumers": 0} for name in SCRIPTS})
    attack = "".join(SCRIPTS)
    open_page(replace(shown, exchange=attack, vhost=attack, release=attack, problems=problems), policy=policy)
    window.wait("document.querySelectorAll('#pictures svg').length === 3")
    window.value("document.querySelectorAll('body *').forEach((one) => one.focus())")
    assert window.value("document.getElementById('exchange').textContent") == attack
    assert window.value(NAMES) == list(SCRIPTS[::-1])
    made = "script:not(:first-of-type), img, iframe, [onload], [onerror], [onfocus], [onmouseover], [href^=javascript]"
    assert window.value(f"document.querySelectorAll('{made}').length") == 0
    # A script that runs calls a function that does not exist: open_page looks for the browser's complaint.
    window.wait("document.readyState === 'complete'")


@pytest.mark.long
def test_a_browser_that_runs_a_script_in_a_name_complains(window, tmp_path) -> None:
    """A control: pages that do not escape names are found out."""
    (tmp_path / "page.html").write_text("<!doctype html><title>x</title>" + SCRIPTS[0])
    window.complaints.clear()
    window.open((tmp_path / "page.html").as_uri())
    window.wait_for_complaint("ran is not defined")
    window.open("about:blank")
    window.complaints.clear()


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 390])
def test_hostile_names_stay_text_that_fits_the_window_and_has_contrast(
    window, open_page, width, dark
) -> None:
    open_page(
        interval(HOSTILE, now=HOSTILE[::-1], states={HOSTILE[0]: {"consumers": 0}}), width=width, dark=dark
    )
    window.wait("document.querySelectorAll('#pictures svg').length === 3")
    assert window.value("document.documentElement.scrollWidth <= innerWidth")
    assert window.value(NAMES) == list(HOSTILE[::-1])
    # Right-to-left text stays within its name: the numbers still follow on the right.
    for part in ("exact", "now"):
        cell = f"document.querySelector('[data-label={part}]')"
        assert window.value(f"getComputedStyle({cell}).direction") == "ltr"
    colours = window.value(
        """["#verdict", "#facts", ".marks:not(:empty)", "#pause", "#rows bdi", "th button", "a[href='/metrics']"].map((one) => {
            const element = document.querySelector(one);
            let behind = element;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
        })"""
    )
    for text, paper in colours:
        assert contrast(text, paper) >= 4.5, (text, paper)


def contrast(*colours: str) -> float:
    """The ratio of two colours, as WCAG computes it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.long
def test_the_keyboard_reaches_and_operates_every_control(window, open_page) -> None:
    open_page(interval(received={"q0": 400, "q1": 100, "q2": 300, "q3": 200}))
    reached = []
    for _ in range(30):
        window.press("Tab")
        focused = window.value("document.activeElement.id || document.activeElement.textContent.trim()")
        if focused == "now" and focused not in reached:
            window.press("Enter")
            assert window.value(NAMES) == ["q0", "q2", "q3", "q1"]
            assert window.value("document.activeElement.closest('th').ariaSort") == "descending"
            window.press("Enter")
            assert window.value(NAMES) == ["q1", "q3", "q2", "q0"]
        reached.append(focused)
        assert window.value(
            "document.activeElement === document.body || document.activeElement.matches(':focus-visible')"
        )
    for name in ("Skip to the queues", "pause", "find", "marked", "queue", "depth", "Metrics"):
        assert name in reached


@pytest.mark.long
@pytest.mark.parametrize("width", [1200, 390])
def test_a_screen_reader_gets_a_table_with_headers_and_the_state(window, open_page, width) -> None:
    open_page(interval(states={"q2": {"consumers": 0}}), width=width)
    spoken = window.accessibility_tree()
    names = {(role, name) for role, name in spoken}
    assert ("table", "Queues") in names
    assert {name for role, name in spoken if role == "columnheader"} >= {"queue", "exact", "now", "depth"}
    assert sum(role == "row" for role, _ in spoken) == 1 + len(QUEUES)
    assert {("searchbox", "Find"), ("checkbox", "Only with problems"), ("heading", "State")} <= names
    assert ("image", "The ring now") in names
    assert {"1 problem:", "no-consumer"} <= {name for role, name in spoken if role == "StaticText"}


@pytest.mark.long
def test_a_paused_page_does_not_change_until_it_resumes(window, server, open_page) -> None:
    open_page(interval())
    window.value(
        "void (window.parse = JSON.parse, JSON.parse = (text) => (window.hasEvent = true, window.parse(text)))"
    )
    window.value("document.getElementById('pause').click()")
    server.show(interval(QUEUES[:3]))
    window.wait("window.hasEvent")
    server.show(interval(QUEUES[:2]))
    assert window.value("document.getElementById('link').textContent") == "Paused"
    assert window.value(f"{ROWS}.length") == 4
    window.value("document.getElementById('pause').click()")
    window.wait(f"{ROWS}.length === 2")


@pytest.mark.long
def test_queues_are_found_by_name_and_by_problem(window, open_page) -> None:
    open_page(interval(states={"q2": {"consumers": 0}}))
    window.value("document.getElementById('marked').click()")
    assert window.value(NAMES) == ["q2"]
    window.value("document.getElementById('marked').click()")
    for key in (None, "Q", "3"):
        window.press(key) if key else window.value("document.getElementById('find').focus()")
    assert window.value(NAMES) == ["q3"]
    assert window.value("document.getElementById('count').textContent") == "1 of 4 queues"


@pytest.mark.long
def test_a_browser_with_the_token_also_gets_the_events(window) -> None:
    token = "correct-horse-battery"
    window.complaints.clear()
    with Server(Access(Address.parse("127.0.0.1:0"), token)) as server:
        server.show(interval())
        window.open(server.url)
        window.wait_for_complaint("401")
        assert window.value(f"{ROWS}.length") == 0
        window.complaints.clear()
        window.open(server.url.replace("//", f"//anyone:{token}@"))
        window.wait(f"{ROWS}.length === 4")
        assert token not in window.value("document.documentElement.outerHTML")
        window.open("about:blank")
    assert window.complaints == []


@pytest.mark.long
def test_200_of_2000_queues_are_shown_until_all_are_requested(window, server, open_page) -> None:
    many = [f"queue-{number:04}" for number in range(2000)]
    open_page(interval(many, states={name: {"consumers": 0} for name in many}), 200)
    assert window.value("document.querySelectorAll('#problems li').length") == 21
    window.value("document.getElementById('more').click()")
    window.wait(f"{ROWS}.length === 2000")
    server.show(interval(many[:1999]))
    window.wait(f"{ROWS}.length === 1999")
    assert window.value(NAMES) == many[:1999]


@pytest.mark.long
def test_a_page_that_loses_its_connection_reports_it_and_reconnects(window, server, open_page) -> None:
    open_page(interval())
    window.value(
        """(() => {
            const link = document.getElementById("link");
            window.linkTexts = [];
            new MutationObserver(() => linkTexts.push(link.textContent)).observe(link, { childList: true });
        })()"""
    )
    places, server._events.places = server._events.places, Semaphore(0)  # as if all pages were open
    for connection in tuple(server._http.server_state.connections):
        server._loop.call_soon_threadsafe(connection.transport.abort)
    window.wait("linkTexts[0] === 'Connection lost, trying again'")
    server.show(interval(QUEUES[:3]))
    # Browsers do not retry after this status, but the script does.
    window.wait_for_complaint("503")
    server._events.places = places
    window.wait(f"{ROWS}.length === 3")
    window.wait("linkTexts.at(-1) === 'Live'")
    window.complaints.clear()


@pytest.mark.long
def test_the_page_does_not_grow_over_hours_of_intervals(window, server, open_page) -> None:
    """Five hours of intervals, each with a new queue instead of the last queue."""
    start = interval()
    open_page(start)
    sizes = []
    *kept, last = start.rows
    for number in range(3600):
        rows = (*kept, replace(last, queue=f"new-{number}"))
        server.show(replace(start, time=start.time + 5 * number, rows=rows))
        if number % 600 == 599:
            window.wait(f"{NAMES}.includes('new-{number}')")
            sizes.append(window.value("document.querySelectorAll('*').length"))
    assert len(set(sizes)) == 1
