"""Draw the pictures in docs/pictures as SVG: commands in a terminal, and what a change moves.

    .venv/bin/python scripts/pictures.py

Nothing is drawn by hand.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from rabbit_chx import Ring, moved
from rabbit_chx.report import flow_picture

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH: Final = 96

TERMINAL: Final = {
    "route": "rabbit-chx route customer-42 --queue q0 --queue q1 --queue q2=2 --explain",
    "ring": "rabbit-chx ring --file examples/topology.yaml --exchange orders --release 4.0",
    "simulate": "rabbit-chx simulate --keys keys.txt --file examples/topology.yaml --exchange orders --hot 2",
    "plan": "rabbit-chx plan examples/topology.yaml --exchange orders --remove orders.1",
    "lint": "rabbit-chx lint topology-with-mistakes.yaml",
}
NAMES: Final = [*TERMINAL, "movement"]
KEYS: Final = "\n".join(["customer-big"] * 4_000 + [f"customer-{number}" for number in range(36_000)])
MISTAKES: Final = """\
schema: 1
exchanges:
  orders:
    type: x-consistent-hash
    hash-heder: tenant
    queues: {"orders.{0..3}": 0}
queues: {"orders.{0..2}": {preset: orderd}}
"""

_FORMAT: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 15px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's SVG template, without the font that it would fetch from the network."""


def main() -> None:
    """Draw them."""
    for name in NAMES:
        (PICTURES / f"{name}.svg").write_text(drawn(name), encoding="utf-8")


def drawn(name: str) -> str:
    """Return a picture as SVG."""
    return terminal(name, TERMINAL[name]) if name in TERMINAL else movement()


def terminal(name: str, command: str) -> str:
    """Return a command's terminal output as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "keys.txt").write_text(KEYS)
        (place / "topology-with-mistakes.yaml").write_text(MISTAKES)
        (place / "examples").symlink_to(ROOT / "examples")
        words = shlex.split(command)
        clean = {
            key: value
            for key, value in os.environ.items()
            if key not in {"NO_COLOR", "AMQP_URL", "RABBITMQ_URL"}
        }
        done = subprocess.run(
            [sys.executable, "-m", "rabbit_chx", *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=place,
            env={**clean, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
        )
    screen = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    screen.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    screen.print(Text.from_ansi(done.stdout.rstrip("\n") + "\n"))  # a last line, which the frame would cut
    return re.sub(
        r"[ \t]+$",
        "",
        screen.export_svg(title=f"rabbit-chx {name}", code_format=_FORMAT, unique_id=name),
        flags=re.MULTILINE,
    )


def movement() -> str:
    """Return the SVG of the change that README begins with."""
    ring = Ring.of({f"orders.{number}": 1 for number in range(10)})
    after = ring.unbind("orders.0")
    return flow_picture(moved(ring, after), ring, after, title="Removing the first of ten queues").svg()


if __name__ == "__main__":
    main()
