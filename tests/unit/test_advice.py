"""Advice in two wordings: no text of the command line names Python, and no text of Python names an option."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbit_chx.base.advice import Advice, in_options

ROOT = Path(__file__).parents[2]
PACKAGES = ("rabbit_chx", "spark_connector", "pyspark_rabbitmq")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`[^`]*(?:`|$)|spark-submit --files|^--(?:quiet|add-modules=\S+)$")
"""Commands in quotes, whole lines for a shell, and options of other programs."""
NAMES = re.compile(
    r"\b[A-Za-z_][\w.]*\([^()]*\)(?!\()|\brabbit_chx\.[a-z]|\bspark_connector\.|\b[a-z]\w*=(?:True|False|None)\b"
)
"""A call, a dotted name of the package, or an argument with a value of Python."""
OF_WATCH_SERVE = {f"rabbit_chx/watch/{name}.py" for name in ("server", "metrics", "tokens")}
"""These serve `watch --serve` alone."""
OF_PYTEST = {"rabbit_chx/testing/plugin.py"}
BOTH = {"rabbit_chx/base/advice.py"}
"""The table of both wordings, each checked below."""
NOT_FOR_THE_COMMAND_LINE = (
    *(
        "rabbit_chx/base/advice.py",
        "rabbit_chx/mirror/exchange.py",
        "rabbit_chx/mirror/hashing.py",
        "rabbit_chx/mirror/kernel/",
    ),
    *("rabbit_chx/publishing/", "rabbit_chx/streams/", "rabbit_chx/testing/", "spark_connector/"),
    *(
        "rabbit_chx/working/settings.py",
        "rabbit_chx/working/runs.py",
        "rabbit_chx/broker/guards.py",
    ),
    *("rabbit_chx/broker/aio_driver.py", "rabbit_chx/broker/driver.py"),
    *(
        "rabbit_chx/broker/applying/handover.py",
        "rabbit_chx/mirror/protocols.py",
        "rabbit_chx/mirror/fields.py",
        "rabbit_chx/mirror/ring.py",
    ),
)
"""Their texts are about calls and arguments that the command line does not make, or makes right."""


def texts() -> Iterator[tuple[str, int, str]]:
    """The strings of the sources, without docstrings."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            alone = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                    yield str(path.relative_to(ROOT)), node.lineno, node.value


ANOTHER_LANGUAGE = {
    *("concat('customer-', id % 50000) AS routing_key", "string(id) AS value", "string(value) AS value"),
    *("worker_pool_sup:default_pool_size().", "/var/lib/metrics/rabbit_chx.prom"),
}
"""SQL, Erlang and the name of a file."""


def is_of_command_line(path: str) -> bool:
    return path.startswith("rabbit_chx/cli/") or path in OF_WATCH_SERVE


def named_in(text: str) -> list[str]:
    return OPTION.findall(COMMAND.sub("", text))


def called_in(text: str) -> list[str]:
    # Erlang, regular expressions, and names of modules.
    if re.search(r"\n|->|[\\]", text) or re.fullmatch(r"[a-z_.]+", text):
        return []
    for other in ANOTHER_LANGUAGE:
        text = text.replace(other, "")
    return NAMES.findall(re.sub(r"`(?:rabbitmq|docker)[^`]*`", "", text))


def test_no_text_of_python_names_an_option() -> None:
    wrong = [
        (path, line, text)
        for path, line, text in texts()
        if named_in(text) and not is_of_command_line(path) and path not in OF_PYTEST | BOTH
    ]
    assert not wrong


def test_no_text_that_the_command_line_may_print_names_python() -> None:
    wrong = [
        (path, line, text)
        for path, line, text in texts()
        if called_in(text) and not path.startswith(NOT_FOR_THE_COMMAND_LINE)
    ]
    assert not wrong


def test_all_advice_has_words_for_the_command_line() -> None:
    for advice in Advice:
        words = advice.on_command_line
        assert not called_in(words)
        assert not named_in(advice.value)
        assert in_options(f"because of this, {advice}; or not") == f"because of this, {words}; or not"
        assert in_options(words) == words


@pytest.mark.parametrize(
    ("text", "option", "call"),
    [
        ("pass --node to read it", True, False),
        ("use infer() for it", False, True),
        ("or Ring.read(buckets)", False, True),
        ("pass insecure=True", False, True),
        ("drain_in_order in rabbit_chx.broker", False, True),
        ("`rabbit-chx plan FILE --weight W` shows it", False, False),
        ("an order (or none) of it", False, False),
    ],
)
def test_the_search_finds_what_it_must(text, option, call) -> None:
    assert (bool(named_in(text)), bool(called_in(text))) == (option, call)
