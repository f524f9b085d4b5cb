"""User and password for a broker: from its URL, from a file, or from a callable. No password appears in an error."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from rabbit_chx.base.urls import BrokerUrl
from rabbit_chx.errors import BrokerUnavailable, InvalidValue

Credentials: TypeAlias = Callable[[], tuple[str, str]] | Path
"""A callable that returns user and password, or the path of a file with the password of the URL's user.
Either is asked on each connect."""


def login(credentials: Credentials | None, url: BrokerUrl) -> tuple[str, str]:
    """Return the current user and password for a broker.

    Raises:
        BrokerUnavailable: the credentials cannot be read. The next attempt may succeed.
    """
    if credentials is None:
        return url.login
    try:
        if isinstance(credentials, Path):
            user, password = url.login[0], _password_in(credentials)
        else:
            user, password = credentials()
    except Exception as error:
        raise BrokerUnavailable(
            f"cannot read the credentials for {url}: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(user, str) and isinstance(password, str)):
        raise BrokerUnavailable(f"invalid credentials for {url}: expected two str")
    return user, password


def check_credentials(credentials: object, url: BrokerUrl) -> None:
    """Refuse credentials that can never work, before anything connects."""
    if url.external and credentials is not None:
        raise InvalidValue(
            "credentials",
            "a password and auth_mechanism=external",
            "one of the two",
            "Leave the password out: the client certificate replaces it",
        )
    if isinstance(credentials, Path):
        _password_in(credentials)
    elif not (credentials is None or callable(credentials)):
        raise InvalidValue(
            "credentials",
            type(credentials).__name__,  # never the value: it may be a password
            "a callable that returns user and password, or the pathlib.Path of a password file",
        )


def _password_in(path: Path) -> str:
    """The only line of a file. Its content appears in no error, nor in the cause of one."""
    text = problem = ""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            text = path.read_text("utf-8").removesuffix("\n")
            problem = (
                "The file is empty" if not text else "The file has several lines" if "\n" in text else ""
            )
        else:
            problem = "It must be a regular file, because it is read on each connect"
    except OSError as error:
        problem = str(error.strerror)
    except UnicodeDecodeError:  # it carries everything that was read
        problem = "The file is not UTF-8"
    if problem:
        raise InvalidValue("password file", str(path), "a file that contains only the password", problem)
    return text
