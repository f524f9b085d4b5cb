"""Draw the pictures in docs/pictures: commands in a terminal as SVG, and the report as screenshots.

    .venv/bin/python scripts/pictures.py              all pictures; the screenshots need Chromium
    .venv/bin/python scripts/pictures.py terminal     only the SVGs

Each picture shows the real output of a command; nothing is drawn by hand.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final

from bootstrap import BROWSERS
from rich.console import Console
from rich.text import Text

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
SCREENS: Final = {
    "report-light": ("--blink-settings=preferredColorScheme=1", 1000, 1180),
    "report-dark": ("--blink-settings=preferredColorScheme=0", 1000, 1180),
    "report-narrow": ("--blink-settings=preferredColorScheme=1", 500, 1500),
}
CHROMIUM: Final = next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-sync", "--disable-component-update"),
)
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


def main(what: str = "") -> None:
    """Draw them."""
    PICTURES.mkdir(exist_ok=True)
    for name, command in TERMINAL.items():
        (PICTURES / f"{name}.svg").write_text(terminal(name, command), encoding="utf-8")
    if what != "terminal":
        screens()


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
    drawn = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    drawn.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    drawn.print(Text.from_ansi(done.stdout.rstrip("\n") + "\n"))  # a last line, which the frame would cut
    return re.sub(
        r"[ \t]+$",
        "",
        drawn.export_svg(title=f"rabbit-chx {name}", code_format=_FORMAT, unique_id=name),
        flags=re.MULTILINE,
    )


def screens() -> None:
    """Take screenshots of the report: light, dark, and as narrow as a phone, each marked with the hash of the page."""
    if CHROMIUM is None:
        sys.exit("The screenshots need Chromium (Debian: apt install chromium); the SVGs are drawn.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(report(), encoding="utf-8")
        for name, (scheme, width, height) in SCREENS.items():
            picture = PICTURES / f"{name}.png"
            own = [
                f"--user-data-dir={folder}/{name}",
                f"--screenshot={picture}",
                f"--window-size={width},{height}",
            ]
            subprocess.run(
                [CHROMIUM, *QUIET, *own, scheme, page.as_uri()], check=True, capture_output=True, timeout=120
            )
            picture.write_bytes(marked(picture.read_bytes(), digest(page.read_bytes())))


def report() -> str:
    """Return the page that the screenshots show."""
    with tempfile.TemporaryDirectory() as folder:
        keys, page = Path(folder, "keys.txt"), Path(folder, "page.html")
        keys.write_text(KEYS)
        given = ["--file", str(ROOT / "examples/topology.yaml"), "--exchange", "orders", "--keys", str(keys)]
        command = [sys.executable, "-m", "rabbit_chx", "report", *given, "--out", str(page)]
        subprocess.run(command, check=True, capture_output=True)
        return page.read_text(encoding="utf-8")


def digest(page: bytes) -> str:
    """Return the hash that identifies a page."""
    return hashlib.sha256(page).hexdigest()


_FIRST_CHUNK_ENDS: Final = 33  # a PNG starts with a signature of 8 bytes and a header chunk of 25
_MARK: Final = b"tEXtSource\0"


def marked(png: bytes, text: str) -> bytes:
    """Return the picture with a text chunk that identifies its source."""
    chunk = _MARK + text.encode()
    framed = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png[:_FIRST_CHUNK_ENDS] + framed + png[_FIRST_CHUNK_ENDS:]


def mark_of(png: bytes) -> str:
    """Return the text that `marked` stored."""
    start = png.index(_MARK, _FIRST_CHUNK_ENDS)
    (size,) = struct.unpack_from(">I", png, start - 4)
    return png[start + len(_MARK) : start + 4 + size].decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
