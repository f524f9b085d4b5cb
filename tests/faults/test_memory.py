"""Memory does not grow with the number of messages, nor with their size.

    RABBIT_CHX_MEMORY_MESSAGES=10000000 RABBIT_CHX_MEMORY_LARGE=10000 pytest tests/faults/test_memory.py

The publisher runs in its own process; the test compares its peak with the connected, idle process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.programs import ran
from tests.proof import LONG, record_result

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.proof]

STATUS = Path("/proc/self/status")
PROGRAM = """
import json, re, sys
from pathlib import Path
from rabbit_chx.publishing import Publisher

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

url, exchange, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
step = max(1, min(1_000, (4 << 20) // size))
with Publisher(url, exchange) as publisher:
    publisher.publish(b"the first", "k")
    idle = kib("VmRSS")
    bulk = publisher.bulk()
    for start in range(0, count, step):
        rows = range(start, min(start + step, count))
        bulk.add_many([b"%020d" % row + b"x" * (size - 20) for row in rows], [f"customer-{row}" for row in rows])
    bulk.flush()
    totals = publisher.totals
print(json.dumps({"idle": idle / 1024, "peak": kib("VmHWM") / 1024, "confirmed": totals.confirmed}))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="there is no /proc here to read the peak from")
@pytest.mark.parametrize(
    ("count", "size"),
    [
        (int(os.environ.get("RABBIT_CHX_MEMORY_MESSAGES", "2_000_000" if LONG else "500_000")), 100),
        (int(os.environ.get("RABBIT_CHX_MEMORY_LARGE", "1_000")), 1 << 20),
    ],
    ids=["small", "1 MiB"],
)
def test_the_peak_stays_near_the_idle_process(broker, topology, count, size):
    used = topology(queues=1, x_max_length=1_000)  # drops the oldest, to spare the broker's memory
    done = ran([sys.executable, "-c", PROGRAM, broker.url, used.exchange, str(count), str(size)], timeout=600)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    growth = seen["peak"] - seen["idle"]
    record_result(
        f"memory: {count:,} messages of {size:,} bytes: idle {seen['idle']:.1f} MiB, "
        f"peak {seen['peak']:.1f} MiB, growth {growth:.1f} MiB"
    )
    assert seen["confirmed"] == count + 1
    assert growth < 64, seen
