"""A member whose handler says "begun", waits for a file and says "ended", so that a test can stop it meanwhile.

MEMBER='{"kind": "Group", "file": ..., "url": ..., "close": 60, ...}' python -m tests.faults.stopping_worker
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from rabbit_chx import consuming, streams
from rabbit_chx.base.timeouts import Timeouts


def main(*, kind: str, file: str, url: str, close: float, **options: Any) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

    def handle(_: object) -> None:
        print("begun")
        while not Path(file).exists():
            time.sleep(0.01)
        print("ended")

    async def handle_in_loop(_: object) -> None:
        print("begun")
        while not Path(file).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.01)
        print("ended")

    group = getattr(streams if kind == "StreamGroup" else consuming, kind)(
        url, timeouts=Timeouts(close=close), **options
    )
    if kind == "AsyncGroup":
        asyncio.run(group.run(handle_in_loop))
    else:
        group.run(handle)
    print("stopped")


if __name__ == "__main__":
    main(**json.loads(os.environ["MEMBER"]))
