"""The page of permissions as data: each command with the lines that grant it, and those lines with one thing less.

`Shop` is a virtual host with a user of few rights, and the ways in which the page's commands are called.
"""

from __future__ import annotations

import logging
import re
import shlex
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rabbit_chx.broker.applying.apply import apply
from rabbit_chx.broker.management import Management
from rabbit_chx.broker.reading.reader import read
from rabbit_chx.cli import _exit_code
from rabbit_chx.errors import RabbitChxError
from rabbit_chx.topology.file.load import load
from rabbit_chx.topology.planning.plan import plan
from tests.broker.topology_site import Site
from tests.canary import canary, look, look_at_error
from tests.proof import LONG

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
PASSWORD = canary("privileges")
OPERATIONS = ("configure", "write", "read")
OF_STREAMS = re.compile(r"Stream|^connect\(|^spark\.read")
"""Matches the calls of the page that use the stream port."""


def line_of_proof(what: str) -> pytest.MarkDecorator:
    """The line of the proof about these calls."""
    of_the_page = f"{what} with exactly what docs/permissions.md names"
    return pytest.mark.proves("Permissions", of_the_page, "each fails with any one of them taken away")


@dataclass(frozen=True)
class Grant:
    """What a user may do: three patterns, and a tag or none."""

    configure: str
    write: str
    read: str
    tag: str = ""

    @property
    def patterns(self):
        return [getattr(self, each) for each in OPERATIONS]

    def line(self, vhost, user):
        return " ".join(["rabbitmqctl set_permissions -p", *map(shlex.quote, (vhost, user, *self.patterns))])

    def weaker(self):
        """The same without one of the names of one of the patterns, or without the tag."""
        for operation in OPERATIONS:
            for name, rest in _less(getattr(self, operation)):
                yield Less(operation, name, replace(self, **{operation: rest}))
        if self.tag:
            yield Less("tag", self.tag, replace(self, tag="" if self.tag == "management" else "management"))


class Less(NamedTuple):
    """A grant in which something is missing: a permission on a name, or a tag."""

    missing: str
    name: str
    left: Grant

    def __str__(self):
        return f"without {self.missing} {self.name}"


def _less(pattern):
    """Each of the names that stand in a pattern, and the pattern without it."""
    if pattern == "^$":
        return
    found = re.fullmatch(r"\^\((.*)\)(\$?)", pattern)
    names = found[1].split("|") if found else [pattern]
    for name in names:
        others = [other for other in names if other != name]
        yield name, f"^({'|'.join(others)}){found[2]}" if others else "^$"


def sections():
    """The page: the commands of each block, and what they need."""
    found = {}
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for part in block.strip().split("\n\n"):
            lines = part.splitlines()
            commands = [line[2:].partition("  ")[0] for line in lines if line.startswith("# ")]
            grant = _grant([line for line in lines if not line.startswith("# ")])
            assert not set(commands) & set(found), commands
            found.update(dict.fromkeys(commands, grant))
    return found


def _grant(lines):
    (permissions, *tags) = map(shlex.split, lines)
    assert permissions[:5] == ["rabbitmqctl", "set_permissions", "-p", "VHOST", "USER"], permissions
    assert len(permissions) == 8
    for line in tags:
        assert line[:3] == ["rabbitmqctl", "set_user_tags", "USER"]
    return Grant(*permissions[5:], *[line[3] for line in tags])


class Shop(Site):
    """A virtual host with a user who may do what is granted, and nothing before."""

    def __init__(self, broker, folder):
        super().__init__(broker)
        self.folder = folder
        self.user = f"u{uuid.uuid4().hex[:8]}"
        self.own_url = self.url(self.user, PASSWORD)
        self.own_management = Management(broker.management_url, credentials=lambda: (self.user, PASSWORD))

    def __exit__(self, *exc):
        self.management._request("DELETE", ["users", self.user])
        super().__exit__(*exc)

    def allow(self, grant):
        self.management._request("PUT", ["users", self.user], body={"password": PASSWORD, "tags": grant.tag})
        self.grant(self.user, *grant.patterns)

    def follow(self, hints):
        """Run lines that errors have printed: with rabbitmqctl in the proof, and else over HTTP, which takes no second each."""
        for hint in hints:
            _, verb, *words = shlex.split(hint)
            if LONG:
                self.broker.ctl(verb, *words)
            elif verb == "set_user_tags":
                user, tag = words
                self.management._request("PUT", ["users", user], body={"password": PASSWORD, "tags": tag})
            else:
                assert (verb, *words[:2]) == ("set_permissions", "-p", self.vhost)
                self.grant(*words[2:])

    def write(self, name, text):
        """A topology file for this virtual host."""
        content = {"schema": 1, "vhost": self.vhost, **(yaml.safe_load(text) or {})}
        path = self.folder / name
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def be(self, path):
        """Recreate the virtual host as a file says."""
        for wanted in (self.write("nothing.yaml", ""), path):
            steps = plan(load(wanted), read(self.management, self.vhost), prune=True, force=True)
            apply(self.url(), steps, management=self.management)

    def seen(self):
        """The topology that others see, without the record of its order."""
        management = self.management
        found = [
            *(
                each
                for each in management.exchanges(self.vhost)
                if not each.name.startswith("rabbit-chx.order")
            ),
            *(each for each, *_ in management.queues(self.vhost)),
            *(each for each in management.bindings(self.vhost) if each.source != "rabbit-chx.order"),
            *management.policies(self.vhost),
        ]
        return sorted(map(repr, found))

    @contextmanager
    def environment(self, monkeypatch):
        """Where the broker is, as a user sets it once; what a command adds to the log's handlers goes with it."""
        handlers = logging.getLogger("rabbit_chx").handlers
        before = list(handlers)
        with monkeypatch.context() as patch:
            patch.setenv("AMQP_URL", self.own_url)
            patch.setenv("RABBITMQ_MANAGEMENT_URL", self.broker.management_url)
            patch.chdir(self.folder)
            yield
        handlers[:] = before


def run_cli(command, capsys):
    """The exit code of a command line and what it said."""
    capsys.readouterr()
    program, *arguments = shlex.split(command)
    assert program == "rabbit-chx"
    if arguments[0] == "doctor":  # whose table breaks lines
        arguments += ["--output", "json"]
    code = _exit_code(arguments)
    return code, "".join(capsys.readouterr())


def complaint_of(call):
    """What an error of ours says; nothing where there is none."""
    try:
        call()
    except RabbitChxError as error:
        look_at_error(error)
        return str(error)
    return ""


def check_complaint(text, less, shop, grant):
    """The error names what is missing, and shows the very line of the page, which is returned."""
    look("a complaint", text)
    assert "Traceback" not in text
    if less.missing == "tag":
        line = f"rabbitmqctl set_user_tags {shop.user} {grant.tag}"
        assert f"it needs the tag {grant.tag} (`{line}`)" in text
        return line
    found = re.search(
        r"user '(\w+)' has no ([a-z ]+) permission on (?:queue|exchange|stream) '(.*?)' in", text
    )
    assert found, text
    user, operations, name = found.groups()
    assert user == shop.user
    assert less.missing in operations.split(" or ")
    assert re.search(getattr(grant, less.missing), name)
    assert not re.search(getattr(less.left, less.missing), name)
    line = grant.line(shop.vhost, shop.user)
    assert f"`{line}`" in text
    return line


def release_of(broker):
    return tuple(map(int, re.findall(r"\d+", broker.version)[:3]))
