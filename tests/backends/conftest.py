"""Fixtures of the backend tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from places import PLACES, Place, make_place


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each backend, as each user that can run it here."""
    with make_place(request.param) as made:
        yield made
