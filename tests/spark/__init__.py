"""Tests that start a Spark of their own."""

BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives a minute: what its second compiler would gain comes too late."""
