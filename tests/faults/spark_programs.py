"""A Spark driver that a test can kill: a separate program, with executors of its own where its master is a cluster.

    python -m tests.faults.spark_programs MASTER FOLDER

It reads orders as lines of JSON, and answers each with one line when it is done or has failed. `Program` starts it in a
new session, by which all its processes, orphans too, are found and killed by their ids.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.faults.spark_load import SLOW, SMALL, numbered, stream
from tests.faults.spark_read import copy, until_committed
from tests.patience import wait_until
from tests.programs import stopping
from tests.spark import BRIEF_JAVA

REPOSITORY = Path(__file__).parents[2]
EXECUTOR = "CoarseGrainedExecutorBackend"
DRIVER = ("org.apache.spark.deploy.SparkSubmit", "tests.faults.spark_programs")
"""Text in the command lines of the driver's Java process, which knows the executors, and of its Python process."""


# -- the program -------------------------------------------------------------------------------------


def main(master: str, folder: str) -> None:
    """Execute the orders, one after another."""
    spark = session(master, folder)
    say(ready=spark.sparkContext.applicationId)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "rows" in order:
                frame = numbered(spark, order["rows"], order["partitions"], order["gates"])
                frame.write.format("rabbitmq").options(**order["options"]).mode("append").save()
            elif "copy" in order:
                copy(spark, order["copy"], order["options"], order.get("into"))
            else:
                query = stream(spark, order["folder"], order["checkpoint"], order["options"])
                query.start().awaitTermination()
        except Exception as error:  # noqa: BLE001 - it is the answer
            say(failed=str(error))
        else:
            say(done=True)
    spark.stop()


def session(master: str, folder: str):
    from pyspark.sql import SparkSession

    from tests.spark.conftest import SETTINGS

    own_files = f"{BRIEF_JAVA} -Djava.io.tmpdir={folder}"
    more = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(SMALL),
        "spark.executorEnv.PYTHONPATH": ":".join(sys.path),
        "spark.executor.memory": "700m",
        "spark.driver.extraJavaOptions": own_files,
        "spark.executor.extraJavaOptions": own_files,
    }
    builder = SparkSession.builder.master(master).appName("to be killed").config(map={**SETTINGS, **more})
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def say(**answer) -> None:
    print(json.dumps(answer), flush=True)


# -- its handle --------------------------------------------------------------------------------------


class Program:
    """The running program; `stop` kills it and all that it has started."""

    def __init__(self, master: str, folder: Path) -> None:
        if not Path("/proc").is_dir():
            pytest.skip("the processes of a driver are found in /proc")
        folder.mkdir()
        self._errors = folder / "stderr.txt"
        local = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder),  # a driver that is killed removes no file
            "TMPDIR": str(folder),
        }
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, master, str(folder)],
                cwd=REPOSITORY,
                env={**os.environ, **local},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._answers: list[dict] = []
        self._orders = 0
        self._reader = threading.Thread(target=self._read, daemon=True, name="answers")
        self._reader.start()
        try:
            wait_until(lambda: self._answers or not self._reader.is_alive(), "the driver is up", SLOW)
            assert self._answers, self.complaint()
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.startswith("{"):
                self._answers.append(json.loads(line))

    def order(self, **order) -> None:
        """Begin something."""
        self._orders += 1
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    @property
    def answers(self) -> list[dict]:
        """Its answers to the orders so far."""
        return self._answers[1:]

    @property
    def busy(self) -> bool:
        """Whether it has not answered the last order yet."""
        return len(self.answers) < self._orders

    def until(self, condition, what: str) -> None:
        """Wait for a condition while the driver is running."""
        wait_until(lambda: condition() or not self._may_answer(), what, SLOW, pause=0.1)
        assert self._may_answer(), f"it ended before: {what} ({self.answers} {self.complaint()})"

    def answer(self, seconds: float = SLOW) -> dict:
        wait_until(lambda: not self._may_answer(), "the order is done", seconds, pause=0.1)
        assert not self.busy, self.complaint()
        return self.answers[-1]

    def _may_answer(self) -> bool:
        return self.busy and self._reader.is_alive()

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        return self.errors()[-3_000:]

    def errors(self) -> str:
        """Everything that the program wrote to stderr."""
        return self._errors.read_text(errors="replace")

    # -- its processes

    def processes(self, name: str = "") -> list[int]:
        """The processes of its session whose command line contains this text."""
        found = []
        for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]:
            with suppress(OSError):  # it has ended, or belongs to another user
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                # A zombie has no command line.
                if os.getsid(pid) == self._process.pid and command and name in command:
                    found.append(pid)
        return found

    def kill(self) -> None:
        """Kill only the driver."""
        # A process that Java is starting has its command line for a moment, and a higher number.
        java, python = (min(self.processes(half)) for half in DRIVER)
        for pid in (python, java):  # the otherwise Python could still report the loss of Java
            os.kill(pid, signal.SIGKILL)
        self._process.wait(SLOW)
        self._reader.join(SLOW)

    def stop(self) -> None:
        """Kill what still runs of it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(SLOW)
        self._reader.join(SLOW)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()
        self._remove_logs()

    def _remove_logs(self) -> None:
        """A cluster on one machine keeps the logs of its executors in Spark's own folder."""
        if self._answers:
            import pyspark

            home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
            shutil.rmtree(Path(home, "work", self._answers[0]["ready"]), ignore_errors=True)


def kill_drivers(kills: int, folder: Path, begin: Callable[[Program], object], random: Random) -> None:
    """Let drivers begin a query one after another, and kill each at a random moment."""
    for kill in range(kills):
        with stopping(Program("local[2]", folder / f"driver-{kill}")) as driver:
            begin(driver)
            until_committed(driver, folder, random.randint(0, 1))
            moment = time.monotonic() + random.uniform(0, 2)
            driver.until(lambda moment=moment: time.monotonic() > moment, "a random moment")
            driver.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
