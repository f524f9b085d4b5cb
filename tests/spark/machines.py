"""A standalone cluster of Spark whose master and workers have separate file systems, as on separate machines.

Each process has a root of its own in a mount namespace: the system, a Python without packages, Java and Spark, read-only. The
repository, the driver's environment and its folder do not exist there. Needs Linux, and either root or user namespaces.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.patience import wait_until
from tests.programs import ran
from tests.spark import BRIEF_JAVA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON: Final = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
"""The Python of all machines."""
_UNSHARE: Final = (
    *("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--propagation", "private"),
    *(() if os.geteuid() == 0 else ("--map-root-user",)),
)
_ROOT: Final = """
mount -t tmpfs machine "$ROOT"
shared() {
    mkdir -p "$ROOT$2"
    mount --bind "$1" "$ROOT$2"
    mount -o remount,bind,ro "$ROOT$2"
}
for part in /etc /usr "$PREFIX" "$JAVA_HOME"; do
    test -d "$ROOT$part/." || shared "$part" "$part"
done
for part in bin lib lib64 sbin; do
    if test -L "/$part"; then cp -P "/$part" "$ROOT"; elif test -d "/$part"; then shared "/$part" "/$part"; fi
done
for part in bin jars python; do shared "$SPARK/$part" "/opt/spark/$part"; done
for packages in "$ROOT$PREFIX"{,/local}/lib/python3*/{dist,site}-packages; do
    if test -d "$packages"; then mount -t tmpfs packages "$packages"; fi
done
mkdir -m 1777 "$ROOT/tmp"
mkdir "$ROOT/proc" "$ROOT/dev" "$ROOT/home"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
hostname "$NAME"
exec chroot "$ROOT" env -i PATH=/usr/bin:/bin JAVA_HOME="$JAVA_HOME" SPARK_HOME=/opt/spark SPARK_LOCAL_IP="$HOST" \
    SPARK_DAEMON_MEMORY=256m SPARK_DAEMON_JAVA_OPTS="$OPTIONS" /opt/spark/bin/spark-class \
    "$@" --host "$HOST" --webui-port 0
"""


@cache
def why_none() -> str:
    """Why this user cannot have machines here; nothing if that is possible."""
    try:
        tried = ran(
            [*_UNSHARE, "sh", "-euc", "mount -t tmpfs none /tmp; mount -t proc none /tmp; hostname own"]
        )
    except FileNotFoundError:
        return "machines with separate file systems need Linux: there is no unshare"
    needed = "root or user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
    reason = f"machines with separate file systems need {needed}: {tried.stderr.strip()}"
    return reason if tried.returncode else ""


@contextmanager
def machine(folder: Path, name: str, host: str, *command: str) -> Iterator[Callable[[str], str]]:
    """Run a class of Spark on a machine of this name. The result waits for a line of its log, and returns the group of the pattern.

    The namespaces end with the process. Each machine has an address of its own: executors with one address read each other's files.
    """
    import pyspark

    root = folder / name
    root.mkdir()
    log = folder / f"{name}.log"
    given = {"ROOT": root, "NAME": name, "HOST": host, "PREFIX": sys.base_prefix}
    given["SPARK"] = Path(pyspark.__file__).parent
    given["OPTIONS"] = f"-Dspark.master.rest.enabled=false {BRIEF_JAVA}"  # its port is always 6066
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*_UNSHARE, "bash", "-euc", _ROOT, "bash", *command],
            env={**os.environ, **{key: str(value) for key, value in given.items()}},
            stdout=file,
            stderr=subprocess.STDOUT,
        )

    def said(pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, log.read_text())

        wait_until(lambda: found() or process.poll() is not None, lambda: f"{pattern} in {log.read_text()}")
        assert process.poll() is None, f"{name} has ended: {log.read_text()}"
        return found()[1]

    try:
        yield said
    finally:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder: Path, *workers: str) -> Iterator[str]:
    """A master and these workers with one core each; returns the master's URL."""
    if why_none():
        pytest.skip(why_none())
    limits = ("--cores", "1", "--memory", "800m", "--work-dir", "/home")
    with ExitStack() as stack:
        master = machine(
            folder, "master", "127.0.0.1", "org.apache.spark.deploy.master.Master", "--port", "0"
        )
        url = stack.enter_context(master)(r"Starting Spark master at (spark://\S+)\n")
        started = [
            stack.enter_context(
                machine(
                    folder, name, f"127.0.0.{last}", "org.apache.spark.deploy.worker.Worker", url, *limits
                )
            )
            for last, name in enumerate(workers, 2)
        ]
        for said in started:
            said(r"Successfully registered with master (\S+)\n")
        yield url
