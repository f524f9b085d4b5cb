"""Strategies for hostile input: files, URLs, rows, keys and headers."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from pika import BasicProperties

from rabbit_chx.topology.file.definitions import to_definitions
from rabbit_chx.topology.file.dump import dumps
from rabbit_chx.topology.file.load import loads
from tests.property.strategies import ANYTHING
from tests.verbs import EVENTS, ORDERS, SLOTS

# ---- text

TOKENS = st.sampled_from(
    [
        *("\0", "\ufeff", "\u2028", "\x85", "\t", "\r", "\r\n", "\x1b[31m", "\ud800", "e\u0301", "\U0010ffff"),
        *("'", '"', '"""', "\\", "\\u0000", '"\\ud800"', "\\x", "%", "%2", "%00", "%FF", "#", "@", "/", "?", ":"),
        *("[", "]", "{", "}", "[" * 3_000, "{" * 3_000, '{"a":' * 3_000, "- " * 3_000, "a." * 3_000, "[a." * 300),
        *("&a", "*a", "&a [*a]", "<<: *a", "!!python/object:os.system", "!!set", "!", "%YAML 9.9\n", "---\n", "...\n"),
        *("| ", "> ", "|9\n", "? ", "?\n", ": ", ", ", "\n\n", "\n  ", "=", "[[x]]\n", "[x]\n", "x.y = 1\n"),
        *("null", "~", "no", "NaN", "-Infinity", ".inf", "1e999", "-0", "010", "0x1F", "1_000", "12:30", "9" * 5_000),
        *("2026-01-01", "2026-01-01T00:00:00Z", "24:61:61", "1979-13-45"),
        *("{0..3}", "{00..9999}", "{0..99999999999999999999}", "{9..0}", "{0..1}{0..1}", "{{", "}}", "{" + "9" * 5_000),
        *("amq.", "amq.topic", "x" * 256, "é" * 200, "schema", "exchanges", "queues", "slots", "vhost", "arguments"),
    ]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, texts: list[str]) -> str:
    """A valid text with some parts removed, doubled or replaced."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(start + draw(st.integers(0, 20)), len(text))
        new = draw(st.one_of(TOKENS, st.just(""), st.just(text[start:end] * 2), st.text(max_size=5)))
        text = text[:start] + new + text[end:]
    return text


# ---- topology files

ALL = """
schema: 1
vhost: shop
exchanges:
  orders:
    type: x-consistent-hash
    hash-property: message_id
    destinations: [{queue: "orders.{00..03}", weight: 2}, {exchange: late}]
    alternate-exchange: amq.fanout
    co-partitioned-with: [twin]
  twin: {type: x-consistent-hash, hash-header: tenant, queues: {"orders.{00..03}": 2}, co-partitioned-with: orders}
  late: {type: headers, bindings: [{queue: rest, key: k, arguments: {x-match: all, n: 1.5}}], durable: false}
  tenants: {type: x-modulus-hash, slots: 8, queues: [a, b], alternate-exchange: late}
  amq.topic: {bindings: [{queue: rest, key: "#"}]}
queues:
  "orders.{00..03}": {preset: ordered}
  a: {type: classic, durable: false, auto-delete: true}
  b: {type: stream, arguments: {x-max-age: 7D}}
  rest: {type: quorum, single-active-consumer: true, arguments: {x-max-length: 5, x-overflow: drop-head}}
policies:
  p: {pattern: "^orders", apply-to: queues, priority: 3, definition: {max-length: 9, federation-upstream: u}}
"""
TOPOLOGIES = [loads(text, format="yaml") for text in (ORDERS, SLOTS % 5, EVENTS)]
BY_HAND = {"yaml": [ORDERS, SLOTS % 5, EVENTS, ALL], "json": [dumps(one, "json") for one in TOPOLOGIES]}
BOMBS = [
    "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)),
    "a: &a {b: *a}",
    "a: &a\n  <<: *a",
    'schema: 1\nqueues: {"q{0..9999}": {}}\nexchanges: {x: {type: x-consistent-hash, queues: {"q{0..299}": 10000}}}',
    "schema: 1\nexchanges: {x: {type: x-modulus-hash, slots: 256, queues: {" + ", ".join(f"q{i}: 10000" for i in range(300)) + "}}}",
]  # fmt: skip


def texts(format_: str) -> st.SearchStrategy[str]:
    """Texts of files in a format."""
    changed = mutated(BY_HAND[format_])
    if format_ == "yaml":
        changed |= st.sampled_from(BOMBS)
    if format_ == "json":
        changed |= of_wrong_values(FILES).map(json.dumps)
    return changed | st.text(max_size=40)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name of a file and its bytes."""
    suffix = draw(st.sampled_from(["yaml", "yml", "json"]))
    text = draw(texts("yaml" if suffix == "yml" else suffix))
    codings = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"]
    data = text.encode(draw(st.sampled_from(codings)), "replace")
    kept = draw(st.sampled_from([None, None, 1, -1, 7]))
    spoilt = [data, data[:kept], b"\xff" + data, data + b"\xed\xa0\x80"]
    return f"topology.{suffix}", draw(st.sampled_from(spoilt))


# ---- values

VALUES = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 1.5, -0.0, 1e308),
        *(float("nan"), float("inf"), "", " ", "x" * 256, "é" * 200, "\0", "\ud800", "\n", "amq.x", "amq.topic"),
        *("{0..3}", "{0..9999}", "{0..99999}", "{", "1", "010", "+5", "10001", "orders", "/", "[", "(?", "*" * 50),
        *([], {}, [[]], [None], {"": {}}, {"a": None}, ["a", "a"], [1], {"a": {"a": {"a": {}}}}, [["x"] * 99] * 99),
    ]
)  # fmt: skip
FILES = [json.loads(dumps(one, "json")) for one in TOPOLOGIES]
DEFINITIONS = [
    {"rabbit_version": "4.0.5", "policies": [], **to_definitions(loads(text, format="yaml"))}
    for text in (ORDERS, EVENTS, ALL)
]


@st.composite
def of_wrong_values(draw: st.DrawFn, values: list[Any]) -> Any:
    """A valid value with some parts removed, renamed or replaced."""
    value = deepcopy(draw(st.sampled_from(values)))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = _a_place(draw, value)
        if holder is None:
            continue
        what = draw(st.sampled_from(["replace", "replace", "delete", "rename", "double"]))
        if what == "delete":
            del holder[key]
        elif what == "replace":
            holder[key] = deepcopy(draw(VALUES))
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "\0", "x", "{0..3}", "amq.x", "type"]))] = deepcopy(holder[key])
        else:
            holder.append(deepcopy(holder[key]))
    return value


def _a_place(draw: st.DrawFn, value: Any) -> tuple[Any, Any]:
    holder, key = None, None
    while isinstance(value, (dict, list)) and value and (holder is None or draw(st.integers(0, 4))):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        holder, key = value, draw(st.sampled_from(keys))
        value = holder[key]
    return holder, key


# ---- URLs

SPECIAL = st.sampled_from(
    [*"/?#@:%[]\\ \t\n\0&=+;,!$'()*|<>^`{}\"~", "%2", "%zz", "%00", "%2F", "é", "\ud800", "\x7f", "//", "://", "@@", "]:", "%ff", "\uff0f"]
)  # fmt: skip
HOSTS = st.text(max_size=8) | st.sampled_from(
    [
        *("127.0.0.1", "localhost", "::1", "[::1]", "[::1", "[v1.x]", "", "x" * 70, "a..b", ".", "host\0", "-"),
        *("xn--a", "\u2100", "\uff45xample", "h\ud800", "127.0.0.1:1", "1", "0x7f.1", "%31", "a b", "[]", "[::1]x"),
    ]
)  # fmt: skip
PORTS = st.sampled_from(
    ["", ":1", ":0", ":-1", ":65536", ":99999999999", ":x", ":", ":1_0", ":\u0661", ":+1", ": 1", ":1:1"]
)
_PATHS = ["", "/", "//", "/%2F", "/a/b", "/%", "/%zz", "/é", "/\0", "/?x=1", "?", "#", "/;", "/api", "/%ff"]
PATHS = st.sampled_from([*_PATHS, "/?auth_mechanism=external"]) | st.text(max_size=5).map("/".__add__)
FIRST, SECOND = "CANARY-first-5d0c2a", "CANARY-second-77b1"
"""The two halves of a password; a special character may separate them."""


def urls(schemes: list[str]) -> st.SearchStrategy[str]:
    """URLs whose password has the two halves."""
    return st.builds(
        "{}{}{}:{}{}{}@{}{}{}".format,
        st.sampled_from([*schemes, *schemes, schemes[0].upper(), "ftp", "", " " + schemes[0], "é"]),
        st.sampled_from(["://", "://", "://", "://", ":", ":/", "//", ""]),
        st.sampled_from(["user", "", "%75", "ü", "a%40b"]) | SPECIAL,
        st.just(FIRST),
        st.just("") | SPECIAL | st.text(max_size=3),
        st.just(SECOND),
        HOSTS,
        PORTS,
        PATHS,
    )


# ---- headers, rows and keys

HEADERS = st.dictionaries(
    st.text(max_size=5) | st.sampled_from(["CC", "BCC", "x" * 256, "\ud800", "x-delay", "é" * 128]),
    ANYTHING,
    max_size=3,
)
PROPERTY_NAMES = [*vars(BasicProperties()), "no_such"]


@st.composite
def messages(draw: st.DrawFn) -> tuple[bool, Any, Any, Any, dict[str, Any]]:
    """Whether there are several, then bodies, keys, headers and properties, most of them valid."""
    odd = ANYTHING | VALUES
    text = st.sampled_from(["a", "é", "", "\ud800", "x" * 256, b"\xff"])
    many = draw(st.booleans())

    def column(values: st.SearchStrategy[Any]) -> Any:
        one = st.one_of(values, values, values, odd)
        some = st.lists(one, min_size=2, max_size=2) if many else one
        return draw(st.one_of(some, some, some, some, odd))

    headers = st.dictionaries(st.just("h") | text, text | VALUES, max_size=2) | HEADERS
    names = draw(st.lists(st.sampled_from(PROPERTY_NAMES), max_size=2, unique=True))
    return many, column(text), column(text), column(headers), {name: column(text) for name in names}


_KEY_BYTES = (
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"x" * 255,
    b"x" * 256,
    b"\xc3\xa9" * 128,
)
_NUMBERS = st.integers(-5, 10**12).map(lambda n: b"%d\n" % n)
KEY_FILES = st.lists(st.sampled_from(_KEY_BYTES) | st.binary(max_size=6) | _NUMBERS, max_size=8).map(b"".join)

_CELLS = ["a", "", "é", '"', '""', "\0", "\r", "\n", "NaN", "1e999", "\ufeff", "\ud800"]
_CELLS += ["9" * 5_000, "x" * 70_000, "[" * 3_000]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_ROWS = st.lists(st.lists(st.sampled_from(["k", "b", "h", *_CELLS]), max_size=3).map(",".join), max_size=4)
CSV_FILES = st.one_of(
    _ROWS.map("\n".join).map(_encoded),
    mutated(["k,b,h\n1,2,3\n4,5,6\n", 'k,b,h\n"1,2","a\nb",3\n']).map(_encoded),
    st.binary(max_size=30),
    st.sampled_from(
        [b"k\n" + b'"' * 200_001, b"k\n" + b"x" * 200_000, b"\n", b"\n\n", b"k\n\n", b",\n", b"k,b,h\n"]
    ),
)
_OBJECTS = st.dictionaries(st.sampled_from(["k", "b", "h", "", "(the line)", "\ud800"]), VALUES, max_size=4)
_BROKEN = [
    b"{}",
    b"{}\n{}",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"k":"\\ud800","b":"\\ud800"}',
]
JSON_LINES = st.one_of(
    st.lists(_OBJECTS.map(json.dumps), max_size=4).map("\n".join).map(str.encode),
    mutated(['{"k": "1", "b": "2", "h": 3}\n{"k": "4", "b": "5", "h": null}\n']).map(_encoded),
    st.binary(max_size=30),
    st.sampled_from(_BROKEN),
)
_MAGIC = [
    b"",
    b"PAR1",
    b"PAR1PAR1",
    b"PAR1" + b"\0" * 50 + b"PAR1",
    b"ARROW1",
    b"ARROW1\0\0" + b"\xff" * 40,
    b"\xff" * 8,
]
GARBAGE = st.binary(max_size=60) | st.sampled_from(_MAGIC)
