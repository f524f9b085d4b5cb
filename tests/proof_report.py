"""A plugin of pytest's for the results of `tests.proof`: prints their tables, and writes them and a summary into two pages.

The marker ``proves(area, what, control)`` makes a line of tests that record nothing themselves, with the numbers of cases
and of wrong cases. Skipped tests are listed below the tables with their reasons. The report of each test takes its
results to the main process (`tests.parallel`), so that a run that is interrupted still writes what it has.
"""

from __future__ import annotations

import inspect
import pickle
import platform
from collections import Counter, defaultdict
from dataclasses import astuple
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scripts.pages import table
from tests.proof import LONG, RESULTS, SEED, Check, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"

FAULT_HEAD: Final = (
    *("scenario", "release", "messages", "faults", "lost", "unexpected", "duplicated", "seconds"),
    *("lost by the control", "what else was seen"),
)
CHECK_HEAD: Final = ("what", "release", "cases", "wrong", "seconds", "control")
FAULT_AREAS: Final = ("Publisher", "Consumers", "Topology", "Cluster", "Spark")
CHECK_AREAS: Final = (
    *("Routing", "Ring", "Kernel", "Publisher", "Consumers", "Streams", "Topology", "Spark"),
    *("Input", "Secrets", "TLS", "Permissions"),
)


FAULTS: Final[list[Fault]] = []
CHECKS: Final[list[Check]] = []
MEASURES: Final[list[str]] = []
TALLIES: Final[defaultdict[tuple[str, str, str, str], Counter[str]]] = defaultdict(Counter)
"""Cases, wrong cases and seconds of the tests that share a marker `proves` and a release."""
NOTHING: Final = pickle.dumps([])


class Tally(Check):
    """The part of one test in a line that several tests share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--proof",
        metavar="FILE",
        type=Path,
        help="run only the tests that record results or are marked `proof`; write a summary of their tables into this page, and the tables into FILE-results",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--proof") is not None:
        config.hook.pytest_deselected(items=[each for each in items if not records(each)])
        items[:] = filter(records, items)


def records(item: Any) -> bool:
    """Whether a test can make a line: it has a marker, or it, a fixture, or a function of its module calls `record_result`."""
    if any(map(item.get_closest_marker, ("proof", "proves"))):
        return True
    fixtures = [one.func for each in item._fixtureinfo.name2fixturedefs.values() for one in each]
    functions = [each for each in vars(item.module).values() if inspect.isfunction(each)]
    return any(map(calls_record, fixtures + functions))


@cache
def calls_record(function: Callable[..., object]) -> bool:
    return "record_result(" in inspect.getsource(function)


def pytest_report_header() -> str:
    return f"rabbit-chx: RABBIT_CHX_SEED={SEED}{' RABBIT_CHX_PROOF=long' if LONG else ''}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    results = [*RESULTS]
    RESULTS.clear()
    if not report.skipped and (report.when == "call" or report.failed):
        for mark in item.iter_markers("proves"):
            area, what, control = mark.args
            cases, wrong = int(report.when == "call"), int(report.failed)
            results.append(Tally(area, what, release_of(item), cases, wrong, report.duration, control))
    report.proven = pickle.dumps(results)
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Add the results of a test, from whichever process ran it; the report of a worker that died has none."""
    for result in pickle.loads(getattr(report, "proven", NOTHING)):
        match result:
            case Tally(area=area, what=what, release=release, control=control):
                tally = {"cases": result.cases, "wrong": result.wrong, "seconds": result.seconds}
                TALLIES[area, what, release, control].update(tally)
            case Check():
                CHECKS.append(result)
            case Fault():
                FAULTS.append(result)
            case str():
                MEASURES.append(result)


def release_of(item: pytest.Item) -> str:
    """The release of RabbitMQ that a test was told to use."""
    callspec = getattr(item, "callspec", None)
    given = callspec.params if callspec else {}
    return str(next((given[name] for name in ("broker", "cluster", "release") if name in given), ""))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    checks = [*CHECKS, *counted()]
    if not FAULTS and not checks and not MEASURES:
        return
    terminalreporter.section(f"what was proven, RABBIT_CHX_SEED={SEED}")
    for measure in MEASURES:
        terminalreporter.line(measure)
    for title, head, rows in tables(FAULTS, checks):
        terminalreporter.line(f"\n{title}")
        for line in aligned(head, rows):
            terminalreporter.line(line)
    page: Path | None = config.getoption("--proof")
    if page is not None:
        names = ("passed", "failed", "error", "skipped")
        stats = {name: len(terminalreporter.stats.get(name, ())) for name in names}
        results = page.with_stem(f"{page.stem}-results")
        runs = str(config.pluginmanager.get_plugin("proof_recorder").journal)
        summary = [*summarised(FAULTS, checks, stats, runs, results.name)]
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            summary.insert(0, "The run was interrupted.\n")
        into(page, "\n".join(summary))
        into(results, "\n".join(written(FAULTS, checks, list(not_run(terminalreporter)))))
        terminalreporter.line(f"\nwritten into {page} and {results}")


def counted() -> Iterator[Check]:
    for (area, what, release, control), tally in TALLIES.items():
        yield Check(area, what, release, tally["cases"], tally["wrong"], tally["seconds"], control)


def not_run(terminalreporter: Any) -> Iterator[str]:
    """Each test that was skipped, and why."""
    for report in terminalreporter.stats.get("skipped", ()):
        _, _, why = report.longrepr
        yield f"{report.nodeid.partition('::')[2]}: {why.removeprefix('Skipped: ')}"


# -- values in, values out ------------------------------------------------------------------------------


def tables(
    faults: Sequence[Fault], checks: Sequence[Check]
) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """For each area its title, the names of the columns, and the rows, those of a release together."""
    for areas, lines, head in ((FAULT_AREAS, faults, FAULT_HEAD), (CHECK_AREAS, checks, CHECK_HEAD)):
        for area, group in by_area(lines, areas):
            title = f"{area}: faults" if head is FAULT_HEAD else f"{area}: checks"
            yield title, head, [cells(line) for line in group]


def by_area(lines: Sequence[Any], areas: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """The lines of each area, those of a release together; areas that are not in `areas` are last."""
    places = list(dict.fromkeys([*areas, *(line.area for line in lines)]))
    releases = list(dict.fromkeys(line.release for line in lines))
    ordered = sorted(lines, key=lambda line: (places.index(line.area), releases.index(line.release)))
    for area, group in groupby(ordered, key=lambda line: line.area):
        yield area, list(group)


def cells(line: Fault | Check) -> tuple[str, ...]:
    """All fields but the area, which are in the order of the columns."""
    _, *values = astuple(line)
    return tuple(
        value if isinstance(value, str) else f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
        for value in values
    )


def aligned(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table for the terminal."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def summarised(
    faults: Sequence[Fault], checks: Sequence[Check], stats: dict[str, int], runs: str, results: str
) -> Iterator[str]:
    """The lines of the summary: the runs, and for each area its totals with a link to its table on the page `results`."""
    yield (
        f"{len(faults)} scenarios, {sum(line.faults for line in faults):,} faults, "
        f"{sum(line.messages for line in faults):,} messages: "
        f"**{sum(line.lost for line in faults):,} lost**, {sum(line.unexpected for line in faults):,} unexpected. "
        f"{sum(line.cases for line in checks):,} cases checked: **{sum(line.wrong for line in checks):,} wrong**. "
        f"Tests: {', '.join(f'{count:,} {name}' for name, count in stats.items() if count)}. "
        f"{runs}, Python {platform.python_version()}."
    )
    for kind, lines, areas, columns in (
        ("faults", faults, FAULT_AREAS, ("messages", "faults", "lost", "unexpected", "duplicated")),
        ("checks", checks, CHECK_AREAS, ("cases", "wrong")),
    ):
        rows = []
        for area, group in by_area(lines, areas):
            totals = [f"{sum(getattr(line, column) for line in group):,}" for column in columns]
            rows.append((f"[{area}]({results}#{area.lower()}-{kind})", f"{len(group)}", *totals))
        if rows:
            yield f"\n{table((kind, 'rows', *columns), rows)}"


def written(faults: Sequence[Fault], checks: Sequence[Check], skipped: list[str]) -> Iterator[str]:
    """The lines of the page of results: every table, the other measurements, and what was not run."""
    yield ""
    for title, head, rows in tables(faults, checks):
        yield f"## {title}\n"
        yield f"{table(head, rows)}\n"
    if MEASURES:
        yield "## What else was measured\n"
        yield from (f"* {line}" for line in MEASURES)
        yield ""
    if skipped:
        yield "## Not run\n"
        yield from (f"* {line}" for line in skipped)
        yield ""


def into(page: Path, text: str) -> None:
    """Replace the text between the two marks of a page; create the page if it is missing."""
    old = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise pytest.UsageError(f"{page}: {BEGIN} or {END} is missing; the tables go between them")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
