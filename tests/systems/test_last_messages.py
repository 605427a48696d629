"""The end of real runs: a dead-letter queue is drained, and fences show that a queue is empty."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from system_runs import HERE, possible, stormproof

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif("local" not in possible() or shutil.which("activemq") is None, reason="needs activemq"),
    pytest.mark.requirement("H12", part=True),
]


def verdict_of(system: str, folder: Path) -> dict[str, dict[str, object]]:
    ran = stormproof("test", "--system", f"{HERE / 'activemq_variants.py'}:{system}", "--backend", "local",
                     "--nemesis", "kill", "--time-limit", "12", "--rate", "100", "--seed", "5", "--set", "min_ok=10",
                     "--store", str(folder))  # fmt: skip
    assert ran.status == 0, ran.out + ran.err
    checks = {result["check"]: result for result in ran.verdict["checks"]}
    return {**checks, "sentence": {"text": ran.verdict["sentence"]}}


def test_refused_messages_are_told_as_dead_letters(tmp_path: Path) -> None:
    found = verdict_of("RefusingMQ", tmp_path)
    assert found["lost"]["figures"]["dead_lettered"] > 0  # type: ignore[index]
    assert "to a dead-letter queue (ActiveMQ Classic's default" in str(found["sentence"]["text"])


def test_a_queue_whose_depth_nobody_tells_is_shown_to_be_empty(tmp_path: Path) -> None:
    found = verdict_of("DepthlessMQ", tmp_path)
    assert "emptiness shown by fences" in str(found["sentence"]["text"])
    assert "shown by fences" in str(found["depth"]["summary"])
