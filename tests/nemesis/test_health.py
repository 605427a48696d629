"""Whether a cluster is healthy: what is known of it where a hook that would tell fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stormproof.contracts.cluster import Cluster


class Looked:
    """A cluster whose looks end as a script says; the last entry counts for all further looks."""

    def __init__(self, script: Sequence[bool | None]) -> None:
        self.script, self.unsure = list(script), ""

    async def statuses(self) -> list[Any]:
        return []

    def healthy(self, statuses: Sequence[Any]) -> bool:
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.unsure = "healthy() failed" if found is None else ""
        return bool(found)


@pytest.mark.requirement("H26", part=True)
@pytest.mark.parametrize(("script", "healthy", "unsure"), [
    ([None], False, True), ([False, None], False, False), ([None, False], False, False), ([None, True], True, False),
])  # fmt: skip
async def test_nobody_knows_only_if_no_look_gave_an_answer(
    script: list[bool | None], healthy: bool, unsure: bool
) -> None:
    looked: Any = Looked(script)
    assert await Cluster.await_healthy(looked, 0.5) is healthy
    assert bool(looked.unsure) is unsure
