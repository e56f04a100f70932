"""Settings of all tests: Hypothesis draws the same examples everywhere, and says how to repeat a failure."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
# To look for new failures: HYPOTHESIS_PROFILE=search pytest tests/simulation
settings.register_profile("search", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
