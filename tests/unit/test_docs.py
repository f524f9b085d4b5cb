"""The documentation cannot go stale: its blocks run, and answer what they say they answer.

In docs/ a Python block with `>>>` is a doctest, and all those of a page share their names. A `console` block is run in a
shell, its output compared; `...` in it stands for anything. A YAML block whose first line is `# NAME.yaml` is the file
that the commands below it are about. A block that needs more is marked by a comment in the line before it,
`<!-- run by tests/FILE.py::TEST -->`, and that test reads the block from the page.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import sys
from pathlib import Path

import pytest

import rabbit_chx
from rabbit_chx.errors import BrokerUnavailable
from tests.programs import ran
from tests.verbs import commands

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
BESIDE = {name: (ROOT / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")}
EVERYTHING = {"README.md of the project": README, **BESIDE, **PAGES}
FURTHER = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("CHANGELOG.md", "benchmarks/*.md", "examples/**/*.md")
    for path in sorted(ROOT.glob(pattern))
}
"""Other pages, of which only links and commands are checked."""
COMMANDS = {name: page for name, page in {**EVERYTHING, **FURTHER}.items() if name != "CHANGELOG.md"}
"""All pages but the one that names what is gone."""
GUIDES = [
    "routing.md",
    "ring.md",
    "choosing.md",
    "scaling.md",
    "scaling-under-load.md",
    "rebalance.md",
    "charts.md",
    "testing.md",
    "output.md",
]
_FENCED = re.compile(r"(?:<!-- run by (\S+) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def fenced(page: str, language: str) -> list[tuple[str, str]]:
    """The blocks of a page in one language, each behind the test that it is marked with, or nothing."""
    return [(mark, block) for mark, found, block in _FENCED.findall(page) if found == language]


def marked(page: str, test: str) -> str:
    """The one block that is marked with a test: what that test runs."""
    (block,) = [block for mark, _, block in _FENCED.findall(PAGES[page]) if mark.endswith(f"::{test}")]
    return block


# --- the README ---------------------------------------------------------------------------------------------

NEEDS_MORE = re.compile(r"\bwith |\.write\b|\.run\(").search  # run by tests/spark/test_readme.py


@pytest.mark.parametrize("block", [block for _, block in fenced(README, "python") if not NEEDS_MORE(block)])
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


def test_the_first_screen_of_the_readme_has_code_the_two_commands_and_the_releases() -> None:
    first_screen = "\n".join(README.splitlines()[:40])
    for text in ("```python", "make demo", "make test", "3.10, 4.0 and 4.3"):
        assert text in first_screen


# --- the guides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GUIDES)
def test_python_of_a_guide_answers_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = [block for mark, block in fenced(PAGES[name], "python") if not mark]
    assert all(block.startswith(">>> ") for block in blocks)
    session = doctest.DocTestParser().get_doctest("".join(blocks), {}, name, name, 0)
    complaints: list[str] = []
    result = doctest.DocTestRunner(optionflags=SAME).run(session, out=complaints.append)
    assert result.failed == 0, "".join(complaints)


def _sessions() -> list[tuple[str, str]]:
    names = ["README.md of the project", *GUIDES]
    return [(name, block) for name in names for _, block in fenced(EVERYTHING[name], "console")]


@pytest.mark.parametrize(("name", "block"), _sessions())
def test_commands_of_a_guide_print_what_it_shows(name: str, block: str, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in GUIDES:  # the README's work without a clone
        Path("examples").symlink_to(ROOT / "examples")
    for _, text in fenced(EVERYTHING[name], "yaml"):
        Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
    for variable in [each for each in os.environ if each.startswith(("AMQP_", "RABBIT"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        if re.fullmatch(r"rabbit-chx [\w ./=-]+", command):  # any other needs a shell
            found = run(*command.split()[1:])
            out, err = found.out, found.err
        else:
            done = ran(command, shell=True, timeout=120)
            out, err = done.stdout, done.stderr
        assert err == ""
        assert doctest.OutputChecker().check_output(shown, out, SAME), f"{command}\n{out}"


def test_the_guides_hold_sessions_and_a_wrong_output_would_be_seen() -> None:
    assert len(_sessions()) >= 8
    assert not doctest.OutputChecker().check_output("...\nq0  25.1%  ...\n", "q0  25.0%  ###\n", SAME)


def test_every_marked_block_is_read_by_the_test_that_it_names() -> None:
    marks = [(name, mark) for name, page in PAGES.items() for mark, *_ in _FENCED.findall(page) if mark]
    assert marks
    for name, mark in marks:
        file, _, test = mark.partition("::")
        source = (ROOT / file).read_text()
        (function,) = [
            node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == test
        ]
        assert f'marked("{name}", "{test}")' in ast.get_source_segment(source, function).replace("\n", "")


def test_every_block_of_code_is_run() -> None:
    """The guides' as sessions, above; others by tests/broker/test_tutorial.py, or by the test that their mark names."""
    blocks = [(name, *found) for name, page in PAGES.items() for found in _FENCED.findall(page)]
    code = [found for found in blocks if found[2] in {"python", "sql"}]
    assert len(code) > 20
    run = {*GUIDES, "tutorial.md", "from-kafka.md"}
    assert not [(name, block) for name, mark, _, block in code if name not in run and not mark]


def test_the_guide_skips_where_there_is_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    def available(release: str) -> None:
        raise BrokerUnavailable(f"no {release} here")

    block = marked("testing.md", "test_the_guide_skips_where_there_is_no_broker")
    monkeypatch.setattr("rabbit_chx.testing.available", available, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no 4\.3 here"):
        exec(block, {})


# --- what the pages name is there, and the other way round --------------------------------------------------


def test_every_public_name_appears_in_the_documentation() -> None:
    text = "\n".join(EVERYTHING.values())
    assert [name for name in rabbit_chx.__all__ if not re.search(rf"\b{name}\b", text)] == []


def _verbs() -> dict[str, set[str]]:
    return {
        name: {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        | {"--help", "-h"}
        for name, command in commands().items()
    }


def _code(page: str) -> list[str]:
    """All that is set in code: the lines of blocks, continued ones joined, and what stands between backticks."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^ *```\w*\n.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return lines + [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]


def _unknown(page: str) -> list[str]:
    """The verbs and options that code of a page names and nobody has."""
    verbs, unknown = _verbs(), []
    for code in _code(page):
        for verb, arguments in re.findall(r"(?:^|[\s(])rabbit-chx ([a-z]\w*)([^|;`#]*)", code):
            given = re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", arguments)
            unknown += [f"{verb} {option}" for option in given if option not in verbs.get(verb, ())]
            unknown += [verb] if verb not in verbs else []
    return unknown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_verbs_and_options_that_a_page_names_exist(name: str) -> None:
    assert _unknown(COMMANDS[name]) == []


def test_a_verb_or_option_that_is_not_there_would_be_seen() -> None:
    page = (
        "`rabbit-chx rout KEY`\n```sh\nrabbit-chx route KEY --explain \\\n  --qeue q0 -q q1 | sort -z\n```\n"
    )
    assert sorted(_unknown(page)) == ["rout", "route --qeue"]


def test_every_promise_about_security_names_tests_that_exist() -> None:
    promises = BESIDE["SECURITY.md"].partition("## What is protected")[2]
    rows = [line for line in promises.partition("\n\nNot protected")[0].splitlines() if line.startswith("| ")]
    named = [re.findall(r"`(tests/[^`]+)`", row) for row in rows if not row.startswith("| | test")]
    assert len(named) > 20
    assert all(named)
    assert [file for row in named for file in row if not [*ROOT.glob(file)]] == []


def test_the_index_names_every_page_and_no_other() -> None:
    named = set(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", PAGES["README.md"], re.MULTILINE))
    assert named == set(PAGES) - {"README.md"}


def pages_of(part: str) -> dict[str, str]:
    """The pages that the index lists in one of its parts."""
    text = PAGES["README.md"].partition(f"**{part}**\n")[2].partition("\n**")[0]
    return {name: PAGES[name] for name in re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", text, re.MULTILINE)}


def too_long(pages: dict[str, str], most: int) -> set[str]:
    return {name for name, page in pages.items() if len(page.split()) > most}


def test_only_references_and_results_are_long() -> None:
    guides = pages_of("How-to guides")
    assert len(guides) >= 20
    assert too_long({"README.md": README}, 900) == too_long(guides, 1_500) == set()
    assert too_long(PAGES, 2_000) == {"cli.md", "output.md", "proof-results.md", "spark-options.md"}


def test_a_page_about_spark_names_the_packages_that_its_install_lacks() -> None:
    lacking = {
        "```yaml\n": "pip install 'rabbit-chx[topology]'",
        "prometheus_client": "pip install prometheus-client",
    }
    for word, command in lacking.items():
        pages = {name: page for name, page in PAGES.items() if name.startswith("spark") and word in page}
        assert pages, word
        assert [name for name, page in pages.items() if command not in page] == [], command


def test_the_pages_of_performance_have_each_benchmark_with_options_that_it_has() -> None:
    evidence = "".join(page for name, page in PAGES.items() if name.startswith("performance"))
    commands = re.findall(r"^    \S*python benchmarks/(\w+\.py)(.*)$", evidence, re.MULTILINE)
    assert {program for program, _ in commands} == {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    shared = (ROOT / "benchmarks" / "ways" / "turns.py").read_text()
    for program, arguments in commands:
        source = (ROOT / "benchmarks" / program).read_text()
        source += shared if "options_parser" in source else ""
        assert [one for one in re.findall(r"--[\w-]+", arguments) if f'"{one}"' not in source] == []


@pytest.mark.parametrize("name", sorted({**EVERYTHING, **FURTHER}))
def test_links_within_the_project_lead_somewhere(name: str) -> None:
    folder = ROOT / "docs" if name in PAGES else (ROOT / name).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", {**EVERYTHING, **FURTHER}[name]):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = folder / path if path else folder / Path(name).name
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, (
                target
            )
