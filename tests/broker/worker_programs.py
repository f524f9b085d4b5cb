"""Run worker programs, and declare an exchange with ordered queues for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

from tests.patience import PATIENCE
from tests.queues import ORDERED, bind_ring, delete_exchange
from tests.wheels import outside


class Program:
    """A running program and its output so far."""

    def __init__(self, process):
        self.text = ""
        self.process = process
        self._output = process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._output:
            self.text += line

    def finish(self):
        """Read the rest, before the output of a program that has ended is closed."""
        self._reader.join(PATIENCE)

    def found(self, pattern):
        """The sorted matches in the output, because lines of several threads may be mixed."""
        return sorted(re.findall(pattern, self.text))


@contextmanager
def started(arguments, variables=(), codes=(0,), programs=None):
    """Run a Python program, which must exit with one of these codes after SIGTERM; `programs` are those of `install`."""
    python, env = (programs / "python", outside(programs)) if programs else (sys.executable, os.environ)
    with subprocess.Popen(
        [python, "-W", "error", *map(str, arguments)],
        env={**env, **dict(variables), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    ) as process:
        program = Program(process)
        try:
            yield program
            process.send_signal(signal.SIGTERM)
            assert process.wait(2 * PATIENCE) in codes
        finally:
            process.kill()
            program.finish()


@contextmanager
def ordered_exchange(broker, exchange):
    """Declare a hash exchange with two ordered queues; yield a function that publishes a message for each of ten keys."""
    queues = {f"{exchange}.{number}": "100" for number in range(2)}
    with broker.connection() as connection:
        bind_ring(connection.channel(), exchange, queues, ORDERED)

    def publish():
        with broker.connection() as connection:
            for number in range(10):
                connection.channel().basic_publish(exchange, f"key-{number}", f"body {number}".encode())

    try:
        yield publish
    finally:
        with broker.connection() as connection:
            delete_exchange(connection.channel(), exchange, queues)
