"""Secrets that are easy to find in any text, and a search for them after each test.

Once a broker was started, a test fails if its password, or another secret that `canary` made, was printed or logged, was in an error
that ``pytest.raises`` caught or in what a program printed, or is in a file of its ``tmp_path``.
"""

from __future__ import annotations

import pickle
import subprocess
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus
from uuid import uuid4

import pytest

from rabbit_chx.testing import Broker

LARGEST: Final = 1 << 20
"""Bytes of a file that is searched."""

_secrets: set[str] = set()
_brokers: set[str] = set()
"""Their passwords; without one, nothing is searched."""
_shown: list[str] = []
_exempt: set[Path] = set()


def canary(name: str) -> str:
    """A secret that contains its name."""
    _secrets.add(secret := f"CANARY-{name}-{uuid4().hex[:8]}")
    return secret


def of_broker(password: str) -> str:
    """The password of a broker that runs; those of `Broker` need not be named."""
    _brokers.add(password)
    return password


def may_hold(file: Path) -> Path:
    """A file that has to hold a secret, and is not searched."""
    _exempt.add(file.absolute())
    return file


@cache
def forms(secret: str) -> frozenset[str]:
    """The forms of a secret in a text: as it is, in URLs and reprs, and within Base64."""
    data = secret.encode()
    # In Base64 a secret may begin at three offsets; characters that it shares with its neighbours are left out.
    coded = {
        b64encode(b"x" * before + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        for before in range(3)
    }
    plain = {secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1], data.hex()}
    return frozenset(plain | coded)


def found(text: str, secrets: Iterable[str]) -> list[str]:
    """Each secret that the text contains in any form, with the text before it."""
    written = (form for secret in secrets for form in sorted(forms(secret)))
    return [text[max(text.index(form) - 200, 0) :][:250] for form in written if form in text]


def look(place: str, *texts: object) -> None:
    """Search what was shown somewhere; the test that runs now fails at its end."""
    for each in texts if _brokers else ():
        text = each.decode(errors="replace") if isinstance(each, bytes) else str(each)
        _shown.extend(f"{place}: {one}" for one in found(text, _secrets | _brokers))


def look_at_files(folder: Path) -> None:
    for file in folder.rglob("*") if _brokers else ():
        with suppress(OSError):  # it was removed meanwhile
            if file not in _exempt and file.is_file() and file.stat().st_size <= LARGEST:
                look(f"the file {file}", file.name, file.read_bytes())


def look_at_error(error: BaseException) -> None:
    """Search an error and the errors behind it, even those that Python does not print."""
    if not _brokers:
        return
    look("an error", *traceback.format_exception(error))
    with suppress(Exception):  # not every error of other libraries can be pickled
        look("a pickled error", pickle.dumps(error, 0).decode("latin-1"))
    todo, known = [error], set[int]()
    while todo:
        if id(each := todo.pop()) not in known:
            known.add(id(each))
            with suppress(Exception):  # those of Spark ask a JVM for their text
                look("an error", repr(each), each, each.args, vars(each))
            todo += filter(None, (each.__cause__, each.__context__, *getattr(each, "exceptions", ())))


def _after(owner: type, name: str, then: Callable[..., object]) -> None:
    """Call something else after each call of a method, with the object, the result, and the arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def both(self: Any, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        then(self, result, *arguments)
        return result

    setattr(owner, name, both)


def _started(broker: Broker, *_: object) -> None:
    if broker.source.kind != "external":  # its password may be any word
        of_broker(broker._settings.password)


def _communicated(program: subprocess.Popen[Any], outputs: Iterator[Any], *_: object) -> None:
    look(f"the output of {program.args}", *filter(None, outputs))


_after(Broker, "start", _started)
_after(subprocess.Popen, "communicate", _communicated)
_after(pytest.CaptureFixture, "readouterr", lambda _, outputs: look("the output", *outputs))
_after(pytest.ExceptionInfo, "fill_unfilled", lambda _, _none, caught: look_at_error(caught[1]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if call.when == "teardown":
        for place, text in report.sections:
            look(place, text)
        if folder := getattr(item, "funcargs", {}).get("tmp_path"):
            look_at_files(folder)
        if _shown:
            text = "\n".join(["the test shows a secret", *dict.fromkeys(_shown), report.longreprtext])
            # A leak that appears only sometimes is still a leak: no second try (tests/second_try.py).
            report.outcome, report.longrepr, report.final = "failed", text, True
            _shown.clear()
    return report
