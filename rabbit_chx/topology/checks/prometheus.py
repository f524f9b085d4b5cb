"""Drift as metrics in the text format of Prometheus, for the textfile collector of its node exporter.

Every kind of drift has a line, with 0 if there is none, so that alerts always have a value. The caller must replace
the file atomically, because the exporter may read it at any time. This module does no IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rabbit_chx.topology.checks.drift import KINDS, Drift

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def prometheus_metrics(drifts: Iterable[Drift], *, vhost: str, checked_at: float) -> str:
    """The exposition text of one check; ``vhost`` is a label of every metric.

    ``checked_at`` is the time of the check in seconds since 1970, so that an alert can detect checks that stopped.
    """
    drifts = list(drifts)
    counts = Counter(drift.kind for drift in drifts)
    lines = [
        *_head("rabbit_chx_drift", "Differences between the broker and its topology file, by kind."),
        *(_line("rabbit_chx_drift", {"vhost": vhost, "kind": kind}, counts[kind]) for kind in KINDS),
    ]
    misrouted = [drift for drift in drifts if drift.misrouted is not None]
    if misrouted:
        name = "rabbit_chx_misrouted_share"
        lines += _head(name, "Share of the keys of an exchange that go elsewhere than the file says.")
        lines += [
            _line(name, {"vhost": vhost, "where": drift.where}, drift.misrouted or 0.0) for drift in misrouted
        ]
    name = "rabbit_chx_check_timestamp_seconds"
    lines += [*_head(name, "When the broker was last compared with its topology file.")]
    lines += [_line(name, {"vhost": vhost}, checked_at)]
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} gauge"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}"
