"""Asks pip-audit whether the pins of constraints.txt have known vulnerabilities, and says so when nobody could tell.

Ends with 0 when every pin was looked up and none has any, with 1 when some have, with 3 when pins could not be looked up:
pip-audit itself calls it a success when the service knows none of the packages, as behind a mirror of an index.

Rules of this file: it imports the standard library alone, and runs in the environment that `bootstrap.py audit` made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SERVICES = ("pypi", "osv")  # by pip-audit's names for them, which knows where they are
NOT_LOOKED_UP = 3


def main() -> int:
    """Ask one service after the other until one knows every pin."""
    reasons = []
    for service in SERVICES:
        done = subprocess.run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pip_audit",
                    "--requirement",
                    "constraints.txt",
                    "--no-deps",
                    "--disable-pip",
                ),
                *("--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            packages = json.loads(done.stdout)["dependencies"]
        except ValueError:
            reasons.append(f"{service}: {last_line(done.stderr)}")
            continue
        if found := vulnerabilities(packages):
            print("\n".join(found))
            return 1
        unknown = [one["skip_reason"] for one in packages if "skip_reason" in one]
        if packages and not unknown:
            print(f"rabbit-chx: no known vulnerability in {len(packages)} pinned packages, says {service}")
            return 0
        reasons.append(f"{service}: {len(unknown)} of {len(packages)} packages unknown to it ({unknown[:1]})")
    print("rabbit-chx: NOT AUDITED. No service of vulnerabilities could be asked from here:", file=sys.stderr)
    print("\n".join(f"  {reason}" for reason in reasons), file=sys.stderr)
    return NOT_LOOKED_UP


def vulnerabilities(packages: list[dict[str, Any]]) -> list[str]:
    """Write a line for each that was found."""
    return [
        f"{one['name']} {one['version']}: {known['id']} {' '.join(known['aliases'])},"
        f" mended in {', '.join(known['fix_versions']) or 'no release yet'}"
        for one in packages
        for known in one.get("vulns", ())
    ]


def last_line(text: str) -> str:
    """Return what a program said last, which of a traceback is what happened."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
