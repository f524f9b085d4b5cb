"""A test that shows a secret fails, wherever it shows it and in whatever form; and has no second try."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.canary import canary, found

pytest_plugins = "pytester"

HEAD = """
import logging, os, subprocess
import pytest
from tests.canary import canary, may_hold, of_broker

PASSWORD = of_broker("the password of a broker")
URL = f"amqp://user:{canary('planted')}@host"


class Hidden(Exception):
    __repr__ = __str__ = lambda _: "no broker answers"


def caught(error):
    with pytest.raises(type(error)):
        try:
            int(URL if isinstance(error, OSError) else "no number")
        except ValueError:
            raise error from None
"""
SHOWS = {
    "output": "os.write(2, URL.encode())",
    "taken": "print(URL); assert capsys.readouterr().out",
    "log": "caplog.set_level('DEBUG'); logging.getLogger('pika').debug('connecting to %s', URL)",
    "program": "subprocess.run(['cat'], input=URL, text=True, capture_output=True)",
    "context": "caught(OSError('no broker answers'))",
    "pickle": "caught(Hidden(Hidden(URL)))",
    "file": "(tmp_path / 'position').write_text(URL)",
    "password": "print(PASSWORD)",
    "fixture": "request.addfinalizer(lambda: print(URL))",
}
OTHERS = {
    "may": "may_hold(tmp_path / 'password').write_text(URL)",
    "clean": "caught(ValueError('no number'))",
    "fails": "assert not URL",
}


def test_a_test_that_shows_a_secret_fails(pytester, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    tests = (SHOWS | OTHERS).items()
    pytester.makepyfile(
        "\n".join(
            [HEAD, *(f"def test_{name}(capsys, caplog, tmp_path, request): {line}" for name, line in tests)]
        )
    )
    result = pytester.runpytest_subprocess("-p", "tests.canary", "-p", "tests.second_try", "--second-try")
    result.assert_outcomes(passed=len(SHOWS) + 2, errors=len(SHOWS), failed=1)
    assert result.outlines.count("the test shows a secret") == len(SHOWS)
    result.stdout.fnmatch_lines("*no second try: *test_output broke a promise*")


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
def test_a_secret_is_found_in_any_form(user) -> None:
    secret = f"{canary('form')}/:@%é"
    login = f"{user}:{secret}@".encode()
    coded = b64encode(login).decode()
    for text in (login.decode(), coded, login.hex(), repr([secret]), quote(secret, safe="")):
        assert found(text, [secret])
    assert found(coded[:-8], [secret]) == []
