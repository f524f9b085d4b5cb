"""The metrics of a check: the text that Prometheus reads, whatever the names in it."""

from __future__ import annotations

import re

import pytest

from rabbit_chx.topology.checks.drift import KINDS, Drift, prometheus_metrics

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (-?[0-9.e+-]+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def read(text: str) -> dict[tuple[str, ...], float]:
    """The samples by name and label values; any line that the format does not allow is an error."""
    assert text.endswith("\n")
    samples: dict[tuple[str, ...], float] = {}
    described: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            described.add(line.split()[2])
            assert line.split()[3] == "gauge"
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in described
            labels = [
                re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)
                for _, value in LABEL.findall(match[2])
            ]
            samples[(match[1], *labels)] = float(match[3])
    return samples


def test_every_kind_has_its_count_and_the_check_its_time():
    drifts = [Drift("weight", "a", "m"), Drift("weight", "b", "m"), Drift("slot", "c", "m")]
    samples = read(prometheus_metrics(drifts, vhost="/", checked_at=1_700_000_000.5))
    assert samples.pop(("rabbit_chx_check_timestamp_seconds", "/")) == 1_700_000_000.5
    assert set(samples) == {("rabbit_chx_drift", "/", kind) for kind in KINDS}
    assert {key[2]: value for key, value in samples.items() if value} == {"weight": 2, "slot": 1}


@pytest.mark.parametrize("share", [0.1234567890123, 0.0])
@pytest.mark.parametrize("name", ["exchange 'x'", 'a"b\\c\nd'])
def test_a_misrouted_share_is_exact_with_any_names(name, share):
    samples = read(prometheus_metrics([Drift("ring", name, "m", share)], vhost=name, checked_at=1.0))
    assert samples["rabbit_chx_misrouted_share", name, name] == share


def test_no_drift_is_all_zeros():
    samples = read(prometheus_metrics((), vhost="v", checked_at=7.0))
    assert sum(value for key, value in samples.items() if key[0] == "rabbit_chx_drift") == 0
    assert samples["rabbit_chx_check_timestamp_seconds", "v"] == 7.0
