"""A plugin of pytest's for the tables of `tests.proof`: prints them, writes them into a page, says what did not run.

Of tests that book nothing themselves the marker ``proves(area, what, control)`` makes a line: so many cases, so many
wrong. A scenario that was skipped stands below the tables with its reason. Where several workers run the tests
(`tests.parallel`), each hands its books over when it ends.
"""

from __future__ import annotations

import pickle
import platform
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.proof import CHECKS, FAULTS, LONG, MEASURES, SEED, Check, Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"

FAULT_HEAD: Final = (
    *("scenario", "release", "messages", "faults", "lost", "unexpected", "duplicated", "seconds"),
    *("lost by the control", "what else was seen"),
)
CHECK_HEAD: Final = ("what", "release", "cases", "wrong", "seconds", "what would have been seen")
FAULT_AREAS: Final = ("Publisher", "Topology", "Cluster", "Spark")
CHECK_AREAS: Final = (
    *("Routing", "Ring", "Kernel", "Publisher", "Topology", "Spark"),
    *("Input", "Secrets", "TLS", "Permissions"),
)


@dataclass
class Tally:
    """What became of the tests that share a marker `proves` and a release."""

    cases: int = 0
    wrong: int = 0
    seconds: float = 0.0


@dataclass
class Session:
    """What a run has to say beside its tables."""

    started: float = field(default_factory=time.monotonic)
    tallies: dict[tuple[str, str, str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))


SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--proof", metavar="FILE", type=Path, help="write the tables of tests.proof into this page"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SESSION] = Session()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over the books, if this is one of several workers."""
    if hasattr(session.config, "workeroutput"):
        tallies = dict(session.config.stash[SESSION].tallies)
        session.config.workeroutput["proof"] = pickle.dumps((FAULTS, CHECKS, MEASURES, tallies))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the books of a worker; one that was killed has none."""
    if books := getattr(node, "workeroutput", {}).get("proof"):
        faults, checks, measures, tallies = pickle.loads(books)
        for ours, theirs in ((FAULTS, faults), (CHECKS, checks), (MEASURES, measures)):
            ours.extend(theirs)
        for key, theirs in tallies.items():
            tally = node.config.stash[SESSION].tallies[key]
            tally.cases += theirs.cases
            tally.wrong += theirs.wrong
            tally.seconds += theirs.seconds


def pytest_report_header() -> str:
    return f"rabbit-chx: RABBIT_CHX_SEED={SEED}{' RABBIT_CHX_PROOF=long' if LONG else ''}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if not report.skipped and (report.when == "call" or report.failed):
        for mark in item.iter_markers("proves"):
            area, what, control = mark.args
            tally = item.config.stash[SESSION].tallies[area, what, release_of(item), control]
            tally.cases += report.when == "call"
            tally.wrong += report.failed
            tally.seconds += report.duration
    return report


def release_of(item: pytest.Item) -> str:
    """The release of RabbitMQ that a test was told to use."""
    callspec = getattr(item, "callspec", None)
    given = callspec.params if callspec else {}
    return str(next((given[name] for name in ("broker", "cluster", "release") if name in given), ""))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    session = config.stash[SESSION]
    checks = [*CHECKS, *counted(session)]
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
        stats = {
            name: len(terminalreporter.stats.get(name, ()))
            for name in ("passed", "failed", "error", "skipped")
        }
        minutes = (time.monotonic() - session.started) / 60
        text = "\n".join(written(FAULTS, checks, stats, minutes, list(not_run(terminalreporter))))
        into(page, text)
        terminalreporter.line(f"\nwritten into {page}")


def counted(session: Session) -> Iterator[Check]:
    for (area, what, release, control), tally in session.tallies.items():
        yield Check(area, what, release, tally.cases, tally.wrong, tally.seconds, control)


def not_run(terminalreporter: Any) -> Iterator[str]:
    """Each test that was skipped, and why."""
    for report in terminalreporter.stats.get("skipped", ()):
        _, _, why = report.longrepr
        yield f"{report.nodeid.partition('::')[2]}: {why.removeprefix('Skipped: ')}"


# -- values in, values out ------------------------------------------------------------------------------


def tables(
    faults: Sequence[Fault], checks: Sequence[Check]
) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """For each area its title, the names of the columns, and the rows."""
    for areas, lines, head in ((FAULT_AREAS, faults, FAULT_HEAD), (CHECK_AREAS, checks, CHECK_HEAD)):
        places = list(dict.fromkeys([*areas, *(line.area for line in lines)]))
        ordered = sorted(lines, key=lambda line: places.index(line.area))
        for area, group in groupby(ordered, key=lambda line: line.area):
            title = f"{area}: faults" if head is FAULT_HEAD else f"{area}: checks"
            yield title, head, [cells(line) for line in group]


def cells(line: Fault | Check) -> tuple[str, ...]:
    match line:
        case Fault():
            return (
                *(line.scenario, line.release, f"{line.messages:,}", f"{line.faults:,}", f"{line.lost:,}"),
                *(
                    f"{line.unexpected:,}",
                    f"{line.duplicated:,}",
                    f"{line.seconds:.1f}",
                    line.control,
                    line.note,
                ),
            )
        case Check():
            return (
                *(line.what, line.release, f"{line.cases:,}", f"{line.wrong:,}", f"{line.seconds:.1f}"),
                line.control,
            )


def aligned(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The columns of a terminal: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        numbers = {
            place for place in range(len(head)) if rows[0][place][:1].isdigit() and head[place] != "release"
        }
        numbers -= {0, len(head) - 1, *(() if len(head) == len(CHECK_HEAD) else (len(head) - 2,))}
        yield "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()


def written(
    faults: Sequence[Fault],
    checks: Sequence[Check],
    stats: dict[str, int],
    minutes: float,
    skipped: list[str],
) -> Iterator[str]:
    """The lines of the page between its two marks."""
    yield (
        f"{len(faults)} scenarios, {sum(line.faults for line in faults):,} faults, "
        f"{sum(line.messages for line in faults):,} messages: "
        f"**{sum(line.lost for line in faults):,} lost**, {sum(line.unexpected for line in faults):,} unexpected. "
        f"{sum(line.cases for line in checks):,} cases checked: **{sum(line.wrong for line in checks):,} wrong**. "
        f"Tests: {', '.join(f'{count:,} {name}' for name, count in stats.items() if count)}. "
        f"Seed {SEED}, {minutes:.0f} minutes, Python {platform.python_version()}."
    )
    for title, head, rows in tables(faults, checks):
        yield f"\n## {title}\n"
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        yield from (f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)
    if MEASURES:
        yield "\n## What else was measured\n"
        yield from (f"* {line}" for line in MEASURES)
    if skipped:
        yield "\n## Not run\n"
        yield from (f"* {line}" for line in skipped)


def into(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a page; a page that is not there is made."""
    old = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise pytest.UsageError(f"{page}: the tables go between {BEGIN} and {END}, which are not there")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
