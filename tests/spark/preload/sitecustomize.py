"""Makes the daemons of Spark import the connector before they fork: otherwise, each of their workers imports it."""

import importlib
import sys
from contextlib import suppress

if "pyspark.daemon" in sys.orig_argv:
    with suppress(ImportError):
        importlib.import_module("spark_connector.data_source")
