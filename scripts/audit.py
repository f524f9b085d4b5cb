"""Check the pins of constraints.txt for known vulnerabilities with pip-audit, and report pins it could not look up.

Exits with 0 if every pin was looked up and none is vulnerable, with 1 if some are, and with 3 if pins could not be looked up.
pip-audit itself reports success if the service knows none of the packages, for example behind a package mirror.

Rules for this file: it imports only the standard library, and runs in the environment made by `bootstrap.py audit`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

SERVICES = ("pypi", "osv")  # pip-audit's names for the services
NOT_LOOKED_UP = 3
AUDIT = (
    *(sys.executable, "-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"),
    *("--format", "json", "--progress-spinner", "off"),
)


def main() -> int:
    """Query the services in turn until one of them knows every pin."""
    reasons = []
    for service in SERVICES:
        done = subprocess.run(
            [*AUDIT, "--vulnerability-service", service], capture_output=True, text=True, check=False
        )
        try:
            packages = json.loads(done.stdout)["dependencies"]
        except ValueError:
            # In a traceback the last line is the error.
            reasons.append(f"{service}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
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
    """Print a line for each vulnerability found."""
    return [
        f"{one['name']} {one['version']}: {known['id']} {' '.join(known['aliases'])},"
        f" mended in {', '.join(known['fix_versions']) or 'no release yet'}"
        for one in packages
        for known in one.get("vulns", ())
    ]


if __name__ == "__main__":
    sys.exit(main())
