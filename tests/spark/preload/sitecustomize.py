"""Lets the Python processes of Spark start sooner: it gives them ten seconds, which are short on a busy machine.

They would import PySpark and py4j from archives, which hold no compiled modules, and each worker that a daemon forks would
import the connector. An archive on the path that is imported from no more also lets `pkgutil.iter_modules` of Python 3.13 fail.
"""

import importlib
import sys
from contextlib import suppress

sys.path[:] = [each for each in sys.path if not each.endswith((".zip", ".jar"))]
if "pyspark.daemon" in sys.orig_argv:
    with suppress(ImportError):
        importlib.import_module("spark_connector.data_source")
