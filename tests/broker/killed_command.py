"""A command of `rabbit-chx` that is killed before one of its changes of the broker.

python -m tests.broker.killed_command NUMBER VERB ...

Commands that only read are not counted, nor are those for the lock and for answers, which end with the connection.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

from rabbit_chx.broker.applying.lock import LOCK
from rabbit_chx.broker.commands import Command, Driver, OnChannel, Pipelined
from rabbit_chx.cli import main


def changes(command: OnChannel) -> bool:
    """Whether a command leaves something behind on the broker."""
    given = command.arguments
    passes = given.get("passive") or given.get("exclusive")
    passes = passes or str(given.get("queue", "")).startswith((LOCK, "amq.gen-"))
    return command.method != "basic_get" and not passes


def kill_before(number: int) -> None:
    """Kill this process (SIGKILL) before the change with this number, counted from 1."""
    numbers = count(1)
    do = Driver._do

    async def counted(self: Driver, command: Command) -> Any:
        if isinstance(
            command, Pipelined
        ):  # one after the other, so that the process can be killed between them
            answers = [await counted(self, each) for each in command.commands]
            return answers[-1]
        if isinstance(command, OnChannel) and changes(command) and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return await do(self, command)

    Driver._do = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    kill_before(int(sys.argv.pop(1)))
    main()
