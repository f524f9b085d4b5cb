"""Makes virtual environments on a machine nobody prepared, and has pip install pinned releases into them.

Rules of this file: it imports the standard library and the `pins` beside it. What it installs is pinned, and pip checks each
file's hash before it opens it; nothing is built here but PySpark, of which there are no wheels, and this checkout. It
changes the machine outside the environments only by apt, on Debian and Ubuntu, as root or by a sudo that asks no password,
and says so.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from pins import CONSTRAINTS, HASHES, needed, read_hashes, with_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLDEST = (3, 11)
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]


def make_environment(folder: Path) -> None:
    """Make `folder` a virtual environment with pip in it, unless it is one."""
    if is_usable(folder):
        return
    say(f"making the environment {folder.name} with Python {platform.python_version()}")
    with hash_checked(pinned("pip")) as pip:
        if any(make_by(way, folder) for way in ways_to_an_environment(folder, pip)):
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


def ways_to_an_environment(folder: Path, pip: list[str]) -> list[list[list[str]]]:
    """What may work on a machine nobody prepared, the usual way first. None of it changes the machine.

    `pip` are the arguments that install a pip. Python's own way and virtualenv bring one that needs no index.
    """
    python = str(folder / "bin/python")
    return [
        [[sys.executable, "-m", "venv", str(folder)]],
        [
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [sys.executable, "-m", "pip", "--python", python, "install", *pip],
        ],
        [["virtualenv", "--python", sys.executable, str(folder)]],
        [
            ["uv", "venv", "--python", sys.executable, str(folder)],
            ["uv", "pip", "install", "--python", python, *pip],
        ],
    ]


def make_by(way: list[list[str]], folder: Path) -> bool:
    """Run the commands of one way in an empty place; say whether a usable environment came of it."""
    shutil.rmtree(folder, ignore_errors=True)
    return all(works(*command) for command in way) and is_usable(folder)


def is_usable(folder: Path) -> bool:
    """Whether the environment runs, has pip, and is of the Python that was named to make, if one was."""
    named = f"=={sys.version_info[:2]}" if os.environ.get("PYTHON") else f">={OLDEST}"
    return works(str(folder / "bin/python"), "-c", f"import pip, sys; assert sys.version_info[:2] {named}")


# --- what pip installs ----------------------------------------------------------------------------------------


def pinned(*askers: str) -> list[str]:
    """Return the pins that these ask for, `name==version` each; constraints.txt has the names of lists and packages."""
    return needed(CONSTRAINTS.read_text(), *askers)


def install_checkout(folder: Path, releases: list[str]) -> None:
    """Install the releases, and then this checkout, for which nothing is left to fetch: what builds it is among them."""
    install(folder, releases)
    finish(run_pip(folder, "--no-deps", "--no-build-isolation", "--editable", "."))


def install(folder: Path, releases: list[str], *options: str) -> None:
    """Install these releases and nothing else; end where that fails."""
    # PySpark is released as sources alone. What builds it must be there before it.
    sources = [one for one in releases if one.startswith("pyspark==")]
    wheels = [one for one in releases if one not in sources]
    finish(run_pip_on(folder, wheels, "--only-binary", ":all:", *options))
    if sources:
        finish(run_pip_on(folder, sources, "--no-build-isolation", *options))


def run_pip_on(folder: Path, releases: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Let pip install these releases, and no file whose hash is not in hashes.txt."""
    with hash_checked(releases) as required:
        return run_pip(folder, *required, *options)


@contextlib.contextmanager
def hash_checked(releases: list[str]) -> Iterator[list[str]]:
    """Give the arguments that make pip install these releases, and no file whose hash is not in hashes.txt."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(with_hashes(read_hashes(HASHES.read_text()), releases))
        file.flush()
        yield ["--require-hashes", "--requirement", file.name]


def finish(done: subprocess.CompletedProcess[str]) -> None:
    """End where pip failed."""
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit("rabbit-chx: pip failed, see above. Index and proxy are those of your pip configuration.")


def run_pip(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pip install` in the environment, and keep what it prints."""
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    # Python compiles what is imported when it is imported: seconds less until the demo shows something.
    pip.append("--no-compile")
    # Settings of the user that cannot be kept here: an environment has no user's folder, and a checkout no hash.
    return run([*pip, *arguments], PIP_USER="0", PIP_REQUIRE_HASHES="0")


# --- the machine --------------------------------------------------------------------------------------------


def apt_install(package: str) -> bool:
    """Install a Debian package without starting any service, unless APT=no forbids it or it needs a password."""
    if not can_install():
        return False
    say(f"installing the Debian package {package}{' with sudo' if SUDO else ''} (make APT=no forbids this)")
    done = run([*SUDO, "sh", "scripts/apt-install.sh", package])
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode == 0


def can_install() -> bool:
    """Whether apt is allowed and available, as root or with a sudo that asks for no password."""
    return os.environ.get("APT") != "no" and shutil.which("apt-get") is not None and works(*SUDO, "true")


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
