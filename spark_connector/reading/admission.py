"""Read limits and Trigger.AvailableNow of Python sources, which PySpark supports from 4.2 on."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_NAME: Final = "pyspark.sql.streaming.datasource"
limits: Any = import_module(_NAME) if find_spec(_NAME) else None
"""PySpark's module for read limits and Trigger.AvailableNow; None before 4.2, where a query with Trigger.AvailableNow ends after one micro-batch."""

AvailableNow: Any = limits.SupportsTriggerAvailableNow if limits else object
"""The base class of a reader that knows where a query with Trigger.AvailableNow ends."""
