"""Hostile command lines: every verb with its own options, taken from the definition of the command."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import click
from hypothesis import strategies as st

from rabbit_chx.cli import main
from rabbit_chx.errors import RabbitChxError
from tests.property.hostile_input import ALL, BOMBS, KEY_FILES, urls
from tests.property.strategies import NAMES
from tests.verbs import EVENTS, ORDERS, commands

CODES = {0: "fine", 1: "failed", 2: "differences", 3: "partly", 64: "usage"}
REFUSED = {1, 64}
LEFT_OUT = {"spark", "throw_away", "part", "node", "help"}
"""Options that start processes."""
VERBS = sorted(set(commands()) - {"demo"})

FILES = {
    "orders.yaml": ORDERS.encode(),
    "events.yaml": EVENTS.encode(),
    "all.yaml": ALL.encode(),
    "bomb.yaml": BOMBS[0].encode(),
    "nul.json": b'{"schema": 1}\0',
    "rows.csv": b"k,b,h\n1,2,3\n4,5,6\n",
    "rows.jsonl": b'{"k": "1"}\n{"k": null}\n{"k": "\\ud800"}\n',
    "pairs.csv": b"key,queue\na,q0\nb,q1\n",
    "keys": b"a\nb\n\xc3\xa9\n12\n",
    "bytes": b"\xff\xfe\n\0\n",
    "empty": b"",
    "position": b'{"rows": "9", "source": null}',
    "half.position": b'{"rows": 1',
}
PATHS = st.sampled_from(
    [*FILES, *FILES, "missing.yaml", "missing/new", ".", "", "-", "x" * 300, "\udcff.yaml"]
)

WORDS = st.one_of(
    st.sampled_from(
        [
            *("", "-", "--", "=", "q0", "q0=1", "q1=2", "q0=", "=1", "q=10001", "q=-1", "q==2", "orders", "events", "x"),
            *("NaN", "inf", "-inf", "1e999", "-1", "0", "1", "9" * 30, "1_0", "010", "4.3", "4.0.5", "3.10", "4.x", "99.1"),
            *("a=b", "h=k", "message_id=k", "timestamp=k", "expiration=b", "x" * 256, "é" * 128, "\udcff", "orders=pairs.csv"),
            *("append", "in place", "swap", "blue/green", "slots", "{0..3}", "q.{0..2}", "[bold]", "[/]", "%s", "{}", "\x1b[2J"),
        ]
    ),
    NAMES,
    st.integers().map(str),
).map(lambda word: word.replace("\0", "0"))  # fmt: skip


_FILES = {"file", "against", "keys_file", "pairs_file", "position_file", "out", "metrics_file"}


def _values(option: click.Parameter) -> st.SearchStrategy[str]:
    name = str(option.name)
    if name in {"url", "management_url"}:
        return urls(["amqp", "amqps"] if name == "url" else ["http", "https"]).filter(_can_be_typed)
    if isinstance(option.type, click.Choice):
        return st.sampled_from(list(option.type.choices)) | WORDS
    return PATHS if name in _FILES or isinstance(option.type, click.Path) else WORDS


def _can_be_typed(url: str) -> bool:
    """Whether a shell can pass the text, and the text is recognisable as a URL."""
    return "://" in url and not {"\0", "\ud800", *" \t\n"} & set(url)


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """The arguments of ``rabbit-chx``, and standard input."""
    verb = draw(st.sampled_from(VERBS))
    params = commands()[verb].params
    named = [each for each in params if isinstance(each, click.Option) and each.name not in LEFT_OUT]
    places = [each for each in params if isinstance(each, click.Argument)]
    words = [
        draw(_values(each))
        for each in places
        for _ in range(draw(st.integers(0 if each.nargs < 0 else 1, 2 if each.nargs < 0 else 1)))
    ]
    required = [each for each in named if each.required]
    if verb in {"route", "ring"}:
        required += [each for each in named if each.name == "queues"] * draw(st.integers(0, 3))
    for each in [*required, *draw(st.lists(st.sampled_from(named), max_size=4) if named else st.just([]))]:
        words.append(draw(st.sampled_from(each.opts)))
        if not each.is_flag:
            words.append(draw(_values(each)))
    if not draw(st.integers(0, 5)):
        words.insert(draw(st.integers(0, len(words))), draw(WORDS))
    return [verb, *words], draw(KEY_FILES)


class Refused(RabbitChxError):
    """The output of a command that failed as it should."""


def run(line: tuple[list[str], bytes]) -> str:
    """The output of a command; raises :class:`Refused` if it fails as it should, and another error if not."""
    words, given = line
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8"),
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"),
    )
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(given)), "utf-8")  # type: ignore[arg-type]
    log = logging.getLogger("rabbit_chx")
    handlers = list(log.handlers)
    try:
        with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", stdin):
            main(words)
    except SystemExit as ended:
        code = ended.code
    finally:
        log.handlers[:] = handlers
    out.flush()
    err.flush()
    said = "".join(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))  # type: ignore[attr-defined]
    assert code in CODES, said
    assert "Traceback" not in said, said
    assert not code or said.strip(), f"exit code {code} without a message"
    if code in REFUSED:
        raise Refused(said)
    return said
