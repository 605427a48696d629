"""A run's record says how many messages a take of its clients may have had that named none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated import simulated, small_test

from stormproof.run_folder import read_run
from stormproof.unnamed_takes import UNNAMED_TAKES, live


@pytest.mark.requirement("H8", part=True)
@pytest.mark.parametrize(("workload", "settings", "prefetch"), [
    ("queue", {}, 1), ("queue", {"surface": True}, None), ("consume-last", {}, 1), ("topic", {}, None)
])  # fmt: skip
def test_what_clients_are_given_ahead(
    tmp_path: Path, workload: str, settings: dict[str, Any], prefetch: int | None
) -> None:
    test = small_test(3, workload=workload, time_limit=5.0, nemesis="kill", settings=settings)
    assert read_run(simulated(test, tmp_path))[UNNAMED_TAKES] == live(prefetch)
