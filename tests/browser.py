"""A headless browser that tests control over a pipe with Chromium's own protocol, so that no driver is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

from bootstrap import BROWSERS

from tests.patience import PATIENCE, wait_until
from tests.programs import needed

_WITH_PIPES = """
import os, sys
reads, writes, *command = sys.argv[1:]
os.dup2(int(reads), 3)
os.dup2(int(writes), 4)
os.execv(command[0], command)
"""
"""Starts the browser, which reads commands from file descriptor 3 and writes answers to 4."""


class Page:
    """A page of a running browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._read = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        """Errors and warnings of scripts, the network and the page's policy."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self._call(f"{domain}.enable")

    def open(
        self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False, policy: bool = True
    ) -> None:
        """Open a page in a window of this size; without its policy, every script in it runs."""
        self._call("Page.setBypassCSP", enabled=not policy)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        return wait_until(
            lambda: self.value(f"document.readyState !== 'loading' && ({expression})"),
            lambda: f"{expression}: {self.value('document.body.innerText')}",
            pause=0.05,
        )

    def wait_for_complaint(self, text: str) -> None:
        """Wait for an error or a warning with this text."""
        told = (
            "new Promise((resolve) => setTimeout(resolve, 50))"  # an answer, before which complaints are read
        )
        wait_until(
            lambda: any(text in one for one in self.complaints) or self.value(told),
            lambda: f"{text!r}: {self.complaints}",
            pause=0,
        )

    def press(self, key: str) -> None:
        """Press a key, such as Tab or Enter."""
        text = {"Enter": "\r", "Tab": ""}.get(key, key)
        code = {"Enter": 13, "Tab": 9, " ": 32}.get(key, 0)
        common = {"key": key, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def accessibility_tree(self) -> list[tuple[str, str]]:
        """The role and the name of everything on the page, as a screen reader gets them."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        until = monotonic() + PATIENCE
        while True:
            answer = self._next(until)
            self._note(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select([self._answers], [], [], max(0.0, until - monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has ended"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        if method == "Log.entryAdded" and parameters["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(parameters["entry"]["text"])


@contextmanager
def browser(folder: Path):
    """Start a headless browser with a profile in this folder, and yield an empty page."""
    program = needed(*BROWSERS)
    (reads, commands), (answers, writes) = os.pipe(), os.pipe()
    child_ends = [fcntl(end, F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
    for end in (reads, writes):
        os.close(end)
    options = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    options += ["--disable-dev-shm-usage", "--no-proxy-server", f"--user-data-dir={folder}"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PIPES, *map(str, child_ends), program, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=child_ends,
        )
    for end in child_ends:
        os.close(end)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)  # this ends the browser
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)
