"""The tables of the proof: their areas and order, the page around them, and losses."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from tests.proof import Check, Fault, record_result
from tests.proof_report import CHECK_AREAS, FAULT_AREAS, records, summarised, written

TESTS = Path(__file__).parents[1]
FAULT = Fault("Publisher", "kill | -9", "4.3.6", 1_000, 3, 2, 0, 7, 1.25, control="5 of 9", note="1 unknown")
CHECK = Check("Kernel", "binaries", "OTP 27", 10_000, 1, 0.5, control="seen")


def areas_of(name: str) -> set[str]:
    """The first argument of all calls of that name in the tests, if it is a literal."""
    texts = [path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)]
    calls = (
        node
        for text in texts
        if name in text and (name == "proves" or "from tests.proof import" in text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {name, f"pytest.mark.{name}"}
        and node.args
    )
    return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}


def test_every_area_of_a_test_has_its_place() -> None:
    assert areas_of("Fault") <= set(FAULT_AREAS)
    proven = areas_of("Check") | areas_of("proves")
    assert {"TLS", "Ring", "Routing"} <= proven <= set(CHECK_AREAS)


def test_the_proof_runs_each_file_with_a_test_that_nothing_else_runs() -> None:
    files = re.search("^PROOF := (.*)", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    marked = [
        path.stem.removeprefix("test_")
        for folder in ("unit", "property")
        for path in (TESTS / folder).rglob("test_*.py")
        if "mark.proof" in path.read_text() and path != Path(__file__)
    ]
    assert files
    assert set(marked) <= set(re.findall(r"\w+", files[1])), f"not in {files[1]}"


def test_the_proof_leaves_out_tests_that_record_nothing() -> None:
    def fixture() -> None:
        record_result("found")

    def chosen(*, marker: str = "", fixtures: Sequence[object] = (), **functions: object) -> bool:
        definitions = {"any": [SimpleNamespace(func=each) for each in fixtures]}
        return records(
            SimpleNamespace(
                module=SimpleNamespace(**functions),
                get_closest_marker=lambda name: name == marker or None,
                _fixtureinfo=SimpleNamespace(name2fixturedefs=definitions),
            )
        )

    assert chosen(marker="proves")
    assert chosen(marker="proof")
    assert chosen(fixtures=[fixture])
    assert chosen(test=fixture)
    assert not chosen(marker="broker", fixtures=[areas_of], test=areas_of, Path=Path, imported=re)


def test_losses_and_wrong_cases_are_in_the_first_line_of_the_summary_and_in_the_row_of_their_area() -> None:
    other = Fault("Spark", "driver killed", "4.3.6", 500, 1, 0, 0, 0, 1.0, control="all")
    stats = {"passed": 3, "failed": 1, "skipped": 0}
    text = "\n".join(summarised([FAULT, other, FAULT], [CHECK], stats, "1 May 2027, seed 5", "all.md"))
    assert (
        "3 scenarios, 7 faults, 2,500 messages: **4 lost**, 0 unexpected. 10,000 cases checked: **1 wrong**"
        in text
    )
    assert "3 passed, 1 failed. 1 May 2027, seed 5, Python" in text
    assert "| [Publisher](all.md#publisher-faults) | 2 | 2,000 | 6 | 4 | 0 | 14 |" in text
    assert "| [Spark](all.md#spark-faults) | 1 | 500 | 1 | 0 | 0 | 0 |" in text
    assert "| [Kernel](all.md#kernel-checks) | 1 | 10,000 | 1 |" in text


def test_the_page_of_results_has_every_row_and_what_was_not_run() -> None:
    text = "\n".join(written([FAULT], [CHECK], ["test_x: no Docker"]))
    assert "## Publisher: faults\n" in text
    assert "| kill &#124; -9 | 4.3.6 | 1,000 | 3 | 2 | 0 | 7 | 1.2 | 5 of 9 | 1 unknown |" in text
    assert "* test_x: no Docker" in text
