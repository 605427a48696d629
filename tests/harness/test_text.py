"""Readable numbers: durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormproof.text import elapsed


@pytest.mark.parametrize(("seconds", "told"), [
    (0, "0 s"), (1e-9, "less than 1 ms"), (0.001, "1 ms"), (0.0996, "100 ms"), (0.1, "0.1 s"), (0.4123, "0.412 s"),
    (12.345, "12.3 s"), (999.4, "999 s"), (999.6, "1,000 s"), (1830.2, "1,830 s"),
])  # fmt: skip
def test_a_duration(seconds: float, told: str) -> None:
    assert elapsed(seconds) == told


@given(st.floats(1e-9, 1e7))
def test_no_duration_is_told_as_zero_or_with_an_exponent(seconds: float) -> None:
    told = elapsed(seconds)
    assert "e" not in told.removeprefix("less than") and any(digit in told for digit in "123456789")
