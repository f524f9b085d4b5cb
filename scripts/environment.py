"""Create virtual environments on an unprepared machine, and install pinned releases into them with pip.

Rules for this file: it imports only the standard library and `pins`. Every release it installs is pinned, and pip checks the
hash of each file before opening it; it builds only PySpark, which has no wheels, and this checkout. It changes the machine
outside the environments only through apt, on Debian and Ubuntu, as root or with a passwordless sudo, and reports it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pins import CONSTRAINTS, HASHES, needed, read_hashes, with_hashes

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST = (3, 11)
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]


def make_environment(folder: Path) -> None:
    """Make `folder` a virtual environment with pip, unless it already is one."""
    if is_usable(folder):
        return
    say(f"making the environment {folder.name} with Python {platform.python_version()}")
    with hash_checked(pinned("pip")) as pip:
        if any(make_by(way, folder) for way in ways_to_an_environment(folder, pip)):
            return
    # Debian ships the part of the standard library that installs pip into an environment as a separate package.
    package = "python{}.{}-venv".format(*sys.version_info)
    if apt_install(package) and make_by([[sys.executable, "-m", "venv", str(folder)]], folder):
        return
    sys.exit(
        f"rabbit-chx: {sys.executable} cannot make a virtual environment with pip in it.\n"
        f"Install one of {package} (Debian, Ubuntu: apt install {package}), virtualenv or uv,\n"
        "or name another Python: make PYTHON=/path/to/python"
    )


def ways_to_an_environment(folder: Path, pip: list[str]) -> list[list[list[str]]]:
    """Return the ways to make an environment on an unprepared machine, the usual one first; none changes the machine.

    `pip` holds the arguments that install pip. Python's venv and virtualenv bundle a pip, which needs no index.
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
    """Run the commands of one way, starting from an empty folder; return whether they made a usable environment."""
    shutil.rmtree(folder, ignore_errors=True)
    return all(works(*command) for command in way) and is_usable(folder)


def is_usable(folder: Path) -> bool:
    """Return whether the environment runs, has pip, and uses the Python passed to make, if any."""
    named = f"=={sys.version_info[:2]}" if os.environ.get("PYTHON") else f">={OLDEST}"
    return works(str(folder / "bin/python"), "-c", f"import pip, sys; assert sys.version_info[:2] {named}")


def find_python(version: str) -> str | None:
    """Return the path of a Python of this version, such as 3.13: on the PATH, or one that pyenv installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))]
    for python in filter(None, map(shutil.which, found)):
        if works(python, "-c", "import tomllib, venv"):  # a command of pyenv's may have no Python behind it
            return python
    return None


# --- what pip installs ----------------------------------------------------------------------------------------


def pinned(*askers: str) -> list[str]:
    """Return the pins that these lists or packages require, each as `name==version`; constraints.txt defines the names."""
    return needed(CONSTRAINTS.read_text(), *askers)


def install_checkout(folder: Path, releases: list[str]) -> None:
    """Install the releases and then this checkout, which needs no download: its build requirements are among the releases."""
    install(folder, releases)
    finish(run_pip(folder, "--no-deps", "--no-build-isolation", "--editable", "."))


def install(folder: Path, releases: list[str], *options: str) -> None:
    """Install these releases and nothing else; exit if that fails."""
    # These are published only as source archives, so their build requirements must be installed first.
    sources = [one for one in releases if one.startswith(("pyspark==", "python-qpid-proton=="))]
    wheels = [one for one in releases if one not in sources]
    finish(run_pip_on(folder, wheels, "--only-binary", ":all:", *options))
    if sources:
        # To compress the wheel of PySpark takes most of the time of building it, and pip unpacks it at once.
        stored = "--config-settings=--build-option=--compression=stored"
        finish(run_pip_on(folder, sources, "--no-build-isolation", stored, *options))


def run_pip_on(folder: Path, releases: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Install these releases with pip, which rejects files whose hash is not in hashes.txt."""
    with hash_checked(releases) as required:
        return run_pip(folder, *required, *options)


@contextlib.contextmanager
def hash_checked(releases: list[str]) -> Iterator[list[str]]:
    """Yield pip's arguments to install these releases and reject files whose hash is not in hashes.txt."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(with_hashes(read_hashes(HASHES.read_text()), releases))
        file.flush()
        yield ["--require-hashes", "--requirement", file.name]


def finish(done: subprocess.CompletedProcess[str]) -> None:
    """Exit if pip failed."""
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        sys.exit("rabbit-chx: pip failed, see above. Index and proxy are those of your pip configuration.")


def run_pip(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pip install` in the environment, and capture its output."""
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    # Python compiles modules on import, so the demo starts seconds earlier without compiling them here.
    pip.append("--no-compile")
    # User settings that do not work here: an environment has no user folder, and a checkout has no hash.
    return run([*pip, *arguments], PIP_USER="0", PIP_REQUIRE_HASHES="0")


# --- the machine --------------------------------------------------------------------------------------------


def apt_install(package: str) -> bool:
    """Install a Debian package without starting its services, unless APT=no forbids it or sudo needs a password."""
    if not can_install():
        return False
    say(f"installing the Debian package {package}{' with sudo' if SUDO else ''} (make APT=no forbids this)")
    done = run([*SUDO, "sh", "scripts/apt-install.sh", package])
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode == 0


def can_install() -> bool:
    """Return whether apt is allowed and available, as root or with a passwordless sudo."""
    return os.environ.get("APT") != "no" and shutil.which("apt-get") is not None and works(*SUDO, "true")


def works(*command: str) -> bool:
    """Return whether the command exists and succeeds."""
    return run(list(command)).returncode == 0


def run(command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command with additional environment variables, and capture its output."""
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
