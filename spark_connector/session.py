"""The settings that `register` reads from a session: default options, and settings that make a write invalid.

Spark creates readers and writers in a Python process that cannot access the session. So `register` reads the
settings in the user's own process and ships them with the data source. This module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rabbit_chx import InvalidValue
from rabbit_chx.errors import Unquoted
from spark_connector.connection_options import several, targets_in
from spark_connector.option_table import OptionTable, keys_of, nearest, option_name
from spark_connector.queues.options import QueueOptions
from spark_connector.reading.options import ReadOptions
from spark_connector.writing.options import WriteOptions

_Table = TypeVar("_Table", bound=OptionTable)

PREFIX: Final = "spark.datasource.rabbitmq."
"""The prefix of the settings, by Spark's own convention for data sources."""
_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"
_VERSION_SECONDS: Final = 10.0
_URLS: Final = {"url", "managementUrl"}
"""The options that are URLs, which may contain a password."""
_TABLES: Final = (WriteOptions, ReadOptions, QueueOptions)


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session when `register` was called."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Default options; they may contain secrets."""
    speculation: bool = False
    counts: Any = None
    """The `WriteCounts` of the program; None with Spark Connect."""
    local: bool = False
    """Whether the tasks run on the driver's machine, with its environment."""
    in_terminal: bool = False
    """Whether the stderr of the tasks is a terminal in which Spark shows its progress."""

    @classmethod
    def of(cls, settings: Mapping[str, str], *, terminal: bool = False) -> SessionSettings:
        """Select the format's settings from all settings of a session; ``terminal``: whether stderr is a terminal.

        Raises:
            InvalidValue: a default for an option that does not exist, or one that contains a password.
        """
        options = {
            name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)
        }
        known = {name: option_name(key) for table in _TABLES for name, key in keys_of(table).items()}
        for name, value in options.items():
            if name.lower() not in known:
                hint = nearest(name, known.values()).strip()
                raise InvalidValue("setting", PREFIX + name, f"{PREFIX} and the name of an option", hint)
            _check_no_password(known[name.lower()], value)
        on = {name for name, value in settings.items() if value.lower() == "true"}
        local = _is_local(settings.get("spark.master", ""))
        return cls(
            options,
            speculation="spark.speculation" in on,
            local=local,
            in_terminal=terminal and local and "spark.ui.showConsoleProgress" in on,
        )

    def reads_queue(self, given: Mapping[str, str]) -> bool:
        """Whether a read with these options reads a queue."""
        return "queue" in (targets_in(given) or targets_in(self.options))

    def complete(self, table: type[_Table], given: Mapping[str, str]) -> _Table:
        """Parse the given options of a read or write, with the session's defaults for other options."""
        return table.of({**table.applicable_defaults(given, self.options), **given})


def _check_no_password(option: str, value: str) -> None:
    """Raise if a setting contains a password: Spark masks neither all settings nor all places in which it shows them."""
    shown = "Spark shows settings in its UI and its event log"
    if option == "tlsKeyPassword":
        hint = (
            f"{shown}. Set tlsKeyFile to a key without a password, in a file that only Spark's user may read"
        )
    elif option == "password" or (option in _URLS and any(map(_has_password, several(value)))):
        hint = f"{shown}. Set {PREFIX}passwordEnv or {PREFIX}passwordFile"
    else:
        return
    raise InvalidValue(f"setting {PREFIX}{option}", Unquoted("a password"), "no password in a setting", hint)


def _has_password(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    user, _, _ = (rest or scheme).rpartition("@")  # a user may contain an @
    return ":" in user


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def set_python_of_tasks(context: Any) -> None:
    """Let the tasks of a local session run this Python instead of the first ``python3`` on the PATH.

    The two differ in an IDE or a notebook that starts Python by its path without activating its environment. A program
    that is missing or prints no version is left to Spark, whose error names the program.

    Raises:
        InvalidValue: the tasks would run another minor version of Python, at least on this machine, where Spark also runs it to plan a
            write.
    """
    if _is_local(context.master) and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    if context.pythonExec == sys.executable or (program := shutil.which(context.pythonExec)) is None:
        return
    try:
        version = subprocess.check_output(  # noqa: S603 - Spark runs it, too
            [program, "-c", _VERSION], timeout=_VERSION_SECONDS, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return
    if re.fullmatch(r"\d+\.\d+", version) and version != context.pythonVer:
        raise InvalidValue(
            "Python of the tasks",
            Unquoted(f"Python {version} ({program})"),
            f"Python {context.pythonVer}, like the driver",
            f"Set PYSPARK_PYTHON before Spark starts, for example to {sys.executable}",
        )
