"""The page about an exchange: what it says is true, it needs nothing else, and no name can break it."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from rabbit_chx import ConsistentHashExchange, Ring, ToExchange, moved
from rabbit_chx.errors import RingUnknown
from rabbit_chx.report import flow_picture, report, ring_picture
from rabbit_chx.report.drawing import Picture
from rabbit_chx.topology.file.load import loads
from tests.browser import browser
from tests.unit.complaints import complaint
from tests.watching import SCRIPTS

FILE = """
schema: 1
exchanges:
  orders:
    type: x-consistent-hash
    queues: {"q.{0..3}": 1, vip: 4}
  other: {type: topic}
queues: {"q.{0..3}": {}, vip: {}}
"""
KEYS = ["acme"] * 300 + [f"customer-{number}" for number in range(2_000)]


def made(text: str = FILE, exchange: str = "orders", **options):
    return report(loads(text, format="yaml"), exchange, **options)


usual = cache(made)


# -- what it says ---------------------------------------------------------------------------------------


def test_a_change_moves_the_keys_that_another_ring_routes_elsewhere() -> None:
    found = usual()
    for change, after in (
        (found.added, found.live.bind("new", 1)),
        (found.removed, found.live.unbind("q.0", "1")),
    ):
        assert change.after.runs == after.runs
        assert change.movement == moved(found.live, after)


def test_the_costliest_queue_to_unbind_comes_first_and_the_last_one_costs_its_share_alone() -> None:
    found = usual()
    costs = [share for _, share in found.removals]
    assert costs == sorted(costs, reverse=True)
    assert found.removals[0][0] == "q.0"
    assert dict(found.removals)["vip"] == pytest.approx(found.shares["vip"])


def test_what_it_costs_to_unbind_does_not_depend_on_the_arguments_of_bindings() -> None:
    """An unbind that does not repeat them changes nothing."""
    noted, plain = Ring(), Ring()
    for number, queue in enumerate(("q.0", "q.1", "q.2", "q.3")):
        noted, plain = noted.bind(queue, 1, {"note": number}), plain.bind(queue, 1)
    found, expected = made(live=noted), made(live=plain)
    assert found.removals == expected.removals
    assert found.removed.movement.share == expected.removed.movement.share > 0.5


def test_after_a_restart_the_order_is_kept_sorted_or_unknown() -> None:
    assert made(release="4.3").recovered.runs == usual().live.runs
    assert not made(release="4.0").recovered.known
    assert made(release="4.0", worker_pool_size=1).recovered.known


def test_a_live_ring_comes_before_the_files_order_and_the_page_says_where_they_differ() -> None:
    filed = usual().live
    for live in (Ring.of({"vip": 4, ToExchange("archive"): 1}), filed):
        found = made(live=live)
        page = Page(found.to_html())
        assert list(found.shares) == list(live.destinations)
        assert "from a broker" in " ".join(page.text)
        assert ("which differs from the broker's" not in " ".join(page.text)) == (live == filed)
        assert {str(destination) for destination in live.destinations} <= set(page.text)


def test_only_a_consistent_hash_exchange_has_a_ring() -> None:
    for exchange in ("other", "nope"):
        error = complaint(lambda exchange=exchange: made(exchange=exchange))
        assert (error.got, error.expected) == (exchange, "one of orders")


SLOTS = """
schema: 1
exchanges:
  orders: {type: x-consistent-hash, slots: %d, queues: {"q.{0..3}": 1}}
queues: {"q.{0..3}": {}}
"""


def test_an_exchange_with_as_many_queues_as_slots_has_no_price_for_one_more() -> None:
    assert made(SLOTS % 4).ways == ()
    assert complaint(lambda: made(SLOTS % 4, add=1)).expected == "at least one slot per queue"


def test_an_exchange_with_slots_has_no_price_for_binding_or_unbinding_a_queue() -> None:
    found = made(SLOTS % 32)
    page = Page(found.to_html())
    assert (found.added, found.removals, found.removed) == (None, (), None)
    assert [way.name for way in found.ways] == ["slots"]
    assert "changes" not in page.all("id")
    assert "over 32 destinations" in " ".join(page.text)


# -- the page -------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, attributes and texts of a page; every tag has to be closed in its order."""

    EMPTY = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, attribute: str) -> list[str]:
        return [str(attributes[attribute]) for _, attributes in self.tags if attribute in attributes]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(made(keys=KEYS, sample_name="a sample").to_html())


def test_it_needs_no_other_file_and_runs_no_script(page) -> None:
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert page.all("src") == []
    assert all(target.startswith("#") for target in page.all("href"))
    assert "url(" not in "".join(page.text)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_links_lead_to_sections_and_pictures_and_tables_have_names(page) -> None:
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in page.all("href")} <= set(ids)
    drawn = [place for place, (tag, _) in enumerate(page.tags) if tag == "svg"]
    assert len(drawn) == 4
    assert all(page.tags[place + 1][0] == "title" for place in drawn)
    assert all(
        "aria-label" in attributes for _, attributes in page.tags if attributes.get("role") == "region"
    )


def test_every_section_is_there_with_its_numbers(page) -> None:
    text, found = " ".join(page.text), usual()
    assert {"ring", "shares", "sample", "changes", "ways"} <= set(page.all("id"))
    assert all(f"{share:.3%}" in text for share in found.shares.values())
    assert found.added is not None
    assert f"{found.added.movement.share:.2%} of the keys move" in text
    assert "acme" in text


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "'a' & \"größe\"", "]]>", "</style>", "x" * 200]
)
def test_no_name_breaks_the_page(name) -> None:
    text = FILE.replace("orders", json.dumps(name)).replace("vip", json.dumps(name + ".q"))
    shown = Page(made(text, exchange=name, keys=[name] * 5).to_html())
    assert "script" not in {tag for tag, _ in shown.tags}
    assert f"Exchange {name}" in shown.text
    assert name + ".q" in shown.text


@pytest.mark.parametrize("count", [1, 2, 100])
def test_any_number_of_queues_can_be_drawn(count) -> None:
    shown = Page(made(live=Ring.of([f"q{number}" for number in range(count)])).to_html())
    assert f"over {count} queue" in " ".join(shown.text)


def test_a_notebook_gets_the_page_in_a_frame() -> None:
    (frame,) = Page(usual()._repr_html_()).tags
    assert frame[0] == "iframe"
    assert str(frame[1]["src"]).startswith("data:text/html;base64,")


# -- the command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "drawn_as"),
    [
        *((name, name) for name in ("q0", "</style><script>", "a$_{$", 'ü & "quotes"')),
        ("a\0b", r"a\x00b"),
    ],
)
def test_a_notebook_gets_a_picture_as_an_image_with_its_own_colours(name, drawn_as) -> None:
    before, after = Ring.of([name, "q1"]), Ring.of([name, "q1", "q2"])
    for picture in (ring_picture(before), flow_picture(moved(before, after), before, after)):
        image = ET.fromstring(shown(picture))
        assert image.tag == "{http://www.w3.org/2000/svg}svg"
        style, *drawn = image
        assert "--c0: #3366cc" in (style.text or "")
        assert [one.tag.partition("}")[2] for one in drawn] == [one.tag for one in picture]
        assert drawn_as in "".join(image.itertext())


def shown(picture: Picture) -> bytes:
    (data,) = re.findall(
        r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="The [a-z]+">', picture._repr_html_()
    )
    return base64.b64decode(data)


def test_a_ring_whose_order_is_unknown_cannot_be_drawn() -> None:
    with pytest.raises(RingUnknown):
        ring_picture(Ring.of(["q0", "q1"], release="4.0").after_restart())


def test_the_command_writes_the_page(run, write, tmp_path) -> None:
    keys, out = write("\n".join(KEYS), "keys"), tmp_path / "page.html"
    assert run("report", "--file", write(FILE), "--keys", keys, "--add", 2, "--out", out).code == 0
    text = " ".join(Page(out.read_text()).text)
    assert "2,300 rows of keys" in text
    assert "Ways to change it: 2 more queues" in text
    found = run("report", "--file", write(SLOTS % 32), "--out", out)
    assert found.out == f"Wrote {out}: exchange 'orders', 32 destinations.\n"


def test_a_live_report_is_about_the_ring_of_the_broker(run, write, live, tmp_path) -> None:
    bound = {"vip": 4, **{f"q.{number}": 1 for number in range(4)}}  # in another order than in the file
    live(FILE.replace('{"q.{0..3}": 1, vip: 4}', json.dumps(bound)))
    names = [f"customer-{number}" for number in range(500)]
    keys, out = write("\n".join(names), "keys"), tmp_path / "page.html"
    given = ("--file", write(FILE), "--keys", keys, "--live", "-U", "amqp://h", "--out", out)
    assert run("report", *given).code == 0
    page = re.sub(r"<[^>]*>", " ", out.read_text())
    assert "the order of the ring is from a broker" in " ".join(page.split())
    assert "which differs from the broker's" in page
    landed = Counter(map(ConsistentHashExchange(bound).route, names))
    assert all(re.search(rf"{queue}\s+{landed[queue]}\s", page) for queue in bound)
    assert page.index("vip") < page.index("q.0")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes")
def test_the_keys_may_be_in_a_file_whose_name_is_not_utf8(run, write, tmp_path) -> None:
    keys, out = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / "page.html"
    keys.write_text("a\nb\n")
    assert run("report", "--file", write(FILE), "--keys", keys, "--out", out).code == 0
    assert r"2 rows of caf\xe9" in " ".join(Page(out.read_text()).text)


def test_a_page_that_cannot_be_encoded_leaves_the_one_that_is_there(tmp_path) -> None:
    out = tmp_path / "page.html"
    out.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        made(keys=KEYS, sample_name="\udce9").save(out)
    assert out.read_text() == "before"


# -- a browser ------------------------------------------------------------------------------------------

MEASURE = """(() => {
  const style = getComputedStyle(document.body), pictures = [...document.querySelectorAll("svg")];
  const wide = [...document.querySelectorAll("body *")].filter(e =>
    e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".wide, svg, .skip"));
  return {
    page: document.documentElement.scrollWidth, window: innerWidth, wide: wide.map(e => e.outerHTML.slice(0, 80)),
    paper: style.backgroundColor, ink: style.color, pictures: pictures.length,
    flat: pictures.filter(e => e.getBoundingClientRect().height < 100).length,
    cut: [...document.querySelectorAll("svg text")].filter(e => {
      const [name, view] = [e.getBBox(), e.ownerSVGElement.viewBox.baseVal];
      return name.x < view.x || name.x + name.width > view.x + view.width
        || name.y < view.y || name.y + name.height > view.y + view.height; }).map(e => e.textContent),
  };
})()"""


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.mark.long  # the unit tests install no browser
@pytest.mark.parametrize("width", [500, 1100])
def test_a_browser_lays_it_out_within_its_window(window, tmp_path, width) -> None:
    wide = Ring.of({"payments.summary.0": 1, "q.1": 1, "payments.summary.2": 2, "GROSS.3": 2, "q.4": 2})
    out = tmp_path / "page.html"
    made(keys=KEYS, sample_name="a sample", live=wide).save(out)
    window.open(out.as_uri(), width=width)
    window.wait("document.readyState === 'complete' && document.querySelectorAll('svg').length")
    found = window.value(MEASURE)
    assert found["page"] <= found["window"] == width, found
    assert found["wide"] == []
    assert (found["pictures"], found["flat"], found["cut"]) == (4, 0, [])
    assert found["paper"] != found["ink"]


@pytest.mark.long
def test_no_name_and_no_key_runs_a_script(window, tmp_path) -> None:
    attack = "".join(SCRIPTS)
    text = FILE.replace("orders", json.dumps(attack)).replace("vip", json.dumps(SCRIPTS[0]))
    sample = {"keys": [*SCRIPTS] * 2, "sample_name": attack}
    out = tmp_path / "page.html"
    made(text, exchange=attack, live=Ring.of(SCRIPTS), add=["q" + SCRIPTS[0]], **sample).save(out)
    window.complaints.clear()
    window.open(out.as_uri(), policy=False)
    window.wait("document.querySelectorAll('svg').length === 4")
    window.value("document.querySelectorAll('body *').forEach((one) => one.focus && one.focus())")
    window.wait("document.readyState === 'complete'")
    assert window.complaints == []
    shown = window.value("document.body.textContent")
    assert all(name in shown for name in SCRIPTS)
    made_by_names = "script, img, iframe, [onload], [onerror], [onfocus], [onmouseover], [href^=javascript]"
    assert window.value(f"document.querySelectorAll('{made_by_names}').length") == 0
