"""Every Python block of the README runs, and answers what it says it answers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^( *)```python\n(.*?)^ *```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def dedent(indent: str, block: str) -> str:
    return re.sub(f"^{indent}", "", block, flags=re.MULTILINE)


NEEDS_MORE = re.compile(r"\bwith |\.write\b").search  # a broker, or a Spark: run by the tests of those


@pytest.mark.parametrize("block", [dedent(*found) for found in BLOCKS if not NEEDS_MORE(found[1])])
def test_readme_block_runs_and_its_answers_are_true(block: str) -> None:
    names: dict[str, object] = {}
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        source = ast.get_source_segment(block, statement)
        answer = re.search(r"# -> ([^\s:]+)", lines[statement.end_lineno - 1])
        if answer is None:
            exec(source, names)
            continue
        claimed = answer[1].replace("...", "")
        assert repr(eval(source, names)).replace("'", '"').startswith(claimed), source


def test_the_readme_holds_blocks_and_claims() -> None:
    assert len(BLOCKS) >= 4
    assert sum("# ->" in block for _, block in BLOCKS) >= 2


def test_first_screen_tells_what_it_is_and_is_not_the_two_commands_and_the_releases() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    for text in ("It **is**", "It is **not**", "make demo", "make test", "3.10, 4.0 and 4.3", "```python"):
        assert text in first_screen
