"""What a primary knows of the record that its manager keeps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nodes.reference.designs.qpid.lease_client import ManagerPermission


class StubRuntime:
    random = random.Random(1)

    def now(self) -> float:
        return 0.0

    def point(self, name: str) -> None:
        pass


class Manager:
    """Takes versions of the record when the test says so."""

    def __init__(self) -> None:
        runtime: Any = StubRuntime()
        self.permission = ManagerPermission(runtime, "n1", "qpid", "s", ("127.0.0.1", 1), 1.0, lambda: None)
        self.permission.lead(7)

    def takes(self, version: int) -> None:
        self.permission._take(["granted", 0.0, 1.0, 7, version])


@pytest.mark.requirement("Q10", part=True)
def test_a_record_that_is_taken_back_holds_no_longer() -> None:
    """n2 was recorded, was back, and is missing again: until that is recorded anew the managers may count on it."""
    manager = Manager()
    permission = manager.permission
    assert not permission.recorded(["n2"])
    manager.takes(1)
    assert permission.recorded(["n2"])
    permission.recorded([])
    assert not permission.recorded(["n2"]), "the second version may be taken any time"
    manager.takes(2)
    assert not permission.recorded(["n2"])
    manager.takes(3)
    assert permission.recorded(["n2"])


@pytest.mark.requirement("Q10", part=True)
def test_who_is_missing_is_recorded_when_it_matters() -> None:
    """The first record replaces an earlier primary's; then only what is to be taken back is told at once."""
    manager = Manager()
    permission = manager.permission
    permission.missing(["n2"])
    manager.takes(1)
    assert permission.recorded(["n2"])
    permission.missing(["n2", "n3"])
    manager.takes(2)
    assert not permission.recorded(["n2", "n3"]), "nobody asked for it before"
    manager.takes(2)
    assert permission.recorded(["n2", "n3"])
    permission.missing(["n3"])
    manager.takes(3)
    assert permission.recorded(["n3"]) and not permission.recorded(["n2", "n3"])
