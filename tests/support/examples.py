"""How many examples hypothesis tries: all in ``make test-all``, a few where exhaustive tests are left out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

QUICK, THOROUGH = 15, 100
"""Examples of a test that asks for no number of them."""


def is_quick(config: pytest.Config) -> bool:
    """Whether exhaustive tests are left out, as ``make test`` does."""
    return "not exhaustive" in config.option.markexpr


def load_profile(config: pytest.Config) -> None:
    """Choose by the tests that run. Before any test is imported: :func:`examples` is called at import.

    Examples are whole models: no deadline on a shared machine, and the same examples in every run of CI.
    """
    most = QUICK if is_quick(config) else THOROUGH
    settings.register_profile(
        "inlay", max_examples=most, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
    )
    settings.load_profile("inlay")


def examples(most: int) -> int:
    """The share of ``most`` that the profile asks for; 1 at least."""
    return max(1, most * settings().max_examples // THOROUGH)
