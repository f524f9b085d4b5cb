"""The places where a secret could appear after an error, and the texts found there."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.canary import found
from tests.members import in_background

KINDS = ("log", "exceptions", "reprs", "pickles", "output", "files", "command lines")


class Places:
    """All texts, by place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """A folder whose files must contain no secret."""
        self._texts: dict[str, list[str]] = defaultdict(list)

    def note(self, place: str, *texts: object) -> None:
        assert place in KINDS, place
        self._texts[place] += map(str, texts)

    def show(self, *objects: object) -> None:
        """Keep the texts of objects."""
        for each in objects:
            self.note("reprs", repr(each), str(each), f"{each}")

    def catch(self, error: BaseException) -> None:
        """Keep all texts of an error and of the errors behind it, even those that Python does not print."""
        self.note("exceptions", *traceback.format_exception(error))
        todo, known = [error], set()
        while todo:
            each = todo.pop()
            if id(each) in known:
                continue
            known.add(id(each))
            self.note("exceptions", repr(each), str(each), repr(each.args), repr(vars(each)))
            self.note("exceptions", *getattr(each, "__notes__", ()))
            todo += filter(None, (each.__cause__, each.__context__, *getattr(each, "exceptions", ())))
        with suppress(Exception):  # not every error of other libraries can be pickled
            self.note("pickles", pickle.dumps(error, 0).decode("latin-1"))

    def leaks(self, secrets: list[str]) -> dict[str, list[str]]:
        """Search all places for secrets, the files of the folder included."""
        files = [file for file in self.folder.rglob("*") if file.is_file()]
        self._texts["files"] = [f"{file.name}\n{file.read_text(errors='replace')}" for file in files]
        leaks = {place: found("\n".join(texts), secrets) for place, texts in self._texts.items()}
        return {place: what for place, what in leaks.items() if what}

    @property
    def seen(self) -> set[str]:
        return {place for place, texts in self._texts.items() if any(texts)}

    @contextmanager
    def scenario(self) -> Iterator[None]:
        """Keep everything that is logged at DEBUG, also by pika, aio-pika, aiormq, asyncio and urllib3."""
        handler = _Keeper(self)
        root, level = logging.getLogger(), logging.getLogger().level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    @contextmanager
    def processes(self) -> Iterator[None]:
        """Keep the command lines of all programs that run meanwhile."""
        try:
            with command_lines() as lines:
                yield
        finally:
            self.note("command lines", *sorted(lines))


class _Keeper(logging.Handler):
    def __init__(self, places: Places) -> None:
        super().__init__(logging.DEBUG)
        self._places = places

    def emit(self, record: logging.LogRecord) -> None:
        self._places.note("log", f"{record.name} {self.format(record)} {record.args!r}")


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """The command lines of all programs that run meanwhile."""
    lines: set[str] = set()

    def watch(ended: threading.Event) -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.1)
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    lines.add((process / "cmdline").read_text(errors="replace").replace("\0", " "))

    with in_background(watch):
        yield lines


def plant(places: Places, place: str, secret: str) -> None:
    """Leak a secret at one place, as a careless program would."""
    url = f"amqp://user:{secret}@host"
    match place:
        case "log":
            with places.scenario():
                logging.getLogger("pika.adapters").debug("connecting to %s", url)
        case "exceptions" | "pickles":
            try:
                try:
                    int(url)
                except ValueError:
                    raise OSError("no broker") from None  # the context still holds the first error
            except OSError as error:
                places.catch(error)
            if place == "pickles":
                places.catch(OSError(url))
        case "reprs":
            places.show([url])
        case "output":
            places.note("output", f"Error: {url}")
        case "files":
            (places.folder / "position").write_text(url)
        case "command lines":
            program = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", url]
            with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
                assert running.stdout
                running.stdout.readline()  # it runs
                with places.processes():
                    pass
                running.communicate()
