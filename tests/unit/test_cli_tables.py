"""Tables at terminals of several widths, in pipes and without colours."""

from __future__ import annotations

import re

import pytest

NAME = "a-rather-long-name-of-a-queue-that-somebody-gave-it"
RING = ("ring", "-q", "q0", "-q", f"{NAME}=3", "--release", "4.0")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def terminal(run, monkeypatch):
    """What a verb shows at a terminal of so many columns: with its codes, and without."""

    def shown(columns: int, *arguments: str) -> tuple[str, str]:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        text = run(*arguments).out
        return text, ANSI.sub("", text)

    return shown


@pytest.mark.parametrize("columns", [24, 30, 40, 50, 80, 160])
def test_names_give_way_and_numbers_do_not(terminal, columns) -> None:
    _, shown = terminal(columns, *RING)
    rows = [line for line in shown.splitlines() if line.startswith(" ")]
    assert max(map(len, rows)) <= columns
    first = [line[1:].partition("  ")[0].strip() for line in rows]
    assert {"q0"} < set(first)
    assert NAME in "".join(first)
    if columns >= 50:
        assert max(map(len, shown.splitlines())) <= columns
        shares = [float(share) for share in re.findall(r" (\d+\.\d{3})%", shown)]
        assert (len(shares), sum(shares)) == (2, pytest.approx(100, abs=0.001))


def test_narrow_tables_have_no_bars(terminal) -> None:
    assert "█" not in terminal(50, *RING)[1]
    assert "█" in terminal(80, *RING)[1]


def test_colours_are_for_those_who_want_them(terminal, run, monkeypatch) -> None:
    coloured, plain = terminal(80, *RING)
    assert "\x1b[36;" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    without = run(*RING).out
    assert not re.search(r"\x1b\[(3|4|9|10)\d", without)
    assert ANSI.sub("", without) == plain


def test_in_a_pipe_there_are_no_codes_no_fill_and_whole_sentences(run) -> None:
    shown = run(*RING).out
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []
    assert "in rabbitmq.conf would make it sorted (--worker-pool-size 1).\n" in shown


def test_a_name_in_brackets_is_no_markup(run) -> None:
    shown = run("ring", "-q", "[bold]", "-q", "[/]", "-q", ":smile:").out
    assert {"[bold]", "[/]", ":smile:"} < set(shown.split())
