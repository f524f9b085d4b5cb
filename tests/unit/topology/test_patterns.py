"""Which names the pattern of a policy matches, and which patterns only the broker can evaluate."""

from __future__ import annotations

import pytest

from rabbit_chx.topology.patterns import is_in


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", "orders"], []),
        ("^orders$", ["orders"], ["orders.1", "my.orders"]),
        (r"^orders\.(eu|us)(\.v\d+)?$", ["orders.eu", "orders.us.v12"], ["orders.asia", "ordersXeu"]),
        ("[a-z_.-]{2,3}", ["a-", "x.y"], ["A", "a"]),
        ("^(?:ab)+[^c]$|[.]x", ["ababd", "a.x"], ["ababc", "bx"]),
        (".*", ["anything"], []),
        (r"^(?!amq\.|dead\.).*", ["orders", "amqp"], ["amq.direct", "dead.orders"]),
    ],
)
def test_a_pattern_of_plain_syntax_is_searched_for(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [is_in(pattern, name) for name in yes + no] == [True] * len(yes) + [False] * len(no)


# Each of these compiles in both engines to something else, in one of them only, or in neither.
@pytest.mark.parametrize(
    "pattern",
    [
        *("^[[:lower:]]+$", "[a[b]", "[a&&b]", "[]a]", "[.a.]", "[z-a]"),
        *(
            "^(?<n>orders)$",
            r"^orders\z",
            r"\Qo\E",
            "(?i)orders",
            "(?!amq)*o",
            "(?<!a)o",
            "(*UTF8)o",
            "orders*+",
            "o{,3}",
        ),
        *("(orders", "orders)", "*", "o{3,2}", "((o))"),
    ],
)
def test_a_pattern_that_another_engine_may_read_differently_is_unknown(pattern: str) -> None:
    assert is_in(pattern, "orders") is None


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(a*){2,}b", "a*" * 9 + "b", "(a|a)" * 20 + "b"])
def test_a_pattern_that_the_broker_may_give_up_is_unknown(pattern: str) -> None:
    assert is_in(pattern, "a" * 40 + "!") is None


def test_only_ascii_is_compared_because_the_broker_compares_bytes() -> None:
    assert is_in("^.$", "ü") is is_in("ü", "u") is None
