"""Compare the speed of routing keys with the broker's own function, this toolkit and a C loop in one run.

    python benchmarks/routing.py [--rows N] [--rounds N] [--buckets N] [--json]

All of them route the same keys over the same ring, each on one core. Every round compares checksums of their
results; a difference ends the run with exit code 1. In each round they run in turn, for a third of a second
each. Ratios are computed within a round, and the result is their median over the rounds; the extremes show
how much other work on the machine interfered.

The broker's function runs in the broker's image, or in a local Erlang that has the plugin; the C loop
needs a compiler. If one is unavailable, it is skipped and listed in the output. A missed target is not a failure.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from subprocess import PIPE
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from rabbit_chx import ConsistentHashExchange
from rabbit_chx.mirror.kernel.table import SEEDS, bucket_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

HERE: Final = Path(__file__).resolve().parent
IMAGE: Final = "rabbitmq:4.3-management"
SECONDS: Final = 1 / 3
BATCH: Final = 10_000  # Spark's default batch size for Python functions

LABELS: Final = {
    "BEAM": "the broker's function on the BEAM",
    "route": "route, one key at a time",
    "batches": f"route_many, Arrow batches of {BATCH:,}",
    "bulk": "route_many, one Arrow column",
    "C": "the loop in C",
}
# (contestant, opponent, keys): the target ratio of their speeds.
BARS: Final = {
    ("bulk", "BEAM", "even"): 100,
    ("bulk", "BEAM", "uneven"): 100,
    ("bulk", "C", "even"): 1 / 2,
    ("bulk", "C", "uneven"): 1 / 3,
}


class LeftOut(Exception):
    """A contestant is not available on this machine."""


@dataclass(frozen=True)
class Keys:
    """A column of keys in Arrow's layout, padded with 12 bytes."""

    name: str
    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]

    @classmethod
    def random(cls, name: str, lengths: NDArray[Any], rng: np.random.Generator) -> Keys:
        """Generate keys of printable ASCII with these lengths."""
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return cls(name, offsets, rng.integers(0x21, 0x7F, int(offsets[-1]) + 12, dtype=np.uint8))

    @cached_property
    def arrow(self) -> pa.StringArray:
        """Return an Arrow column over the same memory."""
        buffers = pa.py_buffer(self.offsets), pa.py_buffer(self.data)
        return pa.StringArray.from_buffers(len(self.offsets) - 1, *buffers)

    def write(self, folder: Path, rows: int) -> None:
        """Write the first rows to files for the program on the BEAM."""
        self.offsets[: rows + 1].astype("<i4").tofile(folder / f"{self.name}.offsets")
        self.data[: self.offsets[: rows + 1][-1]].tofile(folder / f"{self.name}.keys")


@dataclass(frozen=True)
class Run:
    """One measurement, with a checksum of the results."""

    rows: int
    seconds: float
    checksum: Callable[[], int]


def checksum(destinations: NDArray[Any]) -> int:
    """Return the sum over all rows, counted from 1, of row * (destination + 1), modulo 2^64."""
    rows = np.arange(1, len(destinations) + 1, dtype=np.uint64)
    return int((rows * (destinations.astype(np.uint64) + np.uint64(1))).sum(dtype=np.uint64))


class OneByOne:
    """``route``, called for each key."""

    name = "route"
    about = ""
    rows = 10_000

    def __init__(self, exchange: ConsistentHashExchange) -> None:
        self._exchange = exchange

    def run(self, keys: Keys) -> Run:
        """Route the first keys, one by one."""
        column = keys.arrow.slice(0, self.rows).to_pylist()
        route = self._exchange.route
        start = perf_counter()
        queues = [route(key) for key in column]
        seconds = perf_counter() - start
        return Run(len(queues), seconds, lambda: checksum(np.array(queues).astype(int)))


class Bulk:
    """``route_many`` on an Arrow column, whole or in batches."""

    about = ""

    def __init__(self, name: str, exchange: ConsistentHashExchange, batch: int | None = None) -> None:
        self.name = name
        self._exchange = exchange
        self._batch = batch

    def run(self, keys: Keys) -> Run:
        """All of them."""
        rows = len(keys.arrow)
        size = self._batch or rows
        batches = [keys.arrow.slice(at, size) for at in range(0, rows, size)]
        start = perf_counter()
        answers = [self._exchange.route_many(batch) for batch in batches]
        seconds = perf_counter() - start
        return Run(rows, seconds, lambda: checksum(np.concatenate(answers)))


class CLoop:
    """``routing_loop.c``, compiled for this CPU; it fills its own table of buckets first."""

    name = "C"

    def __init__(self, folder: Path, exchange: ConsistentHashExchange, columns: list[Keys]) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            raise LeftOut("no C compiler (cc, gcc or clang) on the PATH")
        library = folder / "routing_loop.so"
        flags = ["-O3", "-march=native", "-fPIC", "-shared"]
        command = [compiler, *flags, str(HERE / "routing_loop.c"), "-o", str(library), "-lm"]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise LeftOut(f"{compiler} failed: {compiled.stderr.strip()}")
        self._library = ctypes.CDLL(str(library))
        self._table = np.empty(SEEDS, np.uint16)
        self._owners = exchange._owners
        self._destinations = np.full(len(columns[0].arrow), -1, np.int32)
        self._library.fill(self._table.ctypes, ctypes.c_uint32(len(self._owners)))
        self.about = f"{Path(compiler).name} {' '.join(flags[:2])}"

    def run(self, keys: Keys) -> Run:
        """Route all keys in place."""
        column = [keys.data.ctypes, keys.offsets.ctypes, ctypes.c_size_t(len(keys.arrow))]
        tables = [self._table.ctypes, self._owners.ctypes, self._destinations.ctypes]
        start = perf_counter()
        self._library.route(*column, *tables)
        return Run(len(keys.arrow), perf_counter() - start, lambda: checksum(self._destinations))


class Beam:
    """The plugin's own ``jump_consistent_hash/2``, in a BEAM process that replies line by line."""

    name = "BEAM"
    rows = 50_000

    def __init__(self, folder: Path, exchange: ConsistentHashExchange, columns: list[Keys]) -> None:
        shutil.copy(HERE / "routing_beam.escript", folder)
        for keys in columns:
            keys.write(folder, self.rows)
        docker = ["docker", "run", "--rm", "-i", "-v", f"{folder}:/keys:ro", "--entrypoint", "escript", IMAGE]
        reasons = []
        for command, at in ((docker, "/keys"), (["escript"], str(folder))):
            if not shutil.which(command[0]):
                reasons.append(f"no {command[0]} on the PATH")
                continue
            program = [*command, f"{at}/routing_beam.escript", at, str(len(exchange._owners))]
            self._process = subprocess.Popen(program, stdin=PIPE, stdout=PIPE, text=True)
            hello = self._ask()
            if hello is not None:
                self.about = f"RabbitMQ {hello['rabbitmq']} on OTP {hello['otp']}"
                return
            self.close()
            reasons.append(f"{command[0]} failed, see above")
        raise LeftOut("; ".join(reasons))

    def run(self, keys: Keys) -> Run:
        """Route the first keys on the BEAM."""
        answer = self._ask(keys.name)
        if answer is None:
            sys.exit("the program on the BEAM ended")
        return Run(answer["rows"], answer["ns"] / 1e9, lambda: int(answer["checksum"]))

    def _ask(self, *question: str) -> dict[str, Any] | None:
        """Read one line of JSON, or nothing if the program has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if question:
            print(*question, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        return json.loads(line) if line.startswith("{") else None

    def close(self) -> None:
        """Close the program's input, which ends the program and its container."""
        self._process.communicate()


Contestant: TypeAlias = OneByOne | Bulk | CLoop | Beam


def ring_of(buckets: int) -> ConsistentHashExchange:
    """Return an exchange with queues of weight 1 named after their buckets, so that a destination is a bucket number."""
    return ConsistentHashExchange({str(bucket): 1 for bucket in range(buckets)})


def speed(contestant: Contestant, keys: Keys, answers: NDArray[Any]) -> float:
    """Return the keys routed per second in a short run, after a warm-up run that refills the caches."""
    run = contestant.run(keys)
    if run.checksum() != checksum(answers[: run.rows]):
        sys.exit(f"{contestant.name} routes the {keys.name} keys to other queues than route_many")
    contestant.run(keys)
    rows, seconds = 0, 0.0
    while seconds < SECONDS:
        run = contestant.run(keys)
        rows += run.rows
        seconds += run.seconds
    return rows / seconds


def first_answers(keys: Keys, buckets: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds that a new ring size needs for its first 10,000 keys, and for all possible keys."""
    few = keys.arrow.slice(0, BATCH)
    answers, tables = [], []
    for _ in range(rounds):
        bucket_table.cache_clear()
        start = perf_counter()
        ring_of(buckets).route_many(few)
        answers.append(perf_counter() - start)
        bucket_table.cache_clear()
        start = perf_counter()
        bucket_table(buckets).all()
        tables.append(perf_counter() - start)
    return answers, tables


def start_up(rounds: int) -> dict[str, list[float]]:
    """Return the seconds that a new process needs for ``import numpy``, and for routing one key on the command line."""
    route = ["-m", "rabbit_chx", "route", "customer-42", "--queue", "q0", "--queue", "q1"]
    seconds: dict[str, list[float]] = {"import numpy": [], "route": []}
    for _ in range(rounds):
        for arguments, taken in zip((["-c", "import numpy"], route), seconds.values(), strict=True):
            start = perf_counter()
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
            taken.append(perf_counter() - start)
            if done.returncode:
                raise LeftOut((done.stderr.strip() or "no message").splitlines()[-1])
    return seconds


def take(rows: int, rounds: int, buckets: int) -> dict[str, Any]:
    """Run the whole benchmark and return its numbers."""
    rng = np.random.default_rng(1)
    columns = [Keys.random("even", np.full(rows, 21), rng)]
    columns += [Keys.random("uneven", rng.integers(5, 61, rows), rng)]
    exchange = ring_of(buckets)
    firsts, tables = first_answers(columns[0], buckets, rounds)
    contestants: list[Contestant] = [OneByOne(exchange)]
    contestants += [Bulk("batches", exchange, BATCH), Bulk("bulk", exchange)]
    left_out = {}
    with tempfile.TemporaryDirectory() as folder:
        for opponent in (CLoop, Beam):
            try:
                contestants.append(opponent(Path(folder), exchange, columns))
            except LeftOut as reason:
                left_out[opponent.name] = str(reason)
        speeds = measure(contestants, columns, exchange, rounds)
    try:
        started = start_up(rounds)
    except LeftOut as reason:
        started, left_out["start-up"] = {}, str(reason)
    return {
        "machine": machine() | {each.name: each.about for each in contestants if each.about},
        "rows": rows,
        "rounds": rounds,
        "buckets": buckets,
        "keys_per_second": speeds,
        "first_answer_seconds": firsts,
        "table_seconds": tables,
        "start_up_seconds": started,
        "left_out": left_out,
    }


def measure(
    contestants: list[Contestant], columns: list[Keys], exchange: ConsistentHashExchange, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return the keys per second of each contestant on each column, for every round."""
    answers = {keys.name: exchange.route_many(keys.arrow) for keys in columns}
    speeds: dict[str, dict[str, list[float]]] = {each.name: {} for each in contestants}
    for _ in range(rounds):
        for keys in columns:
            for each in contestants:
                rate = speed(each, keys, answers[keys.name])
                speeds[each.name].setdefault(keys.name, []).append(rate)
    for each in contestants:
        if isinstance(each, Beam):
            each.close()
    return speeds


def machine() -> dict[str, str]:
    """Describe the environment that the numbers depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return {
        "processor": f"{processor}, {os.cpu_count()} cores",
        "Python": f"{platform.python_version()}, NumPy {np.__version__}, pyarrow {pa.__version__}",
    }


def show(taken: dict[str, Any]) -> None:
    """Format the numbers as text, each as a median with its extremes."""
    print(f"{taken['rows']:,} keys, {taken['buckets']} queues, {taken['rounds']} rounds: median (extremes)")
    for name, about in taken["machine"].items():
        print(f"  {name}: {about}")
    speeds = taken["keys_per_second"]
    print(f"\n{'million keys a second, one core':<38}{'of 21 bytes':>28}{'of 5 to 60 bytes':>28}")
    for name, label in LABELS.items():
        if name in speeds:
            print(f"{label:<38}" + "".join(f"{spread(values, 1e6):>28}" for values in speeds[name].values()))
    print(f"\n{'ratio or time':<38}{'':>28}{'bar':>12}")
    for (name, other, keys), bar in BARS.items():
        if other in speeds:
            ratios = [a / b for a, b in zip(speeds[name][keys], speeds[other][keys], strict=True)]
            judge(f"route_many / {other}, {keys} keys", ratios, f">= {bar:.3g}", met=median(ratios) >= bar)
    firsts, tables = ([1e3 * each for each in taken[f"{what}_seconds"]] for what in ("first_answer", "table"))
    judge(f"first {BATCH:,} keys of a ring size, ms", firsts, "<= 30", met=median(firsts) <= 30)
    judge("the whole table of a ring size, ms", tables, "<= 600", met=median(tables) <= 600)
    if taken["start_up_seconds"]:
        ratios = [b / a for a, b in zip(*taken["start_up_seconds"].values(), strict=True)]
        judge("start-up, route / import numpy", ratios, "< 2", met=median(ratios) < 2)
    for name, reason in taken["left_out"].items():
        print(f"left out: {name} ({reason})")
    print("All answers agree.")


def judge(label: str, values: list[float], bar: str, *, met: bool) -> None:
    """Format a line that ends with whether the target was met."""
    print(f"{label:<38}{spread(values):>28}{bar:>12}  {'met' if met else 'MISSED'}")


def spread(values: list[float], unit: float = 1) -> str:
    """Format the median, with the extremes in parentheses."""
    middle, low, high = (
        f"{each / unit:#.3g}".rstrip(".") for each in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} - {high})"


def main() -> None:
    """Read the options, run the benchmark and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in a column (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured (%(default)s)")
    parser.add_argument("--buckets", type=int, default=8, help="queues of weight 1, 2 to 65535 (%(default)s)")
    parser.add_argument("--json", action="store_true", help="every round, as one JSON object")
    options = parser.parse_args()
    if options.rows < 1 or options.rounds < 1 or not 2 <= options.buckets <= 0xFFFF:
        parser.error("--rows and --rounds must be at least 1, --buckets from 2 to 65535")
    taken = take(options.rows, options.rounds, options.buckets)
    if options.json:
        print(json.dumps(taken))
    else:
        show(taken)


if __name__ == "__main__":
    main()
