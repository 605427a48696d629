"""The end of all nodes in order counts only if somebody came to rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from nemesis_fakes import FakeCluster

from nemesis.crash import SHUTDOWN, CrashFault
from stormproof.contracts.fault import FaultPlan
from stormproof.test import Test


@pytest.mark.parametrize(("kind", "said", "proven"), [
    (SHUTDOWN, {"clean": ["n1", "n2"]}, True), (SHUTDOWN, {"error": "nobody is primary"}, False),
    (SHUTDOWN, {"clean": []}, False), ("kill", {}, True),
])  # fmt: skip
async def test_what_was_killed_instead_was_not_shut_down(
        kind: str, said: Mapping[str, Any], proven: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def shut_down(self: FakeCluster, timeout: float) -> Mapping[str, Any]:
        return said

    cluster = FakeCluster(Test("qpid", "queue", nemesis=("crash",), seed=1, nodes=3, time_limit=1.0, rate=1.0))
    monkeypatch.setattr(FakeCluster, "shut_down", shut_down)
    evidence = await CrashFault().inject(cluster, FaultPlan(kind, tuple(cluster.node_names)))
    assert evidence.confirmed is proven
