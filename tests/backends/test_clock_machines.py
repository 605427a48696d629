"""Clocks of programs that can be set, on real backends."""

from __future__ import annotations

import pytest
from places import HERE, make_place

from harness.backends.clock_machines import has_library


@pytest.mark.requirement("H5", part=True)
@pytest.mark.parametrize("name", [
    pytest.param(HERE, marks=pytest.mark.skipif(not has_library().available, reason=has_library().detail)),
    pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.soak]),
])  # fmt: skip
def test_clocks_jump_and_drift(name: str) -> None:
    """What the checks of clock_checks say, one after the other."""
    with make_place(name) as place:
        place.env["STORMPROOF_TEST_NEMESIS"] = "clock"
        place.check("clock", "clock_that_does_not_show")
