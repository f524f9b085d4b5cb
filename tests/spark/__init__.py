"""Tests that start a Spark of their own."""

import sys
from pathlib import Path

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives a minute: what its second compiler would gain comes too late."""

_ARCHIVE = Path(sys.prefix, "spark.jsa")
# Java ignores a file that does not fit, and would say so in the output of programs.
BRIEF_JAVA = f"{BRIEF} -XX:SharedArchiveFile={_ARCHIVE} -Xlog:disable" if _ARCHIVE.exists() else BRIEF
"""The same, with the classes of Spark as `class_archive` has written them."""
