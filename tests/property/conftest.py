"""How many examples a law is tried on: enough to find what was planted, few enough to be run at every change."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.conftest import in_ci

# No deadline, since other processes share the machine. In CI the same examples every time: a change is
# judged by what it changed and not by luck, and luck has its turn on the machines of those who work on it.
settings.register_profile(
    "rabbit-chx",
    deadline=None,
    derandomize=in_ci(),
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("rabbit-chx")
