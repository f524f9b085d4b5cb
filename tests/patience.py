"""How long a test waits before it fails; a deadline costs nothing when the test passes."""

from __future__ import annotations

import os
from typing import Final

PATIENCE: Final = 120.0 * float(os.environ.get("RABBIT_CHX_PATIENCE", "1"))
