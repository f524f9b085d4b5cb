"""The settings that `register` reads from a session: default options, and settings that make a write invalid.

Spark creates readers and writers in a Python process that cannot access the session. So `register` reads the
settings in the user's own process and ships them with the data source. This module imports neither PySpark nor Arrow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rabbit_chx import InvalidValue
from rabbit_chx.errors import Unquoted
from spark_connector.option_table import OptionTable, nearest, options_of
from spark_connector.options import WriteOptions, no_speculation, targets_in
from spark_connector.queue_options import QueueOptions
from spark_connector.read_options import ReadOptions

_Table = TypeVar("_Table", bound=OptionTable)

PREFIX: Final = "spark.datasource.rabbitmq."
"""The prefix of the settings, by Spark's own convention for data sources."""
_VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"
_VERSION_SECONDS: Final = 10.0
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

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> SessionSettings:
        """Select the format's settings from all settings of a session.

        Raises:
            InvalidValue: a default for an option that does not exist.
        """
        options = {
            name.removeprefix(PREFIX): value for name, value in settings.items() if name.startswith(PREFIX)
        }
        known = {
            name.lower(): one.name
            for table in _TABLES
            for one in options_of(table)
            for name in (one.name, *one.aliases)
        }
        for name in options:
            if name.lower() not in known:
                hint = nearest(name, known.values()).strip()
                raise InvalidValue("setting", PREFIX + name, f"{PREFIX} and the name of an option", hint)
        master = settings.get("spark.master", "")
        return cls(
            options,
            speculation=settings.get("spark.speculation", "").lower() == "true",
            local=master.startswith("local") and not master.startswith("local-cluster"),
        )

    def reads_queue(self, given: Mapping[str, str]) -> bool:
        """Whether a read with these options reads a queue."""
        return "queue" in (targets_in(given) or targets_in(self.options))

    def complete(self, table: type[_Table], given: Mapping[str, str]) -> _Table:
        """Parse the given options of a read or write, with the session's defaults for other options."""
        return table.of({**table.applicable_defaults(given, self.options), **given})

    def check_write(self, options: WriteOptions) -> None:
        """Raise before a task starts if all tasks would fail."""
        if self.speculation and options.refuses_speculation:
            raise no_speculation()


def use_python_of_driver(context: Any) -> None:
    """Let the tasks of a local session run this Python instead of the first ``python3`` on the PATH.

    The two differ in an IDE or a notebook that starts Python by its path without activating its environment.
    """
    if context.master.startswith("local[") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def check_python_of_tasks(context: Any) -> None:
    """Raise if the tasks would run another minor version of Python than the driver.

    Spark starts the same command on the driver to plan a write, so a Python on this machine is the one that counts. A command
    that is missing, or that prints no version, is left to Spark, which names it in its error.
    """
    program = shutil.which(context.pythonExec)
    if program is None or context.pythonExec == sys.executable:
        return
    try:
        version = subprocess.check_output(  # noqa: S603 - Spark runs it as well
            [program, "-c", _VERSION], timeout=_VERSION_SECONDS, text=True, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return
    if version and version != context.pythonVer:
        raise InvalidValue(
            "Python of the tasks",
            Unquoted(f"Python {version} ({program})"),
            f"Python {context.pythonVer}, like the driver",
            f"Set PYSPARK_PYTHON before Spark starts, for example to {sys.executable}",
        )
