"""Lets the Python processes of Spark start sooner: it gives them ten seconds, which are short on a busy machine.

They would import PySpark from an archive, which holds no compiled modules, and each worker that a daemon forks would
import the connector.
"""

import importlib
import sys
from contextlib import suppress

sys.path[:] = [each for each in sys.path if not each.endswith("pyspark.zip")]
if "pyspark.daemon" in sys.orig_argv:
    with suppress(ImportError):
        importlib.import_module("spark_connector.data_source")
